//! Plans in service: how many instances they take, what becomes of a policy that keeps failing at them, and what they
//! wait for.

use std::sync::{Barrier, mpsc};
use std::time::Duration;

use crate::fixture::{Fixture, Setup};
use crate::lifecycle::*;
use crate::support::testing::cycle;
use crate::support::*;
use fulcrum_core::claiming::Cycle;
use fulcrum_policy::artifact::digest;
use fulcrum_policy::planner::{Planned, Wish};
use fulcrum_policy::status::{Rebind, Source, State, Status};
use fulcrum_policy::{Artifact, Limits, Loaded, Outcome, Planner, Runtime};
use serde_json::{Value, json};

/// Longest wait for what should come at once.
const SOON: Duration = Duration::from_secs(20);

fn planner(fixture: &Fixture) -> Planner {
    Planner::new(fixture.manager.clone(), fixture.clock.clone())
}

/// Plans a group of one member; its name provokes `claims(true)` when it has 66 bytes.
fn plan(planner: &Planner, group: &str, config: Value) -> Planned {
    let cycle = Cycle { group: group.to_owned(), ..cycle(1, &[]) };
    planner.plan(group, &Wish { policy: None, config }, &cycle)
}

fn by(planned: &Planned) -> &str {
    planned.by.as_ref().map_or("", |by| &by.name)
}

/// Takes what is left of the pool, one instance each.
fn fill(loaded: &Loaded) -> Vec<impl Send + use<>> {
    std::iter::from_fn(|| loaded.make_claiming().ok()).collect()
}

/// A claiming policy to take instances of.
fn filler() -> Loaded {
    Artifact::load(&runtime(), &claims(false)).unwrap().configured("filler", json!({})).unwrap()
}

/// A host that plans with `claims` and scores with a policy that crashes when it is armed.
fn host() -> Fixture {
    let fixture = Fixture::start();
    fixture.push("claims", component(&claims(false))).unwrap();
    fixture.push("mine", component(&guest(TRAP))).unwrap();
    fixture.bind("mine").unwrap();
    fixture
}

#[test]
fn configurations_of_groups_leave_room_for_everything_else() {
    let fixture = host();
    let planner = planner(&fixture);
    for number in 0..100 {
        // Two groups for each of them, and the first one again and again.
        for group in ["g", "h"] {
            assert_eq!(by(&plan(&planner, group, json!({ "a": number }))), "claims", "{number}");
        }
        assert_eq!(by(&plan(&planner, "i", json!({}))), "claims", "{number}");
    }
    fixture.drop_file("other.wasm", &guest(LAST));
    assert_eq!(fixture.problem("other"), None);
    fixture.push("third", candidate(component(&guest(LAST)))).unwrap();
    // A crash, and the place of the instance is taken at once by whoever wants it.
    assert_eq!(fixture.decide(&armed()).outcome, Outcome::Trap);
    for number in 100..120 {
        assert_eq!(by(&plan(&planner, "g", json!({ "a": number }))), "claims", "{number}");
    }
    assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))));
}

#[test]
fn instances_that_nobody_asks_for_are_let_go() {
    let fixture = host();
    let planner = planner(&fixture);
    let filler = filler();
    let before = fill(&filler).len();
    for number in 0..10 {
        plan(&planner, "g", json!({ "a": number }));
    }
    assert_eq!(fill(&filler).len(), before - 10);
    // Nobody plans any more: to look how things are is enough.
    fixture.clock.advance(Duration::from_secs(61));
    drop(planner.statuses());
    assert_eq!(fill(&filler).len(), before);
}

#[test]
fn many_groups_at_once_wait_for_each_other() {
    const GROUPS: usize = 12;
    // Plans have one place of these.
    let limits = Limits { instances: 4, claiming_deadline: Duration::from_secs(60), ..Limits::default() };
    let setup = Setup { runtime: Runtime::new(limits).unwrap(), ..Setup::default() };
    let fixture = Fixture::set_up(tempfile::tempdir().unwrap(), setup, |_| {});
    fixture.push("claims", component(&claims(false))).unwrap();
    let planner = planner(&fixture);
    let barrier = Barrier::new(GROUPS);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..GROUPS)
            .map(|number| {
                let (planner, barrier) = (&planner, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    (0..5)
                        .map(|round| plan(planner, "g", json!({ "a": number, "b": round })).outcome)
                        .collect()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| -> Vec<_> { thread.join().unwrap() }).collect()
    });
    assert_eq!(outcomes, [Outcome::Ok; GROUPS * 5]);
}

