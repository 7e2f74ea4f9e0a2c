//! The guest shell: bindings generated from `wit/`, and their conversions to and from the plain types.
//!
//! Only [`export_scoring!`](crate::export_scoring) uses this module, and
//! [`export_claiming!`](crate::export_claiming) uses [`claiming`].

use std::cell::RefCell;
use std::thread::LocalKey;

use crate::{Error, Loads, Request, Row, Scoring};

pub mod claiming;

/// What `wit-bindgen` generates from the contract.
#[allow(
    unsafe_code,
    missing_docs,
    unreachable_pub,
    clippy::all,
    reason = "generated: lowering and lifting of the component model's types"
)]
pub mod bindings {
    wit_bindgen::generate!({
        world: "scoring-policy",
        path: "../../wit",
        pub_export_macro: true,
        export_macro_name: "export_scoring_policy",
    });
}

pub use bindings::exports::fulcrum::policy::{lifecycle, scoring};

type State<P> = LocalKey<RefCell<Option<P>>>;

/// Answers `lifecycle.describe`.
pub fn describe<P: Scoring>() -> lifecycle::Description {
    let description = P::describe();
    lifecycle::Description {
        name: description.name.into(),
        version: description.version.into(),
        summary: description.summary.into(),
        config_schema: description.config_schema.into(),
    }
}

/// Answers `lifecycle.configure`.
pub fn configure<P: Scoring>(state: &'static State<P>, config: &str) -> Result<(), lifecycle::Error> {
    let policy = P::configure(config)?;
    state.with_borrow_mut(|kept| *kept = Some(policy));
    Ok(())
}

/// Answers `scoring.roster`.
pub fn roster<P: Scoring>(
    state: &'static State<P>,
    instances: Vec<scoring::Instance>,
) -> Result<(), lifecycle::Error> {
    let rows = instances
        .into_iter()
        .map(|instance| Row {
            id: instance.id,
            zone: instance.zone,
            capacity: instance.capacity,
            labels: instance.labels,
            age_ms: instance.age_ms,
        })
        .collect();
    with(state, |policy| policy.roster(rows))
}

/// Answers `scoring.refresh`.
pub fn refresh<P: Scoring>(state: &'static State<P>, loads: scoring::Loads) -> Result<(), lifecycle::Error> {
    let loads = Loads {
        sessions: loads.sessions,
        inflow: loads.inflow,
        outflow: loads.outflow,
        cpu: loads.cpu,
        heartbeat_age_ms: loads.heartbeat_age_ms,
        pending: loads.pending,
        flags: loads.flags,
    };
    with(state, |policy| policy.refresh(loads))
}

/// Answers `scoring.recommend`.
#[inline]
pub fn recommend<P: Scoring>(
    state: &'static State<P>,
    request: &scoring::Request,
) -> Result<scoring::Recommendation, lifecycle::Error> {
    let answer = with(state, |policy| policy.recommend(&plain(request)))?;
    Ok(scoring::Recommendation { row: answer.row, score: answer.score })
}

/// Answers `scoring.explain`.
pub fn explain<P: Scoring>(
    state: &'static State<P>,
    request: &scoring::Request,
) -> Result<Vec<scoring::ScoreParts>, lifecycle::Error> {
    let rows = with(state, |policy| policy.explain(&plain(request)))?;
    Ok(rows
        .into_iter()
        .map(|row| scoring::ScoreParts {
            row: row.row,
            score: row.score,
            parts: row.parts.into_iter().map(|(name, value)| (name.into_owned(), value)).collect(),
        })
        .collect())
}

#[inline]
fn with<P, T>(
    state: &'static State<P>,
    call: impl FnOnce(&mut P) -> Result<T, Error>,
) -> Result<T, lifecycle::Error> {
    state.with_borrow_mut(|kept| match kept {
        Some(policy) => call(policy).map_err(Into::into),
        None => Err(lifecycle::Error::Failed("the policy was not configured".into())),
    })
}

#[inline]
fn plain(request: &scoring::Request) -> Request<'_> {
    Request {
        client_id: &request.client_id,
        session_rows: &request.session_rows,
        session_counts: &request.session_counts,
        client_inflow: request.client_inflow,
        client_outflow: request.client_outflow,
        avoid: &request.avoid,
        committed: &request.committed,
        now_ms: request.now_ms,
        seed: request.seed,
    }
}

impl From<Error> for lifecycle::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidConfig(text) => Self::InvalidConfig(text),
            Error::InvalidInput(text) => Self::InvalidInput(text),
            Error::NoCandidate => Self::NoCandidate,
            Error::Unsupported => Self::Unsupported,
            Error::Failed(text) => Self::Failed(text),
        }
    }
}
