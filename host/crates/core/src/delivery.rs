//! Message-level delivery: one partition of a log as one message group reads it, event by event.
//!
//! An event is *fetched* from the log, *delivered* to a client under a lease, and *settled* once it was acked or its
//! dead letter is stored. A delivery that was not acked when its lease ends fails: the event is delivered again, or
//! it is *dying*, that is, waiting for its dead letter to be stored. The payload of a *parked* event lives in a record
//! of its own, so that the log may go on without it; in all other respects it is an event like any other.
//!
//! Nothing is stored or sent here, and time is an argument. The coordinator makes a step durable before anybody hears
//! of it.
//!
//! Invariants (DESIGN section 7, 4 and 5; [`Window::violations`] checks what one state can show):
//! - of the positions below [`Window::next`], exactly those with an entry are unsettled; a settled one is delivered
//!   again only after [`Window::redrive`];
//! - an event has at most one lease, and only the nonce of that lease acks, fails or extends it;
//! - with fifo at most one event of a key is leased, and it was the first unsettled one of its key when it was
//!   delivered, while all before it were settled for good ([`Window::stored`]); events without a key are unordered;
//! - an event is never delivered more often than [`Settings::deliveries_max`] says;
//! - [`Window::floor`] never falls, and no event that only the log holds lies below it.
//!
//! Shapes: positions rise, with gaps. Every operation takes `O(log n)` for `n` entries, times what it returns; only
//! [`Window::saved`] walks over all of them.

mod backoff;
mod entries;
mod saved;

use std::sync::Arc;
use std::time::Duration;

use crate::Timestamp;

pub use backoff::Backoff;
pub use saved::Saved;

use entries::{Entries, Entry, State};
use saved::Restored;

/// Most parked events of a window. Beyond it none is parked, so the floor stays and the window runs full.
pub const PARKED_MAX: usize = 10_000;

/// A retry that is longer away than this is parked at once.
pub const LONG_WAIT: Duration = Duration::from_secs(60);

/// How the events of a message group are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a delivery is leased unless the client says otherwise.
    pub invisible: Duration,
    /// How often an event is delivered at most, at least 1; when the last one fails it becomes a dead letter.
    pub deliveries_max: u32,
    /// Whether events of one key are delivered one after the other.
    pub is_fifo: bool,
    /// How long an event waits after it was refused.
    pub backoff: Backoff,
    /// How many positions may lie between the floor and the next one to fetch.
    pub window: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            invisible: Duration::from_secs(60),
            deliveries_max: 17,
            is_fifo: false,
            backoff: Backoff::Table,
            window: 10_000,
        }
    }
}

/// Who has an event, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The client it was delivered to.
    pub client: Arc<str>,
    /// Connection it was delivered over; 0 for a poll, which has none to lose.
    pub via: u64,
    /// Tells this delivery from every other one of the event; drawn anew for each.
    pub nonce: u64,
    /// When it ends; from that moment on the event may be delivered again.
    pub until: Timestamp,
}

/// Why an event became a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The lease of its last delivery ended without an answer.
    LeaseEnded,
    /// Its last delivery was refused by the client.
    Rejected,
    /// Its deliveries were used up when the window was restored; why the last one failed is not known any more.
    Restored,
    /// The log had to drop it before it was acked.
    Retention,
}

/// What a failed delivery leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It is delivered again, not before this moment.
    Retry {
        /// Not before this moment.
        at: Timestamp,
    },
    /// It is dying: store its dead letter, then call [`Window::settle`].
    Dead {
        /// How often it was delivered.
        attempts: u32,
        /// Why it is given up.
        reason: Reason,
    },
}

/// An event that waits for its dead letter to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dying {
    /// Its position.
    pub position: u64,
    /// How often it was delivered.
    pub attempts: u32,
    /// Why it is given up.
    pub reason: Reason,
}

/// The delivery is not in flight: it was answered, its lease ended, or there never was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the delivery is not in flight: it was answered before, or its time ran out")]
pub struct Gone;

/// An event was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Whether it was parked: then the removal of its record is what makes this durable, together with a checkpoint
    /// that was saved after [`Window::park`]. An older one still lists the position as unsettled.
    pub was_parked: bool,
}

/// What is known of an unsettled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts<'a> {
    /// Its key; always `None` without fifo.
    pub key: Option<&'a str>,
    /// How often it was delivered, the delivery in flight included.
    pub attempts: u32,
    /// Its lease, while it is in flight.
    pub lease: Option<&'a Lease>,
    /// Whether its payload lives in a record of its own.
    pub is_parked: bool,
}

impl Facts<'_> {
    /// Returns how many of its deliveries failed: what a record of it keeps as its attempts.
    #[must_use]
    pub fn failed(&self) -> u32 {
        self.attempts - u32::from(self.lease.is_some())
    }
}

