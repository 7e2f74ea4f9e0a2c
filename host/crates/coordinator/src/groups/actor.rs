//! The task of one group: takes commands in batches, makes what they changed durable, then answers.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fulcrum_core::group::{Facts, Group, Heartbeat, Join, Joined, Place, Snapshot, Start, Step};
use fulcrum_core::time::Timestamp;
use fulcrum_policy::planner::Planned;
use fulcrum_policy::seat::Identity;
use fulcrum_policy::{Outcome, fallback};
use fulcrum_store::{Expected, Revision, Update};
use futures_util::future::try_join_all;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::records::{self, ClaimRecord, GroupRecord};
use super::state::{Counts, Spec, SpecPatch, State, Told, View};
use super::{Checkpoint, Error, Parts, topics};

/// Commands taken in before their changes are stored together.
const BATCH_MAX: usize = 256;
/// Pause before what the store refused is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// Where the answer to a command goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

pub(super) enum Command {
    Join(Join, Reply<(Joined, Told)>),
    Heartbeat { member: String, session: String, beat: Heartbeat, reply: Reply<Told> },
    Leave { member: String, session: String, returning: bool, reply: Reply<()> },
    Watch { member: String, session: String, reply: Reply<(u64, watch::Receiver<Told>)> },
    WatchClosed { member: String, watch: u64 },
    CheckOwner { member: String, session: String, place: Place, epoch: u64, reply: Reply<Option<u64>> },
    Checkpoint(Checkpoint, Reply<()>),
    Configure(Box<SpecPatch>, Reply<Spec>),
    Reset(Vec<(Place, Option<u64>)>, Reply<()>),
    Rebalance(Reply<()>),
    View(Reply<View>),
    Counts(Reply<Counts>),
    Floors(Reply<Vec<(Place, u64)>>),
    Topic(String),
    PolicyChanged,
    Delete(Reply<()>),
    Stop(Reply<()>),
}

/// An answer that is given once everything it tells is stored.
type Deferred = Box<dyn FnOnce(Result<&State, Error>) + Send>;

/// See the module.
pub(super) struct Actor {
    parts: Arc<Parts>,
    state: State,
    /// Topics that may be other than the group knows.
    unread: BTreeSet<String>,
    /// Changes of versions of all groups, to which this one's are added.
    version_changes: Arc<AtomicU64>,
    /// This one's share of them.
    version_changes_counted: u64,
    /// Revisions of the stored records, as this task wrote or read them.
    group_revision: Option<Revision>,
    revisions: HashMap<Place, Revision>,
    /// What has to be stored before anybody hears of it.
    dirty: Dirty,
    told: BTreeSet<String>,
    watches: HashMap<String, Watch>,
    planning: Option<JoinHandle<(Snapshot, Planned, u64)>>,
    checking: Option<JoinHandle<Option<Arc<Identity>>>>,
    watches_made: u64,
    is_over: bool,
}

#[derive(Default)]
struct Dirty {
    group: bool,
    partitions: BTreeSet<Place>,
}

struct Watch {
    session: String,
    told: watch::Sender<Told>,
    /// Connections by number: a late word of one that was cut does not close another.
    open: BTreeSet<u64>,
}

impl Actor {
    pub(super) fn new(parts: Arc<Parts>, version_changes: Arc<AtomicU64>, name: &str) -> Self {
        let state = State::new(name, parts.defaults.clone(), parts.boot_seed);
        Self::with(parts, version_changes, state)
    }

