//! Instances: heartbeats from outside servers, the list, draining and leaving.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use fulcrum_coordinator::{InstanceView, Report};
use fulcrum_core::Timestamp;
use fulcrum_core::scoring::Load;
use fulcrum_core::time::millis;
use fulcrum_policy::json::PlainMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::Error;
use super::extract::{self, Json, Query};
use super::{Result, error};
use crate::app::Services;

/// How far a sender's clock may be ahead of ours.
const AHEAD_MAX_MS: u64 = 1000;
/// Largest whole number every JSON implementation keeps exactly.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

pub(crate) fn routes() -> Router<Services> {
    Router::new()
        .route("/instances", get(list))
        .route("/instances/{id}", put(heartbeat).delete(leave))
        .route("/instances/{id}/drain", post(drain))
}

/// Maps what the coordinator refuses to a status; the code and the message are its own.
impl From<fulcrum_coordinator::Error> for error::Error {
    fn from(error: fulcrum_coordinator::Error) -> Self {
        use fulcrum_coordinator::Error as Refused;
        let status = match &error {
            Refused::Invalid { .. } | Refused::TooOld { .. } => StatusCode::BAD_REQUEST,
            Refused::OwnInstance { .. } => StatusCode::CONFLICT,
            Refused::UnknownInstance { .. }
            | Refused::UnknownAgent { .. }
            | Refused::UnknownSession { .. } => StatusCode::NOT_FOUND,
            Refused::NoAgent
            | Refused::TooManyInstances { .. }
            | Refused::RosterTooLarge { .. }
            | Refused::TooManyAgents { .. }
            | Refused::TooManySessions { .. } => StatusCode::TOO_MANY_REQUESTS,
        };
        Self::new(status, error.code(), error.to_string())
    }
}

/// Returns a path's only parameter, decoded.
pub(super) fn parameter(path: std::result::Result<Path<String>, PathRejection>) -> Result<String> {
    match path {
        Ok(Path(text)) => Ok(text),
        Err(_) => {
            Err(Error::new(StatusCode::BAD_REQUEST, "invalid_path", "the path must be percent-encoded UTF-8"))
        }
    }
}

/// Makes the answer to a value that is not what it must be.
pub(super) fn invalid(field: &str, must: &str) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "invalid_value", format!("{field} must be {must}"))
}

type PathId = std::result::Result<Path<String>, PathRejection>;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AckBody {
    ttl_ms: u64,
    heartbeat_interval_ms: u64,
}

async fn heartbeat(
    State(services): State<Services>,
    id: PathId,
    Json(body): Json<Value>,
) -> Result<Json<AckBody>> {
    let report = report(parameter(id)?, &body, services.clock.now())?;
    let ack = services.balancer.heartbeat(report)?;
    Ok(Json(AckBody { ttl_ms: millis(ack.ttl), heartbeat_interval_ms: millis(ack.heartbeat_interval) }))
}

