//! Partitions go to members in the same machine room: RocketMQ's `AllocateMachineRoomNearby`.
//!
//! Topic by topic: the partitions of a room go to that room's subscribers through an inner strategy. Rooms without
//! any subscriber are shared by all of them through the inner strategy, room by room in the order of their names. A
//! member gets the sum, so loads may differ.

use std::collections::BTreeMap;

use fulcrum_guest::claiming::allocate::{self, NOBODY, Ring};
use fulcrum_guest::config::{Fields, Value, invalid};
use fulcrum_guest::{Changes, Claiming, Cycle, Description, Error};

/// Points of each member on the ring, as in RocketMQ.
const VIRTUAL_NODES: u32 = 10;

/// The policy.
#[derive(Debug)]
pub struct MachineRoomNearby {
    inner: Inner,
    separator: String,
}

/// How the partitions of one room are allocated.
#[derive(Debug, Clone, Copy)]
enum Inner {
    Average,
    AverageByCircle,
    ConsistentHash,
}

impl Claiming for MachineRoomNearby {
    fn describe() -> Description {
        Description {
            name: "machine-room-nearby",
            version: env!("CARGO_PKG_VERSION"),
            summary: "RocketMQ's machine room nearby: partitions go to members in the same room, those of rooms \
                      without members to all.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let words = [
            ("average", Inner::Average),
            ("average-by-circle", Inner::AverageByCircle),
            ("consistent-hash", Inner::ConsistentHash),
        ];
        let inner = fields.choice("inner", &words, Inner::Average)?;
        let separator = match fields.take("separator") {
            None => "-".to_owned(),
            Some(Value::Text(text)) if !text.is_empty() => text,
            Some(_) => return Err(invalid("separator", "must be a text that is not empty")),
        };
        fields.finish()?;
        Ok(Self { inner, separator })
    }

    fn plan(&self, cycle: &Cycle<'_>) -> Result<Changes, Error> {
        cycle.check()?;
        let target = allocate::by_topic(cycle, |topic| {
            // Indices into the topic's members and queues, by room.
            let mut members: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
            for (at, &row) in topic.members.iter().enumerate() {
                let member = &cycle.members[row as usize];
                let room = if member.zone.is_empty() { self.room(&member.id) } else { &*member.zone };
                members.entry(room).or_default().push(at);
            }
            let all: Vec<usize> = (0..topic.members.len()).collect();
            let mut rooms: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
            for (at, &partition) in topic.queues.iter().enumerate() {
                let place = &cycle.places[cycle.place[partition as usize] as usize];
                rooms.entry(self.room(place)).or_default().push(at);
            }
            let mut owners = vec![NOBODY; topic.queues.len()];
            for (room, queues) in rooms {
                let members = members.get(room).unwrap_or(&all);
                let partition = |queue: usize| topic.queues[queues[queue]] as usize;
                let id = |member: usize| &*cycle.members[topic.members[members[member]] as usize].id;
                for (at, owner) in self.allocate(cycle, queues.len(), partition, members.len(), id) {
                    owners[queues[at]] = members[owner as usize] as u32;
                }
            }
            owners
        });
        Ok(allocate::towards(cycle, &target, "its machine room"))
    }
}

impl MachineRoomNearby {
    fn room<'a>(&self, name: &'a str) -> &'a str {
        name.split_once(&self.separator).map_or(name, |(room, _)| room)
    }

    /// Returns the index of each queue with that of its owner.
    fn allocate<'a>(
        &self,
        cycle: &Cycle<'_>,
        queues: usize,
        partition: impl Fn(usize) -> usize,
        members: usize,
        id: impl Fn(usize) -> &'a str,
    ) -> Vec<(usize, u32)> {
        let owners = match self.inner {
            Inner::Average => allocate::averagely(members, queues),
            Inner::AverageByCircle => allocate::by_circle(members, queues),
            Inner::ConsistentHash => {
                let ring = Ring::new((0..members).map(|at| (at as u32, id(at))), VIRTUAL_NODES);
                let key = |partition: usize| {
                    let topic = &cycle.topics[cycle.topic[partition] as usize];
                    let place = &cycle.places[cycle.place[partition] as usize];
                    allocate::queue_key(topic, place, cycle.number[partition])
                };
                (0..queues).map(|queue| ring.owner(&key(partition(queue)))).collect()
            }
        };
        owners.into_iter().enumerate().collect()
    }
}
