//! Topics, what is known of their partitions, and which partition of one an event goes to.
//!
//! Invariants: whoever changes a topic tells the groups afterwards; an event with a key goes to the partition its key names, so
//! events of one key keep their order as long as the partition count stays.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use fulcrum_core::group::Facts;
use fulcrum_core::seed;
use fulcrum_core::time::Clock;
use fulcrum_store::{ClusterStore, Error, EventLog, Partition, Position, Topic};
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::groups::topics;
use crate::pulls::{self, Subscription};
use crate::retention::Own;
use crate::{Groups, Pulls};

/// What a topic should become.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopicPatch {
    /// How many partitions it has, at least as many as before.
    pub partition_count: u32,
    /// Broker or machine room by partition, empty when unknown; no list at all forgets what was known, `None` keeps
    /// it.
    pub places: Option<Vec<String>>,
    /// Relative weight by partition, finite and above 0; like `places`.
    pub weights: Option<Vec<f64>>,
    /// How much of it is kept.
    pub kept: KeptPatch,
}

/// How much of a topic is to be kept, see [`Own`]: `None` changes nothing, `Some(None)` is as the host is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptPatch {
    /// Age of events in milliseconds.
    pub age_ms: Option<Option<u64>>,
    /// Bytes of a partition.
    pub bytes: Option<Option<u64>>,
    /// Bytes of a partition, whoever still needs them.
    pub hard_bytes: Option<Option<u64>>,
}

impl KeptPatch {
    fn apply(self, own: Own) -> Own {
        Own {
            age_ms: self.age_ms.unwrap_or(own.age_ms),
            bytes: self.bytes.unwrap_or(own.bytes),
            hard_bytes: self.hard_bytes.unwrap_or(own.hard_bytes),
        }
    }
}

/// A topic with all there is to know of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// Where each partition begins and ends.
    pub partitions: Vec<Partition>,
    /// What is known of each: lists of that length, or empty ones.
    pub facts: Facts,
    /// What it says of how much is kept.
    pub own: Own,
}

/// A batch of which some partition took nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[error("only {stored} events of the batch were stored")]
pub struct Partial {
    /// Events that were stored all the same.
    pub stored: usize,
    /// Why the others were not.
    #[source]
    pub error: Error,
}

/// Why a topic was not changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// A group that keeps the order of keys reads it.
    #[error("topic {topic:?} cannot grow while a FIFO group reads it: keys would change their partition")]
    OrderedReaders {
        /// Its name.
        topic: String,
    },
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] Error),
}

/// Most topics of a host.
pub const TOPICS_MAX: usize = 10_000;

/// See the module.
pub struct Events {
    log: Arc<dyn EventLog>,
    store: Arc<dyn ClusterStore>,
    groups: Arc<Groups>,
    pulls: Arc<Pulls>,
    clock: Arc<dyn Clock>,
    default_partitions: u32,
    published: AtomicU64,
    /// Held while a topic is changed together with its record.
    changing: tokio::sync::Mutex<()>,
    /// Events without a key so far, by topic.
    turns: Mutex<HashMap<String, u64>>,
}

impl Events {
    /// Makes the service; topics that nobody made get `default_partitions`.
    #[must_use]
    pub fn new(
        log: Arc<dyn EventLog>,
        store: Arc<dyn ClusterStore>,
        groups: Arc<Groups>,
        pulls: Arc<Pulls>,
        clock: Arc<dyn Clock>,
        default_partitions: u32,
    ) -> Self {
        let (changing, turns) = (tokio::sync::Mutex::default(), Mutex::default());
        let published = AtomicU64::new(0);
        Self { log, store, groups, pulls, clock, default_partitions, published, changing, turns }
    }

    /// Makes a topic, or grows it, and notes what is known of its partitions.
    ///
    /// Errors with [`Refused::OrderedReaders`] for more partitions while a group needs the order of keys, with
    /// [`Error::Shrink`] for fewer than it has, and with [`Error::TooLarge`] for lists that are too long to be kept;
    /// nothing changed then.
    pub async fn put_topic(&self, topic: &str, patch: TopicPatch) -> Result<Topic, Refused> {
        let _alone = self.changing.lock().await;
        let known = topics::find(&*self.log, topic).await?;
        // A key may go to another partition then, where its next event could overtake.
        let grows = known.as_ref().is_some_and(|known| known.partition_count < patch.partition_count);
        if grows && self.pulls.is_fifo_reading(topic) {
            return Err(Refused::OrderedReaders { topic: topic.to_owned() });
        }
        if known.is_none() {
            self.check_room().await?;
        }
        let found = topics::read(&*self.store, topic, known.map(|known| known.incarnation)).await?;
        let mut facts = found.facts.clone();
        facts.places = patch.places.unwrap_or(facts.places);
        facts.weights = patch.weights.unwrap_or(facts.weights);
        topics::check(&facts)?;
        let own = patch.kept.apply(found.own);
        let partition_count = patch.partition_count;
        let made = match self.log.create_topic(topic, partition_count).await {
            Err(Error::TopicExists { .. }) => self.log.grow_topic(topic, partition_count).await?,
            made => made?,
        };
        let written = if facts == found.facts && own == found.own {
            Ok(())
        } else {
            topics::write(&*self.store, topic, made.incarnation, &found, &facts, own).await
        };
        // What was made is there, whatever became of its record.
        self.tell(topic).await;
        written?;
        Ok(made)
    }

