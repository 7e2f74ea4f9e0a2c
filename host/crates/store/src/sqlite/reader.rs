//! Threads that read, and what they read. Each read is one transaction, so it sees one moment.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use fulcrum_core::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::catalogue::Place;
use super::fault::contradiction;
use super::queue::{CloseAtExit, Queue};
use super::schema::{position_of, row_id, stored};
use crate::{
    Entry, FetchLimit, Fetched, Partition, Position, Revision, SIZE_STEP_RECORDS, Stored, Versioned,
};

/// One read; it answers its caller by itself.
pub(super) type Job = Box<dyn FnOnce(&Connection) + Send>;

pub(super) fn start(
    connections: Vec<Connection>,
    queue: &Arc<Queue<Job>>,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut handles = Vec::new();
    for connection in connections {
        let shared = Arc::clone(queue);
        let run = move || {
            let guard = CloseAtExit(shared);
            while let Some(queued) = guard.0.pop() {
                (queued.item)(&connection);
            }
        };
        match thread::Builder::new().name("store-reader".to_owned()).spawn(run) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                queue.close();
                return Err(error);
            }
        }
    }
    Ok(handles)
}

pub(super) fn get(connection: &Connection, key: &str) -> rusqlite::Result<Option<Versioned>> {
    let mut statement = connection.prepare_cached("SELECT revision, value FROM kv WHERE key = ?")?;
    statement.query_row([key.as_bytes()], |row| versioned(row, 0)).optional()
}

pub(super) fn list(connection: &Connection, prefix: &str) -> rusqlite::Result<Vec<Entry>> {
    let entry = |row: &Row<'_>| {
        let key = String::from_utf8(row.get(0)?)
            .map_err(|_| contradiction("a key is not UTF-8, as every key is".to_owned()))?;
        Ok(Entry { key, versioned: versioned(row, 1)? })
    };
    // No UTF-8 text contains 0xff: the prefix with it added is above every key with the prefix.
    let end = [prefix.as_bytes(), &[0xff]].concat();
    let mut statement = connection
        .prepare_cached("SELECT key, revision, value FROM kv WHERE key >= ? AND key < ? ORDER BY key")?;
    statement.query_map(params![prefix.as_bytes(), end], entry)?.collect()
}

/// Returns `None` if the topic is gone.
pub(super) fn partition(connection: &Connection, place: Place) -> rusqlite::Result<Option<Partition>> {
    // The topic too, as the slot may be another's by now.
    let sql = "SELECT p.first, p.next, p.bytes FROM partitions p JOIN topics t ON t.id = p.topic
               WHERE p.slot = ? AND p.topic = ? AND t.name IS NOT NULL";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([place.slot, place.topic], described).optional()
}

/// Returns nothing if the topic is gone: one that is there has partitions.
pub(super) fn partitions(connection: &Connection, topic: i64) -> rusqlite::Result<Vec<Partition>> {
    let sql = "SELECT p.first, p.next, p.bytes FROM partitions p JOIN topics t ON t.id = p.topic
               WHERE p.topic = ? AND t.name IS NOT NULL ORDER BY p.number";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_map([topic], described)?.collect()
}

fn described(row: &Row<'_>) -> rusqlite::Result<Partition> {
    Ok(Partition { first: Position(row.get(0)?), end: Position(row.get(1)?), bytes: row.get(2)? })
}

