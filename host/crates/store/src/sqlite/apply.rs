//! What each write does, inside a transaction that somebody else begins and commits.
//!
//! A refusal is found before anything is written, so it leaves the transaction as it was for the others in it.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use fulcrum_core::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::catalogue::Member;
use super::fault::contradiction;
use super::room::{Purpose, Room};
use super::schema::{POSITION_END, SLOT_END, row_id, stored};
use crate::{Change, Error, Expected, Position, Revision, Topic, Update, Versioned};

/// One write.
#[derive(Debug)]
pub(super) enum Op {
    Swap { key: String, expected: Expected, update: Update },
    CreateTopic { topic: String, partition_count: u32 },
    GrowTopic { topic: String, partition_count: u32 },
    DeleteTopic { topic: String },
    Append { topic: String, partition: u32, at: Timestamp, records: Vec<Bytes> },
    Trim { topic: String, partition: u32, before: Position },
}

impl Op {
    /// Returns what it is for.
    fn purpose(&self) -> Purpose {
        match self {
            Self::Append { .. } | Self::CreateTopic { .. } | Self::GrowTopic { .. } => Purpose::Events,
            Self::Swap { update: Update::Put(_), .. } => Purpose::Records,
            Self::Swap { update: Update::Delete, .. } | Self::DeleteTopic { .. } | Self::Trim { .. } => {
                Purpose::Relief
            }
        }
    }

    /// Returns how many records it appends.
    pub(super) fn record_count(&self) -> u64 {
        if let Self::Append { records, .. } = self { records.len() as u64 } else { 0 }
    }
}

/// What a write is answered with.
#[derive(Debug)]
pub(super) enum Outcome {
    Revision(Revision),
    Topic(Topic),
    Deleted,
    Positions(Range<u64>),
    First(Position),
}

/// What others learn once the transaction is committed, in order.
#[derive(Debug)]
pub(super) enum Effect {
    Changed(Change),
    Extended { topic: String, id: i64, members: Vec<Member> },
    Removed { topic: String, slots: Vec<i64> },
    Moved { slot: i64, end: Position, has_garbage: bool },
}

/// Why a write was not applied.
#[derive(Debug)]
pub(super) enum Stop {
    /// Its own fault; the transaction goes on.
    Refused(Error),
    /// The transaction is lost.
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

/// A transaction's own view: what it read once it does not read again, and each row it changed is written once.
pub(super) struct Batch<'c> {
    connection: &'c Connection,
    room: Option<Room>,
    /// What the file's size is bounded for now.
    purpose: Option<Purpose>,
    revision: u64,
    changed: bool,
    partitions: BTreeMap<(i64, u32), PartitionRow>,
    effects: Vec<Effect>,
}

struct PartitionRow {
    slot: i64,
    first: u64,
    next: u64,
    at: i64,
    bytes: u64,
    dirty: bool,
}

struct TopicRow {
    id: i64,
    partition_count: u32,
}

impl<'c> Batch<'c> {
    pub(super) fn new(connection: &'c Connection, room: Option<Room>) -> rusqlite::Result<Self> {
        let revision = connection
            .prepare_cached("SELECT revision FROM counters")?
            .query_row([], |row| row.get(0))
            .map_err(|error| match error {
                rusqlite::Error::QueryReturnedNoRows => contradiction("the revision is missing".to_owned()),
                other => other,
            })?;
        let (partitions, effects) = (BTreeMap::new(), Vec::new());
        Ok(Self { connection, room, purpose: None, revision, changed: false, partitions, effects })
    }

    pub(super) fn apply(&mut self, op: &Op) -> Result<Outcome, Stop> {
        self.bound(op.purpose())?;
        match op {
            Op::Swap { key, expected, update } => self.swap(key, *expected, update),
            Op::CreateTopic { topic, partition_count } => self.create(topic, *partition_count),
            Op::GrowTopic { topic, partition_count } => self.grow(topic, *partition_count),
            Op::DeleteTopic { topic } => self.delete(topic),
            Op::Append { topic, partition, at, records } => self.append(topic, *partition, *at, records),
            Op::Trim { topic, partition, before } => self.trim(topic, *partition, *before),
        }
    }

    /// Writes what was held back. To be called last, before the commit; returns what to tell after it.
    pub(super) fn finish(mut self) -> rusqlite::Result<Vec<Effect>> {
        // The rows of partitions are of one size: this hardly takes any.
        self.bound(Purpose::Relief)?;
        if self.changed {
            let mut statement = self.connection.prepare_cached("UPDATE counters SET revision = ?")?;
            statement.execute([stored(self.revision)])?;
        }
        self.flush()?;
        Ok(self.effects)
    }

