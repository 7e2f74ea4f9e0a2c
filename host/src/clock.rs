//! The real clock: wall time read once at start, then a monotonic count, so that it never runs backwards.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fulcrum_core::time::{Clock, Timestamp, millis};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    started_at: Timestamp,
    started: Instant,
}

impl RealClock {
    /// Reads the wall clock, for the last time.
    #[must_use]
    pub fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_at: Timestamp(millis(since_1970)), started: Instant::now() }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        self.started_at.after(self.started.elapsed())
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
