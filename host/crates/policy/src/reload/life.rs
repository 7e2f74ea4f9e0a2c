//! Whether the task lives: what its handle tells whoever waits in vain for an answer of it.
//!
//! Invariant: nobody is told that the host is stopping unless it was told to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fulcrum_core::time::Timestamp;

use crate::status::{TaskState, TaskStatus};

/// Why the task of the policies gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// The host was told to stop.
    #[error("the host is stopping; try again, or another one")]
    Stopping,
    /// The task crashed at what was asked of it, or is gone.
    #[error(
        "the policies' task crashed at this, and it may be half done: the log of the host has the panic, `fulcrum policy \
         status` says how policies stand; if it comes again, restart the host"
    )]
    Crashed,
}

/// Shared by the task and its handle.
#[derive(Debug, Default)]
pub(super) struct Life {
    is_stopping: AtomicBool,
    has_ended: AtomicBool,
    crashes: AtomicU64,
    /// Milliseconds since 1970; 0 is never.
    crashed_at: AtomicU64,
}

impl Life {
    /// Notes that the host was told to stop.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    /// Notes that the task runs no more.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// Notes that a piece of work crashed.
    pub(super) fn crash(&self, now: Timestamp) {
        self.crashed_at.store(now.0, Ordering::Relaxed);
        self.crashes.fetch_add(1, Ordering::Release);
    }

    /// Says why there is no answer.
    pub(super) fn gone(&self) -> Gone {
        if self.is_stopping.load(Ordering::Acquire) { Gone::Stopping } else { Gone::Crashed }
    }

    pub(super) fn status(&self) -> TaskStatus {
        let state = match (self.has_ended.load(Ordering::Acquire), self.gone()) {
            (false, _) => TaskState::Running,
            (true, Gone::Stopping) => TaskState::Stopped,
            (true, Gone::Crashed) => TaskState::Crashed,
        };
        let crashes = self.crashes.load(Ordering::Acquire);
        let at = Some(self.crashed_at.load(Ordering::Relaxed)).filter(|at| *at > 0);
        TaskStatus { state, crashes, last_crash_at: at, proving: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_crashed_is_not_what_stops() {
        let check = |events: &[&str], gone: Gone, state: TaskState, crashes: u64| {
            let life = Life::default();
            for event in events {
                match *event {
                    "stop" => life.stop(),
                    "end" => life.end(),
                    _ => life.crash(Timestamp(7)),
                }
            }
            let status = life.status();
            assert_eq!((life.gone(), status.state, status.crashes), (gone, state, crashes), "{events:?}");
            assert_eq!(status.last_crash_at, (crashes > 0).then_some(7), "{events:?}");
        };
        check(&[], Gone::Crashed, TaskState::Running, 0);
        check(&["crash", "crash"], Gone::Crashed, TaskState::Running, 2);
        check(&["crash", "end"], Gone::Crashed, TaskState::Crashed, 1);
        check(&["stop"], Gone::Stopping, TaskState::Running, 0);
        check(&["stop", "end"], Gone::Stopping, TaskState::Stopped, 0);
    }
}
