//! The real clock: wall time read once at start, then a monotonic count, so that it never runs backwards.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fulcrum_core::time::{Clock, Timestamp, millis};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    /// Since 1970, with what a whole millisecond would cut off: else this clock would run up to one behind.
    started_at: Duration,
    started: Instant,
}

impl RealClock {
    /// Reads the wall clock, for the last time.
    #[must_use]
    pub fn start() -> Self {
        let started_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_at, started: Instant::now() }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        Timestamp(millis(self.started_at + self.started.elapsed()))
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
