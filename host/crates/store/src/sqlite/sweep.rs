//! Gives back the space of records that nobody can reach, a little at a time.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::fault::contradiction;
use super::schema::{row_id, stored};

/// Most records of one step.
pub(super) const STEP_RECORDS: u64 = 1000;
/// Most slots of one step.
pub(super) const STEP_SLOTS: usize = 256;
/// Payload bytes after which a step ends.
const STEP_BYTES: u64 = 4 << 20;

/// Returns the slots that hold such records, or belong to a deleted topic.
pub(super) fn find(connection: &Connection) -> rusqlite::Result<Vec<i64>> {
    let sql = "SELECT p.slot FROM partitions p JOIN topics t ON t.id = p.topic
               WHERE p.kept < p.first OR t.name IS NULL ORDER BY p.slot";
    connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
}

/// How far a step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Swept {
    /// How many slots, from the first on, have nothing left.
    pub(super) clean: usize,
    /// Whether the one after them was begun and has more.
    pub(super) has_more: bool,
}

/// Sweeps one step in a transaction of the caller's: empty slots, up to and with the first that is not.
///
/// The step that ends a deleted topic's last slot removes the topic too.
pub(super) fn step(connection: &Connection, slots: &[i64]) -> rusqlite::Result<Swept> {
    for (clean, &slot) in slots.iter().enumerate() {
        let (is_clean, records) = sweep(connection, slot)?;
        if !is_clean {
            return Ok(Swept { clean, has_more: true });
        }
        if 0 < records {
            return Ok(Swept { clean: clean + 1, has_more: false });
        }
    }
    Ok(Swept { clean: slots.len(), has_more: false })
}

/// Returns whether the slot is clean, and how many records were swept.
fn sweep(connection: &Connection, slot: i64) -> rusqlite::Result<(bool, u64)> {
    let sql = "SELECT p.topic, p.first, p.kept, t.name IS NULL FROM partitions p
               JOIN topics t ON t.id = p.topic WHERE p.slot = ?";
    let found = connection
        .prepare_cached(sql)?
        .query_row([slot], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .optional()?;
    let Some((topic, first, kept, is_deleted)) = found else { return Ok((true, 0)) };
    let (end, bytes) = extent(connection, slot, kept, first)?;
    let range = [row_id(slot, kept), row_id(slot, end)];
    connection.prepare_cached("DELETE FROM log WHERE id >= ? AND id < ?")?.execute(range)?;
    let sql = "UPDATE partitions SET kept = ?, bytes = max(0, bytes - ?) WHERE slot = ?";
    connection.prepare_cached(sql)?.execute(params![stored(end), stored(bytes), slot])?;
    if first <= end && is_deleted {
        connection.prepare_cached("DELETE FROM partitions WHERE slot = ?")?.execute([slot])?;
        let sql =
            "DELETE FROM topics WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM partitions WHERE topic = ?1)";
        connection.prepare_cached(sql)?.execute([topic])?;
    }
    Ok((first <= end, end - kept))
}

/// Returns where a step that begins at `kept` ends, and the payload bytes it frees.
fn extent(connection: &Connection, slot: i64, kept: u64, first: u64) -> rusqlite::Result<(u64, u64)> {
    let bound = first.min(kept.saturating_add(STEP_RECORDS));
    // The length of a blob is in its head: the payload itself is not read.
    let mut statement =
        connection.prepare_cached("SELECT length(payload) FROM log WHERE id >= ? AND id < ? ORDER BY id")?;
    let mut rows = statement.query([row_id(slot, kept), row_id(slot, bound)])?;
    let (mut end, mut bytes) = (kept, 0);
    while bytes < STEP_BYTES
        && let Some(row) = rows.next()?
    {
        bytes += row.get::<_, u64>(0)?;
        end += 1;
    }
    if end < bound && bytes < STEP_BYTES {
        return Err(contradiction(format!("slot {slot} lacks records below position {bound}")));
    }
    Ok((end, bytes))
}
