//! Instances of guests, one store each, behind the role traits: conversions between domain and contract types.

use std::time::Duration;

use fulcrum_core::claiming::{self as claims, Cycle, Reason};
use fulcrum_core::scoring::{Loads, Proposal, Request, Roster};

use crate::claim::ClaimingPolicy;
use crate::contract::v1::exports::fulcrum::policy::{claiming, lifecycle, scoring};
use crate::failure::{Declared, Failure};
use crate::runtime::{Answer, Cell};
use crate::seat::{ExplainedRow, ScoringPolicy};

/// Calls after which an instance whose memory is nearly used up is replaced; a fresh one that needs that much from
/// the start is not replaced over and over.
const WORN_CALLS_MIN: u64 = 1000;

/// A guest in the scoring role.
pub(crate) struct WasmScoring {
    cell: Cell,
    exports: scoring::Guest,
    deadline: Duration,
    calls: u64,
}

impl WasmScoring {
    pub(crate) fn new(cell: Cell, exports: scoring::Guest, deadline: Duration) -> Self {
        Self { cell, exports, deadline, calls: 0 }
    }

    /// Sets the deadline of later calls.
    pub(crate) fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Returns the fuel that the last call left; `None` where calls are bounded by time.
    pub(crate) fn fuel_left(&self) -> Option<u64> {
        self.cell.fuel_left()
    }
}

impl ScoringPolicy for WasmScoring {
    fn roster(&mut self, roster: &Roster) -> Result<(), Failure> {
        let labels: Vec<Vec<(&str, &str)>> = roster.rows().iter().map(|row| pairs(&row.labels)).collect();
        let rows: Vec<_> = roster
            .rows()
            .iter()
            .zip(&labels)
            .map(|(row, labels)| scoring::Instance {
                id: &row.id,
                zone: &row.zone,
                capacity: row.capacity,
                labels,
                age_ms: row.age_ms,
            })
            .collect();
        // Building a new index takes a guest longer than a decision; it is rare, so it gets ten times as long.
        self.cell
            .enter(self.deadline * 10, Answer::Short, |store| self.exports.call_roster(store, &rows))?
            .map_err(declared)
    }

    fn refresh(&mut self, loads: &Loads) -> Result<(), Failure> {
        let columns = scoring::Loads {
            sessions: &loads.sessions,
            inflow: &loads.inflow,
            outflow: &loads.outflow,
            cpu: &loads.cpu,
            heartbeat_age_ms: &loads.heartbeat_age_ms,
            pending: &loads.pending,
            flags: &loads.flags,
        };
        self.cell
            .enter(self.deadline, Answer::Short, |store| self.exports.call_refresh(store, columns))?
            .map_err(declared)
    }

    fn recommend(&mut self, request: &Request<'_>, committed: &[u32]) -> Result<Proposal, Failure> {
        self.calls += 1;
        let request = lower(request, committed);
        let Self { cell, exports, deadline, .. } = self;
        let answer = cell.enter_at(request.now_ms, request.seed, *deadline, Answer::Short, |store| {
            exports.call_recommend(store, request)
        })?;
        answer.map(|found| Proposal { row: found.row, score: found.score }).map_err(declared)
    }

    fn explain(
        &mut self,
        request: &Request<'_>,
        committed: &[u32],
    ) -> Result<Option<Vec<ExplainedRow>>, Failure> {
        self.calls += 1;
        let request = lower(request, committed);
        let Self { cell, exports, deadline, .. } = self;
        let answer = cell.enter_at(request.now_ms, request.seed, *deadline, Answer::Lists, |store| {
            exports.call_explain(store, request)
        })?;
        match answer {
            Ok(rows) => {
                let row = |row: scoring::ScoreParts| (Proposal { row: row.row, score: row.score }, row.parts);
                Ok(Some(rows.into_iter().map(row).collect()))
            }
            Err(lifecycle::Error::Unsupported) => Ok(None),
            Err(error) => Err(declared(error)),
        }
    }

    fn is_worn(&self) -> bool {
        self.calls >= WORN_CALLS_MIN && self.cell.is_nearly_full()
    }

    fn memory_bytes(&self) -> usize {
        self.cell.memory_bytes()
    }
}

