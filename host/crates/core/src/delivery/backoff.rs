//! How long a refused event waits for its next delivery.

use std::time::Duration;

/// The rule; both are those of Apache RocketMQ (`tests/vectors/rocketmq-pop/backoff.json`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// 10 s, 30 s, then 1 to 10 minutes by the minute, 20 and 30 minutes, 1 hour, and 2 hours from then on.
    Table,
    /// `initial * multiplier ^ redeliveries`, at most `max`.
    Exponential {
        /// Delay after the first delivery.
        initial: Duration,
        /// Longest delay.
        max: Duration,
        /// What each further delay is multiplied with, at least 1.
        multiplier: u32,
    },
}

/// Delays of [`Backoff::Table`] in seconds.
const TABLE: [u64; 16] = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200];

/// Highest power [`Backoff::Exponential`] raises its multiplier to.
const POWER_MAX: u32 = 32;

impl Backoff {
    /// The exponential rule with its usual figures: 5 s, doubled each time, at most 2 hours.
    pub const EXPONENTIAL: Self =
        Self::Exponential { initial: Duration::from_secs(5), max: Duration::from_secs(7200), multiplier: 2 };

    /// Returns how long an event waits that was delivered again `redeliveries` times so far: 0 after its first
    /// delivery failed, 1 after its second.
    #[must_use]
    pub fn delay(&self, redeliveries: u32) -> Duration {
        match self {
            Self::Table => {
                let at = usize::try_from(redeliveries).unwrap_or(usize::MAX).min(TABLE.len() - 1);
                Duration::from_secs(TABLE[at])
            }
            Self::Exponential { initial, max, multiplier } => {
                let factor = multiplier.saturating_pow(redeliveries.min(POWER_MAX));
                initial.saturating_mul(factor).min(*max)
            }
        }
    }
}
