//! A consumer group as a value: who is in it, who owns which partition, and what is on its way.
//!
//! Every method is a step from one legal state to the next, with the time as an argument; nothing is stored or sent
//! here. The coordinator makes a step durable before anybody hears of it.
//!
//! Invariants (DESIGN section 7, 1 to 3; [`Group::violations`] checks them):
//! - a partition has at most one owner, a member of the group; its epoch grows with every change of owner or of the
//!   owner's session, and never falls, not even when its topic is deleted and made again;
//! - only the owner's live session with the partition's present epoch may checkpoint;
//! - a partition that moves has an owner who was told to give it up, by a revision the owner may acknowledge.

mod handover;
mod members;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::Timestamp;
use crate::claiming::Reason;

pub use members::{Heartbeat, Join, Joined};
pub use view::{Assignment, Facts, Orders, Revocation, Snapshot};

/// How partitions change hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Handover {
    /// The new owner waits until the old one released, or its deadline passed.
    Cooperative,
    /// The new owner has it at once.
    Steal,
}

/// Where a partition without a checkpoint starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// At its end: only what comes from now on.
    Latest,
    /// At the oldest event there is.
    Earliest,
}

/// How a group behaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Time between two cycles when nothing happens.
    pub interval: Duration,
    /// Time a member without a `ttl` of its own may be silent.
    pub ownership_expiry: Duration,
    /// How partitions change hands.
    pub handover: Handover,
    /// How long an old owner may take to release.
    pub handover_deadline: Duration,
    /// Most owned partitions one cycle may move; `None` is no bound.
    pub movement_budget: Option<u32>,
    /// How long the partitions of a lost or returning member are kept for it.
    pub grace: Duration,
    /// Where a partition without a checkpoint starts.
    pub start: Start,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            ownership_expiry: Duration::from_secs(30),
            handover: Handover::Cooperative,
            handover_deadline: Duration::from_secs(30),
            movement_budget: None,
            grace: Duration::ZERO,
            start: Start::Latest,
        }
    }
}

/// A partition's name: topic and number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Name of the topic.
    pub topic: String,
    /// Number within the topic, 0-based.
    pub partition: u32,
}

/// One processor in the group.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Member {
    /// Names this life of the member; every call carries it.
    pub session: String,
    /// Topics it subscribes to, ascending.
    pub topics: Vec<String>,
    /// Failure domain or place.
    pub zone: String,
    /// Labels ordered by key.
    pub labels: Vec<(String, String)>,
    /// Relative capacity in thousandths; more than 0.
    pub capacity_milli: u64,
    /// How long it may be silent; `None` is the group's setting.
    pub ttl: Option<Duration>,
    /// When it joined.
    pub joined_at: Timestamp,
    /// When it was heard of last.
    pub seen_at: Timestamp,
    /// Sequence number of its newest heartbeat.
    pub seq: u64,
    /// Last revision it said it has seen.
    pub acked_revision: u64,
    /// Set while it is gone and its partitions are kept for it: until when.
    pub kept_until: Option<Timestamp>,
    /// What it last said it owns, where that is not what it was given.
    pub disagrees_on: BTreeSet<Place>,
}

/// Who has a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Partition {
    /// Fences stale owners: grows with every change of owner.
    pub epoch: u64,
    /// Who may read it now.
    pub owner: Option<String>,
    /// What is on its way.
    pub moving: Option<Moving>,
    /// When the owner got it.
    pub since: Timestamp,
    /// Why it belongs to whom it belongs, in the policy's words.
    pub reason: String,
    /// Next offset to read, as the owner checkpointed it.
    pub checkpoint: Option<u64>,
    /// Which topic of this name it is of; `None` when that is not known.
    pub incarnation: Option<u64>,
}

/// A hand-over under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Moving {
    /// Who gets it; `None` when it is only given up.
    pub to: Option<String>,
    /// Revision that carries the order to give it up.
    pub revision: u64,
    /// When it is taken away.
    pub deadline: Timestamp,
}

