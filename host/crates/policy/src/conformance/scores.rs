//! How a case of the scoring role is tried: what is asked, and which answers must be the same.

use fulcrum_core::scoring::{self, Loads, Proposal, Roster};

use super::rosters::{Ask, Case};
use super::{Bench, Call, Fault, Kind, Plan, SCORING_PATIENCE};
use crate::failure::Declared;
use crate::guest::WasmScoring;
use crate::proof::same;
use crate::seat::ScoringPolicy as _;

/// An answer; an error that the policy returned is one.
type Answer = Result<Proposal, Declared>;

/// Returns the classes of the role, with at most so many rows.
pub(super) fn classes(rows_max: usize) -> Vec<Plan<Case>> {
    super::rosters::classes(rows_max)
}

/// Tries a case; returns how large it is, in words.
pub(super) fn test(bench: &mut Bench<'_>, case: &Case) -> Result<String, Fault> {
    let answers = talk(bench, case, false)?;
    // First, because what is told again in a thorough talk hides how `committed` was taken in.
    law(bench, case, &answers)?;
    let thorough = talk(bench, case, true)?;
    for (at, (answer, disturbed)) in answers.iter().flatten().zip(thorough.iter().flatten()).enumerate() {
        if !alike(answer, disturbed) {
            let text = format!(
                "to request {at} an instance answers {}, and {} after it was asked the same twice and to explain in between",
                words(answer),
                words(disturbed)
            );
            return Err(Fault::new(Kind::HiddenState, text));
        }
    }
    let rows = case.rounds.iter().map(|round| round.snapshot.roster.len()).max().unwrap_or(0);
    Ok(format!("{rows} rows"))
}

/// Asks all requests of a case on one fresh instance, each pick committed with the next request.
///
/// A thorough talk asks each request twice, and to explain before or after it: neither may change an answer.
fn talk(bench: &mut Bench<'_>, case: &Case, is_thorough: bool) -> Result<Vec<Vec<Answer>>, Fault> {
    let mut instance = start(bench)?;
    let mut answers = Vec::with_capacity(case.rounds.len());
    for round in &case.rounds {
        let roster = &round.snapshot.roster;
        let mut told = round.snapshot.loads.clone();
        let mut found = Vec::with_capacity(round.asks.len());
        let refused = tell(bench, &mut instance, round.is_new.then_some(roster), &told)?.err();
        if let Some(error) = refused {
            answers.push(round.asks.iter().map(|_| Err(error.clone())).collect());
            continue;
        }
        for (at, ask) in round.asks.iter().enumerate() {
            let mut committed = given_out(&mut told, ask, found.last());
            let mut explained = None;
            let explains_first = at % 3 == 2;
            if is_thorough && explains_first {
                explained = explain(bench, &mut instance, roster, &told, ask, &committed)?;
                committed.clear();
            }
            let answer = recommend(bench, &mut instance, roster, &told, ask, &committed)?;
            if let Ok(proposal) = &answer
                && is_thorough
            {
                let again = recommend(bench, &mut instance, roster, &told, ask, &[])?;
                if !alike(&answer, &again) {
                    return Err(Fault::new(
                        Kind::HiddenState,
                        format!(
                            "it answers {}, and asked the same again {}, with nothing given out in between",
                            words(&answer),
                            words(&again)
                        ),
                    ));
                }
                if !explains_first {
                    explained = explain(bench, &mut instance, roster, &told, ask, &[])?;
                }
                agree(*proposal, explained.as_deref())?;
            }
            found.push(answer);
        }
        answers.push(found);
    }
    bench.used(instance.memory_bytes());
    Ok(answers)
}

/// Asks everything again of an instance that is told all loads before each request, and the last request of each round
/// also of a fresh one.
fn law(bench: &mut Bench<'_>, case: &Case, answers: &[Vec<Answer>]) -> Result<(), Fault> {
    let mut instance = start(bench)?;
    for (number, (round, answers)) in case.rounds.iter().zip(answers).enumerate() {
        let roster = &round.snapshot.roster;
        let mut told = round.snapshot.loads.clone();
        let mut is_new = true;
        let mut last: Option<&Answer> = None;
        for (at, (ask, answer)) in round.asks.iter().zip(answers).enumerate() {
            given_out(&mut told, ask, last);
            let refreshed = ask_told(bench, &mut instance, roster, is_new, &told, ask)?;
            is_new = false;
            if at + 1 == round.asks.len() || !alike(answer, &refreshed) {
                let mut fresh = start(bench)?;
                let alone = ask_told(bench, &mut fresh, roster, true, &told, ask)?;
                judge(number, at, answer, &refreshed, &alone)?;
            }
            last = Some(answer);
        }
    }
    Ok(())
}

/// Tells everything there is to know before it asks.
fn ask_told(
    bench: &mut Bench<'_>,
    instance: &mut WasmScoring,
    roster: &Roster,
    is_new: bool,
    told: &Loads,
    ask: &Ask,
) -> Result<Answer, Fault> {
    match tell(bench, instance, is_new.then_some(roster), told)? {
        Ok(()) => recommend(bench, instance, roster, told, ask, &[]),
        Err(error) => Ok(Err(error)),
    }
}

