//! Publishing CloudEvents: one in structured mode, or many in batched mode.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use fulcrum_coordinator::groups::check_name;
use fulcrum_store::{APPEND_BYTES_MAX, APPEND_RECORDS_MAX, Position};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::event::{Event, one_line};
use crate::app::Services;
use crate::http::error::Error;
use crate::http::extract::{self, Json, Query};
use crate::http::{Result, query};

/// Content type of one event.
pub(super) const ONE: &str = "application/cloudevents+json";
/// Content type of a batch.
const BATCH: &str = "application/cloudevents-batch+json";

pub(super) fn routes() -> Router<Services> {
    Router::new().route("/events/publish", post(publish)).route("/events/publish-batch", post(publish_batch))
}

type Body = std::result::Result<Bytes, BytesRejection>;

async fn publish(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Value>)> {
    let topic = topic(&query)?;
    let body = read(&headers, body, ONE)?;
    let event = Event::read(&body)?;
    services.rates.publish(topic, 1, body.len())?;
    let (partition, offset) = services.events.publish(topic, event.key.as_deref(), one_line(&body)).await?;
    let answer = json!({ "status": "accepted", "topic": topic, "partition": partition, "offset": offset.0 });
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

/// Checks all events before it stores the first.
async fn publish_batch(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Value>)> {
    let topic = topic(&query)?;
    let body = read(&headers, body, BATCH)?;
    let events = events(&body)?;
    let count = events.len();
    services.rates.publish(topic, count, events.iter().map(|(_, event)| event.len()).sum())?;
    let places = if events.is_empty() {
        Vec::new()
    } else {
        let stored = services.events.publish_batch(topic, events).await;
        stored.map_err(|partial| Error::from(partial.error).with("accepted", partial.stored as u64))?
    };
    let place = |(partition, offset): (u32, Position)| json!({ "partition": partition, "offset": offset.0 });
    let places: Vec<_> = places.into_iter().map(place).collect();
    let answer = json!({ "status": "accepted", "topic": topic, "accepted": count, "events": places });
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

/// Returns the topic a query names.
pub(super) fn topic(query: &[(String, String)]) -> Result<&str> {
    let topic = query::required(query, "topic")?;
    check_name("topic", topic)?;
    Ok(topic)
}

/// Returns a body whose content type is `kind` or that of plain JSON.
pub(super) fn read(headers: &HeaderMap, body: Body, kind: &str) -> Result<Bytes> {
    let found = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let found = found.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if found != "application/json" && found != kind {
        let message = format!("expected the header `content-type: {kind}`");
        return Err(Error::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", message));
    }
    body.map_err(|error| extract::bytes_error(&error))
}

/// Reads a body of one shape: 400 `invalid_json` if it is no JSON, else `invalid_body` that says what it must be.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8], must: &str) -> Result<T> {
    serde_json::from_slice(body).map_err(|_| {
        // What was wrong first may have been the shape of something that is no JSON further on.
        let (code, message) = match serde_json::from_slice::<IgnoredAny>(body) {
            Ok(_) => ("invalid_body", format!("the body must be {must}")),
            Err(error) => ("invalid_json", error.to_string()),
        };
        Error::new(StatusCode::BAD_REQUEST, code, message)
    })
}

/// Reads a batch: each event's key and bytes, in order.
fn events(body: &Bytes) -> Result<Vec<(Option<String>, Bytes)>> {
    let array: Vec<&RawValue> = parse(body, "an array of events")?;
    if array.len() > APPEND_RECORDS_MAX {
        let message = format!("a batch has at most {APPEND_RECORDS_MAX} events");
        return Err(Error::new(StatusCode::BAD_REQUEST, "invalid_body", message));
    }
    let mut bytes = 0;
    let event = |(index, raw): (usize, &RawValue)| {
        let event = Event::read(raw.get().as_bytes()).map_err(|error| {
            error.about(&format!("event {index}")).with("index", u64::try_from(index).unwrap_or(u64::MAX))
        })?;
        bytes += raw.get().len();
        Ok((event.key, one_line(&body.slice_ref(raw.get().as_bytes()))))
    };
    let events = array.into_iter().enumerate().map(event).collect::<Result<Vec<_>>>()?;
    // One partition may get them all.
    if bytes > APPEND_BYTES_MAX { Err(extract::too_large()) } else { Ok(events) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_read_event_by_event() {
        let event = |id: u32| format!(r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"t"}}"#);
        let check = |body: &str, expected: std::result::Result<Vec<&str>, (&str, Option<u64>)>| {
            let found = events(&Bytes::copy_from_slice(body.as_bytes()));
            let found = found
                .as_ref()
                .map(|events| {
                    events.iter().map(|(_, event)| std::str::from_utf8(event).unwrap_or("?")).collect()
                })
                .map_err(|error| (error.code(), error.fact("index")));
            assert_eq!(found, expected, "{body}");
        };
        check("[]", Ok(vec![]));
        check(" [ ] ", Ok(vec![]));
        let (one, two) = (event(1), event(2));
        check(&format!("[{one}, {two}\n]"), Ok(vec![&one, &two]));
        let spread = one.replace(',', ",\n");
        check(&format!("[{spread}]"), Ok(vec![&one.replace(',', ", ")]));
        check(&format!("[{one},{{}}]"), Err(("invalid_event", Some(1))));
        check(&format!("[{one},[]]"), Err(("invalid_event", Some(1))));
        check("[1]", Err(("invalid_event", Some(0))));
        check(&one, Err(("invalid_body", None)));
        check("\"x\"", Err(("invalid_body", None)));
        check("", Err(("invalid_json", None)));
        check("{", Err(("invalid_json", None)));
        check(&format!("[{one}"), Err(("invalid_json", None)));
        check(&format!("[{one}] x"), Err(("invalid_json", None)));
        let many = format!("[{}]", vec!["{}"; APPEND_RECORDS_MAX + 1].join(","));
        check(&many, Err(("invalid_body", None)));
    }
}
