//! Versions on trial: what counts against them, when they are taken back, and what of it is stored.
//!
//! Invariant: a version whose budget is spent is not asked any more, whatever becomes of the way back; the fallback
//! answers until that is done.

use std::sync::Arc;

use super::acts::Install;
use super::lifecycle::Error;
use super::state::State;
use super::task::{Proven, Task};
use crate::probation::{Probation, Verdict};
use crate::seat::Identity;
use crate::status::{CanaryStatus, PromotionState, Rebind};

impl Task {
    /// Makes a state the present one, and brings the error budgets in line with it. It is stored by the caller.
    pub(super) fn take(&mut self, state: State) {
        let before = std::mem::replace(&mut self.state, state);
        for (name, promotion) in before.promotions.iter().filter(|(_, promotion)| promotion.is_running()) {
            let same = self
                .state
                .promotions
                .get(name)
                .filter(|now| now.digest == promotion.digest && now.config == promotion.config);
            let state = same.map_or(PromotionState::Superseded, |now| now.state);
            if state == PromotionState::Running {
                continue;
            }
            let reason = same.and_then(|now| now.reason.clone()).unwrap_or_default();
            let ended = &mut self.shown.write().ended;
            match state {
                PromotionState::Passed => ended.passed += 1,
                PromotionState::Returned => ended.returned += 1,
                _ => ended.superseded += 1,
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
        self.resume_trials();
        self.keep.pin(self.state.pins());
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
                let counts = (promotion.asked, promotion.failed);
                let (identity, alarm) = (Arc::new(identity), self.alarm.clone());
                Arc::new(Probation::resumed(identity, promotion.budget(), alarm, counts))
            });
            self.probations.insert(name.clone(), probation);
        }
        self.formers.retain(|name, _| self.probations.contains_key(name));
    }

    /// Acts on the verdicts that are there.
    pub(super) fn judge(&mut self) {
        let verdicts: Vec<_> = self
            .probations
            .iter()
            .map(|(name, probation)| (name.clone(), probation.verdict()))
            .filter(|(_, verdict)| *verdict != Verdict::Running)
            .collect();
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
        let Some(probation) = self.probations.get(name) else { return };
        let reason = self.reason(probation);
        if let Err(error) = self.return_to_former(name, reason, true, None) {
            // Tried again at the next look; the version is not asked meanwhile.
            tracing::error!(policy.name = name, %error, "cannot take a failing policy back, the fallback decides");
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

    /// Returns to what served before a promotion: the version, and what the promotion bound.
    pub(super) fn return_to_former(
        &mut self,
        name: &str,
        reason: String,
        keeps_candidate: bool,
        proven: Option<Proven>,
    ) -> Result<(), Error> {
        let now = self.clock.now().0;
        let mut state = self.counted();
        let Some(promotion) = state.promotions.get_mut(name) else { return Ok(()) };
        promotion.end(PromotionState::Returned, Some(reason), now);
        let (replaces, former) = (promotion.replaces, promotion.former.clone());
        // Only what is bound to it still.
        let bindings = &self.state.bindings;
        let Rebind { scoring, claiming, groups, .. } = promotion.undo.clone();
        let undo = Rebind {
            scoring: scoring.filter(|_| bindings.scoring == name),
            claiming: claiming.filter(|_| bindings.claiming == name),
            groups: groups
                .into_iter()
                .filter(|(group, _)| bindings.groups.get(group).is_some_and(|policy| policy == name))
                .collect(),
            canary: None,
        };
        state.bindings.apply(&undo);
        let used = self.entries.get(name).and_then(|entry| entry.used.as_ref());
        let failed = used.map(|used| used.version(now)).filter(|_| keeps_candidate);
        let install = replaces.then(|| Install {
            name: name.to_owned(),
            proven: proven.or_else(|| self.formers.get(name).cloned()).filter(|_| former.is_some()),
            version: former,
            wasm: None,
            // One that was pushed meanwhile is newer.
            candidate: self.keep.candidate(name).cloned().or(failed),
        });
        self.carry_out(state, install)
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
        let status = CanaryStatus { share: 0.0, digest, asked, failed, reason: Some(reason) };
        self.canaries_ended.insert(name, status);
        self.shown.write().ended.canaries_returned += 1;
        self.drop_canary();
        self.show();
    }

    /// Ends promotions whose version is not in use any more: a file was dropped, or another version pushed.
    pub(super) fn end_overtaken(&mut self, waiting: &[String]) {
        let running = self.state.promotions.iter().filter(|(_, promotion)| promotion.is_running());
        let overtaken: Vec<_> = running
            .filter(|(name, promotion)| {
                !waiting.contains(name) && !self.is_in_use(name, &promotion.digest, &promotion.config)
            })
            .map(|(name, _)| name.clone())
            .collect();
        if overtaken.is_empty() {
            return;
        }
        let now = self.clock.now().0;
        let mut state = self.counted();
        for name in overtaken {
            if let Some(promotion) = state.promotions.get_mut(&name) {
                let reason = "another version came into use".to_owned();
                promotion.end(PromotionState::Superseded, Some(reason), now);
            }
        }
        self.take(state);
        self.store_state();
    }

    /// Returns the state with the counts of now.
    fn counted(&self) -> State {
        let mut state = self.state.clone();
        for (name, probation) in &self.probations {
            if let Some(promotion) = state.promotions.get_mut(name) {
                (promotion.asked, promotion.failed) = probation.counts();
            }
        }
        state
    }

    /// Stores the counts of versions on trial now and then, so that a restart is no new budget.
    pub(super) fn store_counts(&mut self) {
        let now = self.clock.now();
        if self.probations.is_empty() || now.since(self.counted_at) < self.settings.poll {
            return;
        }
        self.counted_at = now;
        let state = self.counted();
        if state != self.state {
            self.state = state;
            self.store_state();
        }
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
