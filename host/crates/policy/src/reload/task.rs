//! The task's own work: look at the folder, prove what is new, remember what was refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use fulcrum_core::time::{Clock, millis};
use parking_lot::RwLock;
use serde_json::Value;

use super::folder::{Folder, Found, Look};
use super::keep::Keep;
use super::manager::{Embedded, Message, Settings, Shown};
use super::signed::Signatures;
use super::watch::Watch;
use crate::artifact::{Artifact, Loaded, digest};
use crate::breaker;
use crate::proof;
use crate::refusal::Refusal;
use crate::runtime::Runtime;
use crate::seat::{OwnedRequest, ScoringHost};
use crate::status::{Bindings, Problem, Report, Source, State, Status, no_decisions};

/// How long a burst of file events may go on before the folder is looked at.
const GATHER: Duration = Duration::from_millis(20);

/// One policy name.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) used: Option<Used>,
    pub(super) problem: Option<Problem>,
    /// Digest and configuration of what was refused last: not tried again and again.
    pub(super) refused: Option<(String, Value)>,
}

/// The version in use under one name.
pub(super) struct Used {
    pub(super) loaded: Arc<Loaded>,
    pub(super) source: Source,
    pub(super) load_ms: u64,
}

pub(super) struct Task {
    pub(super) settings: Settings,
    pub(super) runtime: Arc<Runtime>,
    pub(super) embedded: Vec<Embedded>,
    pub(super) host: Arc<dyn ScoringHost>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) folder: Folder,
    pub(super) keep: Keep,
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) quarantine: BTreeMap<String, String>,
    pub(super) bindings: Bindings,
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

/// A version that came into use.
pub(super) struct Unsaved {
    name: String,
    wasm: Vec<u8>,
    config: Value,
    signatures: Signatures,
    is_reported: bool,
}

impl Task {
    pub(super) fn boot(&mut self) {
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

    pub(super) fn run(mut self, receiver: &Receiver<Message>) {
        loop {
            let message = match receiver.recv_timeout(self.pause()) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
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
                    Some(Message::Bind(rebind, reply)) => binds.push((rebind, reply)),
                    Some(Message::Use(name, reply)) => {
                        let loaded = self.use_of(&name);
                        self.show();
                        drop(reply.try_send(loaded));
                    }
                    Some(Message::FolderGone) => self.watch = None,
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
            self.rewatch();
            if !replies.is_empty() {
                // Whoever asks wants what was refused to be tried again: it may have been refused for want of time.
                self.entries.values_mut().for_each(|entry| entry.refused = None);
            }
            let report = self.reconcile();
            for (rebind, reply) in binds {
                drop(reply.try_send(self.bind(&rebind)));
            }
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
            let is_used =
                self.entries.get(&unsaved.name).and_then(|entry| entry.used.as_ref()).is_some_and(|used| {
                    used.loaded.artifact().digest() == digest(&unsaved.wasm)
                        && *used.loaded.config() == unsaved.config
                });
            if !is_used {
                continue;
            }
            if let Err(error) =
                self.keep.save(&unsaved.name, &unsaved.wasm, &unsaved.config, &unsaved.signatures)
            {
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
                // Its component was deleted: the configuration alone keeps nothing alive.
                if self.entries.get(name).is_some_and(|entry| entry.used.is_some()) {
                    self.absent(name, report);
                }
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
                let embedded = || self.embedded(name).map(|policy| policy.wasm.to_vec());
                if let Some(wasm) = wasm.or_else(embedded) {
                    let config = loaded.config().clone();
                    let (name, signatures) = (name.to_owned(), found.signatures.clone());
                    self.unsaved.push(Unsaved { name, wasm, config, signatures, is_reported: false });
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
    pub(super) fn prove_live(&self, loaded: &Loaded) -> Result<(), Refusal> {
        if !loaded.artifact().roles().scoring {
            return Ok(());
        }
        let request = OwnedRequest { now_ms: self.clock.now().0, seed: 1, ..OwnedRequest::default() };
        proof::recommend_once(loaded, &self.host.snapshot(), &request)
            .map_err(|failure| Refusal::SelfTest { case: "the present instances".to_owned(), failure })
    }

    pub(super) fn refuse(&mut self, name: &str, digest: &str, config: Option<&Value>, refusal: &Refusal) {
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
        let kept_digest = digest(&kept.wasm);
        if self.quarantine.contains_key(&kept_digest) {
            return;
        }
        if let Some(keys) = &self.settings.trusted {
            let is_embedded = self.embedded(name).is_some_and(|policy| policy.wasm == kept.wasm);
            let component = (!is_embedded).then_some(kept_digest.as_str());
            // Keys may have been taken off the list since it was kept.
            if let Err(refusal) = kept.signatures.check(keys, name, component, &kept.config) {
                tracing::error!(policy.name = name, %refusal, "the last good version is not trusted any more");
                return;
            }
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

    pub(super) fn forget(&self, name: &str) {
        if let Err(error) = self.keep.forget(name) {
            tracing::error!(policy.name = name, %error, "cannot forget the last good version");
        }
    }

    pub(super) fn embedded(&self, name: &str) -> Option<Embedded> {
        self.embedded.iter().copied().find(|policy| policy.name == name)
    }

    fn roles_bound_to(&self, name: &str) -> Vec<String> {
        let groups = self.bindings.groups.iter().filter(|(_, policy)| *policy == name);
        [("scoring", &self.bindings.scoring), ("claiming", &self.bindings.claiming)]
            .into_iter()
            .filter(|(_, policy)| *policy == name)
            .map(|(role, _)| role.to_owned())
            .chain(groups.map(|(group, _)| format!("group:{group}")))
            .collect()
    }

    pub(super) fn show(&self) {
        let mut served = None;
        self.host.with_seat(&mut |seat| served = seat.health().map(|health| health.identity));
        let status = |(name, entry): (&String, &Entry)| {
            let plans =
                self.bindings.claiming == *name || self.bindings.groups.values().any(|policy| policy == name);
            let serves = plans || served.as_ref().is_some_and(|identity| identity.name == *name);
            let mut status = Status {
                name: name.clone(),
                state: State::Refused,
                source: Source::File,
                digest: String::new(),
                version: String::new(),
                summary: String::new(),
                roles: Vec::new(),
                bound: self.roles_bound_to(name),
                config: Value::Null,
                size_bytes: 0,
                load_ms: 0,
                last_failure: None,
                problem: entry.problem.clone(),
                decisions: no_decisions(),
                plans: no_decisions(),
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
        let statuses = self.entries.iter().map(status).collect();
        let used =
            |(name, entry): (&String, &Entry)| Some((name.clone(), entry.used.as_ref()?.loaded.clone()));
        let loaded: BTreeMap<_, _> = self.entries.iter().filter_map(used).collect();
        let listeners = {
            let mut shown = self.shown.write();
            let is_same = shown.bindings == self.bindings
                && shown.loaded.len() == loaded.len()
                && shown.loaded.values().zip(loaded.values()).all(|(a, b)| Arc::ptr_eq(a, b));
            shown.statuses = statuses;
            shown.bindings = self.bindings.clone();
            shown.loaded = loaded;
            if is_same { Vec::new() } else { shown.listeners.clone() }
        };
        listeners.iter().for_each(|listener| listener());
    }
}
