//! The lines of a journal as JSON has them: one struct per kind, borrowed when written and owned when read.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Header;
use super::number::{column, labels, one, seed};
use crate::json::plain;

type Text<'a> = Cow<'a, str>;
type Rows<'a> = Cow<'a, [u32]>;

/// A line to write.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub(super) enum Line<'a> {
    Header(&'a Header),
    Policy(Policy<'a>),
    Roster(Roster<'a>),
    Snapshot(Snapshot<'a>),
    Scoring(Scoring<'a>),
    Claiming(Box<Claiming<'a>>),
}

/// What tells one kind of line from another when read.
#[derive(Deserialize)]
pub(super) struct Kind<'a> {
    #[serde(borrow)]
    pub kind: Text<'a>,
}

/// A policy version to write: its configuration goes in as the text it is.
#[derive(Serialize)]
pub(super) struct Policy<'a> {
    pub id: u64,
    pub name: &'a str,
    pub digest: &'a str,
    pub config: &'a RawValue,
}

/// A policy version that was read.
#[derive(Deserialize)]
pub(super) struct PolicyRead {
    pub id: u64,
    pub name: String,
    pub digest: String,
    #[serde(deserialize_with = "plain")]
    pub config: Value,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Roster<'a> {
    pub id: u64,
    pub rows: Vec<Instance<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Instance<'a> {
    pub id: Text<'a>,
    pub zone: Text<'a>,
    #[serde(with = "one")]
    pub capacity: f64,
    #[serde(with = "labels")]
    pub labels: Cow<'a, [(String, String)]>,
    pub age_ms: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Snapshot<'a> {
    pub id: u64,
    pub roster: u64,
    pub loads: Loads<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Loads<'a> {
    pub sessions: Rows<'a>,
    #[serde(with = "column")]
    pub inflow: Cow<'a, [f64]>,
    #[serde(with = "column")]
    pub outflow: Cow<'a, [f64]>,
    #[serde(with = "column")]
    pub cpu: Cow<'a, [f64]>,
    pub heartbeat_age_ms: Rows<'a>,
    pub pending: Rows<'a>,
    pub flags: Cow<'a, [u8]>,
}

/// Who gave the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum By {
    Policy,
    Fallback,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Scoring<'a> {
    pub at_ms: u64,
    pub snapshot: u64,
    pub committed: Rows<'a>,
    pub request: Request<'a>,
    pub policy: Option<u64>,
    pub outcome: Text<'a>,
    pub failure: Option<Text<'a>>,
    pub by: By,
    pub row: u64,
    pub id: Text<'a>,
    #[serde(with = "one")]
    pub score: f64,
    pub nanos: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<'a> {
    pub client_id: Text<'a>,
    pub session_rows: Rows<'a>,
    pub session_counts: Rows<'a>,
    #[serde(with = "one")]
    pub inflow: f64,
    #[serde(with = "one")]
    pub outflow: f64,
    pub avoid: Rows<'a>,
    #[serde(with = "seed")]
    pub seed: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Claiming<'a> {
    pub at_ms: u64,
    pub group: Text<'a>,
    pub cycle: Cycle<'a>,
    pub policy: Option<u64>,
    pub outcome: Text<'a>,
    pub failure: Option<Text<'a>>,
    pub by: By,
    pub plan: Plan<'a>,
    pub nanos: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cycle<'a> {
    pub reason: Text<'a>,
    #[serde(with = "seed")]
    pub seed: u64,
    pub movement_budget: Option<u32>,
    pub members: Vec<Member<'a>>,
    pub topics: Cow<'a, [String]>,
    pub places: Cow<'a, [String]>,
    pub topic: Rows<'a>,
    pub number: Rows<'a>,
    pub place: Rows<'a>,
    pub owner: Cow<'a, [i32]>,
    pub moving: Cow<'a, [u8]>,
    #[serde(with = "column")]
    pub weight: Cow<'a, [f64]>,
    pub held_ms: Rows<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Member<'a> {
    pub id: Text<'a>,
    pub zone: Text<'a>,
    #[serde(with = "labels")]
    pub labels: Cow<'a, [(String, String)]>,
    #[serde(with = "one")]
    pub capacity: f64,
    pub since_ms: u64,
    pub topics: Rows<'a>,
}

/// Claims as columns of one length each; a reason is an index into `reasons`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plan<'a> {
    pub partition: Vec<u64>,
    pub member: Vec<u64>,
    pub reason: Vec<u64>,
    pub reasons: Vec<Text<'a>>,
    pub releases: Vec<u64>,
    pub next_cycle_ms: Option<u32>,
}
