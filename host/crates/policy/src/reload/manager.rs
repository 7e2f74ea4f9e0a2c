//! The one task that decides which policy versions are in use.
//!
//! Everything that may change that (file events, the slow poll, `reload`, `bind`, an opened breaker) ends in the same
//! idempotent reconcile: look at the folder, prove what is new, put what is bound into the seat. A version serves
//! only after the whole proof; until then, and whenever the proof fails, the last good one goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use fulcrum_core::time::{Clock, millis};
use parking_lot::RwLock;
use serde_json::Value;

use super::folder::{self, Folder, Found, Look};
use super::keep::Keep;
use super::watch::Watch;
use crate::artifact::{Artifact, Loaded, digest};
use crate::breaker;
use crate::failure::Failure;
use crate::proof;
use crate::refusal::Refusal;
use crate::runtime::Runtime;
use crate::seat::{Alarm, OwnedRequest, ScoringFactory, ScoringHost, ScoringPolicy, Staged};
use crate::status::{Bindings, Problem, Reloads, Report, Source, State, Status, no_decisions};

/// Messages waiting for the task; file events beyond that are found by the next look.
const QUEUE_LEN: usize = 1024;
/// How long a burst of file events may go on before the folder is looked at.
const GATHER: Duration = Duration::from_millis(20);

/// What the task is woken by.
pub(super) enum Message {
    Changed { path: PathBuf, closed: bool },
    Look,
    Reload(SyncSender<Report>),
    Bind(String, SyncSender<Result<Bindings, BindError>>),
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
    let alarm = sender.clone();
    let alarm = Arc::new(move || drop(alarm.try_send(Message::Look)));
    (alarm, Inbox { sender, receiver })
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
    /// The embedded policy that serves scoring when the bound one does not exist.
    pub default_scoring: String,
    /// How often the folder is looked at without any event.
    pub poll: Duration,
    /// How long a file must stay the same when no event says that it is complete.
    pub settle: Duration,
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
    #[error("there is no policy `{0}`; drop {0}.wasm into the policies folder first")]
    Unknown(String),
    #[error("the policy `{0}` does not offer the scoring role")]
    WrongRole(String),
    #[error("the policy `{name}` cannot be used: {message}")]
    Unusable { name: String, message: String },
    #[error("the host is stopping")]
    Stopping,
}

/// Handle of the task. Dropping it does not stop the task; [`Manager::stop`] does.
pub struct Manager {
    sender: SyncSender<Message>,
    shown: Arc<RwLock<Shown>>,
    host: Arc<dyn ScoringHost>,
}

/// What the handle shows of the task's state.
struct Shown {
    bindings: Bindings,
    statuses: Vec<Status>,
    reloads: Reloads,
}

