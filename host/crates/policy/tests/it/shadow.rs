//! Shadows over real guests: exact counts, misbehaving candidates, and nothing changed for whoever decides.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::fixture::{Fixture, Setup};
use crate::support::testing::cycle;
use crate::support::*;
use fulcrum_core::claiming::Cycle;
use fulcrum_core::scoring::{Loads, Request, flags};
use fulcrum_policy::lifecycle::Promote;
use fulcrum_policy::planner::Wish;
use fulcrum_policy::shadow::{Error, Report, Scope, State, Wanted};
use fulcrum_policy::{Limits, Outcome, Planner, Runtime, Shadows};
use serde_json::json;

/// Endless plans end sooner than by the defaults, and a busy machine makes no live decision late.
static RUNTIME: LazyLock<Arc<Runtime>> = LazyLock::new(|| {
    let limits = Limits {
        scoring_deadline: Duration::from_millis(100),
        claiming_deadline: Duration::from_millis(200),
        ..Limits::default()
    };
    Runtime::new(limits).expect("the engine starts")
});

const LAST: &str = include_str!("../last.wat");
/// Provokes the misbehaving guests, as a client or as a group.
const TROUBLE: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

/// A claim policy by hand. `configure` and `plan` are put in front of what takes any configuration and changes nothing;
/// `$armed` tells whether the group has 66 bytes.
fn claimer(configure: &str, plan: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
  (memory (export "memory") 2)
  (global $heap (mut i32) (i32.const 0x8000))
  (data (i32.const 0x40) "\90\00\00\00\04\00\00\00\94\00\00\00\05\00\00\00\a0\00\00\00\07\00\00\00\00\00\00\00\00\00\00\00")
  (data (i32.const 0x90) "keep1.0.0")
  (data (i32.const 0xa0) "by hand")
  (func (export "cabi_realloc") (param $old i32) (param $old_len i32) (param $align i32) (param $len i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and
      (i32.add (global.get $heap) (i32.sub (local.get $align) (i32.const 1)))
      (i32.sub (i32.const 0) (local.get $align))))
    (global.set $heap (i32.add (local.get $at) (local.get $len)))
    (block $fits
      (br_if $fits (i32.le_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536))))
      (br_if $fits (i32.ne (i32.const -1) (memory.grow (i32.add (i32.const 1)
        (i32.div_u (i32.sub (global.get $heap) (i32.mul (memory.size) (i32.const 65536))) (i32.const 65536))))))
      unreachable)
    (memory.copy (local.get $at) (local.get $old) (local.get $old_len))
    (local.get $at))
  (func $answer (result i32)
    (global.set $heap (i32.const 0x8000))
    (memory.fill (i32.const 0x100) (i32.const 0) (i32.const 64))
    (i32.const 0x100))
  (func (export "fulcrum:policy/lifecycle@1.0.0#describe") (result i32)
    (i32.const 0x40))
  (func (export "fulcrum:policy/lifecycle@1.0.0#configure") (param $at i32) (param $len i32) (result i32)
    {configure}
    (call $answer))
  (func (export "fulcrum:policy/claiming@1.0.0#plan") (param $cycle i32) (result i32)
    (local $armed i32)
    (local.set $armed (i32.eq (i32.load offset=4 (local.get $cycle)) (i32.const 66)))
    {plan}
    (call $answer))
)"#
    );
    fulcrum_pack::from_wat(&text, "claiming-policy").expect("the guest is well formed")
}

/// Takes no configuration but `{}`.
const PICKY: &str = "(if (i32.ne (local.get $len) (i32.const 2)) (then
      (drop (call $answer))
      (i32.store8 (i32.const 0x100) (i32.const 1))
      (i32.store (i32.const 0x108) (i32.const 0xa0))
      (i32.store (i32.const 0x10c) (i32.const 7))
      (return (i32.const 0x100))))";
/// Gives a partition to somebody who does not exist.
const LIE: &str = r"(if (local.get $armed) (then
      (drop (call $answer))
      (i32.store (i32.const 0x200) (i32.const 0))
      (i32.store (i32.const 0x204) (i32.const 99))
      (i32.store (i32.const 0x104) (i32.const 0x200)) (i32.store (i32.const 0x108) (i32.const 1))
      (i32.store (i32.const 0x10c) (i32.const 0x204)) (i32.store (i32.const 0x110) (i32.const 1))
      (i32.store (i32.const 0x114) (i32.const 0x200)) (i32.store (i32.const 0x118) (i32.const 1))
      (return (i32.const 0x100))))";
const CRASH: &str = "(if (local.get $armed) (then unreachable))";
const LOOP: &str = "(if (local.get $armed) (then (loop $forever (br $forever))))";

/// A host with three instances, the middle one dead, on which `base` scores and the fallback plans.
struct Stage {
    host: Fixture,
    planner: Planner,
    shadows: Shadows,
}

