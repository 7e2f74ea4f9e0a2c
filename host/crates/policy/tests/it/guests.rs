//! Misbehaving guests: each is contained, named by its outcome, and changes nothing for others.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use fulcrum_core::scoring::{Loads, Request, flags};
use fulcrum_policy::seat::{ScoringFactory, ScoringSeat, Staged};
use fulcrum_policy::{Artifact, Failure, Limits, Loaded, Outcome, Runtime, proof};

/// What a guest's own comment says should happen to it.
fn expectation(text: &str) -> (&str, &str) {
    let line = text.lines().find_map(|line| line.strip_prefix(";; expect: ")).expect("every guest says it");
    line.split_once(' ').expect("two words")
}

fn guests() -> Vec<(String, String)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests");
    let mut guests: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap() != "base.wat")
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    guests.sort();
    guests
}

/// Loads, configures and proves, as a reload does; returns the code of the refusal.
fn load(runtime: &Arc<Runtime>, wasm: &[u8]) -> Result<Arc<Loaded>, String> {
    let loaded = Artifact::load(runtime, wasm)
        .and_then(|artifact| artifact.configured("guest", serde_json::json!({})))
        .and_then(|loaded| proof::run(&loaded, &TestClock::default()).map(|_| loaded));
    loaded.map(Arc::new).map_err(|refusal| {
        assert!(refusal.to_string().len() > 20, "a refusal explains itself: {refusal}");
        refusal.code().to_owned()
    })
}

#[test]
fn every_sin_is_contained_and_named() {
    let guests = guests();
    assert!(guests.len() > 20, "the guests are there");
    for (name, text) in guests {
        let (stage, expected) = expectation(&text);
        let runtime = if expected == "ok" { patient_runtime() } else { runtime() };
        let loaded = load(&runtime, &guest(&text));
        if stage == "load" {
            assert_eq!(loaded.err().as_deref(), Some(expected), "{name}");
            continue;
        }
        let loaded =
            loaded.unwrap_or_else(|code| panic!("{name} should pass the self-test, refused: {code}"));
        let roster = roster(3);
        let mut loads = Loads::unknown(3);
        loads.flags[1] |= flags::DEAD;
        let trouble = "x".repeat(66);
        let armed = Request { client_id: &trouble, ..Request::default() };
        let mut instance = loaded.make().unwrap();
        instance.roster(&roster).unwrap();
        instance.refresh(&loads).unwrap();
        let outcome = match stage {
            "explain" => instance.explain(&armed, &[]).map(|_| ()),
            _ => instance.recommend(&armed, &[]).and_then(|proposal| {
                fulcrum_core::scoring::verify(&roster, &loads, &[], proposal)
                    .map(|_| ())
                    .map_err(|illegal| Failure::Illegal(illegal.to_string()))
            }),
        };
        let found = outcome.as_ref().err().map_or(Outcome::Ok, Failure::outcome).name();
        assert_eq!(found, expected, "{name}: {outcome:?}");

        // In a seat: the fallback answers, a fresh instance takes over, and a harmless client notices nothing.
        let mut seat = ScoringSeat::new(Arc::new(|| {}));
        seat.install(Some(Staged {
            factory: loaded.clone(),
            instance: loaded.make().unwrap(),
            roster_revision: 0,
            probation: None,
            is_last_resort: false,
        }));
        let clock = TestClock::default();
        let view = view(&roster, &loads);
        if stage == "explain" {
            // However often that fails, the policy goes on deciding.
            for _ in 0..5 {
                let explanation = seat.explain(view, &armed, &clock);
                assert_eq!((explanation.by, explanation.rows.len()), (None, 2), "{name}");
            }
        } else {
            let decision = seat.decide(view, &armed, &clock).unwrap();
            assert_eq!(decision.outcome.name(), expected, "{name}");
            assert_eq!(decision.by.is_none(), expected != "ok", "{name}");
            assert_eq!(decision.recommendation.row, 0, "{name}");
        }
        let decision = seat.decide(view, &Request::default(), &clock).unwrap();
        assert_eq!(
            (decision.outcome, decision.recommendation.row),
            (Outcome::Ok, 0),
            "{name}: the next call"
        );
    }
}

#[test]
fn a_log_flood_is_cut_and_counted() {
    let text = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/log-flood.wat"),
    );
    let loaded = load(&patient_runtime(), &guest(&text.unwrap())).unwrap();
    let mut instance = loaded.make_scoring_for_tests();
    instance.roster(&roster(1)).unwrap();
    instance.refresh(&Loads::unknown(1)).unwrap();
    let id = "x".repeat(66);
    instance.recommend(&Request { client_id: &id, ..Request::default() }, &[]).unwrap();
    // The flood may span two windows of a second.
    let dropped = loaded.log_lines_dropped();
    assert!((1900..2000).contains(&dropped), "{dropped} of 2000 lines dropped");
}

#[test]
fn an_endless_loop_ends_within_its_deadline() {
    let text = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/loop-recommend.wat"),
    );
    let loaded = load(&runtime(), &guest(&text.unwrap())).unwrap();
    let mut instance = loaded.make_scoring_for_tests();
    instance.roster(&roster(1)).unwrap();
    instance.refresh(&Loads::unknown(1)).unwrap();
    let id = "x".repeat(66);
    let failure = instance.recommend(&Request { client_id: &id, ..Request::default() }, &[]).unwrap_err();
    assert_eq!(failure, Failure::Timeout { deadline_ms: 10 });
}

#[test]
fn what_a_guest_hands_over_is_bounded_before_it_is_read() {
    let log = include_str!("../guests/log-large.wat");
    let error = include_str!("../guests/error-large.wat");
    let check = |argument_bytes: usize, text: &str, len: usize, first: u8| {
        let limits = Limits { scoring_deadline: Duration::from_secs(2), argument_bytes, ..Limits::default() };
        let text = text.replace("0x1000000)", &format!("{len})")).replace("0xff)", &format!("{first})"));
        let loaded = load(&Runtime::new(limits).unwrap(), &guest(&text)).unwrap();
        let mut instance = loaded.make_scoring_for_tests();
        instance.roster(&roster(1)).unwrap();
        instance.refresh(&Loads::unknown(1)).unwrap();
        let id = "x".repeat(66);
        let answer = instance.recommend(&Request { client_id: &id, ..Request::default() }, &[]);
        answer.map(|_| ()).map_err(|failure| (failure.outcome().name(), failure.to_string()))
    };
    let (bound, large) = (Limits::default().argument_bytes, 16 << 20);
    let limit = |text: &str| Err(("limit", format!("hit a limit: {text}")));
    let call = "a call into the host carried more than 64 KiB";
    assert_eq!(check(bound, log, bound, b'x'), Ok(()));
    let read = check(bound, log, bound, 0xff).unwrap_err();
    assert!(read.0 == "trap" && read.1.contains("in a call into the host: invalid utf-8"), "{read:?}");
    // What is no text is not found any more: nobody looked.
    for len in [bound + 1, large] {
        assert_eq!(check(bound, log, len, 0xff), limit(call), "{len}");
    }
    assert_eq!(check(large, log, large, b'x'), Ok(()));
    assert_eq!(check(bound, error, bound, 0).unwrap_err().0, "error");
    for len in [bound + 1, large] {
        assert_eq!(check(bound, error, len, 0), limit("the answer is larger than 64 KiB"), "{len}");
    }
    assert_eq!(check(large, error, large, 0).unwrap_err().0, "error");
}
