//! A fixed list of partitions for each member: RocketMQ's `AllocateMessageQueueByConfig`, for a whole group.
//!
//! Of several members that list a partition, the first that lives and subscribes has it, so a list can name stand-ins.
//! What nobody lists, or only members that are away, belongs to nobody.

use std::collections::BTreeMap;

use fulcrum_guest::claiming::allocate::{self, NOBODY};
use fulcrum_guest::config::{Fields, Value, invalid};
use fulcrum_guest::{Changes, Claiming, Cycle, Description, Error};

/// The policy.
#[derive(Debug)]
pub struct ByConfig {
    /// Per topic and number: who may have it, in the order of the configuration.
    listed: BTreeMap<(String, u32), Vec<Listed>>,
}

#[derive(Debug)]
struct Listed {
    /// Only at this place; `None` at any.
    place: Option<String>,
    member: String,
}

impl Claiming for ByConfig {
    fn describe() -> Description {
        Description {
            name: "by-config",
            version: env!("CARGO_PKG_VERSION"),
            summary: "A fixed list of partitions for each member, with stand-ins; what is not listed belongs to nobody.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let mut listed: BTreeMap<_, Vec<Listed>> = BTreeMap::new();
        let assignments = match fields.take("assignments") {
            None => Vec::new(),
            Some(Value::Object(assignments)) => assignments,
            Some(_) => return Err(bad()),
        };
        fields.finish()?;
        for (member, items) in assignments {
            let Value::Array(items) = items else { return Err(bad()) };
            for item in items {
                let (topic, place, numbers) = item_of(item)?;
                for number in numbers {
                    let listed = listed.entry((topic.clone(), number)).or_default();
                    listed.push(Listed { place: place.clone(), member: member.clone() });
                }
            }
        }
        Ok(Self { listed })
    }

    fn plan(&self, cycle: &Cycle<'_>) -> Result<Changes, Error> {
        cycle.check()?;
        let row = |id: &str| cycle.members.binary_search_by(|member| (*member.id).cmp(id)).ok();
        let owner = |partition: usize| {
            let topic = cycle.topic[partition];
            let place = &cycle.places[cycle.place[partition] as usize];
            let listed = self.listed.get(&(cycle.topics[topic as usize].clone(), cycle.number[partition]))?;
            listed.iter().filter(|listed| listed.place.as_ref().is_none_or(|only| only == place)).find_map(
                |listed| {
                    let row = row(&listed.member)?;
                    let subscribes = cycle.members[row].topics.binary_search(&topic).is_ok();
                    subscribes.then_some(row as u32)
                },
            )
        };
        let target: Vec<u32> =
            (0..cycle.partitions()).map(|partition| owner(partition).unwrap_or(NOBODY)).collect();
        Ok(allocate::towards(cycle, &target, "listed in the configuration"))
    }
}

fn bad() -> Error {
    invalid("assignments", "must have for each member an array of {topic, place?, partitions}")
}

/// Reads one item: topic, place and numbers.
fn item_of(item: Value) -> Result<(String, Option<String>, Vec<u32>), Error> {
    let Value::Object(item) = item else { return Err(bad()) };
    let (mut topic, mut place, mut numbers) = (None, None, None);
    for (name, value) in item {
        match (&*name, value) {
            ("topic", Value::Text(text)) => topic = Some(text),
            ("place", Value::Text(text)) => place = Some(text),
            ("partitions", Value::Array(values)) => {
                numbers = Some(values.iter().map(number).collect::<Result<_, _>>()?);
            }
            _ => return Err(bad()),
        }
    }
    Ok((topic.ok_or_else(bad)?, place, numbers.ok_or_else(bad)?))
}

fn number(value: &Value) -> Result<u32, Error> {
    match value {
        &Value::Number(number) if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) => {
            Ok(number as u32)
        }
        _ => Err(bad()),
    }
}
