use std::collections::BTreeMap;

use super::*;

mod model;
mod vectors;

const SECOND: Duration = Duration::from_secs(1);

/// A window driven by hand, with a clock and readable output.
struct World {
    window: Window,
    now: Timestamp,
    /// Nonce of the last delivery by position.
    nonces: BTreeMap<u64, u64>,
    nonce: u64,
}

impl World {
    fn new(settings: Settings) -> Self {
        Self { window: Window::new(settings, 0), now: Timestamp(0), nonces: BTreeMap::new(), nonce: 100 }
    }

    fn fifo() -> Self {
        Self::new(Settings { is_fifo: true, ..Settings::default() })
    }

    /// Fetches events from the position on, one per letter; `-` has no key.
    fn fetch(mut self, from: u64, keys: &str) -> Self {
        for (position, key) in (from..).zip(keys.chars()) {
            let key = key.to_string();
            self.window.fetched(position, (key != "-").then_some(key.as_str()));
        }
        self.check();
        self
    }

    fn lease(&mut self, client: &str, via: u64, seconds: u64) -> Lease {
        self.nonce += 1;
        let until = self.now.after(SECOND * u32::try_from(seconds).expect("short"));
        Lease { client: client.into(), via, nonce: self.nonce, until }
    }

    /// Delivers the next event to a client; answers `position#attempt`, or `-`.
    fn take_as(&mut self, client: &str, via: u64, seconds: u64) -> String {
        let Some(position) = self.window.pick(self.now) else { return "-".to_owned() };
        let lease = self.lease(client, via, seconds);
        self.nonces.insert(position, lease.nonce);
        let attempt = self.window.deliver(position, lease);
        self.check();
        format!("{position}#{attempt}")
    }

    /// Delivers all there is, for 60 s.
    fn take(&mut self) -> String {
        self.take_for(60)
    }

    fn take_for(&mut self, seconds: u64) -> String {
        let mut taken = Vec::new();
        loop {
            match self.take_as("c", 0, seconds) {
                none if none == "-" => return taken.join(" "),
                one => taken.push(one),
            }
        }
    }

    /// Acks, and stores that.
    fn ack(&mut self, position: u64) -> Result<Settled, Gone> {
        let acked = self.window.ack(position, self.nonces[&position]);
        self.check();
        self.window.stored(position);
        self.check();
        acked
    }

    fn nack(&mut self, position: u64, delay: Option<u64>) -> Result<Failed, Gone> {
        let delay = delay.map(Duration::from_secs);
        let failed = self.window.nack(position, self.nonces[&position], delay, self.now);
        self.check();
        failed
    }

    /// Moves the clock and ends what is over; answers the positions, `!` marks those that are dying.
    fn at(&mut self, seconds: u64) -> String {
        self.at_ms(seconds * 1000)
    }

    fn at_ms(&mut self, ms: u64) -> String {
        self.now = Timestamp(ms);
        let ended = self.window.expire(self.now);
        self.check();
        let line = |(position, failed): &(u64, Failed)| match failed {
            Failed::Retry { .. } => position.to_string(),
            Failed::Dead { .. } => format!("{position}!"),
        };
        ended.iter().map(line).collect::<Vec<_>>().join(" ")
    }

    fn park(&mut self, limit: usize) -> Vec<u64> {
        let parkable = self.window.parkable(limit);
        for &position in &parkable {
            let attempts = self.window.get(position).expect("unsettled").failed();
            assert!(self.window.park(position, attempts));
        }
        self.check();
        parkable
    }

    fn check(&self) {
        assert_eq!(self.window.violations(), Vec::<String>::new());
    }
}

const ACKED: Result<Settled, Gone> = Ok(Settled { was_parked: false });