/// Returns `None` if the topic is gone.
pub(super) fn fetch(
    connection: &Connection,
    place: Place,
    from: Position,
    limit: FetchLimit,
) -> rusqlite::Result<Option<Fetched>> {
    let moment = connection.unchecked_transaction()?;
    let Some(Partition { first, end, .. }) = partition(&moment, place)? else { return Ok(None) };
    let mut next = from.max(first);
    let mut records = Vec::new();
    if end <= next {
        return Ok(Some(Fetched { records, next, first, end }));
    }
    let count = u64::from(limit.records.max(1)).min(end.0 - next.0);
    let mut bytes = 0;
    let mut statement =
        moment.prepare_cached("SELECT id, at, payload FROM log WHERE id >= ? AND id < ? ORDER BY id")?;
    let range = [row_id(place.slot, next.0), row_id(place.slot, next.0 + count)];
    let mut rows = statement.query(range)?;
    while let Some(row) = rows.next()? {
        let position = Position(position_of(place.slot, row.get(0)?));
        if position != next {
            return Err(missing(next));
        }
        // Looked at in place: a record that does not fit is not copied.
        let payload = row.get_ref(2)?.as_blob()?;
        bytes += payload.len();
        if limit.bytes < bytes && !records.is_empty() {
            return Ok(Some(Fetched { records, next, first, end }));
        }
        let at = Timestamp(row.get(1)?);
        records.push(Stored { position, at, payload: Bytes::copy_from_slice(payload) });
        next = Position(position.0 + 1);
    }
    if (records.len() as u64) < count {
        return Err(missing(next));
    }
    Ok(Some(Fetched { records, next, first, end }))
}

/// Searches by halves, as times never fall along a partition. Returns `None` if the topic is gone.
pub(super) fn position_at(
    connection: &Connection,
    place: Place,
    at: Timestamp,
) -> rusqlite::Result<Option<Position>> {
    let moment = connection.unchecked_transaction()?;
    let Some(Partition { first, end, .. }) = partition(&moment, place)? else { return Ok(None) };
    let mut statement = moment.prepare_cached("SELECT at FROM log WHERE id = ?")?;
    let (mut low, mut high) = (first.0, end.0);
    while low < high {
        let middle = low + (high - low) / 2;
        let found =
            statement.query_row([row_id(place.slot, middle)], |row| row.get::<_, i64>(0)).optional()?;
        if found.ok_or_else(|| missing(Position(middle)))? < stored(at.0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(Some(Position(low)))
}

/// Walks from the lowest record on disk, as what a partition holds counts those that wait to be swept away too; costs
/// as much as there is to trim. Returns `None` if the topic is gone.
pub(super) fn position_by_size(
    connection: &Connection,
    place: Place,
    bytes_max: u64,
) -> rusqlite::Result<Option<Position>> {
    let moment = connection.unchecked_transaction()?;
    let sql = "SELECT p.first, p.next, p.kept, p.bytes FROM partitions p JOIN topics t ON t.id = p.topic
               WHERE p.slot = ? AND p.topic = ? AND t.name IS NOT NULL";
    let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    let found = moment.prepare_cached(sql)?.query_row([place.slot, place.topic], row).optional()?;
    let Some((first, next, kept, bytes)): Option<(u64, u64, u64, u64)> = found else { return Ok(None) };
    let excess = bytes.saturating_sub(bytes_max);
    let bound = next.min(kept.saturating_add(SIZE_STEP_RECORDS.into()));
    // The length of a blob is in its head: the payload itself is not read.
    let mut statement =
        moment.prepare_cached("SELECT length(payload) FROM log WHERE id >= ? AND id < ? ORDER BY id")?;
    let mut rows = statement.query([row_id(place.slot, kept), row_id(place.slot, bound)])?;
    let (mut position, mut freed) = (kept, 0);
    while freed < excess && position < bound {
        let row = rows.next()?.ok_or_else(|| missing(Position(position)))?;
        freed += row.get::<_, u64>(0)?;
        position += 1;
    }
    Ok(Some(Position(position.max(first))))
}

fn versioned(row: &Row<'_>, column: usize) -> rusqlite::Result<Versioned> {
    let value = row.get_ref(column + 1)?.as_blob()?;
    Ok(Versioned { revision: Revision(row.get(column)?), value: Bytes::copy_from_slice(value) })
}

fn missing(position: Position) -> rusqlite::Error {
    contradiction(format!("the record at position {position} is missing"))
}
