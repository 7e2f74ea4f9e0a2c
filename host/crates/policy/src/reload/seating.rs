//! The task's work on the seat: which version takes it, trials of an open breaker, quarantine.

use std::sync::Arc;

use super::back::MISSING;
use super::manager::{BindError, Failing};
use super::signed::Signatures;
use super::task::{Task, Used, prove_live};
use crate::artifact::Loaded;
use crate::breaker;
use crate::failure::Failure;
use crate::places::Share;
use crate::probation::{Budget, Probation, Verdict};
use crate::proof;
use crate::refusal::Refusal;
use crate::seat::{Culprit, Identity, ScoringFactory, ScoringPolicy, Staged};
use crate::status::{Bindings, Canary, Left, Rebind, Source, Way};

/// Most groups with a binding of their own.
const GROUP_BINDINGS_MAX: usize = 10_000;

/// A second version in the seat.
pub(super) struct Seated {
    pub(super) share: f64,
    pub(super) probation: Arc<Probation>,
}

impl Task {
    /// Changes bindings: all of them, or none if one is refused.
    pub(super) fn bind(&mut self, rebind: &Rebind) -> Result<Bindings, BindError> {
        self.check_bindable(rebind)?;
        self.rebind_unchecked(rebind)
    }

    /// Changes bindings to what may not be there: the default of the role serves then.
    pub(super) fn rebind_unchecked(&mut self, rebind: &Rebind) -> Result<Bindings, BindError> {
        let mut state = self.state.clone();
        state.rebind(rebind, self.clock.now().0);
        if state != self.state {
            state.save(self.keep.path()).map_err(|error| BindError::Unsaved { error: error.to_string() })?;
            self.take(state);
            tracing::info!(bindings = ?self.state.bindings, "policies are bound");
        }
        self.fill_seat();
        self.show();
        Ok(self.state.bindings.clone())
    }

    /// Checks that every policy of a change is there and offers what it is bound to.
    pub(super) fn check_bindable(&mut self, rebind: &Rebind) -> Result<(), BindError> {
        let claiming = rebind.claiming.iter().chain(rebind.groups.values().flatten());
        let wanted = rebind.scoring.iter().map(|name| (name, "scoring"));
        for (name, role) in wanted.chain(claiming.map(|name| (name, "claiming"))) {
            self.check_binding(name, role)?;
        }
        if let Some(Some(canary)) = &rebind.canary {
            self.check_canary(canary, rebind.scoring.as_deref())?;
        }
        self.check_groups(rebind)
    }

    pub(super) fn check_groups(&self, rebind: &Rebind) -> Result<(), BindError> {
        let groups = &self.state.bindings.groups;
        let added = rebind.groups.keys().filter(|group| !groups.contains_key(*group)).count();
        if groups.len() + added > GROUP_BINDINGS_MAX {
            return Err(BindError::TooMany { max: GROUP_BINDINGS_MAX });
        }
        Ok(())
    }

    fn check_binding(&mut self, name: &str, role: &'static str) -> Result<(), BindError> {
        if !self.entries.contains_key(name) && self.embedded(name).is_none() {
            return Err(match self.keep.candidate(name) {
                Some(_) => BindError::OnlyCandidate(name.to_owned()),
                None => self.unknown(name),
            });
        }
        let found = self.use_of(name);
        offers(found, name, role)
    }

    fn unknown(&self, name: &str) -> BindError {
        match self.keep.versions(name).is_empty() {
            true => BindError::Unknown(name.to_owned()),
            false => BindError::Removed(name.to_owned()),
        }
    }

