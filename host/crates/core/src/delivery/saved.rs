//! What outlives a restart: the settled positions as ranges, and how often the others failed.

use std::collections::{BTreeMap, VecDeque};

use super::entries::Entries;

/// A checkpoint of a window; small as long as what is settled lies together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Everything below is settled, or parked.
    pub floor: u64,
    /// Everything from here on was never fetched.
    pub next: u64,
    /// Positions from `floor` up to `next` that are settled, parked, or do not exist: ascending, disjoint, half open.
    pub settled: Vec<(u64, u64)>,
    /// Unsettled positions with the number of their deliveries that failed, where it is not 0, ascending. Of parked
    /// ones only those that failed since their record was written, and these may lie below the floor.
    pub attempts: Vec<(u64, u32)>,
}

/// What a checkpoint says of positions that were not fetched again yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Restored {
    /// Where it ends.
    next: u64,
    /// Settled ranges, ascending and half open, all above what was fetched.
    settled: VecDeque<(u64, u64)>,
    attempts: BTreeMap<u64, u32>,
}

impl Restored {
    pub(super) fn new(saved: &Saved) -> Self {
        Self {
            next: saved.next,
            settled: saved.settled.iter().copied().collect(),
            attempts: saved.attempts.iter().copied().collect(),
        }
    }

    pub(super) fn is_settled(&self, position: u64) -> bool {
        let after = self.settled.partition_point(|(start, _)| *start <= position);
        after.checked_sub(1).is_some_and(|at| position < self.settled[at].1)
    }

    /// Hands over how often an event failed before.
    pub(super) fn take_attempts(&mut self, position: u64) -> u32 {
        self.attempts.remove(&position).unwrap_or(0)
    }

    /// Forgets what lies below `next`; returns the first position from there on that is not settled.
    pub(super) fn pass(&mut self, mut next: u64) -> u64 {
        while let Some(&(start, end)) = self.settled.front()
            && start <= next
        {
            next = next.max(end);
            self.settled.pop_front();
        }
        while self.attempts.first_key_value().is_some_and(|(position, _)| *position < next) {
            self.attempts.pop_first();
        }
        next
    }
}

pub(super) fn save(floor: u64, next: u64, entries: &Entries, restored: &Restored) -> Saved {
    let mut settled = Vec::new();
    let mut from = floor;
    for position in entries.held().chain([next]) {
        if from < position {
            settled.push((from, position));
        }
        from = position.saturating_add(1);
    }
    settled.extend(&restored.settled);
    let mut attempts: Vec<_> = entries
        .iter()
        .map(|(position, entry)| (position, entry.failed(), entry.record.unwrap_or(0)))
        .filter(|(_, failed, recorded)| failed != recorded)
        .map(|(position, failed, _)| (position, failed))
        .collect();
    // Parked ones may lie above what was fetched again.
    attempts.extend(restored.attempts.iter().map(|(position, failed)| (*position, *failed)));
    attempts.sort_unstable();
    Saved { floor, next: restored.next.max(next), settled, attempts }
}
