//! Message groups in service: single events are leased to clients until they are acknowledged.
//!
//! One task per group and topic (a *reader*) owns the windows of its partitions (`fulcrum_core::delivery`), reads
//! the log when a poll wants something, and makes what was settled durable: all acknowledgements that came while one
//! commit was under way share the next one.
//!
//! Invariants: an acknowledgement is answered after it is stored, a relaxed one before; what a poll or a closed
//! connection did not take is delivered again at once; one event wakes one poll; a reader holds at most its windows
//! and a few MiB of payloads in memory, however much is unread; what is dead-lettered is stored as a dead letter
//! before it counts as settled.

mod attributes;
mod cache;
mod dead;
mod filter;
mod id;
mod jobs;
mod keeping;
mod reader;
mod records;
mod registry;
mod restoring;
mod serving;
mod waiter;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fulcrum_core::Timestamp;
use fulcrum_core::delivery::Backoff;
use fulcrum_core::group::Start;
use fulcrum_core::time::Clock;
use fulcrum_store::{ClusterStore, EventLog, Expected, Topic, Update};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::groups::check_name;

pub use attributes::routing_key;
pub use dead::PAGE_BYTES;
pub use filter::{Filter, Filters};

use id::Id;
use reader::{Command, Handle, Name, Reader, Reply, Spec};
use records::{ReaderRecord, SubscriberRecord};
use registry::{Registry, Subscribed};
use waiter::{Answer, Waiter};

/// How long a delivery may be invisible to others.
pub const INVISIBLE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(12 * 3600);
/// How often one event may be delivered.
pub const DELIVERIES_MAX: std::ops::RangeInclusive<u32> = 1..=1000;
/// Longest wait that a nack may ask for.
pub const DELAY_MAX: Duration = Duration::from_secs(12 * 3600);
/// Name of the shared group of a subscription that names none.
pub const DEFAULT_GROUP: &str = "default";
/// Most deliveries of one poll, and most dead letters of one page.
pub const POLL_MAX: usize = 1000;

/// Commands waiting for one reader; more callers wait for room.
const QUEUE_LEN: usize = 1024;
/// Groups by topic, private ones too: each is a task, and each poll of a client goes to all of its own.
const READERS_MAX: usize = 100_000;
/// Subscriptions of one client.
const SUBSCRIPTIONS_MAX: usize = 1000;
/// How long one reader may take to count.
const COUNT_MAX: Duration = Duration::from_secs(1);
/// How long a poll that does not wait may take to look.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Why a call was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The client subscribes to nothing.
    #[error("client {0:?} has no subscription; subscribe first")]
    NotSubscribed(String),
    /// The delivery is over: acknowledged, taken back when its time ran out, or never made.
    #[error("there is no delivery {0:?}; it was settled, or its time ran out")]
    UnknownDelivery(String),
    /// No group of that name reads the topic.
    #[error("no message group {group:?} reads the topic {topic:?}")]
    UnknownGroup {
        /// Name of the group, empty if any would do.
        group: String,
        /// The topic, empty if any would do.
        topic: String,
    },
    /// The group was made with another setting.
    #[error("group {group:?} on topic {topic:?} was made with another {field}")]
    Conflict {
        /// Name of the group.
        group: String,
        /// Its topic.
        topic: String,
        /// The setting, as callers write it.
        field: &'static str,
    },
    /// A value is out of its range.
    #[error("{field} must be {must}")]
    Invalid {
        /// Name of the field, as callers write it.
        field: &'static str,
        /// What it must be.
        must: &'static str,
    },
    /// The client has, or the host keeps, so many subscriptions that it takes no more.
    #[error("there are too many {what} already, at most {max}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The cap.
        max: usize,
    },
    /// Too many polls of one group wait already.
    #[error("too many polls of this group wait already")]
    TooManyPolls,
    /// The state could not be stored; the call may take effect later.
    #[error("the group's state cannot be stored just now")]
    Store(#[from] fulcrum_store::Error),
    /// A stored record cannot be read.
    #[error("the stored record {key} cannot be read: {error}")]
    Corrupt {
        /// Its key.
        key: String,
        /// What is wrong with it.
        error: String,
    },
    /// The group's task crashed over this call or an earlier one; it is brought back from the store.
    #[error("the group had to be restarted; try again")]
    Restarted,
    /// The host is on its way out.
    #[error("the host is stopping")]
    Stopping,
}

/// What all readers share.
pub struct Parts {
    /// Where subscriptions, checkpoints and dead letters are kept.
    pub store: Arc<dyn ClusterStore>,
    /// Where the events are.
    pub log: Arc<dyn EventLog>,
    /// The host's clock.
    pub clock: Arc<dyn Clock>,
    /// Draws an unguessable number.
    pub entropy: Box<dyn Fn() -> u128 + Send + Sync>,
    /// Bounds and defaults.
    pub settings: Settings,
}

