//! Why a recorded decision came out as it did: what was asked, what was known, and what the version that decided says.
//!
//! Invariant: what is told of a decision is what it was made from; scores of a version stand beside those of that version
//! only.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulcrum_coordinator::{Candidate, Explained, Grounds, Pick};
use fulcrum_core::claiming::{Cycle, Plan};
use fulcrum_core::scoring::{self, Recommendation, ScoreParts, flags};
use fulcrum_core::time::millis;
use fulcrum_policy::journal::{self, Record};
use fulcrum_policy::seat::{Identity, ScoringFactory as _};
use fulcrum_policy::{Failure, Loaded, fallback};
use serde::Serialize;
use serde_json::{Value, json};

use super::again::{self, Answer};
use super::report::{self, Place};
use super::versions::Unable;
use crate::why::{self, Why};
use crate::words;

/// Most instances, members or partitions told in words; JSON has all of them.
const TOLD_MAX: usize = 20;

/// Why an answer to the scoring question, by whoever gave it.
pub(super) struct Reason {
    pub(super) why: Why,
    /// What each instance costs and why, cheapest first.
    rows: Vec<ScoreParts>,
    /// Whether those are the costs of whoever answered; else they are those of the fallback's rule.
    is_own: bool,
}

/// Says why `by` (`None` is the fallback) gave an answer to what was asked then.
pub(super) fn reason(record: &journal::Scoring, answer: Recommendation, by: Option<&Loaded>) -> Reason {
    let native = || again::explain_native(record);
    let course = &record.course;
    let (rows, explained, failure) = match by.map(|loaded| again::explain(loaded, record)) {
        None => (native(), Explained::Decider, course.failure.clone()),
        Some(Ok(Some(rows))) => (rows, Explained::Decider, None),
        Some(Ok(None)) => (native(), Explained::Unsupported, None),
        Some(Err(failure)) => (native(), Explained::Failed, Some(failure.to_string())),
    };
    let loads = record.loads();
    let choosable = |row: &usize| scoring::choosable(&loads, &record.request.avoid, *row);
    let others = (0..loads.len()).filter(choosable).count().saturating_sub(1);
    let candidate = |of: &ScoreParts| {
        let id = record.snapshot.roster.rows()[of.row].id.clone();
        // A journal does not know where instances were reached.
        Candidate { id, address: Arc::from(""), score: of.score, parts: of.parts.clone() }
    };
    let grounds = Grounds {
        asked: course.asked.as_ref().map(|asked| asked.name.clone()),
        outcome: course.outcome,
        failure,
        ..Grounds::beside(&rows, answer, others, explained, candidate)
    };
    let pick = pick(record, answer, by.map(|by| by.identity().clone()));
    Reason { why: why::why(Some(&pick), Some(&grounds)), rows, is_own: explained == Explained::Decider }
}

/// Says as much as can be said without the version that decided.
fn unexplained(record: &journal::Scoring) -> Reason {
    let pick = pick(record, record.answer, record.course.asked.clone());
    Reason { why: why::why(Some(&pick), None), rows: again::explain_native(record), is_own: false }
}

fn pick(record: &journal::Scoring, answer: Recommendation, by: Option<Arc<Identity>>) -> Pick {
    let id = record.snapshot.roster.rows()[answer.row].id.clone();
    Pick { id, address: Arc::from(""), score: answer.score, by }
}

/// One decision, explained.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Decision {
    file: String,
    line: u64,
    role: &'static str,
    at_ms: u64,
    /// The version it was up to.
    policy: Option<String>,
    digest: Option<String>,
    config: Option<Value>,
    /// That version, in short.
    version: Option<String>,
    by: &'static str,
    outcome: &'static str,
    failure: Option<String>,
    nanos: u64,
    /// What was asked and known, as `fulcrum policy eval` takes it.
    input: Value,
    #[serde(flatten)]
    recorded: Said,
    /// What the other policy says.
    #[serde(skip_serializing_if = "Option::is_none")]
    instead: Option<Instead>,
    #[serde(skip)]
    known: String,
    #[serde(skip)]
    asked: String,
}

#[derive(Serialize)]
struct Instead {
    policy: String,
    version: String,
    #[serde(flatten)]
    said: Said,
}

/// An answer and its reasons.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Said {
    answer: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<Why>,
    /// What each instance costs and its terms, cheapest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    explained: Vec<Row>,
    /// Whether those are the fallback's, since the policy does not say.
    is_explained_by_fallback: bool,
    /// What keeps the version from being asked why.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip)]
    text: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    instance_id: String,
    /// Null if it is not finite.
    score: f64,
    parts: BTreeMap<String, f64>,
}

