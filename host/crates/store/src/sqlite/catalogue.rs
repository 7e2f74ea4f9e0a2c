//! Topics and the ends of their partitions, in memory, as of the last commit.

use std::collections::{BTreeMap, HashMap};

use parking_lot::RwLock;
use rusqlite::Connection;
use tokio::sync::watch;

use crate::{Error, Position, Result, Topic};

/// Where a partition is, for as long as its topic lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The topic's id, which is never used again.
    pub(super) topic: i64,
    /// The partition's slot, which may be used again once the topic is gone.
    pub(super) slot: i64,
}

/// One partition of a topic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) slot: i64,
    pub(super) end: Position,
}

#[derive(Debug, Default)]
pub(super) struct Catalogue {
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    topics: BTreeMap<String, Record>,
    /// Dropping a sender tells those who wait that the partition is gone.
    ends: HashMap<i64, watch::Sender<Position>>,
}

#[derive(Debug)]
struct Record {
    id: i64,
    slots: Vec<i64>,
}

impl Catalogue {
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let catalogue = Self::default();
        let mut topics = connection.prepare("SELECT name, id FROM topics WHERE name IS NOT NULL")?;
        let mut partitions =
            connection.prepare("SELECT slot, next FROM partitions WHERE topic = ? ORDER BY number")?;
        let mut rows = topics.query([])?;
        while let Some(row) = rows.next()? {
            let (name, id) = (row.get::<_, String>(0)?, row.get(1)?);
            let members = partitions
                .query_map([id], |row| Ok(Member { slot: row.get(0)?, end: Position(row.get(1)?) }))?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            catalogue.extend(&name, id, &members);
        }
        Ok(catalogue)
    }

    /// Adds partitions to the end of a topic, which is new if it was not there.
    pub(super) fn extend(&self, topic: &str, id: i64, members: &[Member]) {
        let mut state = self.state.write();
        for member in members {
            state.ends.insert(member.slot, watch::Sender::new(member.end));
        }
        let record = state.topics.entry(topic.to_owned()).or_insert(Record { id, slots: Vec::new() });
        record.slots.extend(members.iter().map(|member| member.slot));
    }

    pub(super) fn remove(&self, topic: &str) {
        let mut state = self.state.write();
        for slot in state.topics.remove(topic).map(|record| record.slots).unwrap_or_default() {
            state.ends.remove(&slot);
        }
    }

    /// Wakes those who wait for records of a partition.
    pub(super) fn move_end(&self, slot: i64, end: Position) {
        if let Some(sender) = self.state.read().ends.get(&slot) {
            sender.send_if_modified(|old| std::mem::replace(old, end) != end);
        }
    }

    /// Ends every wait.
    pub(super) fn close(&self) {
        *self.state.write() = State { closed: true, ..State::default() };
    }

    pub(super) fn topic(&self, topic: &str) -> Result<Topic> {
        let state = self.state.read();
        state.record(topic).map(|record| describe(topic, record))
    }

    pub(super) fn topics(&self) -> Result<Vec<Topic>> {
        let state = self.state.read();
        if state.closed {
            return Err(Error::Closed);
        }
        Ok(state.topics.iter().map(|(name, record)| describe(name, record)).collect())
    }

    pub(super) fn place(&self, topic: &str, partition: u32) -> Result<Place> {
        self.state.read().place(topic, partition)
    }

    pub(super) fn end(&self, topic: &str, partition: u32) -> Result<watch::Receiver<Position>> {
        let state = self.state.read();
        let place = state.place(topic, partition)?;
        Ok(state.ends.get(&place.slot).expect("every slot of a topic has an end").subscribe())
    }
}

impl State {
    fn record(&self, topic: &str) -> Result<&Record> {
        if self.closed {
            return Err(Error::Closed);
        }
        self.topics.get(topic).ok_or_else(|| super::unknown(topic))
    }

    fn place(&self, topic: &str, partition: u32) -> Result<Place> {
        let record = self.record(topic)?;
        match record.slots.get(partition as usize) {
            Some(&slot) => Ok(Place { topic: record.id, slot }),
            None => Err(Error::UnknownPartition {
                topic: topic.to_owned(),
                partition,
                partition_count: count(record),
            }),
        }
    }
}

fn describe(name: &str, record: &Record) -> Topic {
    Topic { name: name.to_owned(), partition_count: count(record), incarnation: record.id.cast_unsigned() }
}

fn count(record: &Record) -> u32 {
    u32::try_from(record.slots.len()).expect("a topic has at most PARTITIONS_MAX partitions")
}
