//! A runtime whose guests are bounded by fuel: the same answers, an end that does not depend on the clock, and compiled
//! code of its own.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{guest, roster};
use fulcrum_core::scoring::{Loads, Request};
use fulcrum_policy::runtime::{Bound, Options};
use fulcrum_policy::seat::ScoringFactory as _;
use fulcrum_policy::{Artifact, Cache, Failure, Limits, Loaded, Runtime, cache};
use serde_json::json;

const PER_MS: u64 = 10_000;

fn fuel(cache: Option<Arc<Cache>>, scoring_deadline: Duration) -> Arc<Runtime> {
    let limits = Limits { scoring_deadline, ..Limits::default() };
    Runtime::with(limits, Options { bound: Bound::Fuel(PER_MS), cache, ..Options::default() }).unwrap()
}

fn load(runtime: &Arc<Runtime>, sin: &str) -> Loaded {
    Artifact::load(runtime, &guest(sin)).unwrap().configured("mine", json!({})).unwrap()
}

/// What one call gives for a client whose name provokes the guest, or does not.
fn ask(loaded: &Loaded, client_id: &str) -> Result<u32, Failure> {
    let mut instance = loaded.make()?;
    instance.roster(&roster(3))?;
    instance.refresh(&Loads::unknown(3))?;
    instance.recommend(&Request { client_id, ..Request::default() }, &[]).map(|proposal| proposal.row)
}

#[test]
fn a_loop_ends_by_fuel() {
    // A clock that counted would end the call after a nanosecond, or the test never.
    for (deadline, units) in [(Duration::from_nanos(1), PER_MS), (Duration::from_millis(70), 70 * PER_MS)] {
        let runtime = fuel(None, deadline);
        let loaded = load(&runtime, include_str!("../guests/loop-recommend.wat"));
        assert_eq!(ask(&loaded, ""), Ok(0));
        let expected = Failure::Limit(format!("used more than {units} instructions of fuel"));
        assert_eq!(ask(&loaded, &"x".repeat(66)), Err(expected));
        assert_eq!(ask(&loaded, ""), Ok(0), "the next instance has fuel of its own");
    }
}

#[test]
fn each_call_has_fuel_of_its_own() {
    let runtime = fuel(None, Duration::from_millis(1));
    let mut instance = load(&runtime, "").make().unwrap();
    instance.roster(&roster(3)).unwrap();
    for _ in 0..PER_MS {
        instance.refresh(&Loads::unknown(3)).unwrap();
        instance.recommend(&Request::default(), &[]).unwrap();
    }
}

#[test]
fn compiled_code_of_both_bounds_is_kept_apart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let settings = cache::Settings {
            folder: folder.path().join("compiled"),
            bytes_max: 1 << 30,
            fresh_key: [7; 32],
        };
        Cache::open(settings).unwrap()
    };
    let timed = |cache: &Arc<Cache>| {
        let options = Options { cache: Some(cache.clone()), ..Options::default() };
        load(&Runtime::with(Limits::default(), options).unwrap(), "")
    };
    let first = open();
    assert_eq!(ask(&timed(&first), ""), Ok(0));
    assert_eq!((first.counts().hits, first.counts().stored), (0, 1));
    let second = open();
    assert_eq!(ask(&load(&fuel(Some(second.clone()), Duration::from_millis(10)), ""), ""), Ok(0));
    assert_eq!((second.counts().hits, second.counts().stored, second.counts().refused), (0, 1, 0));
    let third = open();
    assert_eq!(ask(&timed(&third), ""), Ok(0));
    assert_eq!(ask(&load(&fuel(Some(third.clone()), Duration::from_millis(10)), ""), ""), Ok(0));
    assert_eq!((third.counts().hits, third.counts().misses), (2, 0));
}
