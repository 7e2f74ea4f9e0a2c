//! The seat of the scoring role: the policy that serves it now, what that policy has been told, and the fallback.
//!
//! Invariants: every decision is made by exactly one policy version or by the fallback, and is verified against the
//! snapshot it was made from; an instance that failed is never asked again; what an instance has not been told
//! (`committed`) and what it was told (`pending` at its last refresh) always add up to the snapshot's `pending`.

mod live;

use std::sync::Arc;

use fulcrum_core::scoring::{
    self, Loads, Proposal, Recommendation, Request, Roster, ScoreParts, ScoringSnapshot,
};
use fulcrum_core::time::{Clock, Timestamp};

use self::live::{Canary, Live};
use crate::artifact;
use crate::breaker;
use crate::failure::{Failure, Outcome};
use crate::fallback;
use crate::probation::Probation;
use crate::tally::Tally;
use crate::tap::{Made, Observer, Tap};

/// Which policy version something was decided by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Name of the policy, for example `weighted`.
    pub name: String,
    /// Lower-case hex sha256 of its component.
    pub digest: String,
    /// Its effective configuration, as canonical JSON.
    pub config: String,
}

impl Identity {
    /// Returns a short name of the version for people, see [`label`].
    #[must_use]
    pub fn label(&self) -> String {
        label(&self.digest, &self.config)
    }

    /// Returns the lower-case hex sha256 of the configuration, `None` if that is empty.
    #[must_use]
    pub fn config_digest(&self) -> Option<String> {
        config_digest(&self.config)
    }
}

/// Returns a short name of a version for people: the first 8 digits of its component's digest and, unless its
/// configuration (canonical JSON) is empty, of that one's sha256, as in `b6fb4cd9…+c0ffee12`.
#[must_use]
pub fn label(digest: &str, config: &str) -> String {
    let short = |digest: &str| digest.get(..8).unwrap_or(digest).to_owned();
    let component = short(digest);
    match config_digest(config) {
        None => format!("{component}…"),
        Some(config) => format!("{component}…+{}", short(&config)),
    }
}

/// Returns the lower-case hex sha256 of a configuration (canonical JSON), `None` if that is empty.
fn config_digest(config: &str) -> Option<String> {
    match config {
        "" | "{}" | "null" => None,
        config => Some(artifact::digest(config.as_bytes())),
    }
}

/// One explained row: what the policy says it costs, and the named terms.
pub type ExplainedRow = (Proposal, Vec<(String, f64)>);

/// One instance of a policy that serves the scoring role. Answers are not verified yet.
pub trait ScoringPolicy: Send {
    /// Replaces the roster; a `refresh` follows.
    fn roster(&mut self, roster: &Roster) -> Result<(), Failure>;
    /// Replaces the loads.
    fn refresh(&mut self, loads: &Loads) -> Result<(), Failure>;
    /// Chooses a row. `committed` holds the rows given out since the previous call.
    fn recommend(&mut self, request: &Request<'_>, committed: &[u32]) -> Result<Proposal, Failure>;
    /// Explains the rows, in any order; `None` if the policy does not explain.
    fn explain(
        &mut self,
        request: &Request<'_>,
        committed: &[u32],
    ) -> Result<Option<Vec<ExplainedRow>>, Failure>;
    /// Says whether the instance should be replaced by a fresh one soon, for example because its memory is
    /// nearly used up.
    fn is_worn(&self) -> bool {
        false
    }
    /// Returns the linear memory of the instance in bytes; 0 for one that has none of its own.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// Makes instances of one policy version.
pub trait ScoringFactory: Send + Sync {
    /// Returns which version it makes.
    fn identity(&self) -> &Arc<Identity>;
    /// Makes a configured instance that has no roster yet.
    fn make(&self) -> Result<Box<dyn ScoringPolicy>, Failure>;
}

/// What a decision is made from, with revisions that change whenever the roster or the loads change for another
/// reason than [`ScoringSeat::commit`].
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Who can be chosen.
    pub roster: &'a Arc<Roster>,
    /// How busy they are, everything given out included.
    pub loads: &'a Loads,
    /// Never 0.
    pub roster_revision: u64,
    /// Never 0.
    pub loads_revision: u64,
}

/// A verified decision.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The row and its score.
    pub recommendation: Recommendation,
    /// Which policy decided; `None` is the fallback.
    pub by: Option<Arc<Identity>>,
    /// How the policy's own attempt went.
    pub outcome: Outcome,
}

/// A verified explanation.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Rows that may be chosen, cheapest first.
    pub rows: Vec<ScoreParts>,
    /// Which policy explains; `None` is the fallback.
    pub by: Option<Arc<Identity>>,
    /// Why the policy that was asked gave no usable explanation.
    pub failure: Option<Failure>,
}

