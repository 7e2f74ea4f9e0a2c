//! The task's own work: look at the folder, have proven what is new, remember what was refused.
//!
//! Invariant: a crash in one piece of work ends that piece only. The task goes on, and nobody is told that it was done.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use fulcrum_core::time::{Clock, Timestamp, millis};
use parking_lot::RwLock;
use serde_json::Value;

use super::acts::Cause;
use super::back::Suspended;
use super::folder::{Folder, Found, Look, Stamp};
use super::keep::{Keep, Version};
use super::life::{Gone, Life};
use super::manager::{Embedded, Message, Reply, Settings, Shown};
use super::plain::Plain;
use super::proving::Prover;
use super::seating::Seated;
use super::signed::Signatures;
use super::state::State;
use super::watch::Watch;
use crate::artifact::{self, Artifact, Loaded};
use crate::breaker;
use crate::probation::Probation;
use crate::proof;
use crate::refusal::Refusal;
use crate::runtime::Runtime;
use crate::seat::{Alarm, OwnedRequest, ScoringHost};
use crate::status::{CanaryStatus, Left, Problem, Report, Source, Way};

/// How long a burst of file events may go on before the folder is looked at.
const GATHER: Duration = Duration::from_millis(20);

/// One policy name.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) used: Option<Used>,
    pub(super) problem: Option<Problem>,
    /// Digest and configuration of what was refused last: not tried again and again.
    pub(super) refused: Option<(String, Value)>,
    /// The same of what may pass the next time, and when that was: it is tried again, but not all the time.
    pub(super) put_off: Option<(String, Value, Timestamp)>,
}

/// Somebody who waits for the end of a look at the folder.
pub(super) struct Reload {
    pub(super) reply: Reply<Report>,
    /// What changed since.
    pub(super) changed: Vec<String>,
    /// Names that lay in the folder then, to be proven, and had no turn since, and the number of turns then; `None` before
    /// the look.
    pub(super) open: Option<(Vec<String>, u64)>,
}

/// The version in use under one name.
pub(super) struct Used {
    pub(super) loaded: Arc<Loaded>,
    pub(super) source: Source,
    pub(super) load_ms: u64,
    /// What vouched for it.
    pub(super) signatures: Signatures,
}

impl Used {
    fn of(proven: Proven, source: Source) -> Self {
        let Proven { loaded, signatures, load_ms } = proven;
        Self { loaded, source, load_ms, signatures }
    }

    /// Returns what is to be kept of it.
    pub(super) fn version(&self, at_ms: u64) -> Version {
        version_of(&self.loaded, self.signatures.clone(), at_ms)
    }
}

/// A version that passed the whole proof.
#[derive(Clone)]
pub(super) struct Proven {
    pub(super) loaded: Arc<Loaded>,
    pub(super) signatures: Signatures,
    pub(super) load_ms: u64,
}

impl From<Used> for Proven {
    fn from(used: Used) -> Self {
        let Used { loaded, signatures, load_ms, .. } = used;
        Self { loaded, signatures, load_ms }
    }
}

