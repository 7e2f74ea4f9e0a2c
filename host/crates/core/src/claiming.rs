//! The claiming question: which member of a group should own which partition next?
//!
//! Invariants: an [`Assignment`](apply) that came from a verified plan has at most one owner per partition, each a
//! member of the cycle that subscribes to the partition's topic; the movement budget holds.

/// Why a cycle runs; the words are those of the contract and of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words are explained in wit/policy.wit")]
pub enum Reason {
    Join,
    Leave,
    Expired,
    Disconnected,
    Subscription,
    Partitions,
    Policy,
    Config,
    Interval,
    Fast,
    Manual,
}

impl Reason {
    /// Every reason with its word.
    pub const WORDS: [(Self, &'static str); 11] = [
        (Self::Join, "join"),
        (Self::Leave, "leave"),
        (Self::Expired, "expired"),
        (Self::Disconnected, "disconnected"),
        (Self::Subscription, "subscription"),
        (Self::Partitions, "partitions"),
        (Self::Policy, "policy"),
        (Self::Config, "config"),
        (Self::Interval, "interval"),
        (Self::Fast, "fast"),
        (Self::Manual, "manual"),
    ];

    /// Returns its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(known, _)| *known == self).map(|(_, word)| *word).unwrap_or_default()
    }

    /// Returns the reason of a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, known)| *known == word).map(|(reason, _)| *reason)
    }
}

/// One live member of the group.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Opaque name, 1 to 256 bytes.
    pub id: String,
    /// Failure domain or place, empty when unknown.
    pub zone: String,
    /// Labels ordered by key, each key once.
    pub labels: Vec<(String, String)>,
    /// Relative capacity, finite and above 0.
    pub capacity: f64,
    /// Time since it joined, in milliseconds.
    pub since_ms: u64,
    /// Topics it subscribes to: ascending indices into [`Cycle::topics`].
    pub topics: Vec<u32>,
}

/// Everything a plan may depend on; columns have one entry per partition. Units are those of the contract.
#[derive(Clone, Debug, PartialEq)]
pub struct Cycle {
    /// Name of the group.
    pub group: String,
    /// Live members, ordered by id.
    pub members: Vec<Member>,
    /// Topic names, ascending.
    pub topics: Vec<String>,
    /// Place names; index 0 is the empty name.
    pub places: Vec<String>,
    /// Index into `topics`.
    pub topic: Vec<u32>,
    /// Number within the topic.
    pub number: Vec<u32>,
    /// Index into `places`.
    pub place: Vec<u32>,
    /// Row of the owner, -1 when free.
    pub owner: Vec<i32>,
    /// 1 while a hand-over is under way.
    pub moving: Vec<u8>,
    /// Relative weight.
    pub weight: Vec<f64>,
    /// Time the owner has held it, in milliseconds.
    pub held_ms: Vec<u32>,
    /// Most owned partitions that may change owner.
    pub movement_budget: Option<u32>,
    /// Why the cycle runs.
    pub reason: Reason,
    /// The host's clock in milliseconds.
    pub now_ms: u64,
    /// Chance for this cycle.
    pub seed: u64,
}

/// What a policy proposes, not yet verified.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// Claimed partitions.
    pub partition: Vec<u32>,
    /// Who gets them; same length.
    pub member: Vec<u32>,
    /// Index into `reasons`; same length.
    pub reason: Vec<u8>,
    /// Reasons in words.
    pub reasons: Vec<String>,
    /// Partitions to give up.
    pub releases: Vec<u32>,
    /// When the next cycle is wanted, in milliseconds.
    pub next_cycle_ms: Option<u32>,
}

/// One verified claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Index of the partition.
    pub partition: usize,
    /// Row of the member that gets it.
    pub member: usize,
    /// Why, in words.
    pub reason: String,
}