/// How many unsettled events are in which state. Each is in exactly one, parked or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Deliverable now.
    pub ready: usize,
    /// Behind another event of their key.
    pub blocked: usize,
    /// Waiting for their next delivery.
    pub waiting: usize,
    /// Leased to a client.
    pub in_flight: usize,
    /// Waiting for their dead letter to be stored.
    pub dying: usize,
    /// Those of all the above whose payload lives in a record of its own.
    pub parked: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Window {
    settings: Settings,
    /// Every position below was fetched.
    next: u64,
    entries: Entries,
    /// What the checkpoint says of positions that were not fetched again yet.
    restored: Restored,
}

impl Window {
    /// Makes a window that starts to read at a position.
    #[must_use]
    pub fn new(settings: Settings, floor: u64) -> Self {
        Self { settings, next: floor, entries: Entries::default(), restored: Restored::default() }
    }

    /// Makes the window a checkpoint describes.
    ///
    /// It knows what is settled, and starts to fetch at the floor again. First call [`Self::restore_parked`] for every
    /// record of a parked event, then fetch. All that is unsettled is deliverable at once.
    #[must_use]
    pub fn restore(settings: Settings, saved: &Saved) -> Self {
        Self { restored: Restored::new(saved), ..Self::new(settings, saved.floor) }
    }

    /// Returns what has to be kept of the window to restore it.
    ///
    /// It does not change by deliveries and extensions: a delivery counts when it fails. An event that is in flight
    /// while the host crashes comes again under the same attempt number.
    #[must_use]
    pub fn saved(&self) -> Saved {
        saved::save(self.floor(), self.next, &self.entries, &self.restored)
    }