#[test]
fn an_event_is_invisible_while_leased_and_comes_back_when_the_lease_ends() {
    let mut world = World::new(Settings::default()).fetch(0, "---");
    assert_eq!(world.take(), "0#1 1#1 2#1");
    assert_eq!(world.take(), "");
    assert_eq!(world.window.due(), Some(Timestamp(60_000)));
    assert_eq!(world.at_ms(59_999), "");
    assert_eq!(world.take(), "");
    assert_eq!(world.ack(1), ACKED);
    assert_eq!(world.at(60), "0 2");
    assert_eq!(world.take(), "0#2 2#2");
    assert_eq!(world.window.due(), Some(Timestamp(120_000)));
}

#[test]
fn only_the_present_delivery_is_answered() {
    let mut world = World::new(Settings::default()).fetch(0, "-");
    world.take();
    let first = world.nonces[&0];
    world.at(60);
    assert_eq!(world.window.ack(0, first), Err(Gone), "the lease ended");
    world.take();
    assert_eq!(world.window.ack(0, first), Err(Gone), "another delivery is in flight");
    assert_eq!(world.window.nack(0, first, None, world.now), Err(Gone));
    let lease = world.lease("c", 0, 10);
    assert_eq!(world.window.extend(0, first, lease), Err(Gone));
    assert_eq!(world.ack(0), ACKED);
    assert_eq!(world.ack(0), Err(Gone), "acked before");
    assert_eq!(world.window.ack(7, 1), Err(Gone), "never fetched");
}

#[test]
fn an_ack_after_the_lease_counts_until_the_end_was_noted() {
    let mut world = World::new(Settings::default()).fetch(0, "-");
    world.take();
    world.now = Timestamp(61_000);
    assert_eq!(world.ack(0), ACKED);
    assert_eq!(world.window.expire(world.now), []);
}

#[test]
fn an_extension_moves_the_end_and_kills_the_old_nonce() {
    for (seconds, end) in [(5, 5_000), (90, 90_000)] {
        let mut world = World::new(Settings::default()).fetch(0, "-");
        world.take();
        let old = world.nonces[&0];
        let lease = world.lease("c", 0, seconds);
        let new = lease.nonce;
        assert_eq!(world.window.extend(0, old, lease), Ok(()));
        assert_eq!(world.window.due(), Some(Timestamp(end)));
        assert_eq!(world.window.ack(0, old), Err(Gone));
        assert_eq!(world.at_ms(end - 1), "");
        assert_eq!(world.window.ack(0, new), ACKED);
    }
}

#[test]
fn a_refused_event_waits_for_its_backoff_or_for_what_was_asked() {
    let mut world = World::new(Settings::default()).fetch(0, "-");
    for (delay, now, next) in [(None, 0, 10), (None, 10, 40), (None, 40, 100), (Some(7), 100, 107)] {
        assert_eq!(world.at(now), "");
        world.take();
        assert_eq!(world.nack(0, delay), Ok(Failed::Retry { at: Timestamp(next * 1000) }));
        assert_eq!(world.window.due(), Some(Timestamp(next * 1000)));
        world.at_ms(next * 1000 - 1);
        assert_eq!(world.take(), "");
    }
    world.at(107);
    assert_eq!(world.take(), "0#5");
    assert_eq!(world.nack(0, Some(0)), Ok(Failed::Retry { at: world.now }));
    assert_eq!(world.take(), "0#6", "no delay at all");
}

#[test]
fn a_delivery_that_reached_nobody_does_not_count() {
    let mut world = World::fifo().fetch(0, "aa");
    assert_eq!(world.take(), "0#1");
    world.window.undelivered(0, 1);
    assert_eq!(world.take(), "", "that was another delivery");
    world.window.undelivered(0, world.nonces[&0]);
    assert_eq!(world.window.in_flight_of("c"), 0);
    assert_eq!(world.take(), "0#1");
}

