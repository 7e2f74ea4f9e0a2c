//! The candidate in the scoring role: told what a live version is told, asked what a live version is asked.
//!
//! Invariants: what the instance was told (`pending` at its last refresh) and what it was told to be committed add up to
//! what the live decision was made from; an instance that failed is never asked again.

use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::scoring::{self, Loads, Proposal, Recommendation, Request, ScoringSnapshot};
use fulcrum_core::time::millis;

use super::book::{Mishap, Times, Verdict};
use super::report::{Asked, Explained, ScoringExample, ScoringSide, Sides};
use super::run::Spent;
use crate::failure::{Failure, Outcome};
use crate::fallback;
use crate::seat::{ExplainedRow, Identity, ScoringPolicy};
use crate::tap::Scored;

/// Makes instances of the candidate.
pub(super) type Make = Box<dyn Fn() -> Result<Box<dyn ScoringPolicy>, Failure> + Send>;

/// See the module.
pub(super) struct Scorer {
    identity: Arc<Identity>,
    make: Make,
    /// What one answer may take, in processor time.
    deadline: Duration,
    instance: Option<Box<dyn ScoringPolicy>>,
    /// Revision of the roster the instance was told, 0 if none.
    roster_revision: u64,
    told: Option<Told>,
}

/// What an instance knows.
struct Told {
    snapshot: Arc<ScoringSnapshot>,
    /// How many of the rows given out since the snapshot.
    committed: usize,
}

/// How one comparison came out, with what the breaker has to know.
pub(super) struct Answered {
    pub(super) verdict: Verdict<ScoringExample>,
    pub(super) outcome: Outcome,
    /// Why it gave no usable answer.
    pub(super) failure: Option<Failure>,
    pub(super) times: Times,
}

impl Scorer {
    pub(super) fn new(identity: Arc<Identity>, make: Make, deadline: Duration) -> Self {
        Self { identity, make, deadline, instance: None, roster_revision: 0, told: None }
    }

    /// Lets the candidate answer what was decided, and compares. `example` is the number of the next difference, if that
    /// should become an example.
    pub(super) fn compare(&mut self, scored: &Scored, example: Option<u64>, spent: &Spent<'_>) -> Answered {
        let (answer, nanos) = self.answer(scored, spent);
        let times = Sides { live: scored.nanos, candidate: nanos };
        match answer {
            Ok(answer) => {
                let verdict = if answer.row == scored.decision.recommendation.row {
                    Verdict::Same
                } else {
                    Verdict::Different(example.map(|number| self.example(scored, answer, number)))
                };
                Answered { verdict, outcome: Outcome::Ok, failure: None, times }
            }
            Err(failure) => Answered {
                outcome: failure.outcome(),
                verdict: Verdict::Failed(Mishap::Failure(failure.clone())),
                failure: Some(failure),
                times,
            },
        }
    }

    /// Asks the candidate; returns its verified answer and the time from telling it to verifying it. Starting an
    /// instance does not count: a live one starts off the hot path as well.
    fn answer(&mut self, scored: &Scored, spent: &Spent<'_>) -> (Result<Recommendation, Failure>, u64) {
        if let Err(failure) = self.start() {
            return (Err(failure), 0);
        }
        let begun = spent();
        let deadline = self.deadline;
        let answer = self.attempt(scored, |instance, request, committed| {
            let begun = spent();
            let proposal = instance.recommend(request, committed)?;
            // Its thread is one of low priority, so it gets longer by the clock; what counts is what it used.
            if Duration::from_nanos(spent().saturating_sub(begun)) > deadline {
                return Err(Failure::Timeout { deadline_ms: millis(deadline) });
            }
            let ScoringSnapshot { roster, loads, .. } = &*scored.snapshot;
            scoring::verify(roster, loads, request.avoid, proposal)
                .map_err(|error| Failure::Illegal(error.to_string()))
        });
        (answer, spent().saturating_sub(begun))
    }

