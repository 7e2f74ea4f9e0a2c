//! The self-test a policy passes before it serves: legal answers to generated inputs, the same answers on a fresh
//! instance, and no hidden state.
//!
//! The inputs are fixed: a file that passed once passes always. The longer test, with hundreds of inputs, is
//! [`conformance`](crate::conformance), which is made of the same parts.

use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::claiming::{self, Cycle, Member, Reason};
use fulcrum_core::scoring::{self, Instance, Load, Loads, Proposal, Request, Roster, ScoringSnapshot, flags};
use fulcrum_core::seed;
use fulcrum_core::time::Clock;

use crate::artifact::Loaded;
use crate::claim::ClaimingPolicy;
use crate::failure::Failure;
use crate::refusal::Refusal;
use crate::seat::{OwnedRequest, ScoringPolicy};

/// What a passed self-test measured.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Cases run.
    pub cases: usize,
    /// Decisions asked.
    pub decisions: usize,
    /// Most memory any instance used, in bytes.
    pub memory_bytes: usize,
    /// Median time of one `recommend` over 100 rows, in nanoseconds.
    pub recommend_nanos: Option<u64>,
    /// Median time of one `plan` over 20 members and 200 partitions, in nanoseconds.
    pub plan_nanos: Option<u64>,
    /// Whether it explains its scores.
    pub explains: bool,
}

/// Runs the self-test for every role the policy has.
pub fn run(policy: &Loaded, clock: &dyn Clock) -> Result<Report, Refusal> {
    let mut report = Report::default();
    if policy.artifact().roles().scoring {
        for case in scoring_cases() {
            scoring_case(policy, &case, &mut report)?;
        }
        report.recommend_nanos = Some(recommend_nanos(policy, clock)?);
    }
    if policy.artifact().roles().claiming {
        for (name, cycle) in cycles() {
            claiming_case(policy, name, &cycle, &mut report)?;
        }
        report.plan_nanos = Some(plan_nanos(policy, clock)?);
    }
    Ok(report)
}

/// Tries a policy on a recorded snapshot and request, for example the one it failed on.
pub fn recommend_once(
    policy: &Loaded,
    snapshot: &ScoringSnapshot,
    request: &OwnedRequest,
) -> Result<(), Failure> {
    let request = request.as_request();
    if !scoring::any_choosable(&snapshot.loads, request.avoid) {
        return Ok(());
    }
    let mut instance = policy.make_scoring(policy.runtime().limits().scoring_deadline)?;
    instance.roster(&snapshot.roster)?;
    instance.refresh(&snapshot.loads)?;
    let proposal = instance.recommend(&request, &[])?;
    verify(snapshot, &request, proposal)
}

/// Tries again, a few times in all, what missed its deadline: that is wall time, and one slow moment of the machine must not
/// refuse a good version. Whatever else goes wrong, goes wrong the next time, too.
pub(crate) fn patiently(mut call: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    const TRIES: usize = 3;
    let mut found = call();
    for _ in 1..TRIES {
        match found {
            Err(Failure::Timeout { .. }) => found = call(),
            _ => break,
        }
    }
    found
}

struct ScoringCase {
    name: &'static str,
    snapshot: ScoringSnapshot,
    requests: Vec<OwnedRequest>,
}

fn scoring_case(policy: &Loaded, case: &ScoringCase, report: &mut Report) -> Result<(), Refusal> {
    let failed = |failure| Refusal::SelfTest { case: case.name.to_owned(), failure };
    let law = |error: String| Refusal::Law { case: case.name.to_owned(), error };
    let first = answers(policy, case, report).map_err(failed)?;
    let again = answers(policy, case, report).map_err(failed)?;
    if let Some((a, b)) = first.iter().zip(&again).find(|(a, b)| !same(a, b)) {
        return Err(law(format!(
            "a fresh instance answers {b:?} where the first one answered {a:?}; answers may depend on nothing but \
             the arguments"
        )));
    }
    for (at, proposal) in first.iter().enumerate() {
        let alone = alone(policy, case, &first, at).map_err(failed)?;
        if !same(proposal, &alone) {
            return Err(law(format!(
                "with the sessions given out so far as `committed` it answers {proposal:?}, with the same ones as \
                 `pending` it answers {alone:?}; both must be the same (see `scoring` in wit/policy.wit)"
            )));
        }
    }
    report.cases += 1;
    Ok(())
}

