//! How long events stay: what is beyond a topic's limits is trimmed, a step at a time.
//!
//! Invariants: nothing is trimmed that a shared message group or a consumer group still needs, unless the topic has a
//! hard limit; what a hard limit takes from a message group is stored as a dead letter (`expired`) before it is
//! trimmed. A crash between two steps leaves more than there had to be, never less. Groups of a single client hold
//! nothing.
//!
//! What to trim is decided by [`decide`] from what was read before; a floor that rises meanwhile only makes the
//! decision a careful one, and one that falls (a reset to an earlier offset) asks for what is beyond the limits anyway.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fulcrum_core::Timestamp;
use fulcrum_core::group::Place;
use fulcrum_core::time::Clock;
use fulcrum_store::{ClusterStore, EventLog, Partition, Position, Topic};
use tokio::time::timeout;

use crate::groups::{self, topics};
use crate::pulls;
use crate::{Groups, Pulls};

/// Most dead letters that one step makes of one group's events.
const EXPIRE_MAX: usize = 1000;
/// Steps of one pass in one partition; the next pass goes on.
const EXPIRE_STEPS_MAX: usize = 100;
/// Longest time of one such step: a group that cannot store just now must not hold up the others.
const EXPIRE_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause before a pass that follows one which had to leave something.
const AGAIN: Duration = Duration::from_millis(200);

/// How much of each partition is kept; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Age of events in milliseconds beyond which they go.
    pub age_ms: Option<u64>,
    /// Payload bytes of a partition beyond which its oldest events go.
    pub bytes: Option<u64>,
    /// Payload bytes of a partition beyond which its oldest events go, whoever still needs them.
    pub hard_bytes: Option<u64>,
}

/// What a topic says of its limits: `None` is as the host is set, 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// See [`Limits::age_ms`].
    pub age_ms: Option<u64>,
    /// See [`Limits::bytes`].
    pub bytes: Option<u64>,
    /// See [`Limits::hard_bytes`].
    pub hard_bytes: Option<u64>,
}

impl Own {
    /// Returns the limits in force.
    #[must_use]
    pub fn over(self, host: Limits) -> Limits {
        let over = |own: Option<u64>, host| own.map_or(host, |own| Some(own).filter(|own| *own > 0));
        Limits {
            age_ms: over(self.age_ms, host.age_ms),
            bytes: over(self.bytes, host.bytes),
            hard_bytes: over(self.hard_bytes, host.hard_bytes),
        }
    }
}

/// What is known of a partition when its trim is decided; positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Where it begins.
    pub first: u64,
    /// Where it ends.
    pub end: u64,
    /// The first event that is young enough, if there is a limit.
    pub aged: Option<u64>,
    /// From where on it is small enough, if there is a limit.
    pub sized: Option<u64>,
    /// From where on it is within its hard limit, if there is one.
    pub hard: Option<u64>,
    /// The lowest position a shared message group still needs, if there is such a group.
    pub messages: Option<u64>,
    /// The lowest position a consumer group still needs, if there is such a group.
    pub members: Option<u64>,
}

/// What becomes of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Where it begins afterwards, not below where it begins now.
    pub to: u64,
    /// Whether message groups lose events below, which have to become dead letters first.
    pub expires: bool,
    /// Positions that a consumer group loses.
    pub gap: u64,
}

/// Decides what becomes of a partition.
#[must_use]
pub fn decide(bounds: &Bounds) -> Decision {
    let Bounds { first, end, aged, sized, hard, messages, members } = *bounds;
    let floor = messages.into_iter().chain(members).min().unwrap_or(end);
    let soft = aged.max(sized).unwrap_or(0).min(floor);
    let to = soft.max(hard.unwrap_or(0)).min(end).max(first);
    let lost = |floor: Option<u64>| floor.map_or(0, |floor| to.saturating_sub(floor.max(first)));
    Decision { to, expires: lost(messages) > 0, gap: lost(members) }
}

/// What was done since the host started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Positions trimmed.
    pub trimmed: u64,
    /// Positions trimmed that a consumer group had not read; each group sees the gap in its next pull.
    pub gap: u64,
    /// Partitions that could not be trimmed when they should have been.
    pub failed: u64,
}

/// See the module.
pub struct Retention {
    log: Arc<dyn EventLog>,
    store: Arc<dyn ClusterStore>,
    groups: Arc<Groups>,
    pulls: Arc<Pulls>,
    clock: Arc<dyn Clock>,
    host: Limits,
    /// Held by the pass that runs.
    passing: tokio::sync::Mutex<()>,
    trimmed: AtomicU64,
    gap: AtomicU64,
    failed: AtomicU64,
}