    fn attempt<T>(
        &mut self,
        scored: &Scored,
        call: impl FnOnce(&mut dyn ScoringPolicy, &Request<'_>, &[u32]) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let request = scored.request.as_request();
        let result = self.catch_up(scored).and_then(|known| match &mut self.instance {
            Some(instance) => call(&mut **instance, &request, &scored.committed[known..]),
            None => Err(Failure::Trap("there is no instance".to_owned())),
        });
        match (&result, &mut self.told) {
            (Ok(_), Some(told)) => told.committed = scored.committed.len(),
            (Ok(_), None) => {}
            (Err(failure), _) => self.failed(failure),
        }
        result
    }

    fn failed(&mut self, failure: &Failure) {
        // An instance that returned an error lives on, but nobody knows whether it took the committed rows in.
        self.told = None;
        if !matches!(failure, Failure::Declared(_)) {
            self.instance = None;
        }
    }

    fn start(&mut self) -> Result<(), Failure> {
        if self.instance.is_none() {
            self.told = None;
            self.roster_revision = 0;
            self.instance = Some((self.make)()?);
        }
        Ok(())
    }

    /// Makes sure that the instance knows everything but the committed rows from the returned number on.
    fn catch_up(&mut self, scored: &Scored) -> Result<usize, Failure> {
        self.start()?;
        let Some(instance) = &mut self.instance else { return Ok(0) };
        let snapshot = &scored.snapshot;
        if self.roster_revision != snapshot.roster_revision {
            self.told = None;
            instance.roster(&snapshot.roster)?;
            self.roster_revision = snapshot.roster_revision;
        }
        let is_known =
            |told: &&Told| Arc::ptr_eq(&told.snapshot, snapshot) && told.committed <= scored.committed.len();
        if let Some(told) = self.told.as_ref().filter(is_known) {
            return Ok(told.committed);
        }
        self.told = None;
        let loads = given_out(scored);
        instance.refresh(&loads)?;
        if instance.is_worn() {
            let fresh = self.instance.insert((self.make)()?);
            fresh.roster(&snapshot.roster)?;
            fresh.refresh(&loads)?;
        }
        let committed = scored.committed.len();
        self.told = Some(Told { snapshot: snapshot.clone(), committed });
        Ok(committed)
    }

    fn example(&mut self, scored: &Scored, answer: Recommendation, number: u64) -> ScoringExample {
        let Scored { snapshot, request, decision, .. } = scored;
        let roster = &snapshot.roster;
        let id = |row: usize| roster.rows()[row].id.to_string();
        let picked = decision.recommendation;
        let rows = [picked.row, answer.row];
        let side = |identity: Option<&Arc<Identity>>, pick: Recommendation, why| {
            let (explained, unexplained) = match why {
                Ok(explained) => (explained, None),
                Err(text) => (Vec::new(), Some(text)),
            };
            ScoringSide {
                policy: identity.map_or(fallback::NAME, |identity| &identity.name).to_owned(),
                digest: identity.map(|identity| identity.digest.clone()).unwrap_or_default(),
                instance_id: id(pick.row),
                score: pick.score.get(),
                explained,
                unexplained,
            }
        };
        let live = side(decision.by.as_ref(), picked, explain_live(scored, rows));
        let [picked, answered] = rows;
        let explained =
            self.attempt(scored, |instance, request, committed| instance.explain(request, committed));
        if !matches!(explained, Ok(Some(_))) {
            // An answer that was none took nothing in: what it was told is unknown.
            self.told = None;
        }
        let why = chosen(scored, explained, [answered, picked]);
        let candidate = side(Some(&self.identity), answer, why);
        let sessions = request.session_rows.iter().zip(&request.session_counts);
        let request = Asked {
            client_id: request.client_id.clone(),
            avoid: request.avoid.iter().map(|&row| id(row as usize)).collect(),
            sessions: sessions.map(|(&row, &count)| (id(row as usize), count)).collect(),
            inflow: request.client_inflow,
            outflow: request.client_outflow,
            now_ms: request.now_ms,
            seed: request.seed.to_string(),
        };
        ScoringExample { number, request, live, candidate }
    }
}

/// Asks an instance of its own of the live version why; the one that serves is not touched.
fn explain_live(scored: &Scored, rows: [usize; 2]) -> Result<Vec<Explained>, String> {
    let Some(asked) = scored.asked.as_ref().filter(|_| scored.decision.by.is_some()) else {
        let loads = given_out(scored);
        let scores = fallback::scores(&scored.snapshot.roster, &loads, &scored.request.avoid);
        let explained = scores.map(|found| {
            let score = found.score.get();
            let proposal = Proposal { row: u32::try_from(found.row).unwrap_or(u32::MAX), score };
            (proposal, vec![("sessions".to_owned(), score)])
        });
        return chosen(scored, Ok(Some(explained.collect())), rows);
    };
    let explain = || {
        let mut instance = asked.make()?;
        instance.roster(&scored.snapshot.roster)?;
        instance.refresh(&given_out(scored))?;
        instance.explain(&scored.request.as_request(), &[])
    };
    chosen(scored, explain(), rows)
}

/// Picks two rows out of an explanation, in that order.
fn chosen(
    scored: &Scored,
    explained: Result<Option<Vec<ExplainedRow>>, Failure>,
    rows: [usize; 2],
) -> Result<Vec<Explained>, String> {
    let explained = explained.map_err(|failure| failure.to_string())?;
    let Some(explained) = explained else { return Err("it does not explain itself".to_owned()) };
    let ScoringSnapshot { roster, loads, .. } = &*scored.snapshot;
    let explained = scoring::verify_explanation(roster, loads, &scored.request.avoid, explained)
        .map_err(|error| Failure::Illegal(error.to_string()).to_string())?;
    let of = |row: usize| explained.iter().find(move |parts| parts.row == row);
    let shown = |parts: &scoring::ScoreParts| Explained {
        instance_id: roster.rows()[parts.row].id.to_string(),
        score: parts.score.get(),
        parts: parts.parts.iter().cloned().collect(),
    };
    Ok(rows.into_iter().filter_map(of).map(shown).collect())
}

/// Returns the loads the decision was made from: those of the snapshot, with what was given out since then.
fn given_out(scored: &Scored) -> Loads {
    let mut loads = scored.snapshot.loads.clone();
    scored.committed.iter().for_each(|&row| loads.give_out(row as usize));
    loads
}

#[cfg(test)]
mod tests {
    use fulcrum_core::scoring::{Instance, Roster, Score};
    use parking_lot::Mutex;

