//! Cases of the scoring role: rosters, loads and requests.
//!
//! Invariant: for every request of a case there is a row that may be chosen, as in service.

use std::sync::Arc;

use fulcrum_core::scoring::{Instance, Load, Loads, Roster, ScoringSnapshot, flags};

use super::{Plan, texts};
use crate::proof::{self, Chance};
use crate::seat::OwnedRequest;

/// What an instance is told and asked, in order.
pub(super) struct Case {
    pub(super) rounds: Vec<Round>,
}

/// A refresh, with a new roster before it or not, and requests.
pub(super) struct Round {
    pub(super) snapshot: ScoringSnapshot,
    /// Whether the roster is told; else it is that of the round before.
    pub(super) is_new: bool,
    pub(super) asks: Vec<Ask>,
}

/// A request, and the rows that others gave out just before it, in order.
pub(super) struct Ask {
    pub(super) request: OwnedRequest,
    pub(super) others: Vec<u32>,
}

/// Classes of cases with at most so many rows.
pub(super) fn classes(rows_max: usize) -> Vec<Plan<Case>> {
    let class = |name, count, make| Plan { name, count, make };
    let mut classes = vec![
        class("scoring/one-row", 20, one_row as fn(usize, &mut Chance) -> Case),
        class("scoring/all-but-one", 32, all_but_one),
        class("scoring/ties", 24, ties),
        class("scoring/unknown-loads", 16, unknown_loads),
        class("scoring/extremes", 32, extremes),
        class("scoring/hostile-text", 32, hostile_text),
        class("scoring/text-lengths", 16, text_lengths),
        class("scoring/big-clients", 16, big_clients),
        class("scoring/labels", 12, labels),
        class("scoring/mixes", 60, mixes),
        class("scoring/rosters", 24, changing_rosters),
        class("scoring/committed", 12, committed),
    ];
    if rows_max >= 1000 {
        classes.push(class("scoring/thousand-rows", 4, |at, chance| large(1000, at, chance)));
    }
    if rows_max >= super::ROWS_MAX {
        classes.push(class("scoring/ten-thousand-rows", 3, |at, chance| large(super::ROWS_MAX, at, chance)));
    }
    classes
}

fn one_row(at: usize, chance: &mut Chance) -> Case {
    let snapshot = proof::snapshot(1, chance, |_, load| match at % 3 {
        0 => Some(load),
        1 => Some(Load::default()),
        _ => None,
    });
    let mut asks = asks(6, chance);
    for ask in asks.iter_mut().skip(1).step_by(2) {
        ask.others = vec![0; at % 4];
    }
    one(snapshot, asks)
}

fn all_but_one(at: usize, chance: &mut Chance) -> Case {
    let len = [2, 3, 9, 40, 300][chance.below(5) as usize];
    let kept = chance.below(len) as usize;
    let mut snapshot = proof::snapshot(len as usize, chance, |_, load| Some(load));
    let mut asks = asks(6, chance);
    for row in (0..len as usize).filter(|row| *row != kept) {
        // The last kind has all of them, row by row.
        match if at % 4 == 3 { chance.below(3) as usize } else { at % 4 } {
            0 => snapshot.loads.flags[row] |= flags::DEAD,
            1 => snapshot.loads.flags[row] |= flags::DRAINING,
            _ => asks.iter_mut().for_each(|ask| ask.request.avoid.push(row as u32)),
        }
    }
    one(snapshot, asks)
}

fn ties(at: usize, chance: &mut Chance) -> Case {
    let len = 2 + chance.below(40) as usize;
    let alike = Load { sessions: 3, inflow: 1000.0, outflow: 1000.0, cpu: 0.25 };
    let mut snapshot = proof::snapshot(len, chance, |_, _| match at % 3 {
        0 => Some(alike),
        1 => Some(Load::default()),
        _ => None,
    });
    edit(&mut snapshot, |_, row| {
        row.zone.clear();
        row.labels.clear();
        row.capacity = 1.0;
        row.age_ms = 0;
    });
    snapshot.loads.pending.fill(0);
    snapshot.loads.heartbeat_age_ms.fill(0);
    one(snapshot, asks(12, chance))
}

