//! The task of one reader: one group on one topic.
//!
//! Every step of its state is made at once, without waiting; reads and writes are jobs that run beside it and come
//! back as events. So polls go on while a commit is under way, and all acknowledgements of that time share the next.
//!
//! Invariants: at most one checkpoint job runs; at most one read of a partition runs; a job of a topic that is gone is
//! over before the topic's successor is read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use fulcrum_core::delivery::{self, Backoff, Failed, Lease, Window};
use fulcrum_core::time::Timestamp;
use fulcrum_store::{Position, Revision};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::cache::Cache;
use super::id::Id;
use super::jobs::{Page, Parking, Place, Removed, Work, Written};
use super::waiter::Waiter;
use super::{Counts, Error, Filters, Kind, Mode, Parts, Settings, Totals};

/// Commands taken in before they are acted on together.
const BATCH_MAX: usize = 256;
/// Pause before what the store refused is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(200);
/// How long a change that nobody waits for may stay unstored.
const SOON: Duration = Duration::from_secs(1);
/// Polls that may wait at one reader.
const WAITERS_MAX: usize = 10_000;
/// Acknowledgements whose store failed that are remembered after they were stored all the same.
const DOUBTFUL_MAX: usize = 10_000;

/// Which group on which topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name {
    pub(super) topic: Arc<str>,
    pub(super) kind: Kind,
    pub(super) group: Arc<str>,
}

/// How a group delivers a topic; never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) mode: Mode,
    pub(super) filters: Filters,
    pub(super) invisible: Duration,
    pub(super) deliveries_max: u32,
    pub(super) is_fifo: bool,
    pub(super) backoff: Backoff,
}

impl Spec {
    fn window(&self, settings: &Settings) -> delivery::Settings {
        delivery::Settings {
            invisible: self.invisible,
            deliveries_max: self.deliveries_max,
            is_fifo: self.is_fifo,
            backoff: self.backoff.clone(),
            window: settings.window,
        }
    }
}

/// Where the answer to a command goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

pub(super) enum Command {
    Poll(Arc<Waiter>),
    Ack {
        id: Id,
        is_relaxed: bool,
        reply: Reply<()>,
    },
    Nack {
        id: Id,
        delay: Option<Duration>,
        reply: Reply<()>,
    },
    Extend {
        id: Id,
        invisible: Duration,
        reply: Reply<Id>,
    },
    /// A client unsubscribed.
    Left {
        client: Arc<str>,
        reply: Reply<()>,
    },
    /// The topic changed, or there is none any more, or another one.
    Topic,
    Redrive {
        places: Option<Vec<Place>>,
        max: usize,
        reply: Reply<usize>,
    },
    ExpireBelow {
        partition: u32,
        position: u64,
        max: usize,
        reply: Reply<bool>,
    },
    Counts(Reply<(Counts, Vec<u64>)>),
    Delete(Reply<()>),
    Stop(Reply<()>),
}

/// The way to a reader, for everybody else.
pub(super) struct Handle {
    pub(super) name: Name,
    pub(super) number: u64,
    pub(super) spec: Arc<Spec>,
    pub(super) commands: mpsc::Sender<Command>,
    /// Lowest positions that are needed after a restart, by partition; `None` until the reader is brought back.
    pub(super) floors: Mutex<Option<Vec<u64>>>,
    side: Mutex<Side>,
    wake: Notify,
    /// Whether the host is on its way out.
    pub(super) is_stopping: Arc<AtomicBool>,
}

/// What must not wait for room in the queue.
#[derive(Default)]
struct Side {
    returned: Vec<Id>,
    closed: Vec<u64>,
    is_dropped: bool,
}

impl Handle {
    pub(super) fn new(
        name: Name,
        number: u64,
        spec: Arc<Spec>,
        commands: mpsc::Sender<Command>,
        is_stopping: Arc<AtomicBool>,
    ) -> Self {
        Self {
            name,
            number,
            spec,
            commands,
            floors: Mutex::new(None),
            side: Mutex::default(),
            wake: Notify::new(),
            is_stopping,
        }
    }

    /// Takes back deliveries that did not reach their client.
    pub(super) fn undelivered(&self, ids: impl IntoIterator<Item = Id>) {
        self.side.lock().returned.extend(ids);
        self.wake.notify_one();
    }