/// An owned copy of a [`Request`], kept to try it again.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of Request")]
pub struct OwnedRequest {
    pub client_id: String,
    pub session_rows: Vec<u32>,
    pub session_counts: Vec<u32>,
    pub client_inflow: f64,
    pub client_outflow: f64,
    pub avoid: Vec<u32>,
    pub now_ms: u64,
    pub seed: u64,
}

impl From<&Request<'_>> for OwnedRequest {
    fn from(request: &Request<'_>) -> Self {
        Self {
            client_id: request.client_id.to_owned(),
            session_rows: request.session_rows.to_vec(),
            session_counts: request.session_counts.to_vec(),
            client_inflow: request.client_inflow,
            client_outflow: request.client_outflow,
            avoid: request.avoid.to_vec(),
            now_ms: request.now_ms,
            seed: request.seed,
        }
    }
}

impl OwnedRequest {
    /// Borrows it as a request.
    #[must_use]
    pub fn as_request(&self) -> Request<'_> {
        Request {
            client_id: &self.client_id,
            session_rows: &self.session_rows,
            session_counts: &self.session_counts,
            client_inflow: self.client_inflow,
            client_outflow: self.client_outflow,
            avoid: &self.avoid,
            now_ms: self.now_ms,
            seed: self.seed,
        }
    }
}

/// The input a policy failed on last: the trial of a half-open breaker runs it again.
#[derive(Clone, Debug)]
pub struct Culprit {
    /// What the decision was made from.
    pub snapshot: ScoringSnapshot,
    /// What was asked.
    pub request: OwnedRequest,
}

impl Culprit {
    /// Returns what to try again: what it failed on, while the roster is the same; after that its request on the present
    /// snapshot, without what named rows.
    #[must_use]
    pub fn on(self, present: ScoringSnapshot) -> Self {
        if self.snapshot.roster_revision == present.roster_revision {
            return self;
        }
        let request = OwnedRequest {
            session_rows: Vec::new(),
            session_counts: Vec::new(),
            avoid: Vec::new(),
            ..self.request
        };
        Self { snapshot: present, request }
    }
}

/// How the policy in the seat is doing.
#[derive(Clone, Debug)]
pub struct Health {
    /// Which version it is.
    pub identity: Arc<Identity>,
    /// Whether it is asked.
    pub breaker: breaker::State,
    /// Its last failure since it took the seat.
    pub last_failure: Option<Failure>,
}

/// Wakes whoever runs trials; called when a breaker opens. Must return at once.
pub type Alarm = Arc<dyn Fn() + Send + Sync>;

/// See the module.
pub struct ScoringSeat {
    live: Option<Live>,
    canary: Option<Canary>,
    tally: Tally,
    tap: Tap,
    alarm: Alarm,
}

impl ScoringSeat {
    /// Makes an empty seat: the fallback decides until a policy is installed.
    #[must_use]
    pub fn new(alarm: Alarm) -> Self {
        Self { live: None, canary: None, tally: Tally::default(), tap: Tap::default(), alarm }
    }

    /// Decides and verifies; `None` if no row may be chosen. Does not commit.
    pub fn decide(&mut self, view: View<'_>, request: &Request<'_>, clock: &dyn Clock) -> Option<Decision> {
        if !scoring::any_choosable(view.loads, request.avoid) {
            return None;
        }
        let begun = clock.nanos();
        let mut live = seated(&mut self.canary, &mut self.live, request);
        let (decision, failure) = made(live.as_deref_mut(), view, request)?;
        if let Some(live) = &mut live {
            live.record(decision.outcome, clock.now(), &self.alarm);
        }
        let asked = live.map(|live| &live.factory);
        let nanos = clock.nanos().saturating_sub(begun);
        self.tally.record(asked.map(|asked| asked.identity()), decision.outcome, nanos);
        if self.tap.is_open() {
            let made = Made { asked: asked.cloned(), failure: failure.as_ref(), decision: &decision, nanos };
            self.tap.hand_out(view, request, &made);
        }
        Some(decision)
    }

    /// Decides as [`Self::decide`] would, for nobody: observers do not see it and it is not counted. Only a failure counts
    /// for the breaker, since it costs as much as any other.
    pub fn rehearse(&mut self, view: View<'_>, request: &Request<'_>, clock: &dyn Clock) -> Option<Decision> {
        if !scoring::any_choosable(view.loads, request.avoid) {
            return None;
        }
        let mut live = seated(&mut self.canary, &mut self.live, request);
        let (decision, failure) = made(live.as_deref_mut(), view, request)?;
        if let Some(live) = live.filter(|_| failure.is_some()) {
            live.record(decision.outcome, clock.now(), &self.alarm);
        }
        Some(decision)
    }