/// What a step asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// A cycle should run, for this reason.
    pub cycle: Option<Reason>,
    /// Members whose orders changed.
    pub told: BTreeSet<String>,
    /// Partitions whose record changed.
    pub partitions: BTreeSet<Place>,
    /// Whether the member list (more than ages and acknowledgements) or the epoch floor changed.
    pub members: bool,
}

impl Step {
    /// Adds what another step asks for; the earlier reason wins.
    pub fn merge(&mut self, other: Self) {
        self.cycle = self.cycle.or(other.cycle);
        self.told.extend(other.told);
        self.partitions.extend(other.partitions);
        self.members |= other.members;
    }
}

/// Why a call of a member was refused; nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Refused {
    #[error("there is no member `{0}` in the group; join first")]
    UnknownMember(String),
    #[error(
        "the session is not the member's present one: another process took over, or the member expired; join again"
    )]
    Fenced,
    #[error("a live member has this id; join with its session, with takeover, or in {retry_after_ms} ms")]
    Duplicate { retry_after_ms: u64 },
    #[error("there is no partition {partition} of topic `{topic}` in the group")]
    UnknownPartition { topic: String, partition: u32 },
    #[error("the epoch is stale, the partition's present one is {epoch}")]
    StaleEpoch { epoch: u64 },
    #[error("offset {offset} lies before the checkpoint {checkpoint}; pass `rewind` to go back")]
    Rewind { offset: u64, checkpoint: u64 },
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct Group {
    /// Grows with every change of who is in the group, who owns what, or what is on its way.
    pub revision: u64,
    /// Members by id, those in grace included.
    pub members: BTreeMap<String, Member>,
    /// Partitions of all topics any member ever subscribed to.
    pub partitions: BTreeMap<Place, Partition>,
    /// Highest epoch of the partitions that are gone: new ones start with it, so that nobody who owned one of the
    /// same name is taken for an owner of the new one.
    pub epoch_floor: u64,
    /// How the group behaves.
    pub settings: Settings,
}

impl Group {
    /// Makes an empty group.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Tells whether the group knows partitions of a topic.
    #[must_use]
    pub fn knows(&self, topic: &str) -> bool {
        let first = Place { topic: topic.to_owned(), partition: 0 };
        self.partitions.range(first..).next().is_some_and(|(place, _)| place.topic == topic)
    }

    /// Sets how many partitions a topic has. Fewer than before removes the rest, whoever owns them; 0 removes the
    /// topic.
    ///
    /// `incarnation` differs from that of every topic of this name that was deleted before: claims and checkpoints of
    /// a former one are dropped, and its owners are fenced.
    pub fn set_partitions(&mut self, topic: &str, count: u32, incarnation: u64) -> Step {
        let mut step = Step::default();
        let before = self.partitions.keys().filter(|place| place.topic == topic).count();
        for partition in 0..count {
            let place = Place { topic: topic.to_owned(), partition };
            let fresh = |epoch| Partition { epoch, incarnation: Some(incarnation), ..Partition::default() };
            let Some(known) = self.partitions.get_mut(&place) else {
                self.partitions.insert(place.clone(), fresh(self.epoch_floor));
                step.partitions.insert(place);
                continue;
            };
            match known.incarnation {
                Some(present) if present == incarnation => continue,
                Some(_) => {
                    let epoch = known.epoch + 1;
                    let former = std::mem::replace(known, fresh(epoch));
                    step.told.extend(former.owner);
                    step.told.extend(former.moving.and_then(|moving| moving.to));
                    step.cycle = Some(Reason::Partitions);
                }
                // Written by a host that did not tell them apart.
                None => known.incarnation = Some(incarnation),
            }
            step.partitions.insert(place);
        }
        let gone: Vec<_> = self
            .partitions
            .range(Place { topic: topic.to_owned(), partition: count }..)
            .take_while(|(place, _)| place.topic == topic)
            .map(|(place, _)| place.clone())
            .collect();
        for place in gone {
            if let Some(partition) = self.partitions.remove(&place) {
                if self.epoch_floor < partition.epoch {
                    self.epoch_floor = partition.epoch;
                    step.members = true;
                }
                step.told.extend(partition.owner);
                step.told.extend(partition.moving.and_then(|moving| moving.to));
                step.partitions.insert(place);
            }
        }
        if before != count as usize {
            step.cycle = Some(Reason::Partitions);
        }
        self.bump(&step);
        step
    }