pub(super) struct Task {
    pub(super) settings: Settings,
    pub(super) runtime: Arc<Runtime>,
    pub(super) plain: Arc<Plain>,
    pub(super) host: Arc<dyn ScoringHost>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) folder: Folder,
    pub(super) keep: Keep,
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) quarantine: BTreeMap<String, String>,
    /// What was asked for at run time.
    pub(super) state: State,
    /// Whether the file of the state is older than the state.
    pub(super) is_state_unsaved: bool,
    /// Candidates that were needed: loaded, or why they cannot be.
    pub(super) candidates: BTreeMap<String, Result<Arc<Loaded>, String>>,
    /// Proofs of what lies in the folder.
    pub(super) prover: Prover,
    /// Who waits until those are over.
    pub(super) reloads: Vec<Reload>,
    /// What was proven before its files were put into the folder.
    pub(super) proven: Option<Proven>,
    /// Why the version in use of a name is being replaced.
    pub(super) cause: Option<(String, Cause)>,
    /// What was in use before, one version per name, the latest first: loaded still, so that the way back is short.
    pub(super) formers: Vec<Proven>,
    /// Versions that are being taken back, by name.
    pub(super) suspended: BTreeMap<String, Suspended>,
    /// Why the change of the folder that was cut short is not finished yet.
    pub(super) blocked: Option<Blocked>,
    /// When versions were to be taken back last that could not be, by name.
    pub(super) blocked_returns: BTreeMap<String, Timestamp>,
    /// What the handle knows of this task.
    pub(super) life: Arc<Life>,
    /// The error budgets of versions on trial.
    pub(super) probations: BTreeMap<String, Arc<Probation>>,
    /// When the counts of the budgets were stored last.
    pub(super) counted_at: Timestamp,
    /// The second version in the seat.
    pub(super) canary: Option<Seated>,
    /// Canaries that were taken out because they failed.
    pub(super) canaries_ended: BTreeMap<String, CanaryStatus>,
    /// Wakes this task.
    pub(super) alarm: Alarm,
    pub(super) shown: Arc<RwLock<Shown>>,
    pub(super) watch: Option<Watch>,
    pub(super) sender: SyncSender<Message>,
    pub(super) is_waiting: bool,
    /// Why the folder could not be read at the last look.
    pub(super) lost: Option<String>,
    /// What came into use and is not kept yet.
    pub(super) unsaved: Vec<Unsaved>,
    /// Names that have a file in the folder, as of the last look.
    pub(super) present: BTreeSet<String>,
}

/// A change of the folder that was cut short and cannot be finished.
pub(super) struct Blocked {
    pub(super) error: String,
    /// The files as they were then: who drops others overrules it. `None` if the folder was not there.
    pub(super) stamp: Option<Stamp>,
    pub(super) tried_at: Timestamp,
}

/// A version that came into use.
pub(super) struct Unsaved {
    pub(super) name: String,
    /// Its component, unless that is stored already.
    pub(super) wasm: Option<Vec<u8>>,
    version: Version,
    /// Why the one before left.
    left: Left,
    is_reported: bool,
}

impl Task {
    pub(super) fn boot(&mut self) {
        self.folder.tidy(self.state.installing.as_ref().map(|unfinished| unfinished.name.as_str()));
        self.set_booting(true);
        self.resume_trials();
        self.rewatch();
        if !self.reconcile().waiting.is_empty() {
            // Files too young to be trusted at once get one more look before the host serves.
            std::thread::sleep(self.settings.settle);
            self.reconcile();
        }
        let good = self.keep.records().iter().filter(|(_, record)| record.good.is_some());
        let interrupted = self.interrupted();
        let is_gone = |name: &&String| !self.present.contains(*name) && !interrupted.contains_key(*name);
        let gone: Vec<_> = good.map(|(name, _)| name).filter(is_gone).cloned().collect();
        for name in gone {
            // The file was deleted while the host was down.
            self.retire(&name, Way::Removed);
        }
        self.set_booting(false);
        self.forget_promotions();
        // What plans for groups is loaded before the first one comes.
        let claiming = self.effective_bindings().claiming;
        if let Err(reason) = self.serving_of(&claiming) {
            tracing::warn!(
                policy.name = claiming,
                reason,
                "the bound claiming policy cannot serve, the fallback plans"
            );
        }
        self.show();
        self.judge();
    }

    pub(super) fn run(mut self, receiver: &Receiver<Message>) {
        let _end = End(self.life.clone());
        let mut pause = self.pause();
        loop {
            let message = match receiver.recv_timeout(pause) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let turn = self.guard(|task| match task.turn(message, receiver) {
                ControlFlow::Continue(()) => Some(task.pause()),
                ControlFlow::Break(()) => None,
            });
            pause = match turn {
                Some(Some(pause)) => pause,
                Some(None) => return,
                // What crashed is due again soon; it must not keep the machine busy.
                None => self.settings.poll,
            };
        }
    }