    /// Brings a stored group back; ages start anew, and its topics are looked at before it does anything.
    ///
    /// Errors with [`Error::Corrupt`] if a record cannot be read.
    pub(super) fn restore(
        parts: Arc<Parts>,
        version_changes: Arc<AtomicU64>,
        name: &str,
        entries: &[fulcrum_store::Entry],
    ) -> Result<Self, Error> {
        let now = parts.clock.now();
        let own_key = records::group_key(name);
        let own = entries.iter().find(|entry| entry.key == own_key);
        let mut actor = Self::new(parts, version_changes, name);
        if let Some(entry) = own {
            let record: GroupRecord = decode(&entry.key, &entry.versioned.value)?;
            let spec = record.spec();
            actor.state = State::new(name, spec, actor.parts.boot_seed);
            actor.state.group.revision = record.revision();
            actor.state.group.epoch_floor = record.epoch_floor();
            actor.state.group.members = record.members(now);
            actor.group_revision = Some(entry.versioned.revision);
        }
        let deadline = actor.state.spec.settings.handover_deadline;
        for entry in entries {
            let Some(place) = records::place_of(&entry.key) else { continue };
            let record: ClaimRecord = decode(&entry.key, &entry.versioned.value)?;
            actor.state.group.revision = actor.state.group.revision.max(record.revision());
            actor.state.group.partitions.insert(place.clone(), record.partition(now, deadline));
            actor.revisions.insert(place, entry.versioned.revision);
        }
        actor.mend();
        // A topic may have changed while nobody looked.
        let Group { members, partitions, .. } = &actor.state.group;
        let wanted = members.values().flat_map(|member| member.topics.iter().cloned());
        actor.unread = partitions.keys().map(|place| place.topic.clone()).chain(wanted).collect();
        if !actor.state.group.members.is_empty() {
            actor.state.want(fulcrum_core::claiming::Reason::Interval, now);
        }
        Ok(actor)
    }

    fn with(parts: Arc<Parts>, version_changes: Arc<AtomicU64>, state: State) -> Self {
        Self {
            parts,
            state,
            unread: BTreeSet::new(),
            version_changes,
            version_changes_counted: 0,
            group_revision: None,
            revisions: HashMap::new(),
            dirty: Dirty::default(),
            told: BTreeSet::new(),
            watches: HashMap::new(),
            planning: None,
            checking: None,
            watches_made: 0,
            is_over: false,
        }
    }

    /// A crash may lie between the records of one step: what refers to a member that is not stored is freed.
    fn mend(&mut self) {
        let Group { members, partitions, revision, .. } = &mut self.state.group;
        *revision += 1;
        for (place, partition) in partitions.iter_mut() {
            let is_known = |id: &String| members.contains_key(id);
            let mut changed = false;
            if partition
                .moving
                .as_ref()
                .is_some_and(|moving| moving.to.as_ref().is_some_and(|to| !is_known(to)))
            {
                partition.moving = None;
                changed = true;
            }
            if partition.owner.as_ref().is_some_and(|owner| !is_known(owner)) {
                partition.owner = None;
                partition.moving = None;
                changed = true;
            }
            if changed {
                self.dirty.partitions.insert(place.clone());
            }
        }
    }

