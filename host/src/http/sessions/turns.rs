//! What flows on a session: turns, published messages, and the one subscriber.
//!
//! Every line of a stream is the same object of seven fields, because EventMesh's client refuses others; unused ones are
//! null.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::{get, post};
use fulcrum_coordinator::turns::{self, Chunk, Reply, Subscriber, Told};
use fulcrum_core::NAME_BYTES_MAX;
use fulcrum_policy::json::Plain;
use futures_util::stream::{Stream, unfold};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::app::Services;
use crate::http::error::Error;
use crate::http::extract::{self, Json};
use crate::http::instances::{invalid, parameter};
use crate::http::{Result, store};

/// Comments sent on a quiet stream, so that both sides notice a dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// When to try again what is full just now, in seconds.
const RETRY_SECS: u32 = 1;
/// JSON may write each byte of a text as six.
const ESCAPED_BYTES_MAX: usize = 6;

pub(super) fn routes() -> Router<Services> {
    Router::new()
        .route("/session/stream/{session_id}", post(stream))
        .route("/session/publish/{session_id}", post(publish))
        .route("/session/subscribe/{session_id}", get(subscribe))
}

type Id = std::result::Result<Path<String>, PathRejection>;

/// Maps what turns refuse to a status and a code.
impl From<turns::Error> for Error {
    fn from(error: turns::Error) -> Self {
        let (status, code) = match &error {
            turns::Error::Refused(refused) => return refused.clone().into(),
            turns::Error::Stopping => return store::stopping(),
            turns::Error::NoAgent { .. } => (StatusCode::CONFLICT, "session_has_no_agent"),
            turns::Error::TurnRunning { .. } => (StatusCode::CONFLICT, "turn_running"),
            turns::Error::AgentBusy { .. } => (StatusCode::TOO_MANY_REQUESTS, "agent_busy"),
            turns::Error::TooManyTurns { .. } => (StatusCode::TOO_MANY_REQUESTS, "too_many_turns"),
            turns::Error::UnknownTurn => (StatusCode::NOT_FOUND, "unknown_turn"),
            turns::Error::TurnOver => (StatusCode::CONFLICT, "turn_over"),
            turns::Error::NotNext { .. } => (StatusCode::CONFLICT, "seq_not_next"),
            turns::Error::SlowClient => (StatusCode::TOO_MANY_REQUESTS, "slow_client"),
            turns::Error::ChunkTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            turns::Error::AlreadySubscribed { .. } => (StatusCode::CONFLICT, "already_subscribed"),
        };
        let answer = Self::new(status, code, error.to_string());
        match error {
            turns::Error::NotNext { next } => answer.with("nextSeq", next),
            _ if status == StatusCode::TOO_MANY_REQUESTS => answer.retry_after(RETRY_SECS),
            _ => answer,
        }
    }
}

/// One line of a stream.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    session_id: &'a str,
    seq: u64,
    chunk: &'a str,
    done: bool,
    error: Option<&'a str>,
    event_type: Option<&'static str>,
    meta: Option<Value>,
}

impl<'a> Line<'a> {
    fn new(session_id: &'a str, seq: u64, chunk: &'a Chunk) -> Self {
        Self {
            session_id,
            seq,
            chunk: &chunk.text,
            done: chunk.done,
            error: chunk.error.as_deref(),
            event_type: chunk.is_message.then_some("message"),
            meta: None,
        }
    }

    fn gap(session_id: &'a str, seq: u64, missed: u64) -> Self {
        let meta = Some(json!({ "missed": missed }));
        Self { session_id, seq, chunk: "", done: false, error: None, event_type: Some("gap"), meta }
    }