    /// The service is gone without a stop: the task ends without another word.
    pub(super) fn dropped(&self) {
        self.side.lock().is_dropped = true;
        self.wake.notify_one();
    }

    /// Tells whether the service is gone without a stop.
    pub(super) fn is_dropped(&self) -> bool {
        self.side.lock().is_dropped
    }

    /// A connection closed.
    pub(super) fn closed(&self, via: u64) {
        self.side.lock().closed.push(via);
        self.wake.notify_one();
    }
}

/// What came of a job.
pub(super) enum Done {
    Read {
        partition: u32,
        page: Result<Page, fulcrum_store::Error>,
    },
    Loaded {
        partition: u32,
        found: Result<Vec<(u64, Option<Bytes>)>, fulcrum_store::Error>,
    },
    Stored {
        written: Vec<Written>,
        unparked: Vec<Removed>,
        answers: Vec<Reply<()>>,
    },
    Parked(Vec<(Parking, Result<Option<Revision>, fulcrum_store::Error>)>),
    Buried {
        place: Place,
        result: Result<(), fulcrum_store::Error>,
    },
    Revived {
        result: Result<Vec<(Place, Option<String>, Revision)>, Error>,
        reply: Reply<usize>,
    },
    Redriven,
    /// Reads may be tried again.
    ReadsRested,
    /// Writes may be tried again.
    WritesRested,
    /// What nobody waits for is to be stored now.
    Soon,
}

/// One partition.
pub(super) struct Partition {
    pub(super) window: Window,
    /// Revision of its stored checkpoint.
    pub(super) revision: Option<Revision>,
    /// The floor that checkpoint says.
    pub(super) stored_floor: u64,
    /// Whether a job reads it.
    pub(super) is_busy: bool,
    /// Whether somebody waits for its next event.
    pub(super) is_awaited: bool,
    /// Parked events with the revisions of their records.
    pub(super) parked: BTreeMap<u64, Revision>,
    /// Events whose dead letter is being stored.
    pub(super) burying: BTreeSet<u64>,
    due: Option<Timestamp>,
}

impl Partition {
    pub(super) fn new(window: Window, revision: Option<Revision>) -> Self {
        Self {
            stored_floor: window.floor(),
            window,
            revision,
            is_busy: false,
            is_awaited: false,
            parked: BTreeMap::new(),
            burying: BTreeSet::new(),
            due: None,
        }
    }
}

/// An acknowledgement that is not stored yet.
pub(super) struct Unstored {
    nonce: u64,
    /// The checkpoint job that stores it, counted from 1.
    pub(super) job: u64,
    pub(super) has_failed: bool,
}

/// A caller that waits until nothing is left below a position.
pub(super) struct Expiring {
    pub(super) partition: u32,
    pub(super) position: u64,
    pub(super) left: usize,
    pub(super) reply: Reply<bool>,
}

/// See the module.
pub(super) struct Reader {
    pub(super) parts: Arc<Parts>,
    pub(super) handle: Arc<Handle>,
    pub(super) work: Work,
    pub(super) incarnation: u64,
    pub(super) reader_revision: Option<Revision>,
    pub(super) partitions: Vec<Partition>,
    /// Partitions that may have something to deliver.
    pub(super) ready: BTreeSet<u32>,
    /// Partitions whose log goes on beyond their window.
    pub(super) behind: BTreeSet<u32>,
    /// Partitions with deliveries in flight.
    lent: BTreeSet<u32>,
    due: BTreeSet<(Timestamp, u32)>,
    /// Partitions with payloads to be read again.
    pub(super) wanted: BTreeSet<u32>,
    /// Partitions that may have something to park or to bury.
    pub(super) tended: BTreeSet<u32>,
    pub(super) serve_cursor: u32,
    pub(super) read_cursor: u32,
    pub(super) waiters: VecDeque<Arc<Waiter>>,
    swept_len: usize,
    pub(super) cache: Cache,
    pub(super) jobs: FuturesUnordered<BoxFuture<'static, Done>>,
    waits: FuturesUnordered<BoxFuture<'static, (u32, Result<Position, fulcrum_store::Error>)>>,
    /// Jobs that read.
    pub(super) reading: usize,
    /// Jobs that park or bury.
    pub(super) tending: usize,
    pub(super) is_storing: bool,
    pub(super) is_redriving: bool,
    /// Events given back whose dead letters are being removed.
    pub(super) forgetting: BTreeSet<Place>,
    /// Calls that want dead letters back.
    pub(super) redrives: VecDeque<(Option<Vec<Place>>, usize, Reply<usize>)>,
    pub(super) rests_from_reading: bool,
    pub(super) rests_from_writing: bool,
    /// Whether the last write failed, which was logged then.
    pub(super) cannot_write: bool,
    /// Checkpoint jobs begun.
    pub(super) jobs_stored: u64,
    pub(super) dirty: BTreeSet<u32>,
    pub(super) dirty_soon: BTreeSet<u32>,
    has_soon: bool,
    /// Callers that wait for the next checkpoint job.
    pub(super) answers: Vec<Reply<()>>,
    pub(super) unstored: HashMap<Place, Unstored>,
    /// Settled events of a FIFO group whose successors wait for that to be stored, with the job that does it.
    pub(super) unreleased: Vec<(Place, u64)>,
    doubtful: HashSet<(Place, u64)>,
    doubtful_order: VecDeque<(Place, u64)>,
    /// Settled parked events whose records are to be removed; without a revision, whatever is there.
    pub(super) unparked: BTreeMap<Place, Option<Revision>>,
    /// Events whose record is being written, and the callers that settled them meanwhile.
    pub(super) parking: BTreeMap<Place, Vec<Reply<()>>>,
    pub(super) expiring: Vec<Expiring>,
    pub(super) totals: Totals,
    /// Whether somebody said that the topic changed.
    pub(super) has_topic_news: bool,
    stopping: Option<Reply<()>>,
    is_over: bool,
}

