//! The scoring question as JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulcrum_core::scoring::{self, Instance, Load, Loads, Request, Roster, flags};
use fulcrum_policy::failure::Failure;
use fulcrum_policy::seat::ScoringPolicy;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Trouble;
use super::input::{self, Labels, bad};

/// Most requests one line may ask for.
const REQUESTS_MAX: u32 = 1_000_000;

/// One line of input.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Case {
    roster: Vec<Row>,
    loads: Vec<Option<RowLoad>>,
    request: Ask,
    requests: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    id: String,
    #[serde(default)]
    zone: String,
    #[serde(default = "input::one")]
    capacity: f64,
    #[serde(default)]
    labels: Labels,
    #[serde(default)]
    age_ms: u64,
}

/// The load is unknown when none of its four figures is given; one that is left out beside others is 0.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RowLoad {
    active_sessions: Option<u32>,
    inflow_bytes_per_sec: Option<f64>,
    outflow_bytes_per_sec: Option<f64>,
    cpu_load: Option<f64>,
    heartbeat_age_ms: u32,
    pending: u32,
    draining: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ask {
    client_id: String,
    sessions: BTreeMap<String, u32>,
    inflow_bytes_per_sec: f64,
    outflow_bytes_per_sec: f64,
    exclude: Vec<String>,
    #[serde(deserialize_with = "input::seed")]
    seed: u64,
    now_ms: u64,
}

/// Asks the policy.
pub(super) fn answer(case: &Case, policy: &mut dyn ScoringPolicy) -> Result<Value, Trouble> {
    let roster = case.roster()?;
    let loads = case.loads(&roster)?;
    let asked = Asked::new(&case.request, &roster)?;
    let requests = case.requests.unwrap_or(1);
    if requests > REQUESTS_MAX {
        return Err(bad(format!("requests must be at most {REQUESTS_MAX}, it is {requests}")));
    }
    if requests > 0 && !scoring::any_choosable(&loads, &asked.avoid) {
        let message = "no row may be chosen: the roster is empty, or every row is draining or excluded";
        return Err(Trouble::Input("no_candidate", message.to_owned()));
    }
    policy.roster(&roster)?;
    policy.refresh(&loads)?;
    let mut picks = Vec::with_capacity(requests as usize);
    let mut committed = Vec::new();
    let mut score = None;
    for k in 0..u64::from(requests) {
        let seed = case.request.seed.wrapping_add(k);
        let proposal = policy.recommend(&asked.request(&case.request, seed), &committed)?;
        let choice = scoring::verify(&roster, &loads, &asked.avoid, proposal)
            .map_err(|illegal| Failure::Illegal(illegal.to_string()))?;
        committed.clear();
        committed.push(proposal.row);
        picks.push(&*roster.rows()[choice.row].id);
        score = Some(choice.score.get());
    }
    Ok(match case.requests {
        Some(_) => json!({ "picks": picks }),
        None => json!({ "id": picks.first(), "score": score }),
    })
}

impl Case {
    fn roster(&self) -> Result<Roster, Trouble> {
        let row = |row: &Row| {
            input::check_id("an instance", &row.id)?;
            input::check_capacity(&row.id, row.capacity)?;
            Ok(Instance {
                id: Arc::from(row.id.as_str()),
                zone: row.zone.clone(),
                capacity: row.capacity,
                labels: input::labels(&row.labels),
                age_ms: row.age_ms,
            })
        };
        let rows = self.roster.iter().map(row).collect::<Result<_, Trouble>>()?;
        Roster::new(rows).map_err(|id| bad(format!("the instance {id:?} stands in the roster twice")))
    }