/// Explains one decision. `version` is the policy that decided, if one did, or why it cannot be asked; `other` is another
/// policy and what it answers.
pub(super) fn explain(
    place: Place<'_>,
    record: &Record,
    version: Result<Option<&Loaded>, &Unable>,
    other: Option<(&Loaded, Result<Answer, Failure>)>,
) -> Decision {
    let course = record.course();
    let asked = course.asked.as_deref();
    let (role, input, question, known, recorded) = match record {
        Record::Scoring(scoring) => {
            let (reason, problem) = match version {
                Ok(version) => (reason(scoring, scoring.answer, version), None),
                Err(unable) => (unexplained(scoring), Some(problem(unable))),
            };
            let known = known(scoring, &reason);
            let said = Said { problem, ..said(scoring, scoring.answer, reason) };
            ("scoring", scoring_input(scoring), scoring_question(scoring), known, said)
        }
        Record::Claiming(claiming) => {
            let said = planned(&claiming.cycle, &claiming.plan);
            (
                "claiming",
                claiming_input(&claiming.cycle),
                claiming_question(&claiming.cycle),
                String::new(),
                said,
            )
        }
    };
    let instead = other.map(|(loaded, answer)| Instead {
        policy: loaded.identity().name.clone(),
        version: loaded.identity().label(),
        said: match (record, answer) {
            (_, Err(failure)) => Said { text: format!("the policy {failure}"), ..Said::default() },
            (Record::Scoring(scoring), Ok(Answer::Scoring(Some(answer)))) => {
                said(scoring, answer, reason(scoring, answer, Some(loaded)))
            }
            (Record::Claiming(claiming), Ok(Answer::Claiming(plan))) => planned(&claiming.cycle, &plan),
            (_, Ok(_)) => Said { text: "nobody".to_owned(), ..Said::default() },
        },
    });
    Decision {
        file: place.file.to_owned(),
        line: place.line,
        role,
        at_ms: record.at_ms(),
        policy: asked.map(|asked| asked.name.clone()),
        digest: asked.map(|asked| asked.digest.clone()),
        config: asked.and_then(|asked| serde_json::from_str(&asked.config).ok()),
        version: asked.map(Identity::label),
        by: if course.is_by_policy { "policy" } else { fallback::NAME },
        outcome: course.outcome.name(),
        failure: course.failure.clone(),
        nanos: course.nanos,
        input,
        recorded,
        instead,
        known,
        asked: question,
    }
}

/// Says what keeps the version that decided from being asked, and what to do.
fn problem(unable: &Unable) -> String {
    match unable {
        Unable::Missing => {
            "the component of the version that decided is found nowhere; give its folder with --versions DIR"
                .to_owned()
        }
        Unable::Unusable(why) => {
            format!("the version that decided cannot be used here: {why}; {}", report::ADVICE)
        }
    }
}

impl Decision {
    /// Writes it for people.
    pub(super) fn text(&self) -> String {
        let Self { file, line, role, at_ms, asked, recorded, .. } = self;
        let version = match (&self.policy, &self.version) {
            (Some(policy), Some(version)) => format!("{} {version}", words::name(policy)),
            _ => "no policy".to_owned(),
        };
        let by = match self.by {
            "policy" => format!("by {version}"),
            _ => format!("by the fallback in place of {version} ({})", self.outcome),
        };
        let micros = words::number(self.nanos as f64 / 1e3);
        let mut out = format!("{file}:{line} {role}, at {at_ms} ms\n");
        out += &format!("asked    {asked}\ndecided  {by} in {micros} us: {}\n", recorded.told());
        if let Some(Instead { policy, version, said }) = &self.instead {
            out += &format!("instead  {} {version} says: {}\n", words::name(policy), said.told());
        }
        if !self.known.is_empty() {
            out += &format!("\n{}", self.known);
        }
        out
    }
}

impl Said {
    fn told(&self) -> String {
        let why = self.why.as_ref().map_or(&*self.text, Why::text);
        match &self.problem {
            Some(problem) => format!("{why}\n         ({problem})"),
            None => why.to_owned(),
        }
    }
}

fn said(record: &journal::Scoring, answer: Recommendation, reason: Reason) -> Said {
    let rows = record.snapshot.roster.rows();
    let row = |of: ScoreParts| Row {
        instance_id: rows[of.row].id.to_string(),
        score: of.score.get(),
        parts: of.parts.into_iter().collect(),
    };
    Said {
        answer: json!({ "instanceId": *rows[answer.row].id, "score": answer.score.get() }),
        why: Some(reason.why),
        explained: reason.rows.into_iter().map(row).collect(),
        is_explained_by_fallback: !reason.is_own,
        problem: None,
        text: String::new(),
    }
}