    /// Returns what there is to know of a topic.
    pub async fn describe(&self, topic: &str) -> Result<Described, Error> {
        let known = self.log.topic(topic).await?;
        let partitions = self.log.partitions(topic).await?;
        let found = topics::read(&*self.store, topic, Some(known.incarnation)).await?;
        let (mut facts, own) = (found.facts, found.own);
        if !facts.places.is_empty() {
            facts.places.resize(partitions.len(), String::new());
        }
        if !facts.weights.is_empty() {
            facts.weights.resize(partitions.len(), 1.0);
        }
        Ok(Described { partitions, facts, own })
    }

    /// Deletes a topic with its events and what was known of it.
    pub async fn delete_topic(&self, topic: &str) -> Result<(), Error> {
        let _alone = self.changing.lock().await;
        self.log.delete_topic(topic).await?;
        self.turns.lock().remove(topic);
        if let Err(error) = self.forget(topic).await {
            // It says nothing of another topic of this name: it is only in the way.
            tracing::warn!(topic, %error, "the record of a deleted topic is left behind");
        }
        self.tell(topic).await;
        Ok(())
    }

    async fn forget(&self, topic: &str) -> Result<(), Error> {
        let found = topics::read(&*self.store, topic, None).await?;
        topics::write(&*self.store, topic, 0, &found, &Facts::default(), Own::default()).await
    }

    /// Stores one event, making its topic if there is none; returns where it is once that is durable.
    pub async fn publish(
        &self,
        topic: &str,
        key: Option<&str>,
        event: Bytes,
    ) -> Result<(u32, Position), Error> {
        let mut is_again = false;
        let (partition, positions) = loop {
            let found = self.ensure_topic(topic).await?;
            let partition = self.route(&found, key);
            match self.log.append(topic, partition, self.clock.now(), vec![event.clone()]).await {
                // Somebody deleted it meanwhile: then it is made again, as for any other event.
                Err(Error::UnknownTopic { .. } | Error::UnknownPartition { .. }) if !is_again => {
                    is_again = true;
                }
                appended => break (partition, appended?),
            }
        };
        let position = positions.first().copied().expect("one record gets one position");
        self.published.fetch_add(1, Ordering::Relaxed);
        Ok((partition, position))
    }

