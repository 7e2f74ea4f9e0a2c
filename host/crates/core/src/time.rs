//! Points in time, as plain numbers that somebody else read from a clock.

use std::time::Duration;

/// Milliseconds since 1970-01-01 UTC on the host's clock, which never runs backwards while the host runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns how long ago `earlier` was, 0 if it lies in the future.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Returns the moment `span` later; the last representable one if that would overflow.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }
}

/// Converts to whole milliseconds, `u64::MAX` at most.
#[must_use]
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Converts to whole milliseconds, `u32::MAX` (49 days) at most.
#[must_use]
pub fn millis_u32(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

/// Where time comes from; the host injects a real one, tests and the simulator a virtual one.
pub trait Clock: Send + Sync {
    /// Returns the present.
    fn now(&self) -> Timestamp;

    /// Returns nanoseconds since some fixed moment, to measure spans with.
    fn nanos(&self) -> u64;
}
