//! How one component does in the claiming role: whether it is asked, and what it failed at last.
//!
//! Invariant: what is known here is about one loading of a component. The same bytes, removed and dropped anew, begin anew.

use std::sync::{Arc, Weak};

use fulcrum_core::time::Timestamp;

use crate::artifact::{Artifact, Loaded};
use crate::breaker::{self, Breaker};
use crate::failure::{Failure, Outcome};
use crate::seat::{Identity, ScoringFactory as _};
use crate::status::{self, Status};

/// See the module. All configurations of a component are one: so many groups, so many chances to fail.
pub(super) struct Health {
    artifact: Weak<Artifact>,
    identity: Arc<Identity>,
    breaker: Breaker,
    last_failure: Option<Failure>,
}

impl Health {
    /// Makes one of a version that was not asked yet. `is_last_resort`: there is nothing to return to, so it is tried again
    /// however often it fails.
    pub(super) fn new(loaded: &Loaded, is_last_resort: bool) -> Self {
        Self {
            artifact: Arc::downgrade(loaded.artifact()),
            identity: loaded.identity().clone(),
            breaker: if is_last_resort { Breaker::without_quarantine() } else { Breaker::default() },
            last_failure: None,
        }
    }

    pub(super) fn is_of(&self, artifact: &Arc<Artifact>) -> bool {
        std::ptr::eq(self.artifact.as_ptr(), Arc::as_ptr(artifact))
    }

    /// Says whether anybody can ask it still.
    pub(super) fn is_loaded(&self) -> bool {
        self.artifact.strong_count() > 0
    }

    pub(super) fn breaker(&self) -> breaker::State {
        self.breaker.state()
    }

    /// Returns its last failure if it failed for so long that it is not asked again.
    pub(super) fn given_up(&self) -> Option<String> {
        let failure = self.last_failure.as_ref().filter(|_| self.breaker() == breaker::State::Quarantined);
        failure.map(Failure::to_string)
    }

    /// Counts an attempt; returns true if this one opened the breaker. `trial` is when the pause was over for an attempt
    /// that is a trial: of several at once, of which none knew of the others, the first one counts.
    pub(super) fn settle(
        &mut self,
        trial: Option<Timestamp>,
        failure: Option<&Failure>,
        now: Timestamp,
    ) -> bool {
        if let Some(failure) = failure {
            self.last_failure = Some(failure.clone());
        }
        let outcome = failure.map_or(Outcome::Ok, Failure::outcome);
        match trial {
            None => self.breaker.record(outcome, now),
            Some(trial_at) => {
                // One that could not be made, for want of room, tells nothing.
                if outcome != Outcome::Open && self.breaker() == (breaker::State::Open { trial_at }) {
                    self.breaker.trial(failure.is_none(), now);
                }
                false
            }
        }
    }

    /// Shows it in the status of its policy, if it is that version which is in use.
    pub(super) fn show(&self, statuses: &mut [Status]) {
        let Identity { name, digest, .. } = &*self.identity;
        let status = statuses.iter_mut().find(|status| status.name == *name && status.digest == *digest);
        let Some(status) = status.filter(|_| self.is_loaded()) else { return };
        if let breaker::State::Open { .. } = self.breaker()
            && matches!(status.state, status::State::Live | status::State::Ready)
        {
            status.state = status::State::Open;
        }
        if let (None, Some(failure)) = (&status.last_failure, &self.last_failure) {
            status.last_failure = Some(format!("{}: {failure}", failure.outcome().name()));
        }
    }
}
