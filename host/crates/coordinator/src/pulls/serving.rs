//! A reader gives events to polls, and reads what they ask for.
//!
//! Invariants: partitions take turns in being served and in being read, so none starves behind a busy one; nothing is
//! read that no poll asks for.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use fulcrum_core::Timestamp;
use fulcrum_core::delivery::Lease;
use futures_util::FutureExt;

use super::Delivery;
use super::id::Id;
use super::jobs::{Page, READ_RECORDS};
use super::reader::{Done, Name, Reader, nonce_from};
use super::waiter::Waiter;

/// Reads of the log under way at once.
const READS_MAX: usize = 8;
/// Partitions that are looked at for one more read.
const LOOKS_MAX: usize = 256;
/// Retries whose records are read at once.
const LOADS_MAX: usize = 64;

impl Reader {
    /// Answers as many polls as there are events for; returns whether some got or want more.
    pub(super) fn serve(&mut self, now: Timestamp) -> bool {
        let mut is_wanted = false;
        let mut at = 0;
        // One client may wait with thousands of polls: it is counted once.
        let mut full: HashSet<Arc<str>> = HashSet::new();
        while let Some(waiter) = self.waiters.get(at).cloned() {
            if !waiter.is_open() {
                self.waiters.remove(at);
                continue;
            }
            if full.contains(&waiter.client) {
                at += 1;
                continue;
            }
            let room = self.parts.settings.in_flight_max as usize;
            let room = room.saturating_sub(self.in_flight_of(&waiter.client));
            if room == 0 {
                full.insert(waiter.client.clone());
                at += 1;
                continue;
            }
            is_wanted = true;
            if !self.give(&waiter, room, now) {
                break;
            }
            self.waiters.remove(at);
        }
        is_wanted
    }

    /// Leases events to one poll; returns whether the poll is over.
    fn give(&mut self, waiter: &Waiter, room: usize, now: Timestamp) -> bool {
        let max = waiter.max.min(room);
        let mut sender = None;
        let mut given = Vec::new();
        for _ in 0..self.ready.len() {
            let Some(partition) = next_of(&self.ready, self.serve_cursor) else { break };
            let mut is_missing = false;
            while given.len() < max {
                let window = &mut self.partitions[partition as usize].window;
                let Some(position) = window.pick(now) else { break };
                let place = (partition, position);
                if !self.cache.contains(place) {
                    is_missing = true;
                    self.wanted.insert(partition);
                    break;
                }
                if sender.is_none() {
                    sender = waiter.take();
                    if sender.is_none() {
                        return true;
                    }
                }
                let nonce = nonce_from(&self.parts);
                let lease = Lease {
                    client: waiter.client.clone(),
                    via: waiter.via,
                    nonce,
                    until: now.after(self.handle.spec.invisible),
                };
                let attempt = window.deliver(position, lease);
                let event = self.cache.remove(place).unwrap_or_default();
                let id = Id { reader: self.handle.number, partition, position, nonce };
                given.push((id, attempt, event));
            }
            self.touch(partition);
            let is_more = self.partitions[partition as usize].window.pick(now).is_some();
            if !is_more || is_missing {
                // It comes back when something happens to it, at the latest when its payloads were read.
                self.ready.remove(&partition);
            }
            self.serve_cursor = partition.wrapping_add(1);
            if given.len() == max {
                break;
            }
        }
        let Some(sender) = sender else { return false };
        let topic = &self.handle.name.topic;
        let deliveries = given.iter().map(|(id, attempt, event)| Delivery {
            id: id.to_string(),
            event: event.clone(),
            attempt: *attempt,
            topic: topic.clone(),
            partition: id.partition,
            position: id.position,
        });
        if sender.send(Ok(deliveries.collect())).is_ok() {
            self.totals.delivered += given.len() as u64;
            return true;
        }
        for (id, _, event) in given {
            self.partitions[id.partition as usize].window.undelivered(id.position, id.nonce);
            self.cache.insert((id.partition, id.position), event);
            self.touch(id.partition);
        }
        true
    }

    /// Starts reads: payloads that a poll waits for first, then new events of partitions that have nothing to give.
    pub(super) fn read(&mut self, is_wanted: bool) {
        if self.rests_from_reading {
            return;
        }
        while self.reading < READS_MAX
            && let Some(partition) = self.wanted.pop_first()
        {
            self.load(partition);
        }
        if !is_wanted {
            return;
        }
        for _ in 0..self.behind.len().min(LOOKS_MAX) {
            if READS_MAX <= self.reading {
                break;
            }
            let Some(partition) = next_of(&self.behind, self.read_cursor) else { break };
            self.read_cursor = partition.wrapping_add(1);
            if !self.ready.contains(&partition) {
                self.read_on(partition);
            }
        }
    }

