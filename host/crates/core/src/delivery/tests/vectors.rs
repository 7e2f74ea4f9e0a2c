//! The rules against what Apache RocketMQ's broker does (`tests/vectors/rocketmq-pop`). Where we differ on purpose,
//! `docs/DELIVERY.md` says so, and a test below shows it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::*;

const BACKOFF: &str = include_str!("../../../../../../tests/vectors/rocketmq-pop/backoff.json");
const ORDERED: &str = include_str!("../../../../../../tests/vectors/rocketmq-pop/ordered-delivery.json");
const SHARING: &str = include_str!("../../../../../../tests/vectors/rocketmq-pop/pop-queue-sharing.json");

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("a vector file")
}

fn scenarios() -> Vec<Value> {
    parse(ORDERED)["scenarios"].as_array().expect("a list").clone()
}

#[test]
fn the_delays_are_those_of_both_retry_policies() {
    let vectors = parse(BACKOFF);
    let defaults = &vectors["defaults"]["exponential"];
    let ms = |name: &str| Duration::from_millis(defaults[name].as_u64().expect("a number"));
    let multiplier = u32::try_from(defaults["multiplier"].as_u64().expect("a number")).expect("small");
    let exponential = Backoff::Exponential { initial: ms("initial_ms"), max: ms("max_ms"), multiplier };
    assert_eq!(exponential, Backoff::EXPONENTIAL);

    let mut checked = 0;
    for (table, backoff) in
        [("customized_default_ms", Backoff::Table), ("exponential_default_ms", Backoff::EXPONENTIAL)]
    {
        for (redeliveries, delay) in vectors["table"][table].as_object().expect("a table") {
            // A negative number cannot occur here; there it counts as none.
            let redeliveries = redeliveries.parse::<u32>().unwrap_or(0);
            let wanted = Duration::from_millis(delay.as_u64().expect("a number"));
            assert_eq!(backoff.delay(redeliveries), wanted, "{table} {redeliveries}");
            checked += 1;
        }
        assert_eq!(backoff.delay(u32::MAX), Duration::from_secs(7200));
    }
    assert_eq!(checked, 42);
}

/// The broker renews leases by itself, for these times; here the client does it, for any time.
#[test]
fn an_extension_may_have_every_length_of_the_automatic_renewal() {
    let vectors = parse(BACKOFF);
    for length in vectors["table"]["renewal_ms"].as_object().expect("a table").values() {
        let mut world = World::new(Settings::default()).fetch(0, "-");
        world.take();
        let until = world.now.after(Duration::from_millis(length.as_u64().expect("a number")));
        let lease = Lease { until, ..world.lease("c", 0, 0) };
        assert_eq!(world.window.extend(0, world.nonces[&0], lease), Ok(()));
        assert_eq!(world.window.due(), Some(until));
    }
}

/// By default every member pops every queue; here that is always so, and the share number does not exist.
#[test]
fn every_client_is_served_from_every_partition() {
    let vectors = parse(SHARING);
    let cases = vectors["cases"].as_array().expect("a list");
    let mut checked = 0;
    for case in cases.iter().filter(|case| case["share"] == -1) {
        assert_eq!(case["visible_to"], "all");
        let count = |name: &str| case[name].as_u64().expect("a number");
        for _ in 0..count("queues") {
            let mut world = World::new(Settings::default());
            for member in 0..count("members") {
                world = world.fetch(member, "-");
                assert_eq!(world.take_as(&format!("c{member:02}"), 0, 60), format!("{member}#1"));
            }
        }
        checked += 1;
    }
    assert!(checked > 10, "{checked}");
}

/// Where the two disagree in a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    /// They deliver an acked message again, because one before it was not.
    AckedAgain,
    /// They hand a batch out again under the same attempt id while it is leased.
    SameAttempt,
    /// They take an ack for a message that was acked before.
    SecondAck,
    /// They take an ack for what was never delivered.
    AckOfNothing,
    /// They change the time of a message that was acked before.
    ChangeAfterAck,
    /// They count anew when a batch left the message out.
    Recounted,
}

