//! The handle of the one task that decides which policy versions are in use.
//!
//! Everything that may change that (file events, the slow poll, `reload`, `bind`, an opened breaker) ends in the same
//! idempotent reconcile: look at the folder, have proven what is new, put what is bound into the seat. A version serves
//! only after the whole proof; until then, and whenever the proof fails, the last good one goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use fulcrum_core::time::Clock;
use parking_lot::RwLock;

use super::back::MISSING;
use super::folder::{self, Folder};
use super::keep::Keep;
use super::life::{Gone, Life};
use super::plain::Plain;
use super::proving::{Awaited, Done, Prover};
use super::state::{self, State as Stored};
use super::task::{Entry, Task};
use crate::artifact::Loaded;
use crate::breaker;
use crate::probation::{Budget, Probation};
use crate::runtime::Runtime;
use crate::seat::{Alarm, Identity, ScoringHost};
use crate::status::{
    self, Bindings, Ended, PromotionState, Rebind, Reloads, Report, State, Status, TaskStatus,
};
use crate::tap::Observer;
use crate::trust::TrustedKeys;

/// Gets an answer; dropped without one if the task ends.
pub(super) type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// Messages waiting for the task; file events beyond that are found by the next look.
const QUEUE_LEN: usize = 1024;

/// What the task is woken by.
pub(super) enum Message {
    Changed {
        path: PathBuf,
        closed: bool,
    },
    Look,
    FolderGone,
    Reload(Reply<Report>),
    /// What has to be done by the task itself, after a reconcile.
    Work(Box<dyn FnOnce(&mut Task) + Send>),
    /// Somebody waits until files of some names are proven.
    Await(Awaited),
    /// A file in the folder was proven, or refused.
    Proven(Box<Done>),
    Stop,
}

/// The receiving end of the task's queue.
pub struct Inbox {
    sender: SyncSender<Message>,
    receiver: Receiver<Message>,
}

/// Makes the queue, and the alarm for the seat that wakes the task when a breaker opens.
#[must_use]
pub fn inbox() -> (Alarm, Inbox) {
    let (sender, receiver) = mpsc::sync_channel(QUEUE_LEN);
    (alarm(&sender), Inbox { sender, receiver })
}

fn alarm(sender: &SyncSender<Message>) -> Alarm {
    let sender = sender.clone();
    Arc::new(move || drop(sender.try_send(Message::Look)))
}

/// A policy compiled into the host.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// Its name.
    pub name: &'static str,
    /// Its component.
    pub wasm: &'static [u8],
}

/// Settings of the task.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The policies folder; made if missing.
    pub folder: PathBuf,
    /// Where the last good versions are kept; made if missing.
    pub keep_dir: PathBuf,
    /// The policy that serves scoring.
    pub scoring: String,
    /// The policy that plans for groups without one of their own.
    pub claiming: String,
    /// The embedded policy that serves scoring when the bound one does not exist.
    pub default_scoring: String,
    /// How often the folder is looked at without any event.
    pub poll: Duration,
    /// How long a file must stay the same when no event says that it is complete.
    pub settle: Duration,
    /// Versions of each name that can be returned to, the one in use included; at least 1.
    pub keep_versions: usize,
    /// What a version may fail after its promotion, unless it is said; a canary's budget renews.
    pub promote: Budget,
    /// Whose signatures a file needs; `None` takes files without any.
    pub trusted: Option<TrustedKeys>,
}

/// The task could not be started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("cannot make the policies folder {}", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("cannot use the folder of last good policies {}", path.display())]
    Keep { path: PathBuf, source: std::io::Error },
    #[error("cannot start the reload thread")]
    Thread(#[source] std::io::Error),
}