    /// How the events are delivered.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the position to fetch from: no event below it has to be fetched (again).
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the lowest position the log has to keep for this group: everything below is settled or parked.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.entries.held().next().unwrap_or(self.next)
    }

    /// Returns how many more positions may be fetched until the window is full.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.settings.window.saturating_sub(self.next - self.floor())
    }

    /// Takes an event from the log; positions rise from call to call, and those left out do not exist.
    ///
    /// Returns whether it is new. One that was settled, or that is parked, changes nothing but [`Self::next`].
    pub fn fetched(&mut self, position: u64, key: Option<&str>) -> bool {
        let is_settled = position < self.next || self.restored.is_settled(position);
        let attempts = self.restored.take_attempts(position);
        self.advanced(position.saturating_add(1));
        if is_settled || self.entries.get(position).is_some() {
            return false;
        }
        self.insert(position, key, attempts, None);
        true
    }

    /// Takes note of an event the group does not want; as if it were acked.
    pub fn skipped(&mut self, position: u64) {
        self.advanced(position.saturating_add(1));
    }

    /// Takes note that there is no further event below `next`.
    pub fn advanced(&mut self, next: u64) {
        self.next = self.restored.pass(self.next.max(next));
    }

    /// Returns the lowest deliverable position, or `None` when there is none now.
    pub fn pick(&mut self, now: Timestamp) -> Option<u64> {
        self.entries.wake(now);
        self.deliverable().next()
    }

    /// Returns what is deliverable, lowest first, as of the last [`Self::pick`] or [`Self::expire`].
    pub fn deliverable(&self) -> impl Iterator<Item = u64> {
        // A parked event further up has to wait until what may come before it was fetched again.
        self.entries.ready().take_while(|position| *position < self.next)
    }

    /// Tells whether an event is among [`Self::deliverable`].
    #[must_use]
    pub fn is_deliverable(&self, position: u64) -> bool {
        position < self.next && self.entries.is_ready(position)
    }

    /// Leases an event that [`Self::pick`] returned; answers which delivery of it this is, from 1 up.
    ///
    /// Panics if the event is not deliverable.
    pub fn deliver(&mut self, position: u64, lease: Lease) -> u32 {
        assert!(self.is_deliverable(position), "position {position} was not picked");
        let attempts = self.entries.get(position).map_or(0, |entry| entry.attempts) + 1;
        self.entries.count(position, attempts);
        self.entries.set(position, State::Leased(lease));
        attempts
    }

    /// Takes a delivery back that did not reach its client: as if it had never been made. Does nothing when it is not
    /// in flight any more.
    pub fn undelivered(&mut self, position: u64, nonce: u64) {
        if let Ok(entry) = self.in_flight(position, nonce) {
            let attempts = entry.attempts - 1;
            self.entries.count(position, attempts);
            self.entries.set(position, State::Ready);
        }
    }

    /// Takes note that what settled an event is stored, so that a crash does not bring it back: with fifo the next
    /// one of its key may be delivered from now on. Does nothing for any other position.
    pub fn stored(&mut self, position: u64) {
        self.entries.release(position);
    }

    /// Settles a delivered event; see [`Self::stored`] for what follows. A lease that ended counts until [`Self::expire`] took note of it.
    pub fn ack(&mut self, position: u64, nonce: u64) -> Result<Settled, Gone> {
        self.in_flight(position, nonce)?;
        Ok(self.remove(position))
    }

    /// Refuses a delivery. The event comes again after `delay`, or after its backoff; or it is dying.
    pub fn nack(
        &mut self,
        position: u64,
        nonce: u64,
        delay: Option<Duration>,
        now: Timestamp,
    ) -> Result<Failed, Gone> {
        let redeliveries = self.in_flight(position, nonce)?.attempts - 1;
        let delay = delay.unwrap_or_else(|| self.settings.backoff.delay(redeliveries));
        Ok(self.fail(position, now.after(delay), now, Reason::Rejected))
    }

    /// Replaces the lease of an event in flight, by a longer or a shorter one. The old nonce is dead.
    pub fn extend(&mut self, position: u64, nonce: u64, lease: Lease) -> Result<(), Gone> {
        self.in_flight(position, nonce)?;
        self.entries.set(position, State::Leased(lease));
        Ok(())
    }

    /// A connection closed: its leases end at `at`, unless they end before. Returns those it changed, ascending.
    pub fn disconnected(&mut self, via: u64, at: Timestamp) -> Vec<u64> {
        let leased = self.entries.leased_via(via);
        self.shorten(leased, at)
    }

    /// A client left: its leases end at `at`, unless they end before. Returns those it changed, ascending.
    pub fn left(&mut self, client: &str, at: Timestamp) -> Vec<u64> {
        let leased = self.entries.leased_to(client).collect();
        self.shorten(leased, at)
    }

    /// Ends every lease whose time is over, the earliest first, and returns what becomes of the events. They come
    /// again at once: the time they were away was their delay.
    pub fn expire(&mut self, now: Timestamp) -> Vec<(u64, Failed)> {
        let mut ended = Vec::new();
        while let Some((_, position)) = self.entries.first_lease().filter(|(until, _)| *until <= now) {
            ended.push((position, self.fail(position, now, now, Reason::LeaseEnded)));
        }
        self.entries.wake(now);
        ended
    }

    /// Returns when [`Self::expire`] or [`Self::pick`] may find something new; `None` if time alone changes nothing.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        let lease = self.entries.first_lease().map(|(until, _)| until);
        let wait = self.entries.first_wait().map(|(at, _)| at);
        [lease, wait].into_iter().flatten().min()
    }

    /// Lets at most `max` events below a position die that only the log holds, those in flight included, and returns
    /// how many there were: the log has to drop them.
    pub fn expire_below(&mut self, position: u64, max: usize) -> usize {
        let is_dying = |at: &u64| self.entries.get(*at).is_some_and(|entry| entry.dying().is_some());
        let below = self.entries.held().take_while(|at| *at < position);
        let lost: Vec<_> = below.filter(|at| !is_dying(at)).take(max).collect();
        for position in &lost {
            self.entries.set(*position, State::Dying(Reason::Retention));
        }
        lost.len()
    }

    /// Returns the events that wait for their dead letter to be stored, ascending.
    pub fn dying(&self) -> impl Iterator<Item = Dying> {
        self.entries.dying()
    }

    /// Settles an event whose payload is nowhere any more. `None` if it is in flight, dying or not unsettled.
    pub fn lost(&mut self, position: u64) -> Option<Settled> {
        let entry = self.entries.get(position)?;
        let is_idle = entry.lease().is_none() && entry.dying().is_none();
        is_idle.then(|| {
            let settled = self.remove(position);
            // Nothing can bring it back.
            self.stored(position);
            settled
        })
    }

    /// Settles a dying event, once its dead letter is stored. `None` if it is not dying.
    pub fn settle(&mut self, position: u64) -> Option<Settled> {
        self.entries.get(position)?.dying()?;
        Some(self.remove(position))
    }

    /// Returns at most `limit` events that should be parked: store a record of each, then call [`Self::park`].
    ///
    /// These are retries that are long away. When the window is full and nothing in it is deliverable, while less than
    /// half a window is in flight, the lowest events follow, because they keep the group from going on.
    #[must_use]
    pub fn parkable(&self, limit: usize) -> Vec<u64> {
        let limit = limit.min(PARKED_MAX.saturating_sub(self.entries.parked_count()));
        let mut found: Vec<_> = self.entries.long_waits().take(limit).collect();
        let is_busy = self.settings.window <= 2 * self.entries.leased_count() as u64;
        if self.room() == 0 && self.deliverable().next().is_none() && !is_busy {
            // A dying event leaves soon: parking what is above it gains nothing.
            let lowest = self.entries.held().map_while(|position| {
                self.entries
                    .get(position)
                    .filter(|entry| entry.dying().is_none())
                    .map(|entry| (position, entry))
            });
            let others = lowest.filter(|(_, entry)| !entry.is_long_wait()).map(|(position, _)| position);
            found.extend(others.take(limit - found.len()));
        }
        found
    }

    /// Takes note that a record holds the event, with the attempts [`Facts::failed`] told when it was made.
    ///
    /// Returns whether it is parked now; if not it was settled meanwhile, and the record has to go.
    pub fn park(&mut self, position: u64, attempts: u32) -> bool {
        self.entries.park(position, attempts)
    }

    /// Takes a parked event from its record. Comes before the first event is fetched after [`Self::restore`].
    pub fn restore_parked(&mut self, position: u64, key: Option<&str>, attempts: u32) {
        if !self.entries.park(position, attempts) {
            let failed = self.restored.take_attempts(position).max(attempts);
            self.insert(position, key, failed, Some(attempts));
        }
    }

    /// Takes a dead letter back, as a parked event that was never delivered, after a record of it was stored.
    ///
    /// Returns whether it was taken: not if [`PARKED_MAX`] events are parked, or the event is unsettled.
    pub fn redrive(&mut self, position: u64, key: Option<&str>) -> bool {
        let is_settled = position < self.next || self.restored.is_settled(position);
        let has_room = self.entries.parked_count() < PARKED_MAX;
        if !is_settled || !has_room || self.entries.get(position).is_some() {
            return false;
        }
        self.insert(position, key, 0, Some(0));
        true
    }

    /// Returns what is known of an event; `None` if it is settled, or was not fetched (again) yet.
    #[must_use]
    pub fn get(&self, position: u64) -> Option<Facts<'_>> {
        self.entries.get(position).map(|entry| Facts {
            key: entry.key.as_deref(),
            attempts: entry.attempts,
            lease: entry.lease(),
            is_parked: entry.record.is_some(),
        })
    }

    /// Returns how many events a client has in flight.
    #[must_use]
    pub fn in_flight_of(&self, client: &str) -> usize {
        self.entries.leased_to(client).len()
    }

    /// Counts the unsettled events.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.entries.counts()
    }

    /// Returns what breaks the invariants, one line each; empty for every reachable state.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut found = self.entries.violations();
        for (position, entry) in self.entries.iter() {
            if entry.attempts > self.settings.deliveries_max.max(1) && entry.dying().is_none() {
                found.push(format!("{position} was delivered {} times", entry.attempts));
            }
            if entry.record.is_none() && self.next <= position {
                found.push(format!("{position} was not fetched"));
            }
        }
        found
    }

    fn insert(&mut self, position: u64, key: Option<&str>, attempts: u32, record: Option<u32>) {
        let is_spent = self.settings.deliveries_max.max(1) <= attempts;
        let state = if is_spent { State::Dying(Reason::Restored) } else { State::Ready };
        let key = key.filter(|_| self.settings.is_fifo).map(Arc::from);
        self.entries.insert(position, Entry { key, attempts, state, record });
    }

    fn remove(&mut self, position: u64) -> Settled {
        let removed = self.entries.remove(position);
        Settled { was_parked: removed.is_some_and(|entry| entry.record.is_some()) }
    }

    fn in_flight(&self, position: u64, nonce: u64) -> Result<&Entry, Gone> {
        let is_it = |entry: &&Entry| entry.lease().is_some_and(|lease| lease.nonce == nonce);
        self.entries.get(position).filter(is_it).ok_or(Gone)
    }

    /// Ends the delivery in flight.
    fn fail(&mut self, position: u64, at: Timestamp, now: Timestamp, reason: Reason) -> Failed {
        let attempts = self.entries.get(position).map_or(0, |entry| entry.attempts);
        if self.settings.deliveries_max <= attempts {
            self.entries.set(position, State::Dying(reason));
            return Failed::Dead { attempts, reason };
        }
        let is_long = LONG_WAIT < at.since(now);
        self.entries.set(position, if at <= now { State::Ready } else { State::Waiting { at, is_long } });
        Failed::Retry { at }
    }

    fn shorten(&mut self, mut positions: Vec<u64>, at: Timestamp) -> Vec<u64> {
        positions.retain(|&position| {
            let lease = self.entries.get(position).and_then(Entry::lease);
            let Some(lease) = lease.filter(|lease| at < lease.until).cloned() else { return false };
            self.entries.set(position, State::Leased(Lease { until: at, ..lease }));
            true
        });
        positions
    }
}

#[cfg(test)]
mod tests;
