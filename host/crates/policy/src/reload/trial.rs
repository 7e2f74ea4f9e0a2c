//! Versions on trial: what counts against them, when they are taken back, and what of it is stored.
//!
//! Invariants: a version whose budget is spent is not asked any more, whatever becomes of the way back; the fallback
//! answers until that is done. A version that was taken back is never the last good one, even if nothing can be used in
//! its place.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::acts::{Cause, Install, TakenBackBy};
use super::keep::Version;
use super::lifecycle::Error;
use super::showing::is_empty;
use super::state::{Promotion, State};
use super::task::{Proven, Task};
use crate::probation::{Probation, Verdict};
use crate::seat::{self, Identity, ScoringFactory as _};
use crate::status::{CanaryStatus, Left, PromotionState, Way};

impl Task {
    /// Makes a state the present one, and brings the error budgets in line with it. It is stored by the caller.
    pub(super) fn take(&mut self, state: State) {
        let before = std::mem::replace(&mut self.state, state);
        for (name, promotion) in before.promotions.iter().filter(|(_, promotion)| promotion.is_running()) {
            let now = self.state.promotions.get(name).filter(|now| now.number == promotion.number).cloned();
            let Some(now) = now else {
                // Another promotion follows one that was accepted.
                self.probations.remove(name);
                self.count_end(name, promotion, PromotionState::Passed, "accepted by hand");
                continue;
            };
            if now.state != PromotionState::Running {
                self.count_end(name, promotion, now.state, now.reason.as_deref().unwrap_or_default());
            }
        }
        self.resume_trials();
        self.keep.pin(self.state.pins());
    }

    /// Counts and logs the end of a promotion.
    fn count_end(&self, name: &str, promotion: &Promotion, state: PromotionState, reason: &str) {
        let ended = &mut self.shown.write().ended;
        match state {
            PromotionState::Passed => ended.passed += 1,
            PromotionState::Returned => ended.returned += 1,
            PromotionState::RolledBack => ended.rolled_back += 1,
            PromotionState::Running | PromotionState::Superseded => ended.superseded += 1,
        }
        if state == PromotionState::Returned {
            tracing::error!(
                policy.name = name,
                policy.digest = promotion.digest,
                reason,
                "policy taken back, what served before it serves again"
            );
        } else {
            let state = state.name();
            tracing::info!(
                policy.name = name,
                policy.digest = promotion.digest,
                state,
                reason,
                "promotion ended"
            );
        }
    }

    /// Gives every promotion that runs its error budget, and takes those away that none needs.
    pub(super) fn resume_trials(&mut self) {
        let mut probations = std::mem::take(&mut self.probations);
        for (name, promotion) in self.state.promotions.iter().filter(|(_, promotion)| promotion.is_running())
        {
            let identity = Identity {
                name: name.clone(),
                digest: promotion.digest.clone(),
                config: promotion.config.to_string(),
            };
            let present = probations.remove(name).filter(|probation| {
                **probation.identity() == identity && probation.budget() == promotion.budget()
            });
            let probation = present.unwrap_or_else(|| {
                let (counts, is_spent) = ((promotion.asked, promotion.failed), promotion.spent);
                let (identity, alarm) = (Arc::new(identity), self.alarm.clone());
                Arc::new(Probation::resumed(identity, promotion.budget(), alarm, counts, is_spent))
            });
            self.probations.insert(name.clone(), probation);
        }
    }

    /// Acts on the verdicts that are there.
    pub(super) fn judge(&mut self) {
        let verdicts: Vec<_> = self
            .probations
            .iter()
            .map(|(name, probation)| (name.clone(), probation.verdict()))
            .filter(|(_, verdict)| *verdict != Verdict::Running)
            .collect();
        self.blocked_returns.retain(|name, _| {
            verdicts.iter().any(|(other, verdict)| (other, *verdict) == (name, Verdict::Spent))
        });
        for (name, verdict) in verdicts {
            match verdict {
                Verdict::Running => {}
                Verdict::Passed => self.pass(&name),
                Verdict::Spent => self.give_back(&name),
            }
        }
        let spent = |probation: &Probation| probation.verdict() == Verdict::Spent;
        if self.canary.as_ref().is_some_and(|canary| spent(&canary.probation)) {
            self.give_canary_back();
        }
    }