/// A binding was refused; nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BindError {
    #[error(
        "there is no policy `{0}`; push it first (`fulcrum policy push {0}.wasm`), or drop its file into the policies \
         folder"
    )]
    Unknown(String),
    #[error(
        "the policy `{0}` has no version in use; `fulcrum policy rollback {0}` brings its last one back, \
         `fulcrum policy push` another one"
    )]
    Removed(String),
    #[error("the policy `{0}` is a candidate only; promote it (`fulcrum policy promote {0}`)")]
    OnlyCandidate(String),
    #[error("the policy `{0}` is what serves already; push a candidate of it first")]
    Serves(String),
    #[error("the share of a canary must be above 0 and at most 1")]
    Share,
    #[error("the bindings cannot be stored: {error}; nothing changed")]
    Unsaved { error: String },
    #[error("the policy `{name}` does not offer the {role} role")]
    WrongRole { name: String, role: &'static str },
    #[error("the policy `{name}` cannot be used: {message}")]
    Unusable { name: String, message: String },
    #[error(
        "at most {max} groups can be bound one by one; name the policy in the settings of the group itself"
    )]
    TooMany { max: usize },
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// Handle of the task. Dropping it does not stop the task; [`Manager::stop`] does.
pub struct Manager {
    sender: SyncSender<Message>,
    shown: Arc<RwLock<Shown>>,
    pub(super) host: Arc<dyn ScoringHost>,
    pub(super) runtime: Arc<Runtime>,
    pub(super) clock: Arc<dyn Clock>,
    /// What the settings bind.
    settings: (String, String),
    life: Arc<Life>,
    plain: Arc<Plain>,
}

/// A version that kept failing at plans.
pub(super) struct Failing {
    pub(super) loaded: Arc<Loaded>,
    pub(super) failure: String,
}

/// What the handle shows of the task's state.
pub(super) struct Shown {
    pub(super) bindings: Bindings,
    pub(super) statuses: Vec<Status>,
    pub(super) reloads: Reloads,
    /// Versions in use by name.
    pub(super) loaded: BTreeMap<String, Arc<Loaded>>,
    /// Why names have none, unless it is only that the one compiled into the host was not needed yet.
    pub(super) unusable: BTreeMap<String, String>,
    /// Names whose files are still to be proven.
    pub(super) proving: Vec<String>,
    /// What the task has to put into quarantine.
    pub(super) failing: Vec<Failing>,
    /// Candidates by name, as far as they were needed.
    pub(super) candidates: BTreeMap<String, Arc<Loaded>>,
    /// Called when a version in use or a binding changed.
    pub(super) listeners: Vec<Listener>,
    /// Those who see decisions.
    pub(super) observers: Vec<Arc<dyn Observer>>,
    /// Versions that are new in service.
    pub(super) probations: Vec<Arc<Probation>>,
    /// The error budget of the canary.
    pub(super) canary: Option<Arc<Probation>>,
    /// How often promotions and canaries ended.
    pub(super) ended: Ended,
}

/// Told that a version in use or a binding changed; must return at once.
pub type Listener = Arc<dyn Fn() + Send + Sync>;

