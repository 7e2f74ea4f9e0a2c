//! State and events at rest, behind two small traits that every engine can keep.
//!
//! [`ClusterStore`] holds the little records that decide who owns what, [`EventLog`] holds the events. Both promise
//! only what SQLite, NATS JetStream and etcd can promise alike (`reference/engines.md` section 7):
//!
//! - **Only a successful compare-and-swap is authoritative.** What `get`, `list` and `watch` say is a hint.
//! - **There is no TTL.** Whoever wants something to expire observes that its revision stands still.
//! - **What was answered is durable.** A write is answered after it is on disk, never before.
//! - **Leases live above.** Deliveries, attempts and acknowledgements are the coordinator's, over the plain log.
//!
//! A call is a future that does nothing until it is polled and needs no particular runtime. Dropping it early never
//! tears a write apart: the write happens wholly or not at all, though its caller will not learn which.
//!
//! [`SqliteStore`] is the embedded backend of both. The feature `testing` adds `contract`, the suite of cases that
//! every backend must pass.

mod answer;
mod cluster;
#[cfg(feature = "testing")]
pub mod contract;
mod error;
mod log;
mod sqlite;
mod watch;

pub use answer::Answer;
pub use cluster::{ClusterStore, Entry, Expected, Revision, Update, Versioned};
pub use error::{Cause, Error, Result};
pub use log::{EventLog, FetchLimit, Fetched, Partition, Position, Stored, Topic};
pub use sqlite::{FORMAT_VERSION, Options, SqliteStore};
pub use watch::{Change, Feed, Watch, feed};

/// Longest key or prefix, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 2048;
/// Largest value of a key, and largest record of a log: what a NATS server takes by default.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Most records of one append.
pub const APPEND_RECORDS_MAX: usize = 10_000;
/// Most bytes of all records of one append.
pub const APPEND_BYTES_MAX: usize = 4 << 20;
/// Most records that one search by size looks at.
pub const SIZE_STEP_RECORDS: u32 = 10_000;
/// Most partitions of one topic.
pub const PARTITIONS_MAX: u32 = 100_000;