impl Reader {
    pub(super) fn new(parts: Arc<Parts>, handle: Arc<Handle>) -> Self {
        let work = Work::new(parts.clone(), handle.name.clone(), handle.spec.clone());
        Self {
            parts,
            handle,
            work,
            incarnation: 0,
            reader_revision: None,
            partitions: Vec::new(),
            ready: BTreeSet::new(),
            behind: BTreeSet::new(),
            lent: BTreeSet::new(),
            due: BTreeSet::new(),
            wanted: BTreeSet::new(),
            tended: BTreeSet::new(),
            serve_cursor: 0,
            read_cursor: 0,
            waiters: VecDeque::new(),
            swept_len: 0,
            cache: Cache::default(),
            jobs: FuturesUnordered::new(),
            waits: FuturesUnordered::new(),
            reading: 0,
            tending: 0,
            is_storing: false,
            is_redriving: false,
            forgetting: BTreeSet::new(),
            redrives: VecDeque::new(),
            rests_from_reading: false,
            rests_from_writing: false,
            cannot_write: false,
            jobs_stored: 0,
            dirty: BTreeSet::new(),
            dirty_soon: BTreeSet::new(),
            has_soon: false,
            answers: Vec::new(),
            unstored: HashMap::new(),
            unreleased: Vec::new(),
            doubtful: HashSet::new(),
            doubtful_order: VecDeque::new(),
            unparked: BTreeMap::new(),
            parking: BTreeMap::new(),
            expiring: Vec::new(),
            totals: Totals::default(),
            has_topic_news: false,
            stopping: None,
            is_over: false,
        }
    }