/// A verified plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Claims in the policy's order.
    pub claims: Vec<Claim>,
    /// Partitions to give up.
    pub releases: Vec<usize>,
    /// When the next cycle is wanted, in milliseconds.
    pub next_cycle_ms: Option<u32>,
}

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Illegal {
    #[error(
        "the columns partition, member and reason have different lengths: {partition}, {member}, {reason}"
    )]
    Ragged { partition: usize, member: usize, reason: usize },
    #[error("{what} has {len} entries, at most {max} are allowed")]
    TooLarge { what: &'static str, len: usize, max: usize },
    #[error("partition {partition} is out of range, the cycle has {len}")]
    PartitionOutOfRange { partition: u32, len: usize },
    #[error("member {member} is out of range, the cycle has {len}")]
    MemberOutOfRange { member: u32, len: usize },
    #[error("reason {reason} is out of range, the plan has {len}")]
    ReasonOutOfRange { reason: u8, len: usize },
    #[error("partition {partition} is named twice")]
    Twice { partition: u32 },
    #[error("member {member} does not subscribe to the topic of partition {partition}")]
    NotSubscribed { partition: u32, member: u32 },
    #[error("partition {partition} is being handed over and cannot be claimed or released")]
    Moving { partition: u32 },
    #[error("partition {partition} is free and cannot be released")]
    NotOwned { partition: u32 },
    #[error("the plan moves {moved} owned partitions, the budget is {budget}")]
    OverBudget { moved: usize, budget: u32 },
}

/// Most reasons one plan may have.
pub const REASONS_MAX: usize = 256;

/// Checks a plan against the cycle it was made from (invariants 1 and 3, movement budget).
///
/// A claim that changes nothing (the member owns the partition already) is legal and dropped.
pub fn verify(cycle: &Cycle, proposal: &Proposal) -> Result<Plan, Illegal> {
    let lengths = (proposal.partition.len(), proposal.member.len(), proposal.reason.len());
    let (partition, member, reason) = lengths;
    if partition != member || partition != reason {
        return Err(Illegal::Ragged { partition, member, reason });
    }
    let limits = [
        ("reasons", proposal.reasons.len(), REASONS_MAX),
        ("partition", partition, cycle.owner.len()),
        ("releases", proposal.releases.len(), cycle.owner.len()),
        ("reason text", proposal.reasons.iter().map(String::len).max().unwrap_or(0), crate::NAME_BYTES_MAX),
    ];
    if let Some((what, len, max)) = limits.into_iter().find(|(_, len, max)| len > max) {
        return Err(Illegal::TooLarge { what, len, max });
    }
    let mut named = vec![false; cycle.owner.len()];
    let mut moved = 0;
    let mut plan = Plan { next_cycle_ms: proposal.next_cycle_ms, ..Plan::default() };
    for ((&partition, &member), &reason) in
        proposal.partition.iter().zip(&proposal.member).zip(&proposal.reason)
    {
        let owner = take(cycle, &mut named, partition)?;
        let Some(subscriber) = cycle.members.get(member as usize) else {
            return Err(Illegal::MemberOutOfRange { member, len: cycle.members.len() });
        };
        if subscriber.topics.binary_search(&cycle.topic[partition as usize]).is_err() {
            return Err(Illegal::NotSubscribed { partition, member });
        }
        let Some(words) = proposal.reasons.get(usize::from(reason)) else {
            return Err(Illegal::ReasonOutOfRange { reason, len: proposal.reasons.len() });
        };
        if owner == Some(member) {
            continue;
        }
        moved += usize::from(owner.is_some());
        plan.claims.push(Claim {
            partition: partition as usize,
            member: member as usize,
            reason: words.clone(),
        });
    }
    for &partition in &proposal.releases {
        take(cycle, &mut named, partition)?.ok_or(Illegal::NotOwned { partition })?;
        plan.releases.push(partition as usize);
        moved += 1;
    }
    match cycle.movement_budget {
        Some(budget) if moved > budget as usize => Err(Illegal::OverBudget { moved, budget }),
        _ => Ok(plan),
    }
}

/// Returns the owners after a plan: row of the member per partition, `None` when free.
#[must_use]
pub fn apply(cycle: &Cycle, plan: &Plan) -> Vec<Option<usize>> {
    let mut owners: Vec<_> = cycle.owner.iter().map(|&owner| usize::try_from(owner).ok()).collect();
    for claim in &plan.claims {
        owners[claim.partition] = Some(claim.member);
    }
    for &partition in &plan.releases {
        owners[partition] = None;
    }
    owners
}

