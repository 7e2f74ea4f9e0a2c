//! How much of a plan one cycle carries out: the movement budget, claims per member, and when to go on.
//!
//! A plan that is cut down leaves partitions where they are, so the next cycle finds a smaller problem of the same
//! kind. What is still to move then is exactly what was left now: nothing is moved twice.

use super::even::{Moves, Rebalance};
use super::{Changes, Cycle};
use crate::Error;
use crate::config::{Fields, Value, invalid};

/// Interval of unfinished work unless told otherwise, in milliseconds.
pub const FAST_INTERVAL_MS: u32 = 1000;

/// Names of why a partition moves.
const FREE: &str = "free partition";
const FORCED: &str = "its owner does not subscribe to the topic";
const SURPLUS: &str = "its owner has more than its share";

/// How fast a group may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    /// Share of its fair share that one member may gain in one cycle, in percent; at least one partition.
    pub claim_percent: u32,
    /// Most partitions that one member may gain in one cycle.
    pub claims_max: u32,
    /// Interval until the next cycle while there is something left to do, in milliseconds.
    pub fast_interval_ms: u32,
    /// Interval once everything is settled, in milliseconds; `None` means the group's.
    pub slow_interval_ms: Option<u32>,
}

impl Default for Pace {
    /// Everything at once.
    fn default() -> Self {
        Self {
            claim_percent: 100,
            claims_max: u32::MAX,
            fast_interval_ms: FAST_INTERVAL_MS,
            slow_interval_ms: None,
        }
    }
}

impl Pace {
    /// Takes `claimPercent`, `maxClaimsPerCycle`, `fastIntervalMs` and `slowIntervalMs`.
    pub fn take(fields: &mut Fields, defaults: &Self) -> Result<Self, Error> {
        Ok(Self {
            claim_percent: fields.integer("claimPercent", 0..=100, defaults.claim_percent)?,
            claims_max: optional(fields, "maxClaimsPerCycle", 1..=1_000_000)?.unwrap_or(defaults.claims_max),
            fast_interval_ms: fields.integer("fastIntervalMs", 100..=3_600_000, defaults.fast_interval_ms)?,
            slow_interval_ms: optional(fields, "slowIntervalMs", 100..=3_600_000)?
                .or(defaults.slow_interval_ms),
        })
    }

    /// Returns how many partitions each member may gain in this cycle:
    /// `max(1, ceil(percent x fair share))`, at most `maxClaimsPerCycle`.
    ///
    /// The fair share is partitions over members if everybody may own everything, else what the member has in the
    /// end. Source: the credits of the Event Hubs design note on partition claiming.
    #[must_use]
    pub fn credits(&self, plan: &Rebalance) -> Vec<u32> {
        let credits = |(count, of): (u32, u32)| {
            let part = u64::from(self.claim_percent) * u64::from(count);
            (part.div_ceil(100 * u64::from(of)) as u32).max(1).min(self.claims_max)
        };
        match plan.share {
            Some(share) => vec![credits(share); plan.load.len()],
            None => plan.load.iter().map(|&load| credits((load, 1))).collect(),
        }
    }

    /// Carries out a plan as far as the cycle's movement budget and, if given, the members' credits allow: first
    /// free partitions, then those that must move, then those that should.
    #[must_use]
    pub fn carry_out(&self, cycle: &Cycle<'_>, plan: Rebalance, credits: Option<Vec<u32>>) -> Changes {
        let mut changes = Changes::default();
        let mut budget = cycle.movement_budget.map_or(usize::MAX, |budget| budget as usize);
        let mut credits = credits;
        let mut left = plan.cut_short;
        left |= claim(&mut changes, FREE, plan.free, None, credits.as_deref_mut());
        // Without any budget there is no point in coming back for more.
        if budget > 0 {
            left |= claim(&mut changes, FORCED, plan.forced, Some(&mut budget), credits.as_deref_mut());
            left |= budget < plan.orphans.len();
            changes.releases.extend(plan.orphans.into_iter().take(budget));
            budget -= changes.releases.len().min(budget);
            left |= claim(&mut changes, SURPLUS, plan.moves, Some(&mut budget), credits.as_deref_mut());
        }
        changes.next_cycle_ms = if left { Some(self.fast_interval_ms) } else { self.slow_interval_ms };
        changes
    }
}

/// Takes a whole number that may be absent or null.
pub fn optional(
    fields: &mut Fields,
    name: &str,
    range: std::ops::RangeInclusive<u32>,
) -> Result<Option<u32>, Error> {
    match fields.take(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number))
            if number.fract() == 0.0
                && (f64::from(*range.start())..=f64::from(*range.end())).contains(&number) =>
        {
            Ok(Some(number as u32))
        }
        Some(Value::Number(_)) => {
            Err(invalid(name, "is not a whole number in range, see the configuration's schema"))
        }
        Some(_) => Err(invalid(name, "must be a number")),
    }
}

/// Claims what budget and credits allow; says whether anything is left.
fn claim(
    changes: &mut Changes,
    reason: &'static str,
    moves: Moves,
    budget: Option<&mut usize>,
    credits: Option<&mut [u32]>,
) -> bool {
    if moves.is_empty() {
        return false;
    }
    let count = moves.len();
    let before = changes.partition.len();
    let mut unlimited = usize::MAX;
    let budget = budget.unwrap_or(&mut unlimited);
    if *budget == 0 {
        return true;
    }
    let reason = changes.reason(reason);
    match credits {
        None if count <= *budget => changes.claim_all(moves.partition, moves.member, reason),
        None => {
            for (&partition, &member) in moves.partition.iter().zip(&moves.member).take(*budget) {
                changes.claim(partition, member, reason);
            }
        }
        Some(credits) => {
            for (&partition, &member) in moves.partition.iter().zip(&moves.member) {
                let credits = &mut credits[member as usize];
                if *credits > 0 && changes.partition.len() - before < *budget {
                    *credits -= 1;
                    changes.claim(partition, member, reason);
                }
            }
        }
    }
    let claimed = changes.partition.len() - before;
    *budget -= claimed.min(*budget);
    claimed < count
}
