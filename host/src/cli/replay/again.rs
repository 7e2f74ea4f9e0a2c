//! Asking again: by an instance that goes on, by one that knows nothing else, and by the native fallback.
//!
//! Invariant: an instance that failed is not asked again, and one that returned an error is told everything anew, as in
//! service.

use std::sync::Arc;

use fulcrum_core::claiming::{self, Plan};
use fulcrum_core::scoring::{self, Recommendation, Roster, ScoreParts, ScoringSnapshot};
use fulcrum_policy::claim::ClaimingPolicy;
use fulcrum_policy::journal::{self, Record};
use fulcrum_policy::seat::{Identity, ScoringFactory as _, ScoringPolicy};
use fulcrum_policy::{Failure, Loaded, fallback};

use super::kept::Kept;

/// Versions with an instance at the same time, in each role.
const SEATS_MAX: usize = 16;
/// Bytes of what the instances of the scoring role were told, unless a single one was told more.
const TOLD_BYTES_MAX: usize = 256 << 20;

/// An answer to either question.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// `None` if nobody may be chosen.
    Scoring(Option<Recommendation>),
    Claiming(Plan),
}

/// How much of two answers is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Likeness {
    /// Every bit.
    Same,
    /// The choice (the instance, or what each partition's owner is to be), but not what comes with it.
    SameChoice,
    Different,
}

impl Answer {
    pub(super) fn recorded(record: &Record) -> Self {
        match record {
            Record::Scoring(scoring) => Self::Scoring(Some(scoring.answer)),
            Record::Claiming(claiming) => Self::Claiming(claiming.plan.clone()),
        }
    }

    /// Compares two answers to the question of a record.
    pub(super) fn likeness(&self, other: &Self, record: &Record) -> Likeness {
        let (is_same, is_same_choice) = match (self, other, record) {
            (Self::Scoring(one), Self::Scoring(other), _) => {
                let bits = |answer: &Option<Recommendation>| answer.map(|found| found.score.get().to_bits());
                let row = |answer: &Option<Recommendation>| answer.map(|found| found.row);
                (row(one) == row(other) && bits(one) == bits(other), row(one) == row(other))
            }
            (Self::Claiming(one), Self::Claiming(other), Record::Claiming(claiming)) => {
                let owners = |plan| claiming::apply(&claiming.cycle, plan);
                (one == other, owners(one) == owners(other))
            }
            _ => (false, false),
        };
        match (is_same, is_same_choice) {
            (true, _) => Likeness::Same,
            (false, true) => Likeness::SameChoice,
            (false, false) => Likeness::Different,
        }
    }
}

/// Instances that go on from decision to decision, [`SEATS_MAX`] in each role.
pub(super) struct Again {
    scoring: Kept<Arc<Identity>, Seat>,
    claiming: Kept<Arc<Identity>, Box<dyn ClaimingPolicy>>,
}

impl Default for Again {
    fn default() -> Self {
        Self { scoring: Kept::new(SEATS_MAX, TOLD_BYTES_MAX), claiming: Kept::new(SEATS_MAX, usize::MAX) }
    }
}

/// An instance, and what it was told.
struct Seat {
    instance: Box<dyn ScoringPolicy>,
    roster: Option<Arc<Roster>>,
    /// About how many bytes of a journal it holds on to.
    roster_bytes: usize,
    snapshot: Option<Arc<ScoringSnapshot>>,
    committed: Vec<u32>,
}

impl Again {
    /// Asks a version what was asked then.
    pub(super) fn ask(&mut self, loaded: &Arc<Loaded>, record: &Record) -> Result<Answer, Failure> {
        match record {
            Record::Scoring(scoring) => self.score(loaded, scoring).map(|found| Answer::Scoring(Some(found))),
            Record::Claiming(claiming) => self.plan(loaded, claiming).map(Answer::Claiming),
        }
    }

    fn score(&mut self, loaded: &Arc<Loaded>, record: &journal::Scoring) -> Result<Recommendation, Failure> {
        let identity = loaded.identity();
        let mut seat = match self.scoring.take(identity) {
            Some(seat) => seat,
            None => Seat {
                instance: loaded.make()?,
                roster: None,
                roster_bytes: 0,
                snapshot: None,
                committed: Vec::new(),
            },
        };
        let answer = seat.ask(record);
        // One that failed with anything but an error of its own is dropped.
        let lives_on = match &answer {
            Ok(_) => true,
            Err(Failure::Declared(_)) => {
                seat.snapshot = None;
                true
            }
            Err(_) => false,
        };
        if lives_on {
            let bytes = seat.roster_bytes;
            self.scoring.put(identity.clone(), seat, bytes);
        }
        answer
    }

