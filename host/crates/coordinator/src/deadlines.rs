//! An ordered queue of deadlines: finds what is over without looking at what is not.

use std::collections::BTreeSet;

use fulcrum_core::Timestamp;

/// Deadlines of keys. Its user remembers the deadline it queued for a key, to remove or move it.
#[derive(Debug)]
pub(crate) struct Deadlines<K> {
    ordered: BTreeSet<(Timestamp, K)>,
}

impl<K: Ord> Default for Deadlines<K> {
    fn default() -> Self {
        Self { ordered: BTreeSet::new() }
    }
}

impl<K: Ord> Deadlines<K> {
    /// Queues `key`, which is over once the time is later than `at`.
    pub(crate) fn insert(&mut self, at: Timestamp, key: K) {
        self.ordered.insert((at, key));
    }

    /// Forgets `key`, which was queued with `at`.
    pub(crate) fn remove(&mut self, at: Timestamp, key: K) {
        self.ordered.remove(&(at, key));
    }

    /// Takes one key whose deadline is over, the earliest first. A deadline of exactly `now` is not over.
    pub(crate) fn pop_over(&mut self, now: Timestamp) -> Option<K> {
        let (at, _) = self.ordered.first()?;
        if *at < now { self.pop_first() } else { None }
    }

    /// Takes the key with the earliest deadline, over or not.
    pub(crate) fn pop_first(&mut self) -> Option<K> {
        self.ordered.pop_first().map(|(_, key)| key)
    }

    /// Returns the earliest deadline; its key is over once the time is later than that.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.ordered.first().map(|(at, _)| *at)
    }

    /// Returns how many deadlines are queued.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ordered.len()
    }
}
