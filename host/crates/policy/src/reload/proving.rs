//! Proofs of files in the policies folder: one at a time, on a thread of their own.
//!
//! A proof takes milliseconds, or half a minute if a component means harm. Invariants: no order, no group and no start of
//! the host waits for the proof of a file that nothing needs; what comes into use was proven as the very bytes and
//! configuration that lie in the folder then; each name gets its turn, however long those before it take.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::time::{Clock, Timestamp, millis};
use serde_json::Value;

use super::folder::Found;
use super::keep::Version;
use super::manager::{Message, Reply};
use super::state::Promotion;
use super::task::{Proven, Reload, Task, prove_live};
use crate::artifact::Artifact;
use crate::proof;
use crate::refusal::Refusal;
use crate::runtime::Runtime;
use crate::seat::{ScoringFactory as _, ScoringHost};
use crate::status::Report;

/// Longest time the start of the host goes on with files that are not bound. They were proven once, so it takes them a moment.
const BOOT_PATIENCE: Duration = Duration::from_secs(10);
/// Why a name cannot be used yet.
const PROVING: &str = "its file is still being proven; `fulcrum policy status` tells when it can be used";

/// A version that passed, with the bytes of its component if they are to be stored, or why it did not.
type Proof = Result<(Proven, Option<Vec<u8>>), Refusal>;

/// What a proof is about.
#[derive(Clone, Debug, PartialEq)]
struct Subject {
    name: String,
    digest: String,
    config: Value,
}

/// A proof that is over.
pub(super) struct Done {
    subject: Subject,
    /// `None` if it crashed.
    proof: Option<Proof>,
}

/// Somebody who waits for the proofs of some names: they come first.
pub(super) struct Awaited {
    pub(super) names: BTreeSet<String>,
    /// Gets its answer when none of them is to be proven any more.
    pub(super) reply: Reply<()>,
}

/// One proof.
struct Job {
    subject: Subject,
    found: Found,
    /// The component, if it is loaded: only the configuration is another one.
    artifact: Option<Arc<Artifact>>,
    /// The bytes compiled into the host under that name.
    embedded: Option<&'static [u8]>,
    runtime: Arc<Runtime>,
    host: Arc<dyn ScoringHost>,
    clock: Arc<dyn Clock>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Prover {
    /// What waits for its turn, as of the last look at the folder.
    queue: BTreeMap<String, Job>,
    /// What is being proven; it may have been replaced in the folder meanwhile.
    running: Option<Subject>,
    /// What was proven since the last look.
    done: Option<(Subject, Proof)>,
    /// When each name had its last turn: counted, as only their order matters.
    turns: BTreeMap<String, u64>,
    turn: u64,
    awaited: Vec<Awaited>,
    /// While the host starts: when it began, and what is to lie in the folder by an order that was cut short.
    boot: Option<(Timestamp, Option<(String, Version)>)>,
}

impl Prover {
    /// Returns the names whose files are still to be proven.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.queue.keys().cloned().collect();
        if let Some(running) = &self.running
            && !self.queue.contains_key(&running.name)
        {
            names.push(running.name.clone());
            names.sort();
        }
        names
    }

    pub(super) fn is_at(&self, name: &str) -> bool {
        self.queue.contains_key(name) || self.running.as_ref().is_some_and(|running| running.name == name)
    }

    pub(super) fn wait_for(&mut self, awaited: Awaited) {
        self.awaited.push(awaited);
    }

    /// Begins a look at the folder, which says anew what is to be proven.
    pub(super) fn begin_look(&mut self) {
        self.queue.clear();
    }
}

impl Task {
    /// Begins and ends the start of the host: what is needed then is proven at once.
    pub(super) fn set_booting(&mut self, is_booting: bool) {
        let ordered = self.state.installing.clone();
        let ordered = ordered.and_then(|order| Some((order.name, order.version?)));
        self.prover.boot = is_booting.then(|| (self.clock.now(), ordered));
    }