    /// Bounds the file's size for what comes next.
    fn bound(&mut self, purpose: Purpose) -> rusqlite::Result<()> {
        if let Some(room) = self.room
            && self.purpose.replace(purpose) != Some(purpose)
        {
            room.bound(self.connection, purpose)?;
        }
        Ok(())
    }

    fn swap(&mut self, key: &str, expected: Expected, update: &Update) -> Result<Outcome, Stop> {
        let mut statement = self.connection.prepare_cached("SELECT id, revision FROM kv WHERE key = ?")?;
        let found = statement
            .query_row([key.as_bytes()], |row| Ok((row.get::<_, i64>(0)?, Revision(row.get(1)?))))
            .optional()?;
        let current = found.map(|(_, revision)| revision);
        if Expected::from(current) != expected {
            return Err(Stop::Refused(Error::Conflict { key: key.to_owned(), current }));
        }
        let revision = Revision(self.revision + 1);
        let id = found.map(|(id, _)| id);
        let change = match update {
            Update::Put(value) => {
                let sql = "INSERT INTO kv (id, key, revision, value) VALUES (?1, ?2, ?3, ?4)
                           ON CONFLICT (id) DO UPDATE SET revision = ?3, value = ?4";
                let row = params![id, key.as_bytes(), stored(revision.0), &value[..]];
                self.connection.prepare_cached(sql)?.execute(row)?;
                Change::Put { key: key.to_owned(), versioned: Versioned { revision, value: value.clone() } }
            }
            Update::Delete => {
                self.connection.prepare_cached("DELETE FROM kv WHERE id = ?")?.execute([id])?;
                Change::Deleted { key: key.to_owned(), revision }
            }
        };
        self.revision = revision.0;
        self.changed = true;
        self.effects.push(Effect::Changed(change));
        Ok(Outcome::Revision(revision))
    }

    fn create(&mut self, topic: &str, partition_count: u32) -> Result<Outcome, Stop> {
        if let Some(TopicRow { partition_count, .. }) = self.find(topic)? {
            return Err(Stop::Refused(Error::TopicExists { topic: topic.to_owned(), partition_count }));
        }
        let slots = self.free_slots(partition_count)?;
        let sql = "INSERT INTO topics (name, partition_count) VALUES (?, ?)";
        let id = self.connection.prepare_cached(sql)?.insert(params![topic, partition_count])?;
        self.extend(topic, id, 0, &slots)
    }

    fn grow(&mut self, topic: &str, asked: u32) -> Result<Outcome, Stop> {
        let TopicRow { id, partition_count } = self.known(topic)?;
        if asked < partition_count {
            let topic = topic.to_owned();
            return Err(Stop::Refused(Error::Shrink { topic, partition_count, asked }));
        }
        let slots = self.free_slots(asked - partition_count)?;
        let sql = "UPDATE topics SET partition_count = ? WHERE id = ?";
        self.connection.prepare_cached(sql)?.execute(params![asked, id])?;
        self.extend(topic, id, partition_count, &slots)
    }

    fn extend(&mut self, topic: &str, id: i64, from: u32, slots: &[i64]) -> Result<Outcome, Stop> {
        let sql = "INSERT INTO partitions (slot, topic, number, first, next, kept, at, bytes)
                   VALUES (?, ?, ?, 0, 0, 0, 0, 0)";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut partition_count = from;
        for slot in slots {
            statement.execute(params![slot, id, partition_count])?;
            partition_count += 1;
        }
        let members = slots.iter().map(|&slot| Member { slot, end: Position(0) }).collect();
        self.effects.push(Effect::Extended { topic: topic.to_owned(), id, members });
        let incarnation = id.cast_unsigned();
        Ok(Outcome::Topic(Topic { name: topic.to_owned(), partition_count, incarnation }))
    }