impl Manager {
    /// Starts the task; returns when the policies in the folder have been tried and the seat is taken.
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
        let keep = Keep::open(settings.keep_dir.clone())
            .map_err(|source| Error::Keep { path: settings.keep_dir.clone(), source })?;
        let bindings = Bindings { scoring: settings.scoring.clone() };
        let shown =
            Arc::new(RwLock::new(Shown { bindings, statuses: Vec::new(), reloads: Reloads::default() }));
        let manager =
            Arc::new(Self { sender: inbox.sender.clone(), shown: shown.clone(), host: host.clone() });
        let bytes_max = runtime.limits().artifact_bytes;
        let quarantine = keep.quarantine();
        let mut task = Task {
            folder: Folder::new(settings.folder.clone(), settings.settle, bytes_max),
            entries: embedded.iter().map(|policy| (policy.name.to_owned(), Entry::default())).collect(),
            bound: settings.scoring.clone(),
            settings,
            runtime,
            embedded,
            host,
            clock,
            keep,
            quarantine,
            shown,
            watch: None,
            sender: inbox.sender,
            is_waiting: false,
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

    /// Returns how every policy stands, with the counts up to now.
    #[must_use]
    pub fn statuses(&self) -> Vec<Status> {
        let mut statuses = self.shown.read().statuses.clone();
        self.host.with_seat(&mut |seat| {
            for line in seat.tally().lines() {
                let Some(identity) = &line.identity else { continue };
                let Some(status) = statuses.iter_mut().find(|status| status.name == identity.name) else {
                    continue;
                };
                for (outcome, count) in crate::Outcome::ALL.iter().zip(line.outcomes) {
                    *status.decisions.entry(outcome.name()).or_default() += count;
                }
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

    /// Reconciles now and says what changed. Blocks until it is done.
    #[must_use]
    pub fn reload(&self) -> Report {
        let (reply, answer) = mpsc::sync_channel(1);
        if self.sender.send(Message::Reload(reply)).is_err() {
            return Report::default();
        }
        answer.recv().unwrap_or_default()
    }

    /// Binds scoring to another policy until the host restarts. Blocks until it serves.
    pub fn bind(&self, scoring: &str) -> Result<Bindings, BindError> {
        let (reply, answer) = mpsc::sync_channel(1);
        let message = Message::Bind(scoring.to_owned(), reply);
        self.sender.send(message).map_err(|_| BindError::Stopping)?;
        answer.recv().unwrap_or(Err(BindError::Stopping))
    }

    /// Stops the task; what serves goes on serving.
    pub fn stop(&self) {
        drop(self.sender.send(Message::Stop));
    }
}

/// One policy name.
#[derive(Default)]
struct Entry {
    used: Option<Used>,
    problem: Option<Problem>,
    /// Digest and configuration of what was refused last: not tried again and again.
    refused: Option<(String, Value)>,
}

/// The version in use under one name.
struct Used {
    loaded: Arc<Loaded>,
    source: Source,
    load_ms: u64,
}

struct Task {
    settings: Settings,
    runtime: Arc<Runtime>,
    embedded: Vec<Embedded>,
    host: Arc<dyn ScoringHost>,
    clock: Arc<dyn Clock>,
    folder: Folder,
    keep: Keep,
    entries: BTreeMap<String, Entry>,
    quarantine: BTreeMap<String, String>,
    bound: String,
    shown: Arc<RwLock<Shown>>,
    watch: Option<Watch>,
    sender: SyncSender<Message>,
    is_waiting: bool,
    /// Names that have a file in the folder, as of the last look.
    present: BTreeSet<String>,
}

impl Task {
    fn boot(&mut self) {
        self.rewatch();
        if !self.reconcile().waiting.is_empty() {
            // Files too young to be trusted at once get one more look before the host serves.
            std::thread::sleep(self.settings.settle);
            self.reconcile();
        }
        for name in self.keep.names().unwrap_or_default() {
            // The file was deleted while the host was down.
            if !self.present.contains(&name) {
                self.forget(&name);
            }
        }
    }

    fn run(mut self, receiver: &Receiver<Message>) {
        loop {
            let message = match receiver.recv_timeout(self.pause()) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let is_poll = message.is_none();
            let mut replies = Vec::new();
            let mut binds = Vec::new();
            let mut gather = matches!(message, Some(Message::Changed { closed: false, .. }));
            let mut next = message;
            loop {
                match next {
                    Some(Message::Changed { path, closed }) => {
                        gather &= !closed;
                        self.folder.note(&path, closed);
                    }
                    Some(Message::Reload(reply)) => replies.push(reply),
                    Some(Message::Bind(name, reply)) => binds.push((name, reply)),
                    Some(Message::Stop) => return,
                    Some(Message::Look) | None => {}
                }
                next = match receiver.try_recv() {
                    Ok(message) => Some(message),
                    // A writer at work: its next event is near, and until it is done there is nothing to do.
                    Err(_) if gather => {
                        gather = false;
                        receiver.recv_timeout(GATHER).ok()
                    }
                    Err(_) => break,
                };
                if next.is_none() {
                    break;
                }
            }
            if is_poll {
                self.rewatch();
            }
            for (name, reply) in binds {
                drop(reply.try_send(self.bind(&name)));
            }
            let report = self.reconcile();
            self.run_trial();
            for reply in replies {
                drop(reply.try_send(report.clone()));
            }
        }
    }

    /// Returns how long to wait for a message at most.
    fn pause(&self) -> Duration {
        let mut pause = self.settings.poll;
        if self.is_waiting {
            pause = pause.min(self.settings.settle);
        }
        if let Some(breaker::State::Open { trial_at }) = self.breaker() {
            pause = pause.min(trial_at.since(self.clock.now()));
        }
        pause.max(Duration::from_millis(1))
    }

    /// Makes sure that the folder which is there now is watched.
    fn rewatch(&mut self) {
        if self.watch.as_ref().is_some_and(|watch| watch.is_of(self.folder.path())) {
            return;
        }
        self.watch = match Watch::start(self.folder.path(), self.sender.clone()) {
            Ok(watch) => Some(watch),
            Err(error) => {
                tracing::warn!(
                    folder = %self.folder.path().display(), %error,
                    "cannot watch the policies folder, it is only polled"
                );
                None
            }
        };
    }

    fn reconcile(&mut self) -> Report {
        let now = self.clock.now();
        let looks = match self.folder.look(now) {
            Ok(looks) => looks,
            Err(error) => {
                tracing::error!(
                    folder = %self.folder.path().display(), %error,
                    "cannot read the policies folder; everything stays as it is"
                );
                return Report::default();
            }
        };
        self.present = looks.keys().cloned().collect();
        let mut report = Report::default();
        let names: BTreeSet<String> = self.entries.keys().chain(looks.keys()).cloned().collect();
        for name in names {
            match looks.get(&name) {
                None => self.absent(&name, &mut report),
                Some(Look::Waiting) => {
                    // Only at boot is there nothing in use yet.
                    self.restore(&name);
                    report.waiting.push(name);
                }
                Some(Look::Refused { refusal, digest }) => {
                    self.refuse(&name, digest, None, refusal);
                    self.restore(&name);
                }
                Some(Look::Found(found)) => self.found(&name, found, &mut report),
            }
        }
        self.is_waiting = !report.waiting.is_empty();
        self.shown.write().reloads.changed += report.changed.len() as u64;
        self.fill_seat();
        for (name, entry) in &self.entries {
            if let Some(problem) = &entry.problem {
                report.refused.push((name.clone(), problem.message.clone()));
            }
        }
        self.show();
        report
    }

    /// There is no file of that name.
    fn absent(&mut self, name: &str, report: &mut Report) {
        let is_embedded = self.embedded(name).is_some();
        let Some(entry) = self.entries.get_mut(name) else { return };
        let had_file = entry.problem.is_some()
            || entry.used.as_ref().is_some_and(|used| used.source != Source::Embedded);
        let was_configured = entry
            .used
            .as_ref()
            .is_some_and(|used| used.loaded.config().as_object().is_some_and(|config| !config.is_empty()));
        if !had_file && !was_configured {
            return;
        }
        let digests = [
            entry.used.as_ref().map(|used| used.loaded.artifact().digest().to_owned()),
            entry.problem.as_ref().map(|problem| problem.digest.clone()),
        ];
        *entry = Entry::default();
        if !is_embedded {
            self.entries.remove(name);
        }
        let before = self.quarantine.len();
        digests.into_iter().flatten().for_each(|digest| drop(self.quarantine.remove(&digest)));
        if self.quarantine.len() != before {
            self.save_quarantine();
        }
        self.forget(name);
        tracing::info!(policy.name = name, embedded = is_embedded, "policy file removed");
        report.changed.push(name.to_owned());
    }

    fn found(&mut self, name: &str, found: &Found, report: &mut Report) {
        let now_used = self.entries.get(name).and_then(|entry| entry.used.as_ref());
        let digest = match (&found.wasm, self.embedded(name)) {
            (Some(component), _) => component.digest.clone(),
            (None, Some(policy)) => digest(policy.wasm),
            (None, None) => {
                let error = "there is no component of that name beside it".to_owned();
                let file = format!("{name}.json");
                self.refuse(name, "", Some(&found.config), &Refusal::Unreadable { what: file, error });
                return;
            }
        };
        let is_used = now_used.is_some_and(|used| {
            used.loaded.artifact().digest() == digest
                && *used.loaded.config() == found.config
                && (used.source == Source::File) == found.wasm.is_some()
        });
        if is_used {
            if let Some(entry) = self.entries.get_mut(name) {
                entry.problem = None;
                entry.refused = None;
            }
            return;
        }
        let refused = self.entries.get(name).and_then(|entry| entry.refused.as_ref());
        if refused.is_some_and(|(other, config)| *other == digest && *config == found.config) {
            return;
        }
        let begun = self.clock.now();
        let proven = match self.quarantine.get(&digest) {
            Some(failure) => Err(Refusal::Quarantined { failure: failure.clone() }),
            None => self.prove(name, found),
        };
        match proven {
            Ok((loaded, wasm)) => {
                let load_ms = millis(self.clock.now().since(begun));
                let source = if found.wasm.is_some() { Source::File } else { Source::Embedded };
                if let Some(wasm) = wasm
                    && let Err(error) = self.keep.save(name, &wasm, loaded.config())
                {
                    tracing::error!(policy.name = name, %error, "cannot keep this version for a restart");
                }
                tracing::info!(policy.name = name, policy.digest = digest, load_ms, "policy version proven");
                let used = Some(Used { loaded: Arc::new(loaded), source, load_ms });
                self.entries.insert(name.to_owned(), Entry { used, ..Entry::default() });
                report.changed.push(name.to_owned());
            }
            Err(refusal) => {
                self.refuse(name, &digest, Some(&found.config), &refusal);
                self.restore(name);
            }
        }
    }

    /// Loads, configures and self-tests; returns the bytes of a file too.
    fn prove(&self, name: &str, found: &Found) -> Result<(Loaded, Option<Vec<u8>>), Refusal> {
        let wasm = found
            .wasm
            .as_ref()
            .map(|component| component.read(self.runtime.limits().artifact_bytes))
            .transpose()?;
        let artifact = self.artifact(name, wasm.as_deref())?;
        let loaded = artifact.configured(name, found.config.clone())?;
        proof::run(&loaded, &*self.clock)?;
        self.prove_live(&loaded)?;
        Ok((loaded, wasm))
    }

    /// Compiles, unless the version in use has the same bytes and only its configuration changed.
    fn artifact(&self, name: &str, wasm: Option<&[u8]>) -> Result<Arc<Artifact>, Refusal> {
        let bytes = wasm.or_else(|| self.embedded(name).map(|policy| policy.wasm)).unwrap_or_default();
        let used = self.entries.get(name).and_then(|entry| entry.used.as_ref());
        match used.map(|used| used.loaded.artifact()) {
            Some(artifact) if artifact.digest() == digest(bytes) => Ok(artifact.clone()),
            _ => Artifact::load(&self.runtime, bytes),
        }
    }

    /// Tries it on what the host would ask right now.
    fn prove_live(&self, loaded: &Loaded) -> Result<(), Refusal> {
        if !loaded.artifact().roles().scoring {
            return Ok(());
        }
        let request = OwnedRequest { now_ms: self.clock.now().0, seed: 1, ..OwnedRequest::default() };
        proof::recommend_once(loaded, &self.host.snapshot(), &request)
            .map_err(|failure| Refusal::SelfTest { case: "the present instances".to_owned(), failure })
    }

    fn refuse(&mut self, name: &str, digest: &str, config: Option<&Value>, refusal: &Refusal) {
        let problem = Problem {
            code: refusal.code().to_owned(),
            message: refusal.to_string(),
            digest: digest.to_owned(),
        };
        let entry = self.entries.entry(name.to_owned()).or_default();
        entry.refused = config.map(|config| (digest.to_owned(), config.clone()));
        if entry.problem.as_ref() != Some(&problem) {
            tracing::warn!(
                policy.name = name,
                policy.digest = digest,
                code = problem.code,
                reason = problem.message,
                "policy file refused"
            );
            self.shown.write().reloads.refused += 1;
        }
        entry.problem = Some(problem);
        if let Some(used) = &mut entry.used
            && used.source == Source::File
        {
            used.source = Source::LastGood;
        }
    }

    /// Brings the last good version back, after a restart, while the file is refused or still being written.
    fn restore(&mut self, name: &str) {
        if self.entries.get(name).is_some_and(|entry| entry.used.is_some()) {
            return;
        }
        let Some(kept) = self.keep.load(name) else { return };
        if self.quarantine.contains_key(&digest(&kept.wasm)) {
            return;
        }
        let begun = self.clock.now();
        let loaded = Artifact::load(&self.runtime, &kept.wasm)
            .and_then(|artifact| artifact.configured(name, kept.config))
            .and_then(|loaded| proof::run(&loaded, &*self.clock).map(|_| loaded));
        match loaded {
            Ok(loaded) => {
                let load_ms = millis(self.clock.now().since(begun));
                tracing::warn!(policy.name = name, "the last good version is back in use");
                let used = Used { loaded: Arc::new(loaded), source: Source::LastGood, load_ms };
                self.entries.entry(name.to_owned()).or_default().used = Some(used);
            }
            Err(error) => tracing::error!(policy.name = name, %error, "the last good version is unusable"),
        }
    }

    fn bind(&mut self, name: &str) -> Result<Bindings, BindError> {
        if !self.entries.contains_key(name) && self.embedded(name).is_none() {
            return Err(BindError::Unknown(name.to_owned()));
        }
        match self.use_of(name) {
            Ok(loaded) if loaded.artifact().roles().scoring => {}
            Ok(_) => return Err(BindError::WrongRole(name.to_owned())),
            Err(message) => return Err(BindError::Unusable { name: name.to_owned(), message }),
        }
        tracing::info!(policy.name = name, "scoring is bound to another policy");
        name.clone_into(&mut self.bound);
        let bindings = Bindings { scoring: name.to_owned() };
        self.shown.write().bindings = bindings.clone();
        self.fill_seat();
        self.show();
        Ok(bindings)
    }

    /// Returns the version in use under a name, loading the embedded one when it is needed for the first time.
    fn use_of(&mut self, name: &str) -> Result<Arc<Loaded>, String> {
        if let Some(used) = self.entries.get(name).and_then(|entry| entry.used.as_ref()) {
            return Ok(used.loaded.clone());
        }
        let Some(policy) = self.embedded(name) else {
            let problem = self.entries.get(name).and_then(|entry| entry.problem.as_ref());
            return Err(
                problem.map_or_else(|| "it does not exist".to_owned(), |problem| problem.message.clone())
            );
        };
        let begun = self.clock.now();
        let empty = Value::Object(serde_json::Map::new());
        let loaded = Artifact::load(&self.runtime, policy.wasm)
            .and_then(|artifact| artifact.configured(name, empty))
            .map(Arc::new)
            .map_err(|refusal| refusal.to_string())?;
        let load_ms = millis(self.clock.now().since(begun));
        let used = Used { loaded: loaded.clone(), source: Source::Embedded, load_ms };
        self.entries.entry(name.to_owned()).or_default().used = Some(used);
        Ok(loaded)
    }

    /// Puts the version that should serve scoring into the seat, if it is not there already.
    fn fill_seat(&mut self) {
        self.retire_quarantined();
        let bound = self.bound.clone();
        let wanted = match self.use_of(&bound) {
            Ok(loaded) if loaded.artifact().roles().scoring => loaded,
            other => {
                let reason = other.err().unwrap_or_else(|| "it does not offer the scoring role".to_owned());
                let instead = self.settings.default_scoring.clone();
                tracing::warn!(policy.name = bound, reason, instead, "the bound policy cannot serve");
                match self.use_of(&instead) {
                    Ok(loaded) => loaded,
                    Err(reason) => {
                        tracing::error!(
                            policy.name = instead,
                            reason,
                            "no policy can serve, the fallback decides"
                        );
                        return;
                    }
                }
            }
        };
        let mut is_there = false;
        self.host.with_seat(&mut |seat| {
            is_there = seat.health().is_some_and(|health| health.identity == *wanted.identity());
        });
        if is_there {
            return;
        }
        match self.stage(&wanted) {
            Ok(staged) => {
                let mut staged = Some(staged);
                let mut previous = None;
                self.host.with_seat(&mut |seat| previous = seat.install(staged.take()));
                drop(previous);
                tracing::info!(
                    policy.name = wanted.identity().name,
                    policy.digest = wanted.identity().digest,
                    config = wanted.identity().config,
                    "policy serves scoring"
                );
            }
            Err(failure) => {
                tracing::error!(policy.name = wanted.identity().name, %failure, "policy cannot take the seat");
            }
        }
    }

    /// Makes an instance that already knows the present roster and loads.
    fn stage(&self, loaded: &Arc<Loaded>) -> Result<Staged, Failure> {
        let limits = self.runtime.limits();
        let mut instance = loaded.make_scoring(limits.load_deadline)?;
        let snapshot = self.host.snapshot();
        instance.roster(&snapshot.roster)?;
        instance.refresh(&snapshot.loads)?;
        instance.set_deadline(limits.scoring_deadline);
        Ok(Staged { factory: loaded.clone(), instance: Box::new(instance) })
    }

    fn breaker(&self) -> Option<breaker::State> {
        let mut state = None;
        self.host.with_seat(&mut |seat| state = seat.health().map(|health| health.breaker));
        state
    }

    /// Runs the half-open trial of an open breaker whose pause is over: the input it failed on, on a fresh instance.
    fn run_trial(&mut self) {
        let now = self.clock.now();
        let mut due = None;
        self.host.with_seat(&mut |seat| {
            if let Some(health) = seat.health()
                && let breaker::State::Open { trial_at } = health.breaker
                && trial_at <= now
            {
                due = Some((health.identity, seat.culprit().cloned()));
            }
        });
        let Some((identity, culprit)) = due else { return };
        let used = self.entries.values().filter_map(|entry| entry.used.as_ref());
        let loaded = used.map(|used| &used.loaded).find(|loaded| *loaded.identity() == identity);
        let passed = loaded.is_some_and(|loaded| {
            let again = culprit
                .map_or(Ok(()), |culprit| proof::recommend_once(loaded, &culprit.snapshot, &culprit.request));
            again.is_ok() && self.prove_live(loaded).is_ok()
        });
        tracing::info!(
            policy.name = identity.name,
            policy.digest = identity.digest,
            passed,
            "trial of an open breaker"
        );
        self.host.with_seat(&mut |seat| seat.trial(&identity.digest, passed, now));
        self.fill_seat();
        self.show();
    }

    /// Takes a quarantined version out of use: its name falls back to the embedded policy, or to none.
    fn retire_quarantined(&mut self) {
        let mut found = None;
        self.host.with_seat(&mut |seat| {
            found = seat.health().filter(|health| health.breaker == breaker::State::Quarantined);
        });
        let Some(health) = found else { return };
        let (name, digest) = (health.identity.name.clone(), health.identity.digest.clone());
        let failure = health.last_failure.map_or_else(|| "unknown".to_owned(), |failure| failure.to_string());
        if self.embedded(&name).is_some_and(|policy| crate::artifact::digest(policy.wasm) == digest) {
            // Nothing to return to: the seat keeps it, never asks it, and the fallback decides.
            return;
        }
        let Some(entry) = self.entries.get_mut(&name) else { return };
        if entry.used.as_ref().is_none_or(|used| used.loaded.artifact().digest() != digest) {
            return;
        }
        tracing::error!(policy.name = name, policy.digest = digest, failure, "policy put into quarantine");
        let config = entry.used.take().map(|used| used.loaded.config().clone());
        self.quarantine.insert(digest.clone(), failure.clone());
        self.save_quarantine();
        self.forget(&name);
        self.refuse(&name, &digest, config.as_ref(), &Refusal::Quarantined { failure });
    }

    fn save_quarantine(&self) {
        if let Err(error) = self.keep.set_quarantine(&self.quarantine) {
            tracing::error!(%error, "cannot store the quarantine list");
        }
    }

    fn forget(&self, name: &str) {
        if let Err(error) = self.keep.forget(name) {
            tracing::error!(policy.name = name, %error, "cannot forget the last good version");
        }
    }

    fn embedded(&self, name: &str) -> Option<Embedded> {
        self.embedded.iter().copied().find(|policy| policy.name == name)
    }

    fn show(&self) {
        let mut served = None;
        self.host.with_seat(&mut |seat| served = seat.health().map(|health| health.identity));
        let status = |(name, entry): (&String, &Entry)| {
            let serves = served.as_ref().is_some_and(|identity| identity.name == *name);
            let mut status = Status {
                name: name.clone(),
                state: State::Refused,
                source: Source::File,
                digest: String::new(),
                version: String::new(),
                summary: String::new(),
                roles: Vec::new(),
                bound: if self.bound == *name { vec!["scoring".to_owned()] } else { Vec::new() },
                config: Value::Null,
                size_bytes: 0,
                load_ms: 0,
                last_failure: None,
                problem: entry.problem.clone(),
                decisions: no_decisions(),
            };
            if let Some(Used { loaded, source, load_ms }) = &entry.used {
                let artifact = loaded.artifact();
                status.state = if serves { State::Live } else { State::Ready };
                status.source = *source;
                artifact.digest().clone_into(&mut status.digest);
                artifact.describe().version.clone_into(&mut status.version);
                artifact.describe().summary.clone_into(&mut status.summary);
                status.roles = artifact.roles().names().into_iter().map(str::to_owned).collect();
                status.config = loaded.config().clone();
                status.size_bytes = artifact.size_bytes() as u64;
                status.load_ms = *load_ms;
            } else if let Some(policy) = self.embedded(name) {
                status.state = State::Available;
                status.source = Source::Embedded;
                status.digest = digest(policy.wasm);
                status.size_bytes = policy.wasm.len() as u64;
            }
            if entry.problem.as_ref().is_some_and(|problem| problem.code == "quarantined")
                && entry.used.is_none()
            {
                status.state = State::Quarantined;
            }
            status
        };
        self.shown.write().statuses = self.entries.iter().map(status).collect();
    }
}

/// Says whether a policy may have this name.
#[must_use]
pub fn is_policy_name(name: &str) -> bool {
    folder::is_policy_name(name)
}
