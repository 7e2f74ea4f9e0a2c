//! Reading an owned partition, and storing how far.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use fulcrum_coordinator::groups::Checkpoint;
use fulcrum_core::group::Place;
use fulcrum_store::{FetchLimit, Fetched, Position};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::path;
use crate::app::Services;
use crate::http::extract::{Json, Query};
use crate::http::instances::invalid_query;
use crate::http::{Result, query};

/// Most events of one pull.
const EVENTS_MAX: u32 = 10_000;
/// Most bytes of one pull, but for a single event.
const BYTES_MAX: usize = 4 << 20;

pub(super) fn routes() -> Router<Services> {
    Router::new()
        .route("/groups/{group}/topics/{topic}/partitions/{partition}/events", get(pull))
        .route("/groups/{group}/topics/{topic}/partitions/{partition}/checkpoint", post(checkpoint))
}

type Names = std::result::Result<Path<(String, String, u32)>, PathRejection>;

/// What a pull asks for.
struct Pull<'a> {
    member: &'a str,
    session: &'a str,
    epoch: u64,
    limit: FetchLimit,
    wait: Duration,
    offset: Option<u64>,
}

impl<'a> Pull<'a> {
    fn read(query: &'a [(String, String)]) -> Result<Self> {
        let epoch = query::whole(query, "epoch")?.ok_or_else(|| invalid_query("epoch", "given"))?;
        let limit = FetchLimit { records: query::max(query, EVENTS_MAX)?, bytes: BYTES_MAX };
        let wait = query::wait(query)?;
        Ok(Self {
            member: query::required(query, "member")?,
            session: query::required(query, "session")?,
            epoch,
            limit,
            wait,
            offset: query::whole(query, "offset")?,
        })
    }
}

async fn pull(
    State(services): State<Services>,
    names: Names,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response> {
    let (group, topic, partition) = path(names)?;
    let pull = Pull::read(&query)?;
    let place = Place { topic, partition };
    let check = || services.groups.check_owner(&group, pull.member, pull.session, place.clone(), pull.epoch);
    let checkpoint = check().await?;
    let mut from = Position(pull.offset.or(checkpoint).unwrap_or(0));
    let until = Instant::now() + pull.wait;
    let fetched = loop {
        let fetched = services.log.fetch(&place.topic, place.partition, from, pull.limit).await?;
        from = from.max(fetched.next);
        if !fetched.records.is_empty() || !more(&services, &place, from, until).await? {
            break fetched;
        }
        // The partition may have moved on while this waited.
        check().await?;
    };
    Ok(answer(&fetched, from))
}

/// Waits for an event at `from` or later; false when the time is over or the host stops.
async fn more(services: &Services, place: &Place, from: Position, until: Instant) -> Result<bool> {
    if until <= Instant::now() || services.lifecycle.is_draining() {
        return Ok(false);
    }
    tokio::select! {
        end = services.log.wait(&place.topic, place.partition, from) => Ok(end.map(|_| true)?),
        () = tokio::time::sleep_until(until) => Ok(false),
        () = services.lifecycle.drained() => Ok(false),
    }
}

/// Writes the answer by hand: the events go out byte by byte as they came in.
fn answer(fetched: &Fetched, next: Position) -> Response {
    let bytes: usize = fetched.records.iter().map(|record| record.payload.len() + 40).sum();
    let mut body = Vec::with_capacity(bytes + 100);
    body.extend_from_slice(b"{\"events\":[");
    for (at, record) in fetched.records.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        body.extend_from_slice(format!("{{\"offset\":{},\"event\":", record.position).as_bytes());
        body.extend_from_slice(&record.payload);
        body.push(b'}');
    }
    let (first, end) = (fetched.first, fetched.end);
    let rest = format!("],\"nextOffset\":{next},\"endOffset\":{end},\"firstOffset\":{first}}}");
    body.extend_from_slice(rest.as_bytes());
    ([(CONTENT_TYPE, "application/json")], Body::from(body)).into_response()
}

#[derive(Deserialize)]
struct CheckpointBody {
    member: String,
    session: String,
    epoch: u64,
    offset: u64,
    #[serde(default)]
    rewind: bool,
}

async fn checkpoint(
    State(services): State<Services>,
    names: Names,
    Json(body): Json<CheckpointBody>,
) -> Result<Json<Value>> {
    let (group, topic, partition) = path(names)?;
    let CheckpointBody { member, session, epoch, offset, rewind } = body;
    let answer = json!({ "topic": topic, "partition": partition, "epoch": epoch, "offset": offset });
    let place = Place { topic, partition };
    let checkpoint = Checkpoint { member, session, place, epoch, offset, rewind };
    services.groups.checkpoint(&group, checkpoint).await?;
    Ok(Json(answer))
}

#[cfg(test)]
mod tests {
    use fulcrum_core::Timestamp;
    use fulcrum_store::Stored;

    use super::*;

    #[tokio::test]
    async fn answers_are_json() {
        let record = |position, payload: &'static str| Stored {
            position: Position(position),
            at: Timestamp(1),
            payload: payload.into(),
        };
        let records = vec![record(3, r#"{"id":"a"}"#), record(5, r#"{"id":"b","n":1.50}"#)];
        let fetched = Fetched { records, next: Position(6), first: Position(2), end: Position(9) };
        let body =
            axum::body::to_bytes(answer(&fetched, Position(6)).into_body(), 1000).await.expect("short");
        assert_eq!(
            body,
            r#"{"events":[{"offset":3,"event":{"id":"a"}},{"offset":5,"event":{"id":"b","n":1.50}}],"nextOffset":6,"endOffset":9,"firstOffset":2}"#
        );
        let none = Fetched { records: Vec::new(), ..fetched };
        let body = axum::body::to_bytes(answer(&none, Position(6)).into_body(), 1000).await.expect("short");
        assert!(serde_json::from_slice::<Value>(&body).is_ok());
    }
}
