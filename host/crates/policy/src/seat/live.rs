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
                match self.factory.make() {
                    Ok(fresh) => {
                        let fresh = self.instance.insert(fresh);
                        fresh.roster(view.roster)?;
                        fresh.refresh(view.loads)?;
                    }
                    // It is not broken: it serves on until there is room for another one.
                    Err(Failure::NoRoom(_)) => {}
                    Err(failure) => return Err(failure),
                }
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
        if let Failure::NoRoom(_) = failure {
            // It was not asked, so nothing is known against it.
            self.last_failure = Some(failure.clone());
            return;
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use fulcrum_core::scoring::{Loads, Proposal, Roster};

    use super::*;
    use crate::breaker::State;
    use crate::seat::{ExplainedRow, Identity};

    /// Makes worn instances while it has room; a client named `crash` ends one.
    #[derive(Default)]
    struct Factory {
        identity: Arc<Identity>,
        room: AtomicUsize,
        made: AtomicUsize,
    }

    struct Worn;

    impl ScoringFactory for Factory {
        fn identity(&self) -> &Arc<Identity> {
            &self.identity
        }

        fn make(&self) -> Result<Box<dyn ScoringPolicy>, Failure> {
            let is_room = |room: usize| room.checked_sub(1);
            if self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_room).is_err() {
                return Err(Failure::NoRoom("it is full".to_owned()));
            }
            self.made.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Worn))
        }
    }

    impl ScoringPolicy for Worn {
        fn roster(&mut self, _: &Roster) -> Result<(), Failure> {
            Ok(())
        }

        fn refresh(&mut self, _: &Loads) -> Result<(), Failure> {
            Ok(())
        }

        fn recommend(&mut self, request: &Request<'_>, _: &[u32]) -> Result<Proposal, Failure> {
            if request.client_id == "crash" {
                return Err(Failure::Trap("as it was told".to_owned()));
            }
            Ok(Proposal { row: 0, score: 0.0 })
        }

        fn explain(&mut self, _: &Request<'_>, _: &[u32]) -> Result<Option<Vec<ExplainedRow>>, Failure> {
            Ok(None)
        }

        fn is_worn(&self) -> bool {
            true
        }
    }

    #[test]
    fn want_of_room_is_not_held_against_a_policy() {
        let factory = Arc::new(Factory::default());
        let staged = Staged {
            factory: factory.clone(),
            instance: Box::new(Worn),
            roster_revision: 0,
            probation: None,
            is_last_resort: false,
        };
        let mut live = Live::new(staged);
        let (roster, loads) = (Arc::<Roster>::default(), Loads::unknown(0));
        let mut loads_revision = 0;
        let mut ask = |live: &mut Live, client_id| {
            // A heartbeat each time: that is when a worn instance would be replaced.
            loads_revision += 1;
            let view = View { roster: &roster, loads: &loads, roster_revision: 1, loads_revision };
            let request = Request { client_id, ..Request::default() };
            let asked = live.attempt(view, &request, |instance, _| instance.recommend(&request, &[]));
            let outcome =
                asked.expect("it is asked").map_or_else(|failure| failure.outcome(), |_| Outcome::Ok);
            live.record(outcome, Timestamp(1), &(Arc::new(|| {}) as Alarm));
            outcome
        };
        assert_eq!(ask(&mut live, ""), Outcome::Ok, "a worn instance serves on");
        assert_eq!(ask(&mut live, "crash"), Outcome::Trap);
        assert!(live.culprit.take().is_some());
        for _ in 0..100 {
            assert_eq!(ask(&mut live, ""), Outcome::Open);
        }
        let health = live.health();
        assert_eq!((health.breaker, live.culprit.is_some()), (State::Closed, false));
        let failure = health.last_failure.expect("it is told");
        assert_eq!(failure.to_string(), "found no room for another instance: it is full");
        factory.room.store(2, Ordering::Relaxed);
        assert_eq!(ask(&mut live, ""), Outcome::Ok);
        assert_eq!(
            factory.made.load(Ordering::Relaxed),
            2,
            "a fresh one, and one in the place of the worn one"
        );
    }
}
