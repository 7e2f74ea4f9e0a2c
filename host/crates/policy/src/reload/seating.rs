//! The task's work on the seat: which version takes it, trials of an open breaker, quarantine.

use std::sync::Arc;

use fulcrum_core::time::millis;
use serde_json::Value;

use super::manager::BindError;
use super::task::{Task, Used};
use crate::artifact::{Artifact, Loaded};
use crate::breaker;
use crate::failure::Failure;
use crate::proof;
use crate::refusal::Refusal;
use crate::seat::{ScoringFactory, ScoringPolicy, Staged};
use crate::status::{Bindings, Rebind, Source};

/// Most groups with a binding of their own.
const GROUP_BINDINGS_MAX: usize = 10_000;

impl Task {
    /// Changes bindings: all of them, or none if one is refused.
    pub(super) fn bind(&mut self, rebind: &Rebind) -> Result<Bindings, BindError> {
        let claiming = rebind.claiming.iter().chain(rebind.groups.values().flatten());
        let wanted = rebind.scoring.iter().map(|name| (name, "scoring"));
        for (name, role) in wanted.chain(claiming.map(|name| (name, "claiming"))) {
            self.check_bindable(name, role)?;
        }
        let added = rebind.groups.keys().filter(|group| !self.bindings.groups.contains_key(*group)).count();
        if self.bindings.groups.len() + added > GROUP_BINDINGS_MAX {
            return Err(BindError::TooMany { max: GROUP_BINDINGS_MAX });
        }
        if let Some(name) = &rebind.scoring {
            name.clone_into(&mut self.bindings.scoring);
        }
        if let Some(name) = &rebind.claiming {
            name.clone_into(&mut self.bindings.claiming);
        }
        for (group, name) in &rebind.groups {
            match name {
                Some(name) => drop(self.bindings.groups.insert(group.clone(), name.clone())),
                None => drop(self.bindings.groups.remove(group)),
            }
        }
        tracing::info!(bindings = ?self.bindings, "policies are bound");
        self.fill_seat();
        self.show();
        Ok(self.bindings.clone())
    }

    fn check_bindable(&mut self, name: &str, role: &'static str) -> Result<(), BindError> {
        if !self.entries.contains_key(name) && self.embedded(name).is_none() {
            return Err(BindError::Unknown(name.to_owned()));
        }
        match self.use_of(name) {
            Ok(loaded) if loaded.artifact().roles().names().contains(&role) => Ok(()),
            Ok(_) => Err(BindError::WrongRole { name: name.to_owned(), role }),
            Err(message) => Err(BindError::Unusable { name: name.to_owned(), message }),
        }
    }

    /// Returns the version in use under a name, loading the embedded one when it is needed for the first time.
    pub(super) fn use_of(&mut self, name: &str) -> Result<Arc<Loaded>, String> {
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
    pub(super) fn fill_seat(&mut self) {
        self.retire_quarantined();
        let (bound, default) = (self.bindings.scoring.clone(), self.settings.default_scoring.clone());
        let mut instead_because = None;
        let wanted = self.scorer(&bound).or_else(|reason| {
            instead_because = Some(reason);
            self.scorer(&default)
        });
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(reason) => {
                tracing::error!(policy.name = default, reason, "no policy can serve, the fallback decides");
                return;
            }
        };
        let mut is_there = false;
        self.host.with_seat(&mut |seat| {
            is_there = seat.health().is_some_and(|health| health.identity == *wanted.identity());
        });
        if is_there {
            return;
        }
        if let Some(reason) = instead_because {
            tracing::warn!(policy.name = bound, reason, instead = default, "the bound policy cannot serve");
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

    /// Returns the version in use under a name, if it can serve scoring.
    fn scorer(&mut self, name: &str) -> Result<Arc<Loaded>, String> {
        let loaded = self.use_of(name)?;
        if loaded.artifact().roles().scoring {
            Ok(loaded)
        } else {
            Err("it does not offer the scoring role".to_owned())
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
        let roster_revision = snapshot.roster_revision;
        Ok(Staged { factory: loaded.clone(), instance: Box::new(instance), roster_revision, probation: None })
    }

    pub(super) fn breaker(&self) -> Option<breaker::State> {
        let mut state = None;
        self.host.with_seat(&mut |seat| state = seat.health().map(|health| health.breaker));
        state
    }

    /// Runs the half-open trial of an open breaker whose pause is over: the input it failed on, on a fresh instance.
    pub(super) fn run_trial(&mut self) {
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
        self.host.with_seat(&mut |seat| seat.trial(&identity, passed, now));
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

    pub(super) fn save_quarantine(&self) {
        if let Err(error) = self.keep.set_quarantine(&self.quarantine) {
            tracing::error!(%error, "cannot store the quarantine list");
        }
    }
}