    fn event(&self) -> std::result::Result<Event, Infallible> {
        Ok(Event::default().data(serde_json::to_string(self).expect("a line is plain data")))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TurnBody {
    prompt: String,
    model: Option<String>,
    timeout_ms: Option<u64>,
}

async fn stream(
    State(services): State<Services>,
    id: Id,
    Json(body): Json<TurnBody>,
) -> Result<Sse<impl Stream<Item = std::result::Result<Event, Infallible>>>> {
    let session_id = parameter(id)?;
    let TurnBody { prompt, model, timeout_ms } = body;
    if prompt.is_empty() {
        return Err(invalid("prompt", "a text that is not empty"));
    }
    let model = model.filter(|model| !model.is_empty());
    if model.as_ref().is_some_and(|model| model.len() > NAME_BYTES_MAX || model.contains(char::is_control)) {
        return Err(invalid("model", "at most 256 bytes without control characters"));
    }
    let timeout = timeout_ms.map(Duration::from_millis);
    if timeout.is_some_and(|timeout| timeout.is_zero() || turns::TIMEOUT_MAX < timeout) {
        return Err(invalid("timeoutMs", "a whole number of 1 to 600000"));
    }
    services.rates.turn(&session_id)?;
    let bytes = prompt.len() as u64;
    let reply = services.turns.start(&session_id, prompt, model, timeout)?;
    services.meter.add_client(reply.client(), bytes, 0, services.clock.nanos());
    Ok(Sse::new(answer(services, reply)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Streams the chunks of a turn; dropped before the done chunk, it cancels the turn.
fn answer(services: Services, reply: Reply) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
    unfold((services, reply), |(services, mut reply)| async move {
        let chunk = reply.next().await?;
        services.meter.add_client(reply.client(), 0, chunk.bytes() as u64, services.clock.nanos());
        let event = Line::new(reply.session(), chunk.seq, &chunk).event();
        Some((event, (services, reply)))
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerBody {
    turn_id: String,
    seq: u64,
    #[serde(default)]
    chunk: Option<String>,
    #[serde(default)]
    done: bool,
    error: Option<String>,
}

async fn publish(
    State(services): State<Services>,
    id: Id,
    headers: HeaderMap,
    body: std::result::Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Value>)> {
    let session_id = parameter(id)?;
    let body = body.map_err(|error| extract::bytes_error(&error))?;
    // Before it is parsed: a tree of JSON is many times its text.
    if body.len() > ESCAPED_BYTES_MAX * services.turns.chunk_bytes_max() {
        return Err(extract::too_large());
    }
    match Published::read(&headers, &body)? {
        Published::Answer { turn_id, chunk } => {
            services.turns.answer(&session_id, &turn_id, chunk).await?;
        }
        Published::Message(text) => {
            services.rates.turn(&session_id)?;
            let bytes = text.len() as u64;
            let client = services.turns.publish(&session_id, text)?;
            services.meter.add_client(&client, bytes, 0, services.clock.nanos());
        }
    }
    Ok((StatusCode::CREATED, Json(json!({ "status": "published" }))))
}

/// What a body that was published is.
#[derive(Debug, PartialEq)]
enum Published {
    /// A chunk of a turn: a JSON object with a `turnId`.
    Answer { turn_id: String, chunk: Chunk },
    /// Any other text, as it came.
    Message(String),
}

impl Published {
    fn read(headers: &HeaderMap, body: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(body).ok().filter(|text| !text.trim().is_empty());
        let text = text.ok_or_else(|| {
            let message = "the body must be UTF-8 and not empty";
            Error::new(StatusCode::BAD_REQUEST, "invalid_body", message)
        })?;
        match serde_json::from_str::<Plain>(text) {
            Ok(Plain(Value::Object(fields))) if fields.contains_key("turnId") => Self::answer(fields),
            Ok(_) => Ok(Self::Message(text.to_owned())),
            // An agent's broken chunk must not end as a message.
            Err(error) if says_json(headers) => {
                Err(Error::new(StatusCode::BAD_REQUEST, "invalid_json", error.to_string()))
            }
            Err(_) => Ok(Self::Message(text.to_owned())),
        }
    }

    fn answer(fields: Map<String, Value>) -> Result<Self> {
        let body = serde_json::from_value::<AnswerBody>(Value::Object(fields))
            .map_err(|error| Error::new(StatusCode::BAD_REQUEST, "invalid_body", error.to_string()))?;
        let AnswerBody { turn_id, seq, chunk, done, error } = body;
        if error.is_some() && !done {
            return Err(invalid("error", "absent unless done is true"));
        }
        let chunk = Chunk { seq, text: chunk.unwrap_or_default(), done, error, is_message: false };
        Ok(Self::Answer { turn_id, chunk })
    }
}

fn says_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json") || kind.to_ascii_lowercase().ends_with("+json")
}

async fn subscribe(
    State(services): State<Services>,
    id: Id,
) -> Result<Sse<impl Stream<Item = std::result::Result<Event, Infallible>>>> {
    let subscriber = services.turns.subscribe(&parameter(id)?)?;
    Ok(Sse::new(told(services, subscriber)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Streams what a session keeps and what comes; ends with the session or when the host stops.
fn told(
    services: Services,
    subscriber: Subscriber,
) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
    unfold((services, subscriber), |(services, mut subscriber)| async move {
        let told = subscriber.next().await?;
        let event = match &told {
            Told::Chunk { position, chunk } => {
                let bytes = chunk.bytes() as u64;
                services.meter.add_client(subscriber.client(), 0, bytes, services.clock.nanos());
                Line::new(subscriber.session(), *position, chunk).event()
            }
            Told::Gap { missed, next } => Line::gap(subscriber.session(), *next, *missed).event(),
        };
        Some((event, (services, subscriber)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_chunks_or_messages() {
        let check = |kind: &str, body: &str, expected: std::result::Result<Published, &str>| {
            let mut headers = HeaderMap::new();
            if !kind.is_empty() {
                headers.insert(CONTENT_TYPE, kind.parse().expect("valid"));
            }
            let found = Published::read(&headers, body.as_bytes());
            assert_eq!(
                found.as_ref().map_err(Error::code),
                expected.as_ref().map_err(|code| *code),
                "{body}"
            );
        };
        let answer = |seq, text: &str, done, error: Option<&str>| {
            let (text, error) = (text.to_owned(), error.map(str::to_owned));
            let chunk = Chunk { seq, text, done, error, is_message: false };
            Ok(Published::Answer { turn_id: "t".to_owned(), chunk })
        };
        let message = |text: &str| Ok(Published::Message(text.to_owned()));
        let json = "application/json; charset=utf-8";
        check(json, r#"{"turnId":"t","seq":0,"chunk":"x"}"#, answer(0, "x", false, None));
        check("", r#"{"turnId":"t","seq":7,"chunk":null,"done":true}"#, answer(7, "", true, None));
        check("", r#"{"turnId":"t","seq":7,"done":true,"error":"e"}"#, answer(7, "", true, Some("e")));
        check(json, r#"{"turnId":"t","seq":7,"error":"e"}"#, Err("invalid_value"));
        check(json, r#"{"turnId":"t","seq":-1}"#, Err("invalid_body"));
        check(json, r#"{"turnId":7,"seq":1}"#, Err("invalid_body"));
        check(json, r#"{"turnId":"t"}"#, Err("invalid_body"));
        check(json, r#"{"turnId":"t","seq":0"#, Err("invalid_json"));
        check("application/cloudevents+json", "x", Err("invalid_json"));
        check("text/plain", "x", message("x"));
        check("", r#"{"turnId":"t","seq":0"#, message(r#"{"turnId":"t","seq":0"#));
        check(json, r#"{ "chunk": "x" }"#, message(r#"{ "chunk": "x" }"#));
        check(json, "[1]", message("[1]"));
        check(json, "", Err("invalid_body"));
        check("", " \n", Err("invalid_body"));
        let binary = Published::read(&HeaderMap::new(), b"\xff").map_err(|error| error.code());
        assert_eq!(binary, Err("invalid_body"));
    }

    #[test]
    fn lines_have_seven_fields() {
        let line = |line: Line<'_>| serde_json::to_string(&line).expect("plain data");
        let chunk = Chunk { seq: 3, text: "x".to_owned(), ..Chunk::default() };
        assert_eq!(
            line(Line::new("a:1", 3, &chunk)),
            r#"{"sessionId":"a:1","seq":3,"chunk":"x","done":false,"error":null,"eventType":null,"meta":null}"#
        );
        let failed = Chunk { done: true, error: Some("e".to_owned()), ..Chunk::default() };
        assert_eq!(
            line(Line::new("a:1", 0, &failed)),
            r#"{"sessionId":"a:1","seq":0,"chunk":"","done":true,"error":"e","eventType":null,"meta":null}"#
        );
        assert_eq!(
            line(Line::gap("a:1", 9, 4)),
            r#"{"sessionId":"a:1","seq":9,"chunk":"","done":false,"error":null,"eventType":"gap","meta":{"missed":4}}"#
        );
    }
}
