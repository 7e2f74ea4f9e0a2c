//! Bodies of the calls, as `docs/HTTP.md` describes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A partition's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Topic.
    pub topic: String,
    /// Number within the topic, 0-based.
    pub partition: u32,
}

/// A partition with the epoch a member has it in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Held {
    /// Which.
    #[serde(flatten)]
    pub place: Place,
    /// Fences stale owners.
    pub epoch: u64,
}

/// Body of a join.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Join {
    /// Name of the member.
    pub member_id: String,
    /// Topics it reads.
    pub topics: Vec<String>,
    /// Failure domain or place.
    pub zone: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Relative capacity.
    pub capacity: f64,
    /// How long it may be silent, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The session it had, to go on with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Whether to fence a live member of the same id.
    pub takeover: bool,
}

/// Answer to a join.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Joined {
    /// Names this life of the member; every call carries it.
    pub session: String,
    /// How long it may be silent, in milliseconds.
    pub ttl_ms: u64,
    /// What it is told.
    #[serde(flatten)]
    pub orders: Orders,
}

/// What a member is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Orders {
    /// Grows with every change of the group.
    pub revision: u64,
    /// What to read.
    pub assignments: Vec<Assignment>,
    /// What to give up.
    #[serde(default)]
    pub revocations: Vec<Revocation>,
    /// Time between two heartbeats, in milliseconds.
    pub heartbeat_interval_ms: u64,
}

/// A partition to read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Assignment {
    /// Which, in which epoch.
    #[serde(flatten)]
    pub held: Held,
    /// Where to begin.
    pub offset: u64,
}

/// A partition to give up.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revocation {
    /// Which, in which epoch.
    #[serde(flatten)]
    pub held: Held,
    /// Time left until it is taken away, in milliseconds.
    pub deadline_ms: u64,
}

/// Body of a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat<'a> {
    /// Session of the member.
    pub session: &'a str,
    /// Grows with every heartbeat of the session.
    pub seq: u64,
    /// Last revision whose orders were followed.
    pub acked_revision: u64,
    /// What it reads now.
    pub owned: Vec<Held>,
    /// What it gave up.
    pub released: Vec<Held>,
}

/// Answer to a pull.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pulled {
    /// Events, ascending.
    pub events: Vec<Event>,
    /// Where to go on.
    pub next_offset: u64,
    /// End of the partition.
    pub end_offset: u64,
}

/// One event with its place in the partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its place.
    pub offset: u64,
    /// The CloudEvent.
    pub event: Value,
}

/// Body of an answer that is no success.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ErrorBody {
    pub(crate) error: String,
    pub(crate) code: String,
    pub(crate) epoch: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
}