#[test]
fn the_last_failed_delivery_makes_a_dead_letter() {
    let mut world = World::new(Settings { deliveries_max: 2, ..Settings::default() }).fetch(0, "--");
    world.take();
    world.nack(0, Some(0)).expect("in flight");
    assert_eq!(world.at(60), "1");
    assert_eq!(world.take(), "0#2 1#2");
    assert_eq!(world.nack(0, Some(0)), Ok(Failed::Dead { attempts: 2, reason: Reason::Rejected }));
    assert_eq!(world.at(120), "1!");
    assert_eq!(world.take(), "");
    assert_eq!((world.window.due(), world.window.floor()), (None, 0), "it holds the floor");
    let dying: Vec<_> = world.window.dying().collect();
    let dead = |position, reason| Dying { position, attempts: 2, reason };
    assert_eq!(dying, [dead(0, Reason::Rejected), dead(1, Reason::LeaseEnded)]);
    assert_eq!(world.window.settle(0), Some(Settled { was_parked: false }));
    assert_eq!(world.window.settle(0), None);
    assert_eq!(world.window.floor(), 1);
}

#[test]
fn only_a_dying_event_is_settled_without_an_ack() {
    let mut world = World::new(Settings::default()).fetch(0, "--");
    world.take_as("c", 0, 60);
    assert_eq!((world.window.settle(0), world.window.settle(1)), (None, None));
}

#[test]
fn fifo_keeps_the_order_of_a_key_and_lets_others_go_on() {
    let mut world = World::fifo().fetch(0, "aab-ab");
    assert_eq!(world.take(), "0#1 2#1 3#1");
    let counts = Counts { blocked: 3, in_flight: 3, ..Counts::default() };
    assert_eq!(world.window.counts(), counts);
    world.ack(0).expect("in flight");
    assert_eq!(world.take(), "1#1");
    // Refused, and waiting: the key waits with it.
    world.nack(2, Some(30)).expect("in flight");
    assert_eq!(world.take(), "");
    world.at(30);
    assert_eq!(world.take(), "2#2");
    world.ack(2).expect("in flight");
    assert_eq!(world.take(), "5#1");
    world.at(60);
    assert_eq!(world.take(), "1#2 3#2");
}

#[test]
fn without_fifo_keys_mean_nothing() {
    let mut world = World::new(Settings::default()).fetch(0, "aaa");
    assert_eq!(world.take(), "0#1 1#1 2#1");
    assert_eq!(world.window.get(0).expect("unsettled").key, None);
}

#[test]
fn fifo_waits_for_the_dead_letter_to_be_stored() {
    let mut world =
        World::new(Settings { is_fifo: true, deliveries_max: 1, ..Settings::default() }).fetch(0, "aa");
    world.take();
    world.nack(0, None).expect("in flight");
    assert_eq!(world.take(), "");
    world.window.settle(0);
    assert_eq!(world.take(), "", "a crash would bring it back");
    world.window.stored(0);
    assert_eq!(world.take(), "1#1");
}

#[test]
fn fifo_waits_until_a_crash_cannot_bring_back_what_was_acked() {
    let mut world = World::fifo().fetch(0, "aaab");
    assert_eq!(world.take(), "0#1 3#1");
    world.window.ack(0, world.nonces[&0]).expect("in flight");
    assert_eq!(world.take(), "");
    let counts = Counts { blocked: 2, in_flight: 1, ..Counts::default() };
    assert_eq!(world.window.counts(), counts);
    for other in [1, 3, 9] {
        world.window.stored(other);
        assert_eq!(world.take(), "", "{other} was not settled");
    }
    world.window.stored(0);
    assert_eq!(world.take(), "1#1");
    world.window.stored(0);
    assert_eq!(world.take(), "", "once is enough");
    // Without successors nothing of the key is left.
    world.ack(1).expect("in flight");
    assert_eq!(world.take(), "2#1");
    world.ack(2).expect("in flight");
    world.ack(3).expect("in flight");
    assert_eq!(world.window.violations(), Vec::<String>::new());
}

