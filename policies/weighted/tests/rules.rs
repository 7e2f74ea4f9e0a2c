//! Table-style rules and properties of `weighted`, driven natively through the trait.

use fulcrum_guest::testing::{self, idle, rows};
use fulcrum_guest::{Error, Loads, Recommendation, Request, Scoring, flag};
use proptest::prelude::*;
use weighted::logic::Weighted;

fn policy(config: &str, capacities: &[f64], loads: Loads) -> Weighted {
    testing::policy(config, capacities, loads)
}

fn check(config: &str, capacities: &[f64], loads: Loads, request: &Request<'_>, row: u32, score: f64) {
    let mut policy = policy(config, capacities, loads);
    let explained = policy.explain(request).expect("explains");
    // `explain` counted `committed` already.
    let again = Request { committed: &[], ..*request };
    assert_eq!(policy.recommend(&again), Ok(Recommendation { row, score }), "{config} {request:?}");
    let parts = explained.iter().find(|parts| parts.row == row).expect("the chosen row is explained");
    assert_eq!(parts.score, score);
    let sum: f64 = parts.parts.iter().map(|(_, value)| value).sum();
    assert!((sum - score).abs() <= 1e-9 * score.abs(), "{parts:?}");
}

#[test]
fn adds_the_named_terms() {
    let ask = Request::default();
    check("{}", &[1.0], Loads { sessions: vec![7], ..idle(1) }, &ask, 0, 7.0);
    check("{}", &[1.0], Loads { pending: vec![3], ..idle(1) }, &ask, 0, 3.0);
    check("{}", &[2.0], Loads { sessions: vec![7], pending: vec![3], ..idle(1) }, &ask, 0, 5.0);
    check("{}", &[2.0], Loads { inflow: vec![1000.0], outflow: vec![500.0], ..idle(1) }, &ask, 0, 1.5);
    check("{}", &[2.0], Loads { cpu: vec![0.5], ..idle(1) }, &ask, 0, 500.0);
    check("{}", &[1.0], Loads { cpu: vec![0.8], ..idle(1) }, &ask, 0, 800.0);
    check("{}", &[1.0], Loads { cpu: vec![0.9], ..idle(1) }, &ask, 0, 10_900.0);
    check(r#"{"overload":"smooth"}"#, &[1.0], Loads { cpu: vec![0.8], ..idle(1) }, &ask, 0, 5800.0);
    check("{}", &[1.0], Loads { flags: vec![flag::UNKNOWN], ..idle(1) }, &ask, 0, 500.0);
    check("{}", &[4.0], Loads { flags: vec![flag::UNKNOWN], pending: vec![6], ..idle(1) }, &ask, 0, 501.5);
    check(
        r#"{"unknownScore":1,"pendingWeight":2}"#,
        &[1.0],
        Loads { flags: vec![1], pending: vec![6], ..idle(1) },
        &ask,
        0,
        13.0,
    );
}

#[test]
fn spreads_a_big_client() {
    let ask = Request {
        session_rows: &[0, 2],
        session_counts: &[3, 1],
        client_inflow: 6000.0,
        client_outflow: 2000.0,
        ..Request::default()
    };
    // Each of its sessions costs 1 + 0.001 * 8000 / 4 = 3 points where it is.
    check("{}", &[1.0, 1.0, 1.0], Loads { sessions: vec![0, 10, 4], ..idle(3) }, &ask, 2, 7.0);
    check("{}", &[1.0, 1.0, 1.0], Loads { sessions: vec![0, 8, 6], ..idle(3) }, &ask, 1, 8.0);
    check(
        r#"{"clientTrafficWeight":0}"#,
        &[1.0; 3],
        Loads { sessions: vec![0, 8, 6], ..idle(3) },
        &ask,
        0,
        3.0,
    );
    check(
        r#"{"clientTrafficWeight":0,"clientSessionWeight":0}"#,
        &[1.0; 3],
        Loads { sessions: vec![0, 8, 6], ..idle(3) },
        &ask,
        0,
        0.0,
    );
}

#[test]
fn never_takes_a_row_it_must_not() {
    let loads = || Loads { flags: vec![flag::DEAD, flag::DRAINING, 0, 0, flag::UNKNOWN], ..idle(5) };
    check("{}", &[1.0; 5], loads(), &Request::default(), 2, 0.0);
    check("{}", &[1.0; 5], loads(), &Request { avoid: &[2], ..Request::default() }, 3, 0.0);
    check("{}", &[1.0; 5], loads(), &Request { avoid: &[2, 3], ..Request::default() }, 4, 500.0);
    let mut all = policy("{}", &[1.0; 5], loads());
    let avoid = Request { avoid: &[2, 3, 4], ..Request::default() };
    assert_eq!(all.recommend(&avoid), Err(Error::NoCandidate));
    assert_eq!(all.explain(&avoid), Ok(Vec::new()));
    assert_eq!(all.recommend(&Request::default()).map(|answer| answer.row), Ok(2), "nothing stays covered");
}

#[test]
fn equal_costs_go_to_the_lowest_row() {
    for rows in [1, 15, 16, 17, 100] {
        let loads = Loads { sessions: vec![5; rows], ..idle(rows) };
        check("{}", &vec![1.0; rows], loads, &Request::default(), 0, 5.0);
    }
}

#[test]
fn refuses_bad_configuration_by_name() {
    for (config, field) in [
        (r#"{"sessionWeight":-1}"#, "sessionWeight "),
        (r#"{"byteWeight":"x"}"#, "byteWeight "),
        (r#"{"cpuThreshold":0}"#, "cpuThreshold "),
        (r#"{"overload":"soft"}"#, "overload "),
        (r#"{"choices":2}"#, "choices "),
        ("7", "the configuration "),
    ] {
        match Weighted::configure(config) {
            Err(Error::InvalidConfig(text)) => assert!(text.starts_with(field), "{config}: {text}"),
            other => panic!("{config}: {other:?}"),
        }
    }
}

#[test]
fn refuses_bad_input_and_keeps_its_state() {
    let mut kept = policy("{}", &[1.0, 1.0], Loads { sessions: vec![2, 1], ..idle(2) });
    let invalid = |answer: Result<Recommendation, Error>| matches!(answer, Err(Error::InvalidInput(_)));
    let base = Request { committed: &[1, 1, 1, 1], ..Request::default() };
    for request in [
        Request { avoid: &[2], ..base },
        Request { avoid: &[1, 0], ..base },
        Request { avoid: &[1, 1], ..base },
        Request { session_rows: &[0], ..base },
        Request { session_rows: &[2], session_counts: &[1], ..base },
        Request { session_rows: &[0], session_counts: &[0], ..base },
        Request { client_inflow: f64::NAN, ..base },
        Request { client_outflow: -1.0, ..base },
        Request { committed: &[1, 1, 1, 2], ..base },
    ] {
        assert!(invalid(kept.recommend(&request)), "{request:?}");
    }
    for loads in [
        idle(3),
        Loads { pending: vec![], ..idle(2) },
        Loads { cpu: vec![0.0, f64::NAN], ..idle(2) },
        Loads { inflow: vec![0.0, -1.0], ..idle(2) },
        Loads { outflow: vec![0.0, f64::INFINITY], ..idle(2) },
    ] {
        assert!(matches!(kept.refresh(loads), Err(Error::InvalidInput(_))));
    }
    assert!(matches!(kept.roster(rows(&[0.0])), Err(Error::InvalidInput(_))));
    assert_eq!(kept.recommend(&Request::default()), Ok(Recommendation { row: 1, score: 1.0 }));
    kept.roster(rows(&[1.0])).expect("a good roster");
    assert!(invalid(kept.recommend(&Request::default())), "the loads are forgotten");
}

#[test]
fn does_not_herd() {
    let mut policy = policy("{}", &[1.0; 3], idle(3));
    let mut given = [0_i32; 3];
    let mut committed = Vec::new();
    for _ in 0..300 {
        let row = policy
            .recommend(&Request { committed: &committed, ..Request::default() })
            .expect("rows live")
            .row;
        committed = vec![row];
        given[row as usize] += 1;
        let gap = given.iter().max().expect("3 rows") - given.iter().min().expect("3 rows");
        assert!(gap <= 3, "{given:?}");
    }
    assert_eq!(given, [100; 3]);
}

#[test]
fn schema_defaults_are_the_defaults() {
    let schema: serde_json::Value = serde_json::from_str(Weighted::describe().config_schema).expect("JSON");
    let properties = schema["properties"].as_object().expect("properties");
    let explicit: serde_json::Map<_, _> =
        properties.iter().map(|(name, property)| (name.clone(), property["default"].clone())).collect();
    let explicit = serde_json::Value::Object(explicit).to_string();
    let explicit = Weighted::configure(&explicit).expect("every default is acceptable");
    let implicit = Weighted::configure("{}").expect("empty is acceptable");
    assert_eq!(format!("{explicit:?}"), format!("{implicit:?}"));
}

#[test]
fn scores_like_eventmesh() {
    let text = include_str!("../../../tests/vectors/eventmesh/recommend.json");
    let vectors: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let mut checked = 0;
    for case in vectors["cases"].as_array().expect("cases") {
        let live = case["expect"]["live"].as_object().expect("live rows");
        let mut loads = Loads::default();
        let mut refused = false;
        for id in live.keys() {
            let record =
                case["heartbeats"].as_array().expect("records").iter().find(|record| record["id"] == **id);
            let value = record.expect("a live row has a record")["value"].as_str().expect("a text");
            let fields: Vec<&str> = value.split('|').skip(2).map(str::trim).collect();
            let known = live[id]["load_known"].as_bool().expect("a flag");
            let number = |at: usize| match fields.get(at) {
                Some(field) if known => field.parse::<f64>().expect("a number"),
                _ => 0.0,
            };
            refused |= !(0..4).all(|at| 0.0 <= number(at));
            loads.sessions.push(number(0) as u32);
            loads.inflow.push(number(1));
            loads.outflow.push(number(2));
            loads.cpu.push(number(3));
            loads.heartbeat_age_ms.push(0);
            loads.pending.push(0);
            loads.flags.push(if known { 0 } else { flag::UNKNOWN });
        }
        if refused || live.is_empty() {
            continue;
        }
        checked += 1;
        let mut policy = policy("{}", &vec![1.0; live.len()], loads);
        let answer = policy.recommend(&Request::default()).expect("somebody is alive");
        let ids: Vec<&String> = live.keys().collect();
        let tied = case["expect"]["tied"].as_array().expect("winners");
        assert!(tied.iter().any(|id| *id == **ids[answer.row as usize]), "{}", case["name"]);
        for parts in policy.explain(&Request::default()).expect("explains") {
            let expected = live[ids[parts.row as usize]]["score"].as_f64().expect("a score");
            assert!((parts.score - expected).abs() <= 1e-9 * expected.abs(), "{}: {parts:?}", case["name"]);
        }
    }
    assert!(95 <= checked, "only {checked} cases were usable");
}

proptest! {
    #[test]
    fn holds_the_law_and_takes_the_cheapest(
        world in testing::worlds(),
        calls in testing::calls(),
        config in prop::sample::select(vec!["{}", r#"{"overload":"smooth","byteWeight":0}"#]),
    ) {
        testing::check::<Weighted>(config, &world, &calls, |answer, explained, _| {
            // `min_by` keeps the first of equal rows, and the rows are in roster order.
            let best = explained.iter().min_by(|a, b| a.score.total_cmp(&b.score)).expect("a row was chosen");
            assert_eq!((answer.row, answer.score.to_bits()), (best.row, best.score.to_bits()));
        });
    }
}