    /// Returns the version that a request is up to now, `None` if the seat is empty.
    #[must_use]
    pub fn asked(&self, request: &Request<'_>) -> Option<&Arc<Identity>> {
        let live = match &self.canary {
            Some(canary) if canary.takes(request) => Some(&canary.live),
            _ => self.live.as_ref(),
        };
        live.map(|live| live.factory.identity())
    }

    /// Explains every row that may be chosen, cheapest first, as [`Self::decide`] would judge it. An explanation that fails
    /// is not held against the policy's decisions.
    pub fn explain(&mut self, view: View<'_>, request: &Request<'_>, clock: &dyn Clock) -> Explanation {
        let now = clock.now();
        let mut failed = None;
        if let Some(live) = seated(&mut self.canary, &mut self.live, request)
            .filter(|live| live.explains && live.explaining.allows(now))
        {
            let attempt = live.attempt(view, request, |instance, committed| {
                let Some(rows) = instance.explain(request, committed)? else { return Ok(None) };
                scoring::verify_explanation(view.roster, view.loads, request.avoid, rows)
                    .map(Some)
                    .map_err(|error| illegal(&error))
            });
            match attempt {
                Some(Ok(Some(rows))) => {
                    live.explaining.settle(Outcome::Ok, now);
                    return Explanation { rows, by: Some(live.factory.identity().clone()), failure: None };
                }
                // An answer that was none took nothing in: what it was told is unknown.
                Some(Ok(None)) => {
                    live.explains = false;
                    live.forget_told();
                }
                Some(Err(failure)) => {
                    live.explaining.settle(failure.outcome(), now);
                    failed = Some(failure);
                }
                None => {}
            }
        }
        let parts = |Recommendation { row, score }| ScoreParts {
            row,
            score,
            parts: vec![("sessions".to_owned(), score.get())],
        };
        let mut rows: Vec<_> = fallback::scores(view.roster, view.loads, request.avoid).map(parts).collect();
        rows.sort_by(|a, b| a.score.cmp(&b.score).then(a.row.cmp(&b.row)));
        Explanation { rows, by: None, failure: failed }
    }

    /// Notes that `row` was given out. The caller counts it in its own loads, without a new revision.
    pub fn commit(&mut self, row: u32) {
        self.tap.commit(row);
        let canary = self.canary.as_mut().map(|canary| &mut canary.live);
        for live in self.live.as_mut().into_iter().chain(canary) {
            live.commit(row);
        }
    }

    /// Puts another policy version into the seat (or none). It is told the present loads before its first decision,
    /// and the present roster unless it has been told that. Returns what must be dropped, off the hot path.
    pub fn install(&mut self, next: Option<Staged>) -> Option<Box<dyn Send>> {
        let previous = std::mem::replace(&mut self.live, next.map(Live::new))?;
        Some(Box::new(previous))
    }

    /// Lets a second version decide for a share of the clients, `0.0..=1.0`, or none any more. A client stays on its
    /// side; one without a name falls on either by the decision's seed. Returns what must be dropped, off the hot path.
    pub fn install_canary(&mut self, next: Option<(Staged, f64)>) -> Option<Box<dyn Send>> {
        let next = next.map(|(staged, share)| Canary::new(Live::new(staged), share));
        let previous = std::mem::replace(&mut self.canary, next)?;
        Some(Box::new(previous))
    }

    /// Replaces those who see decisions.
    pub fn observe(&mut self, observers: Vec<Arc<dyn Observer>>) {
        self.tap.set(observers);
    }

    /// Says how the policy in the seat is doing, `None` if it is empty.
    #[must_use]
    pub fn health(&self) -> Option<Health> {
        self.live.as_ref().map(Live::health)
    }

    /// Says how the canary is doing, `None` if there is none.
    #[must_use]
    pub fn canary_health(&self) -> Option<Health> {
        self.canary.as_ref().map(|canary| canary.live.health())
    }

    /// Returns the input the policy failed on last.
    #[must_use]
    pub fn culprit(&self) -> Option<&Culprit> {
        self.live.as_ref()?.culprit.as_ref()
    }

    /// Reports a trial of a version; ignored if another one has the seat by now.
    pub fn trial(&mut self, identity: &Identity, passed: bool, now: Timestamp) {
        if let Some(live) = &mut self.live
            && **live.factory.identity() == *identity
        {
            live.breaker.trial(passed, now);
            if live.breaker.is_closed() {
                live.culprit = None;
            }
        }
    }

