//! The error budget of a version that is new in service: spent, it is not asked any more and is taken back.
//!
//! Invariants: a verdict is final, but for a budget that renews; only calls the version was asked count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::failure::Outcome;
use crate::seat::{Alarm, Identity};

/// How much a new version may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most failures among its first `decisions`; one more spends the budget.
    pub failures_max: u32,
    /// Decisions after which it has stood the test, at least 1.
    pub decisions: u32,
    /// Whether the budget begins anew after that many decisions instead, without an end.
    pub renews: bool,
}

/// How a probation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It goes on.
    Running,
    /// The version has stood it.
    Passed,
    /// The budget is spent.
    Spent,
}

/// Verdicts as numbers.
const RUNNING: u8 = 0;
const PASSED: u8 = 1;
const SPENT: u8 = 2;

/// See the module. Shared by everything that asks the version.
pub struct Probation {
    identity: Arc<Identity>,
    budget: Budget,
    /// Called once the verdict is there.
    alarm: Alarm,
    asked: AtomicU32,
    failed: AtomicU32,
    verdict: AtomicU8,
}

impl Probation {
    /// Begins a probation.
    #[must_use]
    pub fn new(identity: Arc<Identity>, budget: Budget, alarm: Alarm) -> Self {
        Self::resumed(identity, budget, alarm, (0, 0), false)
    }

    /// Goes on with a probation, for example after a restart, in which so many decisions were asked and so many failed, and
    /// which may be spent already: there is no alarm for that any more.
    #[must_use]
    pub fn resumed(
        identity: Arc<Identity>,
        budget: Budget,
        alarm: Alarm,
        (asked, failed): (u32, u32),
        is_spent: bool,
    ) -> Self {
        let is_spent = is_spent || failed > budget.failures_max;
        let verdict = AtomicU8::new(if is_spent { SPENT } else { RUNNING });
        let (asked, failed) = (AtomicU32::new(asked), AtomicU32::new(failed));
        Self { identity, budget, alarm, asked, failed, verdict }
    }

    /// Says whether it is about this component under this name, whatever a group adds to its configuration.
    #[must_use]
    pub fn is_of(&self, identity: &Identity) -> bool {
        self.identity.name == identity.name && self.identity.digest == identity.digest
    }

    /// Returns the version it is about.
    #[must_use]
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// Returns the budget.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// Returns how many decisions were asked and how many of them failed, since the budget began.
    #[must_use]
    pub fn counts(&self) -> (u32, u32) {
        (self.asked.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Returns how it stands.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.verdict.load(Ordering::Acquire) {
            RUNNING => Verdict::Running,
            PASSED => Verdict::Passed,
            _ => Verdict::Spent,
        }
    }

    /// Counts one decision.
    pub fn record(&self, outcome: Outcome) {
        if outcome == Outcome::Open || self.verdict() != Verdict::Running {
            return;
        }
        let failed = match outcome {
            Outcome::Ok => self.failed.load(Ordering::Relaxed),
            _ => self.failed.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        if failed > self.budget.failures_max {
            self.spend();
        } else if asked >= self.budget.decisions {
            if self.budget.renews {
                self.asked.store(0, Ordering::Relaxed);
                self.failed.store(0, Ordering::Relaxed);
            } else {
                self.settle(Verdict::Passed);
            }
        }
    }

    /// Spends what is left: the version fails so much in a row that it is not worth more tries.
    pub fn spend(&self) {
        self.settle(Verdict::Spent);
    }

    fn settle(&self, verdict: Verdict) {
        let number = match verdict {
            Verdict::Running => return,
            Verdict::Passed => PASSED,
            Verdict::Spent => SPENT,
        };
        if self.verdict.compare_exchange(RUNNING, number, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            (self.alarm)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(renews: bool, outcomes: &[Outcome], expected: (Verdict, u32, u32, u32)) {
        let alarms = Arc::new(AtomicU32::new(0));
        let count = alarms.clone();
        let alarm: Alarm = Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let budget = Budget { failures_max: 1, decisions: 4, renews };
        let probation = Probation::new(Arc::default(), budget, alarm);
        outcomes.iter().for_each(|outcome| probation.record(*outcome));
        let (asked, failed) = probation.counts();
        let found = (probation.verdict(), asked, failed, alarms.load(Ordering::Relaxed));
        assert_eq!(found, expected, "renews {renews}: {outcomes:?}");
    }

    #[test]
    fn a_probation_that_was_spent_stays_so() {
        let check = |counts: (u32, u32), is_spent: bool, expected: Verdict| {
            let budget = Budget { failures_max: 1, decisions: 4, renews: false };
            let alarm: Alarm = Arc::new(|| panic!("nothing new happened"));
            let probation = Probation::resumed(Arc::default(), budget, alarm, counts, is_spent);
            assert_eq!(probation.verdict(), expected, "{counts:?} {is_spent}");
            probation.record(Outcome::Ok);
            assert_eq!(probation.verdict(), expected, "{counts:?} {is_spent}");
        };
        check((0, 0), false, Verdict::Running);
        check((2, 1), false, Verdict::Running);
        check((2, 2), false, Verdict::Spent);
        // By an opened breaker.
        check((3, 1), true, Verdict::Spent);
    }

    #[test]
    fn budgets_are_spent_stood_or_renewed() {
        use Outcome::{Declared, Illegal, Limit, Ok, Open, Timeout, Trap};
        use Verdict::{Passed, Running, Spent};
        check(false, &[], (Running, 0, 0, 0));
        check(false, &[Ok, Trap, Ok], (Running, 3, 1, 0));
        check(false, &[Ok, Trap, Ok, Ok], (Passed, 4, 1, 1));
        check(false, &[Ok, Trap, Ok, Timeout], (Spent, 4, 2, 1));
        check(false, &[Declared, Limit], (Spent, 2, 2, 1));
        check(false, &[Open; 9], (Running, 0, 0, 0));
        // A verdict is final.
        check(false, &[Ok, Ok, Ok, Ok, Illegal, Illegal], (Passed, 4, 0, 1));
        check(false, &[Illegal, Illegal, Ok, Illegal], (Spent, 2, 2, 1));
        check(true, &[Ok, Trap, Ok, Ok, Trap, Ok], (Running, 2, 1, 0));
        check(true, &[Ok, Trap, Ok, Ok, Trap, Ok, Trap], (Spent, 3, 2, 1));
    }
}
