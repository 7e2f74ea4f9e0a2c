//! The circuit breaker of one policy version: stops asking a policy that keeps failing.
//!
//! Closed: every decision asks the policy. Each failure fills a bucket (a missed deadline more than the others,
//! since it costs the caller time), each success drains it a little; a full bucket opens the breaker. Open: the
//! fallback decides at once. When its pause is over, a trial off the hot path may close it again; a failed trial
//! doubles the pause. Too many openings without a healthy spell in between end in quarantine.
//!
//! An error the policy returns of its own will does not count: it costs nothing, and a client could provoke it.

use std::time::Duration;

use fulcrum_core::Timestamp;

use crate::failure::Outcome;

const BUCKET: u32 = 30;
const PER_TIMEOUT: u32 = 15;
const PER_FAILURE: u32 = 10;
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// After this long without opening, earlier openings are forgotten.
const HEALTHY: Duration = Duration::from_secs(30);
const OPENINGS_MAX: u32 = 5;

/// Whether a policy is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is asked.
    Closed,
    /// It is not asked; a trial may run from then on.
    Open {
        /// When the pause is over.
        trial_at: Timestamp,
    },
    /// It is not asked again until its file changes.
    Quarantined,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Breaker {
    state: State,
    filled: u32,
    openings: u32,
    closed_at: Timestamp,
    quarantines: bool,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            state: State::Closed,
            filled: 0,
            openings: 0,
            closed_at: Timestamp::default(),
            quarantines: true,
        }
    }
}

