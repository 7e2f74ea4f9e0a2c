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
        decisions: journal.latest(&filter, limit),
    }))
}

fn wanted(query: &[(String, String)]) -> Result<(Filter<'_>, usize)> {
    let role = query::text(query, "role");
    if role.is_some_and(|role| role != "scoring" && role != "claiming") {
        return Err(invalid_query("role", "\"scoring\" or \"claiming\""));
    }
    let limit = query::whole(query, "limit")?.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(invalid_query("limit", &format!("1 to {LIMIT_MAX}")));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    Ok((Filter { role, group: query::text(query, "group") }, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_checked() {
        let check = |text: &str, expected: Option<(Option<&str>, Option<&str>, usize)>| {
            let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
            let query: Vec<_> = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            let found = wanted(&query).ok().map(|(filter, limit)| (filter.role, filter.group, limit));
            assert_eq!(found, expected, "{text}");
        };
        check("", Some((None, None, 100)));
        check("role=&group=&limit=", Some((None, None, 100)));
        check("role=scoring&limit=1", Some((Some("scoring"), None, 1)));
        check("role=claiming&group=g&limit=1000", Some((Some("claiming"), Some("g"), 1000)));
        check("role=both", None);
        check("limit=0", None);
        check("limit=1001", None);
        check("limit=x", None);
    }
}
