//! RocketMQ's client-side allocation strategies, and the step from a stated target to a plan.
//!
//! Source: Apache RocketMQ, `AllocateMessageQueueStrategy` and its implementations, commit 8fc57f1468; checked
//! against `tests/vectors/rocketmq`. Members are in the order of their ids, queues in that of broker and number.

use super::md5::md5;
use super::pace::FAST_INTERVAL_MS;
use super::subscribers::{Subscribers, runs};
use super::{Changes, Cycle};

/// Stands for nobody in a target.
pub const NOBODY: u32 = u32::MAX;

/// Returns the owner of each queue: contiguous blocks, the first members get one more.
#[must_use]
pub fn averagely(members: usize, queues: usize) -> Vec<u32> {
    let mut owners = Vec::with_capacity(queues);
    for member in 0..members {
        let count = queues / members + usize::from(member < queues % members);
        owners.resize(owners.len() + count, member as u32);
    }
    owners.resize(queues, NOBODY);
    owners
}

/// Returns the owner of each queue: dealt one by one.
#[must_use]
pub fn by_circle(members: usize, queues: usize) -> Vec<u32> {
    (0..queues).map(|queue| queue.checked_rem(members).map_or(NOBODY, |member| member as u32)).collect()
}

/// Returns the owner of each queue: equal contiguous blocks, then the rest one each to the first members.
#[must_use]
pub fn equal_blocks(members: usize, queues: usize) -> Vec<u32> {
    let Some(block) = queues.checked_div(members) else { return vec![NOBODY; queues] };
    let in_blocks = block * members;
    let owner = |queue: usize| if queue < in_blocks { queue / block } else { queue - in_blocks };
    (0..queues).map(|queue| owner(queue) as u32).collect()
}

/// RocketMQ's consistent-hash ring.
///
/// Points: for each member the keys `ID-0`, `ID-1`, ...; hash of a key: the first four bytes of its MD5 as a
/// big-endian number. Of equal points the one put last stands.
#[derive(Debug, Clone)]
pub struct Ring {
    /// Hash and row, ascending by hash, each hash once.
    points: Vec<(u32, u32)>,
}

impl Ring {
    /// Makes the ring of some members, each with its row.
    #[must_use]
    pub fn new<'a>(members: impl Iterator<Item = (u32, &'a str)>, virtual_nodes: u32) -> Self {
        let mut points = Vec::new();
        for (row, id) in members {
            for node in 0..virtual_nodes {
                points.push((hash([id, "-", &node.to_string()].concat().as_bytes()), row));
            }
        }
        // Stable: of equal hashes the last one put comes last, and is the one that is kept.
        points.sort_by_key(|&(hash, _)| std::cmp::Reverse(hash));
        points.reverse();
        points.dedup_by_key(|&mut (hash, _)| hash);
        Self { points }
    }

    /// Returns rows in the order in which they come on the ring from `hash` on, once around: the first one is the
    /// owner. Empty if the ring is.
    pub fn walk(&self, hash: u32) -> impl Iterator<Item = u32> + '_ {
        let start = self.points.partition_point(|&(point, _)| point < hash);
        self.points[start..].iter().chain(&self.points[..start]).map(|&(_, row)| row)
    }

    /// Returns the owner of a key, [`NOBODY`] if the ring is empty.
    #[must_use]
    pub fn owner(&self, key: &str) -> u32 {
        self.walk(hash(key.as_bytes())).next().unwrap_or(NOBODY)
    }

    /// Returns the points: hash and row, ascending by hash.
    #[must_use]
    pub fn points(&self) -> &[(u32, u32)] {
        &self.points
    }
}

/// Returns RocketMQ's hash of a key.
#[must_use]
pub fn hash(key: &[u8]) -> u32 {
    let digest = md5(key);
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// Returns the text of a RocketMQ message queue, the key of its hash.
#[must_use]
pub fn queue_key(topic: &str, broker: &str, number: u32) -> String {
    ["MessageQueue [topic=", topic, ", brokerName=", broker, ", queueId=", &number.to_string(), "]"].concat()
}

/// One topic as RocketMQ sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Index of the topic.
    pub topic: u32,
    /// Rows of its subscribers, in the order of their ids.
    pub members: Vec<u32>,
    /// Its partitions, in the order of broker name and number.
    pub queues: Vec<u32>,
}