    /// Stores events with their keys, making their topic if there is none; returns where each is, in the same order,
    /// once all are durable.
    ///
    /// What goes to one partition is stored all or not at all, and in order. Errors with [`Partial`] when that
    /// failed for some partition.
    pub async fn publish_batch(
        &self,
        topic: &str,
        events: Vec<(Option<String>, Bytes)>,
    ) -> Result<Vec<(u32, Position)>, Partial> {
        let found = self.ensure_topic(topic).await.map_err(|error| Partial { stored: 0, error })?;
        let mut places = vec![(0, Position(0)); events.len()];
        let mut by_partition: BTreeMap<u32, (Vec<usize>, Vec<Bytes>)> = BTreeMap::new();
        for (index, (key, event)) in events.into_iter().enumerate() {
            let (indices, records) = by_partition.entry(self.route(&found, key.as_deref())).or_default();
            indices.push(index);
            records.push(event);
        }
        let now = self.clock.now();
        // All at once: the store then commits them together.
        let appends = by_partition.into_iter().map(|(partition, (indices, records))| async move {
            (partition, indices, self.log.append(topic, partition, now, records).await)
        });
        let (mut stored, mut failed) = (0, None);
        for (partition, indices, appended) in join_all(appends).await {
            match appended {
                Ok(positions) => {
                    stored += indices.len();
                    for (index, position) in indices.into_iter().zip(positions) {
                        places[index] = (partition, position);
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        self.published.fetch_add(stored as u64, Ordering::Relaxed);
        failed.map_or(Ok(places), |error| Err(Partial { stored, error }))
    }

    /// Subscribes a client, making the topic if there is none; see [`Pulls::subscribe`].
    pub async fn subscribe(&self, subscription: Subscription) -> Result<String, pulls::Error> {
        let mut is_again = false;
        loop {
            self.ensure_topic(&subscription.topic).await?;
            // Who needs the order of keys must not meet the topic on its way to another partition count.
            let is_fifo = subscription.fifo == Some(true);
            let _alone = if is_fifo { Some(self.changing.lock().await) } else { None };
            match self.pulls.subscribe(subscription.clone()).await {
                // Somebody deleted it meanwhile: then it is made again.
                Err(pulls::Error::Store(Error::UnknownTopic { .. })) if !is_again => {
                    is_again = true;
                }
                subscribed => return subscribed,
            }
        }
    }

    /// Returns how many events were published since the host started.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Tells everybody who reads that a topic changed, or is gone.
    async fn tell(&self, topic: &str) {
        self.groups.topic_changed(topic).await;
        self.pulls.topic_changed(topic).await;
    }

    /// Returns a topic, made if there is none.
    async fn ensure_topic(&self, topic: &str) -> Result<Topic, Error> {
        match self.log.topic(topic).await {
            Err(Error::UnknownTopic { .. }) => self.make_topic(topic).await,
            found => found,
        }
    }

    fn route(&self, topic: &Topic, key: Option<&str>) -> u32 {
        match key {
            Some(key) => partition_of(key, topic.partition_count),
            None => self.next_turn(&topic.name, topic.partition_count),
        }
    }

    /// Refuses one more topic when there are [`TOPICS_MAX`]: whoever may publish could make any number of them.
    async fn check_room(&self) -> Result<(), Error> {
        room_for(self.log.topics().await?.len() + 1)
    }

    async fn make_topic(&self, topic: &str) -> Result<Topic, Error> {
        self.check_room().await?;
        match self.log.create_topic(topic, self.default_partitions).await {
            // Somebody else was faster.
            Err(Error::TopicExists { .. }) => self.log.topic(topic).await,
            made => {
                let made = made?;
                self.tell(topic).await;
                Ok(made)
            }
        }
    }

    fn next_turn(&self, topic: &str, partition_count: u32) -> u32 {
        let mut turns = self.turns.lock();
        let turn = turns.entry(topic.to_owned()).or_default();
        *turn += 1;
        u32::try_from((*turn - 1) % u64::from(partition_count)).expect("below the count")
    }
}

fn room_for(topic_count: usize) -> Result<(), Error> {
    if topic_count <= TOPICS_MAX {
        return Ok(());
    }
    Err(Error::TooLarge { what: "topic count", found: topic_count, limit: TOPICS_MAX })
}

/// Returns the partition a routing key belongs to: `mix(fnv1a(key)) % partition_count`.
///
/// FNV-1a alone keeps what the keys have in common in its low bits; SplitMix64's mixer spreads it.
#[must_use]
pub fn partition_of(key: &str, partition_count: u32) -> u32 {
    let hash = seed::mix(fnv1a(key.as_bytes()));
    u32::try_from(hash % u64::from(partition_count.max(1))).expect("below the count")
}

/// The 64-bit FNV-1a hash.
///
/// Source: Fowler, Noll, Vo; draft-eastlake-fnv.
pub(crate) const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_topics() {
        assert!(room_for(TOPICS_MAX).is_ok());
        let refused = room_for(TOPICS_MAX + 1).map_err(|error| error.to_string());
        assert_eq!(refused, Err("topic count is 10001, more than the limit of 10000".to_owned()));
    }

    #[test]
    fn the_hash_is_fnv1a() {
        // Source: test vectors of draft-eastlake-fnv.
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text:?}");
        }
    }

    #[test]
    fn keys_are_spread_evenly_and_for_ever_the_same() {
        for count in [2, 4, 12, 100] {
            let mut seen = vec![0u32; count as usize];
            for number in 0..count * 1000 {
                seen[partition_of(&format!("order-{number}"), count) as usize] += 1;
            }
            let (min, max) = (seen.iter().min().expect("some"), seen.iter().max().expect("some"));
            assert!(*min > 850 && *max < 1150, "{count}: {min} to {max}");
        }
        // Events of a key must stay where they are over versions of the host.
        let placed = ["", "a", "order-1", "order-2", "größe"].map(|key| partition_of(key, 12));
        assert_eq!(placed, [0, 7, 3, 9, 0]);
    }
}