/// Bounds and defaults of all readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Deliveries a client may have in hand of one group and topic; at this many it gets nothing.
    pub in_flight_max: u32,
    /// How long a delivery is invisible to others unless its subscription says otherwise.
    pub invisible: Duration,
    /// How often an event is delivered before it is a dead letter unless its subscription says otherwise.
    pub deliveries_max: u32,
    /// How long a private group lives on after its last use.
    pub private_ttl: Duration,
    /// How long a client may stay away from a shared group before its subscription is forgotten.
    pub subscriber_ttl: Duration,
    /// Positions of one partition that are read ahead of the lowest unsettled one.
    pub window: u64,
    /// How long the deliveries of a closed connection, or of a client that unsubscribed, may still be answered.
    pub return_delay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            in_flight_max: 1000,
            invisible: Duration::from_secs(60),
            deliveries_max: 17,
            private_ttl: Duration::from_secs(600),
            subscriber_ttl: Duration::from_secs(24 * 3600),
            window: 10_000,
            return_delay: Duration::from_secs(1),
        }
    }
}

/// How the events of a topic are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Each event goes to one client of the group.
    LoadBalance,
    /// Each client gets every event.
    Broadcast,
    /// Each client gets every event that its filters let through.
    Multicast,
}

/// Whether a group is one of many clients or a client's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Named by its clients, lives until it is deleted, and holds the retention.
    Shared,
    /// Named after its client, dropped some time after its last use.
    Private,
}

/// A client's wish for a topic's events.
#[derive(Clone, Debug, PartialEq)]
pub struct Subscription {
    /// Who.
    pub client: String,
    /// What of; made when there is none.
    pub topic: String,
    /// How.
    pub mode: Mode,
    /// Name of the group, `default` if not given; only with [`Mode::LoadBalance`].
    pub group: Option<String>,
    /// Which events; `None` takes them all. Not with [`Mode::Broadcast`].
    pub filters: Option<Filters>,
    /// How long a delivery is invisible to others, within [`INVISIBLE`].
    pub invisible: Option<Duration>,
    /// How often one event is delivered before it is a dead letter, within [`DELIVERIES_MAX`].
    pub deliveries_max: Option<u32>,
    /// Whether events of one routing key are delivered one after the other.
    pub fifo: Option<bool>,
    /// Where a new group starts; at the end if not given. Says nothing to a group that exists.
    pub start: Option<Start>,
    /// How long an event waits after a nack or a lease that ran out by nack.
    pub backoff: Option<Backoff>,
}

impl Subscription {
    /// Makes a wish with every setting left open.
    #[must_use]
    pub fn new(client: impl Into<String>, topic: impl Into<String>, mode: Mode) -> Self {
        Self {
            client: client.into(),
            topic: topic.into(),
            mode,
            group: None,
            filters: None,
            invisible: None,
            deliveries_max: None,
            fifo: None,
            start: None,
            backoff: None,
        }
    }
}

/// One event leased to one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Names it in ack, nack and extend.
    pub id: String,
    /// The event as it was published: JSON on one line.
    pub event: Bytes,
    /// Which delivery of this event to this group it is, from 1.
    pub attempt: u32,
    /// Its topic.
    pub topic: Arc<str>,
    /// Its partition.
    pub partition: u32,
    /// Its place there.
    pub position: u64,
}

/// An event that a group gave up on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Names it in a redrive; pages go on after it.
    pub id: String,
    /// Whether the group is shared or a client's own.
    pub kind: Kind,
    /// Name of the group.
    pub group: String,
    /// Its topic.
    pub topic: String,
    /// Its partition.
    pub partition: u32,
    /// Its place there.
    pub position: u64,
    /// How often it was delivered.
    pub attempts: u32,
    /// Why: `rejected`, `lease_ended`, `expired` (dropped by a hard limit of the topic), or `unknown` after a restart.
    pub reason: String,
    /// When it became one.
    pub at: Timestamp,
    /// The event as it was published.
    pub event: Bytes,
}

/// One message group as it is, on one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Whether it is shared or a client's own.
    pub kind: Kind,
    /// Its name.
    pub group: String,
    /// Its topic.
    pub topic: String,
    /// Whether it keeps the order of keys.
    pub is_fifo: bool,
    /// Clients that subscribe.
    pub subscribers: u64,
    /// Polls that wait.
    pub polls_waiting: u64,
    /// Events that can be delivered now.
    pub ready: u64,
    /// Events that wait for their retry or for an earlier one of their key.
    pub waiting: u64,
    /// Events leased to a client.
    pub in_flight: u64,
    /// Events whose payload moved to a retry record.
    pub parked: u64,
    /// Events whose dead letter is being stored.
    pub dying: u64,
    /// Partitions whose window is full: nothing is read there until something is settled.
    pub windows_full: u64,
    /// Unsettled events and positions that were not fetched yet, over all partitions; gaps count.
    pub lag: u64,
    /// What happened since the host started.
    pub totals: Totals,
}