#[test]
fn a_closed_connection_gives_its_deliveries_back_early() {
    let mut world = World::new(Settings::default()).fetch(0, "-----");
    for (client, via, seconds) in [("a", 7, 60), ("a", 0, 60), ("b", 8, 60), ("a", 7, 1), ("b", 7, 90)] {
        world.take_as(client, via, seconds);
    }
    assert_eq!((world.window.in_flight_of("a"), world.window.in_flight_of("b")), (3, 2));
    let in_two = Timestamp(2_000);
    assert_eq!(world.window.disconnected(7, in_two), [0, 4], "the one that ends sooner keeps its end");
    assert_eq!(world.window.disconnected(0, in_two), [0; 0], "polls have no connection");
    assert_eq!(world.window.left("b", in_two), [2]);
    assert_eq!(world.ack(0), ACKED, "until then it may still answer");
    assert_eq!(world.at(2), "3 2 4");
    assert_eq!(world.window.in_flight_of("a"), 1);
    assert_eq!(world.take(), "2#2 3#2 4#2");
}

#[test]
fn the_floor_is_the_lowest_unsettled_position_and_the_window_bounds_it() {
    let mut world = World::new(Settings { window: 5, ..Settings::default() }).fetch(0, "---");
    assert_eq!((world.window.floor(), world.window.next(), world.window.room()), (0, 3, 2));
    world.window.skipped(3);
    world.window.advanced(9);
    assert_eq!((world.window.floor(), world.window.next(), world.window.room()), (0, 9, 0));
    world.take();
    world.ack(2).expect("in flight");
    world.ack(0).expect("in flight");
    assert_eq!(world.window.floor(), 1);
    assert_eq!(world.window.saved().settled, [(2, 9)]);
    world.ack(1).expect("in flight");
    assert_eq!((world.window.floor(), world.window.room()), (9, 5));
    assert_eq!(world.window.saved(), Saved { floor: 9, next: 9, ..Saved::default() });
    assert!(!world.window.fetched(4, None), "it was fetched, or does not exist");
}

#[test]
fn a_restored_window_fetches_what_is_unsettled_and_knows_how_often_it_failed() {
    let mut world = World::fifo().fetch(10, "abab--");
    world.take();
    world.nack(10, Some(500)).expect("in flight");
    world.ack(14).expect("in flight");
    world.ack(11).expect("in flight");
    let saved = world.window.saved();
    let wanted = Saved { floor: 10, next: 16, settled: vec![(11, 12), (14, 15)], attempts: vec![(10, 1)] };
    assert_eq!(saved, wanted, "deliveries in flight do not count yet");

    world.window = Window::restore(world.window.settings().clone(), &saved);
    assert_eq!(world.window.saved(), saved);
    assert_eq!((world.window.next(), world.window.room()), (10, 10_000));
    let mut taken = Vec::new();
    for (position, key) in (10..18).zip(["a", "b", "a", "b", "-", "-", "a", "c"]) {
        taken.push(world.window.fetched(position, Some(key)));
        assert_eq!(world.window.saved().attempts, [(10, 1)]);
    }
    assert_eq!(taken, [true, false, true, true, false, true, true, true]);
    assert_eq!(world.take(), "10#2 13#1 15#1 17#1", "at once, and the first of each key");
}

#[test]
fn a_restored_window_jumps_over_what_is_settled() {
    let saved = Saved { floor: 3, next: 20, settled: vec![(4, 9), (10, 18)], attempts: vec![(9, 2)] };
    let mut window = Window::restore(Settings::default(), &saved);
    assert!(window.fetched(3, None));
    assert_eq!(window.next(), 9);
    // The log has nothing any more up to 17.
    window.advanced(12);
    assert_eq!(window.next(), 18);
    let wanted = Saved { floor: 3, next: 20, settled: vec![(4, 18)], attempts: vec![] };
    assert_eq!(window.saved(), wanted);
}