/// Asks all requests of a case on one fresh instance, each pick committed with the next request.
fn answers(policy: &Loaded, case: &ScoringCase, report: &mut Report) -> Result<Vec<Proposal>, Failure> {
    let mut instance = start(policy, &case.snapshot)?;
    let mut picks: Vec<Proposal> = Vec::new();
    for request in &case.requests {
        let request = request.as_request();
        let committed: Vec<u32> = picks.last().map(|pick| pick.row).into_iter().collect();
        // Every third request is explained first: an explanation is a call too, and takes `committed` in.
        let committed = if picks.len() % 3 == 2 {
            match instance.explain(&request, &committed)? {
                Some(rows) => {
                    report.explains = true;
                    let ScoringSnapshot { roster, loads, .. } = &case.snapshot;
                    scoring::verify_explanation(roster, loads, request.avoid, rows).map_err(illegal)?;
                }
                // As in service: an answer that is none took nothing in, so everything is told again.
                None => instance.refresh(&given_out(&case.snapshot, &picks).loads)?,
            }
            Vec::new()
        } else {
            committed
        };
        let proposal = instance.recommend(&request, &committed)?;
        verify(&case.snapshot, &request, proposal)?;
        report.decisions += 1;
        picks.push(proposal);
    }
    report.memory_bytes = report.memory_bytes.max(instance.memory_bytes());
    Ok(picks)
}

/// Asks one request of a case on a fresh instance that got the earlier picks as `pending`.
fn alone(policy: &Loaded, case: &ScoringCase, picks: &[Proposal], at: usize) -> Result<Proposal, Failure> {
    let snapshot = given_out(&case.snapshot, &picks[..at]);
    start(policy, &snapshot)?.recommend(&case.requests[at].as_request(), &[])
}

/// Returns the snapshot with some picks counted as `pending`.
fn given_out(snapshot: &ScoringSnapshot, picks: &[Proposal]) -> ScoringSnapshot {
    let mut snapshot = snapshot.clone();
    for pick in picks {
        snapshot.loads.give_out(pick.row as usize);
    }
    snapshot
}

fn start(policy: &Loaded, snapshot: &ScoringSnapshot) -> Result<crate::guest::WasmScoring, Failure> {
    let mut instance = policy.make_scoring(scoring_deadline(policy))?;
    instance.roster(&snapshot.roster)?;
    instance.refresh(&snapshot.loads)?;
    Ok(instance)
}

/// A first call may be slow, and so may a busy machine: the self-test allows ten times the deadline in service, and
/// judges speed by the median.
fn scoring_deadline(policy: &Loaded) -> Duration {
    policy.runtime().limits().scoring_deadline * 10
}

fn verify(snapshot: &ScoringSnapshot, request: &Request<'_>, proposal: Proposal) -> Result<(), Failure> {
    scoring::verify(&snapshot.roster, &snapshot.loads, request.avoid, proposal).map(|_| ()).map_err(illegal)
}

fn illegal(error: impl std::fmt::Display) -> Failure {
    Failure::Illegal(error.to_string())
}

pub(crate) fn same(a: &Proposal, b: &Proposal) -> bool {
    a.row == b.row && a.score.to_bits() == b.score.to_bits()
}