    fn pass(&mut self, name: &str) {
        let now = self.clock.now().0;
        let mut state = self.counted();
        if let Some(promotion) = state.promotions.get_mut(name) {
            promotion.end(PromotionState::Passed, None, now);
        }
        self.take(state);
        self.store_state();
        self.show();
    }

    fn give_back(&mut self, name: &str) {
        let now = self.clock.now();
        // Each try writes into the folder, which wakes this task.
        if self.blocked_returns.get(name).is_some_and(|tried_at| now.since(*tried_at) < self.settings.poll) {
            return;
        }
        let Some(probation) = self.probations.get(name) else { return };
        let reason = self.reason(probation);
        // First of all: whatever keeps it from being taken back, a restart must not ask it again.
        self.keep_counts();
        if let Err(error) = self.return_to_former(name, TakenBackBy::Host, reason, None) {
            // Tried again now and then; the version is not asked meanwhile.
            tracing::error!(policy.name = name, %error, "cannot take a failing policy back, the fallback decides");
            self.blocked_returns.insert(name.to_owned(), now);
        }
    }

    fn reason(&self, probation: &Probation) -> String {
        let (asked, failed) = probation.counts();
        let identity = probation.identity();
        let mut failure = None;
        self.host.with_seat(&mut |seat| {
            let all = [seat.health(), seat.canary_health()];
            failure = all
                .into_iter()
                .flatten()
                .find(|health| health.identity == *identity)
                .and_then(|health| health.last_failure);
        });
        let last = failure.map_or_else(String::new, |failure| {
            format!("; the last one: {}: {failure}", failure.outcome().name())
        });
        if failed > probation.budget().failures_max {
            format!("{failed} of {asked} decisions failed{last}")
        } else {
            format!("it kept failing ({failed} of {asked} decisions) and its breaker opened{last}")
        }
    }

    /// Returns to what served before a promotion: the version, and what the promotion bound. The version it takes back
    /// is the candidate again, for its author to look at.
    pub(super) fn return_to_former(
        &mut self,
        name: &str,
        by: TakenBackBy,
        reason: String,
        proven: Option<Proven>,
    ) -> Result<(), Error> {
        let (ended, came, left) = match by {
            TakenBackBy::Host => (PromotionState::Returned, Way::Returned, Way::TakenBack),
            TakenBackBy::Hand => (PromotionState::RolledBack, Way::RolledBack, Way::RolledBack),
        };
        let began = self.state.promotions.get(name).map(|promotion| promotion.state);
        self.put_others_back(name, came)?;
        let now = self.clock.now().0;
        let mut state = self.counted();
        let Some(promotion) = state.promotions.get_mut(name) else { return Ok(()) };
        if began != Some(promotion.state) {
            // What came into use meanwhile ended it.
            return Err(Error::Overtaken(name.to_owned()));
        }
        let missing = self.unusable(&promotion.leads_to(name, &self.state.bindings));
        promotion.end(ended, Some(reason.clone() + &missing), now);
        let undo = promotion.way_back(name, &self.state.bindings);
        promotion.redo = self.state.bindings.difference(&undo);
        promotion.undo = undo.clone();
        let (replaces, former) = (promotion.replaces, promotion.former.clone());
        state.bindings.apply(&undo);
        let used = self.used(name);
        let why = Left { by: left, reason: Some(reason.clone()), at: now };
        let kept = self.keep.versions(name).iter().cloned();
        let mut known = used.map(|used| used.version(now)).into_iter().chain(kept);
        let failed = known.find(|version| promotion.is_of(version));
        drop(known);
        let failed = failed.map(|failed| Version { left: Some(why.clone()), ..failed });
        if replaces && by == TakenBackBy::Host {
            // First of all: a host that is killed in between must not bring it back.
            self.keep.retire(name, &why).map_err(|error| self.unstorable(&error))?;
        }
        let install = replaces.then(|| Install {
            name: name.to_owned(),
            proven: proven.or_else(|| self.former(name).cloned()).filter(|_| former.is_some()),
            version: former,
            wasm: None,
            // One that was pushed meanwhile is newer.
            candidate: self.keep.candidate(name).cloned().or(failed),
            cause: Cause { reason: Some(reason), ..Cause::new(came, left) },
        });
        self.carry_out(state, install)?;
        if replaces && by == TakenBackBy::Host {
            self.forsake(name);
        }
        if !missing.is_empty() {
            tracing::error!(policy.name = name, missing, "what was bound before the promotion cannot serve");
        }
        Ok(())
    }

