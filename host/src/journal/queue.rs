//! The queue between those who decide and the thread that writes.
//!
//! Invariants: its lock is held for as long as it takes to push one item or to take all; it never holds more than its
//! bounds; an item that was taken in is handed out once.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fulcrum_core::claiming::Cycle;
use fulcrum_core::scoring::{Roster, ScoringSnapshot};
use fulcrum_policy::tap::{Claimed, Scored};
use parking_lot::{Condvar, Mutex};

/// Time the thread lets items gather before it takes them: each wake-up costs whoever decides a system call.
const GATHER: Duration = Duration::from_millis(50);

/// A decision that waits.
pub(super) enum Item {
    Scored(Arc<Scored>),
    Claimed(Arc<Claimed>),
}

pub(super) struct Queue {
    len_max: usize,
    bytes_max: usize,
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

#[derive(Default)]
struct Waiting {
    items: Vec<Item>,
    /// About how much memory they keep.
    bytes: usize,
    /// What the last decision was made from: its bytes are counted with the first decision that shares it.
    snapshot: Weak<ScoringSnapshot>,
    is_closed: bool,
}

impl Queue {
    pub(super) fn new(len_max: usize, bytes_max: usize) -> Self {
        Self { len_max, bytes_max, waiting: Mutex::default(), wake: Condvar::new() }
    }

    /// Says whether it takes no more at present.
    pub(super) fn is_full(&self) -> bool {
        self.has_no_room(&self.waiting.lock())
    }

    /// Takes an item in unless it is full or closed; says whether it did.
    pub(super) fn put(&self, item: Item) -> bool {
        let mut waiting = self.waiting.lock();
        if self.has_no_room(&waiting) {
            return false;
        }
        waiting.bytes += match &item {
            Item::Scored(scored) => {
                let is_known = std::ptr::eq(waiting.snapshot.as_ptr(), Arc::as_ptr(&scored.snapshot));
                if !is_known {
                    waiting.snapshot = Arc::downgrade(&scored.snapshot);
                }
                scored_bytes(scored) + if is_known { 0 } else { snapshot_bytes(&scored.snapshot) }
            }
            Item::Claimed(claimed) => cycle_bytes(&claimed.cycle),
        };
        waiting.items.push(item);
        if waiting.items.len() == 1 || self.is_half_full(&waiting) {
            self.wake.notify_one();
        }
        true
    }

    /// Waits until there is something, lets more gather, and takes all; `None` once it is closed and empty.
    pub(super) fn take(&self) -> Option<Vec<Item>> {
        let mut waiting = self.waiting.lock();
        self.wake.wait_while(&mut waiting, |waiting| waiting.items.is_empty() && !waiting.is_closed);
        if waiting.items.is_empty() {
            return None;
        }
        self.wake.wait_while_for(
            &mut waiting,
            |waiting| !waiting.is_closed && !self.is_half_full(waiting),
            GATHER,
        );
        waiting.bytes = 0;
        waiting.snapshot = Weak::new();
        Some(std::mem::take(&mut waiting.items))
    }

    /// Takes nothing in any more.
    pub(super) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.wake.notify_one();
    }

    fn has_no_room(&self, waiting: &Waiting) -> bool {
        waiting.is_closed || waiting.items.len() >= self.len_max || waiting.bytes >= self.bytes_max
    }

    fn is_half_full(&self, waiting: &Waiting) -> bool {
        waiting.items.len() >= self.len_max / 2 || waiting.bytes >= self.bytes_max / 2
    }
}

fn scored_bytes(scored: &Scored) -> usize {
    let request = &scored.request;
    let rows = scored.committed.capacity()
        + request.session_rows.len()
        + request.session_counts.len()
        + request.avoid.len();
    size_of::<Scored>() + rows * size_of::<u32>() + request.client_id.len()
}

fn snapshot_bytes(snapshot: &ScoringSnapshot) -> usize {
    // A row of columns has 37 bytes; the roster is shared by far more decisions than wait here.
    size_of::<ScoringSnapshot>() + size_of::<Roster>() + snapshot.loads.len() * 37
}

fn cycle_bytes(cycle: &Cycle) -> usize {
    let members: usize = cycle.members.iter().map(|member| 256 + member.topics.len() * 4).sum();
    // A partition has 33 bytes of columns, and a claim of about 64.
    members + cycle.topics.len() * 64 + cycle.owner.len() * 100
}
