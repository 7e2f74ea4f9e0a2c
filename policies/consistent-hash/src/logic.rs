//! A partition belongs to the next member on a hash ring: RocketMQ's `AllocateMessageQueueConsistentHash`.
//!
//! Few partitions move when a member comes or goes, but shares are uneven. With `boundedLoad` c no member takes more
//! than `cap = ceil(c * partitions / members)` of a topic; what does not fit walks on along the ring (Mirrokni,
//! Thorup, Zadimoghaddam, "Consistent hashing with bounded loads", SODA 2018). Two kinds of hysteresis, so that a cap
//! that steps by one does not move everything:
//!
//! - what a member has already it keeps up to `cap + max(1, cap / 20)`;
//! - a partition that was placed elsewhere stays there while its home on the ring has more than the mean.

use fulcrum_guest::claiming::allocate::{self, NOBODY, Ring, Topic};
use fulcrum_guest::config::{Fields, Value, invalid};
use fulcrum_guest::{Changes, Claiming, Cycle, Description, Error};

/// The policy.
#[derive(Debug)]
pub struct ConsistentHash {
    virtual_nodes: u32,
    key: Key,
    bound: Option<f64>,
}

/// What is hashed.
#[derive(Debug, Clone, Copy)]
enum Key {
    Partition,
    RocketMq,
}

impl Claiming for ConsistentHash {
    fn describe() -> Description {
        Description {
            name: "consistent-hash",
            version: env!("CARGO_PKG_VERSION"),
            summary: "RocketMQ's consistent-hash ring (MD5, 10 virtual nodes); with boundedLoad no member takes much \
                      more than the mean.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let virtual_nodes = fields.integer("virtualNodes", 0..=1000, 10)?;
        let words = [("partition", Key::Partition), ("rocketmq", Key::RocketMq)];
        let key = fields.choice("key", &words, Key::Partition)?;
        let bound = match fields.take("boundedLoad") {
            None | Some(Value::Null) => None,
            Some(Value::Number(bound)) if (1.2..=100.0).contains(&bound) => Some(bound),
            Some(_) => return Err(invalid("boundedLoad", "must be a number from 1.2 to 100, or null")),
        };
        fields.finish()?;
        Ok(Self { virtual_nodes, key, bound })
    }

    fn plan(&self, cycle: &Cycle<'_>) -> Result<Changes, Error> {
        cycle.check()?;
        // Topics of the same subscribers share a ring.
        let mut kept: Option<(Vec<u32>, Ring)> = None;
        let target = allocate::by_topic(cycle, |topic| {
            if kept.as_ref().is_none_or(|(members, _)| *members != topic.members) {
                let ids = topic.members.iter().map(|&row| &*cycle.members[row as usize].id);
                kept = Some((topic.members.clone(), Ring::new((0..).zip(ids), self.virtual_nodes)));
            }
            let ring = &kept.as_ref().expect("it was just made").1;
            let hashes: Vec<u32> =
                topic.queues.iter().map(|&partition| self.hash(cycle, partition)).collect();
            match self.bound {
                Some(bound) if !ring.points().is_empty() => bounded(cycle, topic, ring, &hashes, bound),
                _ => hashes.iter().map(|&hash| ring.walk(hash).next().unwrap_or(NOBODY)).collect(),
            }
        });
        Ok(allocate::towards(cycle, &target, "its place on the ring"))
    }
}

impl ConsistentHash {
    fn hash(&self, cycle: &Cycle<'_>, partition: u32) -> u32 {
        let partition = partition as usize;
        let topic = &cycle.topics[cycle.topic[partition] as usize];
        let place = &cycle.places[cycle.place[partition] as usize];
        let number = cycle.number[partition];
        let key = match self.key {
            Key::RocketMq => allocate::queue_key(topic, place, number),
            Key::Partition if place.is_empty() => [topic, "/", &number.to_string()].concat(),
            Key::Partition => [topic, "/", &number.to_string(), "@", place].concat(),
        };
        allocate::hash(key.as_bytes())
    }
}

/// Returns the most partitions of a topic that a member takes, and the most that it keeps.
#[must_use]
pub fn caps(bound: f64, partitions: usize, members: usize) -> (u32, u32) {
    let cap = (bound * partitions as f64 / members as f64).ceil() as u32;
    (cap, cap + (cap / 20).max(1))
}

/// Returns the owner of each queue: an index into the topic's members.
fn bounded(cycle: &Cycle<'_>, topic: &Topic, ring: &Ring, hashes: &[u32], bound: f64) -> Vec<u32> {
    let (queues, members) = (topic.queues.len(), topic.members.len());
    let (cap, cap_kept) = caps(bound, queues, members);
    let mut load = vec![0_u32; members];
    let mut owners = vec![NOBODY; queues];
    let home: Vec<u32> = hashes.iter().map(|&hash| ring.walk(hash).next().expect("it has points")).collect();
    let now = |queue: usize| {
        let owner = cycle.owner[topic.queues[queue] as usize];
        if owner < 0 { None } else { topic.members.binary_search(&(owner as u32)).ok() }
    };
    let is_moving = |queue: usize| cycle.moving[topic.queues[queue] as usize] != 0;
    // First what cannot be changed, then what is at home, then what is elsewhere, then the rest.
    for queue in (0..queues).filter(|&queue| is_moving(queue)) {
        if let Some(owner) = now(queue) {
            load[owner] += 1;
            owners[queue] = owner as u32;
        }
    }
    for at_home in [true, false] {
        for queue in (0..queues).filter(|&queue| !is_moving(queue)) {
            let Some(owner) = now(queue) else { continue };
            let own = home[queue] as usize;
            if (owner == own) != at_home || load[owner] >= cap_kept {
                continue;
            }
            let may_return = !at_home && load[own] as usize * members < queues;
            let owner = if may_return { own } else { owner };
            load[owner] += 1;
            owners[queue] = owner as u32;
        }
    }
    for queue in (0..queues).filter(|&queue| !is_moving(queue)) {
        if owners[queue] == NOBODY {
            let has_room = |&row: &u32| load[row as usize] < cap;
            let idlest = || (0..members as u32).min_by_key(|&row| load[row as usize]).expect("members");
            let owner = ring.walk(hashes[queue]).find(has_room).unwrap_or_else(idlest);
            load[owner as usize] += 1;
            owners[queue] = owner;
        }
    }
    owners
}