    /// Puts versions of other policies back that are to be bound again and whose files are gone.
    fn put_others_back(&mut self, name: &str, came: Way) -> Result<(), Error> {
        let Some(promotion) = self.state.promotions.get(name).cloned() else { return Ok(()) };
        for other in promotion.leads_to(name, &self.state.bindings).into_keys() {
            let Some(version) = self.to_put_back(&other, &promotion) else { continue };
            if let Err(refusal) = self.check_kept(&other, &version) {
                tracing::error!(policy.name = other, promoted = name, %refusal, "what served before cannot be put back");
                continue;
            }
            let install = Install {
                name: other.clone(),
                proven: self.former(&other).filter(|former| former.is_of(&version)).cloned(),
                candidate: self.keep.candidate(&other).filter(|it| !it.is_same(&version)).cloned(),
                version: Some(Version { at_ms: self.clock.now().0, ..version }),
                wasm: None,
                cause: Cause::new(came, Way::Removed),
            };
            self.carry_out(self.counted(), Some(install))?;
            tracing::warn!(
                policy.name = other,
                promoted = name,
                "put the policy back whose file was removed: the way back leads to it"
            );
        }
        Ok(())
    }

    /// Returns the version of a policy that is put back where a promotion returns to that policy; `None` if there is no need,
    /// and if there was or is none.
    fn to_put_back(&self, other: &str, promotion: &Promotion) -> Option<Version> {
        if self.has_version(other) || self.present.contains(other) {
            return None;
        }
        let before = promotion.others.get(other)?;
        let latest = self.keep.versions(other).first().unwrap_or(before);
        [latest, before].into_iter().find(|version| self.has_component(other, &version.digest)).cloned()
    }

    /// Says whether something can serve under a name.
    fn has_version(&self, name: &str) -> bool {
        self.embedded(name).is_some() || self.used(name).is_some()
    }

    /// Says what serves in place of a policy that has no version.
    fn in_place(&self, scores: bool) -> String {
        match scores {
            true => format!("the default, `{}`, decides", self.settings.default_scoring),
            false => "the fallback plans".to_owned(),
        }
    }

    /// Says which policies that are to be bound again have no version, and what serves in their place; empty if none.
    fn unusable(&self, others: &BTreeMap<String, bool>) -> String {
        let missing = others.iter().filter(|(other, _)| !self.has_version(other));
        let tell = |(other, scores): (&String, &bool)| {
            let problem = self.entries.get(other).and_then(|entry| entry.problem.as_ref());
            let problem = problem.map_or("it has no file", |problem| &problem.message);
            let serves = self.in_place(*scores);
            format!("; `{other}` is bound again, but cannot be used ({problem}): {serves}")
        };
        missing.map(tell).collect()
    }

