//! How a case of the claiming role is tried: which plans must be the same, and where a group comes to rest.

use fulcrum_core::claiming::{self, Cycle, Proposal, Reason};
use fulcrum_core::seed;

use super::cycles::Case;
use super::{Bench, CLAIMING_PATIENCE, Call, Fault, Kind, Plan};
use crate::claim::ClaimingPolicy as _;
use crate::failure::Declared;
use crate::guest::WasmClaiming;
use crate::proof;

/// Cycles after which a group without a movement budget should be settled.
const CYCLES_MAX: usize = 20;
/// Time between two cycles where the policy asks for none.
const INTERVAL_MS: u64 = 20_000;

/// A plan; an error that the policy returned is one.
type Answer = Result<Proposal, Declared>;

/// Returns the classes of the role.
pub(super) fn classes() -> Vec<Plan<Case>> {
    super::cycles::classes()
}

/// Tries a case; returns how large it is, in words.
pub(super) fn test(bench: &mut Bench<'_>, case: &Case) -> Result<String, Fault> {
    let cycle = &case.cycle;
    let mut instance = start(bench)?;
    let first = plan(bench, &mut instance, cycle)?;
    let second = plan(bench, &mut instance, cycle)?;
    let mut other = start(bench)?;
    // What it plans here is of no interest.
    drop(plan(bench, &mut other, &proof::cycle(20, 200, |_, _| true, |at| (at % 3) as i32 - 1))?);
    let after = plan(bench, &mut other, cycle)?;
    for (answer, when) in [(&second, "asked the same again"), (&after, "after a cycle of another group")] {
        if !alike(answer, &first) {
            let text = format!("{when} it plans otherwise: {}", difference(&first, answer));
            return Err(Fault::new(Kind::HiddenState, text));
        }
    }
    if case.settles {
        settle(bench, &mut instance, cycle)?;
    }
    bench.used(instance.memory_bytes());
    bench.used(other.memory_bytes());
    Ok(format!("{} members and {} partitions", cycle.members.len(), cycle.owner.len()))
}

fn start(bench: &Bench<'_>) -> Result<WasmClaiming, Fault> {
    let deadline = bench.policy.runtime().limits().claiming_deadline * CLAIMING_PATIENCE;
    bench.policy.make_claiming_within(deadline).map_err(|failure| Fault::failed("configure", &failure))
}

fn plan(bench: &mut Bench<'_>, instance: &mut WasmClaiming, cycle: &Cycle) -> Result<Answer, Fault> {
    let answer = bench.time(Call::Plan, || instance.plan(cycle))?;
    if let Ok(proposal) = &answer {
        claiming::verify(cycle, proposal).map_err(|illegal| Fault::claiming(&illegal))?;
    }
    Ok(answer)
}

/// Carries plans out until one changes nothing. Hand-overs end before the next cycle.
fn settle(bench: &mut Bench<'_>, instance: &mut WasmClaiming, cycle: &Cycle) -> Result<(), Fault> {
    let mut cycle = cycle.clone();
    // Each cycle under a budget does a part, however small.
    let bound = CYCLES_MAX + cycle.movement_budget.map_or(0, |_| cycle.owner.len());
    let mut changed = 0;
    for number in 0..bound {
        cycle.seed = seed::mix(number as u64);
        let Ok(proposal) = plan(bench, instance, &cycle)? else { return Ok(()) };
        let plan = claiming::verify(&cycle, &proposal).map_err(|illegal| Fault::claiming(&illegal))?;
        changed = plan.claims.len() + plan.releases.len();
        if changed == 0 {
            return Ok(());
        }
        let passed_ms = plan.next_cycle_ms.map_or(INTERVAL_MS, u64::from);
        let owners = claiming::apply(&cycle, &plan);
        for (at, owner) in owners.iter().enumerate() {
            let owner = owner.map_or(-1, |row| row as i32);
            let stays = owner >= 0 && owner == cycle.owner[at];
            let passed = u32::try_from(passed_ms).unwrap_or(u32::MAX);
            cycle.held_ms[at] = if stays { cycle.held_ms[at].saturating_add(passed) } else { 0 };
            cycle.owner[at] = owner;
        }
        cycle.moving.fill(0);
        cycle.now_ms += passed_ms;
        cycle.members.iter_mut().for_each(|member| member.since_ms += passed_ms);
        cycle.reason = if plan.next_cycle_ms.is_some() { Reason::Fast } else { Reason::Interval };
    }
    let text = format!(
        "after {bound} cycles of an unchanged group the last plan still changes {changed} partitions"
    );
    bench.notes.push(Fault::new(Kind::Unsettled, text));
    Ok(())
}

fn alike(a: &Answer, b: &Answer) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => a == b,
        // The words may tell of what is not part of the answer.
        (Err(a), Err(b)) => super::error_name(a) == super::error_name(b),
        _ => false,
    }
}

/// Says how two plans differ, in words.
fn difference(a: &Answer, b: &Answer) -> String {
    match (a, b) {
        (Ok(a), Ok(b)) => {
            let member = |plan: &Proposal, partition: u32| {
                plan.partition.iter().position(|&named| named == partition).map(|at| plan.member[at])
            };
            let shown = |member: Option<u32>| {
                member.map_or_else(|| "nobody".to_owned(), |member| format!("member {member}"))
            };
            let named = a.partition.iter().chain(&b.partition);
            let odd = named.copied().find(|&partition| member(a, partition) != member(b, partition));
            match odd {
                Some(partition) => format!(
                    "partition {partition} is claimed for {}, then for {}",
                    shown(member(a, partition)),
                    shown(member(b, partition))
                ),
                None => {
                    "the claims are the same in another order, or the reasons or releases differ".to_owned()
                }
            }
        }
        (a, b) => {
            let words = |answer: &Answer| match answer {
                Ok(plan) => format!("a plan of {} claims", plan.partition.len()),
                Err(error) => format!("the error {:?}", error.to_string()),
            };
            format!("{}, then {}", words(a), words(b))
        }
    }
}