    /// Runs until the host stops or the group is deleted.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut batch = Vec::new();
        self.turn(Vec::new()).await;
        while !self.is_over {
            let pause = self.pause();
            tokio::select! {
                count = commands.recv_many(&mut batch, BATCH_MAX) => if count == 0 { return },
                () = tokio::time::sleep(pause) => {}
                done = finished(&mut self.planning) => self.planned(done),
                version = finished(&mut self.checking) => {
                    let now = self.parts.clock.now();
                    self.state.version_is(version.flatten(), now);
                    self.count_versions();
                }
            }
            self.turn(std::mem::take(&mut batch)).await;
        }
    }

    /// Returns how long nothing is due.
    fn pause(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(3600);
        if self.dirty.group || !self.dirty.partitions.is_empty() || !self.unread.is_empty() {
            return RETRY;
        }
        let now = self.parts.clock.now();
        self.state.next_due().map_or(LONGEST, |due| due.since(now)).min(LONGEST)
    }

    /// One batch: look at topics, expire, apply, store, answer, tell, plan.
    async fn turn(&mut self, batch: Vec<Command>) {
        let now = self.parts.clock.now();
        self.read_topics(now).await;
        let step = self.state.group.expire(now);
        self.take(step, now);
        let mut deferred = Vec::new();
        for command in batch {
            // What comes after a delete is for another group of this name.
            if self.is_over {
                break;
            }
            if let Some(answer) = self.apply(command, now).await {
                deferred.push(answer);
            }
        }
        let stored = self.store().await;
        for answer in deferred {
            answer(stored.as_ref().map(|()| &self.state).map_err(Clone::clone));
        }
        if stored.is_ok() {
            self.tell();
            self.plan(now);
        }
    }

    fn take(&mut self, step: Step, now: Timestamp) {
        self.state.follow(&step, now);
        self.dirty.group |= step.members;
        self.dirty.partitions.extend(step.partitions);
        self.told.extend(step.told);
    }

    async fn apply(&mut self, command: Command, now: Timestamp) -> Option<Deferred> {
        match command {
            Command::Join(join, reply) => {
                let id = join.member.clone();
                let due = self.state.due();
                let learned = self.learn_topics(&join.topics, now).await;
                // Who is the first to name a topic joins; its partitions did not change.
                self.state.set_due(due);
                let step = match learned {
                    Ok(()) => {
                        let session = format!("{:032x}", (self.parts.entropy)());
                        self.state.group.join(join, session, now).map_err(Error::from)
                    }
                    Err(error) => Err(error),
                };
                let joined = step.map(|(joined, step)| {
                    self.take(step, now);
                    joined
                });
                deferred(reply, joined, move |joined, state| (joined, state.told(&id)))
            }
            Command::Heartbeat { member, session, beat, reply } => {
                let step = self.state.group.heartbeat(&member, &session, &beat, now);
                let taken = self.taken(step, now);
                deferred(reply, taken, move |(), state| state.told(&member))
            }
            Command::Leave { member, session, returning, reply } => {
                let step = self.state.group.leave(&member, &session, returning, now);
                let taken = self.taken(step, now);
                deferred(reply, taken, |(), _| ())
            }
            Command::Watch { member, session, reply } => {
                let watching = self.watch(&member, &session);
                deferred(reply, watching, |watching, _| watching)
            }
            Command::WatchClosed { member, watch } => {
                self.watch_closed(&member, watch, now);
                None
            }
            Command::CheckOwner { member, session, place, epoch, reply } => {
                let checked = self.state.group.check_owner(&member, &session, &place, epoch);
                let checkpoint = self.state.group.partitions.get(&place).and_then(|at| at.checkpoint);
                deferred(reply, checked.map_err(Error::from), move |(), _| checkpoint)
            }
            Command::Checkpoint(checkpoint, reply) => {
                let Checkpoint { member, session, place, epoch, offset, rewind } = checkpoint;
                let step = self.state.group.checkpoint(&member, &session, &place, epoch, offset, rewind);
                let taken = self.taken(step, now);
                deferred(reply, taken, |(), _| ())
            }
            Command::Configure(patch, reply) => {
                let spec = patch.apply(self.state.spec.clone());
                self.state.configure(spec, now);
                self.dirty.group = true;
                deferred(reply, Ok(()), |(), state| state.spec.clone())
            }
            Command::Reset(offsets, reply) => {
                let step = self.state.group.reset(&offsets);
                self.take(step, now);
                deferred(reply, Ok(()), |(), _| ())
            }
            Command::Rebalance(reply) => {
                self.state.want(fulcrum_core::claiming::Reason::Manual, now);
                deferred(reply, Ok(()), |(), _| ())
            }
            Command::View(reply) => deferred(reply, Ok(()), move |(), state| state.view(now)),
            Command::Counts(reply) => deferred(reply, Ok(()), |(), state| state.counts()),
            Command::Floors(reply) => {
                // At once, also while nothing can be stored: room has to be made just then. An owner has read what
                // it wanted to checkpoint, so that is needed no more, stored or not.
                let partitions = self.state.group.partitions.iter();
                let floor = |at: &fulcrum_core::group::Partition| at.checkpoint.unwrap_or(0);
                let floors = partitions.map(|(place, at)| (place.clone(), floor(at))).collect();
                drop(reply.send(Ok(floors)));
                None
            }
            Command::Topic(topic) => {
                self.unread.insert(topic);
                self.read_topics(now).await;
                None
            }
            Command::PolicyChanged => {
                self.check_version();
                None
            }
            Command::Delete(reply) => {
                let deleted = self.delete().await;
                deferred(reply, deleted, |(), _| ())
            }
            Command::Stop(reply) => {
                self.is_over = true;
                deferred(reply, Ok(()), |(), _| ())
            }
        }
    }

    fn taken(
        &mut self,
        step: Result<Step, fulcrum_core::group::Refused>,
        now: Timestamp,
    ) -> Result<(), Error> {
        self.take(step?, now);
        Ok(())
    }

    /// Looks at the topics that may be other than the group knows. What cannot be read is looked at again later.
    ///
    /// Whoever changes a topic tells the group afterwards, so what is read last is the newest.
    async fn read_topics(&mut self, now: Timestamp) {
        while let Some(topic) = self.unread.pop_first() {
            let Group { members, .. } = &self.state.group;
            let is_wanted = members.values().any(|member| member.topics.contains(&topic));
            if !is_wanted && !self.state.group.knows(&topic) {
                continue;
            }
            let seen = topics::look(&*self.parts.log, &*self.parts.store, &topic).await;
            match seen {
                Ok(Some((found, facts))) => {
                    self.see(&topic, found.partition_count, found.incarnation, facts, now);
                }
                Ok(None) => self.see(&topic, 0, 0, Facts::default(), now),
                Err(error) => {
                    tracing::warn!(group = self.state.name, topic, %error, "a group cannot look at its topic");
                    self.unread.insert(topic);
                    return;
                }
            }
        }
    }

    fn see(&mut self, topic: &str, count: u32, incarnation: u64, facts: Facts, now: Timestamp) {
        let step = self.state.group.set_partitions(topic, count, incarnation);
        self.take(step, now);
        self.state.facts_are(topic, facts, now);
    }

    /// Makes sure the group knows the partitions of topics that are subscribed to for the first time, and where to
    /// start reading them.
    async fn learn_topics(&mut self, topics: &[String], now: Timestamp) -> Result<(), Error> {
        for topic in topics {
            if self.state.group.knows(topic) {
                continue;
            }
            let (log, store) = (&self.parts.log, &self.parts.store);
            let Some((found, facts)) = topics::look(&**log, &**store, topic).await? else { continue };
            let bounds = match log.partitions(topic).await {
                // It was deleted meanwhile, which the group will be told.
                Err(fulcrum_store::Error::UnknownTopic { .. }) => continue,
                bounds => bounds?,
            };
            self.see(topic, found.partition_count, found.incarnation, facts, now);
            for (partition, bounds) in (0..).zip(bounds) {
                let start = match self.state.spec.settings.start {
                    Start::Latest => bounds.end,
                    Start::Earliest => bounds.first,
                };
                let place = Place { topic: topic.clone(), partition };
                if let Some(partition) = self.state.group.partitions.get_mut(&place) {
                    partition.checkpoint = Some(start.0);
                }
            }
        }
        Ok(())
    }

    fn watch(&mut self, member: &str, session: &str) -> Result<(u64, watch::Receiver<Told>), Error> {
        let known = self.state.group.members.get(member);
        let known = known.ok_or_else(|| fulcrum_core::group::Refused::UnknownMember(member.to_owned()))?;
        if known.session != session || known.kept_until.is_some() {
            return Err(fulcrum_core::group::Refused::Fenced.into());
        }
        let made = || Watch {
            session: session.to_owned(),
            told: watch::Sender::new(self.state.told(member)),
            open: BTreeSet::new(),
        };
        let watch = self.watches.entry(member.to_owned()).or_insert_with(made);
        if watch.session != session {
            *watch = made();
        }
        self.watches_made += 1;
        watch.open.insert(self.watches_made);
        Ok((self.watches_made, watch.told.subscribe()))
    }

    /// The last watch connection of a member closed: it counts as lost.
    fn watch_closed(&mut self, member: &str, closed: u64, now: Timestamp) {
        let Some(watch) = self.watches.get_mut(member) else { return };
        if !watch.open.remove(&closed) || !watch.open.is_empty() {
            return;
        }
        let session = std::mem::take(&mut watch.session);
        self.watches.remove(member);
        if let Ok(step) = self.state.group.disconnect(member, &session, now) {
            self.take(step, now);
        }
    }

    /// Tells every watching member whose orders changed; a member that is gone sees its stream end.
    fn tell(&mut self) {
        for member in std::mem::take(&mut self.told) {
            let Some(watch) = self.watches.get(&member) else { continue };
            let present = self.state.group.members.get(&member);
            if present.is_some_and(|present| present.session == watch.session && present.kept_until.is_none())
            {
                watch.told.send_replace(self.state.told(&member));
            }
        }
        let members = &self.state.group.members;
        self.watches.retain(|id, watch| {
            members.get(id).is_some_and(|at| at.session == watch.session && at.kept_until.is_none())
        });
    }

    /// Stores what changed since the last time, each record by compare-and-swap on what this task wrote before.
    async fn store(&mut self) -> Result<(), Error> {
        if !self.dirty.group && self.dirty.partitions.is_empty() {
            return Ok(());
        }
        // Members first: a claim never names a member that is not stored.
        if self.dirty.group || self.group_revision.is_none() {
            let State { spec, group, name, .. } = &self.state;
            let record = records::encode(&GroupRecord::new(spec, group));
            let expected = Expected::from(self.group_revision);
            let key = records::group_key(name);
            let stored = self.parts.store.compare_and_swap(&key, expected, Update::Put(record)).await;
            let Ok(revision) = stored else {
                // It may be stored all the same: the next try goes on from what is there.
                self.reread(&[]).await?;
                return stored.map(drop).map_err(Error::from);
            };
            self.group_revision = Some(revision);
            self.dirty.group = false;
        }
        let places: Vec<_> = self.dirty.partitions.iter().cloned().collect();
        let writes = places.iter().map(|place| self.store_claim(place));
        let stored = try_join_all(writes).await;
        let Ok(stored) = stored else {
            // Which of them were stored is unknown: read the revisions again before the next try.
            self.reread(&places).await?;
            return Err(stored.err().unwrap_or(Error::Stopping));
        };
        for (place, revision) in places.into_iter().zip(stored) {
            match revision {
                Some(revision) => drop(self.revisions.insert(place, revision)),
                None => drop(self.revisions.remove(&place)),
            }
        }
        self.dirty.partitions.clear();
        Ok(())
    }

    async fn store_claim(&self, place: &Place) -> Result<Option<Revision>, Error> {
        let known = self.revisions.get(place).copied();
        let key = records::claim_key(&self.state.name, place);
        match (self.state.group.partitions.get(place), known) {
            (Some(partition), _) => {
                let record = records::encode(&ClaimRecord::new(partition, self.state.group.revision));
                let update = Update::Put(record);
                Ok(Some(self.parts.store.compare_and_swap(&key, Expected::from(known), update).await?))
            }
            (None, Some(known)) => {
                self.parts.store.compare_and_swap(&key, Expected::At(known), Update::Delete).await?;
                Ok(None)
            }
            (None, None) => Ok(None),
        }
    }

    async fn reread(&mut self, places: &[Place]) -> Result<(), Error> {
        for place in places {
            let key = records::claim_key(&self.state.name, place);
            match self.parts.store.get(&key).await? {
                Some(found) => drop(self.revisions.insert(place.clone(), found.revision)),
                None => drop(self.revisions.remove(place)),
            }
        }
        let own = self.parts.store.get(&records::group_key(&self.state.name)).await?;
        self.group_revision = own.map(|found| found.revision);
        Ok(())
    }

    async fn delete(&mut self) -> Result<(), Error> {
        for place in self.revisions.keys().cloned().collect::<Vec<_>>() {
            self.state.group.partitions.remove(&place);
            self.dirty.partitions.insert(place);
        }
        self.state.group.members.clear();
        self.store().await?;
        if let Some(revision) = self.group_revision.take() {
            let key = records::group_key(&self.state.name);
            self.parts.store.compare_and_swap(&key, Expected::At(revision), Update::Delete).await?;
        }
        self.dirty = Dirty::default();
        self.is_over = true;
        Ok(())
    }

    /// Starts a plan if a cycle is due and none is being made.
    fn plan(&mut self, now: Timestamp) {
        // What is planned without knowing the topics may move everything, and the next plan moves it back.
        if self.planning.is_some() || self.is_over || !self.unread.is_empty() {
            return;
        }
        let Some(snapshot) = self.state.begin_cycle(now) else { return };
        let (parts, wish, name) = (self.parts.clone(), self.state.wish(), self.state.name.clone());
        self.planning = Some(tokio::task::spawn_blocking(move || {
            let begun = parts.clock.nanos();
            // A planner that crashes is a policy that failed.
            let plan = || parts.plans.plan(&name, &wish, &snapshot.cycle);
            let planned = catch_unwind(AssertUnwindSafe(plan)).unwrap_or_else(|_| Planned {
                plan: fallback::plan(&snapshot.cycle),
                by: None,
                asked: None,
                outcome: Outcome::Trap,
                problem: Some("the planner crashed, see the host's log".to_owned()),
            });
            let took_us = parts.clock.nanos().saturating_sub(begun) / 1000;
            (snapshot, planned, took_us)
        }));
    }

    fn planned(&mut self, done: Option<(Snapshot, Planned, u64)>) {
        let now = self.parts.clock.now();
        match done {
            Some((snapshot, planned, took_us)) => {
                let step = self.state.end_cycle(&snapshot, planned, took_us, now);
                self.take(step, now);
                self.count_versions();
            }
            None => self.state.want(fulcrum_core::claiming::Reason::Interval, now),
        }
    }

    fn count_versions(&mut self) {
        let changes = self.state.version_changes();
        let news = changes - std::mem::replace(&mut self.version_changes_counted, changes);
        self.version_changes.fetch_add(news, Ordering::Relaxed);
    }

    fn check_version(&mut self) {
        let (parts, wish, name) = (self.parts.clone(), self.state.wish(), self.state.name.clone());
        self.checking = Some(tokio::task::spawn_blocking(move || parts.plans.version(&name, &wish).ok()));
    }
}

/// Makes the answer to a command: what it tells is read from the state once that is stored.
#[allow(clippy::unnecessary_wraps, reason = "most arms of `apply` return an answer, some none")]
fn deferred<A: Send + 'static, T: Send + 'static>(
    reply: Reply<T>,
    result: Result<A, Error>,
    tell: impl FnOnce(A, &State) -> T + Send + 'static,
) -> Option<Deferred> {
    Some(Box::new(move |stored: Result<&State, Error>| {
        let answer = match (result, stored) {
            (Ok(value), Ok(state)) => Ok(tell(value, state)),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        drop(reply.send(answer));
    }))
}

/// Waits for a task that may not exist; `None` if it crashed.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> Option<T> {
    match task {
        Some(running) => {
            let done = running.await.ok();
            *task = None;
            done
        }
        None => std::future::pending().await,
    }
}

fn decode<T: serde::de::DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(value)
        .map_err(|error| Error::Corrupt { key: key.to_owned(), error: error.to_string() })
}
