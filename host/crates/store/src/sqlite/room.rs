//! Who may still write when the file nears its largest size.
//!
//! Events leave an eighth of the file to what goes on with those that are there: progress and other records may use
//! half of it, and what makes room (trims, deletions, sweeping) all. A store that is full of events therefore still
//! takes acknowledgements, and one that is full of records can still be emptied.

use rusqlite::Connection;

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It adds events, or topics for them.
    Events,
    /// It keeps a record.
    Records,
    /// It makes room.
    Relief,
}

/// Largest size of the file, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pages: i64,
}

impl Room {
    pub(super) fn new(pages: i64) -> Self {
        Self { pages }
    }

    /// Returns the largest size the file may grow to by a write of that purpose, in pages.
    fn pages(self, purpose: Purpose) -> i64 {
        let kept = (self.pages / 8).max(64).min(self.pages / 2);
        match purpose {
            Purpose::Events => self.pages - kept,
            Purpose::Records => self.pages - kept / 2,
            Purpose::Relief => self.pages,
        }
    }

    /// Bounds what follows on the connection; may be called inside a transaction. A file that is larger already does
    /// not grow.
    pub(super) fn bound(self, connection: &Connection, purpose: Purpose) -> rusqlite::Result<()> {
        let sql = format!("PRAGMA max_page_count = {}", self.pages(purpose));
        connection.prepare_cached(&sql)?.query_row([], |_| Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_leave_room_for_records_and_both_for_relief() {
        let check = |pages: i64, expected: [i64; 3]| {
            let room = Room::new(pages);
            let found = [Purpose::Events, Purpose::Records, Purpose::Relief].map(|what| room.pages(what));
            assert_eq!(found, expected, "{pages} pages");
        };
        check(0, [0, 0, 0]);
        check(100, [50, 75, 100]);
        check(256, [192, 224, 256]);
        check(1024, [896, 960, 1024]);
        check(1 << 30, [(1 << 30) - (1 << 27), (1 << 30) - (1 << 26), 1 << 30]);
    }
}