    /// Checks that a canary would be another version than the one that serves scoring.
    fn check_canary(&mut self, canary: &Canary, scoring: Option<&str>) -> Result<(), BindError> {
        let name = canary.policy.as_str();
        if !(canary.share > 0.0 && canary.share <= 1.0) {
            return Err(BindError::Share);
        }
        let scoring = scoring.unwrap_or(&self.state.bindings.scoring).to_owned();
        let is_known = self.entries.contains_key(name)
            || self.embedded(name).is_some()
            || self.keep.candidate(name).is_some();
        if !is_known {
            return Err(self.unknown(name));
        }
        let found = self.candidate_of(name);
        let identity = found.as_ref().ok().map(|loaded| loaded.identity().clone());
        offers(found, name, "scoring")?;
        if self.use_of(&scoring).is_ok_and(|serves| Some(serves.identity()) == identity.as_ref()) {
            return Err(BindError::Serves(name.to_owned()));
        }
        Ok(())
    }

    /// Returns the candidate of a name if there is one, else the version in use.
    pub(super) fn candidate_of(&mut self, name: &str) -> Result<Arc<Loaded>, String> {
        let Some(version) = self.keep.candidate(name).cloned() else { return self.use_of(name) };
        if let Some(loaded) = self.candidates.get(name) {
            return loaded.clone();
        }
        let proven = self.prove_kept(name, &version).map(|(loaded, _)| loaded);
        let is_final = proven.as_ref().err().is_none_or(|refusal| !refusal.is_retryable());
        let loaded = proven.map_err(|refusal| refusal.to_string());
        if is_final {
            self.candidates.insert(name.to_owned(), loaded.clone());
        }
        loaded
    }

    /// Returns the version in use under a name, loading the embedded one when it is needed for the first time.
    pub(super) fn use_of(&mut self, name: &str) -> Result<Arc<Loaded>, String> {
        if let Some(used) = self.used(name) {
            return Ok(used.loaded.clone());
        }
        let Some(found) = self.plain.load(name) else {
            return Err(self.why_unusable(name).unwrap_or_else(|| MISSING.to_owned()));
        };
        let (loaded, load_ms) = found.map_err(|refusal| refusal.to_string())?;
        let signatures = Signatures::default();
        let used = Used { loaded: loaded.clone(), source: Source::Embedded, load_ms, signatures };
        self.entries.entry(name.to_owned()).or_default().used = Some(used);
        Ok(loaded)
    }

    /// Puts the versions that should decide into the seat, if they are not there already.
    pub(super) fn fill_seat(&mut self) {
        self.retire_quarantined();
        self.adopt();
        self.fill_first();
        self.fill_canary();
    }

    /// Takes embedded policies into use that others had loaded because they needed them.
    fn adopt(&mut self) {
        for name in self.plain.loaded() {
            if self.entries.get(name).is_none_or(|entry| entry.used.is_none()) {
                // Loaded already, it cannot fail.
                drop(self.use_of(name));
            }
        }
    }

    fn fill_first(&mut self) {
        let (bound, default) = (self.effective_bindings().scoring, self.settings.default_scoring.clone());
        if let Some(identity) = self.abandoned(&bound) {
            self.unseat(&identity);
            return;
        }
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
        let is_same = |probation: &&Arc<Probation>| *probation.identity() == *wanted.identity();
        // What failed is not asked with another configuration either, as long as its return is due.
        let is_spent = |probation: &&Arc<Probation>| {
            probation.is_of(wanted.identity()) && probation.verdict() == Verdict::Spent
        };
        let mut probations = self.probations.values();
        let probation = probations.clone().find(is_same).or_else(|| probations.find(is_spent)).cloned();
        match self.stage(&wanted, probation) {
            Ok(staged) => {
                let mut staged = Some(staged);
                let mut previous = None;
                self.host.with_seat(&mut |seat| previous = seat.install(staged.take()));
                drop(previous);
                tracing::info!(
                    policy.name = wanted.identity().name,
                    policy.digest = wanted.identity().digest,
                    policy.config_digest = wanted.identity().config_digest(),
                    "policy serves scoring"
                );
            }
            Err(failure) => {
                tracing::error!(policy.name = wanted.identity().name, %failure, "policy cannot take the seat");
            }
        }
    }