/// Compares what was answered in the course of things, after a refresh with everything, and on a fresh instance.
fn judge(round: usize, at: usize, answer: &Answer, refreshed: &Answer, alone: &Answer) -> Result<(), Fault> {
    let (kind, message) = if !alike(refreshed, alone) {
        let text = format!(
            "with the same roster and loads an instance that knew earlier ones answers {} where a fresh one answers {}",
            words(refreshed),
            words(alone)
        );
        (Kind::HiddenState, text)
    } else if !alike(answer, alone) && round > 0 {
        let text = format!(
            "to request {at} after roster {round} it answers {}, a fresh instance with the same roster and loads answers {}",
            words(answer),
            words(alone)
        );
        (Kind::HiddenState, text)
    } else if !alike(answer, alone) {
        let text = format!(
            "to request {at} it answers {} with what was given out as `committed`, and {} with the same as `pending`",
            words(answer),
            words(alone)
        );
        (Kind::Law, text)
    } else {
        return Ok(());
    };
    Err(Fault::new(kind, message))
}

fn start(bench: &Bench<'_>) -> Result<WasmScoring, Fault> {
    let deadline = bench.policy.runtime().limits().scoring_deadline * SCORING_PATIENCE;
    bench.policy.make_scoring(deadline).map_err(|failure| Fault::failed("configure", &failure))
}

/// Tells a roster, where there is a new one, and loads.
fn tell(
    bench: &mut Bench<'_>,
    instance: &mut WasmScoring,
    roster: Option<&Roster>,
    loads: &Loads,
) -> Result<Result<(), Declared>, Fault> {
    if let Some(roster) = roster
        && let Err(error) = bench.time(Call::Roster, || instance.roster(roster))?
    {
        return Ok(Err(error));
    }
    bench.time(Call::Refresh, || instance.refresh(loads))
}

/// Counts what was given out since the last request into the loads, and returns it.
fn given_out(told: &mut Loads, ask: &Ask, last: Option<&Answer>) -> Vec<u32> {
    let own = last.and_then(|answer| answer.as_ref().ok()).map(|proposal| proposal.row);
    let committed: Vec<u32> = own.into_iter().chain(ask.others.iter().copied()).collect();
    committed.iter().for_each(|row| told.give_out(*row as usize));
    committed
}

fn recommend(
    bench: &mut Bench<'_>,
    instance: &mut WasmScoring,
    roster: &Roster,
    told: &Loads,
    ask: &Ask,
    committed: &[u32],
) -> Result<Answer, Fault> {
    let request = ask.request.as_request();
    let answer = bench.time(Call::Recommend, || instance.recommend(&request, committed))?;
    match &answer {
        Ok(proposal) => {
            scoring::verify(roster, told, request.avoid, *proposal)
                .map_err(|illegal| Fault::scoring(&illegal))?;
        }
        // As in service: an error took nothing in, so everything is told again.
        Err(_) => drop(tell(bench, instance, None, told)?),
    }
    Ok(answer)
}

/// Asks for an explanation; `None` if the policy gives none.
fn explain(
    bench: &mut Bench<'_>,
    instance: &mut WasmScoring,
    roster: &Roster,
    told: &Loads,
    ask: &Ask,
    committed: &[u32],
) -> Result<Option<Vec<scoring::ScoreParts>>, Fault> {
    let request = ask.request.as_request();
    let Ok(Some(rows)) = bench.time(Call::Explain, || instance.explain(&request, committed))? else {
        drop(tell(bench, instance, None, told)?);
        return Ok(None);
    };
    let count = rows.len();
    let rows = scoring::verify_explanation(roster, told, request.avoid, rows).map_err(|illegal| {
        let fault = Fault::scoring(&illegal);
        // Not to be found by who looks at `recommend`.
        Fault { kind: Kind::Explanation, message: format!("`explain`: {}", fault.message) }
    })?;
    let expected = (0..roster.len()).filter(|row| scoring::choosable(told, request.avoid, *row)).count();
    if count != expected {
        let text = format!("`explain` lists {count} of {expected} rows that may be chosen");
        return Err(Fault::new(Kind::Explanation, text));
    }
    Ok(Some(rows))
}

/// Compares a choice with what was explained.
fn agree(proposal: Proposal, explained: Option<&[scoring::ScoreParts]>) -> Result<(), Fault> {
    let row = proposal.row as usize;
    let Some(parts) = explained.unwrap_or_default().iter().find(|parts| parts.row == row) else {
        return Ok(());
    };
    if parts.score.get().to_bits() == proposal.score.to_bits() {
        return Ok(());
    }
    let text = format!(
        "`recommend` says that row {row} costs {}, `explain` says {} for the same request",
        proposal.score,
        parts.score.get()
    );
    Err(Fault::new(Kind::ExplainsOtherwise, text))
}

fn alike(a: &Answer, b: &Answer) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => same(a, b),
        // The words may tell of what is not part of the answer.
        (Err(a), Err(b)) => super::error_name(a) == super::error_name(b),
        _ => false,
    }
}

fn words(answer: &Answer) -> String {
    match answer {
        Ok(proposal) => format!("row {} at {}", proposal.row, proposal.score),
        Err(error) => format!("the error {:?}", error.to_string()),
    }
}