impl Stage {
    fn with(candidates: Vec<(&'static str, Vec<u8>)>) -> Self {
        let mut loads = Loads::unknown(3);
        loads.flags[1] |= flags::DEAD;
        let setup = Setup { runtime: RUNTIME.clone(), loads, embedded: candidates };
        let host = Fixture::set_up(tempfile::tempdir().unwrap(), setup, |_| {});
        let planner = Planner::new(host.manager.clone(), host.clock.clone());
        let shadows = Shadows::new(host.manager.clone(), host.clock.clone());
        Self { host, planner, shadows }
    }

    fn start(&self, name: &str) -> Report {
        self.shadows.start(name, &Wanted::default()).unwrap()
    }

    /// Decides as the balancer does; returns the row. The live policy is the one asked, whatever shadows do.
    fn decide(&self, client_id: &str, avoid: &[u32]) -> usize {
        let host = &self.host.host;
        let view = view(&host.snapshot.roster, &host.snapshot.loads);
        let request = Request { client_id, avoid, ..Request::default() };
        let mut seat = host.seat.lock();
        let decision = seat.decide(view, &request, &*self.host.clock).unwrap();
        assert_eq!(decision.by.unwrap().name, "base");
        assert_eq!(decision.outcome, Outcome::Ok);
        let row = decision.recommendation.row;
        seat.commit(row as u32);
        row
    }

    fn plan(&self, group: &str, config: serde_json::Value, owner: &[i32]) {
        let cycle = Cycle { group: group.to_owned(), ..cycle(2, owner) };
        let planned = self.planner.plan(group, &Wish { policy: None, config }, &cycle);
        assert!(planned.by.is_none(), "the fallback plans");
        let free = owner.iter().filter(|&&owner| owner < 0).count();
        assert_eq!(planned.plan.claims.len(), free, "it gives every free partition away");
    }

    fn until(&self, name: &str, is_there: impl Fn(&Report) -> bool) -> Report {
        let begun = Instant::now();
        loop {
            let report = self.shadows.report(name).unwrap();
            if is_there(&report) {
                return report;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "it never comes: {report:#?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn until_idle(&self, name: &str) -> Report {
        self.until(name, |report| report.waiting == 0)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.host.manager.stop();
    }
}

#[test]
fn counts_are_exact_where_two_policies_differ_by_hand() {
    let fixture = Stage::with(vec![("last", guest(LAST))]);
    fixture.decide("before", &[]);
    let begun = fixture.start("last");
    assert_eq!((begun.state, begun.waiting), (State::Running, 0));
    assert_eq!(begun.scope, Scope { scoring: true, ..Scope::default() });
    // Rows 0 and 2 may be chosen: the first is not the last unless one of them is excluded.
    for number in 0..300 {
        let avoid: &[u32] = if number % 3 == 0 { &[0] } else { &[] };
        assert_eq!(fixture.decide(&format!("c{number}"), avoid), if number % 3 == 0 { 2 } else { 0 });
    }
    let report = fixture.until_idle("last");
    let scoring = report.scoring.unwrap();
    let counts = &scoring.counts;
    assert_eq!((counts.compared, counts.same, counts.different), (300, 100, 200), "{counts:?}");
    assert_eq!((counts.dropped, &counts.failed), (0, &BTreeMap::new()));
    let [version] = &counts.versions[..] else { panic!("{counts:?}") };
    assert_eq!((&*version.policy, version.same, version.different), ("base", 100, 200));
    assert!(counts.time.live.p50_us <= counts.time.live.p99_us && counts.time.candidate.p50_us.is_some());
    let numbers: Vec<_> = scoring.examples.iter().map(|example| example.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128]);
    let example = &scoring.examples[0];
    assert_eq!((&*example.request.client_id, &*example.live.instance_id), ("c1", "i0"));
    assert_eq!((&*example.candidate.instance_id, example.candidate.score), ("i2", 0.0));
    assert_eq!((&*example.live.policy, &*example.candidate.policy), ("base", "last"));
    assert_eq!(example.live.unexplained.as_deref(), Some("it does not explain itself"));
    assert_eq!((report.groups.len(), &report.other_groups), (0, &None));

    let [summary] = &fixture.shadows.list()[..] else { panic!("one shadow") };
    assert_eq!((&*summary.name, summary.state, &summary.scope), ("last", State::Running, &begun.scope));

    // What it met counts on, until it begins anew or ends.
    assert_eq!(fixture.shadows.running(), [("last".to_owned(), begun.scope.clone())]);
    let ended = fixture.shadows.stop("last").unwrap();
    assert_eq!((ended.state, ended.scoring.unwrap().counts.compared), (State::Ended, 300));
    assert!(matches!(fixture.shadows.report("last"), Err(Error::NotRunning(_))));
    fixture.shadows.start("last", &begun.scope.into()).unwrap();
    fixture.decide("again", &[]);
    let report = fixture.start("last");
    assert_eq!(report.scoring.unwrap().counts.compared, 0);
    let (name, counts) = fixture.shadows.counts().pop().unwrap();
    assert_eq!((&*name, counts.same, counts.failed), ("last", 100, 0));
    assert_eq!(counts.different + counts.dropped, 201, "the last one is compared or ends with its shadow");
}

#[test]
fn what_is_not_compared_is_dropped_and_nothing_is_lost() {
    let fixture = Stage::with(vec![("last", guest(LAST))]);
    fixture.start("last");
    for _ in 0..5000 {
        fixture.decide("c", &[]);
    }
    let counts = fixture.shadows.stop("last").unwrap().scoring.unwrap().counts;
    // On a busy machine a call may miss its deadline.
    let failed: u64 = counts.failed.values().sum();
    assert_eq!(counts.compared + failed + counts.dropped, 5000, "{counts:?}");
    assert_eq!((counts.compared, counts.same), (counts.different, 0));
}

#[test]
fn a_candidate_that_misbehaves_is_named_and_ends_its_own_shadow() {
    let sins = [
        ("loop-recommend", Outcome::Timeout),
        ("trap", Outcome::Trap),
        ("hoard", Outcome::Limit),
        ("dead-row", Outcome::Illegal),
        ("nan", Outcome::Illegal),
        ("declares", Outcome::Declared),
    ];
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests");
    let sin = |name: &'static str| {
        let text = std::fs::read_to_string(folder.join(format!("{name}.wat"))).unwrap();
        (name, guest(&text))
    };
    let fixture = Stage::with(sins.iter().map(|(name, _)| sin(name)).collect());
    for (name, expected) in sins {
        fixture.start(name);
        for _ in 0..5 {
            assert_eq!(fixture.decide("harmless", &[]), 0, "{name}");
        }
        for _ in 0..40 {
            assert_eq!(fixture.decide(TROUBLE, &[]), 0, "{name}: the live policy decides as ever");
        }
        // An error of its own will costs nothing, so it goes on.
        let goes_on = expected == Outcome::Declared;
        let report = if goes_on {
            fixture.until_idle(name)
        } else {
            fixture.until(name, |report| report.state == State::Failed && report.waiting == 0)
        };
        let counts = report.scoring.unwrap().counts;
        let failed = counts.failed[expected.name()];
        assert_eq!((counts.failed.len(), counts.same, counts.different), (1, 5, 0), "{name}: {counts:?}");
        // What comes once it is over is not counted.
        assert!(failed + counts.dropped <= 40, "{name}: {counts:?}");
        let last = counts.last_failure.unwrap();
        assert!(last.starts_with(&format!("{}: ", expected.name())), "{name}: {last}");
        if goes_on {
            assert_eq!((report.state, failed), (State::Running, 40), "{name}");
        } else {
            // The live breaker would have opened here, too: two missed deadlines, three of the others after good calls.
            assert!((2..=4).contains(&failed), "{name}: {failed}");
            let reason = report.reason.unwrap();
            assert!(reason.contains(expected.name()), "{name}: {reason}");
            assert_eq!(fixture.shadows.running(), [], "{name}");
            fixture.decide("later", &[]);
            assert_eq!(fixture.until_idle(name).scoring.unwrap().counts.same, 5, "{name}: it is over");
        }
        fixture.shadows.stop(name).unwrap();
    }
}

#[test]
fn plans_are_compared_per_group_with_its_own_configuration() {
    let fixture = Stage::with(vec![("keep", claimer(PICKY, ""))]);
    fixture.start("keep");
    // By hand: the fallback fills what is free, the candidate changes nothing.
    fixture.plan("full", json!({}), &[0, 0, 1]);
    fixture.plan("half", json!({}), &[0, -1, -1, 0]);
    fixture.plan("half", json!({}), &[0, 1, 1, 0]);
    fixture.plan("own", json!({ "x": 1 }), &[-1]);
    fixture.plan("own", json!({ "x": 1 }), &[-1]);
    let report = fixture.until_idle("keep");
    assert_eq!((&report.scoring, &report.other_groups), (&None, &None));
    let counts = |group: &str| {
        let counts = &report.groups[group].counts;
        (counts.same, counts.different, counts.failed.clone(), counts.dropped)
    };
    assert_eq!(counts("full"), (1, 0, BTreeMap::new(), 0));
    assert_eq!(counts("half"), (1, 1, BTreeMap::new(), 0));
    assert_eq!(counts("own"), (0, 0, BTreeMap::from([("refused", 2)]), 0));
    assert!(report.groups["own"].counts.last_failure.as_ref().unwrap().contains("by hand"));
    let [example] = &report.groups["half"].examples[..] else { panic!("{report:#?}") };
    assert_eq!((example.live.after.spread, example.live.after.free), (0, 0));
    assert_eq!((example.candidate.after.spread, example.candidate.after.free), (2, 2));
    let [first, second] = &example.elsewhere[..] else { panic!("{example:#?}") };
    assert_eq!((first.partition, first.live.as_deref(), &first.candidate), (1, Some("m1"), &None));
    assert_eq!(first.live_reason.as_deref(), Some("fallback: free partition"));
    assert_eq!((second.partition, &second.owner), (2, &None));
    assert_eq!(report.groups["half"].counts.versions[0].policy, "fallback");

    // Only some groups.
    let wanted = Wanted { groups: ["half".to_owned()].into(), ..Wanted::default() };
    fixture.shadows.start("keep", &wanted).unwrap();
    fixture.plan("full", json!({}), &[0, 0, 1]);
    fixture.plan("half", json!({}), &[0, 1]);
    let report = fixture.until_idle("keep");
    assert_eq!(report.groups.keys().collect::<Vec<_>>(), ["half"]);
}

#[test]
fn a_promotion_ends_a_shadow_only_where_nothing_is_left_to_compare() {
    let stage = Stage::with(vec![("keep", claimer("", ""))]);
    stage.start("keep");
    let promote = |wish: Promote| {
        stage.host.manager.promote("keep", wish).unwrap();
        stage.shadows.promoted("keep");
        stage.shadows.report("keep").unwrap().state
    };
    // Other groups are planned by another policy still.
    let one = Promote { groups: vec!["one".to_owned()], ..Promote::default() };
    assert_eq!(promote(one), State::Running);
    stage.plan("half", json!({}), &[0, -1]);
    assert_eq!(stage.until_idle("keep").groups["half"].counts.different, 1);
    assert_eq!(promote(Promote { claiming: true, accept: true, ..Promote::default() }), State::Ended);
    let reason = stage.shadows.report("keep").unwrap().reason;
    assert_eq!(reason.as_deref(), Some("this version was promoted"));
    // By name, it ends with the last of its groups.
    let stage = Stage::with(vec![("keep", claimer("", ""))]);
    let groups = ["one".to_owned(), "two".to_owned()];
    stage.shadows.start("keep", &Wanted { groups: groups.clone().into(), ..Wanted::default() }).unwrap();
    for (group, expected) in groups.into_iter().zip([State::Running, State::Ended]) {
        let wish = Promote { groups: vec![group], accept: true, ..Promote::default() };
        stage.host.manager.promote("keep", wish).unwrap();
        stage.shadows.promoted("keep");
        assert_eq!(stage.shadows.report("keep").unwrap().state, expected);
    }
}

#[test]
fn a_planner_that_misbehaves_is_named_and_ends_its_own_shadow() {
    let sins = [("lie", LIE, "illegal"), ("crash", CRASH, "trap"), ("loop", LOOP, "timeout")];
    let fixture = Stage::with(sins.iter().map(|(name, plan, _)| (*name, claimer("", plan))).collect());
    for (name, _, expected) in sins {
        fixture.start(name);
        fixture.plan("harmless", json!({}), &[0]);
        for _ in 0..5 {
            fixture.plan(TROUBLE, json!({}), &[0, 1]);
        }
        let report = fixture.until(name, |report| report.state == State::Failed && report.waiting == 0);
        assert!(report.reason.unwrap().contains(expected), "{name}");
        assert_eq!(report.groups["harmless"].counts.same, 1, "{name}");
        let counts = &report.groups[TROUBLE].counts;
        assert!(counts.failed[expected] + counts.dropped <= 5, "{name}: {counts:?}");
        fixture.shadows.stop(name).unwrap();
    }
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let names = ["a", "b", "c", "d", "e"];
    let fixture = Stage::with(names.iter().map(|name| (*name, guest(LAST))).collect());
    let refused = |name: &str, wanted: Wanted| fixture.shadows.start(name, &wanted).unwrap_err();
    assert!(matches!(refused("nobody", Wanted::default()), Error::Unknown(_)));
    assert!(matches!(refused("base", Wanted::default()), Error::Serving(_)));
    let claiming = Wanted { claiming: Some(true), ..Wanted::default() };
    assert!(matches!(refused("a", claiming), Error::WrongRole { role: "claiming", .. }));
    names[..4].iter().for_each(|name| drop(fixture.start(name)));
    let error = refused("e", Wanted::default()).to_string();
    assert!(error.contains("4 shadows") && error.contains("a, b, c, d"), "{error}");
    // Beginning anew takes no room.
    fixture.start("d");
    fixture.shadows.stop("a").unwrap();
    fixture.start("e");
    assert!(matches!(fixture.shadows.stop("a"), Err(Error::NotRunning(_))));
}
