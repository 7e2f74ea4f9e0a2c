//! Consumer groups in service: one task per group runs its state, makes it durable, and tells its members.
//!
//! Invariants: nobody hears of a step before it is stored; a group has one task, so its steps have one order; what
//! the store refused is stored before anything else happens. The state itself is [`state::State`], which knows no
//! task and no store: a simulator drives the same one.

mod actor;
mod offsets;
mod records;
pub mod state;
pub mod story;
pub(crate) mod topics;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fulcrum_core::NAME_BYTES_MAX;
use fulcrum_core::claiming::Cycle;
use fulcrum_core::group::{Heartbeat, Join, Joined, Place, Refused};
use fulcrum_core::time::Clock;
use fulcrum_policy::planner::{Planned, Planner, Wish};
use fulcrum_policy::seat::Identity;
use fulcrum_store::{ClusterStore, EventLog};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use actor::{Actor, Command, Reply};
pub use offsets::{Reset, Target};
pub use state::{
    Counts, CycleReport, MemberView, Moved, PartitionView, Spec, SpecPatch, Told, View, Warning, WarningKind,
};
pub use story::{Origin, Story};

/// Most topics one member subscribes to.
const TOPICS_MAX: usize = 1000;
/// Largest relative capacity of a member, in thousandths.
const CAPACITY_MILLI_MAX: u64 = 1_000_000_000;
/// How long a member may want to be silent.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(24 * 3600);

/// Commands waiting for one group; more callers wait for room.
const QUEUE_LEN: usize = 1024;

/// Why a call was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no such group.
    #[error("there is no group {0:?}; it is made when its first member joins")]
    UnknownGroup(String),
    /// The group refused the call; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refused),
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
    /// A value is out of its range.
    #[error("{field} must be {must}")]
    Invalid {
        /// Name of the field, as callers write it.
        field: &'static str,
        /// What it must be.
        must: &'static str,
    },
    /// The group's task crashed over this call or an earlier one; the group is brought back from the store.
    #[error("the group had to be restarted; read its state before doing this again")]
    Restarted,
    /// The host is on its way out.
    #[error("the host is stopping")]
    Stopping,
}

/// Who plans for groups.
pub trait Plans: Send + Sync {
    /// Plans one cycle; may block up to the claiming deadline.
    fn plan(&self, group: &str, wish: &Wish, cycle: &Cycle) -> Planned;
    /// Returns the version that would plan now, or what keeps it from being used.
    fn version(&self, group: &str, wish: &Wish) -> Result<Arc<Identity>, String>;
}

impl Plans for Planner {
    fn plan(&self, group: &str, wish: &Wish, cycle: &Cycle) -> Planned {
        Self::plan(self, group, wish, cycle)
    }

    fn version(&self, group: &str, wish: &Wish) -> Result<Arc<Identity>, String> {
        Self::version(self, group, wish)
    }
}

/// What all groups share.
pub struct Parts {
    /// Where members, ownership and checkpoints are kept.
    pub store: Arc<dyn ClusterStore>,
    /// Where the events are.
    pub log: Arc<dyn EventLog>,
    /// Who plans.
    pub plans: Arc<dyn Plans>,
    /// The host's clock.
    pub clock: Arc<dyn Clock>,
    /// What a group is set to until it is told otherwise.
    pub defaults: Spec,
    /// Chance of this life of the host.
    pub boot_seed: u64,
    /// Draws an unguessable number.
    pub entropy: Box<dyn Fn() -> u128 + Send + Sync>,
}

/// See the module.
pub struct Groups {
    parts: Arc<Parts>,
    actors: Mutex<HashMap<String, mpsc::Sender<Command>>>,
    version_changes: Arc<AtomicU64>,
    is_stopping: AtomicBool,
}

