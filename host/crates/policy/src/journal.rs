//! The decision journal as text: what was decided, with everything it was decided from, so that it can be decided again.
//!
//! A journal is a row of segments; a segment is a text of JSON lines, each with its `kind`. The first is the `header`;
//! a `policy`, a `roster` (identities) and a `snapshot` (loads as columns over a roster) stand once in a segment, before
//! the first line that refers to their `id`; `scoring` and `claiming` are one decision each. So every segment replays
//! alone, and what decisions share is written once: with a thousand instances a roster is 100 kB, and a snapshot, of
//! which each heartbeat makes another, a quarter of that.
//!
//! JSON, because people look into it with `jq`, and because a format of our own would need a reader of its own in every
//! language. It loses nothing: floats are written so that they read back as the same bits, 64-bit seeds are text.
//! The types of the lines are private to this room, as a stored record is no domain type; [`Encoder`] and [`Reader`]
//! speak of decisions. Threads and files are the host's.
//!
//! Invariants: what [`Reader`] returns is sound (columns have one length, rows exist, the answer names the instance it
//! says), so that replaying it cannot panic; a line that was not written to its end counts as not there; the memory of a
//! [`Reader`] follows the longest line it takes, not the length of the segment.

mod encoder;
mod line;
mod number;
mod reader;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use fulcrum_core::claiming::{Cycle, Plan};
use fulcrum_core::scoring::{Loads, Recommendation, ScoringSnapshot};
use serde::{Deserialize, Serialize};

pub use self::encoder::Encoder;
pub use self::reader::{Error, Reader};
use crate::contract;
use crate::failure::Outcome;
use crate::limits::Limits;
use crate::seat::{Identity, OwnedRequest};

/// Version of the format. A reader refuses another one by its number.
pub const FORMAT: u32 = 1;
/// Longest line, in bytes without its end: a longer one is not written, and not read.
pub const LINE_BYTES_MAX: usize = 64 << 20;
/// Largest segment, in bytes: a host that writes one begins the next before.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Policies a line can refer to: so many of the last ones before it, with no more bytes in all unless the last one alone
/// has more.
const POLICIES_KEPT: usize = 256;
const POLICIES_BYTES_KEPT: usize = LINE_BYTES_MAX;
/// Rosters and snapshots it can refer to; the encoder refers to the last ones only.
const SNAPSHOTS_KEPT: usize = 4;

/// The first line of every segment: who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`] of who wrote it.
    pub format: u32,
    /// Version of the host.
    pub host: String,
    /// Version of the contract with policies.
    pub contract: String,
    /// What its policies were allowed, so that a replay allows no less.
    pub limits: Allowed,
}

/// The limits on policies that can be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are those of Limits, with their units")]
pub struct Allowed {
    pub scoring_deadline_ms: u64,
    pub claiming_deadline_ms: u64,
    pub load_deadline_ms: u64,
    pub memory_bytes: u64,
}

impl Header {
    /// Makes the header of what a host writes.
    #[must_use]
    pub fn new(host: &str, limits: &Limits) -> Self {
        use fulcrum_core::time::millis;
        Self {
            format: FORMAT,
            host: host.to_owned(),
            contract: contract::VERSION.to_owned(),
            limits: Allowed {
                scoring_deadline_ms: millis(limits.scoring_deadline),
                claiming_deadline_ms: millis(limits.claiming_deadline),
                load_deadline_ms: millis(limits.load_deadline),
                memory_bytes: limits.memory_bytes as u64,
            },
        }
    }
}

/// A decision that was read, and the line it stands on, counted from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its line within the segment.
    pub line: u64,
    /// The decision.
    pub record: Record,
}

/// One decision.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the roles' own names")]
pub enum Record {
    Scoring(Box<Scoring>),
    Claiming(Box<Claiming>),
}

/// How a decision came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    /// The version it was up to; `None` if none could be asked at all.
    pub asked: Option<Arc<Identity>>,
    /// How that version's own attempt went.
    pub outcome: Outcome,
    /// Why it gave no usable answer, in words.
    pub failure: Option<String>,
    /// Whether the answer is the version's own; else the native fallback gave it.
    pub is_by_policy: bool,
    /// Time it took, in nanoseconds.
    pub nanos: u64,
}

/// One scoring decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Scoring {
    /// Roster and loads, one for all decisions that refer to it.
    pub snapshot: Arc<ScoringSnapshot>,
    /// Rows given out since the snapshot, in order; each is a row of its roster.
    pub committed: Vec<u32>,
    /// What was asked.
    pub request: OwnedRequest,
    /// How it came about.
    pub course: Course,
    /// What was answered.
    pub answer: Recommendation,
}

impl Scoring {
    /// Returns the loads it was decided from: those of the snapshot, and what was given out since.
    #[must_use]
    pub fn loads(&self) -> Loads {
        let mut loads = self.snapshot.loads.clone();
        self.committed.iter().for_each(|&row| loads.give_out(row as usize));
        loads
    }
}

/// One claim plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Claiming {
    /// What it was made from.
    pub cycle: Cycle,
    /// How it came about.
    pub course: Course,
    /// The plan.
    pub plan: Plan,
}

impl Record {
    /// Returns how it came about.
    #[must_use]
    pub fn course(&self) -> &Course {
        match self {
            Self::Scoring(scoring) => &scoring.course,
            Self::Claiming(claiming) => &claiming.course,
        }
    }

    /// Returns when it was decided, on the clock of the host, in milliseconds since 1970.
    #[must_use]
    pub fn at_ms(&self) -> u64 {
        match self {
            Self::Scoring(scoring) => scoring.request.now_ms,
            Self::Claiming(claiming) => claiming.cycle.now_ms,
        }
    }
}
