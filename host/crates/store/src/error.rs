//! Everything that can go wrong with a store, in words an operator can act on.

use std::path::PathBuf;
use std::sync::Arc;

use crate::Revision;

/// Short for what every call answers.
pub type Result<T> = std::result::Result<T, Error>;

/// The engine's own error, kept to be printed; no caller decides by it. Shared, since one failed commit may answer
/// many callers.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why a call to a store failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is not as expected: somebody else was faster. Nothing was written.
    #[error("key {key:?} is at {}, not as expected", at(*.current))]
    Conflict {
        /// The key.
        key: String,
        /// Its revision when the write was refused, `None` if there was no such key.
        current: Option<Revision>,
    },
    /// There is no topic of that name.
    #[error("there is no topic {topic:?}")]
    UnknownTopic {
        /// The name.
        topic: String,
    },
    /// The topic has fewer partitions.
    #[error("topic {topic:?} has no partition {partition}, it has {partition_count} from 0")]
    UnknownPartition {
        /// The topic.
        topic: String,
        /// The partition asked for.
        partition: u32,
        /// How many there are.
        partition_count: u32,
    },
    /// The topic exists already.
    #[error("topic {topic:?} exists already, with {partition_count} partitions")]
    TopicExists {
        /// The topic.
        topic: String,
        /// How many partitions it has.
        partition_count: u32,
    },
    /// A topic never loses partitions.
    #[error("topic {topic:?} cannot shrink from {partition_count} partitions to {asked}")]
    Shrink {
        /// The topic.
        topic: String,
        /// How many partitions it has.
        partition_count: u32,
        /// How many were asked for.
        asked: u32,
    },
    /// An argument that no backend accepts.
    #[error("invalid {what}: {reason}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// An argument above its limit.
    #[error("{what} is {found}, more than the limit of {limit}")]
    TooLarge {
        /// Which argument, with its unit.
        what: &'static str,
        /// Its size.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The disk is full, or the store reached the size it may have. Nothing was written; reads go on, and writes do
    /// as soon as there is room: after a trim, after deleting a topic, or once the disk has space.
    #[error("no room to write to {}: free space on its disk, trim or delete topics", path.display())]
    DiskFull {
        /// The store's file.
        path: PathBuf,
        /// The engine's words.
        #[source]
        cause: Cause,
    },
    /// The engine could not do it just now. Nothing was written.
    #[error("cannot {operation} just now")]
    Unavailable {
        /// What was attempted.
        operation: &'static str,
        /// The engine's words.
        #[source]
        cause: Cause,
    },
    /// The write may have happened, or may yet, or not: read before doing it again.
    #[error("unknown whether {operation} was stored")]
    Ambiguous {
        /// What was attempted.
        operation: &'static str,
        /// The engine's words, if it had any.
        #[source]
        cause: Option<Cause>,
    },
    /// Writing stopped for good, since an earlier write failed in a way that leaves the disk in doubt. Reads go on;
    /// opening the store again settles what is stored.
    #[error("{} takes no more writes after an earlier failure: check its disk and restart the host", path.display())]
    Halted {
        /// The store's file.
        path: PathBuf,
        /// The failure that stopped it.
        #[source]
        cause: Cause,
    },
    /// The store was closed, or is closing.
    #[error("the store is closed")]
    Closed,
    /// Another process has the store open.
    #[error(
        "{} is in use by another process{}, which holds {}: stop that one, or choose another data directory",
        path.display(), .holder.map(|id| format!(" ({id})")).unwrap_or_default(), lock.display()
    )]
    InUse {
        /// The store's file.
        path: PathBuf,
        /// The lock file.
        lock: PathBuf,
        /// Process id of the holder, where it could be read.
        holder: Option<u32>,
    },
    /// The file is something else; it was left as it is.
    #[error("{} is not a store of this host: choose another data directory or move it away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A host of another version wrote the file; it was left as it is.
    #[error(
        "{} has store format {found}, this host knows format {known}: {}", path.display(),
        if found > known { "use the newer host that wrote it" } else { "open it once with a host that can upgrade it" }
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        found: u32,
        /// The only format this host reads and writes.
        known: u32,
    },
    /// What is stored contradicts itself. Nothing is guessed and nothing is skipped.
    #[error("{} is damaged, found on {operation}: restore it from a copy or move it away", path.display())]
    Corrupt {
        /// The store's file.
        path: PathBuf,
        /// What was attempted.
        operation: &'static str,
        /// The engine's words.
        #[source]
        cause: Cause,
    },
    /// The store could not be opened.
    #[error("cannot open the store {}", path.display())]
    Open {
        /// The file that was in the way.
        path: PathBuf,
        /// Why.
        #[source]
        cause: Cause,
    },
}

impl Error {
    /// Tells whether the very same call may succeed later, with no harm done by trying.
    ///
    /// An ambiguous write is not: it may have happened, so its caller has to read first.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::DiskFull { .. } | Self::Unavailable { .. } | Self::InUse { .. })
    }

    /// Returns a stable name for programs: lower case with underscores.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "conflict",
            Self::UnknownTopic { .. } => "unknown_topic",
            Self::UnknownPartition { .. } => "unknown_partition",
            Self::TopicExists { .. } => "topic_exists",
            Self::Shrink { .. } => "partitions_only_grow",
            Self::Invalid { .. } => "invalid",
            Self::TooLarge { .. } => "too_large",
            Self::DiskFull { .. } => "disk_full",
            Self::Unavailable { .. } => "store_unavailable",
            Self::Ambiguous { .. } => "store_ambiguous",
            Self::Halted { .. } => "store_halted",
            Self::Closed => "store_closed",
            Self::InUse { .. } => "store_in_use",
            Self::Foreign { .. } => "store_foreign",
            Self::Format { .. } => "store_format",
            Self::Corrupt { .. } => "store_corrupt",
            Self::Open { .. } => "store_open",
        }
    }
}

fn at(current: Option<Revision>) -> String {
    current.map_or_else(|| "no revision".to_owned(), |revision| format!("revision {revision}"))
}