#[test]
fn a_restored_event_whose_deliveries_are_used_up_is_dying() {
    let settings = Settings { deliveries_max: 2, ..Settings::default() };
    let saved = Saved { floor: 0, next: 2, settled: vec![], attempts: vec![(0, 2), (1, 1)] };
    let mut window = Window::restore(settings, &saved);
    assert!(window.fetched(0, None) && window.fetched(1, None));
    let dying: Vec<_> = window.dying().collect();
    assert_eq!(dying, [Dying { position: 0, attempts: 2, reason: Reason::Restored }]);
    assert_eq!(window.pick(Timestamp(0)), Some(1));
}

#[test]
fn long_retries_are_parked_and_let_the_floor_go_on() {
    let mut world = World::new(Settings::default()).fetch(0, "---");
    world.take();
    world.nack(0, Some(61)).expect("in flight");
    world.nack(1, Some(60)).expect("in flight");
    world.ack(2).expect("in flight");
    assert_eq!(world.park(0), [0; 0]);
    assert_eq!(world.park(9), [0]);
    assert_eq!(world.park(9), [0; 0], "once");
    assert_eq!((world.window.floor(), world.window.counts().parked), (1, 1));
    let saved = world.window.saved();
    assert_eq!(saved.attempts, [(1, 1)], "its record knows that it failed once");

    world.at(61);
    assert_eq!(world.take(), "0#2 1#2");
    world.nack(0, Some(0)).expect("in flight");
    assert_eq!(world.window.saved().attempts, [(0, 2), (1, 1)], "more often than its record knows");
    world.take();
    assert_eq!(world.ack(0), Ok(Settled { was_parked: true }));
    assert_eq!(world.window.saved().attempts, [(1, 1)]);
    assert!(!world.window.park(0, 1), "settled meanwhile");
}

#[test]
fn a_full_window_parks_what_keeps_it_from_going_on() {
    let settings = Settings { is_fifo: true, window: 6, ..Settings::default() };
    let mut world = World::new(settings).fetch(0, "aabaaa");
    assert_eq!(world.take_as("c", 0, 60), "0#1");
    assert_eq!(world.park(9), [0; 0], "one is deliverable");
    assert_eq!(world.take(), "2#1");
    assert_eq!((world.window.room(), world.park(2)), (0, vec![0, 1]));
    assert_eq!((world.window.room(), world.window.floor()), (2, 2));
    world = world.fetch(6, "ac");
    world.ack(2).expect("in flight");
    assert_eq!(world.take(), "7#1", "another key goes on");
    assert_eq!(world.park(9), [0; 0], "there is room");
    world.ack(0).expect("in flight");
    assert_eq!(world.take(), "1#1", "a parked one keeps its place in the order");
}

#[test]
fn a_full_window_does_not_park_what_is_busy_or_dying() {
    let settings = Settings { window: 4, deliveries_max: 1, ..Settings::default() };
    let mut world = World::new(settings).fetch(0, "----");
    world.take();
    world.ack(3).expect("in flight");
    assert_eq!(world.park(9), [0; 0], "most of it is in flight");
    world.ack(2).expect("in flight");
    assert_eq!(world.window.parkable(9), [0; 0], "half of it is");
    world.nack(1, None).expect("in flight");
    assert_eq!(world.window.parkable(9), [0], "all up to the dying one");
    world.at(60);
    assert_eq!(world.window.parkable(9), [0; 0]);
}

#[test]
fn no_more_is_parked_than_the_cap_allows() {
    let mut world = World::fifo();
    let count = u64::try_from(PARKED_MAX).expect("small") + 5;
    for position in 0..count {
        world.window.restore_parked(position, Some("a"), 0);
    }
    world.window.advanced(count);
    world = world.fetch(count, "b");
    world.take();
    world.nack(count, Some(100)).expect("in flight");
    assert_eq!(world.window.parkable(9), [0; 0]);
    assert!(!world.window.redrive(count - 1, None), "nor is a dead letter taken back");
}

