//! Message groups as people see them: shared ones, and how far they are on each topic.

use std::collections::BTreeMap;

use fulcrum_coordinator::pulls::{Counts, Kind};
use serde::Serialize;
use serde_json::{Value, json};

use crate::app::Services;

/// One topic as a group reads it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TopicBody {
    topic: String,
    fifo: bool,
    subscribers: u64,
    polls_waiting: u64,
    ready: u64,
    waiting: u64,
    in_flight: u64,
    parked: u64,
    windows_full: u64,
    lag: u64,
}

impl From<&Counts> for TopicBody {
    fn from(counts: &Counts) -> Self {
        Self {
            topic: counts.topic.clone(),
            fifo: counts.is_fifo,
            subscribers: counts.subscribers,
            polls_waiting: counts.polls_waiting,
            ready: counts.ready,
            waiting: counts.waiting,
            in_flight: counts.in_flight,
            parked: counts.parked,
            windows_full: counts.windows_full,
            lag: counts.lag,
        }
    }
}

/// Returns the shared groups as entries of the list of all groups.
pub(super) async fn list(services: &Services) -> Vec<Value> {
    let counts = services.pulls.counts().await;
    let mut by_group: BTreeMap<&str, Vec<&Counts>> = BTreeMap::new();
    for counts in counts.iter().filter(|counts| counts.kind == Kind::Shared) {
        by_group.entry(&counts.group).or_default().push(counts);
    }
    let sum =
        |of: fn(&Counts) -> u64, topics: &[&Counts]| topics.iter().map(|counts| of(counts)).sum::<u64>();
    let entry = |(group, topics): (&str, Vec<&Counts>)| {
        let names: Vec<_> = topics.iter().map(|counts| &counts.topic).collect();
        let members = sum(|counts| counts.subscribers, &topics);
        json!({ "group": group, "kind": "messages", "members": members, "topics": names,
            "lag": sum(|counts| counts.lag, &topics) })
    };
    by_group.into_iter().map(entry).collect()
}

/// Returns one shared group.
pub(super) async fn show(services: &Services, group: &str) -> Value {
    let counts = services.pulls.counts().await;
    let topics = counts.iter().filter(|counts| counts.kind == Kind::Shared && counts.group == group);
    let topics: Vec<_> = topics.map(TopicBody::from).collect();
    let lag: u64 = topics.iter().map(|topic| topic.lag).sum();
    json!({ "group": group, "kind": "messages", "topics": topics, "lag": lag })
}