    /// Moves the offset of a partition.
    ///
    /// Errors with [`Refused::Fenced`], [`Refused::StaleEpoch`], [`Refused::UnknownPartition`],
    /// [`Refused::UnknownMember`], and [`Refused::Rewind`] unless `rewind`.
    pub fn checkpoint(
        &mut self,
        member: &str,
        session: &str,
        place: &Place,
        epoch: u64,
        offset: u64,
        rewind: bool,
    ) -> Result<Step, Refused> {
        self.check_owner(member, session, place, epoch)?;
        let partition = self.partitions.get_mut(place).expect("checked above");
        match partition.checkpoint {
            Some(checkpoint) if offset < checkpoint && !rewind => {
                return Err(Refused::Rewind { offset, checkpoint });
            }
            _ => partition.checkpoint = Some(offset),
        }
        Ok(Step { partitions: BTreeSet::from([place.clone()]), ..Step::default() })
    }

    /// Checks that a member may read a partition or checkpoint it (invariant 2).
    pub fn check_owner(&self, member: &str, session: &str, place: &Place, epoch: u64) -> Result<(), Refused> {
        self.live(member, session)?;
        let Some(partition) = self.partitions.get(place) else {
            let Place { topic, partition } = place.clone();
            return Err(Refused::UnknownPartition { topic, partition });
        };
        if partition.owner.as_deref() == Some(member) && partition.epoch == epoch {
            Ok(())
        } else {
            Err(Refused::StaleEpoch { epoch: partition.epoch })
        }
    }

    /// Sets offsets from outside, for example to read again; raises the epochs, so that nobody goes on from the old
    /// offset.
    pub fn reset(&mut self, offsets: &[(Place, Option<u64>)]) -> Step {
        let mut step = Step::default();
        for (place, offset) in offsets {
            let Some(partition) = self.partitions.get_mut(place) else { continue };
            partition.checkpoint = *offset;
            partition.epoch += 1;
            step.told.extend(partition.owner.clone());
            step.partitions.insert(place.clone());
        }
        self.bump(&step);
        step
    }

    /// Returns what breaks the invariants, one line each; empty for every reachable state.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (place, partition) in &self.partitions {
            let name = format!("{}/{}", place.topic, place.partition);
            let known = |id: &String| self.members.contains_key(id);
            match (&partition.owner, &partition.moving) {
                (None, Some(_)) => found.push(format!("{name} moves without an owner")),
                (Some(owner), _) if !known(owner) => {
                    found.push(format!("{name} is owned by {owner}, who is gone"));
                }
                (Some(_), _) if partition.epoch == 0 => found.push(format!("{name} is owned in epoch 0")),
                (Some(owner), Some(moving)) if moving.to.as_ref() == Some(owner) => {
                    found.push(format!("{name} moves to its own owner"));
                }
                (_, Some(Moving { to: Some(to), .. })) if !self.is_live(to) => {
                    found.push(format!("{name} moves to {to}, who is not live"));
                }
                (_, Some(moving)) if moving.revision > self.revision => {
                    found.push(format!("{name} moves by a revision to come"));
                }
                _ => {}
            }
        }
        found
    }

    fn is_live(&self, member: &str) -> bool {
        self.members.get(member).is_some_and(|member| member.kept_until.is_none())
    }

    /// Returns the live member whose session this is.
    fn live(&self, id: &str, session: &str) -> Result<&Member, Refused> {
        let member = self.members.get(id).ok_or_else(|| Refused::UnknownMember(id.to_owned()))?;
        if member.session == session && member.kept_until.is_none() {
            Ok(member)
        } else {
            Err(Refused::Fenced)
        }
    }

    /// Numbers a change of who is in or who owns what.
    fn bump(&mut self, step: &Step) {
        self.revision += u64::from(!step.told.is_empty() || step.members || !step.partitions.is_empty());
    }
}

#[cfg(test)]
mod tests;
