//! The claiming role in plain types: which member of a group should own which partition next?
//!
//! Shapes, units and ranges are those of `wit/policy.wit`. The submodules hold what several policies share:
//!
//! - [`subscribers`]: who may own what, with topics of equal subscribers taken together,
//! - [`even`]: the most even and most sticky assignment by partition count,
//! - [`pace`]: how much of a plan one cycle may carry out (movement budget, claims per member, next cycle),
//! - [`allocate`]: RocketMQ's allocation strategies, and the step from a stated target to a plan.

use std::borrow::Cow;

use crate::{Description, Error};

pub mod allocate;
pub mod even;
mod flow;
mod md5;
pub mod pace;
pub mod subscribers;

/// Answers the claiming question. A pure function: nothing is remembered between two plans.
pub trait Claiming: Sized {
    /// Says what this policy is.
    fn describe() -> Description;

    /// Makes the policy from its configuration: one JSON object as text.
    ///
    /// Errors with [`Error::InvalidConfig`], which names the field.
    fn configure(config: &str) -> Result<Self, Error>;

    /// Plans one cycle.
    ///
    /// Errors with [`Error::InvalidInput`] if the cycle contradicts itself.
    fn plan(&self, cycle: &Cycle<'_>) -> Result<Changes, Error>;
}

/// Why a cycle runs; the words are explained in `wit/policy.wit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// One live member of the group.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Opaque name, 1 to 256 bytes.
    pub id: String,
    /// Failure domain or place, empty when unknown.
    pub zone: String,
    /// Labels as (key, value), ordered by key, each key once.
    pub labels: Vec<(String, String)>,
    /// Relative capacity; 1.0 is a standard member. Finite, above 0.
    pub capacity: f64,
    /// Time since the member joined, in milliseconds.
    pub since_ms: u64,
    /// Topics it subscribes to: ascending indices into [`Cycle::topics`].
    pub topics: Vec<u32>,
}

/// Everything a plan may depend on. Partitions are columns of one length, ordered by topic, place and number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cycle<'a> {
    /// Name of the group.
    pub group: &'a str,
    /// Live members only, ordered by id, each id once.
    pub members: &'a [Member],
    /// Names of the topics, ascending, each once.
    pub topics: &'a [String],
    /// Names of places, each once; index 0 is the empty name.
    pub places: &'a [String],
    /// Per partition: index into `topics`.
    pub topic: &'a [u32],
    /// Per partition: its number within its topic, 0-based.
    pub number: &'a [u32],
    /// Per partition: index into `places`.
    pub place: &'a [u32],
    /// Per partition: row of the member that owns it, -1 when free.
    pub owner: &'a [i32],
    /// Per partition: 1 while a hand-over to `owner` is under way, else 0. Such a partition cannot be claimed.
    pub moving: &'a [u8],
    /// Per partition: relative weight, finite, 0 or more.
    pub weight: &'a [f64],
    /// Per partition: time the owner has held it, in milliseconds; 0 when free.
    pub held_ms: &'a [u32],
    /// At most this many owned partitions may change owner in this plan; claims on free ones do not count.
    pub movement_budget: Option<u32>,
    /// Why the cycle runs.
    pub reason: Reason,
    /// The host's clock in milliseconds since 1970-01-01 UTC.
    pub now_ms: u64,
    /// Chance for this cycle: uniform over all values, different for each cycle.
    pub seed: u64,
}

impl Cycle<'_> {
    /// Returns how many partitions there are.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.owner.len()
    }

    /// Checks that columns have one length, that indices are in range and that numbers are sound.
    ///
    /// Errors with [`Error::InvalidInput`], which names the column. After it, indexing by a column cannot panic.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |text: &str| Err(Error::InvalidInput(text.into()));
        let len = self.owner.len();
        let lens = [self.topic.len(), self.number.len(), self.place.len(), self.moving.len()];
        if lens != [len; 4] || self.weight.len() != len || self.held_ms.len() != len {
            return bad("the columns of the partitions have different lengths");
        }
        // A free partition, -1, wraps to 0; anything below -1 wraps to a large number.
        let owner = max(self.owner, |owner| (owner as u32).wrapping_add(1));
        if owner > self.members.len() as u32 {
            return bad("owner is out of range");
        }
        if len > 0 && max(self.topic, |topic| topic) as usize >= self.topics.len() {
            return bad("topic is out of range");
        }
        if len > 0 && max(self.place, |place| place) as usize >= self.places.len() {
            return bad("place is out of range");
        }
        // The order of floats of 0 or more is that of their bits; anything else, -0.0 too, needs the second look.
        if max_bits(self.weight) >= f64::INFINITY.to_bits()
            && !self.weight.iter().all(|weight| (0.0..=f64::MAX).contains(weight))
        {
            return bad("a weight is not a finite number of 0 or more");
        }
        for member in self.members {
            if !(member.capacity > 0.0 && member.capacity.is_finite()) {
                return bad("a capacity is not a finite number above 0");
            }
            let ascend = member.topics.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascend || member.topics.last().is_some_and(|&topic| topic as usize >= self.topics.len()) {
                return bad("topics of a member are out of range or out of order");
            }
        }
        Ok(())
    }

    /// Says whether every partition has the same weight.
    #[must_use]
    pub fn equal_weights(&self) -> bool {
        let Some(first) = self.weight.first().map(|weight| weight.to_bits()) else { return true };
        let mut chunks = self.weight.chunks_exact(8);
        let mut differ = 0;
        for chunk in &mut chunks {
            differ |= chunk.iter().fold(0, |differ, weight| differ | (weight.to_bits() ^ first));
        }
        chunks.remainder().iter().fold(differ, |differ, weight| differ | (weight.to_bits() ^ first)) == 0
    }

    /// Says whether every member has the same capacity.
    #[must_use]
    pub fn equal_capacities(&self) -> bool {
        self.members.windows(2).all(|pair| pair[0].capacity == pair[1].capacity)
    }

    /// Says whether any hand-over is under way.
    #[must_use]
    pub fn any_moving(&self) -> bool {
        let mut chunks = self.moving.chunks_exact(16);
        let mut any = 0;
        for chunk in &mut chunks {
            any |= chunk.iter().fold(0, |any, moving| any | moving);
        }
        chunks.remainder().iter().fold(any, |any, moving| any | moving) != 0
    }
}