    fn plan(&mut self, loaded: &Arc<Loaded>, record: &journal::Claiming) -> Result<Plan, Failure> {
        let identity = loaded.identity();
        let mut instance = match self.claiming.take(identity) {
            Some(instance) => instance,
            None => loaded.make_claiming()?,
        };
        let proposal = instance.plan(&record.cycle);
        if matches!(proposal, Ok(_) | Err(Failure::Declared(_))) {
            self.claiming.put(identity.clone(), instance, 0);
        }
        claiming::verify(&record.cycle, &proposal?).map_err(|illegal| Failure::Illegal(illegal.to_string()))
    }
}

impl Seat {
    fn ask(&mut self, record: &journal::Scoring) -> Result<Recommendation, Failure> {
        let is_told = self.snapshot.as_ref().is_some_and(|told| Arc::ptr_eq(told, &record.snapshot))
            && record.committed.starts_with(&self.committed);
        if !is_told {
            let roster = &record.snapshot.roster;
            if !self.roster.as_ref().is_some_and(|told| Arc::ptr_eq(told, roster)) {
                self.roster = None;
                self.instance.roster(roster)?;
                self.roster = Some(roster.clone());
                self.roster_bytes = roster.rows().iter().map(bytes_of).sum();
            }
            self.snapshot = None;
            self.instance.refresh(&record.snapshot.loads)?;
            self.snapshot = Some(record.snapshot.clone());
            self.committed.clear();
        }
        let news = &record.committed[self.committed.len()..];
        let proposal = self.instance.recommend(&record.request.as_request(), news)?;
        self.committed.clone_from(&record.committed);
        verified(record, proposal)
    }
}

/// Returns about how many bytes a row takes, its loads included.
fn bytes_of(row: &scoring::Instance) -> usize {
    const LOADS_BYTES: usize = 37;
    let labels = row.labels.iter().map(|label| size_of_val(label) + label.0.len() + label.1.len());
    size_of_val(row) + row.id.len() + row.zone.len() + labels.sum::<usize>() + LOADS_BYTES
}

fn verified(record: &journal::Scoring, proposal: scoring::Proposal) -> Result<Recommendation, Failure> {
    let ScoringSnapshot { roster, loads, .. } = &*record.snapshot;
    scoring::verify(roster, loads, &record.request.avoid, proposal)
        .map_err(|illegal| Failure::Illegal(illegal.to_string()))
}

/// Makes an instance that was never asked anything: what was given out since the snapshot is part of the loads.
fn fresh(loaded: &Loaded, record: &journal::Scoring) -> Result<Box<dyn ScoringPolicy>, Failure> {
    let mut instance = loaded.make()?;
    instance.roster(&record.snapshot.roster)?;
    instance.refresh(&record.loads())?;
    Ok(instance)
}

/// Asks an instance of a version what each instance would have cost, cheapest first; `None` if it does not explain.
pub(super) fn explain(
    loaded: &Loaded,
    record: &journal::Scoring,
) -> Result<Option<Vec<ScoreParts>>, Failure> {
    let explained = fresh(loaded, record)?.explain(&record.request.as_request(), &[])?;
    let Some(rows) = explained else { return Ok(None) };
    let ScoringSnapshot { roster, loads, .. } = &*record.snapshot;
    scoring::verify_explanation(roster, loads, &record.request.avoid, rows)
        .map(Some)
        .map_err(|illegal| Failure::Illegal(illegal.to_string()))
}

/// Returns what each instance costs by the fallback's rule, cheapest first.
pub(super) fn explain_native(record: &journal::Scoring) -> Vec<ScoreParts> {
    let loads = record.loads();
    let scores = fallback::scores(&record.snapshot.roster, &loads, &record.request.avoid);
    let parts = |Recommendation { row, score }| ScoreParts {
        row,
        score,
        parts: vec![("sessions".to_owned(), score.get())],
    };
    let mut rows: Vec<_> = scores.map(parts).collect();
    rows.sort_by(|a, b| a.score.cmp(&b.score).then(a.row.cmp(&b.row)));
    rows
}

/// Asks an instance that was never asked anything.
pub(super) fn alone(loaded: &Loaded, record: &Record) -> Result<Answer, Failure> {
    match record {
        Record::Scoring(scoring) => {
            let mut instance = fresh(loaded, scoring)?;
            let proposal = instance.recommend(&scoring.request.as_request(), &[])?;
            verified(scoring, proposal).map(|found| Answer::Scoring(Some(found)))
        }
        Record::Claiming(claiming) => {
            let proposal = loaded.make_claiming()?.plan(&claiming.cycle)?;
            claiming::verify(&claiming.cycle, &proposal)
                .map(Answer::Claiming)
                .map_err(|illegal| Failure::Illegal(illegal.to_string()))
        }
    }
}

/// Answers as the host does when a policy gives no answer.
pub(super) fn native(record: &Record) -> Answer {
    match record {
        Record::Scoring(scoring) => {
            let request = scoring.request.as_request();
            Answer::Scoring(fallback::recommend(&scoring.snapshot.roster, &scoring.loads(), &request))
        }
        Record::Claiming(claiming) => Answer::Claiming(fallback::plan(&claiming.cycle)),
    }
}