/// One scenario, replayed with a lease for each message of a batch.
struct Replay {
    world: World,
    /// Nonce of each delivery by offset and pop time.
    nonces: BTreeMap<(u64, i64), u64>,
    /// The batch the broker keeps track of, and its attempt id.
    batch: Vec<u64>,
    attempt: Value,
    /// Whether part of the batch was settled here before it was delivered there.
    is_batch_whole: bool,
    found: BTreeSet<Difference>,
}

impl Replay {
    fn new(steps: &[Value]) -> Self {
        let settings = Settings { deliveries_max: 1000, ..Settings::default() };
        let mut world = World::new(settings);
        let batches = steps.iter().filter_map(|step| step["delivered"]["offsets"].as_array());
        let offsets: BTreeSet<_> = batches.flatten().filter_map(Value::as_u64).collect();
        for offset in offsets {
            world.window.fetched(offset, None);
        }
        Self {
            world,
            nonces: BTreeMap::new(),
            batch: Vec::new(),
            attempt: Value::Null,
            is_batch_whole: true,
            found: BTreeSet::new(),
        }
    }

    fn is_unsettled(&self, offset: u64) -> bool {
        self.world.window.get(offset).is_some()
    }

    /// When the lease of an offset ends; `None` if it has none, or it is over.
    fn hidden_until(&self, offset: u64) -> Option<Timestamp> {
        let until = self.world.window.get(offset)?.lease?.until;
        (self.world.now < until).then_some(until)
    }

    fn step(&mut self, step: &Value) {
        let (kind, facts) = step.as_object().expect("a step").iter().next().expect("a step");
        let number = |name: &str| facts[name].as_u64().unwrap_or_else(|| panic!("{name} in {facts}"));
        let pop_time = facts["pop_time"].as_i64().unwrap_or_default();
        match kind.as_str() {
            // Leases that ended are looked for before something is delivered.
            "at" => self.world.now = Timestamp(facts.as_u64().expect("a time")),
            "delivered" => {
                let offsets = facts["offsets"].as_array().expect("a list");
                let offsets: Vec<_> = offsets.iter().filter_map(Value::as_u64).collect();
                let is_same_attempt = !facts["attempt"].is_null() && facts["attempt"] == self.attempt;
                self.delivered(
                    &offsets,
                    pop_time,
                    number("invisible_ms"),
                    is_same_attempt,
                    &step["earlier_deliveries"],
                );
                self.attempt = facts["attempt"].clone();
            }
            "blocked" => {
                // The same attempt passes there, while here its leases still run.
                let is_same_attempt = !facts["attempt"].is_null() && facts["attempt"] == self.attempt;
                let is_blocked = self.batch.iter().any(|offset| self.hidden_until(*offset).is_some());
                let (ours, theirs) = (is_blocked && !is_same_attempt, step["expect"] == true);
                // What is settled here may hide there once more.
                assert!(ours == theirs || (theirs && !self.is_batch_whole), "{step}");
            }
            "lock_free_at" => {
                let hidden = self.batch.iter().find_map(|offset| self.hidden_until(*offset));
                let wanted = Timestamp(facts.as_u64().expect("a time"));
                let free_at = hidden.unwrap_or(self.world.now);
                assert!(free_at == wanted || (free_at < wanted && !self.is_batch_whole), "{step}");
            }
            "ack" => self.ack(number("offset"), pop_time, step["expect"].as_i64().expect("a number")),
            "change_invisible" => self.change(number("offset"), pop_time, number("next_visible_at")),
            // A group whose offsets are reset gets a new window.
            "offset_reset" => {
                let mut fresh = Self::new(&[]);
                for offset in &self.batch {
                    fresh.world.window.fetched(*offset, None);
                }
                self.world.window = fresh.world.window;
                self.batch.clear();
            }
            other => panic!("unknown step {other}"),
        }
        self.world.check();
    }