    /// Puts the trial of a version off that could not be made; ignored if another one has the seat by now.
    pub fn postpone_trial(&mut self, identity: &Identity, now: Timestamp) {
        if let Some(live) = &mut self.live
            && **live.factory.identity() == *identity
        {
            live.breaker.postpone(now);
        }
    }

    /// Returns what was counted since the host started.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }
}

/// A proven policy version with its first instance.
pub struct Staged {
    /// Makes further instances.
    pub factory: Arc<dyn ScoringFactory>,
    /// The first one.
    pub instance: Box<dyn ScoringPolicy>,
    /// Revision of the roster the instance was told, 0 if none.
    pub roster_revision: u64,
    /// Its error budget while it is new; spent, it is not asked any more.
    pub probation: Option<Arc<Probation>>,
    /// Whether there is nothing to return to: however often it fails, it is tried again.
    pub is_last_resort: bool,
}

/// Returns who decides for a client.
fn seated<'a>(
    canary: &'a mut Option<Canary>,
    live: &'a mut Option<Live>,
    request: &Request<'_>,
) -> Option<&'a mut Live> {
    match canary {
        Some(canary) if canary.takes(request) => Some(&mut canary.live),
        _ => live.as_mut(),
    }
}

/// Lets `live` decide, or the fallback where it cannot; returns why it could not, if it was asked.
fn made(
    live: Option<&mut Live>,
    view: View<'_>,
    request: &Request<'_>,
) -> Option<(Decision, Option<Failure>)> {
    let attempt = live.and_then(|live| {
        let decided = live.attempt(view, request, |instance, committed| {
            let proposal = instance.recommend(request, committed)?;
            scoring::verify(view.roster, view.loads, request.avoid, proposal).map_err(|error| illegal(&error))
        })?;
        Some(decided.map(|recommendation| (recommendation, live.factory.identity().clone())))
    });
    let failure = match attempt {
        Some(Ok((recommendation, by))) => {
            return Some((Decision { recommendation, by: Some(by), outcome: Outcome::Ok }, None));
        }
        Some(Err(failure)) => Some(failure),
        None => None,
    };
    let recommendation = fallback::recommend(view.roster, view.loads, request)?;
    let outcome = failure.as_ref().map_or(Outcome::Open, Failure::outcome);
    Some((Decision { recommendation, by: None, outcome }, failure))
}

fn illegal(illegal: &scoring::Illegal) -> Failure {
    Failure::Illegal(illegal.to_string())
}

/// What the reload task needs from whoever owns the seat.
pub trait ScoringHost: Send + Sync {
    /// Returns a copy of what the next decision would be made from.
    fn snapshot(&self) -> ScoringSnapshot;

    /// Runs `use_seat` with the seat locked: no decision is made meanwhile, so it must be brief.
    fn with_seat(&self, use_seat: &mut dyn FnMut(&mut ScoringSeat));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_short_names_that_tell_configurations_apart() {
        let check = |config: &str, expected: &str| {
            let digest = "b6fb4cd9aa".to_owned();
            let identity = Identity { digest, config: config.to_owned(), ..Identity::default() };
            assert_eq!(identity.label(), expected, "{config}");
        };
        check("{}", "b6fb4cd9…");
        check("", "b6fb4cd9…");
        check("null", "b6fb4cd9…");
        check(r#"{"x":1}"#, "b6fb4cd9…+5041bf1f");
        check(r#"{"x":2}"#, "b6fb4cd9…+5e2b030a");
        assert_eq!(label("b6", "{}"), "b6…");
    }

    #[test]
    fn what_a_policy_failed_on_is_tried_on_the_roster_that_is_there() {
        let snapshot = |roster_revision, rows| {
            let loads = Loads::unknown(rows);
            ScoringSnapshot { roster: Arc::default(), loads, roster_revision }
        };
        let request = OwnedRequest {
            client_id: "evil".to_owned(),
            session_rows: vec![2],
            session_counts: vec![1],
            avoid: vec![1],
            seed: 7,
            ..OwnedRequest::default()
        };
        let failed_on = Culprit { snapshot: snapshot(5, 3), request: request.clone() };
        let again = failed_on.clone().on(snapshot(5, 3));
        assert_eq!((again.snapshot, again.request), (snapshot(5, 3), request));
        let again = failed_on.on(snapshot(6, 1));
        assert_eq!(again.snapshot, snapshot(6, 1));
        let expected = OwnedRequest { client_id: "evil".to_owned(), seed: 7, ..OwnedRequest::default() };
        assert_eq!(again.request, expected, "rows of another roster name nobody");
    }
}