fn recommend_nanos(policy: &Loaded, clock: &dyn Clock) -> Result<u64, Refusal> {
    const CALLS: usize = 201;
    let case = "speed over 100 rows";
    let failed = |failure| Refusal::SelfTest { case: case.to_owned(), failure };
    let snapshot = snapshot(100, &mut Chance(7), |_, load| Some(load));
    let mut instance = start(policy, &snapshot).map_err(failed)?;
    let mut nanos = Vec::with_capacity(CALLS);
    let mut committed = Vec::new();
    for number in 0..CALLS as u64 {
        let request = Request { client_id: "c", seed: seed::mix(number), now_ms: 1, ..Request::default() };
        let begun = clock.nanos();
        let proposal = instance.recommend(&request, &committed).map_err(failed)?;
        nanos.push(clock.nanos().saturating_sub(begun));
        verify(&snapshot, &request, proposal).map_err(failed)?;
        committed = vec![proposal.row];
    }
    median_within(nanos, policy.runtime().limits().scoring_deadline).map_err(failed)
}

fn median_within(mut nanos: Vec<u64>, deadline: Duration) -> Result<u64, Failure> {
    nanos.sort_unstable();
    let median = nanos[nanos.len() / 2];
    if u128::from(median) > deadline.as_nanos() {
        return Err(Failure::Timeout { deadline_ms: fulcrum_core::time::millis(deadline) });
    }
    Ok(median)
}

/// A stream of chance with a fixed start.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        seed::mix(self.0)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn instance(id: String, chance: &mut Chance) -> Instance {
    Instance {
        id: Arc::from(id),
        zone: ["", "z1", "z2"][chance.below(3) as usize].to_owned(),
        capacity: [1.0, 1.0, 2.0, 0.5][chance.below(4) as usize],
        labels: vec![("tier".to_owned(), ["gold", "iron"][chance.below(2) as usize].to_owned())],
        age_ms: chance.below(1_000_000),
    }
}

pub(crate) fn snapshot(
    len: usize,
    chance: &mut Chance,
    load_of: impl Fn(usize, Load) -> Option<Load>,
) -> ScoringSnapshot {
    let rows = (0..len).map(|row| instance(format!("i{row:04}"), chance)).collect();
    let mut loads = Loads::unknown(len);
    for row in 0..len {
        let load = Load {
            sessions: chance.below(200) as u32,
            inflow: chance.below(6_000_000) as f64,
            outflow: chance.below(6_000_000) as f64,
            cpu: chance.below(1001) as f64 / 1000.0,
        };
        loads.set(row, load_of(row, load));
        loads.heartbeat_age_ms[row] = chance.below(15_000) as u32;
        loads.pending[row] = chance.below(4) as u32;
    }
    let roster = Arc::new(Roster::new(rows).expect("generated ids differ"));
    ScoringSnapshot { roster, loads, roster_revision: 0 }
}

pub(crate) fn requests(count: usize, chance: &mut Chance) -> Vec<OwnedRequest> {
    (0..count)
        .map(|number| OwnedRequest {
            client_id: format!("client-{}", chance.below(3)),
            now_ms: 1_700_000_000_000 + number as u64,
            seed: chance.next(),
            ..OwnedRequest::default()
        })
        .collect()
}