    use super::*;
    use crate::failure::Declared;
    use crate::seat::{Decision, OwnedRequest};

    /// What an instance was told, in short.
    type Log = Arc<Mutex<Vec<String>>>;

    /// Chooses the row with the fewest pending ones; fails as the client asks it to.
    struct Fewest {
        log: Log,
        pending: Vec<u32>,
    }

    impl ScoringPolicy for Fewest {
        fn roster(&mut self, roster: &Roster) -> Result<(), Failure> {
            self.log.lock().push(format!("roster {}", roster.len()));
            Ok(())
        }

        fn refresh(&mut self, loads: &Loads) -> Result<(), Failure> {
            self.log.lock().push(format!("refresh {:?}", loads.pending));
            self.pending.clone_from(&loads.pending);
            Ok(())
        }

        fn recommend(&mut self, request: &Request<'_>, committed: &[u32]) -> Result<Proposal, Failure> {
            self.log.lock().push(format!("recommend {committed:?}"));
            match request.client_id {
                "trap" => return Err(Failure::Trap("it was asked to".to_owned())),
                "declare" => return Err(Failure::Declared(Declared::NoCandidate)),
                "lie" => return Ok(Proposal { row: 99, score: 0.0 }),
                _ => {}
            }
            committed.iter().for_each(|&row| self.pending[row as usize] += 1);
            let row = (0..self.pending.len()).min_by_key(|&row| self.pending[row]).expect("some rows");
            Ok(Proposal { row: row as u32, score: f64::from(self.pending[row]) })
        }