    fn delivered(&mut self, offsets: &[u64], pop_time: i64, ms: u64, is_same_attempt: bool, earlier: &Value) {
        self.world.window.expire(self.world.now);
        let until = Timestamp(u64::try_from(pop_time).expect("a time") + ms);
        self.is_batch_whole = true;
        for &offset in offsets {
            let lease = Lease { until, ..self.world.lease("c", 0, 0) };
            let nonce = lease.nonce;
            let earlier = earlier[offset.to_string()].as_u64().unwrap_or(0);
            let Some(facts) = self.world.window.get(offset) else {
                self.found.insert(Difference::AckedAgain);
                self.is_batch_whole = false;
                continue;
            };
            let attempts = u64::from(facts.attempts);
            if let Some(old) = facts.lease.map(|lease| lease.nonce) {
                // The nearest thing to being given it again: whoever has it prolongs the lease.
                assert!(is_same_attempt || self.found.contains(&Difference::SameAttempt));
                self.found.insert(Difference::SameAttempt);
                self.world.window.extend(offset, old, lease).expect("in flight");
            } else {
                assert!(earlier <= attempts, "{offset} was delivered {attempts} times");
                if earlier < attempts {
                    let is_explained = !self.batch.contains(&offset) || is_same_attempt;
                    assert!(is_explained || self.found.contains(&Difference::Recounted), "{offset}");
                    self.found.insert(Difference::Recounted);
                }
                self.world.window.deliver(offset, lease);
            }
            self.nonces.insert((offset, pop_time), nonce);
        }
        self.batch = offsets.to_vec();
    }

    fn ack(&mut self, offset: u64, pop_time: i64, expect: i64) {
        let nonce = self.nonces.get(&(offset, pop_time)).copied();
        let was_unsettled = self.is_unsettled(offset);
        let acked = self.world.window.ack(offset, nonce.unwrap_or(u64::MAX));
        match (expect, acked) {
            (-1 | -2, acked) => assert_eq!(acked, Err(Gone), "{offset}"),
            (_, Ok(_)) => {
                let wanted = u64::try_from(expect).expect("an offset");
                let last = self.batch.last().map_or(0, |last| last + 1);
                let first = self.batch.iter().copied().find(|offset| self.is_unsettled(*offset));
                let ours = first.unwrap_or(last);
                if self.is_batch_whole {
                    assert_eq!(ours, wanted, "committed after {offset}");
                } else {
                    assert!(wanted <= ours, "committed after {offset}: {ours}, there {wanted}");
                }
            }
            (_, Err(Gone)) if self.batch.is_empty() || (nonce.is_none() && was_unsettled) => {
                self.found.insert(Difference::AckOfNothing);
            }
            (_, Err(Gone)) => {
                assert!(!was_unsettled, "the ack of {offset} is refused");
                self.found.insert(Difference::SecondAck);
            }
        }
    }

    fn change(&mut self, offset: u64, pop_time: i64, at: u64) {
        let Some(&nonce) = self.nonces.get(&(offset, pop_time)) else { return };
        let lease = Lease { until: Timestamp(at), ..self.world.lease("c", 0, 0) };
        let fresh = lease.nonce;
        match self.world.window.extend(offset, nonce, lease) {
            Ok(()) => {
                self.nonces.insert((offset, pop_time), fresh);
            }
            Err(Gone) => {
                assert!(!self.is_unsettled(offset), "{offset} is in flight");
                self.found.insert(Difference::ChangeAfterAck);
            }
        }
    }
}