/// Marks a partition as named and returns its owner.
fn take(cycle: &Cycle, named: &mut [bool], partition: u32) -> Result<Option<u32>, Illegal> {
    let index = partition as usize;
    let Some(seen) = named.get_mut(index) else {
        return Err(Illegal::PartitionOutOfRange { partition, len: cycle.owner.len() });
    };
    if std::mem::replace(seen, true) {
        return Err(Illegal::Twice { partition });
    }
    if cycle.moving[index] != 0 {
        return Err(Illegal::Moving { partition });
    }
    Ok(u32::try_from(cycle.owner[index]).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two members; m0 reads topic 0, m1 reads topics 0 and 1. Partitions: 0 owned by m0, 1 free, 2 (topic 1) owned
    /// by m1, 3 on its way to m1.
    fn cycle() -> Cycle {
        let member = |id: &str, topics: &[u32]| Member {
            id: id.to_owned(),
            zone: String::new(),
            labels: Vec::new(),
            capacity: 1.0,
            since_ms: 0,
            topics: topics.to_vec(),
        };
        Cycle {
            group: "g".to_owned(),
            members: vec![member("m0", &[0]), member("m1", &[0, 1])],
            topics: vec!["s".to_owned(), "t".to_owned()],
            places: vec![String::new()],
            topic: vec![0, 0, 1, 0],
            number: vec![0, 1, 0, 2],
            place: vec![0; 4],
            owner: vec![0, -1, 1, 1],
            moving: vec![0, 0, 0, 1],
            weight: vec![1.0; 4],
            held_ms: vec![0; 4],
            movement_budget: Some(1),
            reason: Reason::Manual,
            now_ms: 0,
            seed: 0,
        }
    }

    fn check(claims: &[(u32, u32)], releases: &[u32], expected: Result<&[Option<usize>], Illegal>) {
        let cycle = cycle();
        let proposal = Proposal {
            partition: claims.iter().map(|claim| claim.0).collect(),
            member: claims.iter().map(|claim| claim.1).collect(),
            reason: vec![0; claims.len()],
            reasons: vec!["because".to_owned()],
            releases: releases.to_vec(),
            next_cycle_ms: None,
        };
        let found = verify(&cycle, &proposal).map(|plan| apply(&cycle, &plan));
        assert_eq!(found, expected.map(<[_]>::to_vec), "{claims:?} {releases:?}");
    }

    #[test]
    fn plans_are_verified() {
        check(&[], &[], Ok(&[Some(0), None, Some(1), Some(1)]));
        check(&[(1, 0)], &[], Ok(&[Some(0), Some(0), Some(1), Some(1)]));
        check(&[(0, 0)], &[], Ok(&[Some(0), None, Some(1), Some(1)]));
        check(&[(0, 1), (1, 1)], &[], Ok(&[Some(1), Some(1), Some(1), Some(1)]));
        check(&[], &[2], Ok(&[Some(0), None, None, Some(1)]));
        check(&[(0, 1)], &[2], Err(Illegal::OverBudget { moved: 2, budget: 1 }));
        check(&[(2, 0)], &[], Err(Illegal::NotSubscribed { partition: 2, member: 0 }));
        check(&[(1, 0), (1, 1)], &[], Err(Illegal::Twice { partition: 1 }));
        check(&[(2, 1)], &[2], Err(Illegal::Twice { partition: 2 }));
        check(&[(3, 0)], &[], Err(Illegal::Moving { partition: 3 }));
        check(&[], &[1], Err(Illegal::NotOwned { partition: 1 }));
        check(&[(4, 0)], &[], Err(Illegal::PartitionOutOfRange { partition: 4, len: 4 }));
        check(&[(1, 2)], &[], Err(Illegal::MemberOutOfRange { member: 2, len: 2 }));
    }

    #[test]
    fn columns_of_a_plan_must_agree() {
        let mut proposal = Proposal { partition: vec![1], member: vec![0], ..Proposal::default() };
        let ragged = Illegal::Ragged { partition: 1, member: 1, reason: 0 };
        assert_eq!(verify(&cycle(), &proposal), Err(ragged));
        proposal.reason = vec![0];
        assert_eq!(verify(&cycle(), &proposal), Err(Illegal::ReasonOutOfRange { reason: 0, len: 0 }));
        proposal.reasons = vec![String::new(); 257];
        assert_eq!(
            verify(&cycle(), &proposal),
            Err(Illegal::TooLarge { what: "reasons", len: 257, max: 256 })
        );
    }

    #[test]
    fn words_and_reasons_agree() {
        for (reason, word) in Reason::WORDS {
            assert_eq!((Reason::from_word(word), reason.word()), (Some(reason), word));
        }
        assert_eq!(Reason::from_word("because"), None);
    }
}