        fn explain(
            &mut self,
            _: &Request<'_>,
            committed: &[u32],
        ) -> Result<Option<Vec<ExplainedRow>>, Failure> {
            self.log.lock().push(format!("explain {committed:?}"));
            committed.iter().for_each(|&row| self.pending[row as usize] += 1);
            let row = |(row, &pending): (usize, &u32)| {
                let score = f64::from(pending);
                (Proposal { row: row as u32, score }, vec![("pending".to_owned(), score)])
            };
            Ok(Some(self.pending.iter().enumerate().map(row).collect()))
        }
    }

    fn scorer() -> (Scorer, Log) {
        let log = Log::default();
        let shared = log.clone();
        let make: Make = Box::new(move || {
            shared.lock().push("make".to_owned());
            Ok(Box::new(Fewest { log: shared.clone(), pending: Vec::new() }))
        });
        let identity = Arc::new(Identity { name: "fewest".to_owned(), ..Identity::default() });
        (Scorer::new(identity, make, Duration::from_millis(10)), log)
    }

    fn snapshot(rows: usize, roster_revision: u64) -> Arc<ScoringSnapshot> {
        let row = |row| Instance {
            id: Arc::from(format!("i{row}")),
            zone: String::new(),
            capacity: 1.0,
            labels: Vec::new(),
            age_ms: 0,
        };
        let roster = Arc::new(Roster::new((0..rows).map(row).collect()).expect("ids differ"));
        Arc::new(ScoringSnapshot { roster, loads: Loads::unknown(rows), roster_revision })
    }

    /// A live decision for row 0 by the fallback.
    fn scored(snapshot: &Arc<ScoringSnapshot>, committed: &[u32], client_id: &str) -> Scored {
        let recommendation = Recommendation { row: 0, score: Score::new(0.5).expect("a number") };
        Scored {
            snapshot: snapshot.clone(),
            committed: committed.to_vec(),
            request: OwnedRequest { client_id: client_id.to_owned(), ..OwnedRequest::default() },
            asked: None,
            failure: None,
            decision: Decision { recommendation, by: None, outcome: Outcome::Open },
            nanos: 7,
        }
    }

    fn told(log: &Log) -> Vec<String> {
        std::mem::take(&mut *log.lock())
    }

    #[test]
    fn an_instance_is_told_only_what_it_does_not_know() {
        let (mut scorer, log) = scorer();
        let spent = || 0;
        let mut compare = |scored: &Scored| {
            let answered = scorer.compare(scored, None, &spent);
            (matches!(answered.verdict, Verdict::Same), told(&log))
        };
        let first = snapshot(2, 1);
        assert_eq!(
            compare(&scored(&first, &[], "")),
            (true, ["make", "roster 2", "refresh [0, 0]", "recommend []"].map(str::to_owned).to_vec())
        );
        assert_eq!(compare(&scored(&first, &[0], "")), (false, vec!["recommend [0]".to_owned()]));
        // Some were dropped in between.
        assert_eq!(
            compare(&scored(&first, &[0, 1, 1, 1], "")),
            (true, vec!["recommend [1, 1, 1]".to_owned()])
        );
        let later = Arc::new(ScoringSnapshot::clone(&first));
        assert_eq!(
            compare(&scored(&later, &[0], "")),
            (false, ["refresh [1, 0]", "recommend []"].map(str::to_owned).to_vec()),
            "other loads, with what was given out since then"
        );
        let other = snapshot(3, 2);
        assert_eq!(
            compare(&scored(&other, &[], "")).1,
            ["roster 3", "refresh [0, 0, 0]", "recommend []"].map(str::to_owned).to_vec()
        );
        // It knows the other snapshot now: the first one is told as a whole.
        assert_eq!(compare(&scored(&first, &[1], "")).1.len(), 3);
    }