    /// Does a part of the work; a crash in it is an error in the log, and the rest goes on. Who waits for an answer of it
    /// learns that there is none.
    fn guard<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        done.inspect_err(|_| {
            tracing::error!("the policies' task crashed at one of its works; it goes on with the next one");
            self.life.crash(self.clock.now());
            // They were about that work only.
            (self.proven, self.cause) = (None, None);
        })
        .ok()
    }

    /// Handles a message and those behind it, and looks at everything once.
    fn turn(&mut self, message: Option<Message>, receiver: &Receiver<Message>) -> ControlFlow<()> {
        let mut is_asked = false;
        let mut works = Vec::new();
        let mut gather = matches!(message, Some(Message::Changed { closed: false, .. }));
        let mut next = message;
        loop {
            match next {
                Some(Message::Changed { path, closed }) => {
                    gather &= !closed;
                    self.folder.note(&path, closed);
                }
                Some(Message::Reload(reply)) => {
                    is_asked = true;
                    self.reloads.push(Reload { reply, changed: Vec::new(), open: None });
                }
                Some(Message::Proven(done)) => self.take_proof(*done),
                Some(Message::Await(awaited)) => self.prover.wait_for(awaited),
                Some(Message::Work(work)) => works.push(work),
                Some(Message::FolderGone) => self.watch = None,
                Some(Message::Stop) => return ControlFlow::Break(()),
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
        self.rewatch();
        if is_asked {
            // Whoever asks wants what was refused to be tried again: it may have been refused for want of time.
            self.entries.values_mut().for_each(|entry| (entry.refused, entry.put_off) = (None, None));
            self.candidates.retain(|_, candidate| candidate.is_ok());
            self.try_again();
        }
        let report = self.guard(Self::reconcile);
        for work in works {
            self.guard(|task| work(task));
        }
        self.guard(Self::judge);
        self.guard(Self::run_trial);
        self.guard(Self::store_counts);
        self.answer_awaited(report.as_ref().map_or(&[], |report| &report.waiting));
        self.answer_reloads(&report.unwrap_or_else(|| Report::gone(Gone::Crashed)));
        ControlFlow::Continue(())
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

    pub(super) fn reconcile(&mut self) -> Report {
        self.redo();
        let now = self.clock.now();
        let looks = match self.folder.look(now) {
            Ok(looks) => looks,
            Err(error) => {
                let error = format!("cannot read {}: {error}", self.folder.path().display());
                if self.lost.as_ref() != Some(&error) {
                    tracing::error!(error, "the policies folder is lost; everything stays as it is");
                }
                self.is_waiting = false;
                self.watch = None;
                self.lost = Some(error.clone());
                return Report { error: Some(error), ..Report::default() };
            }
        };
        if self.lost.take().is_some() {
            tracing::info!("the policies folder is back");
        }
        self.present = looks.keys().cloned().collect();
        self.prover.begin_look();
        let mut report = Report::default();
        let names: BTreeSet<String> = self.entries.keys().chain(looks.keys()).cloned().collect();
        let interrupted = self.interrupted();
        for name in names.union(&interrupted.keys().cloned().collect()).cloned() {
            // Its files may be half changed, or those of a version that was to go: what served before goes on.
            if let Some((digest, refusal)) = interrupted.get(&name) {
                self.refuse(&name, digest, None, refusal);
                self.restore(&name);
                continue;
            }
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
        self.prove_next();
        self.follow_versions(&[report.waiting.clone(), self.prover.names()].concat());
        self.shown.write().reloads.changed += report.changed.len() as u64;
        self.fill_seat();
        self.save();
        for (name, entry) in &self.entries {
            if let Some(problem) = &entry.problem {
                report.refused.push((name.clone(), problem.message.clone()));
            }
        }
        self.show();
        report
    }

    /// Keeps what came into use for a restart: after the swap, which need not wait for the disk.
    fn save(&mut self) {
        for mut unsaved in std::mem::take(&mut self.unsaved) {
            // Only what is still in use is worth keeping.
            let is_used = self.used(&unsaved.name).is_some_and(|used| {
                used.loaded.artifact().digest() == unsaved.version.digest
                    && *used.loaded.config() == unsaved.version.config
            });
            if !is_used {
                continue;
            }
            let stored = unsaved.wasm.as_ref().map_or(Ok(()), |wasm| self.keep.store(&unsaved.name, wasm));
            let (version, left) = (unsaved.version.clone(), &unsaved.left);
            let saved = stored.and_then(|()| self.keep.came_into_use(&unsaved.name, version, true, left));
            if let Err(error) = saved {
                if !unsaved.is_reported {
                    tracing::error!(
                        policy.name = unsaved.name, %error,
                        "cannot keep this version for a restart yet, trying again"
                    );
                }
                unsaved.is_reported = true;
                self.unsaved.push(unsaved);
            }
        }
        if self.is_state_unsaved {
            self.store_state();
        }
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
            // It was never proven.
            if !is_embedded && entry.used.is_none() {
                self.entries.remove(name);
            }
            return;
        }
        let digests = [
            entry.used.as_ref().map(|used| used.loaded.artifact().digest().to_owned()),
            entry.problem.as_ref().map(|problem| problem.digest.clone()),
        ];
        let replaced = std::mem::take(entry).used;
        if is_embedded {
            // Loaded still, it need not be compiled again.
            let plain = self.former(name).filter(|former| self.is_plain(former)).cloned();
            let used = plain.map(|plain| Used::of(plain, Source::Embedded));
            self.entries.insert(name.to_owned(), Entry { used, ..Entry::default() });
        } else {
            self.entries.remove(name);
        }
        if let Some(used) = replaced {
            self.remember(name, used.into());
        }
        let before = self.quarantine.len();
        for digest in digests.into_iter().flatten() {
            if !self.is_dropped(&digest) {
                self.quarantine.remove(&digest);
            }
        }
        if self.quarantine.len() != before {
            self.candidates.retain(|_, candidate| candidate.is_ok());
            self.save_quarantine();
        }
        self.retire(name, Way::Removed);
        tracing::info!(policy.name = name, embedded = is_embedded, "policy file removed");
        if !is_embedded && self.cause.as_ref().is_none_or(|(ordered, _)| ordered != name) {
            for promoted in self.state.returning_to(name) {
                tracing::warn!(
                    policy.name = name,
                    promoted,
                    "a promotion on trial would return to the policy whose file was removed; its status says what then"
                );
            }
        }
        report.changed.push(name.to_owned());
    }

    /// Returns the version in use of a name.
    pub(super) fn used(&self, name: &str) -> Option<&Used> {
        self.entries.get(name)?.used.as_ref()
    }

    /// Says whether a name has a file with this digest.
    fn is_dropped(&self, digest: &str) -> bool {
        let is_used =
            |used: &Used| used.source != Source::Embedded && used.loaded.artifact().digest() == digest;
        self.entries.values().any(|entry| {
            entry.problem.as_ref().is_some_and(|problem| problem.digest == digest)
                || entry.used.as_ref().is_some_and(is_used)
        })
    }

    fn found(&mut self, name: &str, found: &Found, report: &mut Report) {
        let now_used = self.used(name);
        let digest = match (&found.wasm, self.embedded_digest(name)) {
            (Some(component), _) => component.digest.clone(),
            (None, Some(digest)) => digest.to_owned(),
            (None, None) => {
                let refusal = Refusal::Alone { name: name.to_owned() };
                // Its component was deleted: the configuration alone keeps nothing alive.
                if self.used(name).is_some() {
                    self.absent(name, report);
                }
                self.refuse(name, "", Some(&found.config), &refusal);
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
                (entry.refused, entry.put_off) = (None, None);
            }
            return;
        }
        let refused = self.entries.get(name).and_then(|entry| entry.refused.as_ref());
        if refused.is_some_and(|(other, config)| *other == digest && *config == found.config) {
            return;
        }
        let put_off = self.entries.get(name).and_then(|entry| entry.put_off.as_ref());
        let is_early = |tried_at: Timestamp| self.clock.now().since(tried_at) < self.settings.poll;
        if put_off.is_some_and(|(other, config, tried_at)| {
            *other == digest && *config == found.config && is_early(*tried_at)
        }) {
            return;
        }
        let proof = match self.quarantine.get(&digest) {
            Some(failure) => Some(Err(Refusal::Quarantined { failure: failure.clone() })),
            None => self.proof_of(name, &digest, found),
        };
        let Some(proven) = proof else {
            let entry = self.entries.entry(name.to_owned()).or_default();
            let is_again = entry
                .put_off
                .as_ref()
                .is_some_and(|(other, config, _)| *other == digest && *config == found.config);
            // What was wrong with other files says nothing about these; what serves meanwhile is still the last good one.
            if entry.used.is_none() && !is_again {
                entry.problem = None;
            }
            if self.is_put_off(name) {
                self.restore(name);
            }
            return;
        };
        match proven {
            Ok((proven, wasm)) => {
                let source = if found.wasm.is_some() { Source::File } else { Source::Embedded };
                let Proven { loaded, signatures, load_ms } = proven;
                tracing::info!(policy.name = name, policy.digest = digest, load_ms, "policy version proven");
                let used = Used { loaded, source, load_ms, signatures };
                let now = self.clock.now().0;
                let (came, left) = self.cause_of(name, Way::Dropped, now);
                let version = Version { came_by: Some(came), ..used.version(now) };
                let entry = Entry { used: Some(used), ..Entry::default() };
                let before = self.entries.insert(name.to_owned(), entry).and_then(|entry| entry.used);
                // The same version may only have another source now.
                if let Some(before) = before.filter(|before| !before.version(now).is_same(&version)) {
                    self.remember(name, before.into());
                }
                self.unsaved.push(Unsaved { name: name.to_owned(), wasm, version, left, is_reported: false });
                report.changed.push(name.to_owned());
            }
            Err(refusal) => {
                self.refuse(name, &digest, Some(&found.config), &refusal);
                self.restore(name);
            }
        }
    }

    /// Compiles, unless the version in use has the same bytes and only its configuration changed.
    fn artifact(&self, name: &str, wasm: Option<&[u8]>) -> Result<Arc<Artifact>, Refusal> {
        let bytes = wasm.or_else(|| self.embedded(name).map(|policy| policy.wasm)).unwrap_or_default();
        let used = self.used(name);
        match used.map(|used| used.loaded.artifact()) {
            Some(artifact) if artifact.digest() == artifact::digest(bytes) => Ok(artifact.clone()),
            _ => Artifact::load(&self.runtime, bytes),
        }
    }

    pub(super) fn refuse(&mut self, name: &str, digest: &str, config: Option<&Value>, refusal: &Refusal) {
        let problem = Problem {
            code: refusal.code().to_owned(),
            message: refusal.to_string(),
            digest: digest.to_owned(),
        };
        let entry = self.entries.entry(name.to_owned()).or_default();
        // What may work the next time is tried again.
        let is_final = !refusal.is_retryable();
        let refused = config.map(|config| (digest.to_owned(), config.clone()));
        let now = self.clock.now();
        entry.put_off = refused.clone().filter(|_| !is_final).map(|(digest, config)| (digest, config, now));
        entry.refused = refused.filter(|_| is_final);
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
        if self.used(name).is_some() {
            return;
        }
        let Some(version) = self.keep.good(name).cloned() else { return };
        match self.prove_kept(name, &version) {
            Ok(loaded) => {
                let (signatures, load_ms) = (version.signatures, loaded.1);
                tracing::warn!(policy.name = name, "the last good version is back in use");
                let used = Used { loaded: loaded.0, source: Source::LastGood, load_ms, signatures };
                self.entries.entry(name.to_owned()).or_default().used = Some(used);
            }
            Err(refusal) => {
                tracing::error!(policy.name = name, %refusal, "the last good version cannot be used");
            }
        }
    }

    /// Loads and self-tests a version that was kept; returns it with the time that took, in milliseconds.
    pub(super) fn prove_kept(&self, name: &str, version: &Version) -> Result<(Arc<Loaded>, u64), Refusal> {
        self.check_kept(name, version)?;
        let begun = self.clock.now();
        let lost = || Refusal::Unreadable {
            what: format!("the kept component of {name}"),
            error: "it is lost or damaged".to_owned(),
        };
        let wasm = self.component(name, &version.digest).ok_or_else(lost)?;
        let loaded = self.artifact(name, Some(&wasm))?.configured(name, version.config.clone())?;
        proof::run(&loaded, &*self.clock)?;
        Ok((Arc::new(loaded), millis(self.clock.now().since(begun))))
    }

    /// Checks what may have changed since a version was kept: the quarantine and the trusted keys.
    pub(super) fn check_kept(&self, name: &str, version: &Version) -> Result<(), Refusal> {
        if let Some(failure) = self.quarantine.get(&version.digest) {
            return Err(Refusal::Quarantined { failure: failure.clone() });
        }
        let Some(keys) = &self.settings.trusted else { return Ok(()) };
        let component = (!self.is_embedded(name, &version.digest)).then_some(version.digest.as_str());
        version.signatures.check(keys, name, component, &version.config)
    }

    /// Returns the bytes of a component: of the embedded one, a kept one, or that in the folder.
    pub(super) fn component(&self, name: &str, digest: &str) -> Option<Vec<u8>> {
        if self.is_embedded(name, digest) {
            return self.embedded(name).map(|policy| policy.wasm.to_vec());
        }
        self.keep.load(name, digest).or_else(|| self.folder.component(name, digest))
    }

    /// Returns why the version in use of a name is replaced right now: by an order, or else the way it is said.
    fn cause_of(&self, name: &str, otherwise: Way, now_ms: u64) -> (Way, Left) {
        let ordered = self.cause.as_ref().filter(|(ordered, _)| ordered == name).map(|(_, cause)| cause);
        let Cause { came, left, reason } =
            ordered.cloned().unwrap_or_else(|| Cause::new(otherwise, otherwise));
        (came, Left { by: left, reason, at: now_ms })
    }

    /// Returns the version compiled into the host under a name.
    pub(super) fn plain_version(&self, name: &str, at_ms: u64) -> Option<Version> {
        let config = Value::Object(serde_json::Map::new());
        Some(Version { at_ms, ..Version::new(self.embedded_digest(name)?, config) })
    }

    /// Notes that a name has no file any more, because of this unless there is an order.
    pub(super) fn retire(&mut self, name: &str, otherwise: Way) {
        let is_known = self.keep.records().contains_key(name);
        let now = self.clock.now().0;
        let (came, left) = self.cause_of(name, otherwise, now);
        let retired = match self.plain_version(name, now) {
            // The embedded version is in use again.
            Some(version) if is_known => {
                let version = Version { came_by: Some(came), ..version };
                self.keep.came_into_use(name, version, false, &left)
            }
            _ => self.keep.retire(name, &left),
        };
        if let Err(error) = retired {
            tracing::error!(policy.name = name, %error, "cannot note that a policy file is gone");
        }
    }

    /// Says whether this is the component compiled into the host under that name.
    pub(super) fn is_embedded(&self, name: &str, wanted: &str) -> bool {
        self.embedded_digest(name) == Some(wanted)
    }

    /// Returns the digest of the component compiled into the host under that name.
    pub(super) fn embedded_digest(&self, name: &str) -> Option<&str> {
        self.plain.digest(name)
    }

    pub(super) fn embedded(&self, name: &str) -> Option<Embedded> {
        self.plain.of(name)
    }
}

/// Notes that the task is over, however it ended.
struct End(Arc<Life>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Returns what is to be kept of a version.
pub(super) fn version_of(loaded: &Loaded, signatures: Signatures, at_ms: u64) -> Version {
    let artifact = loaded.artifact();
    let version = artifact.describe().version.clone();
    Version { signatures, version, at_ms, ..Version::new(artifact.digest(), loaded.config().clone()) }
}

/// Tries a version on what the host would ask right now.
pub(super) fn prove_live(loaded: &Loaded, host: &dyn ScoringHost, clock: &dyn Clock) -> Result<(), Refusal> {
    if !loaded.artifact().roles().scoring {
        return Ok(());
    }
    let request = OwnedRequest { now_ms: clock.now().0, seed: 1, ..OwnedRequest::default() };
    proof::patiently(|| proof::recommend_once(loaded, &host.snapshot(), &request))
        .map_err(|failure| Refusal::SelfTest { case: "the present instances".to_owned(), failure })
}