    /// Loads, configures and self-tests what lies in the folder: at once if somebody waits for that very name, else it gets
    /// its turn, and `None` is returned until that is over.
    pub(super) fn proof_of(&mut self, name: &str, digest: &str, found: &Found) -> Option<Proof> {
        let subject =
            Subject { name: name.to_owned(), digest: digest.to_owned(), config: found.config.clone() };
        let embedded = self.embedded(name).map(|policy| policy.wasm);
        let is_it = |proven: &mut Proven| {
            proven.loaded.identity().name == name
                && proven.loaded.artifact().digest() == digest
                && *proven.loaded.config() == found.config
        };
        if let Some(proven) = self.proven.take_if(is_it) {
            let wasm = embedded.filter(|_| self.is_embedded(name, digest));
            return Some(Ok((proven, wasm.map(<[u8]>::to_vec))));
        }
        if let Some((_, proof)) = self.prover.done.take_if(|(done, _)| *done == subject) {
            return Some(proof);
        }
        let used = self.used(name);
        let artifact = used.map(|used| used.loaded.artifact()).filter(|artifact| artifact.digest() == digest);
        let job = Job {
            artifact: artifact.cloned(),
            embedded,
            found: found.clone(),
            runtime: self.runtime.clone(),
            host: self.host.clone(),
            clock: self.clock.clone(),
            subject,
        };
        let is_ordered = self.cause.as_ref().is_some_and(|(ordered, _)| ordered == name);
        if is_ordered || self.is_needed_at_boot(&job.subject) {
            return Some(job.run());
        }
        self.prover.queue.insert(name.to_owned(), job);
        None
    }

    /// Says whether the host starts only once this is proven: what was proven before, and what is bound and has nothing that
    /// could serve in its place. Whatever else lies in the folder, and however much, it does not hold the start up.
    fn is_needed_at_boot(&self, subject: &Subject) -> bool {
        let Some((begun, ordered)) = &self.prover.boot else { return false };
        let Subject { name, digest, config } = subject;
        let is_it = |version: &Version| version.digest == *digest && version.config == *config;
        let is_tried = |promotion: &Promotion| promotion.digest == *digest && promotion.config == *config;
        let is_known = self.keep.versions(name).iter().chain(self.keep.good(name)).any(is_it)
            || self.state.promotions.get(name).is_some_and(is_tried)
            || ordered.as_ref().is_some_and(|(ordered, version)| ordered == name && is_it(version));
        let is_bound = self.is_bound(name);
        match is_bound {
            true => is_known || self.keep.good(name).is_none(),
            false => is_known && self.clock.now().since(*begun) < BOOT_PATIENCE,
        }
    }

    fn is_bound(&self, name: &str) -> bool {
        let bindings = &self.state.bindings;
        !bindings.roles_of(name).is_empty()
            || bindings.canary.as_ref().is_some_and(|canary| canary.policy == name)
            || self.settings.default_scoring == name
            || !self.state.returning_to(name).is_empty()
    }

    /// Says whether a file waits for its proof while the host starts: what served before it is needed then.
    pub(super) fn is_put_off(&self, name: &str) -> bool {
        let Some((begun, _)) = &self.prover.boot else { return false };
        self.is_bound(name) || self.clock.now().since(*begun) < BOOT_PATIENCE
    }

    /// Begins the next proof, if none is under way: of the name whose last turn was longest ago.
    pub(super) fn prove_next(&mut self) {
        // It was about files that are not there any more.
        self.prover.done = None;
        let Prover { queue, running, turns, turn, awaited, .. } = &mut self.prover;
        turns.retain(|name, _| self.present.contains(name));
        if running.is_some() {
            return;
        }
        let is_awaited = |name: &String| awaited.iter().any(|awaited| awaited.names.contains(name));
        let next = queue.keys().min_by_key(|name| (!is_awaited(name), turns.get(*name))).cloned();
        let Some(job) = next.and_then(|name| queue.remove(&name)) else { return };
        *turn += 1;
        turns.insert(job.subject.name.clone(), *turn);
        let (subject, sender) = (job.subject.clone(), self.sender.clone());
        let work = move || {
            let proof = catch_unwind(AssertUnwindSafe(|| job.run())).ok();
            // A task that is over does not want it.
            drop(sender.send(Message::Proven(Box::new(Done { subject: job.subject, proof }))));
        };
        match std::thread::Builder::new().name("policy-proof".to_owned()).spawn(work) {
            Ok(_) => *running = Some(subject),
            // It is in the queue again at the next look.
            Err(error) => {
                tracing::error!(policy.name = subject.name, %error, "cannot prove a policy file yet, trying again");
            }
        }
    }