    #[test]
    fn what_failed_is_named_and_told_anew() {
        let check = |client: &str, expected: Outcome, next: &[&str]| {
            let (mut scorer, log) = scorer();
            let (first, spent) = (snapshot(2, 1), || 0);
            scorer.compare(&scored(&first, &[], ""), None, &spent);
            let answered = scorer.compare(&scored(&first, &[0], client), Some(1), &spent);
            assert_eq!(answered.outcome, expected, "{client}");
            assert_eq!(answered.failure.map(|failure| failure.outcome()), Some(expected));
            told(&log);
            let answered = scorer.compare(&scored(&first, &[0], ""), None, &spent);
            assert!(matches!(answered.verdict, Verdict::Different(None)), "{client}");
            assert_eq!(told(&log), next, "{client}");
        };
        let anew = ["make", "roster 2", "refresh [1, 0]", "recommend []"];
        check("trap", Outcome::Trap, &anew);
        check("lie", Outcome::Illegal, &anew);
        check("declare", Outcome::Declared, &["refresh [1, 0]", "recommend []"]);
    }

    #[test]
    fn more_processor_time_than_the_deadline_is_a_missed_deadline() {
        let (mut scorer, _) = scorer();
        let nanos = std::cell::Cell::new(0);
        let spent = || {
            nanos.set(nanos.get() + 11_000_000);
            nanos.get()
        };
        let answered = scorer.compare(&scored(&snapshot(2, 1), &[], ""), None, &spent);
        assert_eq!(answered.failure, Some(Failure::Timeout { deadline_ms: 10 }));
    }

    #[test]
    fn an_example_says_what_both_chose_and_why() {
        let (mut scorer, log) = scorer();
        let (first, spent) = (snapshot(3, 1), || 0);
        let mut asked = scored(&first, &[0, 0], "c");
        asked.request.avoid = vec![2];
        asked.request.session_rows = vec![1];
        asked.request.session_counts = vec![4];
        asked.request.seed = u64::MAX;
        let answered = scorer.compare(&asked, Some(5), &spent);
        let Verdict::Different(Some(example)) = answered.verdict else { panic!("an example") };
        assert_eq!((example.number, &*example.request.seed), (5, "18446744073709551615"));
        assert_eq!((&*example.request.avoid, example.request.sessions["i1"]), (&["i2".to_owned()][..], 4));
        let explained = |side: &ScoringSide| {
            side.explained.iter().map(|row| (row.instance_id.clone(), row.score)).collect::<Vec<_>>()
        };
        let row = |id: &str, score: f64| (id.to_owned(), score);
        // The fallback counts pending ones too: two were given out to the first row.
        assert_eq!((&*example.live.policy, &*example.live.instance_id), ("fallback", "i0"));
        assert_eq!(explained(&example.live), [row("i0", 2.0), row("i1", 0.0)]);
        assert_eq!((&*example.candidate.policy, &*example.candidate.instance_id), ("fewest", "i1"));
        // Explaining a row that may not be chosen is illegal.
        assert_eq!(example.candidate.explained, []);
        assert!(example.candidate.unexplained.is_some_and(|text| text.contains("i2")));
        // Rows that an explanation took in are not told again, nor are they lost.
        told(&log);
        scorer.compare(&scored(&first, &[0, 0, 1], ""), None, &spent);
        assert_eq!(told(&log), ["recommend [1]"]);
        asked.request.avoid.clear();
        asked.committed.push(1);
        asked.committed.extend([2, 1]);
        let answered = scorer.compare(&asked, Some(6), &spent);
        let Verdict::Different(Some(example)) = answered.verdict else { panic!("an example") };
        assert_eq!(explained(&example.candidate), [row("i2", 1.0), row("i0", 2.0)]);
        assert_eq!(told(&log), ["recommend [2, 1]", "explain []"]);
    }
}