    /// Returns the columns in the order of the roster; the input has them in its own.
    fn loads(&self, roster: &Roster) -> Result<Loads, Trouble> {
        let mut loads = Loads::unknown(roster.len());
        if !self.loads.is_empty() && self.loads.len() != self.roster.len() {
            return Err(bad(format!(
                "loads has {} entries, roster has {}",
                self.loads.len(),
                self.roster.len()
            )));
        }
        for (row, load) in self.roster.iter().zip(&self.loads) {
            let (Some(load), Some(at)) = (load, roster.row_of(&row.id)) else { continue };
            loads.set(at, load.figures(&row.id)?);
            loads.heartbeat_age_ms[at] = load.heartbeat_age_ms;
            loads.pending[at] = load.pending;
            if load.draining {
                loads.flags[at] |= flags::DRAINING;
            }
        }
        Ok(loads)
    }
}

impl RowLoad {
    fn figures(&self, id: &str) -> Result<Option<Load>, Trouble> {
        let is_known = self.active_sessions.is_some()
            || self.inflow_bytes_per_sec.is_some()
            || self.outflow_bytes_per_sec.is_some()
            || self.cpu_load.is_some();
        if !is_known {
            return Ok(None);
        }
        let load = Load {
            sessions: self.active_sessions.unwrap_or(0),
            inflow: self.inflow_bytes_per_sec.unwrap_or(0.0),
            outflow: self.outflow_bytes_per_sec.unwrap_or(0.0),
            cpu: self.cpu_load.unwrap_or(0.0),
        };
        input::check_amount(&format!("inflowBytesPerSec of {id:?}"), load.inflow)?;
        input::check_amount(&format!("outflowBytesPerSec of {id:?}"), load.outflow)?;
        if !(0.0..=1.0).contains(&load.cpu) {
            return Err(bad(format!("cpuLoad of {id:?} must be 0 to 1, it is {}", load.cpu)));
        }
        Ok(Some(load))
    }
}

/// The request in rows instead of ids. Ids that are not in the roster mean nothing, as in the host.
struct Asked {
    session_rows: Vec<u32>,
    session_counts: Vec<u32>,
    avoid: Vec<u32>,
}

impl Asked {
    fn new(ask: &Ask, roster: &Roster) -> Result<Self, Trouble> {
        if ask.client_id.len() > fulcrum_core::NAME_BYTES_MAX {
            return Err(bad(format!("clientId must have at most {} bytes", fulcrum_core::NAME_BYTES_MAX)));
        }
        input::check_amount("inflowBytesPerSec of the request", ask.inflow_bytes_per_sec)?;
        input::check_amount("outflowBytesPerSec of the request", ask.outflow_bytes_per_sec)?;
        let row = |id: &str| roster.row_of(id).and_then(|row| u32::try_from(row).ok());
        // Ids and rows have the same order.
        let sessions = ask.sessions.iter().filter(|(_, count)| **count > 0);
        let (session_rows, session_counts) =
            sessions.filter_map(|(id, &count)| Some((row(id)?, count))).unzip();
        let mut avoid: Vec<_> = ask.exclude.iter().filter_map(|id| row(id)).collect();
        avoid.sort_unstable();
        avoid.dedup();
        Ok(Self { session_rows, session_counts, avoid })
    }

