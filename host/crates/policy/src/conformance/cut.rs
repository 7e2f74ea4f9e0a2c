//! What becomes of calls that are cut off: a deadline may end a call at any instruction, and the instance with it.
//!
//! Calls are cut by fuel, so that they end at the same instruction on every machine.

use std::time::Duration;

use super::{Call, Fault, Kind, Report};
use crate::artifact::Loaded;
use crate::claim::ClaimingPolicy as _;
use crate::failure::Failure;
use crate::guest::{WasmClaiming, WasmScoring};
use crate::proof::{self, Chance};
use crate::seat::ScoringPolicy as _;

/// Deadline that stands for fuel that no call uses up: one unit for each millisecond.
pub(super) const PLENTY: Duration = Duration::from_millis(PLENTY_FUEL);
const PLENTY_FUEL: u64 = 1 << 40;
/// Where calls are cut, in quarters of what they need; 0 is the first instruction.
const QUARTERS: u64 = 4;
/// The name of the part in findings.
const CLASS: &str = "deadline";

/// How one kind of call stands being cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// `roster`, `refresh`, `recommend` or `plan`.
    pub call: &'static str,
    /// What it is about, in words.
    pub size: &'static str,
    /// Instructions the whole call takes.
    pub instructions: u64,
    /// How often it was cut off; each time a fresh instance answered as before.
    pub cuts: usize,
}

/// Cuts calls of every role off.
pub(super) fn run(metered: &Loaded, report: &mut Report) {
    let roles = metered.artifact().roles();
    if roles.scoring {
        for call in [Call::Roster, Call::Refresh, Call::Recommend] {
            note(report, call, |cut| scoring(metered, call, cut), "100 rows");
        }
    }
    if roles.claiming {
        note(report, Call::Plan, |cut| claiming(metered, cut), "20 members and 200 partitions");
    }
}

/// What a run under a cut left: the fuel the call used, and the answer of the instance as text.
struct Made {
    instructions: u64,
    answer: String,
}

/// Measures a call, cuts it off at several points, and compares what comes after.
fn note(
    report: &mut Report,
    call: Call,
    make: impl Fn(Option<u64>) -> Result<Made, Failure>,
    size: &'static str,
) {
    let case = || format!("{CLASS}/{}", call.name());
    let whole = match make(None) {
        Ok(whole) => whole,
        // An error of the policy's own, which the cases count.
        Err(Failure::Declared(_)) => return,
        Err(failure) => return report.add(CLASS, case(), Fault::failed(call.name(), &failure)),
    };
    let mut cuts = 0;
    for quarter in 0..QUARTERS {
        let fuel = (whole.instructions * quarter / QUARTERS).max(1);
        match make(Some(fuel)) {
            Err(Failure::Limit(_)) => cuts += 1,
            // So short that it is never looked at.
            Ok(_) => continue,
            Err(failure) => {
                report.add(CLASS, case(), Fault::failed(call.name(), &failure));
                continue;
            }
        }
        let after = make(None).map(|after| after.answer);
        if after.as_ref() != Ok(&whole.answer) {
            let text = format!(
                "after `{}` was cut off at instruction {fuel} a fresh instance answers {after:?} where one before it answered \
                 {:?}",
                call.name(),
                whole.answer
            );
            report.add(CLASS, case(), Fault::new(Kind::HiddenState, text));
        }
    }
    report.cuts.push(Cut { call: call.name(), size, instructions: whole.instructions, cuts });
}

/// Makes one decision over 100 rows on a fresh instance, with little fuel for one of its calls.
fn scoring(metered: &Loaded, cut_call: Call, cut: Option<u64>) -> Result<Made, Failure> {
    let snapshot = proof::snapshot(100, &mut Chance(7), |_, load| Some(load));
    let request = proof::requests(1, &mut Chance(7)).remove(0);
    let request = request.as_request();
    let mut instance = metered.make_scoring(PLENTY)?;
    let mut instructions = 0;
    let mut answer = String::new();
    for call in [Call::Roster, Call::Refresh, Call::Recommend] {
        // A roster has ten times the deadline.
        let times = if call == Call::Roster { 10 } else { 1 };
        let fuel = cut.filter(|_| call == cut_call).map_or(PLENTY_FUEL, |fuel| (fuel / times).max(1));
        instance.set_deadline(span(fuel));
        match call {
            Call::Roster => instance.roster(&snapshot.roster)?,
            Call::Refresh => instance.refresh(&snapshot.loads)?,
            _ => answer = format!("{:?}", instance.recommend(&request, &[])?),
        }
        if call == cut_call {
            instructions = used(fuel * times, WasmScoring::fuel_left(&instance));
        }
    }
    Ok(Made { instructions, answer })
}

/// Makes one plan on a fresh instance, with little fuel or plenty.
fn claiming(metered: &Loaded, cut: Option<u64>) -> Result<Made, Failure> {
    let cycle = proof::cycle(20, 200, |_, _| true, |_| -1);
    let mut instance = metered.make_claiming_within(PLENTY)?;
    let fuel = cut.unwrap_or(PLENTY_FUEL);
    instance.set_deadline(span(fuel));
    let answer = format!("{:?}", instance.plan(&cycle)?);
    Ok(Made { instructions: used(fuel, WasmClaiming::fuel_left(&instance)), answer })
}

fn used(given: u64, left: Option<u64>) -> u64 {
    left.map_or(0, |left| given.saturating_sub(left))
}

/// Returns the deadline that stands for some fuel, one unit per millisecond.
fn span(fuel: u64) -> Duration {
    Duration::from_millis(fuel)
}