    /// Says what is missing of the way back of a promotion on trial, and what becomes of that.
    pub(super) fn missing(&self, name: &str, promotion: &Promotion) -> Option<String> {
        if !promotion.is_running() {
            return None;
        }
        let others = promotion.leads_to(name, &self.state.bindings);
        let notes: Vec<_> = others
            .into_iter()
            .filter(|(other, _)| !self.has_version(other))
            .map(|(other, scores)| match self.to_put_back(&other, promotion) {
                Some(version) => {
                    let label = seat::label(&version.digest, &version.config.to_string());
                    format!(
                        "`{other}` has no file any more; {label} is kept and put back if this is taken back"
                    )
                }
                None => {
                    let serves = self.in_place(scores);
                    format!("`{other}` has no version that can be used; if this is taken back, {serves}")
                }
            })
            .collect();
        Some(notes.join("; ")).filter(|notes| !notes.is_empty())
    }

    /// Lets go of a version that was taken back, if what served before it cannot be used: the one compiled into the host,
    /// the default of the role or the fallback serves.
    fn forsake(&mut self, name: &str) {
        let Some(promotion) = self.state.promotions.get(name) else { return };
        if !self.is_in_use(name, &promotion.digest, &promotion.config) {
            return;
        }
        let is_embedded = self.embedded(name).is_some();
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(failed) = entry.used.take() else { return };
        let problem =
            entry.problem.as_ref().map_or("its files cannot be read yet", |problem| &problem.message);
        let serves = match is_embedded {
            true => "the version compiled into the host serves",
            false => "the default policy or the fallback serves",
        };
        let note = format!("; what served before it cannot be used ({problem}), {serves}");
        tracing::error!(policy.name = name, problem, serves, "no former version can be used");
        if let Some(promotion) = self.state.promotions.get_mut(name) {
            promotion.reason.get_or_insert_default().push_str(&note);
        }
        self.store_state();
        self.unseat(failed.loaded.identity());
        self.fill_seat();
        self.show();
    }

    fn give_canary_back(&mut self) {
        let Some(canary) = &self.canary else { return };
        let (name, digest) =
            (canary.probation.identity().name.clone(), canary.probation.identity().digest.clone());
        let (asked, failed) = canary.probation.counts();
        let reason = self.reason(&canary.probation);
        tracing::error!(
            policy.name = name,
            policy.digest = digest,
            reason,
            "the canary failed and is taken out"
        );
        let config = serde_json::from_str(&canary.probation.identity().config).unwrap_or_default();
        let status = CanaryStatus { share: 0.0, digest, config, asked, failed, reason: Some(reason) };
        self.canaries_ended.insert(name, status);
        self.shown.write().ended.canaries_returned += 1;
        self.drop_canary();
        self.show();
    }

    /// Lets the trial of a name go on with another version that came into use, its counts anew: what it returns to stays.
    /// It ends when that itself came into use, or when there is no version any more.
    pub(super) fn follow_versions(&mut self, waiting: &[String]) {
        let running = self.state.promotions.iter().filter(|(_, promotion)| promotion.is_running());
        let overtaken: Vec<_> = running
            .filter(|(name, promotion)| {
                !waiting.contains(name)
                    && self.state.installing.as_ref().is_none_or(|change| change.name != **name)
                    && !self.is_in_use(name, &promotion.digest, &promotion.config)
                    && !self.is_half_returned(name, promotion)
            })
            .map(|(name, _)| name.clone())
            .collect();
        if overtaken.is_empty() {
            return;
        }
        let now = self.clock.now().0;
        let mut state = self.counted();
        for name in overtaken {
            let present = self.version_in_use(&name, now);
            let Some(promotion) = state.promotions.get_mut(&name) else { continue };
            let is_plain =
                |version: &Version| self.is_embedded(&name, &version.digest) && is_empty(&version.config);
            if !promotion.replaces {
                // It was there before, only what is bound to it was on trial.
                let mut kept = self.keep.versions(&name).iter();
                let before = kept.find(|version| promotion.is_of(version)).cloned();
                promotion.former = before.filter(|before| !is_plain(before));
            }
            let is_back = |version: &Version| match &promotion.former {
                Some(former) => former.is_same(version),
                None => is_plain(version),
            };
            let over = match &present {
                None => Some("there is no version in use any more"),
                Some(version) if promotion.replaces && is_back(version) => {
                    Some("what served before it came into use again")
                }
                Some(_) => None,
            };
            match (over, present) {
                (None, Some(version)) => {
                    tracing::info!(
                        policy.name = name,
                        policy.digest = version.digest,
                        "the trial goes on with another version"
                    );
                    promotion.replaces = true;
                    (promotion.digest, promotion.config) = (version.digest, version.config);
                    (promotion.asked, promotion.failed, promotion.at_ms) = (0, 0, now);
                    promotion.spent = false;
                }
                (over, _) => promotion.end(PromotionState::Superseded, over.map(str::to_owned), now),
            }
        }
        self.take(state);
        self.store_state();
    }