/// Why a pass could not be.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error("the store cannot say what there is just now")]
    Store(#[from] fulcrum_store::Error),
    /// A consumer group does not say what it needs.
    #[error("a group cannot say what it needs just now")]
    Groups(#[from] groups::Error),
}

/// Why one partition was not trimmed.
#[derive(Clone, Debug, thiserror::Error)]
enum Failure {
    #[error("the store failed")]
    Store(#[from] fulcrum_store::Error),
    #[error("a message group cannot make dead letters just now")]
    Expire(#[source] pulls::Error),
}

impl Retention {
    /// Makes the service; `host` holds for topics that do not say otherwise.
    #[must_use]
    pub fn new(
        log: Arc<dyn EventLog>,
        store: Arc<dyn ClusterStore>,
        groups: Arc<Groups>,
        pulls: Arc<Pulls>,
        clock: Arc<dyn Clock>,
        host: Limits,
    ) -> Self {
        Self {
            log,
            store,
            groups,
            pulls,
            clock,
            host,
            passing: tokio::sync::Mutex::default(),
            trimmed: AtomicU64::new(0),
            gap: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Returns the limits in force for a topic.
    #[must_use]
    pub fn limits(&self, own: Own) -> Limits {
        own.over(self.host)
    }

    /// Returns what was done since the host started.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let [trimmed, gap, failed] =
            [&self.trimmed, &self.gap, &self.failed].map(|count| count.load(Ordering::Relaxed));
        Counts { trimmed, gap, failed }
    }

    /// Runs a pass each `interval`, and another at once where one had to leave something. Never returns.
    pub async fn run(&self, interval: Duration) {
        loop {
            let pause = match self.pass().await {
                Ok(true) => interval,
                Ok(false) => interval.min(AGAIN),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "old events cannot be trimmed just now");
                    interval
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Looks at every partition once and trims what may go; returns whether nothing was left for another pass.
    ///
    /// Errors with [`Error`] if nothing at all could be done; a topic that fails does not keep the others.
    pub async fn pass(&self) -> Result<bool, Error> {
        let _alone = self.passing.lock().await;
        let topics = self.log.topics().await?;
        let members = self.groups.floors().await?;
        let mut is_done = true;
        for topic in topics {
            match self.trim_topic(&topic, &members).await {
                Ok(is_topic_done) => is_done &= is_topic_done,
                // It was deleted meanwhile.
                Err(Failure::Store(fulcrum_store::Error::UnknownTopic { .. })) => {}
                Err(error) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(topic = topic.name, error, "a topic cannot be trimmed just now");
                }
            }
        }
        Ok(is_done)
    }

    async fn trim_topic(&self, topic: &Topic, members: &HashMap<Place, u64>) -> Result<bool, Failure> {
        let own = topics::read(&*self.store, &topic.name, Some(topic.incarnation)).await?.own;
        let limits = self.limits(own);
        if limits == Limits::default() {
            return Ok(true);
        }
        let mut is_done = true;
        for (partition, at) in (0..).zip(self.log.partitions(&topic.name).await?) {
            if at.first < at.end {
                let place = Place { topic: topic.name.clone(), partition };
                let members = members.get(&place).copied();
                is_done &= self.trim_partition(&place, at, limits, members).await?;
            }
        }
        Ok(is_done)
    }

    async fn trim_partition(
        &self,
        place: &Place,
        at: Partition,
        limits: Limits,
        members: Option<u64>,
    ) -> Result<bool, Failure> {
        let Place { topic, partition } = place;
        let aged = match limits.age_ms {
            Some(age_ms) => {
                let oldest = Timestamp(self.clock.now().0.saturating_sub(age_ms));
                Some(self.log.position_at(topic, *partition, oldest).await?.0)
            }
            None => None,
        };
        let sized = async |bytes: Option<u64>| match bytes.filter(|bytes| *bytes < at.bytes) {
            Some(bytes) => {
                self.log.position_by_size(topic, *partition, bytes).await.map(|found| Some(found.0))
            }
            None => Ok(None),
        };
        let bounds = Bounds {
            first: at.first.0,
            end: at.end.0,
            aged,
            sized: sized(limits.bytes).await?,
            hard: sized(limits.hard_bytes).await?,
            messages: self.pulls.floors(topic, *partition),
            members,
        };
        let Decision { mut to, expires, gap } = decide(&bounds);
        let mut is_done = true;
        if expires && !self.expire(place, to).await? {
            is_done = false;
            to = to.min(self.pulls.floors(topic, *partition).unwrap_or(to));
        }
        if bounds.first < to {
            let first = self.log.trim(topic, *partition, Position(to)).await?;
            let trimmed = first.0.saturating_sub(bounds.first);
            self.trimmed.fetch_add(trimmed, Ordering::Relaxed);
            if gap > 0 {
                self.gap.fetch_add(gap.min(trimmed), Ordering::Relaxed);
                tracing::warn!(topic, partition, gap, "a hard limit took events that a group had not read");
            }
        }
        // A search by size may have ended early.
        is_done &= bounds.sized.max(bounds.hard).is_none_or(|found| to < found || found == bounds.end);
        Ok(is_done)
    }

    /// Makes dead letters of what message groups lose; returns whether that is all.
    async fn expire(&self, place: &Place, to: u64) -> Result<bool, Failure> {
        let Place { topic, partition } = place;
        for _ in 0..EXPIRE_STEPS_MAX {
            let step = self.pulls.expire_below(topic, *partition, to, EXPIRE_MAX);
            match timeout(EXPIRE_TIME_MAX, step).await {
                Ok(step) => {
                    if step.map_err(Failure::Expire)? {
                        return Ok(true);
                    }
                }
                Err(_) => return Ok(false),
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