/// What happened to a group's events since the host started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Deliveries made.
    pub delivered: u64,
    /// Acknowledged.
    pub acked: u64,
    /// Refused by their client.
    pub nacked: u64,
    /// Leases that ran out.
    pub expired: u64,
    /// Dead letters made.
    pub dead: u64,
    /// Not let through by filters.
    pub filtered: u64,
}

/// See the module.
pub struct Pulls {
    parts: Arc<Parts>,
    is_stopping: Arc<AtomicBool>,
    registry: Mutex<Registry>,
    /// Written while a reader is made or deleted, or a subscription ended; read while somebody subscribes. Which one,
    /// the reader's name says.
    making: [tokio::sync::RwLock<()>; 16],
    /// Polls so far: each begins with another reader of its client.
    polls: AtomicU64,
    /// Connections so far.
    connections: AtomicU64,
}

impl Pulls {
    /// Brings back every group that was stored; their windows are read by their own tasks, so this does not wait for
    /// a big state. Everything that was unsettled can be delivered at once.
    ///
    /// Errors with [`Error::Store`] and [`Error::Corrupt`]. Must be called inside a tokio runtime.
    pub async fn open(parts: Parts) -> Result<Arc<Self>, Error> {
        // Numbers of another life of the host are far away.
        let first_number = u64::try_from((parts.entropy)() >> 80).unwrap_or_default();
        let pulls = Arc::new(Self {
            parts: Arc::new(parts),
            is_stopping: Arc::default(),
            registry: Mutex::new(Registry::new(first_number)),
            making: std::array::from_fn(|_| tokio::sync::RwLock::default()),
            polls: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let store = &pulls.parts.store;
        for entry in store.list(records::READERS).await? {
            let Some(name) = records::reader_of(&entry.key) else { continue };
            let record: ReaderRecord = records::decode(&entry.key, &entry.versioned.value)?;
            pulls.spawn(&name, Arc::new(record.spec()?));
        }
        for entry in store.list(records::SUBSCRIBERS).await? {
            let Some((name, client)) = records::subscriber_of(&entry.key) else { continue };
            if pulls.registry.lock().readers.contains_key(&name) {
                let record: SubscriberRecord = records::decode(&entry.key, &entry.versioned.value)?;
                pulls.subscribed(&name, &client, record.id);
            } else {
                // The host crashed while the group was deleted.
                jobs::delete(&**store, &entry.key, Some(entry.versioned.revision)).await?;
            }
        }
        let beat = pulls.parts.settings.private_ttl.min(pulls.parts.settings.subscriber_ttl) / 10;
        let beat = beat.clamp(Duration::from_secs(1), Duration::from_secs(60));
        let weak = Arc::downgrade(&pulls);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(beat).await;
                let Some(pulls) = weak.upgrade() else { return };
                if pulls.is_stopping() {
                    return;
                }
                pulls.sweep().await;
            }
        });
        Ok(pulls)
    }

    /// Ends every poll with nothing, stores the acknowledgements in hand, and ends the tasks; later calls get
    /// [`Error::Stopping`].
    pub async fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        let handles: Vec<_> = self.registry.lock().readers.values().cloned().collect();
        join_all(handles.into_iter().map(|handle| async move {
            let (reply, stopped) = oneshot::channel();
            if handle.commands.send(Command::Stop(reply)).await.is_ok() {
                // It ended, one way or the other.
                let _ = stopped.await;
            }
        }))
        .await;
    }

    /// Subscribes a client to a topic that is there, making the group if it is new; returns the subscription's id
    /// once that is durable. The same client, topic and group again changes nothing and gets the same id.
    ///
    /// Errors with [`Error::Conflict`] if a setting is given and the group was made with another,
    /// [`Error::Invalid`], [`Error::TooMany`] and [`Error::Store`].
    pub async fn subscribe(&self, subscription: Subscription) -> Result<String, Error> {
        self.refuse_if_stopping()?;
        check(&subscription)?;
        let Subscription { client, topic, .. } = &subscription;
        let name = name_of(&subscription);
        self.refuse_too_many(&name, client)?;
        let found = self.parts.log.topic(topic).await?;
        loop {
            let using = self.making(&name).read().await;
            if let Some(handle) = self.living(&name).await? {
                check_settings(&subscription, &handle)?;
                let id = self.store_subscriber(&name, client).await?;
                return Ok(self.subscribed(&name, client, id));
            }
            drop(using);
            // It may be deleted before it is used.
            self.make(&name, &subscription, &found).await?;
            self.refuse_if_stopping()?;
        }
    }

    /// Ends a client's subscriptions, all or those of one topic; returns how many that were. Its deliveries come
    /// back early. A shared group stays; a private one is dropped.
    pub async fn unsubscribe(&self, client: &str, topic: Option<&str>) -> Result<usize, Error> {
        self.refuse_if_stopping()?;
        let names = self.registry.lock().names_of(client);
        let mut removed = 0;
        for name in names.into_iter().filter(|name| topic.is_none_or(|topic| *name.topic == *topic)) {
            let is_subscribed = || self.registry.lock().names_of(client).contains(&name);
            removed += usize::from(self.remove(&name, client, is_subscribed).await?);
        }
        Ok(removed)
    }

    /// Leases up to `max` events (at most [`POLL_MAX`]) to a client: at once if there are any, else as soon as there
    /// are, and none when `timeout` is over. `via` is the number of a [`Connection`], 0 for a poll without one.
    ///
    /// Dropping the future loses nothing. Errors with [`Error::NotSubscribed`] and [`Error::TooManyPolls`].
    pub async fn poll(
        self: &Arc<Self>,
        client: &str,
        max: usize,
        timeout: Duration,
        via: u64,
    ) -> Result<Vec<Delivery>, Error> {
        self.refuse_if_stopping()?;
        let names = self.use_all(client)?;
        let mut handles = Vec::with_capacity(names.len());
        for name in names {
            handles.extend(self.living(&name).await?);
        }
        // All are being deleted. Who polls in a loop must not take that for a wait that is over.
        if handles.is_empty() {
            return Err(Error::NotSubscribed(client.to_owned()));
        }
        let turn = usize::try_from(self.polls.fetch_add(1, Ordering::Relaxed)).unwrap_or_default();
        let first = turn.checked_rem(handles.len()).unwrap_or_default();
        handles.rotate_left(first);
        let is_patient = !timeout.is_zero();
        let max = max.clamp(1, POLL_MAX);
        let (waiter, receiver) = Waiter::new(client.into(), max, via, is_patient, handles.len());
        let mut waiting = Waiting { pulls: self.clone(), receiver: Some(receiver) };
        let asked = async {
            for handle in handles {
                if handle.commands.send(Command::Poll(waiter.clone())).await.is_err() {
                    waiter.nothing();
                }
            }
            // From here on only the readers can answer, and if they all ended nobody will.
            drop(waiter);
            waiting.answered().await
        };
        let timeout = if is_patient { timeout } else { LOOK_MAX };
        let answer = match tokio::time::timeout(timeout, asked).await {
            Ok(answer) => answer,
            Err(_) => waiting.last_look(),
        };
        // A long poll counts as a use until its end.
        drop(self.use_all(client));
        answer
    }

    /// Registers a client's connection; when the guard is dropped, what was delivered over it comes back early.
    ///
    /// Errors with [`Error::NotSubscribed`].
    pub fn connection(self: &Arc<Self>, client: &str) -> Result<Connection, Error> {
        self.use_all(client)?;
        let via = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Connection { pulls: self.clone(), client: client.into(), via })
    }

    /// Settles a delivery: its group never gets the event again. Answered once that is durable, or at once if
    /// `is_relaxed`: then a crash may deliver it again.
    ///
    /// Errors with [`Error::UnknownDelivery`], and with [`Error::Store`]: then the same call may be repeated.
    pub async fn ack(&self, id: &str, is_relaxed: bool) -> Result<(), Error> {
        self.ask_of(id, |id, reply| Command::Ack { id, is_relaxed, reply }).await
    }

    /// Gives a delivery back: it comes again after `delay` (at most [`DELAY_MAX`]), or after what the group's
    /// backoff says; or it becomes a dead letter.
    ///
    /// Errors with [`Error::UnknownDelivery`], [`Error::Invalid`] and [`Error::Store`]: then it counts, but may be
    /// forgotten over a crash.
    pub async fn nack(&self, id: &str, delay: Option<Duration>) -> Result<(), Error> {
        if delay.is_some_and(|delay| DELAY_MAX < delay) {
            return Err(Error::Invalid { field: "delayMs", must: "at most 43200000" });
        }
        self.ask_of(id, |id, reply| Command::Nack { id, delay, reply }).await
    }

    /// Keeps a delivery invisible to others for `invisible` from now on; returns its new id, the old one is over.
    ///
    /// Errors with [`Error::UnknownDelivery`] and [`Error::Invalid`].
    pub async fn extend(&self, id: &str, invisible: Duration) -> Result<String, Error> {
        check_invisible(invisible)?;
        let extended = self.ask_of(id, |id, reply| Command::Extend { id, invisible, reply }).await?;
        Ok(extended.to_string())
    }

    /// Returns the lowest position of a partition that a shared group still needs; `None` if there is no such group.
    /// A group that is still being brought back needs everything.
    #[must_use]
    pub fn floors(&self, topic: &str, partition: u32) -> Option<u64> {
        let handles = self.registry.lock().shared_of(topic);
        let floor = |handle: &Arc<Handle>| {
            let floors = handle.floors.lock();
            floors.as_ref().and_then(|floors| floors.get(partition as usize).copied()).unwrap_or(0)
        };
        handles.iter().map(floor).min()
    }

    /// Makes dead letters (reason `expired`) of up to `max` events, of each shared group, that it has not settled
    /// below `position`; returns whether there are no more.
    pub async fn expire_below(
        &self,
        topic: &str,
        partition: u32,
        position: u64,
        max: usize,
    ) -> Result<bool, Error> {
        let handles = self.registry.lock().shared_of(topic);
        let mut is_done = true;
        for handle in handles {
            let expire = |reply| Command::ExpireBelow { partition, position, max, reply };
            match self.ask(&handle.name, expire).await {
                Ok(none_left) => is_done &= none_left,
                // It was deleted meanwhile.
                Err(Error::UnknownGroup { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(is_done)
    }

    /// Tells the readers of a topic that it was made, grew or is gone; they look for themselves.
    pub async fn topic_changed(&self, topic: &str) {
        let handles = self.registry.lock().all_of(topic);
        for handle in handles {
            // One that ended reads the topic when it is brought back.
            let _ = handle.commands.send(Command::Topic).await;
        }
    }

    /// Tells whether a group that keeps the order of keys reads the topic: its partition count must not change then.
    #[must_use]
    pub fn is_fifo_reading(&self, topic: &str) -> bool {
        self.registry.lock().all_of(topic).iter().any(|handle| handle.spec.is_fifo)
    }

    /// Returns the names of all shared groups with the topics they read, both ascending.
    #[must_use]
    pub fn names(&self) -> BTreeMap<String, Vec<String>> {
        let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in self.registry.lock().readers.keys().filter(|name| name.kind == Kind::Shared) {
            names.entry(name.group.to_string()).or_default().push(name.topic.to_string());
        }
        names
    }

    /// Tells whether there is a shared group of that name.
    #[must_use]
    pub fn is_group(&self, name: &str) -> bool {
        let registry = self.registry.lock();
        registry.readers.keys().any(|at| at.kind == Kind::Shared && *at.group == *name)
    }

    /// Counts what there is of all groups, by kind, name and topic.
    pub async fn counts(&self) -> Vec<Counts> {
        let (handles, subscribers) = {
            let registry = self.registry.lock();
            (registry.readers.values().cloned().collect::<Vec<_>>(), registry.subscriber_counts())
        };
        let mut ends: Option<(Arc<str>, Vec<u64>)> = None;
        let mut counts = Vec::new();
        // Together, and within a bound: one that is held up, by a slow disk for example, must not hide the others.
        let asked = handles.iter().map(|handle| {
            let found = tokio::time::timeout(COUNT_MAX, self.ask(&handle.name, Command::Counts));
            async move { (&handle.name, found.await) }
        });
        for (name, found) in join_all(asked).await {
            // One that was deleted meanwhile is not there.
            let Ok(Ok((mut found, nexts))) = found else { continue };
            if ends.as_ref().is_none_or(|(topic, _)| *topic != name.topic) {
                let partitions = self.parts.log.partitions(&name.topic).await.unwrap_or_default();
                ends = Some((name.topic.clone(), partitions.iter().map(|at| at.end.0).collect()));
            }
            let ends = ends.iter().flat_map(|(_, ends)| ends);
            let unread: u64 = ends.zip(&nexts).map(|(end, next)| end.saturating_sub(*next)).sum();
            // Each unsettled event is in one of these, parked or not.
            found.lag = unread + found.ready + found.waiting + found.in_flight + found.dying;
            found.subscribers = subscribers.get(name).copied().unwrap_or_default();
            counts.push(found);
        }
        counts.sort_by(|a, b| (a.kind, &a.group, &a.topic).cmp(&(b.kind, &b.group, &b.topic)));
        counts
    }

    /// Forgets a shared group on all its topics, with its progress, retries and dead letters.
    ///
    /// Errors with [`Error::UnknownGroup`].
    pub async fn delete_group(&self, name: &str) -> Result<(), Error> {
        self.refuse_if_stopping()?;
        let is_it = |at: &&Name| at.kind == Kind::Shared && *at.group == *name;
        let names: Vec<_> = self.registry.lock().readers.keys().filter(is_it).cloned().collect();
        if names.is_empty() {
            return Err(Error::UnknownGroup { group: name.to_owned(), topic: String::new() });
        }
        for name in names {
            self.delete(&name).await?;
        }
        Ok(())
    }

    /// Drops private groups and subscriptions that were not used for too long, by this host's own clock.
    pub(crate) async fn sweep(&self) {
        let settings = &self.parts.settings;
        let ttl_of = |kind| match kind {
            Kind::Private => settings.private_ttl,
            Kind::Shared => settings.subscriber_ttl,
        };
        let now = self.now_ms();
        let is_over = |kind, used| fulcrum_core::time::millis(ttl_of(kind)) < now.saturating_sub(used);
        let unused = self.registry.lock().unused(is_over);
        for (name, client) in unused {
            // It may have been used again while others were dropped.
            let is_unused = || self.registry.lock().is_unused(&name, &client, is_over);
            if let Err(error) = self.remove(&name, &client, is_unused).await {
                let Name { topic, group, .. } = &name;
                tracing::warn!(%topic, %group, %error, "an unused subscription cannot be dropped just now");
            }
        }
    }

    /// Ends one subscription, and its group if that is private, unless `is_due` says no by now; returns what it said.
    async fn remove(&self, name: &Name, client: &str, is_due: impl Fn() -> bool) -> Result<bool, Error> {
        let alone = self.making(name).write().await;
        if !is_due() {
            return Ok(false);
        }
        if name.kind == Kind::Private {
            return self.delete_alone(name).await.map(|()| true);
        }
        jobs::delete(&*self.parts.store, &records::subscriber_key(name, client), None).await?;
        self.registry.lock().forget(name, client);
        drop(alone);
        match self.ask(name, |reply| Command::Left { client: client.into(), reply }).await {
            // A group that is gone, or was brought back, has no deliveries to take back.
            Err(Error::UnknownGroup { .. } | Error::Restarted) => Ok(true),
            left => left.map(|()| true),
        }
    }

    fn making(&self, name: &Name) -> &tokio::sync::RwLock<()> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let count = self.making.len() as u64;
        &self.making[usize::try_from(hasher.finish() % count).unwrap_or_default()]
    }

    /// Deletes one reader with its subscribers.
    async fn delete(&self, name: &Name) -> Result<(), Error> {
        let _alone = self.making(name).write().await;
        self.delete_alone(name).await
    }

    /// Deletes it while nobody makes it or subscribes to it. After an error the same call gets on with what is left.
    async fn delete_alone(&self, name: &Name) -> Result<(), Error> {
        self.living(name).await?;
        let handle = self.registry.lock().readers.get(name).cloned();
        match self.ask(name, Command::Delete).await {
            // It may have been half deleted before, or somebody else was faster.
            Ok(()) | Err(Error::UnknownGroup { .. }) => {}
            Err(error) => return Err(error),
        }
        if let Some(handle) = &handle {
            jobs::Work::new(self.parts.clone(), name.clone(), handle.spec.clone()).wipe().await?;
        }
        let store = &*self.parts.store;
        for entry in store.list(&records::subscribers_prefix(name)).await? {
            jobs::delete(store, &entry.key, Some(entry.versioned.revision)).await?;
        }
        self.registry.lock().remove(name, handle.as_ref());
        Ok(())
    }

    /// Makes a reader if there is none.
    async fn make(&self, name: &Name, wish: &Subscription, topic: &Topic) -> Result<(), Error> {
        let _alone = self.making(name).write().await;
        if self.living(name).await?.is_some() {
            return Ok(());
        }
        let settings = &self.parts.settings;
        let spec = Arc::new(Spec {
            mode: wish.mode,
            filters: wish.filters.clone().unwrap_or_default(),
            invisible: wish.invisible.unwrap_or(settings.invisible),
            deliveries_max: wish.deliveries_max.unwrap_or(settings.deliveries_max),
            is_fifo: wish.fifo.unwrap_or(false),
            backoff: wish.backoff.clone().unwrap_or(Backoff::Table),
        });
        // A crash may have left something of a group of this name that was deleted.
        let work = jobs::Work::new(self.parts.clone(), name.clone(), spec.clone());
        let key = records::reader_key(name);
        if self.parts.store.get(&key).await?.is_none() {
            work.wipe().await?;
        }
        let starts = match wish.start.unwrap_or(Start::Latest) {
            Start::Earliest => Vec::new(),
            Start::Latest => {
                let partitions = self.parts.log.partitions(&topic.name).await?;
                partitions.iter().map(|at| at.end.0).collect()
            }
        };
        let record = records::encode(&ReaderRecord::new(&spec, topic.incarnation, starts));
        let made = self.parts.store.compare_and_swap(&key, Expected::Absent, Update::Put(record)).await;
        match made {
            Ok(_) => {
                self.spawn(name, spec);
                Ok(())
            }
            // Somebody else was faster.
            Err(fulcrum_store::Error::Conflict { .. }) => match self.living_or_stored(name).await? {
                Some(_) => Ok(()),
                None => Err(Error::Restarted),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn refuse_too_many(&self, name: &Name, client: &str) -> Result<(), Error> {
        let registry = self.registry.lock();
        if !registry.readers.contains_key(name) && READERS_MAX <= registry.readers.len() {
            return Err(Error::TooMany { what: "message groups", max: READERS_MAX });
        }
        let names = registry.names_of(client);
        if !names.contains(name) && SUBSCRIPTIONS_MAX <= names.len() {
            return Err(Error::TooMany { what: "subscriptions of this client", max: SUBSCRIPTIONS_MAX });
        }
        Ok(())
    }

    async fn store_subscriber(&self, name: &Name, client: &str) -> Result<String, Error> {
        let key = records::subscriber_key(name, client);
        let id = format!("{:032x}", (self.parts.entropy)());
        let record = records::encode(&SubscriberRecord { id: id.clone() });
        let store = &self.parts.store;
        if let Some(found) = store.get(&key).await? {
            let found: SubscriberRecord = records::decode(&key, &found.value)?;
            return Ok(found.id);
        }
        match store.compare_and_swap(&key, Expected::Absent, Update::Put(record)).await {
            Ok(_) => Ok(id),
            Err(fulcrum_store::Error::Conflict { .. }) => {
                let Some(found) = store.get(&key).await? else { return Err(Error::Restarted) };
                let found: SubscriberRecord = records::decode(&key, &found.value)?;
                Ok(found.id)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes note of a subscription and of its use; returns its id.
    fn subscribed(&self, name: &Name, client: &str, id: String) -> String {
        self.registry.lock().subscribe(name, client, Subscribed { id, used: self.now_ms() })
    }

    /// Takes note of a use of a client's subscriptions; returns what it reads.
    fn use_all(&self, client: &str) -> Result<Vec<Name>, Error> {
        let now = self.now_ms();
        let names = self.registry.lock().use_all(client, now);
        if names.is_empty() { Err(Error::NotSubscribed(client.to_owned())) } else { Ok(names) }
    }

    fn spawn(&self, name: &Name, spec: Arc<Spec>) -> Arc<Handle> {
        let mut registry = self.registry.lock();
        // Two callers may have found no reader at the same time: the first one's stays.
        if let Some(handle) = registry.readers.get(name).filter(|handle| !handle.commands.is_closed()) {
            return handle.clone();
        }
        let (commands, receiver) = mpsc::channel(QUEUE_LEN);
        let number = registry.next_number();
        let handle = Arc::new(Handle::new(name.clone(), number, spec, commands, self.is_stopping.clone()));
        registry.insert(handle.clone());
        tokio::spawn(Reader::new(self.parts.clone(), handle.clone()).run(receiver));
        handle
    }

    /// Returns the way to a reader's task. One that crashed is brought back from the store.
    async fn living(&self, name: &Name) -> Result<Option<Arc<Handle>>, Error> {
        let known = self.registry.lock().readers.get(name).cloned();
        match known {
            Some(handle) if handle.commands.is_closed() => {
                self.refuse_if_stopping()?;
                let living = self.living_or_stored(name).await?;
                if living.is_some() {
                    let Name { topic, group, .. } = name;
                    tracing::error!(%topic, %group, "a message group's task crashed; it is brought back from the store");
                }
                Ok(living)
            }
            known => Ok(known),
        }
    }

    async fn living_or_stored(&self, name: &Name) -> Result<Option<Arc<Handle>>, Error> {
        let key = records::reader_key(name);
        let Some(found) = self.parts.store.get(&key).await? else { return Ok(None) };
        let record: ReaderRecord = records::decode(&key, &found.value)?;
        Ok(Some(self.spawn(name, Arc::new(record.spec()?))))
    }

    async fn ask<T>(&self, name: &Name, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Error> {
        self.refuse_if_stopping()?;
        let unknown = || Error::UnknownGroup { group: name.group.to_string(), topic: name.topic.to_string() };
        let handle = self.living(name).await?.ok_or_else(unknown)?;
        self.ask_handle(&handle, command).await
    }

    async fn ask_of<T>(&self, id: &str, command: impl FnOnce(Id, Reply<T>) -> Command) -> Result<T, Error> {
        self.refuse_if_stopping()?;
        let unknown = || Error::UnknownDelivery(id.to_owned());
        let parsed = Id::parse(id).ok_or_else(unknown)?;
        let handle = self.registry.lock().by_number(parsed.reader).ok_or_else(unknown)?;
        match self.ask_handle(&handle, |reply| command(parsed, reply)).await {
            // What it delivered is over.
            Err(Error::UnknownGroup { .. }) => Err(unknown()),
            answer => answer,
        }
    }

    async fn ask_handle<T>(
        &self,
        handle: &Arc<Handle>,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        if handle.commands.send(command(reply)).await.is_ok()
            && let Ok(answer) = answer.await
        {
            return answer;
        }
        // Only a task that ended does not answer: the host stops, the group was deleted meanwhile, or it crashed.
        handle.commands.closed().await;
        self.refuse_if_stopping()?;
        let Name { group, topic, .. } = &handle.name;
        match self.living(&handle.name).await? {
            Some(_) => Err(Error::Restarted),
            None => Err(Error::UnknownGroup { group: group.to_string(), topic: topic.to_string() }),
        }
    }

    fn undelivered(&self, deliveries: &[Delivery]) {
        let ids: Vec<_> = deliveries.iter().filter_map(|delivery| Id::parse(&delivery.id)).collect();
        // All deliveries of one poll come from one reader.
        let Some(first) = ids.first() else { return };
        let handle = self.registry.lock().by_number(first.reader);
        if let Some(handle) = handle {
            handle.undelivered(ids);
        }
    }

    fn refuse_if_stopping(&self) -> Result<(), Error> {
        if self.is_stopping() { Err(Error::Stopping) } else { Ok(()) }
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn now_ms(&self) -> u64 {
        self.parts.clock.nanos() / 1_000_000
    }
}

impl Drop for Pulls {
    fn drop(&mut self) {
        // After a stop they are over already.
        for handle in self.registry.get_mut().readers.values() {
            handle.dropped();
        }
    }
}

/// A client's connection; see [`Pulls::connection`].
pub struct Connection {
    pulls: Arc<Pulls>,
    client: Arc<str>,
    via: u64,
}

impl Connection {
    /// Returns its number, for [`Pulls::poll`].
    #[must_use]
    pub fn via(&self) -> u64 {
        self.via
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let registry = self.pulls.registry.lock();
        let handles: Vec<_> = registry
            .names_of(&self.client)
            .iter()
            .filter_map(|name| registry.readers.get(name).cloned())
            .collect();
        drop(registry);
        for handle in handles {
            handle.closed(self.via);
        }
    }
}

/// A poll under way. Dropped early, it gives back what it was given.
struct Waiting {
    pulls: Arc<Pulls>,
    receiver: Option<oneshot::Receiver<Answer>>,
}

impl Waiting {
    async fn answered(&mut self) -> Answer {
        let Some(receiver) = &mut self.receiver else { return Ok(Vec::new()) };
        let answer = receiver.await;
        self.receiver = None;
        // All readers ended.
        answer.unwrap_or_else(|_| Ok(Vec::new()))
    }

    /// Nobody may answer any more; returns what somebody did.
    fn last_look(&mut self) -> Answer {
        let Some(mut receiver) = self.receiver.take() else { return Ok(Vec::new()) };
        receiver.close();
        receiver.try_recv().unwrap_or_else(|_| Ok(Vec::new()))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Ok(deliveries) = self.last_look() {
            self.pulls.undelivered(&deliveries);
        }
    }
}

/// Returns which reader a subscription is of.
fn name_of(subscription: &Subscription) -> Name {
    let Subscription { client, topic, mode, group, .. } = subscription;
    let (kind, group) = match mode {
        Mode::LoadBalance => (Kind::Shared, group.as_deref().unwrap_or(DEFAULT_GROUP)),
        Mode::Broadcast | Mode::Multicast => (Kind::Private, client.as_str()),
    };
    Name { topic: topic.as_str().into(), kind, group: group.into() }
}

/// Checks what a client says of itself.
fn check(subscription: &Subscription) -> Result<(), Error> {
    let Subscription { client, topic, mode, group, filters, invisible, deliveries_max, backoff, .. } =
        subscription;
    let fits = |field, name: &str| match check_name(field, name) {
        Err(crate::groups::Error::Invalid { field, must }) => Err(Error::Invalid { field, must }),
        _ => Ok(()),
    };
    fits("clientId", client)?;
    fits("topic", topic)?;
    if let Some(group) = group {
        fits("group", group)?;
        if *mode != Mode::LoadBalance {
            return Err(Error::Invalid { field: "group", must: "left out unless the mode is LOAD_BALANCE" });
        }
    }
    if *mode == Mode::Broadcast && filters.as_ref().is_some_and(|filters| !filters.is_empty()) {
        return Err(Error::Invalid { field: "filters", must: "left out in the mode BROADCAST" });
    }
    if let Some(invisible) = invisible {
        check_invisible(*invisible)?;
    }
    if deliveries_max.is_some_and(|max| !DELIVERIES_MAX.contains(&max)) {
        return Err(Error::Invalid { field: "maxDeliveries", must: "1 to 1000" });
    }
    if let Some(Backoff::Exponential { max, multiplier, .. }) = backoff
        && (*multiplier == 0 || DELAY_MAX < *max)
    {
        let must = "one with a multiplier of at least 1 and a maxMs of at most 43200000";
        return Err(Error::Invalid { field: "backoff", must });
    }
    Ok(())
}

fn check_invisible(invisible: Duration) -> Result<(), Error> {
    if INVISIBLE.contains(&invisible) {
        Ok(())
    } else {
        Err(Error::Invalid { field: "invisibleMs", must: "1000 to 43200000" })
    }
}

/// Refuses a wish that the group was not made for.
fn check_settings(wish: &Subscription, handle: &Handle) -> Result<(), Error> {
    let spec = &handle.spec;
    let differs = [
        ("mode", wish.mode != spec.mode),
        ("filters", wish.filters.as_ref().is_some_and(|filters| *filters != spec.filters)),
        ("invisibleMs", wish.invisible.is_some_and(|invisible| invisible != spec.invisible)),
        ("maxDeliveries", wish.deliveries_max.is_some_and(|max| max != spec.deliveries_max)),
        ("fifo", wish.fifo.is_some_and(|fifo| fifo != spec.is_fifo)),
        ("backoff", wish.backoff.as_ref().is_some_and(|backoff| *backoff != spec.backoff)),
    ];
    match differs.into_iter().find(|(_, differs)| *differs) {
        None => Ok(()),
        Some((field, _)) => Err(Error::Conflict {
            group: handle.name.group.to_string(),
            topic: handle.name.topic.to_string(),
            field,
        }),
    }
}

#[cfg(test)]
mod tests;
