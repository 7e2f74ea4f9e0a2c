//! The latest decisions in memory, as `GET /admin/decisions` shows them.

use std::collections::VecDeque;
use std::sync::Arc;

use fulcrum_policy::seat::Identity;
use fulcrum_policy::tap::{Claimed, Scored};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::RawValue;

use super::queue::Item;

/// Decisions kept.
const LEN_MAX: usize = 1000;

/// A decision without what it was made from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    /// When it was made, in milliseconds since 1970.
    pub at_ms: u64,
    /// The version that was asked, if one could be.
    pub policy: Option<String>,
    /// Its digest.
    pub digest: Option<String>,
    /// Its configuration.
    pub config: Option<Box<RawValue>>,
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
    /// Only those for one client.
    pub client_id: Option<&'a str>,
}

impl Filter<'_> {
    fn takes(&self, answer: &Answer) -> bool {
        let (role, group, client_id) = match answer {
            Answer::Scoring { client_id, .. } => ("scoring", None, Some(client_id.as_str())),
            Answer::Claiming { group, .. } => ("claiming", Some(group.as_str()), None),
        };
        self.role.is_none_or(|wanted| wanted == role)
            && (self.group.is_none() || self.group == group)
            && (self.client_id.is_none() || self.client_id == client_id)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Latest {
    shown: Mutex<VecDeque<Kept>>,
}

/// A decision as it is kept: the configuration of its version is shared until it is shown.
struct Kept {
    asked: Option<Arc<Identity>>,
    shown: Shown,
}

impl Latest {
    /// Adds decisions, oldest first.
    pub(super) fn add(&self, items: &[Item]) {
        let new = &items[items.len().saturating_sub(LEN_MAX)..];
        let new: Vec<_> = new.iter().map(kept).collect();
        let mut shown = self.shown.lock();
        let beyond = (shown.len() + new.len()).saturating_sub(LEN_MAX);
        shown.drain(..beyond);
        shown.extend(new);
    }

    pub(super) fn list(&self, filter: &Filter<'_>, limit: usize) -> Vec<Shown> {
        let shown = self.shown.lock();
        let wanted = shown.iter().rev().filter(|kept| filter.takes(&kept.shown.answer)).take(limit);
        wanted.map(Kept::show).collect()
    }
}

impl Kept {
    fn show(&self) -> Shown {
        let asked = self.asked.as_deref();
        Shown {
            policy: asked.map(|asked| asked.name.clone()),
            digest: asked.map(|asked| asked.digest.clone()),
            config: asked.and_then(|asked| RawValue::from_string(asked.config.clone()).ok()),
            ..self.shown.clone()
        }
    }
}

fn kept(item: &Item) -> Kept {
    match item {
        Item::Scored(scored) => {
            let Scored { snapshot, request, asked, failure, decision, nanos, .. } = &**scored;
            let answer = Answer::Scoring {
                client_id: request.client_id.clone(),
                instance_id: snapshot.roster.rows()[decision.recommendation.row].id.to_string(),
                score: decision.recommendation.score.get(),
            };
            Kept {
                asked: asked.as_ref().map(|asked| asked.identity().clone()),
                shown: Shown {
                    by: by(decision.by.as_ref()),
                    outcome: decision.outcome.name(),
                    failure: failure.as_ref().map(ToString::to_string),
                    ..Shown::new(request.now_ms, *nanos, answer)
                },
            }
        }
        Item::Claimed(claimed) => {
            let Claimed { group, cycle, planned, nanos, .. } = &**claimed;
            let answer = Answer::Claiming {
                group: group.clone(),
                reason: cycle.reason.word(),
                claims: planned.plan.claims.len(),
                releases: planned.plan.releases.len(),
                next_cycle_ms: planned.plan.next_cycle_ms,
            };
            Kept {
                asked: planned.asked.clone(),
                shown: Shown {
                    by: by(planned.by.as_ref()),
                    outcome: planned.outcome.name(),
                    failure: planned.problem.clone(),
                    ..Shown::new(cycle.now_ms, *nanos, answer)
                },
            }
        }
    }
}

impl Shown {
    /// Makes one of which the version is not filled in yet.
    fn new(at_ms: u64, nanos: u64, answer: Answer) -> Self {
        Self {
            at_ms,
            policy: None,
            digest: None,
            config: None,
            by: "",
            outcome: "",
            failure: None,
            nanos,
            answer,
        }
    }
}

fn by(by: Option<&Arc<Identity>>) -> &'static str {
    if by.is_some() { "policy" } else { "fallback" }
}
