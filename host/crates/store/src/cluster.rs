//! Small records under keys, changed only by compare-and-swap.

use std::fmt;

use bytes::Bytes;

use crate::{Answer, Error, KEY_BYTES_MAX, Result, VALUE_BYTES_MAX, Watch};

/// Version of one key. Every successful write of the store gets one greater than any before, for ever: neither
/// deleting a key nor restarting brings one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a writer believes about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expected {
    /// There is no such key.
    Absent,
    /// It is at exactly this revision.
    At(Revision),
}

impl From<Option<Revision>> for Expected {
    fn from(seen: Option<Revision>) -> Self {
        seen.map_or(Self::Absent, Self::At)
    }
}

/// What a writer wants a key to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// This value, at most [`VALUE_BYTES_MAX`] bytes.
    Put(Bytes),
    /// Gone.
    Delete,
}

/// A value with the revision that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// Revision of the write.
    pub revision: Revision,
    /// What it wrote.
    pub value: Bytes,
}

/// One key with what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value and revision.
    pub versioned: Versioned,
}

/// Keys with values, of which only a successful [`compare_and_swap`](Self::compare_and_swap) is authoritative.
///
/// A key is any text of 1 to [`KEY_BYTES_MAX`] bytes. Besides the errors named, every call may answer
/// [`Error::Unavailable`], [`Error::Corrupt`] and [`Error::Closed`].
pub trait ClusterStore: Send + Sync {
    /// Reads one key, `None` if there is none. A hint: it may be stale on a cluster.
    ///
    /// Errors with [`Error::Invalid`] or [`Error::TooLarge`] for an impossible key.
    fn get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Versioned>>;

    /// Reads all keys that start with `prefix`, ascending by their bytes; the empty prefix means every key.
    ///
    /// All of them or an error, never a part. A hint: it may be stale on a cluster.
    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<Entry>>;

    /// Changes `key` if it is as `expected`, and answers the new revision once that is durable. A deletion has a
    /// revision too.
    ///
    /// Errors with [`Error::Conflict`] if the key is not as expected, [`Error::Invalid`] on deleting what is
    /// expected to be absent, [`Error::TooLarge`], [`Error::DiskFull`], [`Error::Halted`], and
    /// [`Error::Ambiguous`] if the write may or may not have happened.
    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        expected: Expected,
        update: Update,
    ) -> Answer<'a, Revision>;

    /// Follows the changes of all keys that start with `prefix`, from the moment this answers.
    ///
    /// Subscribe first and list then, and nothing is missed. See [`Watch`] for what is promised.
    fn watch<'a>(&'a self, prefix: &'a str) -> Answer<'a, Watch>;
}

/// Refuses what no backend takes as a key.
///
/// # Errors
/// [`Error::Invalid`] if it is empty, [`Error::TooLarge`] above [`KEY_BYTES_MAX`].
pub(crate) fn check_key(key: &str) -> Result<()> {
    if key.is_empty() {
        return Err(Error::Invalid { what: "key", reason: "it is empty".to_owned() });
    }
    check_prefix(key)
}

/// Refuses a prefix longer than any key.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    at_most("key bytes", prefix.len(), KEY_BYTES_MAX)
}

/// Refuses a write that no backend takes.
pub(crate) fn check_swap(key: &str, expected: Expected, update: &Update) -> Result<()> {
    check_key(key)?;
    match (expected, update) {
        (Expected::Absent, Update::Delete) => Err(Error::Invalid {
            what: "update",
            reason: "what is expected to be absent cannot be deleted".to_owned(),
        }),
        (_, Update::Put(value)) => at_most("value bytes", value.len(), VALUE_BYTES_MAX),
        (Expected::At(_), Update::Delete) => Ok(()),
    }
}

pub(crate) fn at_most(what: &'static str, found: usize, limit: usize) -> Result<()> {
    if limit < found { Err(Error::TooLarge { what, found, limit }) } else { Ok(()) }
}
