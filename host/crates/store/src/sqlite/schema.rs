//! Tables, and how a record's place becomes one number.
//!
//! A record's row id is its partition's *slot* above its position, so that a partition is one range of the table's
//! own tree: no second index, and an event of 1 KiB stays inside its page (it would not in a `WITHOUT ROWID` table,
//! where anything above a quarter page moves to a page of its own).

/// Written to `user_version`; grows with every change of what follows.
pub(super) const FORMAT_VERSION: u32 = 1;
/// Written to `application_id`: "Fulc".
pub(super) const APPLICATION_ID: u32 = 0x4675_6c63;

/// Bits of a row id that hold the position: 17 million million records, 14 years of 40,000 a second.
const POSITION_BITS: u32 = 44;
/// Positions of one partition are below.
pub(super) const POSITION_END: u64 = 1 << POSITION_BITS;
/// Slots, which are partitions that exist or still hold trimmed records, are below.
pub(super) const SLOT_END: i64 = 1 << (63 - POSITION_BITS);

/// `next` is one above the last record, `first` where readers begin, `kept` the lowest one still on disk, `at` the
/// last record's time. A topic without a name was deleted and waits to be swept away.
pub(super) const TABLES: &str = "
CREATE TABLE counters (revision INTEGER NOT NULL) STRICT;
INSERT INTO counters VALUES (0);
CREATE TABLE kv (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, revision INTEGER NOT NULL, value BLOB NOT NULL
) STRICT;
CREATE TABLE topics (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, partition_count INTEGER NOT NULL
) STRICT;
CREATE TABLE partitions (
    slot INTEGER PRIMARY KEY, topic INTEGER NOT NULL, number INTEGER NOT NULL, first INTEGER NOT NULL,
    next INTEGER NOT NULL, kept INTEGER NOT NULL, at INTEGER NOT NULL, bytes INTEGER NOT NULL,
    UNIQUE (topic, number)
) STRICT;
CREATE TABLE log (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, payload BLOB NOT NULL) STRICT;
";

/// Returns the row id of a record.
pub(super) fn row_id(slot: i64, position: u64) -> i64 {
    debug_assert!((0..SLOT_END).contains(&slot) && position <= POSITION_END);
    // `position == POSITION_END` as an exclusive bound of the last slot would overflow; it is never reached there.
    (slot << POSITION_BITS).saturating_add_unsigned(position)
}

/// Returns the position of a row id of that slot.
pub(super) fn position_of(slot: i64, row_id: i64) -> u64 {
    (row_id - (slot << POSITION_BITS)).cast_unsigned()
}

/// Converts a number that SQLite is to keep; what does not fit is the largest it can.
pub(super) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
