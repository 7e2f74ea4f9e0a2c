//! How fast topics take events and sessions take requests.
//!
//! Each limit is a bucket that holds a second's worth and fills evenly (GCRA); nothing is queued. What was refused took
//! nothing of any bucket but those asked before it. Invariant: buckets that are full again are forgotten with
//! [`Rates::tidy`], so memory follows what happened in the last seconds, whatever names callers make up.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::time::Clock;
use fulcrum_store::VALUE_BYTES_MAX;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

/// Limits; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Events that are published to one topic each second.
    pub topic_events_per_sec: Option<NonZeroU32>,
    /// Bytes of events that are published to one topic each second; a single event always fits.
    pub topic_bytes_per_sec: Option<NonZeroU32>,
    /// Turns that are started and messages that are published on one session each second.
    pub session_turns_per_sec: Option<NonZeroU32>,
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Limited {
    /// It has to wait.
    #[error("too many {what} within a second")]
    Wait {
        /// Of what.
        what: &'static str,
        /// For how long, if nobody else calls.
        wait: Duration,
    },
    /// It is more than a second's worth at once, and would always be refused.
    #[error("more than {max} {what} at once, which is a second's worth; make it smaller")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// The most at once.
        max: u32,
    },
}

/// The host's clock as the limiter reads it.
struct Time(Arc<dyn Clock>);

impl governor::clock::Clock for Time {
    type Instant = Duration;

    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.nanos())
    }
}

/// Buckets by the hash of their name, as a name can be of any length.
struct Buckets {
    what: &'static str,
    max: NonZeroU32,
    limiter: RateLimiter<u64, HashMapStateStore<u64>, Time, NoOpMiddleware<Duration>>,
    clock: Arc<dyn Clock>,
}

impl Buckets {
    fn new(what: &'static str, quota: Quota, clock: &Arc<dyn Clock>) -> Self {
        let limiter = RateLimiter::hashmap_with_clock(quota, Time(clock.clone()));
        Self { what, max: quota.burst_size(), limiter, clock: clock.clone() }
    }

    fn take(&self, name: &str, count: usize) -> Result<(), Limited> {
        let Some(count) = u32::try_from(count).map_or(Some(NonZeroU32::MAX), NonZeroU32::new) else {
            return Ok(());
        };
        let key = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        match self.limiter.check_key_n(&key, count) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(until)) => {
                let wait = until.wait_time_from(Duration::from_nanos(self.clock.nanos()));
                Err(Limited::Wait { what: self.what, wait })
            }
            Err(_) => Err(Limited::TooMuch { what: self.what, max: self.max.get() }),
        }
    }

    fn tidy(&self) {
        self.limiter.retain_recent();
        self.limiter.shrink_to_fit();
    }
}

/// See the module. Without limits every call is a look at two empty places.
pub struct Rates {
    topic_events: Option<Buckets>,
    topic_bytes: Option<Buckets>,
    session_turns: Option<Buckets>,
}

impl Rates {
    /// Makes the limits.
    #[must_use]
    pub fn new(settings: Settings, clock: &Arc<dyn Clock>) -> Self {
        let one_event = u32::try_from(VALUE_BYTES_MAX).ok().and_then(NonZeroU32::new);
        let bytes = |rate: NonZeroU32| {
            let burst = one_event.map_or(rate, |one_event| rate.max(one_event));
            Buckets::new("bytes of events for the topic", Quota::per_second(rate).allow_burst(burst), clock)
        };
        let buckets = |what| move |rate| Buckets::new(what, Quota::per_second(rate), clock);
        Self {
            topic_events: settings.topic_events_per_sec.map(buckets("events for the topic")),
            topic_bytes: settings.topic_bytes_per_sec.map(bytes),
            session_turns: settings.session_turns_per_sec.map(buckets("turns and messages of the session")),
        }
    }

    /// Takes room for events that are to be published together.
    ///
    /// Errors with [`Limited`].
    pub fn publish(&self, topic: &str, events: usize, bytes: usize) -> Result<(), Limited> {
        self.topic_events.as_ref().map_or(Ok(()), |buckets| buckets.take(topic, events))?;
        self.topic_bytes.as_ref().map_or(Ok(()), |buckets| buckets.take(topic, bytes))
    }

    /// Takes room for one turn or message of a session.
    ///
    /// Errors with [`Limited::Wait`].
    pub fn turn(&self, session: &str) -> Result<(), Limited> {
        self.session_turns.as_ref().map_or(Ok(()), |buckets| buckets.take(session, 1))
    }