/// Tells who could be chosen, with what was known of them and what they cost: the choice first.
fn known(record: &journal::Scoring, reason: &Reason) -> String {
    let (roster, loads) = (&record.snapshot.roster, record.loads());
    let cost = |row: usize| reason.rows.iter().find(|of| of.row == row);
    let picked = record.answer.row;
    let explained = reason.rows.iter().map(|of| of.row).filter(|&row| row != picked);
    let others = (0..roster.len()).filter(|&row| row != picked && cost(row).is_none());
    let order: Vec<_> = std::iter::once(picked).chain(explained).chain(others).collect();
    let head =
        ["INSTANCE", "ZONE", "CAPACITY", "SESSIONS", "PENDING", "CPU", "IN/S", "OUT/S", "SEEN", "COSTS", ""];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for &row in order.iter().take(TOLD_MAX) {
        let instance = &roster.rows()[row];
        let load = loads.get(row);
        let figure = |of: fn(&scoring::Load) -> f64| {
            load.as_ref().map_or("?".to_owned(), |load| words::number(of(load)))
        };
        let zone = if instance.zone.is_empty() { "-".to_owned() } else { words::name(&instance.zone) };
        let note = if loads.flags[row] & flags::DEAD != 0 {
            "dead".to_owned()
        } else if loads.flags[row] & flags::DRAINING != 0 {
            "draining".to_owned()
        } else if !scoring::choosable(&loads, &record.request.avoid, row) {
            "excluded".to_owned()
        } else {
            cost(row).map(|of| why::terms(&of.parts)).unwrap_or_default()
        };
        let seen = std::time::Duration::from_millis(loads.heartbeat_age_ms[row].into());
        table.push(vec![
            words::name(&instance.id),
            zone,
            words::number(instance.capacity),
            figure(|load| f64::from(load.sessions)),
            loads.pending[row].to_string(),
            figure(|load| load.cpu),
            figure(|load| load.inflow),
            figure(|load| load.outflow),
            format!("{} ms ago", millis(seen)),
            cost(row).map_or("-".to_owned(), |of| words::number(of.score.get())),
            note,
        ]);
    }
    let mut out = String::new();
    if !reason.is_own {
        out += "costs by the fallback's rule, in sessions per unit of capacity:\n";
    }
    out += &crate::cli::table(&table);
    if order.len() > TOLD_MAX {
        out += &format!("and {} more with --json\n", order.len() - TOLD_MAX);
    }
    out
}

fn scoring_question(record: &journal::Scoring) -> String {
    let request = &record.request;
    let id = |row: &u32| words::name(&record.snapshot.roster.rows()[*row as usize].id);
    let client = match request.client_id.as_str() {
        "" => "a client without a name".to_owned(),
        client => format!("client {}", words::name(client)),
    };
    let mut parts = vec![client];
    if !request.avoid.is_empty() {
        let avoid: Vec<_> = request.avoid.iter().take(TOLD_MAX).map(id).collect();
        parts.push(format!("not to {}", words::list(&avoid)));
    }
    let sessions = request.session_rows.iter().zip(&request.session_counts).take(TOLD_MAX);
    let sessions: Vec<_> = sessions.map(|(row, count)| format!("{count} on {}", id(row))).collect();
    if !sessions.is_empty() {
        parts.push(format!("sessions: {}", words::list(&sessions)));
    }
    let (inflow, outflow) = (words::number(request.client_inflow), words::number(request.client_outflow));
    parts.push(format!("traffic {inflow} in and {outflow} out, bytes per second"));
    parts.push(format!("seed {}", request.seed));
    parts.join("; ")
}

fn scoring_input(record: &journal::Scoring) -> Value {
    let (roster, loads, request) = (&record.snapshot.roster, record.loads(), &record.request);
    let id = |row: u32| roster.rows()[row as usize].id.to_string();
    let row = |row: &scoring::Instance| {
        let labels: BTreeMap<_, _> = row.labels.iter().cloned().collect();
        json!({ "id": *row.id, "zone": row.zone, "capacity": row.capacity, "labels": labels, "ageMs": row.age_ms })
    };
    let load = |row: usize| {
        let is_out = loads.flags[row] & flags::NOT_CHOOSABLE != 0;
        let mut out = json!({ "heartbeatAgeMs": loads.heartbeat_age_ms[row], "pending": loads.pending[row],
            "draining": is_out });
        if let Some(load) = loads.get(row) {
            out["activeSessions"] = load.sessions.into();
            out["inflowBytesPerSec"] = load.inflow.into();
            out["outflowBytesPerSec"] = load.outflow.into();
            out["cpuLoad"] = load.cpu.into();
        }
        out
    };
    let sessions = request.session_rows.iter().zip(&request.session_counts);
    let sessions: BTreeMap<_, _> = sessions.map(|(&row, &count)| (id(row), count)).collect();
    json!({
        "roster": roster.rows().iter().map(row).collect::<Vec<_>>(),
        "loads": (0..loads.len()).map(load).collect::<Vec<_>>(),
        "request": { "clientId": request.client_id, "sessions": sessions,
            "inflowBytesPerSec": request.client_inflow, "outflowBytesPerSec": request.client_outflow,
            "exclude": request.avoid.iter().map(|&row| id(row)).collect::<Vec<_>>(),
            "seed": request.seed.to_string(), "nowMs": request.now_ms },
    })
}