impl Groups {
    /// Brings back every group that was stored; ages start anew, and nobody has to join again.
    ///
    /// Errors with [`Error::Store`]. Must be called inside a tokio runtime.
    pub async fn open(parts: Parts) -> Result<Arc<Self>, Error> {
        let groups = Arc::new(Self {
            parts: Arc::new(parts),
            actors: Mutex::default(),
            version_changes: Arc::default(),
            is_stopping: AtomicBool::new(false),
        });
        let entries = groups.parts.store.list(records::PREFIX).await?;
        let mut by_group: BTreeMap<String, Vec<fulcrum_store::Entry>> = BTreeMap::new();
        for entry in entries {
            if let Some(name) = records::group_of(&entry.key) {
                by_group.entry(name).or_default().push(entry);
            }
        }
        for (name, entries) in by_group {
            let changes = groups.version_changes.clone();
            let actor = Actor::restore(groups.parts.clone(), changes, &name, &entries)?;
            groups.spawn(&name, actor);
        }
        Ok(groups)
    }

    /// Finishes what every group is doing and ends their tasks and watches; later calls get [`Error::Stopping`].
    /// Nobody counts as lost by it.
    pub async fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        let actors: Vec<_> = self.actors.lock().values().cloned().collect();
        for actor in actors {
            let (reply, stopped) = oneshot::channel();
            if actor.send(Command::Stop(reply)).await.is_ok() {
                drop(stopped.await);
            }
        }
    }

    /// Returns the names of all groups, ascending.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.actors.lock().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Tells whether there is a group of that name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.actors.lock().contains_key(name)
    }

    /// Takes a member in, making the group if it is new.
    ///
    /// Errors with [`Error::Refused`], [`Error::Invalid`] or [`Error::Store`].
    pub async fn join(&self, group: &str, join: Join) -> Result<(Joined, Told), Error> {
        check_join(&join)?;
        self.ask_or_make(group, |reply| Command::Join(join, reply)).await
    }

    /// Takes a heartbeat in and returns the member's orders.
    pub async fn heartbeat(
        &self,
        group: &str,
        member: &str,
        session: &str,
        beat: Heartbeat,
    ) -> Result<Told, Error> {
        let (member, session) = (member.to_owned(), session.to_owned());
        self.ask(group, |reply| Command::Heartbeat { member, session, beat, reply }).await
    }

    /// Lets a member go.
    pub async fn leave(
        &self,
        group: &str,
        member: &str,
        session: &str,
        returning: bool,
    ) -> Result<(), Error> {
        let (member, session) = (member.to_owned(), session.to_owned());
        self.ask(group, |reply| Command::Leave { member, session, returning, reply }).await
    }

    /// Returns a stream of a member's orders: the present ones, then each change. When it is dropped, the member
    /// counts as disconnected.
    pub async fn watch(&self, group: &str, member: &str, session: &str) -> Result<Watching, Error> {
        let sender = self.living(group).await?.ok_or_else(|| Error::UnknownGroup(group.to_owned()))?;
        let (member, session) = (member.to_owned(), session.to_owned());
        let of = member.clone();
        let (number, told) = self.ask(group, |reply| Command::Watch { member, session, reply }).await?;
        Ok(Watching { told, closing: Some((sender, of, number)) })
    }

    /// Checks that a member may read a partition now.
    pub async fn check_owner(
        &self,
        group: &str,
        member: &str,
        session: &str,
        place: Place,
        epoch: u64,
    ) -> Result<Option<u64>, Error> {
        let (member, session) = (member.to_owned(), session.to_owned());
        self.ask(group, |reply| Command::CheckOwner { member, session, place, epoch, reply }).await
    }

    /// Stores the offset of a partition.
    ///
    /// Errors with [`Error::Invalid`] beyond its end: what comes later would be skipped.
    pub async fn checkpoint(&self, group: &str, checkpoint: Checkpoint) -> Result<(), Error> {
        let Place { topic, partition } = &checkpoint.place;
        match self.parts.log.partition(topic, *partition).await {
            Ok(bounds) if bounds.end.0 < checkpoint.offset => {
                return Err(Error::Invalid { field: "offset", must: "at most the end of the partition" });
            }
            // The group itself knows best what there is not.
            Ok(_)
            | Err(
                fulcrum_store::Error::UnknownTopic { .. } | fulcrum_store::Error::UnknownPartition { .. },
            ) => {}
            Err(error) => return Err(error.into()),
        }
        self.ask(group, |reply| Command::Checkpoint(checkpoint, reply)).await
    }

    /// Changes how a group behaves, making it if it is new.
    pub async fn configure(&self, group: &str, patch: SpecPatch) -> Result<Spec, Error> {
        self.ask_or_make(group, |reply| Command::Configure(Box::new(patch), reply)).await
    }

    /// Sets offsets, and raises the epochs.
    pub async fn reset(&self, group: &str, offsets: Vec<(Place, Option<u64>)>) -> Result<(), Error> {
        self.ask(group, |reply| Command::Reset(offsets, reply)).await
    }

    /// Runs a cycle now and returns what it did.
    pub async fn rebalance(&self, group: &str) -> Result<(), Error> {
        self.ask(group, Command::Rebalance).await
    }

    /// Counts what there is of all groups, by name.
    pub async fn counts(&self) -> Vec<(String, Counts)> {
        let mut counts = Vec::new();
        for name in self.names() {
            // A group that was deleted meanwhile is not there.
            if let Ok(found) = self.ask(&name, Command::Counts).await {
                counts.push((name, found));
            }
        }
        counts
    }

    /// Returns the lowest offset that any group still needs, by partition. A partition that no group reads is left
    /// out; groups without members count too.
    pub async fn floors(&self) -> Result<HashMap<Place, u64>, Error> {
        let mut floors = HashMap::new();
        for name in self.names() {
            let found = match self.ask(&name, Command::Floors).await {
                // It was deleted meanwhile.
                Err(Error::UnknownGroup(_)) => continue,
                found => found?,
            };
            for (place, floor) in found {
                let lowest = floors.entry(place).or_insert(floor);
                *lowest = floor.min(*lowest);
            }
        }
        Ok(floors)
    }

    /// Shows a group.
    pub async fn view(&self, group: &str) -> Result<View, Error> {
        self.ask(group, Command::View).await
    }

    /// Forgets a group with all its members and offsets.
    pub async fn delete(&self, group: &str) -> Result<(), Error> {
        let sender = self.sender(group);
        self.ask(group, Command::Delete).await?;
        let mut actors = self.actors.lock();
        // Somebody may have made it anew already.
        if actors.get(group).zip(sender).is_some_and(|(present, gone)| present.same_channel(&gone)) {
            actors.remove(group);
        }
        Ok(())
    }

    /// Tells all groups that a topic was made, grown, described or deleted: they look for themselves.
    pub async fn topic_changed(&self, topic: &str) {
        self.tell_all(|| Command::Topic(topic.to_owned())).await;
    }

    /// Returns how often the policy version that plans for some group became another one, in component, name or
    /// configuration, since the host started.
    #[must_use]
    pub fn version_changes(&self) -> u64 {
        self.version_changes.load(Ordering::Relaxed)
    }

    /// Tells all groups that a policy or a binding changed.
    pub async fn policies_changed(&self) {
        self.tell_all(|| Command::PolicyChanged).await;
    }

    async fn tell_all(&self, command: impl Fn() -> Command) {
        let actors: Vec<_> = self.actors.lock().values().cloned().collect();
        for actor in actors {
            drop(actor.send(command()).await);
        }
    }

    async fn ask<T>(&self, group: &str, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Error> {
        if self.is_stopping.load(Ordering::Acquire) {
            return Err(Error::Stopping);
        }
        let sender = self.living(group).await?.ok_or_else(|| Error::UnknownGroup(group.to_owned()))?;
        let (reply, answer) = oneshot::channel();
        if sender.send(command(reply)).await.is_ok()
            && let Ok(answer) = answer.await
        {
            return answer;
        }
        // Only a task that ended does not answer: the host stops, the group was deleted meanwhile, or it crashed.
        sender.closed().await;
        match self.living(group).await? {
            _ if self.is_stopping.load(Ordering::Acquire) => Err(Error::Stopping),
            None => Err(Error::UnknownGroup(group.to_owned())),
            Some(_) => Err(Error::Restarted),
        }
    }

    async fn ask_or_make<T>(
        &self,
        group: &str,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Error> {
        check_name("group", group)?;
        if self.is_stopping.load(Ordering::Acquire) {
            return Err(Error::Stopping);
        }
        if self.living(group).await?.is_none() {
            let actor = Actor::new(self.parts.clone(), self.version_changes.clone(), group);
            self.spawn(group, actor);
        }
        self.ask(group, command).await
    }

    fn sender(&self, group: &str) -> Option<mpsc::Sender<Command>> {
        self.actors.lock().get(group).filter(|sender| !sender.is_closed()).cloned()
    }

    /// Returns the way to a group's task. One that crashed is brought back from the store: going on without what is
    /// stored there would be another group under the same name.
    async fn living(&self, group: &str) -> Result<Option<mpsc::Sender<Command>>, Error> {
        let known = self.actors.lock().get(group).cloned();
        let ended = match known {
            Some(sender) if sender.is_closed() => sender,
            known => return Ok(known),
        };
        if self.is_stopping.load(Ordering::Acquire) {
            return Err(Error::Stopping);
        }
        let entries = self.parts.store.list(&format!("{}{group}/", records::PREFIX)).await?;
        if entries.is_empty() {
            // It was deleted, or nobody ever heard of it.
            return Ok(None);
        }
        let actor = Actor::restore(self.parts.clone(), self.version_changes.clone(), group, &entries)?;
        if self.actors.lock().get(group).is_some_and(|present| present.same_channel(&ended)) {
            tracing::error!(group, "the group's task crashed; it is brought back from the store");
        }
        self.spawn(group, actor);
        Ok(self.sender(group))
    }

    fn spawn(&self, group: &str, actor: Actor) {
        let mut actors = self.actors.lock();
        // Two callers may have found no group at the same time: the first one's stays.
        if actors.get(group).is_some_and(|sender| !sender.is_closed()) {
            return;
        }
        let (sender, receiver) = mpsc::channel(QUEUE_LEN);
        actors.insert(group.to_owned(), sender);
        tokio::spawn(actor.run(receiver));
    }
}

/// A member stores the offset of a partition it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Who.
    pub member: String,
    /// Its session.
    pub session: String,
    /// Which partition.
    pub place: Place,
    /// The epoch it was assigned with.
    pub epoch: u64,
    /// Next offset to read.
    pub offset: u64,
    /// Whether the offset may fall.
    pub rewind: bool,
}

