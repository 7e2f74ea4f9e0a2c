//! What a recommendation rests on, for people who ask why.
//!
//! Invariant: `pick` and `next` are on one scale, that of `explained`.

use std::borrow::Cow;

use fulcrum_core::scoring::{self, Recommendation, ScoreParts};
use fulcrum_policy::failure::Outcome;
use fulcrum_policy::fallback;
use fulcrum_policy::seat::{Decision, Explanation, Identity, ScoringSeat, View};

use super::Candidate;
use crate::membership::Members;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Grounds {
    /// Name of the policy that was asked to decide, or would have been; `None` if the host had none.
    pub asked: Option<String>,
    /// How its attempt to decide went.
    pub outcome: Outcome,
    /// What it failed of, in words: now, or last if it was not asked. `None` if nothing failed.
    pub failure: Option<String>,
    /// Whose terms those below are.
    pub explained: Explained,
    /// The pick as it is explained; `None` if the explanation leaves it out.
    pub pick: Option<Candidate>,
    /// The cheapest explained one of the others.
    pub next: Option<Candidate>,
    /// How many others might have been chosen.
    pub others: usize,
    /// How many of the explained ones cost less than the pick.
    pub cheaper: usize,
    /// How many of the explained ones cost the same.
    pub level: usize,
}

/// Whose terms an explanation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explained {
    /// Those of whoever decided, the fallback included.
    Decider,
    /// The fallback's, because the policy that decided does not explain.
    Unsupported,
    /// The fallback's, because the policy that decided failed to explain.
    Failed,
}

impl Grounds {
    /// Takes together what is known of the last decision of a seat; `view` is what it was made from, `asked` the version
    /// that it was up to.
    pub(super) fn of(
        members: &Members,
        view: View<'_>,
        avoid: &[u32],
        seat: &ScoringSeat,
        asked: Option<&Identity>,
        decision: &Decision,
        explanation: &Explanation,
    ) -> Self {
        let explained = match (&decision.by, &explanation.by) {
            (None, _) | (Some(_), Some(_)) => Explained::Decider,
            (Some(_), None) if explanation.failure.is_some() => Explained::Failed,
            (Some(_), None) => Explained::Unsupported,
        };
        // The policy explained and then failed to decide: its scores say nothing about the fallback's choice.
        let rows = if decision.by.is_none() && explanation.by.is_some() {
            let mut rows: Vec<_> = fallback::scores(view.roster, view.loads, avoid).map(native).collect();
            rows.sort_by(|a, b| a.score.cmp(&b.score).then(a.row.cmp(&b.row)));
            Cow::Owned(rows)
        } else {
            Cow::Borrowed(&explanation.rows)
        };
        let candidate = |of: &ScoreParts| {
            let (id, address, _) = members.name(of.row);
            Candidate { id: id.clone(), address: address.clone(), score: of.score, parts: of.parts.clone() }
        };
        let choosable =
            (0..view.loads.len()).filter(|&row| scoring::choosable(view.loads, avoid, row)).count();
        let has_failed = decision.outcome != Outcome::Ok;
        let health = [seat.health(), seat.canary_health()]
            .into_iter()
            .flatten()
            .find(|health| Some(&*health.identity) == asked);
        let failure = health.and_then(|health| health.last_failure).filter(|_| has_failed);
        let failure = failure.or_else(|| explanation.failure.clone());
        Self {
            asked: asked.map(|asked| asked.name.clone()),
            outcome: decision.outcome,
            failure: failure.map(|failure| failure.to_string()),
            ..Self::beside(&rows, decision.recommendation, choosable.saturating_sub(1), explained, candidate)
        }
    }

    /// Sets a pick beside the other rows that were explained, cheapest first; `others` is how many might have been chosen
    /// as well. Who was asked and how that went is left open: a policy without a name that did not fail.
    pub fn beside(
        rows: &[ScoreParts],
        picked: Recommendation,
        others: usize,
        explained: Explained,
        candidate: impl Fn(&ScoreParts) -> Candidate,
    ) -> Self {
        let pick = rows.iter().find(|of| of.row == picked.row);
        let score = pick.map_or(picked.score, |of| of.score);
        let rest = || rows.iter().filter(|of| of.row != picked.row);
        Self {
            asked: None,
            outcome: Outcome::Ok,
            failure: None,
            explained,
            pick: pick.map(&candidate),
            next: rest().next().map(candidate),
            others,
            cheaper: rest().filter(|of| of.score.get() < score.get()).count(),
            level: rest().filter(|of| of.score.get() == score.get()).count(),
        }
    }
}

fn native(Recommendation { row, score }: Recommendation) -> ScoreParts {
    ScoreParts { row, score, parts: vec![("sessions".to_owned(), score.get())] }
}