    /// Says whether a return is due and only parts of what failed, or of what served before it, are in use: then the
    /// return is what ends the trial.
    fn is_half_returned(&self, name: &str, promotion: &Promotion) -> bool {
        let probation = self.probations.get(name);
        if !promotion.replaces || probation.is_none_or(|probation| probation.verdict() != Verdict::Spent) {
            return false;
        }
        let used = self.used(name);
        let Some(used) = used else { return self.present.contains(name) };
        let digest = used.loaded.artifact().digest();
        let former = promotion.former.as_ref().map(|former| former.digest.as_str());
        digest == promotion.digest || Some(digest) == former
    }

    /// Returns the version in use of a name, the one compiled into the host included.
    pub(super) fn version_in_use(&self, name: &str, now_ms: u64) -> Option<Version> {
        let used = self.used(name);
        used.map(|used| used.version(now_ms)).or_else(|| self.plain_version(name, now_ms))
    }

    /// Returns the state with the counts of now.
    pub(super) fn counted(&self) -> State {
        let mut state = self.state.clone();
        for (name, probation) in &self.probations {
            if let Some(promotion) = state.promotions.get_mut(name) {
                (promotion.asked, promotion.failed) = probation.counts();
                promotion.spent = probation.verdict() == Verdict::Spent;
            }
        }
        state
    }

    /// Stores the counts of versions on trial.
    fn keep_counts(&mut self) {
        let state = self.counted();
        if state != self.state {
            self.state = state;
            self.store_state();
        }
    }

    /// Forgets promotions that are over, within bounds.
    pub(super) fn forget_promotions(&mut self) {
        let mut state = self.state.clone();
        if self.forget_ended(&mut state) > 0 {
            self.state = state;
            self.store_state();
        }
    }

    /// The same in a state that is to be stored; returns how many were forgotten.
    pub(super) fn forget_ended(&self, state: &mut State) -> usize {
        let is_kept =
            |name: &str| self.keep.candidate(name).is_some() || !self.keep.versions(name).is_empty();
        let forgotten = state.forget_ended(|name| self.entries.contains_key(name) || is_kept(name));
        if forgotten > 0 {
            tracing::info!(forgotten, "promotions that were over long ago are forgotten");
        }
        forgotten
    }

    /// Stores the counts of versions on trial now and then, so that a restart is no new budget.
    pub(super) fn store_counts(&mut self) {
        let now = self.clock.now();
        if self.probations.is_empty() || now.since(self.counted_at) < self.settings.poll {
            return;
        }
        self.counted_at = now;
        self.keep_counts();
    }

    pub(super) fn store_state(&mut self) {
        let stored = self.state.save(self.keep.path());
        if let Err(error) = &stored
            && !self.is_state_unsaved
        {
            tracing::error!(%error, "cannot store bindings and promotions yet, trying again");
        }
        self.is_state_unsaved = stored.is_err();
    }
}