async fn list(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<Vec<InstanceBody>>> {
    let all = flag(&query, "all")?;
    Ok(Json(services.balancer.instances(all).into_iter().map(InstanceBody::from).collect()))
}

async fn leave(State(services): State<Services>, id: PathId) -> Result<Json<Value>> {
    let id = parameter(id)?;
    services.balancer.leave(&id)?;
    Ok(Json(serde_json::json!({ "id": id, "status": "left" })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    #[serde(default = "default_draining")]
    draining: bool,
}

fn default_draining() -> bool {
    true
}

async fn drain(
    State(services): State<Services>,
    id: PathId,
    body: std::result::Result<Bytes, BytesRejection>,
) -> Result<Json<Value>> {
    let id = parameter(id)?;
    let draining = wants_draining(&body.map_err(|error| extract::bytes_error(&error))?)?;
    services.balancer.drain(&id, draining)?;
    Ok(Json(serde_json::json!({ "id": id, "draining": draining })))
}

/// Reads the body of a drain call, which may be empty.
fn wants_draining(body: &[u8]) -> Result<bool> {
    if body.trim_ascii().is_empty() {
        return Ok(true);
    }
    // By way of a map: serde would take an array for an object.
    let body = serde_json::from_slice::<PlainMap>(body)
        .and_then(|PlainMap(fields)| serde_json::from_value::<DrainBody>(Value::Object(fields)));
    body.map(|body| body.draining).map_err(|error| {
        let message = format!("the body must be empty or {{\"draining\": true or false}}: {error}");
        Error::new(StatusCode::BAD_REQUEST, "invalid_body", message)
    })
}

/// Returns whether a query has `name=1` or `name=true`; absent, `0`, `false` and empty mean no.
pub(super) fn flag(query: &[(String, String)], name: &'static str) -> Result<bool> {
    match query.iter().rev().find(|(key, _)| key == name).map(|(_, value)| &**value) {
        Some("1" | "true") => Ok(true),
        None | Some("" | "0" | "false") => Ok(false),
        Some(_) => Err(invalid_query(name, "1 or 0")),
    }
}

/// Makes the answer to a query parameter that is not what it must be.
pub(super) fn invalid_query(name: &str, must: &str) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "invalid_query", format!("{name} must be {must}"))
}

/// Reads the body of a heartbeat. Shapes and types are checked here, ranges by the coordinator; `null` is absent.
fn report(id: String, body: &Value, now: Timestamp) -> Result<Report> {
    let Some(body) = body.as_object() else {
        return Err(Error::new(StatusCode::BAD_REQUEST, "invalid_body", "a heartbeat must be a JSON object"));
    };
    let fields = Fields(body);
    Ok(Report {
        id,
        address: fields.text("address")?.ok_or_else(|| invalid("address", "given, as host:port"))?,
        zone: fields.text("zone")?.unwrap_or_default(),
        capacity: fields.number("capacity")?.unwrap_or(1.0),
        labels: fields.labels()?,
        load: fields.load()?,
        age: fields.age(now)?,
    })
}

/// Reads fields of a body; `null` is absent.
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| invalid(name, "a string"));
        self.get(name).map(text).transpose()
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        let number = |value: &Value| value.as_f64().ok_or_else(|| invalid(name, "a number"));
        self.get(name).map(number).transpose()
    }

    /// A whole number; `5.0` is one, as some languages write it so.
    pub(super) fn whole(&self, name: &str) -> Result<Option<u64>> {
        let whole = |value: &Value| {
            let exact = |number: &f64| number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(number);
            let from_float = || value.as_f64().filter(exact).map(|number| number as u64);
            value.as_u64().or_else(from_float).ok_or_else(|| invalid(name, "a whole number, 0 or more"))
        };
        self.get(name).map(whole).transpose()
    }

    fn labels(&self) -> Result<Vec<(String, String)>> {
        let must = || invalid("labels", "an object whose values are strings");
        let Some(labels) = self.get("labels") else { return Ok(Vec::new()) };
        let pair = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        labels.as_object().ok_or_else(must)?.iter().map(|label| pair(label).ok_or_else(must)).collect()
    }

    fn load(&self) -> Result<Option<Load>> {
        const NAMES: [&str; 4] = ["activeSessions", "inflowBytesPerSec", "outflowBytesPerSec", "cpuLoad"];
        let sessions = self.whole(NAMES[0])?;
        let [inflow, outflow, cpu] = [self.number(NAMES[1])?, self.number(NAMES[2])?, self.number(NAMES[3])?];
        match (sessions, inflow, outflow, cpu) {
            (None, None, None, None) => Ok(None),
            (Some(sessions), Some(inflow), Some(outflow), Some(cpu)) => {
                let sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
                Ok(Some(Load { sessions, inflow, outflow, cpu }))
            }
            _ => {
                let missing = NAMES.iter().find(|name| self.get(name).is_none()).copied().unwrap_or_default();
                Err(invalid(missing, "given: the four load fields are all present or all absent"))
            }
        }
    }

    fn age(&self, now: Timestamp) -> Result<Duration> {
        let Some(measured_at) = self.whole("timestampMs")?.map(Timestamp) else { return Ok(Duration::ZERO) };
        let ahead_ms = measured_at.0.saturating_sub(now.0);
        if ahead_ms > AHEAD_MAX_MS {
            let message = format!(
                "timestampMs is {ahead_ms} ms ahead of this host, at most {AHEAD_MAX_MS} ms are allowed"
            );
            return Err(Error::new(StatusCode::BAD_REQUEST, "timestamp_in_future", message));
        }
        Ok(now.since(measured_at))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InstanceBody {
    id: String,
    address: String,
    url: String,
    zone: String,
    capacity: f64,
    labels: BTreeMap<String, String>,
    load: Option<LoadBody>,
    heartbeat_age_ms: u64,
    pending: u32,
    draining: bool,
    live: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LoadBody {
    active_sessions: u32,
    inflow_bytes_per_sec: f64,
    outflow_bytes_per_sec: f64,
    cpu_load: f64,
}

impl From<InstanceView> for InstanceBody {
    fn from(row: InstanceView) -> Self {
        Self {
            url: format!("http://{}", row.address),
            id: row.id.to_string(),
            address: row.address.to_string(),
            zone: row.zone,
            capacity: row.capacity,
            labels: row.labels.into_iter().collect(),
            load: row.load.map(|load| LoadBody {
                active_sessions: load.sessions,
                inflow_bytes_per_sec: load.inflow,
                outflow_bytes_per_sec: load.outflow,
                cpu_load: load.cpu,
            }),
            heartbeat_age_ms: millis(row.heartbeat_age),
            pending: row.pending,
            draining: row.is_draining,
            live: !row.is_dead,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn code_and_field(error: &Error) -> (&'static str, String) {
        let message = format!("{error:?}");
        let field = [
            "address",
            "zone",
            "capacity",
            "labels",
            "activeSessions",
            "inflowBytesPerSec",
            "outflowBytesPerSec",
            "cpuLoad",
            "timestampMs",
        ]
        .into_iter()
        .find(|field| message.contains(&format!("\"{field} ")));
        (error.code(), field.unwrap_or_default().to_owned())
    }

    /// The whole of a heartbeat with some fields replaced (or removed by null).
    fn with(changes: &Value) -> Value {
        let mut body = json!({"address": "h:1", "zone": "z", "capacity": 2, "labels": {"k": "v"}, "activeSessions": 5,
            "inflowBytesPerSec": 1200, "outflowBytesPerSec": 800.5, "cpuLoad": 0.25, "unknown": [1]});
        for (name, value) in changes.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    }

    #[test]
    fn heartbeats_are_read() {
        let load = Some(Load { sessions: 5, inflow: 1200.0, outflow: 800.5, cpu: 0.25 });
        let whole = Report {
            id: "a".to_owned(),
            address: "h:1".to_owned(),
            zone: "z".to_owned(),
            capacity: 2.0,
            labels: vec![("k".to_owned(), "v".to_owned())],
            load,
            age: Duration::ZERO,
        };
        assert_eq!(report("a".to_owned(), &with(&json!({"activeSessions": 5.0})), NOW), Ok(whole.clone()));
        let aged = Report { age: Duration::from_millis(20_000), ..whole.clone() };
        assert_eq!(report("a".to_owned(), &with(&json!({"timestampMs": 980_000})), NOW), Ok(aged));
        assert_eq!(report("a".to_owned(), &with(&json!({"timestampMs": 1_001_000})), NOW), Ok(whole));
        let bare =
            Report { id: "a".to_owned(), address: "h:1".to_owned(), capacity: 1.0, ..Report::default() };
        assert_eq!(report("a".to_owned(), &json!({"address": "h:1"}), NOW), Ok(bare));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let cases = [
            (json!({"address": null}), "invalid_value", "address"),
            (json!({"address": 1}), "invalid_value", "address"),
            (json!({"zone": []}), "invalid_value", "zone"),
            (json!({"capacity": "1"}), "invalid_value", "capacity"),
            (json!({"labels": {"k": 1}}), "invalid_value", "labels"),
            (json!({"labels": ["k"]}), "invalid_value", "labels"),
            (json!({"activeSessions": -1}), "invalid_value", "activeSessions"),
            (json!({"activeSessions": 1.5}), "invalid_value", "activeSessions"),
            (json!({"activeSessions": 1e300}), "invalid_value", "activeSessions"),
            (json!({"activeSessions": "5"}), "invalid_value", "activeSessions"),
            (json!({"activeSessions": true}), "invalid_value", "activeSessions"),
            (json!({"inflowBytesPerSec": "NaN"}), "invalid_value", "inflowBytesPerSec"),
            (json!({"outflowBytesPerSec": {}}), "invalid_value", "outflowBytesPerSec"),
            (json!({"cpuLoad": null}), "invalid_value", "cpuLoad"),
            (json!({"activeSessions": null}), "invalid_value", "activeSessions"),
            (json!({"timestampMs": -5}), "invalid_value", "timestampMs"),
            (json!({"timestampMs": 1_001_001}), "timestamp_in_future", "timestampMs"),
        ];
        for (changes, code, field) in cases {
            let error = report("a".to_owned(), &with(&changes), NOW).expect_err("refused");
            assert_eq!(code_and_field(&error), (code, field.to_owned()), "{changes}");
        }
        assert!(report("a".to_owned(), &json!([1]), NOW).is_err());
        for token in ["NaN", "Infinity", "-Infinity", "1e999"] {
            let text = format!("{{\"cpuLoad\": {token}}}");
            assert!(serde_json::from_str::<Value>(&text).is_err(), "{token} is not JSON");
        }
    }

    #[test]
    fn a_drain_body_is_optional() {
        let cases: [(&[u8], Option<bool>); 6] = [
            (b"", Some(true)),
            (b" \n", Some(true)),
            (b"{}", Some(true)),
            (b"{\"draining\":false}", Some(false)),
            (b"{\"draining\":1}", None),
            (b"x", None),
        ];
        for (body, expected) in cases {
            assert_eq!(wants_draining(body).ok(), expected, "{body:?}");
        }
    }
}
