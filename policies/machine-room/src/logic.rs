//! Only the partitions of some machine rooms, in equal blocks: RocketMQ's `AllocateMessageQueueByMachineRoom`.
//!
//! Each topic's partitions in allowed rooms go to its subscribers in equal contiguous blocks, and the rest one each to
//! the first members. Partitions in other rooms, or whose place names no room, belong to nobody.

use fulcrum_guest::claiming::allocate::{self, NOBODY};
use fulcrum_guest::config::{Fields, Value, invalid};
use fulcrum_guest::{Changes, Claiming, Cycle, Description, Error};

/// The policy.
#[derive(Debug)]
pub struct MachineRoom {
    /// Allowed rooms; `None` allows any.
    rooms: Option<Vec<String>>,
    place: Place,
}

/// What the place of a partition is.
#[derive(Debug, Clone, Copy)]
enum Place {
    Broker,
    Room,
}

impl Claiming for MachineRoom {
    fn describe() -> Description {
        Description {
            name: "machine-room",
            version: env!("CARGO_PKG_VERSION"),
            summary: "RocketMQ's machine room: the partitions of allowed rooms in equal blocks, others to nobody.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let words = [("broker", Place::Broker), ("room", Place::Room)];
        let place = fields.choice("placeIs", &words, Place::Broker)?;
        let bad = || invalid("rooms", "must be an array of texts, or null");
        let room = |value| if let Value::Text(room) = value { Ok(room) } else { Err(bad()) };
        let rooms = match fields.take("rooms") {
            None | Some(Value::Null) => None,
            Some(Value::Array(rooms)) => Some(rooms.into_iter().map(room).collect::<Result<_, _>>()?),
            Some(_) => return Err(bad()),
        };
        fields.finish()?;
        Ok(Self { rooms, place })
    }

    fn plan(&self, cycle: &Cycle<'_>) -> Result<Changes, Error> {
        cycle.check()?;
        let allowed: Vec<bool> = cycle.places.iter().map(|place| self.allows(place)).collect();
        let target = allocate::by_topic(cycle, |topic| {
            let is_allowed = |&partition: &u32| allowed[cycle.place[partition as usize] as usize];
            let count = topic.queues.iter().filter(|partition| is_allowed(partition)).count();
            let mut owners = allocate::equal_blocks(topic.members.len(), count).into_iter();
            let mut owner = |partition| if is_allowed(partition) { owners.next() } else { None };
            topic.queues.iter().map(|partition| owner(partition).unwrap_or(NOBODY)).collect()
        });
        Ok(allocate::towards(cycle, &target, "its block in the allowed machine rooms"))
    }
}

impl MachineRoom {
    fn allows(&self, place: &str) -> bool {
        let room = match self.place {
            Place::Room => Some(place).filter(|place| !place.is_empty()),
            Place::Broker => {
                place.split_once('@').filter(|(_, name)| !name.contains('@')).map(|(room, _)| room)
            }
        };
        match (room, &self.rooms) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(room), Some(rooms)) => rooms.iter().any(|allowed| allowed == room),
        }
    }
}