fn unknown_loads(at: usize, chance: &mut Chance) -> Case {
    let len = 1 + chance.below(60) as usize;
    let known = if at.is_multiple_of(2) { usize::MAX } else { chance.below(len as u64) as usize };
    one(proof::snapshot(len, chance, |row, load| (row == known).then_some(load)), asks(8, chance))
}

/// The largest and smallest numbers that the contract allows, and those that the HTTP API lets in.
fn extremes(_: usize, chance: &mut Chance) -> Case {
    const BYTES: [f64; 6] = [0.0, -0.0, f64::MIN_POSITIVE, 1.0, 1e15, f64::MAX];
    let len = 1 + chance.below(12) as usize;
    let mut snapshot = proof::snapshot(len, chance, |_, load| Some(load));
    let pick = |chance: &mut Chance, from: &[f64]| from[chance.below(from.len() as u64) as usize];
    for row in 0..len {
        let load = Load {
            sessions: [0, 1, 1_000_000_000, u32::MAX][chance.below(4) as usize],
            inflow: pick(chance, &BYTES),
            outflow: pick(chance, &BYTES),
            cpu: pick(chance, &[0.0, f64::MIN_POSITIVE, 0.8, 1.0]),
        };
        snapshot.loads.set(row, (chance.below(5) > 0).then_some(load));
        // What a case gives out does not take it over the end.
        snapshot.loads.pending[row] = [0, 1, u32::MAX - 100][chance.below(3) as usize];
        snapshot.loads.heartbeat_age_ms[row] = [0, u32::MAX][chance.below(2) as usize];
    }
    let numbers: Vec<_> = (0..len)
        .map(|_| (pick(chance, &[1e-300, 1e-6, 1.0, 1e6]), [0, u64::MAX][chance.below(2) as usize]))
        .collect();
    edit(&mut snapshot, |at, row| (row.capacity, row.age_ms) = numbers[at]);
    let mut asks = asks(6, chance);
    for ask in &mut asks {
        ask.request.client_inflow = pick(chance, &BYTES);
        ask.request.client_outflow = pick(chance, &BYTES);
        ask.request.seed = [0, 1, u64::MAX][chance.below(3) as usize];
        ask.request.now_ms = [0, u64::MAX][chance.below(2) as usize];
        if chance.below(2) == 0 {
            ask.request.session_rows = (0..len as u32).collect();
            ask.request.session_counts = vec![u32::MAX; len];
        }
    }
    one(snapshot, asks)
}

fn hostile_text(_: usize, chance: &mut Chance) -> Case {
    let wanted = 1 + chance.below(24) as usize;
    let names = texts::names(wanted, chance);
    let mut snapshot = proof::snapshot(names.len(), chance, |_, load| Some(load));
    let others: Vec<_> = names.iter().map(|_| (texts::any(chance), texts::labels(4, chance))).collect();
    edit(&mut snapshot, |at, row| {
        row.id = Arc::from(names[at].as_str());
        (row.zone, row.labels) = others[at].clone();
    });
    let mut asks = asks(8, chance);
    for ask in &mut asks {
        ask.request.client_id = texts::any(chance);
    }
    one(snapshot, asks)
}

/// Client ids of every length, 17 in a case: buffers end somewhere.
fn text_lengths(at: usize, chance: &mut Chance) -> Case {
    let mut asks = asks(17, chance);
    for (more, ask) in asks.iter_mut().enumerate() {
        ask.request.client_id = "x".repeat(at * 16 + more);
    }
    one(proof::snapshot(3, chance, |_, load| Some(load)), asks)
}

fn big_clients(_: usize, chance: &mut Chance) -> Case {
    let len = 2 + chance.below(100) as usize;
    let snapshot = proof::snapshot(len, chance, |_, load| Some(load));
    let mut asks = asks(9, chance);
    for ask in &mut asks {
        let request = &mut ask.request;
        request.client_id = "big".to_owned();
        request.client_inflow = chance.below(1_000_000_000) as f64;
        request.client_outflow = chance.below(1_000_000_000) as f64;
        request.session_rows = some_rows(len, chance.below(4) + 1, chance);
        request.session_counts =
            request.session_rows.iter().map(|_| 1 + chance.below(100_000) as u32).collect();
        // Often exactly where it has sessions: they were tried before.
        request.avoid = match chance.below(3) {
            0 => Vec::new(),
            1 => request.session_rows.clone(),
            _ => some_rows(len, 3, chance),
        };
    }
    one(snapshot, asks)
}

