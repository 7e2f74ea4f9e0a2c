//! Native answers for the moments a policy gives none. They are simple, cannot fail, and keep every invariant.

use fulcrum_core::claiming::{Claim, Cycle, Plan};
use fulcrum_core::scoring::{Loads, Recommendation, Request, Roster, Score, choosable, flags};

/// Name under which fallback decisions are shown.
pub const NAME: &str = "fallback";

/// Chooses the row with the fewest sessions, reported and given out, for its capacity; equal ones: the first.
///
/// Returns `None` if no row may be chosen.
#[must_use]
pub fn recommend(roster: &Roster, loads: &Loads, request: &Request<'_>) -> Option<Recommendation> {
    scores(roster, loads, request.avoid).min_by(|a, b| a.score.cmp(&b.score).then(a.row.cmp(&b.row)))
}

/// Returns what [`recommend`] compares, for every row that may be chosen: sessions and pending ones per unit of
/// capacity. A row of unknown load counts as an average one, so that it gets neither everything nor nothing.
pub fn scores<'a>(
    roster: &'a Roster,
    loads: &'a Loads,
    avoid: &'a [u32],
) -> impl Iterator<Item = Recommendation> + 'a {
    let is_known = |row: usize| loads.flags[row] & flags::LOAD_UNKNOWN == 0;
    let (sum, count) = (0..roster.len())
        .filter(|&row| is_known(row))
        .fold((0.0, 0.0), |(sum, count), row| (sum + f64::from(loads.sessions[row]), count + 1.0));
    let average = if count > 0.0 { sum / count } else { 0.0 };
    (0..roster.len()).filter(move |&row| choosable(loads, avoid, row)).filter_map(move |row| {
        let sessions = if is_known(row) { f64::from(loads.sessions[row]) } else { average };
        let score = (sessions + f64::from(loads.pending[row])) / roster.rows()[row].capacity;
        Some(Recommendation { row, score: Score::new(score)? })
    })
}

/// Keeps every owner and gives each free partition to its least loaded subscriber; equal ones: the first.
#[must_use]
pub fn plan(cycle: &Cycle) -> Plan {
    let mut owned = vec![0_u32; cycle.members.len()];
    for &owner in &cycle.owner {
        if let Some(count) = usize::try_from(owner).ok().and_then(|row| owned.get_mut(row)) {
            *count += 1;
        }
    }
    let mut plan = Plan::default();
    for (partition, topic) in cycle.topic.iter().enumerate() {
        if cycle.owner[partition] >= 0 || cycle.moving[partition] != 0 {
            continue;
        }
        let subscribers = (0..cycle.members.len())
            .filter(|&member| cycle.members[member].topics.binary_search(topic).is_ok());
        if let Some(member) = subscribers.min_by_key(|&member| (owned[member], member)) {
            owned[member] += 1;
            plan.claims.push(Claim { partition, member, reason: "fallback: free partition".to_owned() });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fulcrum_core::scoring::{Instance, Load};

    use super::*;

    fn check(rows: &[(Option<u32>, u32, f64)], avoid: &[u32], expected: Option<usize>) {
        let instance = |at: usize| Instance {
            id: Arc::from(format!("i{at}")),
            zone: String::new(),
            capacity: rows[at].2,
            labels: Vec::new(),
            age_ms: 0,
        };
        let roster = Roster::new((0..rows.len()).map(instance).collect()).expect("ids differ");
        let mut loads = Loads::unknown(rows.len());
        for (at, (sessions, pending, _)) in rows.iter().enumerate() {
            loads.set(at, sessions.map(|sessions| Load { sessions, ..Load::default() }));
            loads.pending[at] = *pending;
        }
        let request = Request { avoid, ..Request::default() };
        assert_eq!(recommend(&roster, &loads, &request).map(|found| found.row), expected, "{rows:?}");
    }

    #[test]
    fn the_least_loaded_row_for_its_capacity_is_chosen() {
        check(&[], &[], None);
        check(&[(Some(3), 0, 1.0), (Some(2), 0, 1.0), (Some(2), 0, 1.0)], &[], Some(1));
        check(&[(Some(3), 0, 1.0), (Some(2), 2, 1.0)], &[], Some(0));
        check(&[(Some(3), 0, 1.0), (Some(4), 0, 2.0)], &[], Some(1));
        check(&[(Some(3), 0, 1.0), (Some(4), 0, 2.0)], &[1], Some(0));
        check(&[(Some(3), 0, 1.0)], &[0], None);
    }

    #[test]
    fn unknown_load_counts_as_average() {
        check(&[(Some(10), 0, 1.0), (None, 0, 1.0), (Some(2), 0, 1.0)], &[], Some(2));
        check(&[(Some(10), 0, 1.0), (None, 0, 1.0), (Some(8), 0, 1.0), (Some(2), 9, 1.0)], &[], Some(1));
        check(&[(None, 1, 1.0), (None, 0, 1.0)], &[], Some(1));
    }
}
