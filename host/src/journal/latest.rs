//! The latest decisions in memory, as `GET /admin/decisions` shows them.

use std::collections::VecDeque;
use std::sync::Arc;

use fulcrum_policy::seat::Identity;
use fulcrum_policy::tap::{Claimed, Scored};
use parking_lot::Mutex;
use serde::Serialize;

use super::queue::Item;

/// Decisions kept.
const LEN_MAX: usize = 1000;

/// A decision without what it was made from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    /// When it was made, in milliseconds since 1970.
    pub at_ms: u64,
    /// The version that was asked, if one could be.
    pub policy: Option<String>,
    /// Its digest.
    pub digest: Option<String>,
    /// Who gave the answer.
    pub by: &'static str,
    /// How the version's own attempt went.
    pub outcome: &'static str,
    /// Why it gave no usable answer.
    pub failure: Option<String>,
    /// Time it took, in nanoseconds.
    pub nanos: u64,
    /// What was asked and answered.
    #[serde(flatten)]
    pub answer: Answer,
}

/// What a decision is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[allow(missing_docs, reason = "the fields are explained in docs/HTTP.md")]
pub enum Answer {
    /// Where a session went.
    Scoring { client_id: String, instance_id: String, score: f64 },
    /// What became of a group's partitions: how many were claimed and released.
    Claiming {
        group: String,
        reason: &'static str,
        claims: usize,
        releases: usize,
        next_cycle_ms: Option<u32>,
    },
}

/// Which decisions are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter<'a> {
    /// Only those of one role, `scoring` or `claiming`.
    pub role: Option<&'a str>,
    /// Only those for one group.
    pub group: Option<&'a str>,
}

impl Filter<'_> {
    fn takes(&self, answer: &Answer) -> bool {
        let (role, group) = match answer {
            Answer::Scoring { .. } => ("scoring", None),
            Answer::Claiming { group, .. } => ("claiming", Some(group.as_str())),
        };
        self.role.is_none_or(|wanted| wanted == role) && (self.group.is_none() || self.group == group)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Latest {
    shown: Mutex<VecDeque<Shown>>,
}

impl Latest {
    /// Adds decisions, oldest first.
    pub(super) fn add(&self, items: &[Item]) {
        let new = &items[items.len().saturating_sub(LEN_MAX)..];
        let new: Vec<_> = new.iter().map(shown).collect();
        let mut shown = self.shown.lock();
        let beyond = (shown.len() + new.len()).saturating_sub(LEN_MAX);
        shown.drain(..beyond);
        shown.extend(new);
    }

    pub(super) fn list(&self, filter: &Filter<'_>, limit: usize) -> Vec<Shown> {
        let shown = self.shown.lock();
        shown.iter().rev().filter(|shown| filter.takes(&shown.answer)).take(limit).cloned().collect()
    }
}

fn shown(item: &Item) -> Shown {
    match item {
        Item::Scored(scored) => {
            let Scored { snapshot, request, asked, failure, decision, nanos, .. } = &**scored;
            let asked = asked.as_ref().map(|asked| &**asked.identity());
            Shown {
                at_ms: request.now_ms,
                policy: asked.map(|asked| asked.name.clone()),
                digest: asked.map(|asked| asked.digest.clone()),
                by: by(decision.by.as_ref()),
                outcome: decision.outcome.name(),
                failure: failure.as_ref().map(ToString::to_string),
                nanos: *nanos,
                answer: Answer::Scoring {
                    client_id: request.client_id.clone(),
                    instance_id: snapshot.roster.rows()[decision.recommendation.row].id.to_string(),
                    score: decision.recommendation.score.get(),
                },
            }
        }
        Item::Claimed(claimed) => {
            let Claimed { group, cycle, planned, nanos, .. } = &**claimed;
            let asked = planned.asked.as_deref();
            Shown {
                at_ms: cycle.now_ms,
                policy: asked.map(|asked| asked.name.clone()),
                digest: asked.map(|asked| asked.digest.clone()),
                by: by(planned.by.as_ref()),
                outcome: planned.outcome.name(),
                failure: planned.problem.clone(),
                nanos: *nanos,
                answer: Answer::Claiming {
                    group: group.clone(),
                    reason: cycle.reason.word(),
                    claims: planned.plan.claims.len(),
                    releases: planned.plan.releases.len(),
                    next_cycle_ms: planned.plan.next_cycle_ms,
                },
            }
        }
    }
}

fn by(by: Option<&Arc<Identity>>) -> &'static str {
    if by.is_some() { "policy" } else { "fallback" }
}