    /// Takes a proof in that is over; the look at the folder that follows acts on it.
    pub(super) fn take_proof(&mut self, done: Done) {
        let Done { subject, proof } = done;
        self.prover.running = None;
        let proof = proof.unwrap_or_else(|| {
            tracing::error!(policy.name = subject.name, "the proof of a policy file crashed");
            self.life.crash(self.clock.now());
            Err(Refusal::Crashed)
        });
        self.prover.done = Some((subject, proof));
    }

    /// Returns why nothing can be used under a name that has no version in use; `None` if nobody knows the name.
    pub(super) fn why_unusable(&self, name: &str) -> Option<String> {
        let problem = self.entries.get(name).and_then(|entry| entry.problem.as_ref());
        let proving = || self.prover.is_at(name).then(|| PROVING.to_owned());
        problem.map(|problem| problem.message.clone()).or_else(proving)
    }

    /// Answers those who wait for names of which none is to be proven any more, nor still being written.
    pub(super) fn answer_awaited(&mut self, being_written: &[String]) {
        for awaited in std::mem::take(&mut self.prover.awaited) {
            let mut names = awaited.names.iter();
            if names.any(|name| self.prover.is_at(name) || being_written.contains(name)) {
                self.prover.awaited.push(awaited);
            } else {
                (awaited.reply)(());
            }
        }
    }

    /// Answers those who asked for a look at the folder, once everything that lay there then had its turn: files that keep
    /// coming hold nobody up.
    pub(super) fn answer_reloads(&mut self, report: &Report) {
        for mut reload in std::mem::take(&mut self.reloads) {
            let new = report.changed.iter().filter(|name| !reload.changed.contains(name));
            let new: Vec<_> = new.cloned().collect();
            reload.changed.extend(new);
            let Prover { turns, turn, running, .. } = &self.prover;
            // What was still being written then counts once it is complete, but is not waited for until it is.
            let there = || [self.prover.names(), report.waiting.clone()].concat();
            let (names, since) = reload.open.get_or_insert_with(|| (there(), *turn));
            names.retain(|name| {
                let is_running = running.as_ref().is_some_and(|running| running.name == *name);
                is_running || turns.get(name).is_none_or(|turn| *turn <= *since)
            });
            if report.error.is_none() && names.iter().any(|name| self.prover.is_at(name)) {
                self.reloads.push(reload);
                continue;
            }
            let Reload { reply, changed, .. } = reload;
            reply(Report { changed, ..report.clone() });
        }
    }
}

impl Job {
    fn run(&self) -> Proof {
        let begun = self.clock.now();
        let bytes_max = self.runtime.limits().artifact_bytes;
        let wasm = self.found.wasm.as_ref().map(|component| component.read(bytes_max)).transpose()?;
        let wasm = wasm.or_else(|| self.embedded.map(<[u8]>::to_vec));
        let artifact = match &self.artifact {
            Some(artifact) => artifact.clone(),
            None => Artifact::load(&self.runtime, wasm.as_deref().unwrap_or_default())?,
        };
        let loaded = artifact.configured(&self.subject.name, self.found.config.clone())?;
        proof::run(&loaded, &*self.clock)?;
        prove_live(&loaded, &*self.host, &*self.clock)?;
        let load_ms = millis(self.clock.now().since(begun));
        let signatures = self.found.signatures.clone();
        Ok((Proven { loaded: Arc::new(loaded), signatures, load_ms }, wasm))
    }
}
