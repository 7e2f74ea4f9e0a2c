//! One policy version in the seat: its instance, what that has been told, and how it is doing.

use std::sync::Arc;

use fulcrum_core::scoring::{Request, ScoringSnapshot};
use fulcrum_core::seed;
use fulcrum_core::time::Timestamp;

use super::{Alarm, Culprit, Health, ScoringFactory, ScoringPolicy, Staged, View};
use crate::breaker::Breaker;
use crate::failure::{Failure, Outcome};
use crate::probation::{Probation, Verdict};

/// More given-out rows than this are not carried one by one; the instance is refreshed instead.
const COMMITTED_MAX: usize = 1024;

pub(super) struct Live {
    pub(super) factory: Arc<dyn ScoringFactory>,
    instance: Option<Box<dyn ScoringPolicy>>,
    roster_revision: u64,
    loads_revision: u64,
    committed: Vec<u32>,
    /// False once it said that it does not explain.
    pub(super) explains: bool,
    pub(super) breaker: Breaker,
    /// Explanations have a breaker of their own: one that fails is no reason not to let the policy decide.
    pub(super) explaining: Breaker,
    pub(super) culprit: Option<Culprit>,
    last_failure: Option<Failure>,
    probation: Option<Arc<Probation>>,
}

/// A second version that decides for some clients.
pub(super) struct Canary {
    pub(super) live: Live,
    share: f64,
}

impl Canary {
    pub(super) fn new(live: Live, share: f64) -> Self {
        Self { live, share }
    }

    /// Says whether it decides for a client: never for one more than it should once it is not asked any more.
    pub(super) fn takes(&self, request: &Request<'_>) -> bool {
        let chance = match request.client_id {
            "" => seed::mix(request.seed),
            client => seed::text(client),
        };
        (chance >> 11) as f64 * (0.5_f64).powi(53) < self.share && self.live.is_asked()
    }
}

impl Live {
    pub(super) fn new(staged: Staged) -> Self {
        let Staged { factory, instance, roster_revision, probation, is_last_resort } = staged;
        Self {
            factory,
            instance: Some(instance),
            roster_revision,
            loads_revision: 0,
            committed: Vec::with_capacity(COMMITTED_MAX),
            explains: true,
            breaker: if is_last_resort { Breaker::without_quarantine() } else { Breaker::default() },
            explaining: Breaker::without_quarantine(),
            culprit: None,
            last_failure: None,
            probation,
        }
    }

    pub(super) fn health(&self) -> Health {
        Health {
            identity: self.factory.identity().clone(),
            breaker: self.breaker.state(),
            last_failure: self.last_failure.clone(),
        }
    }

    fn is_asked(&self) -> bool {
        self.breaker.is_closed()
            && self.probation.as_ref().is_none_or(|probation| probation.verdict() != Verdict::Spent)
    }

    /// Notes that a row was given out.
    pub(super) fn commit(&mut self, row: u32) {
        if self.committed.len() < COMMITTED_MAX {
            self.committed.push(row);
        } else {
            self.loads_revision = 0;
        }
    }

    /// Makes the next call tell everything anew: nobody knows what the instance took in.
    pub(super) fn forget_told(&mut self) {
        self.loads_revision = 0;
    }

    /// Runs one call on an instance that knows the present state; `None` if it is not asked any more.
    pub(super) fn attempt<T>(
        &mut self,
        view: View<'_>,
        request: &Request<'_>,
        call: impl FnOnce(&mut dyn ScoringPolicy, &[u32]) -> Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        if !self.is_asked() {
            return None;
        }
        let result = self.catch_up(view).and_then(|()| match &mut self.instance {
            Some(instance) => call(&mut **instance, &self.committed),
            None => Err(Failure::Trap("there is no instance".to_owned())),
        });
        match &result {
            Ok(_) => self.committed.clear(),
            Err(failure) => self.failed(view, request, failure),
        }
        Some(result)
    }

    /// Makes sure there is an instance and that it has been told everything but `committed`.
    fn catch_up(&mut self, view: View<'_>) -> Result<(), Failure> {
        let instance = match &mut self.instance {
            Some(instance) => instance,
            none => {
                self.roster_revision = 0;
                none.insert(self.factory.make()?)
            }
        };
        if self.roster_revision != view.roster_revision {
            instance.roster(view.roster)?;
            self.roster_revision = view.roster_revision;
            self.loads_revision = 0;
        }
        if self.loads_revision != view.loads_revision {
            instance.refresh(view.loads)?;
            self.loads_revision = view.loads_revision;
            self.committed.clear();
            if instance.is_worn() {
                let fresh = self.instance.insert(self.factory.make()?);
                fresh.roster(view.roster)?;
                fresh.refresh(view.loads)?;
            }
        }
        Ok(())
    }

    /// Counts one call for the breaker, and raises the alarm when that opens it.
    pub(super) fn record(&mut self, outcome: Outcome, now: Timestamp, alarm: &Alarm) {
        let opened = self.breaker.record(outcome, now);
        if let Some(probation) = &self.probation {
            probation.record(outcome);
            if opened {
                probation.spend();
            }
        }
        if opened {
            tracing::warn!(
                policy.name = self.factory.identity().name,
                policy.digest = self.factory.identity().digest,
                "policy keeps failing, its breaker opened and the fallback decides"
            );
            alarm();
        }
    }

    fn failed(&mut self, view: View<'_>, request: &Request<'_>, failure: &Failure) {
        // An instance that returned an error lives on, but nobody knows whether it took `committed` in.
        self.loads_revision = 0;
        if !matches!(failure, Failure::Declared(_)) {
            self.instance = None;
        }
        let identity = self.factory.identity();
        tracing::debug!(
            policy.name = identity.name, policy.digest = identity.digest, %failure,
            "policy failed, the fallback decides"
        );
        self.last_failure = Some(failure.clone());
        // Copying the snapshot on every failure would make a bad policy expensive: the first one is kept until the
        // breaker closes again.
        self.culprit.get_or_insert_with(|| Culprit {
            snapshot: ScoringSnapshot {
                roster: view.roster.clone(),
                loads: view.loads.clone(),
                roster_revision: view.roster_revision,
            },
            request: request.into(),
        });
    }
}