/// A member's orders as they change.
pub struct Watching {
    told: watch::Receiver<Told>,
    closing: Option<(mpsc::Sender<Command>, String, u64)>,
}

impl Watching {
    /// Returns the present orders the first time, then waits for each change; `None` when the member is gone.
    pub async fn next(&mut self, is_first: bool) -> Option<Told> {
        if !is_first {
            self.told.changed().await.ok()?;
        }
        Some(self.told.borrow_and_update().clone())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let Some((sender, member, watch)) = self.closing.take() else { return };
        // A full queue means the group is busy; the member's silence will tell later.
        drop(sender.try_send(Command::WatchClosed { member, watch }));
    }
}

/// Checks what a member says of itself.
fn check_join(join: &Join) -> Result<(), Error> {
    let require = |holds: bool, field, must| if holds { Ok(()) } else { Err(Error::Invalid { field, must }) };
    let is_text = |text: &String| text.len() <= NAME_BYTES_MAX && !text.contains(char::is_control);
    check_name("memberId", &join.member)?;
    require((1..=TOPICS_MAX).contains(&join.topics.len()), "topics", "1 to 1000 names")?;
    for topic in &join.topics {
        check_name("topics", topic)?;
    }
    require(is_text(&join.zone), "zone", "at most 256 bytes without control characters")?;
    let labels_fit = join.labels.len() <= crate::valid::LABELS_MAX
        && join.labels.iter().all(|(key, value)| !key.is_empty() && is_text(key) && is_text(value));
    require(labels_fit, "labels", "at most 64 texts of at most 256 bytes, by keys that are not empty")?;
    require((1..=CAPACITY_MILLI_MAX).contains(&join.capacity_milli), "capacity", "0.001 to 1000000")?;
    require(join.ttl.is_none_or(|ttl| TTL.contains(&ttl)), "ttlMs", "100 to 86400000")
}

/// Checks a name that callers choose.
pub fn check_name(field: &'static str, name: &str) -> Result<(), Error> {
    let is_fine =
        (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(|c: char| c.is_control() || c == '/');
    if is_fine {
        Ok(())
    } else {
        Err(Error::Invalid { field, must: "1 to 256 bytes without / and control characters" })
    }
}

#[cfg(test)]
mod tests;
