//! The unsettled events, and the orders they are looked up in.
//!
//! Invariant: every set holds exactly the positions its doc comment says; they change only in `link`, `unlink` and
//! `offer`, together with the entry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Counts, Dying, Lease, Reason};
use crate::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Deliverable, or behind another event of its key.
    Ready,
    /// Deliverable from a moment on.
    Waiting { at: Timestamp, is_long: bool },
    /// In flight.
    Leased(Lease),
    /// Its dead letter has to be stored.
    Dying(Reason),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Only with fifo.
    pub(super) key: Option<Arc<str>>,
    /// Deliveries, the one in flight included.
    pub(super) attempts: u32,
    pub(super) state: State,
    /// For a parked one: the attempts its record tells.
    pub(super) record: Option<u32>,
}

impl Entry {
    pub(super) fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    pub(super) fn dying(&self) -> Option<Reason> {
        match self.state {
            State::Dying(reason) => Some(reason),
            _ => None,
        }
    }

    pub(super) fn is_long_wait(&self) -> bool {
        matches!(self.state, State::Waiting { is_long: true, .. })
    }

    /// How many deliveries failed.
    pub(super) fn failed(&self) -> u32 {
        self.attempts - u32::from(self.lease().is_some())
    }
}

/// The events of one key.
#[derive(Clone, Debug, Default)]
struct Lane {
    positions: BTreeSet<u64>,
    /// Settled, but not stored yet: until then they may come back.
    settling: BTreeSet<u64>,
    leased: Option<u64>,
    /// The one of them in `ready`.
    offered: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    all: BTreeMap<u64, Entry>,
    /// Not parked: only the log has their payload.
    held: BTreeSet<u64>,
    /// Deliverable.
    ready: BTreeSet<u64>,
    /// Waiting, by the end of their wait.
    waits: BTreeSet<(Timestamp, u64)>,
    /// Those in a long wait that are not parked.
    long_waits: BTreeSet<u64>,
    /// Leased, by the end of their lease.
    leases: BTreeSet<(Timestamp, u64)>,
    /// Leased, by connection if they have one.
    connections: BTreeSet<(u64, u64)>,
    /// Leased, by client; no empty sets.
    clients: BTreeMap<Arc<str>, BTreeSet<u64>>,
    dying: BTreeSet<u64>,
    /// Those with a key, by key; no empty lanes.
    lanes: BTreeMap<Arc<str>, Lane>,
    /// All that lanes have as settling, with their keys.
    settling: BTreeMap<u64, Arc<str>>,
}

impl Entries {
    pub(super) fn get(&self, position: u64) -> Option<&Entry> {
        self.all.get(&position)
    }