/// Returns the largest of what `read` makes of each entry, 0 if there is none; eight at a time.
fn max<T: Copy>(column: &[T], read: impl Fn(T) -> u32 + Copy) -> u32 {
    let mut chunks = column.chunks_exact(8);
    let mut largest = [0_u32; 4];
    for chunk in &mut chunks {
        for lane in 0..4 {
            largest[lane] = largest[lane].max(read(chunk[lane])).max(read(chunk[lane + 4]));
        }
    }
    let rest = chunks.remainder().iter().map(|&entry| read(entry)).max().unwrap_or(0);
    largest.into_iter().fold(rest, u32::max)
}

fn max_bits(column: &[f64]) -> u64 {
    let mut chunks = column.chunks_exact(8);
    let mut largest = [0_u64; 4];
    for chunk in &mut chunks {
        for lane in 0..4 {
            largest[lane] = largest[lane].max(chunk[lane].to_bits()).max(chunk[lane + 4].to_bits());
        }
    }
    let rest = chunks.remainder().iter().map(|entry| entry.to_bits()).max().unwrap_or(0);
    largest.into_iter().fold(rest, u64::max)
}

/// What should change. Partitions that are not named stay as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Claims: index of the partition; each partition at most once in a plan.
    pub partition: Vec<u32>,
    /// Claims: row of the member that gets it. Same length as `partition`.
    pub member: Vec<u32>,
    /// Claims: index into `reasons`. Same length as `partition`.
    pub reason: Vec<u8>,
    /// Reasons in words; at most 256, each at most 256 bytes.
    pub reasons: Vec<Cow<'static, str>>,
    /// Partitions to give up without a new owner.
    pub releases: Vec<u32>,
    /// Asks for the next cycle after this time, in milliseconds; `None` means the group's interval.
    pub next_cycle_ms: Option<u32>,
}

impl Changes {
    /// Returns the index of a reason, which it adds to the table if it is not there.
    ///
    /// The table takes 255 reasons; any further one is shown as `other`.
    pub fn reason(&mut self, text: impl Into<Cow<'static, str>>) -> u8 {
        let text = text.into();
        let known = self.reasons.iter().position(|reason| *reason == text);
        let index = known.unwrap_or(self.reasons.len()).min(255);
        if index == self.reasons.len() {
            self.reasons.push(if index == 255 { Cow::Borrowed("other") } else { text });
        }
        index as u8
    }

    /// Adds one claim.
    pub fn claim(&mut self, partition: u32, member: u32, reason: u8) {
        self.partition.push(partition);
        self.member.push(member);
        self.reason.push(reason);
    }

    /// Adds claims of one reason: partitions and who gets them, of the same length.
    pub fn claim_all(&mut self, partitions: Vec<u32>, members: Vec<u32>, reason: u8) {
        self.reason.resize(self.reason.len() + partitions.len(), reason);
        append(&mut self.partition, partitions);
        append(&mut self.member, members);
    }

    /// Gives up a partition.
    pub fn release(&mut self, partition: u32) {
        self.releases.push(partition);
    }
}

/// Appends without a copy where there is nothing yet.
fn append(to: &mut Vec<u32>, mut from: Vec<u32>) {
    if to.is_empty() { *to = from } else { to.append(&mut from) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_kept_once_and_never_overflow() {
        let mut changes = Changes::default();
        assert_eq!((changes.reason("a"), changes.reason("b"), changes.reason("a")), (0, 1, 0));
        let last = (0..300).map(|at| changes.reason(format!("r{at}"))).last();
        assert_eq!((last, changes.reasons.len()), (Some(255), 256));
        assert_eq!(changes.reasons[255], "other");
    }

    #[test]
    fn columns_are_compared_whole() {
        let mut weights = vec![2.0; 20];
        let cycle = |weight: &[f64]| Cycle {
            group: "",
            members: &[],
            topics: &[],
            places: &[],
            topic: &[],
            number: &[],
            place: &[],
            owner: &[],
            moving: &[],
            weight: &weight.to_vec().leak()[..],
            held_ms: &[],
            movement_budget: None,
            reason: Reason::Manual,
            now_ms: 0,
            seed: 0,
        };
        assert!(cycle(&weights).equal_weights() && cycle(&[]).equal_weights());
        for at in [0, 7, 8, 15, 16, 19] {
            weights[at] = 2.5;
            assert!(!cycle(&weights).equal_weights(), "{at}");
            assert_eq!(max_bits(&weights), 2.5_f64.to_bits());
            weights[at] = 2.0;
        }
        assert_eq!((max(&[], |x: u32| x), max(&[3, 1, 2], |x| x)), (0, 3));
        assert_eq!(max(&(0..20).collect::<Vec<u32>>(), |x| x), 19);
    }
}