    fn delete(&mut self, topic: &str) -> Result<Outcome, Stop> {
        let TopicRow { id, .. } = self.known(topic)?;
        self.flush()?;
        self.partitions.clear();
        let sql = "UPDATE partitions SET first = next WHERE topic = ? RETURNING slot";
        let mut statement = self.connection.prepare_cached(sql)?;
        let slots = statement.query_map([id], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        self.connection.prepare_cached("UPDATE topics SET name = NULL WHERE id = ?")?.execute([id])?;
        self.effects.push(Effect::Removed { topic: topic.to_owned(), slots });
        Ok(Outcome::Deleted)
    }

    fn append(
        &mut self,
        topic: &str,
        partition: u32,
        at: Timestamp,
        records: &[Bytes],
    ) -> Result<Outcome, Stop> {
        let connection = self.connection;
        let row = self.partition(topic, partition)?;
        let start = row.next;
        if POSITION_END - start <= records.len() as u64 {
            let reason = format!("partition {partition} of topic {topic:?} has no position left");
            return Err(Stop::Refused(Error::Invalid { what: "partition", reason }));
        }
        let mut statement =
            connection.prepare_cached("INSERT INTO log (id, at, payload) VALUES (?, ?, ?)")?;
        if !records.is_empty() {
            row.at = row.at.max(stored(at.0));
            row.dirty = true;
        }
        for record in records {
            statement.execute(params![row_id(row.slot, row.next), row.at, &record[..]])?;
            row.next += 1;
            row.bytes += record.len() as u64;
        }
        Ok(Outcome::Positions(start..row.next))
    }

    fn trim(&mut self, topic: &str, partition: u32, before: Position) -> Result<Outcome, Stop> {
        let row = self.partition(topic, partition)?;
        let first = before.0.min(row.next);
        if row.first < first {
            row.first = first;
            row.dirty = true;
        }
        Ok(Outcome::First(Position(row.first)))
    }

    fn find(&self, topic: &str) -> rusqlite::Result<Option<TopicRow>> {
        let sql = "SELECT id, partition_count FROM topics WHERE name = ?";
        let row = |row: &Row<'_>| Ok(TopicRow { id: row.get(0)?, partition_count: row.get(1)? });
        self.connection.prepare_cached(sql)?.query_row([topic], row).optional()
    }

    fn known(&self, topic: &str) -> Result<TopicRow, Stop> {
        self.find(topic)?.ok_or_else(|| Stop::Refused(super::unknown(topic)))
    }

    fn partition(&mut self, topic: &str, partition: u32) -> Result<&mut PartitionRow, Stop> {
        let TopicRow { id, partition_count } = self.known(topic)?;
        if partition_count <= partition {
            let topic = topic.to_owned();
            return Err(Stop::Refused(Error::UnknownPartition { topic, partition, partition_count }));
        }
        if !self.partitions.contains_key(&(id, partition)) {
            let sql = "SELECT slot, first, next, at, bytes FROM partitions WHERE topic = ? AND number = ?";
            let read = |row: &Row<'_>| {
                Ok(PartitionRow {
                    slot: row.get(0)?,
                    first: row.get(1)?,
                    next: row.get(2)?,
                    at: row.get(3)?,
                    bytes: row.get(4)?,
                    dirty: false,
                })
            };
            let found =
                self.connection.prepare_cached(sql)?.query_row(params![id, partition], read).optional()?;
            let missing = || contradiction(format!("partition {partition} of topic {topic:?} is missing"));
            self.partitions.insert((id, partition), found.ok_or_else(missing)?);
        }
        Ok(self.partitions.get_mut(&(id, partition)).expect("it was put there if it was missing"))
    }

    fn flush(&mut self) -> rusqlite::Result<()> {
        let sql =
            "UPDATE partitions SET first = ?, next = ?, at = ?, bytes = ? WHERE slot = ? RETURNING kept";
        let mut statement = self.connection.prepare_cached(sql)?;
        for row in self.partitions.values_mut().filter(|row| row.dirty) {
            let values = params![stored(row.first), stored(row.next), row.at, stored(row.bytes), row.slot];
            let kept: u64 = statement.query_row(values, |row| row.get(0))?;
            row.dirty = false;
            let (end, has_garbage) = (Position(row.next), kept < row.first);
            self.effects.push(Effect::Moved { slot: row.slot, end, has_garbage });
        }
        Ok(())
    }

    /// Returns slots that nobody has, or refuses if there are too few.
    fn free_slots(&self, count: u32) -> Result<Vec<i64>, Stop> {
        let max = "SELECT coalesce(max(slot), -1) FROM partitions";
        let used: i64 = self.connection.prepare_cached(max)?.query_row([], |row| row.get(0))?;
        let above = used + 1..SLOT_END;
        if i64::from(count) <= above.end - above.start {
            return Ok(above.take(count as usize).collect());
        }
        let mut statement = self.connection.prepare_cached("SELECT slot FROM partitions ORDER BY slot")?;
        let taken = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        let free = (0..SLOT_END).filter(|slot| taken.binary_search(slot).is_err());
        let slots: Vec<_> = free.take(count as usize).collect();
        if slots.len() < count as usize {
            let limit = usize::try_from(SLOT_END).unwrap_or(usize::MAX);
            let found = taken.len() + count as usize;
            return Err(Stop::Refused(Error::TooLarge {
                what: "partition count of all topics",
                found,
                limit,
            }));
        }
        Ok(slots)
    }
}