/// Returns the topics that have partitions.
#[must_use]
pub fn topics(cycle: &Cycle<'_>) -> Vec<Topic> {
    let subscribers = Subscribers::of(cycle);
    let mut found: Vec<Topic> = Vec::new();
    for run in runs(cycle.topic) {
        let topic = cycle.topic[run.start];
        found.push(Topic {
            topic,
            members: subscribers.of_topic(topic).to_vec(),
            queues: run.map(|partition| partition as u32).collect(),
        });
    }
    for topic in &mut found {
        let key = |&partition: &u32| {
            let partition = partition as usize;
            (&cycle.places[cycle.place[partition] as usize], cycle.number[partition])
        };
        if !topic.queues.is_sorted_by_key(key) {
            topic.queues.sort_by_key(key);
        }
    }
    found
}

/// Returns the target of all partitions if each topic is allocated alone: `allocate` returns for each queue of a
/// topic the index of its owner in the topic's members, or [`NOBODY`].
#[must_use]
pub fn by_topic(cycle: &Cycle<'_>, mut allocate: impl FnMut(&Topic) -> Vec<u32>) -> Vec<u32> {
    let mut target = vec![NOBODY; cycle.partitions()];
    for topic in topics(cycle) {
        if topic.members.is_empty() {
            continue;
        }
        for (&partition, owner) in topic.queues.iter().zip(allocate(&topic)) {
            target[partition as usize] = topic.members.get(owner as usize).copied().unwrap_or(NOBODY);
        }
    }
    target
}

/// Plans the way to a target (per partition a row, or [`NOBODY`]), as far as the movement budget allows. Partitions
/// on their way are left alone.
#[must_use]
pub fn towards(cycle: &Cycle<'_>, target: &[u32], reason: &'static str) -> Changes {
    let mut changes = Changes::default();
    let mut budget = cycle.movement_budget.unwrap_or(u32::MAX);
    let mut left = false;
    let mut index = None;
    for (partition, (&owner, &wanted)) in cycle.owner.iter().zip(target).enumerate() {
        let is_free = owner < 0;
        if cycle.moving[partition] != 0 || owner as u32 == wanted {
            continue;
        }
        if !is_free {
            if budget == 0 {
                left = true;
                continue;
            }
            budget -= 1;
        }
        if wanted == NOBODY {
            changes.release(partition as u32);
        } else {
            let index = *index.get_or_insert_with(|| changes.reason(reason));
            changes.claim(partition as u32, wanted, index);
        }
    }
    // Without any budget there is no point in coming back for more.
    changes.next_cycle_ms = (left && cycle.movement_budget != Some(0)).then_some(FAST_INTERVAL_MS);
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_allocate_like_rocketmq() {
        assert_eq!(averagely(4, 10), [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]);
        assert_eq!(averagely(4, 2), [0, 1]);
        assert_eq!(by_circle(3, 7), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(equal_blocks(2, 5), [0, 0, 1, 1, 0]);
        assert_eq!(equal_blocks(3, 2), [0, 1]);
        for nobody in [averagely(0, 2), by_circle(0, 2), equal_blocks(0, 2)] {
            assert_eq!(nobody, [NOBODY; 2]);
        }
        assert_eq!(averagely(3, 0), [0; 0]);
    }

    #[test]
    fn the_ring_wraps_around_and_keeps_the_last_of_equal_points() {
        let ring = Ring::new([(0, "a"), (1, "b")].into_iter(), 3);
        assert_eq!(ring.points().len(), 6);
        let last = ring.points()[5].0;
        assert_eq!(ring.walk(last + 1).next(), Some(ring.points()[0].1));
        assert_eq!(ring.walk(last).next(), Some(ring.points()[5].1));
        assert_eq!(ring.walk(0).count(), 6);
        let twice = Ring::new([(0, "a"), (1, "a")].into_iter(), 3);
        assert!(twice.points().iter().all(|&(_, row)| row == 1), "{twice:?}");
        assert_eq!(Ring::new([(0, "a")].into_iter(), 0).owner("k"), NOBODY);
    }
}
