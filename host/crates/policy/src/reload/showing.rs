//! What the handle of the task shows of its state.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::keep::Version;
use super::state;
use super::task::{Entry, Task, Used};
use crate::status::{
    Allowance, CanaryStatus, Candidate, Former, Kept, Promotion, Source, State, Status, no_decisions,
};

impl Task {
    pub(super) fn show(&self) {
        let mut served = None;
        self.host.with_seat(&mut |seat| served = seat.health().map(|health| health.identity));
        let served = served.map(|identity| identity.name.clone());
        // Also those of which only former versions are kept.
        let kept = self
            .keep
            .records()
            .iter()
            .filter(|(_, record)| record.candidate.is_some() || !record.versions.is_empty());
        let names: BTreeSet<&String> = self.entries.keys().chain(kept.map(|(name, _)| name)).collect();
        let none = Entry::default();
        let entry = |name: &String| self.entries.get(name).unwrap_or(&none);
        let statuses =
            names.into_iter().map(|name| self.status(name, entry(name), served.as_ref())).collect();
        let bindings = self.effective_bindings();
        let loaded: BTreeMap<_, _> =
            self.entries.keys().filter_map(|name| Some((name.clone(), self.answering(name)?))).collect();
        let unusable = self.entries.keys().filter_map(|name| Some((name.clone(), self.unanswered(name)?)));
        let unusable = unusable.collect();
        let candidates = self.candidates.iter();
        let candidates =
            candidates.filter_map(|(name, loaded)| Some((name.clone(), loaded.as_ref().ok()?.clone())));
        let listeners = {
            let mut shown = self.shown.write();
            let is_same = shown.bindings == bindings
                && shown.loaded.len() == loaded.len()
                && shown.loaded.values().zip(loaded.values()).all(|(a, b)| std::sync::Arc::ptr_eq(a, b));
            shown.statuses = statuses;
            shown.bindings = bindings;
            shown.loaded = loaded;
            shown.unusable = unusable;
            shown.proving = self.prover.names();
            shown.candidates = candidates.collect();
            shown.probations = self.probations.values().cloned().collect();
            shown.canary = self.canary.as_ref().map(|canary| canary.probation.clone());
            if is_same { Vec::new() } else { shown.listeners.clone() }
        };
        listeners.iter().for_each(|listener| listener());
    }

    fn status(&self, name: &String, entry: &Entry, served: Option<&String>) -> Status {
        let bindings = &self.state.bindings;
        let plans = bindings.claiming == *name || bindings.groups.values().any(|policy| policy == name);
        let serves = plans || served == Some(name);
        let mut status = Status {
            name: name.clone(),
            state: State::Refused,
            source: Source::File,
            digest: String::new(),
            version: String::new(),
            summary: String::new(),
            roles: Vec::new(),
            bound: bindings.roles_of(name),
            config: Value::Null,
            size_bytes: 0,
            load_ms: 0,
            last_failure: None,
            problem: entry.problem.clone(),
            decisions: no_decisions(),
            plans: no_decisions(),
            candidate: self.keep.candidate(name).map(|version| self.show_candidate(name, version)),
            versions: self.show_versions(name, entry.used.as_ref()),
            promotion: self.state.promotions.get(name).map(|promotion| self.show_promotion(name, promotion)),
            canary: self.show_canary(name),
        };
        if let Some(Used { loaded, source, load_ms, .. }) = &entry.used {
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
            self.embedded_digest(name).unwrap_or_default().clone_into(&mut status.digest);
            status.size_bytes = policy.wasm.len() as u64;
        } else if entry.problem.is_none() && self.prover.is_at(name) {
            status.state = State::Proving;
        } else if entry.problem.is_none() {
            status.state = if status.candidate.is_some() { State::Candidate } else { State::Removed };
        }
        if entry.problem.as_ref().is_some_and(|problem| problem.code == "quarantined") && entry.used.is_none()
        {
            status.state = State::Quarantined;
        }
        status
    }

    fn show_candidate(&self, name: &str, version: &Version) -> Candidate {
        Candidate {
            digest: version.digest.clone(),
            version: version.version.clone(),
            config: version.config.clone(),
            at: version.at_ms,
            problem: self.candidates.get(name).and_then(|loaded| loaded.as_ref().err().cloned()),
            taken_back: version.taken_back(),
        }
    }

    fn show_versions(&self, name: &str, used: Option<&Used>) -> Vec<Kept> {
        let embedded = self.embedded_digest(name);
        let is_used = |digest: &str, config: &Value| match used {
            Some(used) => used.loaded.artifact().digest() == digest && used.loaded.config() == config,
            // One that was not needed yet.
            None => embedded == Some(digest) && is_empty(config),
        };
        let mut versions: Vec<_> = self
            .keep
            .versions(name)
            .iter()
            .map(|version| Kept {
                digest: version.digest.clone(),
                version: version.version.clone(),
                config: version.config.clone(),
                embedded: embedded == Some(version.digest.as_str()),
                in_use: is_used(&version.digest, &version.config),
                at: Some(version.at_ms).filter(|at| *at > 0),
                came_by: version.came_by,
                left: version.left.clone(),
            })
            .collect();
        if let Some(digest) = embedded
            && !versions.iter().any(|version| version.digest == digest && is_empty(&version.config))
        {
            let config = Value::Object(serde_json::Map::new());
            let in_use = is_used(digest, &config);
            let (digest, version) = (digest.to_owned(), String::new());
            let (at, came_by, left) = (None, None, None);
            versions.push(Kept { digest, version, config, embedded: true, in_use, at, came_by, left });
        }
        versions
    }

    fn show_promotion(&self, name: &str, promotion: &state::Promotion) -> Promotion {
        let former = promotion.former.as_ref().filter(|_| promotion.replaces);
        Promotion {
            state: promotion.state,
            digest: promotion.digest.clone(),
            config: promotion.config.clone(),
            budget: Allowance { failures_max: promotion.failures_max, decisions: promotion.decisions },
            asked: promotion.asked,
            failed: promotion.failed,
            from: Former {
                digest: former.map(|former| former.digest.clone()),
                config: former.map(|former| former.config.clone()),
                bindings: promotion.undo.clone(),
                problem: self.missing(name, promotion),
            },
            reason: promotion.reason.clone(),
            at: promotion.at_ms,
        }
    }

    fn show_canary(&self, name: &str) -> Option<CanaryStatus> {
        match &self.canary {
            Some(canary) if canary.probation.identity().name == name => {
                let (asked, failed) = canary.probation.counts();
                let identity = canary.probation.identity();
                let digest = identity.digest.clone();
                let config = serde_json::from_str(&identity.config).unwrap_or_default();
                Some(CanaryStatus { share: canary.share, digest, config, asked, failed, reason: None })
            }
            _ => self.canaries_ended.get(name).cloned(),
        }
    }
}

pub(super) fn is_empty(config: &Value) -> bool {
    config.as_object().is_some_and(serde_json::Map::is_empty)
}
