//! Rules and properties of `p2c`, driven natively through the trait.

use fulcrum_guest::testing::{self, idle, policy};
use fulcrum_guest::{Error, Loads, Request, Scoring, flag};
use p2c::logic::P2c;
use proptest::prelude::*;

#[test]
fn does_not_herd() {
    for seed in 0..32 {
        let mut policy: P2c = policy("{}", &[1.0; 3], idle(3));
        let mut given = [0_u32; 3];
        let mut committed = Vec::new();
        for arrival in 0..300 {
            let request =
                Request { committed: &committed, seed: seed * 1000 + arrival, ..Request::default() };
            let row = policy.recommend(&request).expect("rows live").row;
            committed = vec![row];
            given[row as usize] += 1;
        }
        let gap = given.iter().max().expect("3 rows") - given.iter().min().expect("3 rows");
        assert!(gap <= 5, "seed {seed}: {given:?}");
    }
}

#[test]
fn shares_equal_rows_evenly_and_others_by_capacity() {
    let check = |config: &str, capacities: &[f64], expected: &[u32]| {
        let mut policy: P2c = policy(config, capacities, idle(capacities.len()));
        let mut drawn = vec![0_u32; capacities.len()];
        for seed in 0..10_000 {
            drawn[policy.recommend(&Request { seed, ..Request::default() }).expect("rows live").row
                as usize] += 1;
        }
        assert!(
            drawn.iter().zip(expected).all(|(drawn, expected)| drawn.abs_diff(*expected) < 200),
            "{drawn:?}"
        );
    };
    // Nothing is counted here, so all rows cost the same and the first one drawn wins.
    check("{}", &[1.0; 4], &[2500; 4]);
    check(r#"{"choices":1}"#, &[1.0, 2.0, 5.0, 2.0], &[1000, 2000, 5000, 2000]);
}

#[test]
fn finds_the_one_legal_row() {
    let rows = 200;
    let mut capacities = vec![1e6; rows];
    capacities[137] = 1e-6;
    let avoid: Vec<u32> = (0..rows as u32).filter(|&row| row != 137).collect();
    let mut all: P2c = policy("{}", &capacities, idle(rows));
    for seed in 0..50 {
        let answer = all.recommend(&Request { avoid: &avoid, seed, ..Request::default() });
        assert_eq!(answer.map(|answer| answer.row), Ok(137));
    }
    let mut none: P2c = policy("{}", &[1.0; 2], Loads { flags: vec![flag::DEAD, flag::DRAINING], ..idle(2) });
    assert_eq!(none.recommend(&Request::default()), Err(Error::NoCandidate));
    assert_eq!(none.explain(&Request::default()), Ok(Vec::new()));
}

#[test]
fn refuses_bad_configuration_by_name() {
    for (config, field) in [
        (r#"{"choices":0}"#, "choices "),
        (r#"{"choices":17}"#, "choices "),
        (r#"{"choices":2.5}"#, "choices "),
        (r#"{"pendingWeight":-0.1}"#, "pendingWeight "),
        (r#"{"other":1}"#, "other "),
    ] {
        match P2c::configure(config) {
            Err(Error::InvalidConfig(text)) => assert!(text.starts_with(field), "{config}: {text}"),
            other => panic!("{config}: {other:?}"),
        }
    }
}

#[test]
fn schema_defaults_are_the_defaults() {
    let schema: serde_json::Value = serde_json::from_str(P2c::describe().config_schema).expect("JSON");
    let properties = schema["properties"].as_object().expect("properties");
    let explicit: serde_json::Map<_, _> =
        properties.iter().map(|(name, property)| (name.clone(), property["default"].clone())).collect();
    let explicit = serde_json::Value::Object(explicit).to_string();
    let explicit = P2c::configure(&explicit).expect("every default is acceptable");
    let implicit = P2c::configure("{}").expect("empty is acceptable");
    assert_eq!(format!("{explicit:?}"), format!("{implicit:?}"));
}

proptest! {
    #[test]
    fn holds_the_law_and_stays_legal(
        world in testing::worlds(),
        calls in testing::calls(),
        config in prop::sample::select(vec!["{}", r#"{"choices":1}"#, r#"{"choices":16,"overload":"cliff"}"#]),
    ) {
        testing::check::<P2c>(config, &world, &calls, |answer, explained, _| {
            if config.contains("16") && explained.len() <= 16 {
                // Every row is looked at, so the cheapest wins.
                let best = explained.iter().map(|parts| parts.score).fold(f64::INFINITY, f64::min);
                assert_eq!(answer.score.to_bits(), best.to_bits());
            }
        });
    }
}