fn labels(_: usize, chance: &mut Chance) -> Case {
    let len = 1 + chance.below(50) as usize;
    let mut snapshot = proof::snapshot(len, chance, |_, load| Some(load));
    let counts: Vec<_> = (0..len).map(|_| [0, 1, 24, 64][chance.below(4) as usize]).collect();
    edit(&mut snapshot, |at, row| {
        row.labels =
            (0..counts[at]).map(|key| (format!("key-{key:03}"), format!("value-{}", key % 7))).collect();
    });
    one(snapshot, asks(6, chance))
}

fn mixes(_: usize, chance: &mut Chance) -> Case {
    let len = 1 + chance.below(200) as usize;
    one(mixed(len, chance), mixed_asks(len, 8, chance))
}

/// Instances join and leave between rounds, and are all gone now and then; every other round has new loads alone.
fn changing_rosters(_: usize, chance: &mut Chance) -> Case {
    let mut rounds: Vec<Round> = Vec::new();
    for at in 0..6 {
        let is_new = at % 2 == 0;
        let (snapshot, len) = match rounds.last() {
            Some(last) if !is_new => {
                let len = last.snapshot.roster.len();
                (ScoringSnapshot { roster: last.snapshot.roster.clone(), ..mixed(len, chance) }, len)
            }
            _ if at > 0 && chance.below(4) == 0 => (ScoringSnapshot::default(), 0),
            _ => {
                let pool = mixed(30, chance);
                let some: Vec<_> =
                    pool.roster.rows().iter().filter(|_| chance.below(3) > 0).cloned().collect();
                let len = some.len();
                let roster = Arc::new(Roster::new(some).expect("rows of one roster differ"));
                (ScoringSnapshot { roster, ..mixed(len, chance) }, len)
            }
        };
        let asks = if len == 0 { Vec::new() } else { mixed_asks(len, 4, chance) };
        rounds.push(Round { snapshot, is_new, asks });
    }
    finished(rounds)
}

/// Long runs of rows given out by others: none, one, a thousand at once.
fn committed(_: usize, chance: &mut Chance) -> Case {
    let len = 1 + chance.below(50) as usize;
    let mut asks = asks(9, chance);
    for (at, ask) in asks.iter_mut().enumerate() {
        let count = [0, 1, 1000][at % 3];
        ask.others = (0..count).map(|_| chance.below(len as u64) as u32).collect();
    }
    one(mixed(len, chance), asks)
}

fn large(len: usize, at: usize, chance: &mut Chance) -> Case {
    let mut snapshot = proof::snapshot(len, chance, |row, load| (row % 50 != 1).then_some(load));
    let mut asks = asks(6, chance);
    match at {
        0 => {}
        1 => {
            let kept = chance.below(len as u64) as usize;
            (0..len).filter(|row| *row != kept).for_each(|row| snapshot.loads.flags[row] |= flags::DEAD);
        }
        _ => {
            for ask in &mut asks {
                ask.request.avoid = (0..len as u32).filter(|row| row % 2 == 0).collect();
                ask.others = (0..1000).map(|_| chance.below(len as u64) as u32).collect();
            }
        }
    }
    one(snapshot, asks)
}

/// Makes rows of all kinds.
fn mixed(len: usize, chance: &mut Chance) -> ScoringSnapshot {
    let mut snapshot = proof::snapshot(len, chance, |_, load| Some(load));
    for row in 0..len {
        match chance.below(10) {
            0 | 1 => snapshot.loads.set(row, None),
            2 => snapshot.loads.flags[row] |= flags::DEAD,
            3 => snapshot.loads.flags[row] |= flags::DRAINING,
            4 => snapshot.loads.pending[row] = chance.below(100_000) as u32,
            _ => {}
        }
    }
    snapshot
}

