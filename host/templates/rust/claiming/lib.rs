//! Free partitions to the subscriber with the fewest, then single moves until counts are even.
//!
//! Invariant: `plan` is a pure function of the cycle. Time is `cycle.now_ms`, chance is `cycle.seed`.

use fulcrum_guest::config::Fields;
use fulcrum_guest::{Changes, Claiming, Cycle, Description, Error};

/// The policy.
#[derive(Debug)]
pub struct Policy;

impl Claiming for Policy {
    fn describe() -> Description {
        Description {
            name: "{{name}}",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Free partitions to the member with the fewest, then single moves until counts are even.",
            config_schema: r#"{"type": "object", "additionalProperties": false}"#,
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        Fields::parse(config)?.finish()?;
        Ok(Self)
    }

    fn plan(&self, cycle: &Cycle<'_>) -> Result<Changes, Error> {
        // After it, indexing by a column cannot panic.
        cycle.check()?;
        let mut changes = Changes::default();
        let (free, even) = (changes.reason("was free"), changes.reason("evens the counts"));
        let mut counts = vec![0_u32; cycle.members.len()];
        for &owner in cycle.owner.iter().filter(|owner| **owner >= 0) {
            counts[owner as usize] += 1;
        }
        let may_own = |member: usize, partition: usize| {
            cycle.members[member].topics.binary_search(&cycle.topic[partition]).is_ok()
        };
        // Of equal counts the first member wins.
        let emptiest = |partition: usize, counts: &[u32]| {
            let subscribers = (0..counts.len()).filter(|&member| may_own(member, partition));
            subscribers.min_by_key(|&member| counts[member])
        };
        let mut budget = cycle.movement_budget.unwrap_or(u32::MAX);

        let at_rest = |partition: &usize| cycle.moving[*partition] == 0;
        let (unowned, owned): (Vec<_>, Vec<_>) =
            (0..cycle.partitions()).filter(at_rest).partition(|&partition| cycle.owner[partition] < 0);
        // Free partitions first: they need no hand-over.
        for partition in unowned {
            let Some(member) = emptiest(partition, &counts) else { continue };
            counts[member] += 1;
            changes.claim(partition as u32, member as u32, free);
        }
        for partition in owned {
            let Some(member) = emptiest(partition, &counts) else { continue };
            let owner = cycle.owner[partition] as usize;
            // An owner that no longer subscribes gives up in any case.
            let is_even = may_own(owner, partition) && counts[member] + 1 >= counts[owner];
            if is_even || budget == 0 {
                continue;
            }
            budget -= 1;
            counts[owner] -= 1;
            counts[member] += 1;
            changes.claim(partition as u32, member as u32, even);
        }
        Ok(changes)
    }
}

fulcrum_guest::export_claiming!(Policy);

#[cfg(test)]
mod tests {
    use fulcrum_guest::Member;
    use fulcrum_guest::claiming::Reason;

    use super::*;

    /// Plans for `members` equal members and partitions with these owners.
    fn plan(members: usize, owner: &[i32], movement_budget: Option<u32>) -> Changes {
        let member = |row| Member {
            id: format!("m{row}"),
            zone: String::new(),
            labels: Vec::new(),
            capacity: 1.0,
            since_ms: 0,
            topics: vec![0],
        };
        let members: Vec<_> = (0..members).map(member).collect();
        let count = owner.len();
        let cycle = Cycle {
            group: "g",
            members: &members,
            topics: &["t".to_owned()],
            places: &[String::new()],
            topic: &vec![0; count],
            number: &(0..count as u32).collect::<Vec<_>>(),
            place: &vec![0; count],
            owner,
            moving: &vec![0; count],
            weight: &vec![1.0; count],
            held_ms: &vec![0; count],
            movement_budget,
            reason: Reason::Manual,
            now_ms: 0,
            seed: 0,
        };
        Policy.plan(&cycle).expect("a good cycle")
    }

    #[test]
    fn counts_become_even_with_single_moves() {
        let check = |members, owner: &[i32], budget, partitions: &[u32], gets: &[u32]| {
            let changes = plan(members, owner, budget);
            assert_eq!((&*changes.partition, &*changes.member), (partitions, gets), "{owner:?}");
        };
        check(2, &[-1, -1, -1], None, &[0, 1, 2], &[0, 1, 0]);
        check(2, &[0, 0, 0, 0], None, &[0, 1], &[1, 1]);
        check(2, &[0, 0, 0, 0], Some(1), &[0], &[1]);
        check(2, &[0, 1, 0], None, &[], &[]);
        check(0, &[-1], None, &[], &[]);
    }
}