fn scoring_cases() -> Vec<ScoringCase> {
    let mut chance = Chance(0xf01c);
    let mut cases = Vec::new();
    let mut case = |name, snapshot, requests| cases.push(ScoringCase { name, snapshot, requests });

    let known = |_: usize, load: Load| Some(load);
    let idle = |_: usize, _: Load| Some(Load::default());
    case("one row", snapshot(1, &mut chance, known), requests(3, &mut chance));
    case("two rows", snapshot(2, &mut chance, known), requests(4, &mut chance));
    case("three idle rows", snapshot(3, &mut chance, idle), requests(12, &mut chance));
    case("loads unknown", snapshot(4, &mut chance, |_, _| None), requests(6, &mut chance));
    case("hundred rows", snapshot(100, &mut chance, known), requests(12, &mut chance));

    let mut mixed = snapshot(10, &mut chance, |row, load| (row % 3 != 0).then_some(load));
    for (row, flag) in
        [(1, flags::DRAINING), (2, flags::DEAD), (3, flags::DRAINING | flags::DEAD), (9, flags::DEAD)]
    {
        mixed.loads.flags[row] |= flag;
    }
    case("draining and dead rows", mixed, requests(12, &mut chance));

    let mut lone = snapshot(9, &mut chance, known);
    for row in (0..9).filter(|row| *row != 7) {
        lone.loads.flags[row] |= flags::DEAD;
    }
    case("all dead but one", lone, requests(3, &mut chance));

    let mut excluded = requests(6, &mut chance);
    for (at, request) in excluded.iter_mut().enumerate() {
        request.avoid = (0..5).filter(|row| *row != at as u32).collect();
    }
    case("all excluded but one", snapshot(6, &mut chance, known), excluded);

    let mut spread = requests(8, &mut chance);
    for request in &mut spread {
        request.client_id = "big".to_owned();
        request.session_rows = vec![0, 3, 4];
        request.session_counts = vec![1, 40, 2];
        request.client_inflow = 250_000.0;
        request.client_outflow = 1_000_000.0;
        request.avoid = vec![1];
    }
    case("a client with sessions and traffic", snapshot(5, &mut chance, known), spread);

    let extreme = |row: usize, _: Load| {
        let huge = Load { sessions: u32::MAX, inflow: f64::MAX, outflow: f64::MAX, cpu: 1.0 };
        let tiny = Load { sessions: 0, inflow: f64::MIN_POSITIVE, outflow: 0.0, cpu: 0.0 };
        Some(if row.is_multiple_of(2) { huge } else { tiny })
    };
    case("extreme numbers", snapshot(4, &mut chance, extreme), requests(4, &mut chance));

    let names = ["\u{0}", " ", "'; --", "\"},{\"", "\u{202e}abc", "名前", "🦀🦀", "%s%n"];
    let mut hostile = snapshot(names.len(), &mut chance, known);
    let row = |name: &&str| Instance {
        id: Arc::from(*name),
        zone: (*name).to_owned(),
        capacity: 1.0,
        labels: vec![((*name).to_owned(), name.repeat(20))],
        age_ms: u64::MAX,
    };
    hostile.roster = Arc::new(Roster::new(names.iter().map(row).collect()).expect("the names differ"));
    let mut asked = requests(4, &mut chance);
    for (request, name) in asked.iter_mut().zip(names) {
        request.client_id = name.repeat(16);
    }
    case("hostile names", hostile, asked);
    cases
}

fn claiming_case(policy: &Loaded, name: &str, cycle: &Cycle, report: &mut Report) -> Result<(), Refusal> {
    let failed = |failure| Refusal::SelfTest { case: name.to_owned(), failure };
    let mut plan = || {
        let deadline = policy.runtime().limits().claiming_deadline;
        let mut instance = policy.make_claiming_within(deadline)?;
        let first = instance.plan(cycle)?;
        let second = instance.plan(cycle)?;
        report.memory_bytes = report.memory_bytes.max(instance.memory_bytes());
        report.decisions += 2;
        claiming::verify(cycle, &first).map_err(illegal)?;
        Ok((first, second))
    };
    let (first, second) = plan().map_err(failed)?;
    let (fresh, _) = plan().map_err(failed)?;
    if first != second || first != fresh {
        return Err(Refusal::Law {
            case: name.to_owned(),
            error: "two plans of the same cycle differ; a plan may depend on nothing but its arguments"
                .to_owned(),
        });
    }
    report.cases += 1;
    Ok(())
}

fn plan_nanos(policy: &Loaded, clock: &dyn Clock) -> Result<u64, Refusal> {
    const CALLS: usize = 11;
    let failed = |failure| Refusal::SelfTest { case: "speed over 200 partitions".to_owned(), failure };
    let deadline = policy.runtime().limits().claiming_deadline;
    let mut instance = policy.make_claiming_within(deadline).map_err(failed)?;
    let cycle = cycle(20, 200, |_, _| true, |_| -1);
    let mut nanos = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begun = clock.nanos();
        instance.plan(&cycle).map_err(failed)?;
        nanos.push(clock.nanos().saturating_sub(begun));
    }
    median_within(nanos, deadline).map_err(failed)
}

