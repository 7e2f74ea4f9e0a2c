//! `/admin/decisions`: the latest decisions, while they are recorded.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use serde::Serialize;

use super::Result;
use super::error::Error;
use super::extract::{Json, Query};
use super::instances::invalid_query;
use super::query;
use crate::app::Services;
use crate::journal::{Filter, Shown};

/// Decisions one gets who does not say how many, and the most one can get.
const LIMIT_DEFAULT: u64 = 100;
const LIMIT_MAX: u64 = 1000;

pub(crate) fn routes() -> Router<Services> {
    Router::new().route("/admin/decisions", get(list))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Decisions {
    /// Every how many-th scoring decision is among them.
    sample_every: u64,
    written: u64,
    dropped: u64,
    /// Whether none can be recorded at present.
    paused: bool,
    /// Why.
    problem: Option<String>,
    decisions: Vec<Shown>,
}

async fn list(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<Decisions>> {
    let (filter, limit) = wanted(&query)?;
    let Some(journal) = &services.journal else {
        let message =
            "decisions are not recorded; start the host with journal.mode = \"sampled\" or \"full\"";
        return Err(Error::new(StatusCode::CONFLICT, "journal_off", message));
    };
    let counts = journal.counts();
    Ok(Json(Decisions {
        sample_every: journal.sample_every(),
        written: counts.written,
        dropped: counts.dropped,
        paused: counts.is_paused,
        problem: journal.problem(),
        decisions: journal.latest(&filter, limit),
    }))
}

/// Parameters there are.
const PARAMETERS: [&str; 4] = ["limit", "role", "group", "clientId"];

fn wanted(query: &[(String, String)]) -> Result<(Filter<'_>, usize)> {
    // A filter that is misspelt would show what was not asked for.
    if let Some((name, _)) = query.iter().find(|(name, _)| !PARAMETERS.contains(&name.as_str())) {
        let message = format!("unknown parameter {name:?}, expected one of {}", PARAMETERS.join(", "));
        return Err(Error::new(StatusCode::BAD_REQUEST, "invalid_query", message));
    }
    let role = query::text(query, "role");
    if role.is_some_and(|role| role != "scoring" && role != "claiming") {
        return Err(invalid_query("role", "\"scoring\" or \"claiming\""));
    }
    let limit = query::whole(query, "limit")?.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(invalid_query("limit", &format!("1 to {LIMIT_MAX}")));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (group, client_id) = (query::text(query, "group"), query::text(query, "clientId"));
    Ok((Filter { role, group, client_id }, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_checked() {
        let check = |text: &str, expected: Option<([Option<&str>; 3], usize)>| {
            let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
            let query: Vec<_> = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            let found = wanted(&query)
                .ok()
                .map(|(filter, limit)| ([filter.role, filter.group, filter.client_id], limit));
            assert_eq!(found, expected, "{text}");
        };
        check("", Some(([None; 3], 100)));
        check("role=&group=&limit=&clientId=", Some(([None; 3], 100)));
        check("role=scoring&limit=1", Some(([Some("scoring"), None, None], 1)));
        check("role=claiming&group=g&limit=1000", Some(([Some("claiming"), Some("g"), None], 1000)));
        check("clientId=c%201", Some(([None, None, Some("c%201")], 100)));
        check("client=c", None);
        check("limit=1&max=2", None);
        check("role=both", None);
        check("limit=0", None);
        check("limit=1001", None);
        check("limit=x", None);
    }
}