#[test]
fn parked_events_come_back_from_their_records() {
    let saved = Saved { floor: 5, next: 9, settled: vec![(7, 8)], attempts: vec![(2, 3), (6, 1)] };
    let settings = Settings { is_fifo: true, ..Settings::default() };
    let mut world = World { window: Window::restore(settings, &saved), ..World::fifo() };
    for (position, attempts) in [(2, 1), (7, 0), (8, 2)] {
        world.window.restore_parked(position, Some("a"), attempts);
    }
    assert_eq!(world.window.saved(), saved);
    // 8 is of the same key as what was not fetched again yet, so it may not come first.
    assert_eq!(world.take(), "2#4");
    world.ack(2).expect("in flight");
    assert_eq!(world.take(), "");
    world = world.fetch(5, "b");
    assert_eq!(world.take(), "5#1");
    world = world.fetch(6, "aaa");
    assert_eq!(world.take(), "6#2");
    assert_eq!(world.window.counts(), Counts { in_flight: 2, blocked: 2, parked: 2, ..Counts::default() });
}

#[test]
fn a_dead_letter_is_redriven_before_its_followers_but_not_beside_them() {
    let settings = Settings { is_fifo: true, deliveries_max: 1, ..Settings::default() };
    let mut world = World::new(settings).fetch(0, "aa");
    world.take();
    assert!(!world.window.redrive(0, Some("a")), "it is unsettled");
    world.nack(0, None).expect("in flight");
    world.window.settle(0);
    world.window.stored(0);
    assert_eq!(world.take(), "1#1");
    assert!(world.window.redrive(0, Some("a")));
    assert!(!world.window.redrive(0, Some("a")));
    assert!(!world.window.redrive(5, Some("a")), "it was never fetched");
    assert_eq!(world.take(), "", "the other one is leased");
    assert_eq!(world.window.floor(), 1, "it does not hold the floor");
    world.ack(1).expect("in flight");
    assert_eq!(world.take(), "0#1");
    assert_eq!(world.ack(0), Ok(Settled { was_parked: true }));
}

#[test]
fn what_the_log_drops_dies_unless_it_is_parked() {
    let mut world = World::new(Settings::default()).fetch(0, "------");
    assert!(world.window.park(1, 0));
    world.take_as("c", 0, 60);
    assert_eq!(world.window.expire_below(4, 2), 2);
    assert_eq!(world.window.expire_below(4, 2), 1);
    assert_eq!(world.window.expire_below(4, 2), 0);
    world.check();
    let dying: Vec<_> = world.window.dying().map(|dying| (dying.position, dying.attempts)).collect();
    assert_eq!(dying, [(0, 1), (2, 0), (3, 0)]);
    assert!(world.window.dying().all(|dying| dying.reason == Reason::Retention));
    assert_eq!(world.ack(0), Err(Gone));
    assert_eq!(world.take(), "1#1 4#1 5#1");
}

#[test]
fn what_is_nowhere_any_more_is_settled_unless_it_is_in_hand() {
    let settings = Settings { is_fifo: true, deliveries_max: 2, ..Settings::default() };
    let mut world = World::new(settings).fetch(0, "aabb");
    assert_eq!(world.take(), "0#1 2#1");
    assert_eq!(world.window.lost(0), None, "it is in hand");
    world.nack(0, Some(3600)).expect("in flight");
    world.nack(2, Some(0)).expect("in flight");
    assert_eq!(world.take(), "2#2");
    world.nack(2, None).expect("in flight");
    assert_eq!(world.window.lost(2), None, "it is dying");
    assert!(world.window.lost(0).is_some(), "it waits");
    assert!(world.window.lost(3).is_some(), "it is blocked");
    assert_eq!((world.window.lost(0), world.window.lost(9)), (None, None));
    world.check();
    assert_eq!(world.take(), "1#1");
}

#[test]
#[should_panic(expected = "position 1 was not picked")]
fn what_is_not_deliverable_cannot_be_delivered() {
    let mut world = World::fifo().fetch(0, "aa");
    let lease = world.lease("c", 0, 60);
    world.window.deliver(1, lease);
}