impl Manager {
    /// Starts the task; returns when what is bound and what served before has been proven and the seat is taken. Other files
    /// in the folder are proven afterwards.
    pub fn start(
        settings: Settings,
        runtime: Arc<Runtime>,
        embedded: Vec<Embedded>,
        host: Arc<dyn ScoringHost>,
        clock: Arc<dyn Clock>,
        inbox: Inbox,
    ) -> Result<Arc<Self>, Error> {
        std::fs::create_dir_all(&settings.folder)
            .map_err(|source| Error::Folder { path: settings.folder.clone(), source })?;
        let roles = state::Roles { scoring: settings.scoring.clone(), claiming: settings.claiming.clone() };
        let state = Stored::load(&settings.keep_dir, roles);
        let keep = Keep::open(settings.keep_dir.clone(), settings.keep_versions, state.pins())
            .map_err(|source| Error::Keep { path: settings.keep_dir.clone(), source })?;
        let shown = Arc::new(RwLock::new(Shown {
            bindings: state.bindings.clone(),
            statuses: Vec::new(),
            reloads: Reloads::default(),
            loaded: BTreeMap::new(),
            unusable: BTreeMap::new(),
            proving: Vec::new(),
            failing: Vec::new(),
            candidates: BTreeMap::new(),
            listeners: Vec::new(),
            observers: Vec::new(),
            probations: Vec::new(),
            canary: None,
            ended: Ended::default(),
        }));
        let life = Arc::<Life>::default();
        let plain = Arc::new(Plain::new(embedded, runtime.clone(), clock.clone()));
        let manager = Arc::new(Self {
            sender: inbox.sender.clone(),
            shown: shown.clone(),
            host: host.clone(),
            runtime: runtime.clone(),
            clock: clock.clone(),
            settings: (settings.scoring.clone(), settings.claiming.clone()),
            life: life.clone(),
            plain: plain.clone(),
        });
        let bytes_max = runtime.limits().artifact_bytes;
        let quarantine = keep.quarantine();
        let mut task = Task {
            folder: Folder::new(
                settings.folder.clone(),
                settings.settle,
                bytes_max,
                settings.trusted.clone(),
            ),
            entries: plain.names().map(|name| (name.to_owned(), Entry::default())).collect(),
            state,
            is_state_unsaved: false,
            candidates: BTreeMap::new(),
            prover: Prover::default(),
            reloads: Vec::new(),
            proven: None,
            cause: None,
            formers: Vec::new(),
            suspended: BTreeMap::new(),
            blocked: None,
            blocked_returns: BTreeMap::new(),
            life,
            probations: BTreeMap::new(),
            counted_at: clock.now(),
            canary: None,
            canaries_ended: BTreeMap::new(),
            alarm: alarm(&inbox.sender),
            settings,
            runtime,
            plain,
            host,
            clock,
            keep,
            quarantine,
            shown,
            watch: None,
            sender: inbox.sender,
            is_waiting: false,
            unsaved: Vec::new(),
            lost: None,
            present: BTreeSet::new(),
        };
        task.boot();
        let receiver = inbox.receiver;
        std::thread::Builder::new()
            .name("policy-reload".to_owned())
            .spawn(move || task.run(&receiver))
            .map_err(Error::Thread)?;
        Ok(manager)
    }

    /// Returns how every policy stands, with the decisions up to now; plans are counted by the
    /// [`Planner`](crate::Planner), which adds them.
    #[must_use]
    pub fn statuses(&self) -> Vec<Status> {
        let mut statuses = self.shown.read().statuses.clone();
        self.count_trials(&mut statuses);
        self.host.with_seat(&mut |seat| {
            for line in seat.tally().lines() {
                let Some(identity) = &line.identity else { continue };
                let Some(status) = statuses.iter_mut().find(|status| status.name == identity.name) else {
                    continue;
                };
                status::count(&mut status.decisions, line);
            }
            let Some(health) = seat.health() else { return };
            if let Some(status) = statuses
                .iter_mut()
                .find(|status| status.name == health.identity.name && status.digest == health.identity.digest)
            {
                status.last_failure =
                    health.last_failure.map(|failure| format!("{}: {failure}", failure.outcome().name()));
                status.state = match health.breaker {
                    breaker::State::Closed => status.state,
                    breaker::State::Open { .. } => State::Open,
                    breaker::State::Quarantined => State::Quarantined,
                };
            }
        });
        statuses
    }

    /// Returns which version decides for the clients that no canary decides for; `None` is the fallback.
    #[must_use]
    pub fn decides(&self) -> Option<Arc<Identity>> {
        let mut decides = None;
        self.host.with_seat(&mut |seat| {
            let health = seat.health().filter(|health| health.breaker == breaker::State::Closed);
            decides = health.map(|health| health.identity);
        });
        decides
    }

    /// Returns the runtime its policies run in.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Returns how often the folder brought something since the host started.
    #[must_use]
    pub fn reloads(&self) -> Reloads {
        self.shown.read().reloads
    }