/// Makes a cycle of two topics; `subscribes(member, topic)`, `owner(partition)`.
pub(crate) fn cycle(
    members: usize,
    partitions: usize,
    subscribes: impl Fn(usize, u32) -> bool,
    owner: impl Fn(usize) -> i32,
) -> Cycle {
    let member = |row: usize| Member {
        id: format!("m{row:03}"),
        zone: ["", "z1", "z2"][row % 3].to_owned(),
        labels: Vec::new(),
        capacity: 1.0,
        since_ms: 1000 * row as u64,
        topics: (0..2).filter(|topic| subscribes(row, *topic)).collect(),
    };
    let first_topic = partitions.div_ceil(2);
    Cycle {
        group: "g".to_owned(),
        members: (0..members).map(member).collect(),
        topics: vec!["orders".to_owned(), "payments".to_owned()],
        places: vec![String::new(), "r1".to_owned()],
        topic: (0..partitions).map(|at| u32::from(at >= first_topic)).collect(),
        number: (0..partitions).map(|at| (at % first_topic.max(1)) as u32).collect(),
        place: vec![0; partitions],
        owner: (0..partitions).map(&owner).collect(),
        moving: vec![0; partitions],
        weight: vec![1.0; partitions],
        held_ms: (0..partitions).map(|at| if owner(at) < 0 { 0 } else { 5000 }).collect(),
        movement_budget: None,
        reason: Reason::Join,
        now_ms: 1_700_000_000_000,
        seed: 42,
    }
}

fn cycles() -> Vec<(&'static str, Cycle)> {
    let all = |_: usize, _: u32| true;
    let free = |_: usize| -1;
    let mut moving = cycle(3, 9, all, |at| (at % 3) as i32);
    moving.moving[4] = 1;
    let mut tight = cycle(4, 12, all, |at| (at % 2) as i32);
    tight.movement_budget = Some(1);
    let mut weighted = cycle(3, 9, all, free);
    weighted.weight = (0..9).map(|at| f64::from(at * at)).collect();
    vec![
        ("no partitions", cycle(2, 0, all, free)),
        ("one member, one partition", cycle(1, 1, all, free)),
        ("cold start", cycle(3, 10, all, free)),
        ("settled", cycle(3, 9, all, |at| (at % 3) as i32)),
        ("a newcomer", cycle(4, 12, all, |at| (at % 3) as i32)),
        ("more members than partitions", cycle(9, 4, all, free)),
        ("one owner has everything", cycle(4, 16, all, |_| 0)),
        ("different subscriptions", cycle(4, 12, |member, topic| member % 2 == topic as usize, free)),
        ("nobody subscribes to a topic", cycle(3, 12, |_, topic| topic == 0, free)),
        ("a hand-over under way", moving),
        ("a movement budget of one", tight),
        ("weights", weighted),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missed_deadline_is_tried_again() {
        let check = |mut outcomes: Vec<Result<(), Failure>>, expected: Result<(), Failure>, left: usize| {
            outcomes.reverse();
            let found = patiently(|| outcomes.pop().expect("it is not called more often"));
            assert_eq!((found, outcomes.len()), (expected, left));
        };
        let late = || Err(Failure::Timeout { deadline_ms: 10 });
        let trap = || Err(Failure::Trap("oh".to_owned()));
        check(vec![Ok(()), late()], Ok(()), 1);
        check(vec![late(), late(), Ok(())], Ok(()), 0);
        check(vec![late(), late(), late(), Ok(())], late(), 1);
        check(vec![trap(), Ok(())], trap(), 1);
        check(vec![late(), trap(), Ok(())], trap(), 1);
    }
}