    /// Forgets what is full again. To be called every few seconds.
    pub fn tidy(&self) {
        [&self.topic_events, &self.topic_bytes, &self.session_turns]
            .into_iter()
            .flatten()
            .for_each(Buckets::tidy);
    }

    /// Returns how many buckets are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        let all = [&self.topic_events, &self.topic_bytes, &self.session_turns];
        all.into_iter().flatten().map(|buckets| buckets.limiter.len()).sum()
    }

    /// Tells whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use fulcrum_core::Timestamp;

    use super::*;

    #[derive(Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now(&self) -> Timestamp {
            Timestamp(self.nanos() / 1_000_000)
        }

        fn nanos(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn rates(events: u32, bytes: u32, turns: u32) -> (Rates, Arc<Hand>) {
        let hand = Arc::new(Hand(AtomicU64::new(5_000_000_000)));
        let clock: Arc<dyn Clock> = hand.clone();
        let settings = Settings {
            topic_events_per_sec: NonZeroU32::new(events),
            topic_bytes_per_sec: NonZeroU32::new(bytes),
            session_turns_per_sec: NonZeroU32::new(turns),
        };
        (Rates::new(settings, &clock), hand)
    }

    fn waits(limited: Result<(), Limited>) -> Option<u128> {
        match limited {
            Ok(()) => None,
            Err(Limited::Wait { wait, .. }) => Some(wait.as_millis()),
            Err(Limited::TooMuch { .. }) => panic!("{limited:?}"),
        }
    }

    #[test]
    fn a_second_holds_so_many_events_of_each_topic() {
        let (rates, hand) = rates(10, 0, 0);
        // Milliseconds later, topic, events, how long to wait.
        let table = [
            (0, "a", 10, None),
            (0, "a", 1, Some(100)),
            (0, "b", 10, None),
            (50, "a", 1, Some(50)),
            (50, "a", 1, None),
            (0, "a", 1, Some(100)),
            (0, "a", 3, Some(300)),
            (0, "a", 0, None),
            (300, "a", 3, None),
            (5000, "a", 10, None),
            (0, "a", 1, Some(100)),
        ];
        for (row, (later, topic, events, expected)) in table.into_iter().enumerate() {
            hand.0.fetch_add(later * 1_000_000, Ordering::SeqCst);
            assert_eq!(waits(rates.publish(topic, events, 1)), expected, "row {row}");
        }
        let refused = rates.publish("a", 11, 1);
        assert!(matches!(refused, Err(Limited::TooMuch { max: 10, .. })), "{refused:?}");
    }

    #[test]
    fn bytes_count_but_for_a_single_event() {
        let (rates, hand) = rates(0, 1000, 0);
        assert_eq!(waits(rates.publish("a", 1, VALUE_BYTES_MAX)), None);
        assert_eq!(waits(rates.publish("a", 1, 1000)), Some(1000));
        hand.0.fetch_add(1_000_000_000, Ordering::SeqCst);
        assert_eq!(waits(rates.publish("a", 1, 1000)), None);
        let refused = rates.publish("a", 2, VALUE_BYTES_MAX + 1);
        assert!(matches!(refused, Err(Limited::TooMuch { .. })), "{refused:?}");
    }

    #[test]
    fn without_limits_nothing_is_refused_or_remembered() {
        let (rates, _) = rates(0, 0, 0);
        for _ in 0..1000 {
            assert_eq!(rates.publish("a", 10_000, VALUE_BYTES_MAX), Ok(()));
            assert_eq!(rates.turn("s"), Ok(()));
        }
        assert!(rates.is_empty());
    }

    #[test]
    fn names_are_forgotten_once_their_buckets_are_full() {
        let (rates, hand) = rates(0, 0, 2);
        for session in 0..1000 {
            assert_eq!(rates.turn(&session.to_string()), Ok(()));
        }
        rates.tidy();
        assert_eq!(rates.len(), 1000, "they matter still");
        hand.0.fetch_add(400_000_000, Ordering::SeqCst);
        assert_eq!((rates.turn("0"), rates.turn("0").is_err()), (Ok(()), true));
        hand.0.fetch_add(700_000_000, Ordering::SeqCst);
        rates.tidy();
        assert_eq!(rates.len(), 1, "those of others are full again");
        hand.0.fetch_add(2_000_000_000, Ordering::SeqCst);
        rates.tidy();
        assert!(rates.is_empty(), "{} are left", rates.len());
    }
}
