//! The thread of a shadow: takes what was decided, lets the candidate answer, and writes down how that compares.
//!
//! Invariant: it gives way. It runs at the lowest priority (on Linux, where a thread has one of its own) and looks for work
//! by itself, so that no decision has to wake it; the less there is, the more seldom, as each look disturbs whatever
//! request is answered at that moment.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fulcrum_core::time::Clock;

use super::claiming::Claimer;
use super::report::State;
use super::scoring::{Make, Scorer};
use super::{Inbox, SCORED_LEN, Shadow};
use crate::artifact::Loaded;
use crate::breaker::Breaker;
use crate::failure::Failure;
use crate::places::Share;
use crate::seat::{ScoringFactory as _, ScoringPolicy};

/// Shortest and longest time between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Answers in one go after which the next look comes soon: the queue must not fill meanwhile.
const MANY: usize = SCORED_LEN / 8;
/// How much longer than its deadline a call may take by the clock: a thread that gives way is kept waiting by others.
/// What it may use of a processor is the deadline.
const PATIENCE: u32 = 5;
/// How far the thread steps back: as far as it can.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 19;
/// Stack of the thread; guests run on it.
const STACK_BYTES: usize = 4 << 20;

/// Tells what the calling thread has used, in nanoseconds since some fixed moment.
pub(super) type Spent<'a> = dyn Fn() -> u64 + 'a;

/// See the module.
pub(super) struct Runner {
    shadow: Arc<Shadow>,
    clock: Arc<dyn Clock>,
    inbox: Inbox,
    scorer: Scorer,
    claimer: Claimer,
    scoring: Breaker,
    claiming: Breaker,
}

impl Runner {
    pub(super) fn new(
        shadow: Arc<Shadow>,
        candidate: Arc<Loaded>,
        clock: Arc<dyn Clock>,
        inbox: Inbox,
    ) -> Self {
        let limits = candidate.runtime().limits();
        let (scoring, claiming) = (limits.scoring_deadline, limits.claiming_deadline);
        let loaded = candidate.clone();
        let make: Make = Box::new(move || {
            let made = loaded.make_scoring_in(Share::Shadows, scoring * PATIENCE)?;
            Ok(Box::new(made) as Box<dyn ScoringPolicy>)
        });
        Self {
            shadow,
            clock,
            inbox,
            scorer: Scorer::new(candidate.identity().clone(), make, scoring),
            claimer: Claimer::new(candidate, claiming, claiming * PATIENCE),
            scoring: Breaker::default(),
            claiming: Breaker::default(),
        }
    }

    /// Starts the thread; it ends when the shadow does.
    pub(super) fn start(self) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new()
            .name("policy-shadow".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || self.run())
    }

    fn run(mut self) {
        let _crash = Crash(self.shadow.clone());
        step_back();
        let mut pause = PAUSE_MIN;
        while self.shadow.is_running() {
            let mut answered = 0;
            while self.shadow.is_running() && (self.plan_one() || self.score_one()) {
                answered += 1;
            }
            pause = if answered > MANY { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            std::thread::park_timeout(pause);
        }
        // Nobody compares what still waits.
        while let Ok((claimed, bytes)) = self.inbox.claimed.try_recv() {
            self.shadow.drop_claimed(&claimed.group);
            self.shadow.claimed.done(bytes);
        }
        while let Ok((_, bytes)) = self.inbox.scored.try_recv() {
            self.shadow.drop_scored();
            self.shadow.scored.done(bytes);
        }
    }

    fn score_one(&mut self) -> bool {
        let Ok((scored, bytes)) = self.inbox.scored.try_recv() else { return false };
        let clock = &*self.clock;
        let example = self.shadow.book.lock().next_scoring_example();
        let answered = self.scorer.compare(&scored, example, &|| spent(clock));
        self.shadow.book.lock().scored(scored.decision.by.as_ref(), answered.verdict, answered.times);
        if self.scoring.record(answered.outcome, clock.now()) {
            self.fail(answered.failure.as_ref());
        }
        drop(scored);
        self.shadow.scored.done(bytes);
        true
    }

    fn plan_one(&mut self) -> bool {
        let Ok((claimed, bytes)) = self.inbox.claimed.try_recv() else { return false };
        let clock = &*self.clock;
        let group = &claimed.group;
        if self.claimer.is_own(&claimed) {
            self.shadow.book.lock().planned_itself(group);
            self.shadow.claimed.done(bytes);
            return true;
        }
        let example = self.shadow.book.lock().next_claim_example(group);
        let answered = self.claimer.compare(&claimed, example, &|| spent(clock));
        let by = claimed.planned.by.as_ref();
        self.shadow.book.lock().claimed(group, by, answered.verdict, answered.times, answered.shape);
        if self.claiming.record(answered.outcome, clock.now()) {
            self.fail(answered.failure.as_ref());
        }
        self.shadow.claimed.done(bytes);
        true
    }

    /// Ends the shadow: the candidate fails so much in a row that the live breaker would not ask it any more.
    fn fail(&self, failure: Option<&Failure>) {
        let reason = failure.map_or_else(
            || "it kept failing".to_owned(),
            |failure| format!("it kept failing, at last with {}: {failure}", failure.outcome().name()),
        );
        let identity = &self.shadow.candidate;
        tracing::warn!(
            policy.name = identity.name,
            policy.digest = identity.digest,
            reason,
            "shadow has ended itself"
        );
        self.shadow.end(State::Failed, Some(reason));
    }
}

/// Ends the shadow if its thread does so by a panic.
struct Crash(Arc<Shadow>);

impl Drop for Crash {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(State::Failed, Some("its thread crashed, see the host's log".to_owned()));
        }
    }
}

/// Lets all other threads go first.
fn step_back() {
    // On Linux the priority is the calling thread's own; elsewhere it would be that of the whole host.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "a shadow's thread keeps its priority");
    }
}

/// Tells the processor time of the calling thread where the system does, else the clock's.
fn spent(clock: &dyn Clock) -> u64 {
    #[cfg(target_os = "linux")]
    {
        let _ = clock;
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let whole = u64::try_from(time.tv_sec).unwrap_or_default().saturating_mul(1_000_000_000);
        whole.saturating_add(u64::try_from(time.tv_nsec).unwrap_or_default())
    }
    #[cfg(not(target_os = "linux"))]
    clock.nanos()
}