    /// All entries, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.all.iter().map(|(position, entry)| (*position, entry))
    }

    /// Those only the log holds, ascending.
    pub(super) fn held(&self) -> impl Iterator<Item = u64> {
        self.held.iter().copied()
    }

    /// The deliverable ones, ascending.
    pub(super) fn ready(&self) -> impl Iterator<Item = u64> {
        self.ready.iter().copied()
    }

    pub(super) fn is_ready(&self, position: u64) -> bool {
        self.ready.contains(&position)
    }

    pub(super) fn first_lease(&self) -> Option<(Timestamp, u64)> {
        self.leases.first().copied()
    }

    pub(super) fn first_wait(&self) -> Option<(Timestamp, u64)> {
        self.waits.first().copied()
    }

    /// Those in a long wait that are not parked, ascending.
    pub(super) fn long_waits(&self) -> impl Iterator<Item = u64> {
        self.long_waits.iter().copied()
    }

    pub(super) fn leased_count(&self) -> usize {
        self.leases.len()
    }

    pub(super) fn parked_count(&self) -> usize {
        self.all.len() - self.held.len()
    }

    /// What is leased over a connection, ascending; nothing for 0.
    pub(super) fn leased_via(&self, connection: u64) -> Vec<u64> {
        let of_it = self.connections.range((connection, 0)..=(connection, u64::MAX));
        of_it.map(|(_, position)| *position).collect()
    }

    /// What is leased to a client, ascending.
    pub(super) fn leased_to(&self, client: &str) -> impl ExactSizeIterator<Item = u64> {
        static NONE: BTreeSet<u64> = BTreeSet::new();
        self.clients.get(client).unwrap_or(&NONE).iter().copied()
    }

    pub(super) fn dying(&self) -> impl Iterator<Item = Dying> {
        self.dying.iter().filter_map(|&position| {
            let entry = self.all.get(&position)?;
            Some(Dying { position, attempts: entry.attempts, reason: entry.dying()? })
        })
    }

    pub(super) fn counts(&self) -> Counts {
        let (ready, waiting) = (self.ready.len(), self.waits.len());
        let (in_flight, dying) = (self.leases.len(), self.dying.len());
        Counts {
            ready,
            blocked: self.all.len() - ready - waiting - in_flight - dying,
            waiting,
            in_flight,
            dying,
            parked: self.parked_count(),
        }
    }

    /// Adds an event that has no entry.
    pub(super) fn insert(&mut self, position: u64, entry: Entry) {
        if entry.record.is_none() {
            self.held.insert(position);
        }
        let key = entry.key.clone();
        if let Some(key) = &key {
            self.lanes.entry(Arc::clone(key)).or_default().positions.insert(position);
        }
        self.link(position, &entry);
        self.all.insert(position, entry);
        self.offer(position, key.as_ref());
    }

    pub(super) fn remove(&mut self, position: u64) -> Option<Entry> {
        let entry = self.all.remove(&position)?;
        self.unlink(position, &entry);
        self.held.remove(&position);
        if let Some(key) = &entry.key
            && let Some(lane) = self.lanes.get_mut(key)
        {
            lane.positions.remove(&position);
            lane.settling.insert(position);
            self.settling.insert(position, Arc::clone(key));
        }
        self.offer(position, entry.key.as_ref());
        Some(entry)
    }

    /// Lets go on what waits for the removal of an event to be stored.
    pub(super) fn release(&mut self, position: u64) {
        let Some(key) = self.settling.remove(&position) else { return };
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.settling.remove(&position);
        }
        self.offer(position, Some(&key));
    }

    pub(super) fn set(&mut self, position: u64, state: State) {
        let Some(mut entry) = self.all.remove(&position) else { return };
        self.unlink(position, &entry);
        entry.state = state;
        self.link(position, &entry);
        let key = entry.key.clone();
        self.all.insert(position, entry);
        self.offer(position, key.as_ref());
    }

    /// Sets how often an event was delivered.
    pub(super) fn count(&mut self, position: u64, attempts: u32) {
        if let Some(entry) = self.all.get_mut(&position) {
            entry.attempts = attempts;
        }
    }

    /// Marks an event as parked; `false` if there is none.
    pub(super) fn park(&mut self, position: u64, attempts: u32) -> bool {
        let Some(entry) = self.all.get_mut(&position) else { return false };
        entry.record = Some(attempts);
        self.held.remove(&position);
        self.long_waits.remove(&position);
        true
    }

    /// Makes those ready whose wait is over.
    pub(super) fn wake(&mut self, now: Timestamp) {
        while let Some((_, position)) = self.first_wait().filter(|(at, _)| *at <= now) {
            self.set(position, State::Ready);
        }
    }

    fn link(&mut self, position: u64, entry: &Entry) {
        match &entry.state {
            State::Ready => {}
            State::Waiting { at, is_long } => {
                self.waits.insert((*at, position));
                if *is_long && entry.record.is_none() {
                    self.long_waits.insert(position);
                }
            }
            State::Leased(lease) => {
                self.leases.insert((lease.until, position));
                if lease.via != 0 {
                    self.connections.insert((lease.via, position));
                }
                self.clients.entry(Arc::clone(&lease.client)).or_default().insert(position);
                if let Some(lane) = entry.key.as_ref().and_then(|key| self.lanes.get_mut(key)) {
                    lane.leased = Some(position);
                }
            }
            State::Dying(_) => {
                self.dying.insert(position);
            }
        }
    }

    fn unlink(&mut self, position: u64, entry: &Entry) {
        match &entry.state {
            State::Ready => {}
            State::Waiting { at, .. } => {
                self.waits.remove(&(*at, position));
                self.long_waits.remove(&position);
            }
            State::Leased(lease) => {
                self.leases.remove(&(lease.until, position));
                self.connections.remove(&(lease.via, position));
                if let Some(leased) = self.clients.get_mut(&lease.client) {
                    leased.remove(&position);
                    if leased.is_empty() {
                        self.clients.remove(&lease.client);
                    }
                }
                if let Some(lane) = entry.key.as_ref().and_then(|key| self.lanes.get_mut(key)) {
                    lane.leased = None;
                }
            }
            State::Dying(_) => {
                self.dying.remove(&position);
            }
        }
    }

    /// Decides anew what is deliverable: of a key its first event, while none of it is leased or being settled.
    fn offer(&mut self, position: u64, key: Option<&Arc<str>>) {
        let is_ready =
            |position: &u64| self.all.get(position).is_some_and(|entry| entry.state == State::Ready);
        let Some(key) = key else {
            if is_ready(&position) {
                self.ready.insert(position);
            } else {
                self.ready.remove(&position);
            }
            return;
        };
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let first = lane.positions.first().copied();
        let offered =
            first.filter(|first| lane.leased.is_none() && lane.settling.is_empty() && is_ready(first));
        if let Some(before) = std::mem::replace(&mut lane.offered, offered) {
            self.ready.remove(&before);
        }
        self.ready.extend(offered);
        if lane.positions.is_empty() && lane.settling.is_empty() {
            self.lanes.remove(key);
        }
    }

    /// Compares the sets with what they should hold, one line for each that differs.
    pub(super) fn violations(&self) -> Vec<String> {
        let mut built = Self::default();
        for (position, key) in &self.settling {
            built.lanes.entry(Arc::clone(key)).or_default().settling.insert(*position);
        }
        for (position, entry) in &self.all {
            built.insert(*position, entry.clone());
        }
        let mut found = Vec::new();
        let mut check = |what: &str, is_right: bool| {
            if !is_right {
                found.push(format!("`{what}` does not match the entries"));
            }
        };
        check("held", built.held == self.held);
        check("ready", built.ready == self.ready);
        check("waits", built.waits == self.waits);
        check("long_waits", built.long_waits == self.long_waits);
        check("leases", built.leases == self.leases);
        check("connections", built.connections == self.connections);
        check("clients", built.clients == self.clients);
        check("dying", built.dying == self.dying);
        check("lanes", built.lanes.keys().eq(self.lanes.keys()));
        let settling = |entries: &Self| entries.lanes.values().map(|lane| lane.settling.len()).sum::<usize>();
        check("settling", settling(self) == self.settling.len());
        let mut leased = BTreeSet::new();
        for (position, entry) in &self.all {
            if let (Some(key), Some(_)) = (&entry.key, entry.lease())
                && !leased.insert(key)
            {
                found.push(format!("{position} is leased beside another event of its key"));
            }
        }
        found
    }
}
