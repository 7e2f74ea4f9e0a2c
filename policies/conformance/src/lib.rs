//! The claim policies against the vectors in `tests/vectors/`, by whatever plans: the policies' own code in the tests
//! beside it, their components in those of the host. No part of any policy.
//!
//! Invariant: what a vector demands is said here once; a [`Planner`] only carries questions and plans.

use std::path::Path;

use average::logic::Average;
use average_by_circle::logic::AverageByCircle;
use balanced::logic::Balanced;
use by_config::logic::ByConfig;
use consistent_hash::logic::ConsistentHash;
use fulcrum_guest::Changes;
use fulcrum_guest::claiming::Reason;
use fulcrum_guest::testing::claiming::{Group, Settled, member, plan};
use greedy::logic::Greedy;
use machine_room::logic::MachineRoom;
use machine_room_nearby::logic::MachineRoomNearby;
use serde_json::Value;

pub mod eventhubs;
pub mod rocketmq;

/// Asks policies by their names.
pub trait Planner {
    /// Returns the plan of one cycle by a policy with a configuration, a JSON object.
    ///
    /// # Panics
    ///
    /// If there is no such policy, or it has no legal plan.
    fn plan(&mut self, policy: &str, config: &str, group: &Group) -> Changes;
}

/// The policies' own code, under the laws of plans.
#[derive(Debug, Clone, Copy)]
pub struct Native;

impl Planner for Native {
    fn plan(&mut self, policy: &str, config: &str, group: &Group) -> Changes {
        match policy {
            "average" => plan::<Average>(config, group),
            "average-by-circle" => plan::<AverageByCircle>(config, group),
            "balanced" => plan::<Balanced>(config, group),
            "by-config" => plan::<ByConfig>(config, group),
            "consistent-hash" => plan::<ConsistentHash>(config, group),
            "greedy" => plan::<Greedy>(config, group),
            "machine-room" => plan::<MachineRoom>(config, group),
            "machine-room-nearby" => plan::<MachineRoomNearby>(config, group),
            other => panic!("policy {other}"),
        }
    }
}

/// Carries out plans until one changes nothing.
///
/// # Panics
///
/// If there is no legal plan, or nothing settles within `cycles_max` cycles.
pub fn settle(
    planner: &mut impl Planner,
    policy: &str,
    config: &str,
    group: &mut Group,
    cycles_max: u32,
) -> Settled {
    let mut settled = Settled { cycles: 0, moves: 0 };
    loop {
        let changes = planner.plan(policy, config, group);
        if changes.partition.is_empty() && changes.releases.is_empty() {
            return settled;
        }
        let owned = changes.partition.iter().filter(|&&partition| group.owner[partition as usize] >= 0);
        settled.moves += (owned.count() + changes.releases.len()) as u32;
        settled.cycles += 1;
        assert!(settled.cycles <= cycles_max, "{policy} does not settle: {group:?}");
        group.apply(&changes);
    }
}

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