#[test]
fn want_of_room_counts_against_nobody_and_passes_by_itself() {
    let fixture = Fixture::restart_with(tempfile::tempdir().unwrap(), |settings| {
        settings.poll = Duration::from_millis(20);
    });
    fixture.push("claims", component(&claims(false))).unwrap();
    fixture.push("mine", component(&guest(TRAP))).unwrap();
    fixture.bind("mine").unwrap();
    let planner = planner(&fixture);
    assert_eq!(fixture.decide(&armed()).outcome, Outcome::Trap);
    let full = fill(&filler());
    for _ in 0..100 {
        assert_eq!(fixture.decide("").outcome, Outcome::Open);
    }
    let planned = plan(&planner, "g", json!({}));
    assert_eq!((planned.outcome, planned.by), (Outcome::Open, None));
    let problem = planned.problem.unwrap();
    assert!(problem.starts_with("found no room for another instance: "), "{problem}");
    fixture.drop_file("other.wasm", &guest(LAST));
    let problem = fixture.status("other").problem.unwrap();
    assert_eq!(problem.code, "no_room", "{}", problem.message);
    assert_eq!(fixture.code("third", component(&guest(LAST))), "no_room");
    drop(full);
    assert_eq!((fixture.decide("").outcome, by(&plan(&planner, "g", json!({})))), (Outcome::Ok, "claims"));
    fixture.until("the file is tried again", |fixture| {
        fixture.clock.advance(Duration::from_millis(1));
        fixture.problem("other").is_none()
    });
    assert_eq!(fixture.status("other").source, Source::File);
}

#[test]
fn a_trial_without_room_is_put_off() {
    let fixture = host();
    (0..3).for_each(|_| assert_eq!(fixture.decide(&armed()).outcome, Outcome::Trap));
    assert_eq!(fixture.status("mine").state, State::Open);
    let full = fill(&filler());
    for _ in 0..6 {
        fixture.clock.advance(Duration::from_secs(31));
        drop(fixture.manager.reload());
    }
    assert_eq!((fixture.status("mine").state, fixture.problem("mine")), (State::Open, None));
    drop(full);
    for _ in 0..20 {
        fixture.clock.advance(Duration::from_secs(31));
        drop(fixture.manager.reload());
    }
    assert_eq!(fixture.problem("mine").as_deref(), Some("quarantined"), "with room it fails each time");
}

/// Lets a bound claiming policy fail until its breaker gave it up, and the task has heard of it.
fn wear_out(fixture: &Fixture, planner: &Planner, name: &str) {
    let trap = |expected| assert_eq!(plan(planner, &armed(), json!({})).outcome, expected);
    (0..3).for_each(|_| trap(Outcome::Trap));
    trap(Outcome::Open);
    let status = |planner: &Planner| -> Status {
        planner.statuses().into_iter().find(|status| status.name == name).unwrap()
    };
    let told = status(planner);
    assert_eq!((told.state, told.problem.is_none()), (State::Open, true));
    let last = told.last_failure.unwrap_or_default();
    assert!(last.starts_with("trap: crashed: wasm `unreachable`"), "{last}");
    for pause in [1, 2, 4, 8, 16] {
        fixture.clock.advance(Duration::from_secs(pause));
        trap(Outcome::Trap);
    }
    drop(fixture.manager.reload());
}

#[test]
fn a_policy_that_keeps_failing_at_plans_ends_in_quarantine_until_its_file_is_removed() {
    let fixture = Fixture::start();
    let planner1 = planner(&fixture);
    fixture.drop_file("claims.wasm", &claims(true));
    assert_eq!(by(&plan(&planner1, "good", json!({ "a": 1 }))), "claims");
    wear_out(&fixture, &planner1, "claims");
    let status = fixture.status("claims");
    let problem = status.problem.unwrap();
    assert_eq!((status.state, problem.code.as_str()), (State::Quarantined, "quarantined"));
    assert_eq!(problem.digest, digest(&claims(true)));
    let planned = plan(&planner1, "good", json!({}));
    assert_eq!(planned.by, None);
    assert!(planned.problem.is_some_and(|problem| problem.contains("is in quarantine")));

    // It stays out over a restart, and until the file is removed.
    let fixture = Fixture::restart(fixture.stop());
    let planner2 = planner(&fixture);
    fixture.settle();
    assert_eq!(fixture.problem("claims").as_deref(), Some("quarantined"));
    assert_eq!(by(&plan(&planner2, "good", json!({}))), "");
    fixture.remove("claims.wasm");
    fixture.drop_file("claims.wasm", &claims(true));
    assert_eq!(fixture.problem("claims"), None);
    assert_eq!(by(&plan(&planner2, "good", json!({}))), "claims");
    // Also where nothing was planned in between, and with the same planner.
    wear_out(&fixture, &planner2, "claims");
    assert_eq!(fixture.problem("claims").as_deref(), Some("quarantined"));
    fixture.remove("claims.wasm");
    fixture.drop_file("claims.wasm", &claims(true));
    assert_eq!(by(&plan(&planner2, "good", json!({}))), "claims");
    assert_eq!(plan(&planner2, &armed(), json!({})).outcome, Outcome::Trap, "its breaker is closed");
}

