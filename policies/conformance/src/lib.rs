//! Reads the vectors in `tests/vectors/` for the tests beside it; no part of any policy.

use std::path::Path;

use fulcrum_guest::claiming::Reason;
use fulcrum_guest::testing::claiming::{Group, member};
use serde_json::Value;

/// Reads one file of vectors.
///
/// # Panics
///
/// If it is not there or not JSON.
#[must_use]
pub fn vectors(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors").join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("vectors are JSON")
}

/// Returns a list of texts.
///
/// # Panics
///
/// If it is none.
#[must_use]
pub fn texts(value: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    value.as_array().expect("a list").iter().map(text).collect()
}

/// Returns a number.
///
/// # Panics
///
/// If it is none.
#[must_use]
pub fn number(value: &Value) -> usize {
    value.as_u64().expect("a number") as usize
}

/// A queue: topic, broker and number.
pub type Queue = (String, String, u32);

/// Returns `count` queues of one topic, dealt to `brokers`, in RocketMQ's order.
#[must_use]
pub fn queues(topic: &str, brokers: &[String], count: usize) -> Vec<Queue> {
    let queue = |at: usize| {
        let number = (at / brokers.len()) as u32;
        (topic.to_owned(), brokers[at % brokers.len()].clone(), number)
    };
    let mut queues: Vec<Queue> = (0..count).map(queue).collect();
    queues.sort();
    queues
}

/// Makes a group of free queues; members are sorted by id and read everything.
#[must_use]
pub fn group(members: &[String], queues: &[Queue]) -> Group {
    let mut sorted = queues.to_vec();
    sorted.sort();
    let mut topics: Vec<&String> = sorted.iter().map(|(topic, ..)| topic).collect();
    topics.dedup();
    let mut places: Vec<&str> = sorted.iter().map(|(_, broker, _)| &**broker).chain([""]).collect();
    places.sort_unstable();
    places.dedup();
    let all: Vec<u32> = (0..topics.len() as u32).collect();
    let mut members: Vec<_> = members.iter().map(|id| member(id, &all)).collect();
    members.sort_by(|a, b| a.id.cmp(&b.id));
    let mut group = Group::of(members, &[]);
    group.topics = topics.iter().map(|topic| (*topic).clone()).collect();
    group.places = places.iter().map(|place| (*place).to_owned()).collect();
    group.reason = Reason::Join;
    for (topic, broker, number) in &sorted {
        let topic = topics.iter().position(|other| *other == topic).expect("it is in the table");
        let place = places.iter().position(|other| other == broker).expect("it is in the table");
        group.add(topic as u32, *number, place as u32, -1);
    }
    group
}

/// Returns the owner of each partition as one base-36 digit, `-` for nobody.
#[must_use]
pub fn digits(group: &Group) -> String {
    let digit = |&owner: &i32| u32::try_from(owner).ok().and_then(|owner| char::from_digit(owner, 36));
    group.owner.iter().map(|owner| digit(owner).unwrap_or('-')).collect()
}