/// Step for step: what is hidden and until when, what an ack commits, which acks are refused. What differs is listed
/// with every scenario that shows it; `w1` is walk 1.
#[test]
fn every_scenario_goes_as_in_the_broker_but_for_the_differences() {
    let mut found = BTreeMap::<Difference, Vec<String>>::new();
    let mut step_count = 0;
    for scenario in scenarios() {
        let name = scenario["name"].as_str().expect("a name").replace("walk ", "w");
        let steps = scenario["steps"].as_array().expect("a list");
        step_count += steps.len();
        let mut replay = Replay::new(steps);
        for step in steps {
            replay.step(step);
        }
        for difference in replay.found {
            found.entry(difference).or_default().push(name.clone());
        }
    }
    let all = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16";
    let wanted = [
        (Difference::AckedAgain, format!("{VISIBLE_AGAIN} w1 w2 w3 w4 w8 w9 w13")),
        (Difference::SameAttempt, format!("{SAME_ATTEMPT} w2 w3 w5 w7 w8 w10 w11 w12 w13 w14 w16")),
        (Difference::SecondAck, all.to_owned()),
        (Difference::AckOfNothing, format!("{ACK_OF_NOTHING} {OFFSET_RESET}")),
        (Difference::ChangeAfterAck, "w1 w2 w4 w5 w6 w7 w8 w9 w10 w11 w13 w14 w15".to_owned()),
        (Difference::Recounted, "w1 w3 w7 w11 w12 w14 w15 w16".to_owned()),
    ];
    let found: Vec<_> = found.into_iter().map(|(difference, names)| (difference, names.join(" "))).collect();
    assert_eq!(found, wanted);
    assert_eq!(step_count, 981);
}

const IN_ORDER: &str = "ack in order frees the queue";
const VISIBLE_AGAIN: &str = "unacked batch becomes visible again after the invisible time and is counted";
const SAME_ATTEMPT: &str = "same attempt id passes the block and does not count";
const NULL_ATTEMPT: &str = "null attempt id never matches";
const ACK_OF_NOTHING: &str = "ack without any delivery";
const LONGER: &str = "longer invisible time for one message keeps the whole queue blocked";
const SHORTER: &str = "shorter invisible time frees early only when every unacked message is due";
const OFFSET_RESET: &str = "offset reset clears the lock";

/// Returns the steps of a scenario that a test below refers to, as one line each.
fn steps(name: &str) -> Vec<String> {
    let scenario = scenarios().into_iter().find(|scenario| scenario["name"] == name).expect("it exists");
    scenario["steps"].as_array().expect("a list").iter().map(Value::to_string).collect()
}

/// Checks that a scenario has this step, at the given place or later.
fn there(name: &str, from: usize, wanted: &str) {
    let steps = steps(name);
    assert!(steps[from..].iter().any(|step| step == wanted), "{wanted} in {:#?}", &steps[from..]);
}