fn mixed_asks(len: usize, count: usize, chance: &mut Chance) -> Vec<Ask> {
    let mut asks = asks(count, chance);
    for ask in &mut asks {
        let request = &mut ask.request;
        if chance.below(2) == 0 {
            request.avoid = some_rows(len, chance.below(8), chance);
        }
        if chance.below(2) == 0 {
            request.session_rows = some_rows(len, chance.below(8), chance);
            request.session_counts =
                request.session_rows.iter().map(|_| 1 + chance.below(20) as u32).collect();
            request.client_inflow = chance.below(1_000_000) as f64;
            request.client_outflow = chance.below(1_000_000) as f64;
        }
        ask.others = (0..chance.below(6)).map(|_| chance.below(len as u64) as u32).collect();
    }
    asks
}

fn asks(count: usize, chance: &mut Chance) -> Vec<Ask> {
    proof::requests(count, chance).into_iter().map(|request| Ask { request, others: Vec::new() }).collect()
}

/// Returns about `count` rows, ascending, each once.
fn some_rows(len: usize, count: u64, chance: &mut Chance) -> Vec<u32> {
    let mut rows: Vec<_> = (0..count).map(|_| chance.below(len as u64) as u32).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Changes rows; they must keep their order.
fn edit(snapshot: &mut ScoringSnapshot, change: impl Fn(usize, &mut Instance)) {
    let mut rows = snapshot.roster.rows().to_vec();
    rows.iter_mut().enumerate().for_each(|(at, row)| change(at, row));
    snapshot.roster = Arc::new(Roster::new(rows).expect("the ids differ"));
}

fn one(snapshot: ScoringSnapshot, asks: Vec<Ask>) -> Case {
    finished(vec![Round { snapshot, is_new: true, asks }])
}

/// Makes sure that there is always something to choose: the first row, where there is nothing else.
fn finished(mut rounds: Vec<Round>) -> Case {
    for round in &mut rounds {
        let Loads { flags, .. } = &mut round.snapshot.loads;
        if let Some(first) = flags.first().copied()
            && flags.iter().all(|flag| flag & flags::NOT_CHOOSABLE != 0)
        {
            flags[0] = first & !flags::NOT_CHOOSABLE;
        }
        for ask in &mut round.asks {
            if !fulcrum_core::scoring::any_choosable(&round.snapshot.loads, &ask.request.avoid) {
                ask.request.avoid.clear();
            }
        }
    }
    Case { rounds }
}

#[cfg(test)]
mod tests {
    use fulcrum_core::scoring::any_choosable;

    use super::*;

    #[test]
    fn cases_keep_the_promises_of_the_contract() {
        let mut count = 0;
        for class in classes(crate::conformance::ROWS_MAX) {
            for at in 0..class.count {
                let case = (class.make)(at, &mut Chance(at as u64));
                let again = (class.make)(at, &mut Chance(at as u64));
                count += 1;
                for (round, twin) in case.rounds.iter().zip(&again.rounds) {
                    let ScoringSnapshot { roster, loads, .. } = &round.snapshot;
                    let name = format!("{}/{at}", class.name);
                    assert_eq!(round.snapshot, twin.snapshot, "{name}");
                    assert_eq!(loads.len(), roster.len(), "{name}");
                    for row in roster.rows() {
                        assert!((1..=256).contains(&row.id.len()) && row.zone.len() <= 256, "{name}");
                        assert!(row.labels.is_sorted_by(|a, b| a.0 < b.0), "{name}");
                        assert!(row.capacity > 0.0 && row.capacity.is_finite(), "{name}");
                    }
                    for ask in &round.asks {
                        let request = &ask.request;
                        assert!(any_choosable(loads, &request.avoid), "{name}");
                        for rows in [&request.avoid, &request.session_rows] {
                            assert!(rows.is_sorted_by(|a, b| a < b), "{name}");
                        }
                        assert_eq!(request.session_rows.len(), request.session_counts.len(), "{name}");
                        let named = [&request.avoid, &request.session_rows, &ask.others];
                        let is_row = |row: &u32| (*row as usize) < roster.len();
                        assert!(named.into_iter().flatten().all(is_row), "{name}");
                        assert!(request.client_id.len() <= 256, "{name}");
                    }
                }
            }
        }
        assert!(count > 250, "{count} cases");
        assert!(classes(999).len() + 2 == classes(10_000).len());
    }
}