    fn request<'a>(&'a self, ask: &'a Ask, seed: u64) -> Request<'a> {
        Request {
            client_id: &ask.client_id,
            session_rows: &self.session_rows,
            session_counts: &self.session_counts,
            client_inflow: ask.inflow_bytes_per_sec,
            client_outflow: ask.outflow_bytes_per_sec,
            avoid: &self.avoid,
            now_ms: ask.now_ms,
            seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use fulcrum_core::scoring::Proposal;
    use fulcrum_policy::seat::ExplainedRow;

    /// Fewest sessions and pending ones; the seed is the score.
    #[derive(Default)]
    struct Fewest {
        loads: Loads,
    }

    impl ScoringPolicy for Fewest {
        fn roster(&mut self, _: &Roster) -> Result<(), Failure> {
            Ok(())
        }

        fn refresh(&mut self, loads: &Loads) -> Result<(), Failure> {
            self.loads = loads.clone();
            Ok(())
        }

        fn recommend(&mut self, request: &Request<'_>, committed: &[u32]) -> Result<Proposal, Failure> {
            committed.iter().for_each(|&row| self.loads.give_out(row as usize));
            let cost = |row: &usize| self.loads.sessions[*row] + self.loads.pending[*row];
            let rows =
                (0..self.loads.len()).filter(|&row| scoring::choosable(&self.loads, request.avoid, row));
            let row = rows.min_by_key(cost).expect("the host asks only then") as u32;
            Ok(Proposal { row, score: request.seed as f64 })
        }

        fn explain(&mut self, _: &Request<'_>, _: &[u32]) -> Result<Option<Vec<ExplainedRow>>, Failure> {
            Ok(None)
        }
    }

    fn check(line: &str, expected: Result<Value, &str>) {
        let found = parse::<Case>(line).and_then(|case| answer(&case, &mut Fewest::default()));
        let found = found.map_err(|trouble| trouble.code().to_owned());
        assert_eq!(found, expected.map_err(str::to_owned), "{line}");
    }

    #[test]
    fn lines_are_answered() {
        check(r#"{"roster":[{"id":"b"}]}"#, Ok(json!({ "id": "b", "score": 0.0 })));
        // Loads follow the roster as it was written, not as it is ordered.
        let roster = r#""roster":[{"id":"b"},{"id":"a"}]"#;
        let line = |rest: &str| format!("{{{roster},{rest}}}");
        let loads = r#""loads":[{"activeSessions":1},{"activeSessions":2}]"#;
        check(&line(loads), Ok(json!({ "id": "b", "score": 0.0 })));
        check(
            &line(&format!(r#"{loads},"request":{{"exclude":["b","b","x"]}}"#)),
            Ok(json!({ "id": "a", "score": 0.0 })),
        );
        check(
            &line(r#""loads":[{"draining":true},null],"request":{"seed":7}"#),
            Ok(json!({ "id": "a", "score": 7.0 })),
        );
        check(&line(r#""request":{"seed":"12"}"#), Ok(json!({ "id": "a", "score": 12.0 })));
        check(&line(&format!(r#"{loads},"requests":4"#)), Ok(json!({ "picks": ["b", "a", "b", "a"] })));
        check(&line(r#""requests":0"#), Ok(json!({ "picks": [] })));
    }

    #[test]
    fn bad_lines_are_named() {
        check("{}", Err("no_candidate"));
        check(r#"{"roster":[{"id":"a"}],"loads":[{"draining":true}]}"#, Err("no_candidate"));
        check(r#"{"roster":[{"id":"a"},{"id":"a"}]}"#, Err("invalid_input"));
        check(r#"{"roster":[{"id":""}]}"#, Err("invalid_input"));
        check(r#"{"roster":[{"id":"a","capacity":0}]}"#, Err("invalid_input"));
        check(r#"{"roster":[{"id":"a"}],"loads":[null,null]}"#, Err("invalid_input"));
        check(r#"{"roster":[{"id":"a"}],"loads":[{"activeSessions":-1}]}"#, Err("invalid_input"));
        check(r#"{"roster":[{"id":"a"}],"loads":[{"inflowBytesPerSec":-1}]}"#, Err("invalid_input"));
        check(r#"{"roster":[{"id":"a"}],"loads":[{"cpuLoad":1.5}]}"#, Err("invalid_input"));
        check(r#"{"roster":[{"id":"a"}],"request":{"seed":"x"}}"#, Err("invalid_input"));
        check(r#"{"roster":[{"id":"a"}],"request":{"seed":1.5}}"#, Err("invalid_input"));
        check(r#"{"roster":[{"id":"a"}],"requests":2000000}"#, Err("invalid_input"));
    }

    #[test]
    fn a_load_without_figures_is_unknown() {
        let case: Case = parse(r#"{"roster":[{"id":"a"}],"loads":[{"pending":3}]}"#).expect("valid");
        let loads = case.loads(&case.roster().expect("valid")).expect("valid");
        assert_eq!((loads.get(0), loads.pending[0]), (None, 3));
    }
}