impl Breaker {
    /// Makes a breaker that never ends in quarantine: its pauses just grow no further.
    #[must_use]
    pub fn without_quarantine() -> Self {
        Self { quarantines: false, ..Self::default() }
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Says whether the policy may be asked.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Says whether a call may be tried: while it is closed, and once a pause is over.
    #[must_use]
    pub fn allows(&self, now: Timestamp) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { trial_at } => trial_at <= now,
            State::Quarantined => false,
        }
    }

    /// Counts one call that it allowed: the trial, if the pause was just over.
    pub fn settle(&mut self, outcome: Outcome, now: Timestamp) {
        if self.is_closed() {
            self.record(outcome, now);
        } else {
            self.trial(matches!(outcome, Outcome::Ok | Outcome::Declared), now);
        }
    }

    /// Counts one decision; returns true if this one opened the breaker.
    pub fn record(&mut self, outcome: Outcome, now: Timestamp) -> bool {
        let fill = match outcome {
            Outcome::Ok => {
                self.filled = self.filled.saturating_sub(1);
                return false;
            }
            Outcome::Declared | Outcome::Open => return false,
            Outcome::Timeout => PER_TIMEOUT,
            Outcome::Trap | Outcome::Limit | Outcome::Illegal => PER_FAILURE,
        };
        self.filled += fill;
        if self.filled < BUCKET || !self.is_closed() {
            return false;
        }
        if now.since(self.closed_at) > HEALTHY {
            self.openings = 0;
        }
        self.open(now);
        true
    }

    /// Puts a trial off that could not be made, without holding that against the policy.
    pub fn postpone(&mut self, now: Timestamp) {
        if let State::Open { trial_at } = &mut self.state {
            *trial_at = now.after(PAUSE_FIRST);
        }
    }

    /// Reports the end of a trial.
    pub fn trial(&mut self, passed: bool, now: Timestamp) {
        if !matches!(self.state, State::Open { .. }) {
            return;
        }
        if passed {
            self.state = State::Closed;
            self.filled = 0;
            self.closed_at = now;
        } else {
            self.open(now);
        }
    }

    fn open(&mut self, now: Timestamp) {
        self.openings = (self.openings + 1).min(OPENINGS_MAX + 1);
        self.filled = 0;
        self.state = if self.openings > OPENINGS_MAX && self.quarantines {
            State::Quarantined
        } else {
            let pause = PAUSE_FIRST.saturating_mul(1 << (self.openings - 1));
            State::Open { trial_at: now.after(pause) }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1000)
    }

    fn trap_three_times(breaker: &mut Breaker, seconds: u64) {
        for _ in 0..3 {
            breaker.record(Outcome::Trap, at(seconds));
        }
    }

    fn check(outcomes: &[Outcome], opens: bool) {
        let mut breaker = Breaker::default();
        let opened = outcomes.iter().any(|outcome| breaker.record(*outcome, at(100)));
        assert_eq!((opened, breaker.is_closed()), (opens, !opens), "{outcomes:?}");
    }

    #[test]
    fn failures_open_it() {
        use Outcome::{Declared, Illegal, Limit, Ok, Timeout, Trap};
        check(&[Timeout], false);
        check(&[Timeout, Timeout], true);
        check(&[Trap, Limit], false);
        check(&[Trap, Limit, Illegal], true);
        check(&[Declared; 1000], false);
        check(&[Trap, Ok, Trap, Ok, Trap], false);
        // One failure in nine calls is too many, one in thirty is not.
        check(&[[Ok; 8].as_slice(), &[Trap]].concat().repeat(30), true);
        check(&[[Ok; 29].as_slice(), &[Trap]].concat().repeat(100), false);
    }

    #[test]
    fn the_call_after_a_pause_is_the_trial() {
        let mut breaker = Breaker::without_quarantine();
        (0..3).for_each(|_| breaker.settle(Outcome::Trap, at(100)));
        assert_eq!([100, 101].map(|now| breaker.allows(at(now))), [false, true]);
        breaker.settle(Outcome::Trap, at(101));
        assert_eq!([102, 103].map(|now| breaker.allows(at(now))), [false, true]);
        breaker.settle(Outcome::Ok, at(103));
        assert!(breaker.is_closed() && breaker.allows(at(103)));
    }

    #[test]
    fn a_trial_closes_it_or_doubles_the_pause() {
        let mut breaker = Breaker::default();
        breaker.trial(false, at(0));
        assert_eq!(breaker.state(), State::Closed, "no trial while closed");
        trap_three_times(&mut breaker, 100);
        assert_eq!(breaker.state(), State::Open { trial_at: at(101) });
        assert!(!breaker.record(Outcome::Trap, at(100)), "stragglers change nothing");
        breaker.trial(false, at(101));
        assert_eq!(breaker.state(), State::Open { trial_at: at(103) });
        breaker.trial(true, at(103));
        assert_eq!(breaker.state(), State::Closed);
    }

    #[test]
    fn a_trial_that_was_put_off_counts_for_nothing() {
        let mut breaker = Breaker::default();
        breaker.postpone(at(99));
        assert_eq!(breaker.state(), State::Closed);
        trap_three_times(&mut breaker, 100);
        (101..200).for_each(|now| breaker.postpone(at(now)));
        assert_eq!(breaker.state(), State::Open { trial_at: at(200) });
        breaker.trial(false, at(200));
        assert_eq!(breaker.state(), State::Open { trial_at: at(202) }, "the second one");
    }

    #[test]
    fn a_crash_loop_ends_in_quarantine_unless_it_was_healthy_or_is_the_last_resort() {
        let crash_loop = |mut breaker: Breaker, pause: u64| {
            let mut now = 100;
            for _ in 0..20 {
                trap_three_times(&mut breaker, now);
                breaker.trial(true, at(now));
                now += pause;
            }
            breaker.state()
        };
        assert_eq!(crash_loop(Breaker::default(), 1), State::Quarantined);
        assert_eq!(crash_loop(Breaker::default(), 60), State::Closed);
        let mut last_resort = Breaker::without_quarantine();
        trap_three_times(&mut last_resort, 0);
        (0..50).for_each(|_| last_resort.trial(false, at(1000)));
        assert_eq!(last_resort.state(), State::Open { trial_at: at(1032) });
        last_resort.trial(true, at(1032));
        assert_eq!(last_resort.state(), State::Closed);
    }
}