    /// Runs until the host stops or the group is deleted.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        if let Err(error) = self.restore_patiently().await {
            let Name { topic, group, .. } = &self.handle.name;
            if let Error::UnknownGroup { .. } = error {
                tracing::debug!(%topic, %group, "a message group was deleted before it was brought back");
                return;
            }
            tracing::error!(%topic, %group, %error, "a message group cannot be brought back");
            return self.refuse(&error, &mut commands).await;
        }
        let mut batch = Vec::new();
        while !self.is_over {
            let pause = self.pause();
            tokio::select! {
                count = commands.recv_many(&mut batch, BATCH_MAX) => if count == 0 { return },
                () = tokio::time::sleep(pause) => {}
                () = self.handle.wake.notified() => {}
                Some(done) = self.jobs.next(), if !self.jobs.is_empty() => self.done(done),
                Some(grown) = self.waits.next(), if !self.waits.is_empty() => self.grown(grown),
            }
            // What is known already counts before anybody is told that there is nothing.
            while let Some(Some(grown)) = self.waits.next().now_or_never() {
                self.grown(grown);
            }
            while let Some(Some(done)) = self.jobs.next().now_or_never() {
                self.done(done);
            }
            for command in batch.drain(..) {
                // What comes after a delete is for another group of this name.
                if self.is_over {
                    break;
                }
                self.apply(command).await;
            }
            self.follow_topic().await;
            self.turn();
        }
    }

    /// Returns how long nothing is due.
    fn pause(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(3600);
        let Some((due, _)) = self.due.first() else { return LONGEST };
        due.since(self.parts.clock.now()).min(LONGEST)
    }

    fn turn(&mut self) {
        let now = self.parts.clock.now();
        self.take_side(now);
        self.expire(now);
        if self.stopping.is_none() {
            let is_wanted = self.serve(now);
            self.read(is_wanted);
            self.dismiss();
            self.tend(now);
            self.redrive();
        }
        self.checkpoint();
        self.end_if_stopped();
    }

    async fn apply(&mut self, command: Command) {
        let now = self.parts.clock.now();
        match command {
            Command::Poll(waiter) => self.take_waiter(waiter),
            Command::Ack { id, is_relaxed, reply } => self.ack(id, is_relaxed, reply),
            Command::Nack { id, delay, reply } => self.nack(id, delay, reply, now),
            Command::Extend { id, invisible, reply } => {
                // Nobody waits any more: the client will learn when it acks.
                let _ = reply.send(self.extend(id, invisible, now));
            }
            Command::Left { client, reply } => {
                self.left(&client, now);
                let _ = reply.send(Ok(()));
            }
            Command::Topic => self.has_topic_news = true,
            Command::Redrive { places, max, reply } => self.redrives.push_back((places, max, reply)),
            Command::ExpireBelow { partition, position, max, reply } => {
                if self.partitions.len() <= partition as usize {
                    let _ = reply.send(Ok(true));
                } else {
                    self.expiring.push(Expiring { partition, position, left: max, reply });
                }
            }
            Command::Counts(reply) => {
                let nexts = self.partitions.iter().map(|at| at.window.next()).collect();
                let _ = reply.send(Ok((self.counts(), nexts)));
            }
            Command::Delete(reply) => {
                let deleted = self.delete().await;
                self.is_over = deleted.is_ok();
                let _ = reply.send(deleted);
            }
            Command::Stop(reply) => {
                for waiter in self.waiters.drain(..) {
                    waiter.answer(Ok(Vec::new()));
                }
                for expiring in self.expiring.drain(..) {
                    let _ = expiring.reply.send(Err(Error::Stopping));
                }
                self.dirty.append(&mut self.dirty_soon);
                self.stopping = Some(reply);
            }
        }
    }

    fn take_waiter(&mut self, waiter: Arc<Waiter>) {
        if self.waiters.len() >= WAITERS_MAX {
            self.waiters.retain(|waiter| waiter.is_open());
        }
        if self.waiters.len() >= WAITERS_MAX {
            return waiter.answer(Err(Error::TooManyPolls));
        }
        if self.waiters.len() > 2 * self.swept_len + 16 {
            self.waiters.retain(|waiter| waiter.is_open());
            self.swept_len = self.waiters.len();
        }
        self.waiters.push_back(waiter);
    }

    fn ack(&mut self, id: Id, is_relaxed: bool, reply: Reply<()>) {
        let Id { partition, position, nonce, .. } = id;
        let place = (partition, position);
        let found = self.partitions.get_mut(partition as usize);
        let acked = found.map(|at| at.window.ack(position, nonce));
        if let Some(Ok(settled)) = acked {
            self.totals.acked += 1;
            self.settled(place, settled.was_parked);
            if is_relaxed {
                // Whoever asks for this does without the order over a crash.
                self.partitions[partition as usize].window.stored(position);
                self.unreleased.pop();
                self.dirty_soon(partition);
                let _ = reply.send(Ok(()));
                return;
            }
            self.dirty.insert(partition);
            let unstored = Unstored { nonce, job: self.jobs_stored + 1, has_failed: false };
            self.unstored.insert(place, unstored);
            return self.answer_stored(place, reply);
        }
        // The same call again, because the first answer was an error.
        if self.unstored.get(&place).is_some_and(|unstored| unstored.nonce == nonce) {
            return self.answer_stored(place, reply);
        }
        let is_stored = self.doubtful.contains(&(place, nonce));
        let _ = reply.send(if is_stored { Ok(()) } else { Err(Error::UnknownDelivery(id.to_string())) });
    }

    /// Answers a caller once what was done to an event is stored.
    fn answer_stored(&mut self, place: Place, reply: Reply<()>) {
        match self.parking.get_mut(&place) {
            // Its record may be there by now: only when that is gone again is the event settled for good.
            Some(waiting) => waiting.push(reply),
            None => self.answers.push(reply),
        }
    }

    fn nack(&mut self, id: Id, delay: Option<Duration>, reply: Reply<()>, now: Timestamp) {
        let Id { partition, position, nonce, .. } = id;
        let found = self.partitions.get_mut(partition as usize);
        match found.map(|at| at.window.nack(position, nonce, delay, now)) {
            Some(Ok(_)) => {
                self.totals.nacked += 1;
                self.touch(partition);
                self.dirty.insert(partition);
                self.answers.push(reply);
            }
            _ => {
                let _ = reply.send(Err(Error::UnknownDelivery(id.to_string())));
            }
        }
    }

    fn extend(&mut self, id: Id, invisible: Duration, now: Timestamp) -> Result<Id, Error> {
        let Id { partition, position, nonce, .. } = id;
        let unknown = || Error::UnknownDelivery(id.to_string());
        let at = self.partitions.get_mut(partition as usize).ok_or_else(unknown)?;
        let lease = at.window.get(position).and_then(|facts| facts.lease.cloned()).ok_or_else(unknown)?;
        let lease = Lease { nonce: nonce_from(&self.parts), until: now.after(invisible), ..lease };
        let extended = Id { nonce: lease.nonce, ..id };
        at.window.extend(position, nonce, lease).map_err(|_| unknown())?;
        self.touch(partition);
        Ok(extended)
    }

    /// A client unsubscribed: its polls get nothing here, its deliveries come back early.
    fn left(&mut self, client: &str, now: Timestamp) {
        for waiter in std::mem::take(&mut self.waiters) {
            if *waiter.client == *client {
                waiter.nothing();
            } else {
                self.waiters.push_back(waiter);
            }
        }
        let at = now.after(self.parts.settings.return_delay);
        for partition in self.lent.clone() {
            if !self.partitions[partition as usize].window.left(client, at).is_empty() {
                self.touch(partition);
            }
        }
    }

    fn take_side(&mut self, now: Timestamp) {
        let Side { returned, closed, is_dropped } = std::mem::take(&mut *self.handle.side.lock());
        self.is_over |= is_dropped;
        for Id { partition, position, nonce, .. } in returned {
            if let Some(at) = self.partitions.get_mut(partition as usize) {
                at.window.undelivered(position, nonce);
                self.touch(partition);
            }
        }
        let at = now.after(self.parts.settings.return_delay);
        for via in closed {
            for partition in self.lent.clone() {
                if !self.partitions[partition as usize].window.disconnected(via, at).is_empty() {
                    self.touch(partition);
                }
            }
        }
    }

    fn expire(&mut self, now: Timestamp) {
        while let Some(&(due, partition)) = self.due.first()
            && due <= now
        {
            let ended = self.partitions[partition as usize].window.expire(now);
            self.totals.expired += ended.len() as u64;
            if ended.iter().any(|(_, failed)| matches!(failed, Failed::Dead { .. })) {
                self.dirty.insert(partition);
            } else if !ended.is_empty() {
                self.dirty_soon(partition);
            }
            self.touch(partition);
        }
    }

    /// Takes note that the window of a partition changed.
    pub(super) fn touch(&mut self, partition: u32) {
        let at = &mut self.partitions[partition as usize];
        let due = at.window.due();
        if due != at.due {
            if let Some(former) = at.due.take() {
                self.due.remove(&(former, partition));
            }
            if let Some(due) = due {
                self.due.insert((due, partition));
            }
            at.due = due;
        }
        if at.window.counts().in_flight > 0 {
            self.lent.insert(partition);
        } else {
            self.lent.remove(&partition);
        }
        self.ready.insert(partition);
        self.tended.insert(partition);
    }

    /// Takes note that an event is settled, which is not stored yet.
    pub(super) fn settled(&mut self, place: Place, was_parked: bool) {
        let (partition, position) = place;
        self.cache.remove(place);
        if was_parked {
            let record = self.partitions[partition as usize].parked.remove(&position);
            self.unparked.insert(place, record);
        }
        if self.handle.spec.is_fifo {
            self.unreleased.push((place, self.jobs_stored + 1));
        }
        self.touch(partition);
    }

    /// Lets the successors of settled events go on, now that checkpoints up to `job` are stored.
    pub(super) fn release(&mut self, job: u64) {
        for (place, since) in std::mem::take(&mut self.unreleased) {
            if job < since || self.unparked.contains_key(&place) || self.parking.contains_key(&place) {
                self.unreleased.push((place, since));
            } else {
                self.partitions[place.0 as usize].window.stored(place.1);
                self.touch(place.0);
            }
        }
    }

    /// Takes note of a change that nobody waits for.
    pub(super) fn dirty_soon(&mut self, partition: u32) {
        self.dirty_soon.insert(partition);
        if !self.has_soon {
            self.has_soon = true;
            self.rest(SOON, Done::Soon);
        }
    }

    /// Comes back with `done` after some time.
    pub(super) fn rest(&self, span: Duration, done: Done) {
        self.jobs.push(tokio::time::sleep(span).map(|()| done).boxed());
    }

    pub(super) fn rest_from_reading(&mut self) {
        if !self.rests_from_reading {
            self.rests_from_reading = true;
            self.rest(RETRY, Done::ReadsRested);
        }
    }

    pub(super) fn rest_from_writing(&mut self) {
        if !self.rests_from_writing {
            self.rests_from_writing = true;
            self.rest(RETRY, Done::WritesRested);
        }
    }

    /// Counts the deliveries that a client has in hand.
    pub(super) fn in_flight_of(&self, client: &str) -> usize {
        self.lent.iter().map(|at| self.partitions[*at as usize].window.in_flight_of(client)).sum()
    }

    fn counts(&self) -> Counts {
        let Name { kind, group, topic } = &self.handle.name;
        let mut counts = Counts {
            kind: *kind,
            group: group.to_string(),
            topic: topic.to_string(),
            is_fifo: self.handle.spec.is_fifo,
            subscribers: 0,
            polls_waiting: self.waiters.iter().filter(|waiter| waiter.is_open()).count() as u64,
            ready: 0,
            waiting: 0,
            in_flight: 0,
            parked: 0,
            dying: 0,
            windows_full: 0,
            lag: 0,
            totals: self.totals,
        };
        for at in &self.partitions {
            let found = at.window.counts();
            counts.ready += found.ready as u64;
            counts.waiting += (found.waiting + found.blocked) as u64;
            counts.in_flight += found.in_flight as u64;
            counts.parked += found.parked as u64;
            counts.dying += found.dying as u64;
            counts.windows_full += u64::from(at.window.room() == 0);
        }
        counts
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Read { partition, page } => self.was_read(partition, page),
            Done::Loaded { partition, found } => self.was_loaded(partition, found),
            Done::Stored { written, unparked, answers } => self.was_stored(written, unparked, answers),
            Done::Parked(parked) => self.was_parked(parked),
            Done::Buried { place, result } => self.was_buried(place, result),
            Done::Revived { result, reply } => self.was_revived(result, reply),
            Done::Redriven => self.was_redriven(),
            Done::ReadsRested => self.rests_from_reading = false,
            Done::WritesRested => self.rests_from_writing = false,
            Done::Soon => {
                self.has_soon = false;
                self.dirty.append(&mut self.dirty_soon);
            }
        }
    }

    /// Waits, beside everything else, until a partition goes on beyond `from`.
    pub(super) fn wait(&mut self, partition: u32, from: u64) {
        let at = &mut self.partitions[partition as usize];
        if std::mem::replace(&mut at.is_awaited, true) {
            return;
        }
        let (log, topic) = (self.parts.log.clone(), self.handle.name.topic.clone());
        let wait = async move { (partition, log.wait(&topic, partition, Position(from)).await) };
        self.waits.push(wait.boxed());
    }

    fn grown(&mut self, (partition, end): (u32, Result<Position, fulcrum_store::Error>)) {
        let Some(at) = self.partitions.get_mut(partition as usize) else { return };
        at.is_awaited = false;
        match end {
            Ok(Position(end)) if at.window.next() < end => drop(self.behind.insert(partition)),
            Ok(_) => {
                let next = at.window.next();
                self.wait(partition, next);
            }
            // It is gone, and somebody will tell us of its successor.
            Err(fulcrum_store::Error::UnknownTopic { .. } | fulcrum_store::Error::Closed) => {}
            // Whatever it is, a read will tell.
            Err(_) => drop(self.behind.insert(partition)),
        }
    }

    /// Remembers an acknowledgement that was answered with an error and is stored now.
    pub(super) fn doubt(&mut self, place: Place, nonce: u64) {
        if self.doubtful.insert((place, nonce)) {
            self.doubtful_order.push_back((place, nonce));
        }
        if self.doubtful_order.len() > DOUBTFUL_MAX
            && let Some(oldest) = self.doubtful_order.pop_front()
        {
            self.doubtful.remove(&oldest);
        }
    }

    /// Forgets acknowledgements that a checkpoint job stored, or marks them as failed.
    pub(super) fn acks_were_stored(&mut self, job: u64, is_stored: bool) {
        let mut doubtful = Vec::new();
        self.unstored.retain(|place, unstored| {
            if job < unstored.job {
                return true;
            }
            if !is_stored {
                unstored.has_failed = true;
                return true;
            }
            if unstored.has_failed {
                doubtful.push((*place, unstored.nonce));
            }
            false
        });
        for (place, nonce) in doubtful {
            self.doubt(place, nonce);
        }
    }

    /// Waits for the jobs under way and takes what they answer, so that nothing of the present topic comes later.
    pub(super) async fn finish_jobs(&mut self) {
        while let Some(done) = self.jobs.next().await {
            self.done(done);
        }
    }

    /// Forgets the state of every partition.
    pub(super) fn forget_partitions(&mut self) {
        self.waits.clear();
        self.partitions.clear();
        for places in [&mut self.ready, &mut self.behind, &mut self.lent, &mut self.wanted, &mut self.tended]
        {
            places.clear();
        }
        self.due.clear();
        self.dirty.clear();
        self.dirty_soon.clear();
        self.cache.clear();
        self.unstored.clear();
        self.unreleased.clear();
        self.unparked.clear();
        self.parking.clear();
        for expiring in self.expiring.drain(..) {
            let _ = expiring.reply.send(Ok(true));
        }
    }

    fn end_if_stopped(&mut self) {
        let is_clean = self.answers.is_empty() && self.dirty.is_empty() && self.unparked.is_empty();
        // What cannot be stored now is not waited for: its callers have their errors.
        if !self.is_storing
            && (is_clean || self.rests_from_writing)
            && let Some(reply) = self.stopping.take()
        {
            self.is_over = true;
            let _ = reply.send(Ok(()));
        }
    }
}