    /// Returns which policy is bound to what.
    #[must_use]
    pub fn bindings(&self) -> Bindings {
        self.shown.read().bindings.clone()
    }

    /// Reconciles now and says what changed, or that the task does not answer. Blocks until it is done, and what lies in
    /// the folder by now has been proven.
    #[must_use]
    pub fn reload(&self) -> Report {
        let (sender, answer) = mpsc::sync_channel(1);
        self.reload_then(move |report| drop(sender.try_send(report)));
        answer.recv().unwrap_or_else(|_| self.gone())
    }

    /// Does so, and has the task tell what came of it: `reply` must return at once, and is dropped if the task ends.
    pub fn reload_then(&self, reply: impl FnOnce(Report) + Send + 'static) {
        drop(self.sender.send(Message::Reload(Box::new(reply))));
    }

    /// Returns the report of a task that is over.
    #[must_use]
    pub fn gone(&self) -> Report {
        Report::gone(self.life.gone())
    }

    /// Has the task tell when no file of the policies that a change binds is to be proven any more; they come before
    /// others. `reply` must return at once, and is dropped if the task ends.
    pub fn when_proven(&self, rebind: &Rebind, reply: impl FnOnce(()) + Send + 'static) {
        let names = rebind.policies().map(str::to_owned).collect();
        drop(self.sender.send(Message::Await(Awaited { names, reply: Box::new(reply) })));
    }

    /// Returns the name of the policy that plans for a group.
    #[must_use]
    pub fn claiming_of(&self, group: &str) -> String {
        let shown = self.shown.read();
        shown.bindings.groups.get(group).unwrap_or(&shown.bindings.claiming).clone()
    }

    /// Returns the version in use under a name. Blocks while an embedded policy is loaded for the first time, but for no
    /// other policy, whatever the task is at.
    ///
    /// Errors with what keeps it from being used, in words.
    pub fn policy(&self, name: &str) -> Result<Arc<Loaded>, String> {
        {
            let shown = self.shown.read();
            if let Some(loaded) = shown.loaded.get(name) {
                return Ok(loaded.clone());
            }
            if let Some(why) = shown.unusable.get(name) {
                return Err(why.clone());
            }
        }
        let found = self.plain.load(name).ok_or_else(|| MISSING.to_owned())?;
        let (loaded, _) = found.map_err(|refusal| refusal.to_string())?;
        self.wake();
        Ok(loaded)
    }

    /// Has a version that kept failing at plans put into quarantine, if it is in use still. Returns at once.
    pub(crate) fn quarantine(&self, loaded: &Arc<Loaded>, failure: String) {
        let is_same = |other: &Failing| Arc::ptr_eq(other.loaded.artifact(), loaded.artifact());
        {
            let mut shown = self.shown.write();
            if !shown.failing.iter().any(is_same) {
                shown.failing.push(Failing { loaded: loaded.clone(), failure });
            }
        }
        self.wake();
    }

    /// Says whether a version's component is the one compiled into the host under its name.
    pub(crate) fn is_embedded(&self, identity: &Identity) -> bool {
        self.plain.digest(&identity.name) == Some(&identity.digest)
    }

    /// Has the task look at everything once.
    fn wake(&self) {
        // A full queue wakes it, too.
        drop(self.sender.try_send(Message::Look));
    }

    /// Returns the candidate of a name if there is one, else the version in use. Blocks while it is loaded for the first
    /// time.
    ///
    /// Errors with what keeps it from being used, in words.
    pub fn candidate(&self, name: &str) -> Result<Arc<Loaded>, String> {
        if let Some(loaded) = self.shown.read().candidates.get(name) {
            return Ok(loaded.clone());
        }
        let wanted = name.to_owned();
        self.work(move |task| {
            let found = task.candidate_of(&wanted);
            task.show();
            found
        })
        .unwrap_or_else(|gone| Err(gone.to_string()))
    }

    /// Calls `listener` whenever a version in use or a binding changed.
    pub fn on_change(&self, listener: Listener) {
        self.shown.write().listeners.push(listener);
    }