    /// Reads new events of a partition, if there is room for them.
    pub(super) fn read_on(&mut self, partition: u32) {
        let at = &mut self.partitions[partition as usize];
        let (from, room) = (at.window.next(), at.window.room());
        if room == 0 {
            // Something has to be parked for the group to go on.
            self.tended.insert(partition);
            return;
        }
        if at.is_busy {
            return;
        }
        at.is_busy = true;
        self.reading += 1;
        let work = self.work.clone();
        let job = async move { Done::Read { partition, page: work.read(partition, from, room).await } };
        self.jobs.push(job.boxed());
    }

    pub(super) fn was_read(&mut self, partition: u32, page: Result<Page, fulcrum_store::Error>) {
        self.reading -= 1;
        self.partitions[partition as usize].is_busy = false;
        match page {
            Ok(page) => self.take_page(partition, page),
            Err(error) => self.failed_to_read(&error),
        }
        self.touch(partition);
    }

    fn take_page(&mut self, partition: u32, page: Page) {
        let Page { events, next, end } = page;
        let at = &mut self.partitions[partition as usize];
        for event in events {
            if !event.is_wanted {
                at.window.skipped(event.position);
                self.totals.filtered += 1;
            } else if at.window.fetched(event.position, event.key.as_deref()) {
                self.cache.insert((partition, event.position), event.payload);
            }
        }
        at.window.advanced(next);
        let next = at.window.next();
        let is_ahead = at.stored_floor < at.window.floor();
        if end <= next {
            self.behind.remove(&partition);
            self.wait(partition, next);
        }
        if is_ahead {
            self.dirty_soon(partition);
        }
    }

    /// Reads the payloads of the next deliverable events of a partition.
    fn load(&mut self, partition: u32) {
        let at = &mut self.partitions[partition as usize];
        if at.is_busy {
            // It is looked at again when that read is done.
            return;
        }
        let cache = &self.cache;
        let missing = at.window.deliverable().filter(|position| !cache.contains((partition, *position)));
        let missing: Vec<_> = missing.take(LOADS_MAX).collect();
        let Some(first) = missing.first().copied() else { return };
        let is_parked = |position: &u64| at.window.get(*position).is_some_and(|facts| facts.is_parked);
        // What one read of the log can cover.
        let wanted = missing.into_iter().map(|position| (position, is_parked(&position)));
        let reach = first.saturating_add(u64::from(READ_RECORDS));
        let wanted = wanted.filter(|(position, is_parked)| *is_parked || *position < reach).collect();
        at.is_busy = true;
        self.reading += 1;
        let work = self.work.clone();
        let job = async move { Done::Loaded { partition, found: work.load(partition, wanted).await } };
        self.jobs.push(job.boxed());
    }

    pub(super) fn was_loaded(
        &mut self,
        partition: u32,
        found: Result<Vec<(u64, Option<Bytes>)>, fulcrum_store::Error>,
    ) {
        self.reading -= 1;
        self.partitions[partition as usize].is_busy = false;
        match found {
            Ok(mut found) => {
                // The next one to be delivered comes last: the cache must not drop it for the sake of later ones.
                found.sort_unstable_by_key(|(position, _)| std::cmp::Reverse(*position));
                for (position, payload) in found {
                    let at = &self.partitions[partition as usize];
                    let is_in_hand = at.window.get(position).is_none_or(|facts| facts.lease.is_some());
                    match payload {
                        _ if is_in_hand => {}
                        Some(payload) => self.cache.insert((partition, position), payload),
                        None => self.lose(partition, position),
                    }
                }
            }
            Err(error) => self.failed_to_read(&error),
        }
        self.touch(partition);
    }

    /// Settles an event that is not there any more, unless somebody has it in hand: the log was trimmed beyond what
    /// the group needs.
    pub(super) fn lose(&mut self, partition: u32, position: u64) {
        let window = &mut self.partitions[partition as usize].window;
        let Some(settled) = window.lost(position) else { return };
        let Name { topic, group, .. } = &self.handle.name;
        tracing::warn!(%topic, %group, partition, position, "an event was trimmed before it was delivered");
        self.settled((partition, position), settled.was_parked);
        self.dirty_soon(partition);
    }

    fn failed_to_read(&mut self, error: &fulcrum_store::Error) {
        // Somebody will tell us what became of the topic.
        if !matches!(error, fulcrum_store::Error::UnknownTopic { .. }) {
            let Name { topic, group, .. } = &self.handle.name;
            tracing::warn!(%topic, %group, %error, "a message group cannot read its topic");
        }
        self.rest_from_reading();
    }

    /// Ends the polls that do not wait, if nothing is being read that could answer them.
    pub(super) fn dismiss(&mut self) {
        if self.reading > 0 && !self.rests_from_reading {
            return;
        }
        self.waiters.retain(|waiter| {
            if !waiter.is_patient {
                waiter.nothing();
            }
            waiter.is_patient
        });
    }
}

/// Returns the first number at or above a cursor, or else the first of all.
fn next_of(numbers: &std::collections::BTreeSet<u32>, cursor: u32) -> Option<u32> {
    let above = numbers.range((Bound::Included(cursor), Bound::Unbounded)).next();
    above.or_else(|| numbers.first()).copied()
}
