//! Topics of partitions of records, appended at one end and trimmed at the other.

use std::fmt;

use bytes::Bytes;
use fulcrum_core::{NAME_BYTES_MAX, Timestamp};

use crate::cluster::at_most;
use crate::{APPEND_BYTES_MAX, APPEND_RECORDS_MAX, Answer, Error, PARTITIONS_MAX, Result, VALUE_BYTES_MAX};

/// Place of a record in its partition. It only grows there; **gaps are allowed**, so the next one is learnt from
/// [`Fetched::next`] and not by adding one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One topic as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Partitions `0..partition_count`.
    pub partition_count: u32,
    /// Differs from that of every topic of this name that was deleted before: positions mean nothing across it.
    pub incarnation: u64,
}

/// One partition as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// No record is below: what was there was trimmed.
    pub first: Position,
    /// Every record is below, and the next one will be here or above. `first == end`: there is no record.
    pub end: Position,
    /// Payload bytes on disk, of trimmed records too until they are swept away.
    pub bytes: u64,
}

/// Bounds of one fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchLimit {
    /// Most records; 0 means 1.
    pub records: u32,
    /// Most payload bytes, though the first record comes whatever its size, so that a reader always gets on.
    pub bytes: usize,
}

/// One record as it was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Where it is.
    pub position: Position,
    /// When it was appended, or when the one before it was, whichever is later: never falls along a partition.
    pub at: Timestamp,
    /// What was appended.
    pub payload: Bytes,
}

/// Answer of one fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Records in ascending order, all at or above both the position asked for and [`first`](Self::first). There
    /// is no record between two neighbours that is not here.
    pub records: Vec<Stored>,
    /// Where to go on.
    pub next: Position,
    /// Begin of the partition when this was read. Above the position asked for: what was between is trimmed away,
    /// and the reader should count the gap.
    pub first: Position,
    /// End of the partition when this was read.
    pub end: Position,
}

/// Partitioned logs. No leases, no groups, no offsets: those are the coordinator's.
///
/// A topic's name is any text of 1 to [`NAME_BYTES_MAX`] bytes. Besides the errors named, calls answer
/// [`Error::UnknownTopic`] and [`Error::UnknownPartition`] where there is none, and may answer
/// [`Error::Unavailable`], [`Error::Corrupt`] and [`Error::Closed`]; those that write also [`Error::DiskFull`],
/// [`Error::Ambiguous`] and [`Error::Halted`].
pub trait EventLog: Send + Sync {
    /// Creates a topic with `1..=PARTITIONS_MAX` empty partitions, and answers it once it is durable.
    ///
    /// Errors with [`Error::TopicExists`], [`Error::Invalid`] and [`Error::TooLarge`].
    fn create_topic<'a>(&'a self, topic: &'a str, partition_count: u32) -> Answer<'a, Topic>;

    /// Describes one topic.
    fn topic<'a>(&'a self, topic: &'a str) -> Answer<'a, Topic>;

    /// Describes all topics, ascending by the bytes of their names.
    fn topics(&self) -> Answer<'_, Vec<Topic>>;

    /// Adds empty partitions until there are `partition_count`; the same count as now changes nothing.
    ///
    /// Errors with [`Error::Shrink`] for fewer and [`Error::TooLarge`] for too many.
    fn grow_topic<'a>(&'a self, topic: &'a str, partition_count: u32) -> Answer<'a, Topic>;

    /// Deletes a topic with all its records. Its disk space comes back step by step.
    fn delete_topic<'a>(&'a self, topic: &'a str) -> Answer<'a, ()>;

    /// Appends `records` to the end of one partition, all or none, and answers their ascending positions once they
    /// are durable. Nobody else's record comes between them. `at` is the present, for [`Stored::at`].
    ///
    /// Errors with [`Error::TooLarge`] above [`VALUE_BYTES_MAX`] for one record, [`APPEND_BYTES_MAX`] or
    /// [`APPEND_RECORDS_MAX`].
    fn append<'a>(
        &'a self,
        topic: &'a str,
        partition: u32,
        at: Timestamp,
        records: Vec<Bytes>,
    ) -> Answer<'a, Vec<Position>>;

    /// Reads records from `from` on. At or above the end that is none, and not an error.
    fn fetch<'a>(
        &'a self,
        topic: &'a str,
        partition: u32,
        from: Position,
        limit: FetchLimit,
    ) -> Answer<'a, Fetched>;

    /// Describes one partition: where it begins and ends.
    fn partition<'a>(&'a self, topic: &'a str, partition: u32) -> Answer<'a, Partition>;

    /// Describes all partitions of a topic, in their order and as of one moment, for little more than one of them.
    fn partitions<'a>(&'a self, topic: &'a str) -> Answer<'a, Vec<Partition>>;

    /// Finds the first record that was appended at `at` or later; the end of the partition if there is none.
    fn position_at<'a>(&'a self, topic: &'a str, partition: u32, at: Timestamp) -> Answer<'a, Position>;

    /// Finds the lowest position from which on the records hold at most `bytes` payload bytes: where to trim to keep a
    /// partition within a size.
    ///
    /// That may take looking at many records. Beyond [`SIZE_STEP_RECORDS`](crate::SIZE_STEP_RECORDS) of them a lower
    /// position is answered, above the begin of the partition unless trimmed records have yet to be swept away: trim
    /// to it and ask again.
    fn position_by_size<'a>(&'a self, topic: &'a str, partition: u32, bytes: u64) -> Answer<'a, Position>;

    /// Waits until the partition's end is above `from`, and answers that end. For a long poll: fetch, and if that
    /// was empty wait here, under the caller's own deadline. Many may wait at once; dropping it costs nothing.
    ///
    /// Errors with [`Error::UnknownTopic`] when the topic is deleted meanwhile.
    fn wait<'a>(&'a self, topic: &'a str, partition: u32, from: Position) -> Answer<'a, Position>;

    /// Drops the records below `before`, at most all there are, and answers where the partition begins now. What
    /// was dropped is never fetched again, though its disk space comes back step by step. Never moves backwards.
    fn trim<'a>(&'a self, topic: &'a str, partition: u32, before: Position) -> Answer<'a, Position>;
}

/// Refuses what no backend takes as a topic to be made.
pub(crate) fn check_topic(topic: &str, partition_count: u32) -> Result<()> {
    if topic.is_empty() {
        return Err(Error::Invalid { what: "topic", reason: "its name is empty".to_owned() });
    }
    at_most("topic name bytes", topic.len(), NAME_BYTES_MAX)?;
    if partition_count == 0 {
        return Err(Error::Invalid { what: "partition count", reason: "it is 0".to_owned() });
    }
    at_most("partition count", partition_count as usize, PARTITIONS_MAX as usize)
}

/// Refuses records that no backend takes; returns their bytes.
pub(crate) fn check_records(records: &[Bytes]) -> Result<usize> {
    at_most("record count", records.len(), APPEND_RECORDS_MAX)?;
    let largest = records.iter().map(Bytes::len).max().unwrap_or(0);
    at_most("record bytes", largest, VALUE_BYTES_MAX)?;
    let bytes = records.iter().map(Bytes::len).sum();
    at_most("append bytes", bytes, APPEND_BYTES_MAX)?;
    Ok(bytes)
}