/// Draws the nonce of a lease.
pub(super) fn nonce_from(parts: &Parts) -> u64 {
    u64::try_from((parts.entropy)() & u128::from(u64::MAX)).unwrap_or_default()
}

impl Reader {
    /// Answers every command with an error, but lets the group be deleted; until then, or until the host stops.
    async fn refuse(&mut self, error: &Error, commands: &mut mpsc::Receiver<Command>) {
        while !self.handle.is_dropped() {
            let command = tokio::select! {
                command = commands.recv() => command,
                () = self.handle.wake.notified() => continue,
            };
            let Some(command) = command else { return };
            let error = error.clone();
            match command {
                Command::Poll(waiter) => waiter.answer(Err(error)),
                Command::Ack { reply, .. } | Command::Nack { reply, .. } | Command::Left { reply, .. } => {
                    drop(reply.send(Err(error)));
                }
                Command::Extend { reply, .. } => drop(reply.send(Err(error))),
                Command::Redrive { reply, .. } => drop(reply.send(Err(error))),
                Command::ExpireBelow { reply, .. } => drop(reply.send(Err(error))),
                Command::Counts(reply) => drop(reply.send(Err(error))),
                Command::Topic => {}
                Command::Delete(reply) => {
                    let deleted = self.delete().await;
                    let is_over = deleted.is_ok();
                    let _ = reply.send(deleted);
                    if is_over {
                        return;
                    }
                }
                Command::Stop(reply) => {
                    let _ = reply.send(Ok(()));
                    return;
                }
            }
        }
    }

    pub(super) fn make_window(&self, floor: u64) -> Window {
        Window::new(self.handle.spec.window(&self.parts.settings), floor)
    }

    pub(super) fn restore_window(&self, saved: &delivery::Saved) -> Window {
        Window::restore(self.handle.spec.window(&self.parts.settings), saved)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }
}