fn planned(cycle: &Cycle, plan: &Plan) -> Said {
    let partition =
        |at: usize| (cycle.topics.get(cycle.topic[at] as usize).map_or("", String::as_str), cycle.number[at]);
    let owner = |at: usize| usize::try_from(cycle.owner[at]).ok().map(|row| cycle.members[row].id.as_str());
    let shown = |at: usize| {
        let (topic, number) = partition(at);
        let from = owner(at).map_or("nobody".to_owned(), words::name);
        format!("\n         {}/{number}, from {from}", words::name(topic))
    };
    let claims = plan.claims.iter().map(|claim| {
        let to = words::name(&cycle.members[claim.member].id);
        format!("{} to {to}: {}", shown(claim.partition), words::quoted(&claim.reason))
    });
    let releases = plan.releases.iter().map(|&at| format!("{} to nobody", shown(at)));
    let moves: String = claims.chain(releases).take(TOLD_MAX).collect();
    let (claimed, released) = (plan.claims.len(), plan.releases.len());
    let more = (claimed + released).saturating_sub(TOLD_MAX);
    let more = if more > 0 { format!("\n         and {more} more with --json") } else { String::new() };
    let text =
        format!("{}, {}{moves}{more}", words::count(claimed, "claim"), words::count(released, "release"));
    let place = |at: usize| {
        let (topic, number) = partition(at);
        json!({ "topic": topic, "partition": number, "from": owner(at) })
    };
    let claim = |claim: &fulcrum_core::claiming::Claim| {
        let mut out = place(claim.partition);
        out["to"] = cycle.members[claim.member].id.as_str().into();
        out["reason"] = claim.reason.as_str().into();
        out
    };
    let answer = json!({
        "claims": plan.claims.iter().map(claim).collect::<Vec<_>>(),
        "releases": plan.releases.iter().map(|&at| place(at)).collect::<Vec<_>>(),
        "nextCycleMs": plan.next_cycle_ms,
    });
    Said { answer, text, ..Said::default() }
}

fn claiming_question(cycle: &Cycle) -> String {
    let mut owned = vec![0_usize; cycle.members.len()];
    let owners = cycle.owner.iter().map(|&owner| usize::try_from(owner).ok());
    owners.clone().flatten().for_each(|row| owned[row] += 1);
    let free = owners.filter(Option::is_none).count();
    let member = |(member, owned): (&fulcrum_core::claiming::Member, &usize)| {
        format!("{} with {owned}", words::name(&member.id))
    };
    let members: Vec<_> = cycle.members.iter().zip(&owned).take(TOLD_MAX).map(member).collect();
    let members = if members.is_empty() { "no member".to_owned() } else { words::list(&members) };
    let budget = cycle.movement_budget.map(|budget| format!("; budget {budget}")).unwrap_or_default();
    format!(
        "a cycle of {} {}; {members}; {}, {free} free{budget}; seed {}",
        words::name(&cycle.group),
        words::because(cycle.reason),
        words::count(cycle.owner.len(), "partition"),
        cycle.seed
    )
}

fn claiming_input(cycle: &Cycle) -> Value {
    let member = |member: &fulcrum_core::claiming::Member| {
        let labels: BTreeMap<_, _> = member.labels.iter().cloned().collect();
        let topics: Vec<_> =
            member.topics.iter().filter_map(|&topic| cycle.topics.get(topic as usize)).collect();
        json!({ "id": member.id, "zone": member.zone, "labels": labels, "capacity": member.capacity,
            "sinceMs": member.since_ms, "topics": topics })
    };
    let partition = |at: usize| {
        let owner = usize::try_from(cycle.owner[at]).ok().map(|row| cycle.members[row].id.as_str());
        json!({ "topic": cycle.topics.get(cycle.topic[at] as usize), "partition": cycle.number[at],
            "place": cycle.places.get(cycle.place[at] as usize).map_or("", String::as_str), "owner": owner,
            "weight": cycle.weight[at], "moving": cycle.moving[at] != 0, "heldMs": cycle.held_ms[at] })
    };
    json!({
        "group": cycle.group,
        "members": cycle.members.iter().map(member).collect::<Vec<_>>(),
        "partitions": (0..cycle.owner.len()).map(partition).collect::<Vec<_>>(),
        "movementBudget": cycle.movement_budget,
        "reason": cycle.reason.word(),
        "seed": cycle.seed.to_string(),
        "nowMs": cycle.now_ms,
    })
}