fn lower<'a>(request: &Request<'a>, committed: &'a [u32]) -> scoring::Request<'a> {
    scoring::Request {
        client_id: request.client_id,
        session_rows: request.session_rows,
        session_counts: request.session_counts,
        client_inflow: request.client_inflow,
        client_outflow: request.client_outflow,
        avoid: request.avoid,
        committed,
        now_ms: request.now_ms,
        seed: request.seed,
    }
}

/// A guest in the claiming role.
pub(crate) struct WasmClaiming {
    cell: Cell,
    exports: claiming::Guest,
    deadline: Duration,
}

impl WasmClaiming {
    pub(crate) fn new(cell: Cell, exports: claiming::Guest, deadline: Duration) -> Self {
        Self { cell, exports, deadline }
    }

    /// Sets the deadline of later calls.
    pub(crate) fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Returns the fuel that the last call left; `None` where calls are bounded by time.
    pub(crate) fn fuel_left(&self) -> Option<u64> {
        self.cell.fuel_left()
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.cell.memory_bytes()
    }
}

impl ClaimingPolicy for WasmClaiming {
    fn plan(&mut self, cycle: &Cycle) -> Result<claims::Proposal, Failure> {
        let labels: Vec<Vec<(&str, &str)>> =
            cycle.members.iter().map(|member| pairs(&member.labels)).collect();
        let members: Vec<_> = cycle
            .members
            .iter()
            .zip(&labels)
            .map(|(member, labels)| claiming::Member {
                id: &member.id,
                zone: &member.zone,
                labels,
                capacity: member.capacity,
                since_ms: member.since_ms,
                topics: &member.topics,
            })
            .collect();
        let topics: Vec<&str> = cycle.topics.iter().map(String::as_str).collect();
        let places: Vec<&str> = cycle.places.iter().map(String::as_str).collect();
        let lowered = claiming::Cycle {
            group: &cycle.group,
            members: &members,
            topics: &topics,
            places: &places,
            topic: &cycle.topic,
            number: &cycle.number,
            place: &cycle.place,
            owner: &cycle.owner,
            moving: &cycle.moving,
            weight: &cycle.weight,
            held_ms: &cycle.held_ms,
            movement_budget: cycle.movement_budget,
            reason: reason(cycle.reason),
            now_ms: cycle.now_ms,
            seed: cycle.seed,
        };
        let Self { cell, exports, deadline } = self;
        let answer = cell.enter_at(cycle.now_ms, cycle.seed, *deadline, Answer::Lists, |store| {
            exports.call_plan(store, lowered)
        })?;
        answer
            .map(|plan| claims::Proposal {
                partition: plan.partition,
                member: plan.member,
                reason: plan.reason,
                reasons: plan.reasons,
                releases: plan.releases,
                next_cycle_ms: plan.next_cycle_ms,
            })
            .map_err(declared)
    }
}

fn reason(reason: Reason) -> claiming::Reason {
    match reason {
        Reason::Join => claiming::Reason::Join,
        Reason::Leave => claiming::Reason::Leave,
        Reason::Expired => claiming::Reason::Expired,
        Reason::Disconnected => claiming::Reason::Disconnected,
        Reason::Subscription => claiming::Reason::Subscription,
        Reason::Partitions => claiming::Reason::Partitions,
        Reason::Policy => claiming::Reason::Policy,
        Reason::Config => claiming::Reason::Config,
        Reason::Interval => claiming::Reason::Interval,
        Reason::Fast => claiming::Reason::Fast,
        Reason::Manual => claiming::Reason::Manual,
    }
}

fn pairs(labels: &[(String, String)]) -> Vec<(&str, &str)> {
    labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// Longest error text kept from a guest, in characters before those that no line can hold are escaped.
const ERROR_CHARS_MAX: usize = 512;

pub(crate) fn declared(error: lifecycle::Error) -> Failure {
    // It is shown in logs and on terminals, among lines of others.
    let cut = |text: String| {
        let mut line = String::new();
        for letter in text.chars().take(ERROR_CHARS_MAX) {
            if letter.is_control() { line.extend(letter.escape_debug()) } else { line.push(letter) }
        }
        line
    };
    Failure::Declared(match error {
        lifecycle::Error::InvalidConfig(text) => Declared::InvalidConfig(cut(text)),
        lifecycle::Error::InvalidInput(text) => Declared::InvalidInput(cut(text)),
        lifecycle::Error::NoCandidate => Declared::NoCandidate,
        lifecycle::Error::Unsupported => Declared::Unsupported,
        lifecycle::Error::Failed(text) => Declared::Failed(cut(text)),
    })
}