    /// Lets an observer see every decision from now on.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.change_observers(|observers| observers.push(observer));
    }

    /// Ends what [`Self::observe`] began with this very observer.
    pub fn unobserve(&self, observer: &Arc<dyn Observer>) {
        self.change_observers(|observers| observers.retain(|other| !Arc::ptr_eq(other, observer)));
    }

    fn change_observers(&self, change: impl FnOnce(&mut Vec<Arc<dyn Observer>>)) {
        // Held over both steps: of two changes at once, the seat must not keep the older one.
        let mut shown = self.shown.write();
        change(&mut shown.observers);
        self.host.with_seat(&mut |seat| seat.observe(shown.observers.clone()));
    }

    pub(crate) fn observers(&self) -> Vec<Arc<dyn Observer>> {
        self.shown.read().observers.clone()
    }

    /// Returns the probation of a version, if it is on one.
    pub(crate) fn probation(&self, identity: &Identity) -> Option<Arc<Probation>> {
        self.shown.read().probations.iter().find(|probation| probation.is_of(identity)).cloned()
    }

    /// Returns how often promotions and canaries ended since the host started.
    #[must_use]
    pub fn ended(&self) -> Ended {
        self.shown.read().ended
    }

    /// Binds roles, groups or the canary to other policies, all or nothing; that survives a restart. Blocks until they
    /// serve, but for no proof of a file: see [`when_proven`](Self::when_proven).
    pub fn bind(&self, rebind: Rebind) -> Result<Bindings, BindError> {
        self.work(move |task| task.bind(&rebind))?
    }

    /// Binds what the settings say, and nothing else. Blocks until they serve.
    pub fn unbind(&self) -> Result<Bindings, BindError> {
        let (scoring, claiming) = self.settings.clone();
        let work = move |task: &mut Task| {
            let groups = task.state.bindings.groups.keys().map(|group| (group.clone(), None)).collect();
            let rebind =
                Rebind { scoring: Some(scoring), claiming: Some(claiming), groups, canary: Some(None) };
            task.rebind_unchecked(&rebind)
        };
        self.work(work)?
    }

    /// Has something done by the task itself, after a reconcile, and waits for its answer. Errors if the host is stopping,
    /// or if the task crashed at it.
    pub(super) fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Task) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (reply, answer) = mpsc::sync_channel(1);
        let work = move |task: &mut Task| drop(reply.try_send(work(task)));
        self.sender.send(Message::Work(Box::new(work))).map_err(|_| self.life.gone())?;
        answer.recv().map_err(|_| self.life.gone())
    }

    /// Says whether the task does its work.
    #[must_use]
    pub fn task(&self) -> TaskStatus {
        TaskStatus { proving: self.shown.read().proving.clone(), ..self.life.status() }
    }

    /// Brings the counts of versions on trial up to now.
    fn count_trials(&self, statuses: &mut [Status]) {
        let shown = self.shown.read();
        for probation in &shown.probations {
            let identity = probation.identity();
            let promotion = statuses
                .iter_mut()
                .find(|status| status.name == identity.name)
                .and_then(|status| status.promotion.as_mut())
                .filter(|promotion| promotion.state == PromotionState::Running);
            if let Some(promotion) = promotion {
                (promotion.asked, promotion.failed) = probation.counts();
            }
        }
        if let Some(probation) = &shown.canary
            && let Some(status) = statuses.iter_mut().find(|status| status.name == probation.identity().name)
            && let Some(canary) = &mut status.canary
        {
            (canary.asked, canary.failed) = probation.counts();
        }
    }

    /// Stops the task; what serves goes on serving.
    pub fn stop(&self) {
        self.life.stop();
        // A full queue means the task is busy; it ends with the process then.
        drop(self.sender.try_send(Message::Stop));
    }
}

/// Says whether a policy may have this name.
#[must_use]
pub fn is_policy_name(name: &str) -> bool {
    folder::is_policy_name(name)
}
