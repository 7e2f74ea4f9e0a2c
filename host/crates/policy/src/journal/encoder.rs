//! Writing decisions as lines.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use fulcrum_core::claiming::{Cycle, Member, Plan};
use fulcrum_core::scoring::{Instance, Roster, ScoringSnapshot};
use serde_json::value::RawValue;

use super::line::{self, By, Line};
use super::{Header, LINE_BYTES_MAX, POLICIES_BYTES_KEPT, POLICIES_KEPT};
use crate::seat::Identity;
use crate::tap::{Claimed, Scored};

/// Turns decisions into the lines of one segment after another.
///
/// Invariant: a line refers only to policies, rosters and snapshots that stand before it in the same segment, and to no
/// older ones than a reader keeps: the last roster and snapshot, and the last `POLICIES_KEPT` policies.
pub struct Encoder {
    header: Header,
    policies: HashMap<Arc<Identity>, u64>,
    policies_bytes: usize,
    roster: Option<(Arc<Roster>, u64)>,
    snapshot: Option<(Arc<ScoringSnapshot>, u64)>,
    ids: u64,
}

impl Encoder {
    /// Makes an encoder; [`Self::begin`] comes next.
    #[must_use]
    pub fn new(header: Header) -> Self {
        Self { header, policies: HashMap::new(), policies_bytes: 0, roster: None, snapshot: None, ids: 0 }
    }

    /// Begins a segment: appends its header, and forgets what the one before it carries.
    ///
    /// Errors if a line cannot be written as JSON, as all of these do; `out` is as it was then.
    pub fn begin(&mut self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        self.forget();
        self.ids = 0;
        append(out, &Line::Header(&self.header))
    }

    /// Appends a scoring decision, after what it refers to where the segment does not have that yet.
    ///
    /// Errors if a line would be longer than [`LINE_BYTES_MAX`] or cannot be written as JSON; `out` is as it was then.
    pub fn scored(&mut self, scored: &Scored, out: &mut Vec<u8>) -> serde_json::Result<()> {
        self.whole(out, |encoder, out| {
            let identity = scored.asked.as_ref().map(|asked| asked.identity());
            let policy = identity.map(|identity| encoder.policy(identity, out)).transpose()?;
            let snapshot = encoder.snapshot(&scored.snapshot, out)?;
            let (request, decision) = (&scored.request, &scored.decision);
            let row = decision.recommendation.row;
            append(
                out,
                &Line::Scoring(line::Scoring {
                    at_ms: request.now_ms,
                    snapshot,
                    committed: Cow::Borrowed(&scored.committed),
                    request: line::Request {
                        client_id: Cow::Borrowed(&request.client_id),
                        session_rows: Cow::Borrowed(&request.session_rows),
                        session_counts: Cow::Borrowed(&request.session_counts),
                        inflow: request.client_inflow,
                        outflow: request.client_outflow,
                        avoid: Cow::Borrowed(&request.avoid),
                        seed: request.seed,
                    },
                    policy,
                    outcome: Cow::Borrowed(decision.outcome.name()),
                    failure: scored.failure.as_ref().map(|failure| Cow::Owned(failure.to_string())),
                    by: by(decision.by.as_ref()),
                    row: row as u64,
                    id: Cow::Borrowed(&scored.snapshot.roster.rows()[row].id),
                    score: decision.recommendation.score.get(),
                    nanos: scored.nanos,
                }),
            )
        })
    }

    /// Appends a plan, after the policy it refers to where the segment does not have that yet; errors like
    /// [`Self::scored`].
    pub fn claimed(&mut self, claimed: &Claimed, out: &mut Vec<u8>) -> serde_json::Result<()> {
        self.whole(out, |encoder, out| {
            let Claimed { cycle, planned, nanos, .. } = claimed;
            let policy = planned.asked.as_ref().map(|identity| encoder.policy(identity, out)).transpose()?;
            append(
                out,
                &Line::Claiming(Box::new(line::Claiming {
                    at_ms: cycle.now_ms,
                    group: Cow::Borrowed(&cycle.group),
                    cycle: cycle_line(cycle),
                    policy,
                    outcome: Cow::Borrowed(planned.outcome.name()),
                    failure: planned.problem.as_deref().map(Cow::Borrowed),
                    by: by(planned.by.as_ref()),
                    plan: plan_line(&planned.plan),
                    nanos: *nanos,
                })),
            )
        })
    }

    /// Appends all lines of a decision or none.
    fn whole(
        &mut self,
        out: &mut Vec<u8>,
        append: impl FnOnce(&mut Self, &mut Vec<u8>) -> serde_json::Result<()>,
    ) -> serde_json::Result<()> {
        let before = out.len();
        let result = append(self, out);
        if result.is_err() {
            out.truncate(before);
            // Some of what it noted as written is not there any more. Ids are not used twice.
            self.forget();
        }
        result
    }

    fn forget(&mut self) {
        self.forget_policies();
        self.roster = None;
        self.snapshot = None;
    }

