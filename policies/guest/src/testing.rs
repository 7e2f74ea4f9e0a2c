//! Worlds to test a scoring policy with, and the properties every one of them must have; for the claiming role see
//! [`claiming`].

pub mod claiming;

use proptest::prelude::*;

use crate::{Error, Loads, Recommendation, Request, Row, ScoreParts, Scoring, flag};

/// Makes a roster of these capacities; ids ascend.
#[must_use]
pub fn rows(capacities: &[f64]) -> Vec<Row> {
    let row = |(index, &capacity): (usize, &f64)| Row {
        id: format!("i{index:04}"),
        zone: String::new(),
        capacity,
        labels: Vec::new(),
        age_ms: 0,
    };
    capacities.iter().enumerate().map(row).collect()
}

/// Makes the loads of `rows` idle instances.
#[must_use]
pub fn idle(rows: usize) -> Loads {
    Loads {
        sessions: vec![0; rows],
        inflow: vec![0.0; rows],
        outflow: vec![0.0; rows],
        cpu: vec![0.0; rows],
        heartbeat_age_ms: vec![0; rows],
        pending: vec![0; rows],
        flags: vec![0; rows],
    }
}

/// Makes a policy that knows a roster and its loads.
///
/// # Panics
///
/// If the policy refuses any of it.
#[must_use]
pub fn policy<P: Scoring>(config: &str, capacities: &[f64], loads: Loads) -> P {
    let mut policy = P::configure(config).expect("the configuration is good");
    policy.roster(rows(capacities)).expect("the roster is good");
    policy.refresh(loads).expect("the loads are good");
    policy
}

/// Capacities and loads of one roster.
pub type World = (Vec<f64>, Loads);

/// Any loads inside the contract's ranges, extremes included.
pub fn worlds() -> impl Strategy<Value = World> {
    (1_usize..40).prop_flat_map(|rows| {
        (
            prop::collection::vec(
                prop_oneof![3 => Just(1.0), 3 => 0.1..8.0, 1 => Just(1e-300), 1 => Just(1e300)],
                rows,
            ),
            prop::collection::vec(prop_oneof![4 => 0_u32..50, 1 => Just(u32::MAX)], rows),
            prop::collection::vec(amounts(), rows),
            prop::collection::vec(amounts(), rows),
            prop::collection::vec(0.0..=1.0, rows),
            prop::collection::vec(prop_oneof![4 => 0_u32..9, 1 => Just(u32::MAX)], rows),
            prop::collection::vec(prop_oneof![2 => Just(0), 1 => 0_u8..8], rows),
            prop::collection::vec(any::<u32>(), rows),
        )
            .prop_map(
                |(capacities, sessions, inflow, outflow, cpu, pending, flags, heartbeat_age_ms)| {
                    (capacities, Loads { sessions, inflow, outflow, cpu, heartbeat_age_ms, pending, flags })
                },
            )
    })
}

/// What one call says; rows are meant modulo the roster.
#[derive(Debug, Clone)]
pub struct Call {
    committed: Vec<u32>,
    avoid: Vec<u32>,
    own: Vec<(u32, u32)>,
    traffic: f64,
    seed: u64,
}

/// Some calls in a row.
pub fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = (
        prop::collection::vec(any::<u32>(), 0..4),
        prop::collection::vec(any::<u32>(), 0..12),
        prop::collection::vec((any::<u32>(), 1_u32..9), 0..4),
        amounts(),
        any::<u64>(),
    )
        .prop_map(|(committed, avoid, own, traffic, seed)| Call { committed, avoid, own, traffic, seed });
    prop::collection::vec(call, 1..12)
}

fn amounts() -> impl Strategy<Value = f64> {
    prop_oneof![4 => Just(0.0), 4 => 0.0..1e7, 1 => Just(1e308), 1 => Just(f64::MAX), 1 => Just(5e-324)]
}

/// Checks one run of calls against the law of `committed` (bit for bit), legality, and sound scores; `more` sees each
/// answer with the explanation of the same request.
///
/// # Panics
///
/// If the policy breaks a property.
pub fn check<P: Scoring>(
    config: &str,
    (capacities, loads): &World,
    calls: &[Call],
    more: impl Fn(Recommendation, &[ScoreParts], &Request<'_>),
) {
    let rows = capacities.len() as u32;
    let mut kept: P = policy(config, capacities, loads.clone());
    let mut total = loads.clone();
    for call in calls {
        let committed: Vec<u32> = call.committed.iter().map(|row| row % rows).collect();
        let mut avoid: Vec<u32> = call.avoid.iter().map(|row| row % rows).collect();
        avoid.sort_unstable();
        avoid.dedup();
        let mut own: Vec<(u32, u32)> = call.own.iter().map(|(row, count)| (row % rows, *count)).collect();
        own.sort_unstable();
        own.dedup_by_key(|(row, _)| *row);
        let (session_rows, session_counts): (Vec<u32>, Vec<u32>) = own.into_iter().unzip();
        let request = Request {
            client_id: "client",
            session_rows: &session_rows,
            session_counts: &session_counts,
            client_inflow: call.traffic,
            client_outflow: call.traffic,
            avoid: &avoid,
            committed: &committed,
            now_ms: 1_800_000_000_000,
            seed: call.seed,
        };
        for &row in &committed {
            let pending = &mut total.pending[row as usize];
            *pending = pending.saturating_add(1);
        }
        let answer = kept.recommend(&request);
        let alone = Request { committed: &[], ..request };
        let mut fresh: P = policy(config, capacities, total.clone());
        assert_eq!(bits(&answer), bits(&fresh.recommend(&alone)), "the law of `committed`");
        let explained = fresh.explain(&alone).expect("explains");
        assert_eq!(explained, kept.explain(&alone).expect("explains"), "the law of `committed`");

        let may_choose = |row: u32| {
            total.flags[row as usize] & (flag::DRAINING | flag::DEAD) == 0
                && avoid.binary_search(&row).is_err()
        };
        assert!(explained.iter().map(|parts| parts.row).eq((0..rows).filter(|&row| may_choose(row))));
        for parts in &explained {
            assert!(
                !parts.score.is_nan() && parts.parts.iter().all(|(_, value)| !value.is_nan()),
                "{parts:?}"
            );
        }
        match answer {
            Ok(answer) => {
                assert!(may_choose(answer.row), "row {} is not legal", answer.row);
                let parts =
                    explained.iter().find(|parts| parts.row == answer.row).expect("legal rows are explained");
                assert_eq!(parts.score.to_bits(), answer.score.to_bits());
                more(answer, &explained, &request);
            }
            Err(error) => {
                assert_eq!(error, Error::NoCandidate);
                assert!(explained.is_empty(), "a row could have been chosen");
            }
        }
    }
}

fn bits(answer: &Result<Recommendation, Error>) -> Result<(u32, u64), Error> {
    answer.clone().map(|answer| (answer.row, answer.score.to_bits()))
}