/// One key for all, a batch of one: the rule is the same.
#[test]
fn one_key_in_batches_of_one_blocks_as_the_queue_does() {
    let mut world = World::fifo().fetch(5, "aa");
    assert_eq!(world.take(), "5#1");
    for attempt in ["null", "\"x\""] {
        let blocked = format!(r#"{{"blocked":{{"attempt":{attempt},"invisible_ms":60000}},"expect":true}}"#);
        there(NULL_ATTEMPT, 2, &blocked);
        assert_eq!(world.take(), "");
    }
}

#[test]
fn a_key_is_served_in_order_while_the_others_go_on() {
    // There a batch of three blocks the queue until all three are acked.
    there(IN_ORDER, 6, r#"{"blocked":{"attempt":"a2","invisible_ms":60000},"expect":true}"#);
    let mut world = World::fifo().fetch(0, "aab");
    assert_eq!(world.take(), "0#1 2#1");
    world.ack(0).expect("in flight");
    assert_eq!(world.take(), "1#1");

    // There one message with a longer time blocks the queue, here only its key.
    there(LONGER, 5, r#"{"blocked":{"attempt":"a2","invisible_ms":1000},"expect":true}"#);
    let mut world = World::fifo().fetch(0, "abab");
    assert_eq!(world.take_for(1), "0#1 1#1");
    let lease = world.lease("c", 0, 9);
    world.window.extend(1, world.nonces[&1], lease).expect("in flight");
    assert_eq!(world.ack(1), Err(Gone), "there the old handle goes on");
    world.ack(0).expect("in flight");
    assert_eq!(world.at(1), "");
    assert_eq!(world.take_for(60), "2#1");
    world.at(9);
    assert_eq!(world.take_for(60), "1#2");

    // There a shorter time has to wait for the others of its batch.
    there(SHORTER, 4, r#"{"blocked":{"attempt":"a2","invisible_ms":60000},"expect":true}"#);
    let mut world = World::fifo().fetch(0, "ab");
    world.take();
    let lease = Lease { until: Timestamp(500), ..world.lease("c", 0, 0) };
    world.window.extend(0, world.nonces[&0], lease).expect("in flight");
    assert_eq!(world.at_ms(600), "0");
    assert_eq!(world.take(), "0#2");
}

#[test]
fn what_is_acked_behind_a_gap_is_not_delivered_again() {
    there(VISIBLE_AGAIN, 11, r#"{"ack":{"offset":0,"pop_time":10000},"expect":1}"#);
    let mut world = World::new(Settings::default()).fetch(0, "---");
    assert_eq!(world.take_for(5), "0#1 1#1 2#1");
    world.ack(1).expect("in flight");
    assert_eq!(world.at(5), "0 2");
    assert_eq!(world.take_for(5), "0#2 2#2");
    world.ack(0).expect("in flight");
    assert_eq!(world.window.floor(), 2, "there 1, which is then acked once more");
}

#[test]
fn an_event_is_not_handed_out_twice_under_any_attempt_id() {
    there(SAME_ATTEMPT, 2, r#"{"blocked":{"attempt":"a1","invisible_ms":60000},"expect":false}"#);
    let mut world = World::new(Settings::default()).fetch(5, "--");
    assert_eq!(world.take(), "5#1 6#1");
    world.at_ms(10);
    assert_eq!(world.take(), "");
    world.at(60);
    assert_eq!(world.take(), "5#2 6#2", "a lost answer counts as a delivery");
}

#[test]
fn what_is_not_in_flight_is_neither_acked_nor_extended() {
    there(ACK_OF_NOTHING, 0, r#"{"ack":{"offset":3,"pop_time":0},"expect":4}"#);
    let mut world = World::new(Settings::default()).fetch(3, "-");
    assert_eq!(world.window.ack(3, 0), Err(Gone));

    there(OFFSET_RESET, 5, r#"{"ack":{"offset":0,"pop_time":0},"expect":1}"#);
    let mut world = World::new(Settings::default()).fetch(0, "--");
    world.take();
    world.window = Window::new(Settings::default(), 0);
    world = world.fetch(0, "--");
    assert_eq!(world.ack(0), Err(Gone));

    // Acked, then acked once more, then given more time.
    there("walk 1", 5, r#"{"ack":{"offset":10,"pop_time":0},"expect":8}"#);
    there("walk 1", 8, r#"{"change_invisible":{"next_visible_at":20002,"offset":10,"pop_time":0}}"#);
    let mut world = World::new(Settings::default()).fetch(8, "----");
    world.take_for(1);
    world.ack(10).expect("in flight");
    assert_eq!(world.ack(10), Err(Gone));
    let lease = world.lease("c", 0, 20);
    assert_eq!(world.window.extend(10, world.nonces[&10], lease), Err(Gone));
    assert_eq!(world.at(21), "8 9 11");
    assert_eq!(world.take(), "8#2 9#2 11#2");
}

/// The count goes on when a message is left out of a batch, and when a batch is fetched again.
#[test]
fn every_delivery_counts_once() {
    there(
        "walk 16",
        14,
        r#"{"delivered":{"attempt":"a4","invisible_ms":10000,"offsets":[25],"pop_time":9000},"earlier_deliveries":{}}"#,
    );
    let mut world = World::new(Settings::default()).fetch(23, "----");
    world.take_for(5);
    world.ack(24).expect("in flight");
    world.at(9);
    assert_eq!(world.take(), "23#2 25#2 26#2");
}

/// There the next look at the message finds that it was delivered 17 times, and only then makes the dead letter.
#[test]
fn a_dead_letter_is_made_when_the_seventeenth_delivery_fails() {
    let mut world = World::new(Settings::default()).fetch(0, "-");
    for attempt in 1..=16 {
        assert_eq!(world.take(), format!("0#{attempt}"));
        world.nack(0, Some(0)).expect("in flight");
    }
    assert_eq!(world.take(), "0#17");
    assert_eq!(world.nack(0, Some(0)), Ok(Failed::Dead { attempts: 17, reason: Reason::Rejected }));
    assert_eq!(world.take(), "");
}
