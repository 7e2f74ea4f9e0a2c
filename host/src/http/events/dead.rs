//! Dead letters: what groups gave up on, to look at and to try again.

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use fulcrum_coordinator::pulls::{DeadLetter, Kind, PAGE_BYTES};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{poll, publish};
use crate::app::Services;
use crate::http::extract::{Json, Query};
use crate::http::instances::{Fields, invalid};
use crate::http::{Result, query};

pub(super) fn routes() -> Router<Services> {
    Router::new()
        .route("/events/dead-letters", get(list))
        .route("/events/dead-letters/redrive", post(redrive))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PageBody<'a> {
    dead_letters: Vec<DeadLetterBody<'a>>,
    /// What to ask for as `after` to go on; null at the end.
    next: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeadLetterBody<'a> {
    id: &'a str,
    group: &'a str,
    /// Whether the group is a client's own.
    private: bool,
    topic: &'a str,
    partition: u32,
    offset: u64,
    attempts: u32,
    reason: &'a str,
    at_ms: u64,
    event: &'a RawValue,
}

impl<'a> DeadLetterBody<'a> {
    fn new(letter: &'a DeadLetter) -> Self {
        Self {
            id: &letter.id,
            group: &letter.group,
            private: letter.kind == Kind::Private,
            topic: &letter.topic,
            partition: letter.partition,
            offset: letter.position,
            attempts: letter.attempts,
            reason: &letter.reason,
            at_ms: letter.at.0,
            // Publishing lets nothing else in.
            event: serde_json::from_slice(&letter.event).unwrap_or(RawValue::NULL),
        }
    }
}

async fn list(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response> {
    let (topic, max) = (publish::topic(&query)?, poll::max(&query)?);
    let (group, after) = (query::text(&query, "group"), query::text(&query, "after"));
    let letters = services.pulls.dead_letters(topic, group, max, after).await?;
    let bytes: usize = letters.iter().map(|letter| letter.event.len()).sum();
    let is_cut = letters.len() == max || PAGE_BYTES <= bytes;
    let next = letters.last().filter(|_| is_cut).map(|last| last.id.as_str());
    let body = PageBody { dead_letters: letters.iter().map(DeadLetterBody::new).collect(), next };
    Ok(Json(body).into_response())
}

async fn redrive(
    State(services): State<Services>,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Value>> {
    let fields = Fields(&body);
    let topic = fields.text("topic")?.ok_or_else(|| invalid("topic", "given"))?;
    let (group, ids) = (fields.text("group")?, ids(&fields)?);
    let redriven = services.pulls.redrive(&topic, group.as_deref(), ids.as_deref()).await?;
    Ok(Json(json!({ "topic": topic, "redriven": redriven })))
}

fn ids(fields: &Fields<'_>) -> Result<Option<Vec<String>>> {
    let must = || invalid("ids", "a list of ids of dead letters");
    let ids = |value: &Value| {
        let ids = value.as_array()?.iter().map(|id| Some(id.as_str()?.to_owned()));
        ids.collect::<Option<Vec<_>>>()
    };
    fields.get("ids").map(|value| ids(value).ok_or_else(must)).transpose()
}
