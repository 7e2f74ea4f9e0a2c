//! The scoring role in plain types: which instance should this client's next session go to?
//!
//! Shapes, units and ranges are those of `wit/policy.wit`. The law of `committed`: [`Scoring::refresh`] with pending
//! P, followed by calls that carried `committed` K, answers exactly like `refresh` with P + K.

use std::borrow::Cow;

/// Answers the scoring question over a roster and loads that it keeps.
///
/// Order of calls: [`configure`](Self::configure) once, [`roster`](Self::roster), [`refresh`](Self::refresh), then
/// any mix of the others; after a new roster always a refresh.
pub trait Scoring: Sized {
    /// Says what this policy is.
    fn describe() -> Description;

    /// Makes the policy from its configuration: one JSON object as text.
    ///
    /// Errors with [`Error::InvalidConfig`], which names the field.
    fn configure(config: &str) -> Result<Self, Error>;

    /// Replaces the roster and forgets all loads.
    ///
    /// Errors with [`Error::InvalidInput`] if a row is outside its range; the former roster is then kept.
    fn roster(&mut self, rows: Vec<Row>) -> Result<(), Error>;

    /// Replaces the loads.
    ///
    /// Errors with [`Error::InvalidInput`] if a column has another length than the roster or a value is outside its
    /// range; the former loads are then kept.
    fn refresh(&mut self, loads: Loads) -> Result<(), Error>;

    /// Chooses an instance, after it has counted the rows in `committed`.
    ///
    /// Errors with [`Error::InvalidInput`] for a malformed request, of which then nothing is counted, and with
    /// [`Error::NoCandidate`] if no row may be chosen.
    fn recommend(&mut self, request: &Request<'_>) -> Result<Recommendation, Error>;

    /// Explains every row that may be chosen as [`recommend`](Self::recommend) would judge it for the same request;
    /// counts the rows in `committed` like it.
    ///
    /// Errors like `recommend`, except that no candidate is an empty list; by default with [`Error::Unsupported`].
    fn explain(&mut self, request: &Request<'_>) -> Result<Vec<ScoreParts>, Error> {
        let _ = request;
        Err(Error::Unsupported)
    }
}

/// Bits of [`Loads::flags`].
pub mod flag {
    /// The load is unknown: the numbers of this row are 0 and mean nothing.
    pub const UNKNOWN: u8 = 1;
    /// The instance is draining; it must not be chosen.
    pub const DRAINING: u8 = 2;
    /// The instance is dead; it must not be chosen.
    pub const DEAD: u8 = 4;
}

/// What a policy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Name in lower case, `[a-z0-9-]`, 1 to 64 characters.
    pub name: &'static str,
    /// Version of the policy itself, at most 64 characters.
    pub version: &'static str,
    /// One sentence for people, at most 1024 characters.
    pub summary: &'static str,
    /// JSON Schema (draft 2020-12) of the configuration; empty means any JSON object. At most 65,536 bytes.
    pub config_schema: &'static str,
}

/// Why a call was refused; the same cases as the contract's `error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The configuration is not acceptable; the text says which field and why.
    InvalidConfig(String),
    /// The input contradicts itself or leaves its range; the text says where.
    InvalidInput(String),
    /// No row may be chosen.
    NoCandidate,
    /// The policy does not offer this optional function.
    Unsupported,
    /// Anything else; the text says what.
    Failed(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InvalidConfig(text) => write!(f, "invalid configuration: {text}"),
            Self::InvalidInput(text) => write!(f, "invalid input: {text}"),
            Self::NoCandidate => f.write_str("no row may be chosen"),
            Self::Unsupported => f.write_str("unsupported"),
            Self::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// One row of the roster: the identity of an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Opaque name, 1 to 256 bytes.
    pub id: String,
    /// Failure domain or place, empty when unknown.
    pub zone: String,
    /// Relative capacity; 1.0 is a standard instance. Finite, above 0.
    pub capacity: f64,
    /// Labels as (key, value), ordered by key, each key once.
    pub labels: Vec<(String, String)>,
    /// Time since the instance joined, in milliseconds, when the roster was made.
    pub age_ms: u64,
}

/// Loads of all rows as columns: each has exactly one entry per roster row, in the same order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Loads {
    /// Sessions the instance reported with its last heartbeat.
    pub sessions: Vec<u32>,
    /// Bytes per second it takes in. Finite, 0 or more.
    pub inflow: Vec<f64>,
    /// Bytes per second it sends out. Finite, 0 or more.
    pub outflow: Vec<f64>,
    /// Share of its cores in use: 0.0 is idle, 1.0 is full. Finite, 0 or more.
    pub cpu: Vec<f64>,
    /// Time since its last heartbeat in milliseconds.
    pub heartbeat_age_ms: Vec<u32>,
    /// Sessions given out to it since its last heartbeat.
    pub pending: Vec<u32>,
    /// Bits of [`flag`].
    pub flags: Vec<u8>,
}

/// One client asks for an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Request<'a> {
    /// The client's own name; opaque, at most 256 bytes, may be empty.
    pub client_id: &'a str,
    /// Rows on which this client has sessions already; ascending, each row once.
    pub session_rows: &'a [u32],
    /// How many sessions it has on each of `session_rows`; same length, each 1 or more.
    pub session_counts: &'a [u32],
    /// The client's own traffic in bytes per second towards us. Finite, 0 or more.
    pub client_inflow: f64,
    /// The client's own traffic in bytes per second from us. Finite, 0 or more.
    pub client_outflow: f64,
    /// Rows not to choose for this request; ascending, each row once.
    pub avoid: &'a [u32],
    /// Rows given out since this instance's previous call, in order; a row may stand there more than once.
    pub committed: &'a [u32],
    /// The host's clock in milliseconds since 1970-01-01 UTC.
    pub now_ms: u64,
    /// Chance for this decision: uniform over all values, different for each decision.
    pub seed: u64,
}

/// The answer: one row, and what it cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recommendation {
    /// Index into the roster, 0-based.
    pub row: u32,
    /// Cost of sending the session there; lower is better, never NaN.
    pub score: f64,
}

/// Why a row costs what it costs.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreParts {
    /// Index into the roster, 0-based.
    pub row: u32,
    /// Its score, comparable within one answer; lower is better, never NaN.
    pub score: f64,
    /// Named terms of the score, at most 32.
    pub parts: Vec<(Cow<'static, str>, f64)>,
}