    /// Puts the canary into the seat, takes one out that is not wanted, and drops its binding when it cannot be.
    fn fill_canary(&mut self) {
        let Some(Canary { policy, share }) = self.state.bindings.canary.clone() else {
            self.unseat_canary();
            return;
        };
        let mut served = None;
        self.host.with_seat(&mut |seat| served = seat.health().map(|health| health.identity));
        let wanted = self.candidate_of(&policy).and_then(|loaded| match () {
            () if !loaded.artifact().roles().scoring => Err("it does not offer the scoring role".to_owned()),
            () if Some(loaded.identity()) == served.as_ref() => Err("it is what serves".to_owned()),
            () => Ok(loaded),
        });
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(reason) => {
                tracing::warn!(policy.name = policy, reason, "the canary is taken out");
                self.drop_canary();
                return;
            }
        };
        let present =
            self.canary.as_ref().filter(|seated| *seated.probation.identity() == *wanted.identity());
        if present.is_some_and(|seated| seated.share.to_bits() == share.to_bits()) {
            return;
        }
        let probation = present.map_or_else(
            || {
                let budget = Budget { renews: true, ..self.settings.promote };
                Arc::new(Probation::new(wanted.identity().clone(), budget, self.alarm.clone()))
            },
            |seated| seated.probation.clone(),
        );
        match self.stage(&wanted, Some(probation.clone())) {
            Ok(staged) => {
                let mut next = Some((staged, share));
                let mut previous = None;
                self.host.with_seat(&mut |seat| previous = seat.install_canary(next.take()));
                drop(previous);
                self.canaries_ended.remove(&policy);
                self.canary = Some(Seated { share, probation });
                let digest = &wanted.identity().digest;
                tracing::info!(policy.name = policy, policy.digest = digest, share, "a canary decides");
            }
            Err(failure) => {
                tracing::error!(policy.name = policy, %failure, "the canary cannot take its seat");
                self.unseat_canary();
            }
        }
    }

    /// Ends the canary and its binding.
    pub(super) fn drop_canary(&mut self) {
        if self.state.bindings.canary.take().is_some() {
            self.store_state();
        }
        self.unseat_canary();
    }

    fn unseat_canary(&mut self) {
        if self.canary.take().is_some() {
            let mut previous = None;
            self.host.with_seat(&mut |seat| previous = seat.install_canary(None));
            drop(previous);
            tracing::info!("no canary decides any more");
        }
    }

    /// Returns the version in use under a name, if it can serve scoring.
    fn scorer(&mut self, name: &str) -> Result<Arc<Loaded>, String> {
        let loaded = self.serving_of(name)?;
        if loaded.artifact().roles().scoring {
            Ok(loaded)
        } else {
            Err("it does not offer the scoring role".to_owned())
        }
    }

    /// Makes an instance that already knows the present roster and loads.
    fn stage(&self, loaded: &Arc<Loaded>, probation: Option<Arc<Probation>>) -> Result<Staged, Failure> {
        let limits = self.runtime.limits();
        let mut instance = loaded.make_scoring_in(Share::Whole, limits.load_deadline)?;
        let snapshot = self.host.snapshot();
        instance.roster(&snapshot.roster)?;
        instance.refresh(&snapshot.loads)?;
        instance.set_deadline(limits.scoring_deadline);
        let roster_revision = snapshot.roster_revision;
        let identity = loaded.identity();
        Ok(Staged {
            factory: loaded.clone(),
            instance: Box::new(instance),
            roster_revision,
            probation,
            is_last_resort: self.is_embedded(&identity.name, &identity.digest),
        })
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
        let tried = loaded.map(|loaded| {
            if let Some(culprit) = culprit {
                let Culprit { snapshot, request } = culprit.on(self.host.snapshot());
                proof::recommend_once(loaded, &snapshot, &request)
                    .map_err(|failure| Refusal::SelfTest { case: "what it failed on".to_owned(), failure })?;
            }
            prove_live(loaded, &*self.host, &*self.clock)
        });
        if let Some(Err(refusal)) = &tried
            && refusal.is_retryable()
        {
            tracing::debug!(policy.name = identity.name, %refusal, "the trial of an open breaker is put off");
            self.host.with_seat(&mut |seat| seat.postpone_trial(&identity, now));
            return;
        }
        let passed = matches!(tried, Some(Ok(())));
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

    /// Takes versions that kept failing out of use: those in the seat, and those that planned.
    fn retire_quarantined(&mut self) {
        let mut found = None;
        self.host.with_seat(&mut |seat| {
            found = seat.health().filter(|health| health.breaker == breaker::State::Quarantined);
        });
        if let Some(health) = found {
            let Identity { name, digest, .. } = &*health.identity;
            let failure =
                health.last_failure.map_or_else(|| "unknown".to_owned(), |failure| failure.to_string());
            self.put_into_quarantine(name, &failure, |used| used.artifact().digest() == digest);
        }
        let failing = std::mem::take(&mut self.shown.write().failing);
        for Failing { loaded, failure } in failing {
            // Not by its digest: the same bytes may have been removed and dropped anew since.
            let is_it = |used: &Loaded| Arc::ptr_eq(used.artifact(), loaded.artifact());
            self.put_into_quarantine(&loaded.identity().name, &failure, is_it);
        }
    }

    /// Puts the version in use of a name into quarantine, if it is the one: its name falls back to the embedded policy, or
    /// to none, and so does every other name with a file of the same bytes.
    fn put_into_quarantine(&mut self, name: &str, failure: &str, is_it: impl Fn(&Loaded) -> bool) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(used) = entry.used.take_if(|used| is_it(&used.loaded)) else { return };
        let digest = used.loaded.artifact().digest().to_owned();
        self.quarantine.insert(digest.clone(), failure.to_owned());
        self.save_quarantine();
        // Whoever loaded it for another use is told from now on, too.
        self.candidates.retain(|_, candidate| {
            candidate.as_ref().map_or(true, |loaded| loaded.artifact().digest() != digest)
        });
        self.leave_to_quarantine(name, &used, failure);
        let is_alike =
            |used: &Used| used.source != Source::Embedded && used.loaded.artifact().digest() == digest;
        let alike = self.entries.iter().filter(|(_, entry)| entry.used.as_ref().is_some_and(is_alike));
        for other in alike.map(|(other, _)| other.clone()).collect::<Vec<_>>() {
            let used = self.entries.get_mut(&other).and_then(|entry| entry.used.take());
            if let Some(used) = used {
                self.leave_to_quarantine(&other, &used, failure);
            }
        }
    }

    /// Notes that a version is not in use any more, which was taken out of its entry.
    fn leave_to_quarantine(&mut self, name: &str, used: &Used, failure: &str) {
        let (digest, config) = (used.loaded.artifact().digest(), used.loaded.config());
        tracing::error!(policy.name = name, policy.digest = digest, failure, "policy put into quarantine");
        let failure = failure.to_owned();
        let left = Left { by: Way::Quarantined, reason: Some(failure.clone()), at: self.clock.now().0 };
        if let Err(error) = self.keep.retire(name, &left) {
            tracing::error!(policy.name = name, %error, "cannot forget the last good version");
        }
        self.refuse(name, digest, Some(config), &Refusal::Quarantined { failure });
    }

    pub(super) fn save_quarantine(&self) {
        if let Err(error) = self.keep.set_quarantine(&self.quarantine) {
            tracing::error!(%error, "cannot store the quarantine list");
        }
    }
}

fn offers(found: Result<Arc<Loaded>, String>, name: &str, role: &'static str) -> Result<(), BindError> {
    match found {
        Ok(loaded) if loaded.artifact().roles().names().contains(&role) => Ok(()),
        Ok(_) => Err(BindError::WrongRole { name: name.to_owned(), role }),
        Err(message) => Err(BindError::Unusable { name: name.to_owned(), message }),
    }
}