#[test]
fn a_name_in_quarantine_goes_back_to_the_policy_of_the_host() {
    let setup = Setup { embedded: vec![("claims", claims(false))], ..Setup::default() };
    let fixture = Fixture::set_up(tempfile::tempdir().unwrap(), setup, |_| {});
    let planner = planner(&fixture);
    fixture.drop_file("claims.wasm", &claims(true));
    wear_out(&fixture, &planner, "claims");
    let planned = plan(&planner, &armed(), json!({}));
    assert_eq!(planned.by.unwrap().digest, digest(&claims(false)));
    let status = fixture.status("claims");
    assert_eq!((status.source, status.problem.unwrap().code.as_str()), (Source::Embedded, "quarantined"));
}

#[test]
fn the_policy_of_the_host_is_tried_again_however_often_it_fails() {
    let setup = Setup { embedded: vec![("claims", claims(true))], ..Setup::default() };
    let fixture = Fixture::set_up(tempfile::tempdir().unwrap(), setup, |_| {});
    let planner = planner(&fixture);
    wear_out(&fixture, &planner, "claims");
    for _ in 0..20 {
        fixture.clock.advance(Duration::from_secs(32));
        assert_eq!(plan(&planner, &armed(), json!({})).outcome, Outcome::Trap);
    }
    assert_eq!(fixture.problem("claims"), None);
    fixture.clock.advance(Duration::from_secs(32));
    assert_eq!(by(&plan(&planner, "good", json!({}))), "claims");
}

#[test]
fn trials_at_once_count_once() {
    const GROUPS: usize = 12;
    let fixture = Fixture::start();
    let planner = planner(&fixture);
    fixture.drop_file("claims.wasm", &claims(true));
    (0..3).for_each(|_| drop(plan(&planner, &armed(), json!({}))));
    fixture.clock.advance(Duration::from_secs(1));
    let barrier = Barrier::new(GROUPS);
    std::thread::scope(|scope| {
        for _ in 0..GROUPS {
            scope.spawn(|| {
                barrier.wait();
                plan(&planner, &armed(), json!({}))
            });
        }
    });
    drop(fixture.manager.reload());
    assert_eq!(fixture.problem("claims"), None, "that was the second opening at most");
    fixture.clock.advance(Duration::from_secs(2));
    assert_eq!(by(&plan(&planner, "good", json!({}))), "claims");
}

#[test]
fn no_plan_waits_for_the_proof_of_another_policy() {
    let embedded = vec![("claims", claims(false)), ("spare", claims(true))];
    let setup = Setup { embedded, ..Setup::default() };
    let fixture = Fixture::set_up(tempfile::tempdir().unwrap(), setup, |_| {});
    assert_eq!(fixture.status("claims").state, State::Live, "what is bound was loaded at the start");
    assert_eq!(fixture.status("spare").state, State::Available);
    let planner = planner(&fixture);
    // A file that is being proven, for as long as the gate is shut; and a task that gets no further than to the seat.
    let (gate, seat) = (fixture.host.gate.lock(), fixture.host.seat.lock());
    let snapshots = fixture.host.snapshots.load(std::sync::atomic::Ordering::Relaxed);
    let beside = fixture.path(".slow.wasm");
    std::fs::write(&beside, guest(LAST)).unwrap();
    std::fs::rename(&beside, fixture.path("slow.wasm")).unwrap();
    std::thread::scope(|scope| {
        let (sender, answers) = mpsc::sync_channel(4);
        let planner = &planner;
        scope.spawn(move || {
            let wish = |policy: &str| Wish { policy: Some(policy.to_owned()), config: json!({}) };
            sender.send(by(&plan(planner, "g", json!({}))).to_owned()).unwrap();
            let cycle = cycle(1, &[]);
            sender.send(by(&planner.plan("g", &wish("spare"), &cycle)).to_owned()).unwrap();
            sender.send(planner.version("g", &wish("nobody")).unwrap_err()).unwrap();
            sender.send(planner.version("g", &wish("base")).unwrap_err()).unwrap();
        });
        let answers: Vec<_> = (0..4).map(|_| answers.recv_timeout(SOON)).collect();
        let is_at_it = fixture.host.snapshots.load(std::sync::atomic::Ordering::Relaxed) == snapshots;
        drop((gate, seat));
        let expected =
            ["claims", "spare", "it does not exist", "the policy `base` does not offer the claiming role"];
        assert_eq!(answers, expected.map(|text| Ok(text.to_owned())));
        assert!(is_at_it, "the proof waits still");
    });
    fixture.settle();
    assert_eq!((fixture.problem("slow"), fixture.status("spare").state), (None, State::Ready));
    let claiming = Rebind { claiming: Some("spare".to_owned()), ..Rebind::default() };
    fixture.manager.bind(claiming).unwrap();
    assert_eq!(by(&plan(&planner, "g", json!({}))), "spare");
}