    fn forget_policies(&mut self) {
        self.policies.clear();
        self.policies_bytes = 0;
    }

    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn policy(&mut self, identity: &Arc<Identity>, out: &mut Vec<u8>) -> serde_json::Result<u64> {
        if let Some(id) = self.policies.get(identity) {
            return Ok(*id);
        }
        let id = self.next_id();
        let config: &RawValue = serde_json::from_str(&identity.config)?;
        let (name, digest) = (&*identity.name, &*identity.digest);
        append(out, &Line::Policy(line::Policy { id, name, digest, config }))?;
        let bytes = policy_bytes(identity);
        if self.policies.len() >= POLICIES_KEPT || self.policies_bytes + bytes > POLICIES_BYTES_KEPT {
            // Readers are about to forget the first of them.
            self.forget_policies();
        }
        self.policies_bytes += bytes;
        self.policies.insert(identity.clone(), id);
        Ok(id)
    }

    fn snapshot(&mut self, snapshot: &Arc<ScoringSnapshot>, out: &mut Vec<u8>) -> serde_json::Result<u64> {
        if let Some((known, id)) = &self.snapshot
            && Arc::ptr_eq(known, snapshot)
        {
            return Ok(*id);
        }
        let roster = self.roster(&snapshot.roster, out)?;
        let id = self.next_id();
        let loads = &snapshot.loads;
        let loads = line::Loads {
            sessions: Cow::Borrowed(&loads.sessions),
            inflow: Cow::Borrowed(&loads.inflow),
            outflow: Cow::Borrowed(&loads.outflow),
            cpu: Cow::Borrowed(&loads.cpu),
            heartbeat_age_ms: Cow::Borrowed(&loads.heartbeat_age_ms),
            pending: Cow::Borrowed(&loads.pending),
            flags: Cow::Borrowed(&loads.flags),
        };
        append(out, &Line::Snapshot(line::Snapshot { id, roster, loads }))?;
        self.snapshot = Some((snapshot.clone(), id));
        Ok(id)
    }

    fn roster(&mut self, roster: &Arc<Roster>, out: &mut Vec<u8>) -> serde_json::Result<u64> {
        if let Some((known, id)) = &self.roster
            && Arc::ptr_eq(known, roster)
        {
            return Ok(*id);
        }
        let id = self.next_id();
        append(out, &Line::Roster(line::Roster { id, rows: roster.rows().iter().map(row_line).collect() }))?;
        self.roster = Some((roster.clone(), id));
        Ok(id)
    }
}

/// Returns the bytes that count of a policy, for those who keep it.
pub(super) fn policy_bytes(identity: &Identity) -> usize {
    identity.name.len() + identity.digest.len() + identity.config.len()
}

fn append(out: &mut Vec<u8>, line: &Line<'_>) -> serde_json::Result<()> {
    let before = out.len();
    serde_json::to_writer(&mut *out, line)?;
    if out.len() - before > LINE_BYTES_MAX {
        return Err(serde::ser::Error::custom(format_args!("a line is longer than {LINE_BYTES_MAX} bytes")));
    }
    out.push(b'\n');
    Ok(())
}

fn by(by: Option<&Arc<Identity>>) -> By {
    if by.is_some() { By::Policy } else { By::Fallback }
}

fn row_line(row: &Instance) -> line::Instance<'_> {
    line::Instance {
        id: Cow::Borrowed(&row.id),
        zone: Cow::Borrowed(&row.zone),
        capacity: row.capacity,
        labels: Cow::Borrowed(&row.labels),
        age_ms: row.age_ms,
    }
}

fn cycle_line(cycle: &Cycle) -> line::Cycle<'_> {
    line::Cycle {
        reason: Cow::Borrowed(cycle.reason.word()),
        seed: cycle.seed,
        movement_budget: cycle.movement_budget,
        members: cycle.members.iter().map(member_line).collect(),
        topics: Cow::Borrowed(&cycle.topics),
        places: Cow::Borrowed(&cycle.places),
        topic: Cow::Borrowed(&cycle.topic),
        number: Cow::Borrowed(&cycle.number),
        place: Cow::Borrowed(&cycle.place),
        owner: Cow::Borrowed(&cycle.owner),
        moving: Cow::Borrowed(&cycle.moving),
        weight: Cow::Borrowed(&cycle.weight),
        held_ms: Cow::Borrowed(&cycle.held_ms),
    }
}

fn member_line(member: &Member) -> line::Member<'_> {
    line::Member {
        id: Cow::Borrowed(&member.id),
        zone: Cow::Borrowed(&member.zone),
        labels: Cow::Borrowed(&member.labels),
        capacity: member.capacity,
        since_ms: member.since_ms,
        topics: Cow::Borrowed(&member.topics),
    }
}

fn plan_line(plan: &Plan) -> line::Plan<'_> {
    let mut reasons = Vec::new();
    let mut known = HashMap::<&str, u64>::new();
    let mut reason = Vec::with_capacity(plan.claims.len());
    for claim in &plan.claims {
        let next = reasons.len() as u64;
        let at = *known.entry(&claim.reason).or_insert(next);
        if at == next {
            reasons.push(Cow::Borrowed(&*claim.reason));
        }
        reason.push(at);
    }
    line::Plan {
        partition: plan.claims.iter().map(|claim| claim.partition as u64).collect(),
        member: plan.claims.iter().map(|claim| claim.member as u64).collect(),
        reason,
        reasons,
        releases: plan.releases.iter().map(|&partition| partition as u64).collect(),
        next_cycle_ms: plan.next_cycle_ms,
    }
}
