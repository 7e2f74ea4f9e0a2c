//! Topics, and which partition of one an event goes to.
//!
//! Invariants: whoever changes a topic tells the groups; an event with a key goes to the partition its key names, so
//! events of one key keep their order as long as the partition count stays.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use fulcrum_core::seed;
use fulcrum_core::time::Clock;
use fulcrum_store::{Error, EventLog, Position, Topic};
use parking_lot::Mutex;

use crate::Groups;

/// See the module.
pub struct Events {
    log: Arc<dyn EventLog>,
    groups: Arc<Groups>,
    clock: Arc<dyn Clock>,
    default_partitions: u32,
    /// Events without a key so far, by topic.
    turns: Mutex<HashMap<String, u64>>,
}

impl Events {
    /// Makes the service; topics that nobody made get `default_partitions`.
    #[must_use]
    pub fn new(
        log: Arc<dyn EventLog>,
        groups: Arc<Groups>,
        clock: Arc<dyn Clock>,
        default_partitions: u32,
    ) -> Self {
        Self { log, groups, clock, default_partitions, turns: Mutex::default() }
    }

    /// Makes a topic of so many partitions, or grows it to them.
    ///
    /// Errors with [`Error::Shrink`] for fewer than it has.
    pub async fn put_topic(&self, topic: &str, partition_count: u32) -> Result<Topic, Error> {
        let made = match self.log.create_topic(topic, partition_count).await {
            Err(Error::TopicExists { .. }) => self.log.grow_topic(topic, partition_count).await?,
            made => made?,
        };
        self.groups.topic_changed(topic, made.partition_count).await;
        Ok(made)
    }

    /// Deletes a topic with its events.
    pub async fn delete_topic(&self, topic: &str) -> Result<(), Error> {
        self.log.delete_topic(topic).await?;
        self.turns.lock().remove(topic);
        self.groups.topic_changed(topic, 0).await;
        Ok(())
    }

    /// Stores one event, making its topic if there is none; returns where it is once that is durable.
    pub async fn publish(
        &self,
        topic: &str,
        key: Option<&str>,
        event: Bytes,
    ) -> Result<(u32, Position), Error> {
        let found = match self.log.topic(topic).await {
            Err(Error::UnknownTopic { .. }) => self.make_topic(topic).await?,
            found => found?,
        };
        let partition = match key {
            Some(key) => partition_of(key, found.partition_count),
            None => self.next_turn(topic, found.partition_count),
        };
        let positions = self.log.append(topic, partition, self.clock.now(), vec![event]).await?;
        let position = positions.first().copied().expect("one record gets one position");
        Ok((partition, position))
    }

    async fn make_topic(&self, topic: &str) -> Result<Topic, Error> {
        match self.log.create_topic(topic, self.default_partitions).await {
            // Somebody else was faster.
            Err(Error::TopicExists { .. }) => self.log.topic(topic).await,
            made => {
                let made = made?;
                self.groups.topic_changed(topic, made.partition_count).await;
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
const fn fnv1a(bytes: &[u8]) -> u64 {
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
