//! Request and reply: an event that somebody answers with another one.
//!
//! The host adds two extensions to the request: `correlationid`, which the reply must name, and `replyto`, where to
//! send it. Others who read the topic see the request too; the first reply wins. A request nobody answered in time
//! stays published: it was neither acknowledged nor withdrawn.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use fulcrum_coordinator::requests;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::event::{Event, one_line};
use super::publish::{self, ONE};
use crate::app::Services;
use crate::http::error::Error;
use crate::http::extract::{Json, Query};
use crate::http::instances::{invalid, invalid_query};
use crate::http::{Result, query, store};

/// Longest wait for a reply, and how long one waits that does not say, in milliseconds.
const WAIT_MS_MAX: u64 = 600_000;
const WAIT_MS_DEFAULT: u64 = 30_000;

/// Where requests are sent.
pub(in crate::http) const PATH: &str = "/events/request";

pub(super) fn routes() -> Router<Services> {
    Router::new().route(PATH, post(request)).route("/events/reply", post(reply))
}

impl From<requests::Error> for Error {
    fn from(error: requests::Error) -> Self {
        match error {
            requests::Error::TooMany { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", error.to_string())
                    .retry_after(1)
            }
            requests::Error::Stopping => store::stopping(),
        }
    }
}

type Body = std::result::Result<Bytes, BytesRejection>;

async fn request(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    let topic = publish::topic(&query)?;
    let wait_ms = query::whole(&query, "timeoutMs")?.unwrap_or(WAIT_MS_DEFAULT);
    if !(1..=WAIT_MS_MAX).contains(&wait_ms) {
        return Err(invalid_query("timeoutMs", "1 to 600000"));
    }
    let until = Instant::now() + Duration::from_millis(wait_ms);
    let body = one_line(&publish::read(&headers, body, ONE)?);
    let event = Event::read(&body)?;
    services.rates.publish(topic, 1, body.len())?;
    let mut request = services.requests.open()?;
    let addressed = addressed(&body, request.correlation_id(), &services.reply_url)?;
    // Whatever becomes of the caller: a topic that is made here must be told to those who wait for it.
    let (events, topic) = (services.events.clone(), topic.to_owned());
    let published = async move { events.publish(&topic, event.key.as_deref(), addressed).await };
    tokio::spawn(published).await.map_err(|_| Error::internal())??;
    let reply = match timeout_at(until, request.reply()).await {
        Ok(reply) => reply?,
        Err(_) => request.give_up().ok_or_else(|| no_reply(wait_ms))?,
    };
    Ok(([(CONTENT_TYPE, ONE)], reply).into_response())
}

fn no_reply(wait_ms: u64) -> Error {
    let message = format!("nobody replied within {wait_ms} ms; the event stays published");
    Error::new(StatusCode::GATEWAY_TIMEOUT, "no_reply", message)
}

/// Adds the extensions a responder needs; one of the same name gives way.
fn addressed(event: &[u8], correlation_id: &str, reply_to: &str) -> Result<Bytes> {
    let mut event = raw_fields(event)?;
    for (name, value) in [("correlationid", correlation_id), ("replyto", reply_to)] {
        event.insert(name.to_owned(), to_raw_value(value).expect("a text is JSON"));
    }
    Ok(serde_json::to_vec(&event).expect("texts and raw values are JSON").into())
}

async fn reply(State(services): State<Services>, headers: HeaderMap, body: Body) -> Result<Json<Value>> {
    let body = publish::read(&headers, body, "application/json")?;
    let fields = raw_fields(&body)?;
    let must = || invalid("correlationId", "the extension correlationid of the request");
    let id = fields.get("correlationId").ok_or_else(must)?;
    let id: String = serde_json::from_str(id.get()).map_err(|_| must())?;
    let event = fields.get("event").ok_or_else(|| invalid("event", "the reply, one event"))?.get();
    Event::read(event.as_bytes())?;
    if services.requests.reply(&id, one_line(&Bytes::copy_from_slice(event.as_bytes()))) {
        return Ok(Json(json!({ "status": "ok" })));
    }
    let message = "no request with this correlationId waits: it was answered, gave up, or is on another host";
    Err(Error::new(StatusCode::NOT_FOUND, "unknown_request", message))
}

/// Reads the fields of an object as they were written; the last one of a name counts.
fn raw_fields(body: &[u8]) -> Result<BTreeMap<String, Box<RawValue>>> {
    publish::parse(body, "a JSON object")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_addressed_and_else_left_as_they_are() {
        let check = |event: &str, expected: &str| {
            let found = addressed(event.as_bytes(), "7f", "http://h:1/events/reply");
            assert_eq!(found, Ok(Bytes::copy_from_slice(expected.as_bytes())), "{event}");
        };
        check(
            r#"{"id":"1","data":{"n":1.50,"big":123456789012345678901234567890}}"#,
            r#"{"correlationid":"7f","data":{"n":1.50,"big":123456789012345678901234567890},"id":"1","replyto":"http://h:1/events/reply"}"#,
        );
        check(
            r#"{"replyto":"http://evil/","correlationid":1}"#,
            r#"{"correlationid":"7f","replyto":"http://h:1/events/reply"}"#,
        );
    }
}
