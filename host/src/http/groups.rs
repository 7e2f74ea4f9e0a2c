//! Consumer groups: their settings, view, rebalance and offsets; members and partitions have a file each.

mod members;
mod messages;
mod partitions;
mod spec;
mod view;
mod why;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use fulcrum_coordinator::groups::{self, Reset, Target};
use fulcrum_coordinator::kinds::{Kind, WrongKind};
use fulcrum_core::Timestamp;
use fulcrum_core::group::{Place, Refused};
use fulcrum_policy::json::PlainMap;
use fulcrum_policy::planner::Wish;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::error::Error;
use super::extract::{self, Json, Query};
use super::instances::{Fields, flag, invalid, parameter};
use super::{Result, admin, store};
use crate::app::Services;

pub(crate) fn routes() -> Router<Services> {
    Router::new()
        .route("/groups", get(list))
        .route("/groups/{group}", get(show).put(configure).delete(delete))
        .route("/groups/{group}/rebalance", post(rebalance))
        .route("/groups/{group}/offsets", post(reset))
        .merge(members::routes())
        .merge(partitions::routes())
}

type Name = std::result::Result<Path<String>, PathRejection>;

/// Maps what a group refuses to a status and a code.
impl From<groups::Error> for Error {
    fn from(error: groups::Error) -> Self {
        let (status, code) = match &error {
            groups::Error::UnknownGroup(_) => (StatusCode::NOT_FOUND, "unknown_group"),
            groups::Error::Invalid { .. } => (StatusCode::BAD_REQUEST, "invalid_value"),
            groups::Error::Refused(refused) => match refused {
                Refused::UnknownMember(_) => (StatusCode::NOT_FOUND, "unknown_member"),
                Refused::UnknownPartition { .. } => (StatusCode::NOT_FOUND, "unknown_partition"),
                Refused::Fenced => (StatusCode::CONFLICT, "fenced"),
                Refused::Duplicate { .. } => (StatusCode::CONFLICT, "duplicate_member"),
                Refused::StaleEpoch { .. } => (StatusCode::CONFLICT, "stale_epoch"),
                Refused::Rewind { .. } => (StatusCode::CONFLICT, "rewind"),
            },
            groups::Error::Restarted => {
                return Self::new(StatusCode::SERVICE_UNAVAILABLE, "group_restarted", error.to_string())
                    .retry_after(1);
            }
            groups::Error::Stopping => return store::stopping(),
            groups::Error::Store(error) => return error.clone().into(),
            groups::Error::Corrupt { .. } => {
                tracing::error!(%error, "a group's record cannot be read");
                return Self::internal();
            }
        };
        let answer = Self::new(status, code, error.to_string());
        match error {
            groups::Error::Refused(Refused::StaleEpoch { epoch }) => answer.with("epoch", epoch),
            groups::Error::Refused(Refused::Duplicate { retry_after_ms }) => {
                let secs = u32::try_from(retry_after_ms.div_ceil(1000)).unwrap_or(u32::MAX);
                answer.with("retryAfterMs", retry_after_ms).retry_after(secs)
            }
            groups::Error::Refused(Refused::Rewind { checkpoint, .. }) => {
                answer.with("checkpoint", checkpoint)
            }
            _ => answer,
        }
    }
}

impl From<WrongKind> for Error {
    fn from(error: WrongKind) -> Self {
        Self::new(StatusCode::CONFLICT, "wrong_kind", error.to_string())
    }
}

/// Returns the parameters of a path, decoded.
fn path<T>(path: std::result::Result<Path<T>, PathRejection>) -> Result<T> {
    path.map(|Path(parameters)| parameters).map_err(|_| {
        let message = "the path must be percent-encoded UTF-8, and a partition in it a whole number";
        Error::new(StatusCode::BAD_REQUEST, "invalid_path", message)
    })
}

/// A partition with the epoch a member has it in.
#[derive(Debug, Deserialize)]
struct HeldBody {
    topic: String,
    partition: u32,
    epoch: u64,
}

impl From<HeldBody> for (Place, u64) {
    fn from(held: HeldBody) -> Self {
        (Place { topic: held.topic, partition: held.partition }, held.epoch)
    }
}

async fn list(State(services): State<Services>) -> Json<Vec<Value>> {
    let group = |(name, counts): (String, groups::Counts)| {
        let partitions = counts.partitions_owned + counts.partitions_moving + counts.partitions_free;
        json!({ "group": name, "kind": "partitions", "members": counts.members_live, "partitions": partitions })
    };
    let mut groups: Vec<_> = services.groups.counts().await.into_iter().map(group).collect();
    groups.extend(messages::list(&services).await);
    groups.sort_by(|a, b| a["group"].as_str().cmp(&b["group"].as_str()));
    Json(groups)
}

async fn show(
    State(services): State<Services>,
    name: Name,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response> {
    let name = parameter(name)?;
    let explains = flag(&query, "explain")?;
    if services.kinds.of(&name) == Some(Kind::Messages) {
        return Ok(Json(messages::show(&services, &name).await).into_response());
    }
    let view = services.groups.view(&name).await?;
    let wish = Wish { policy: view.spec.policy.clone(), config: view.spec.config.clone() };
    let (planner, group) = (services.planner.clone(), view.group.clone());
    let version = admin::blocking(move || planner.version(&group, &wish)).await?;
    let ends = view::ends(&services, &view).await;
    let bound = view.spec.policy.clone().unwrap_or_else(|| services.policies.claiming_of(&view.group));
    let body = view::GroupBody::new(view, &ends, bound, &version, explains, services.clock.now());
    Ok(Json(body).into_response())
}

async fn configure(
    State(services): State<Services>,
    name: Name,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<spec::SpecBody>> {
    let group = parameter(name)?;
    let patch = spec::read(&body)?;
    if patch.policy.is_some() || patch.config.is_some() {
        let present = match services.groups.view(&group).await {
            Err(groups::Error::UnknownGroup(_)) => groups::Spec::default(),
            view => view?.spec,
        };
        let spec = patch.clone().apply(present);
        let wish = Wish { policy: spec.policy, config: spec.config };
        let (planner, name) = (services.planner.clone(), group.clone());
        admin::blocking(move || planner.version(&name, &wish))
            .await?
            .map_err(|problem| Error::new(StatusCode::CONFLICT, "unusable_policy", problem))?;
    }
    let configuring = services.groups.configure(&group, patch);
    let spec = services.kinds.making(&group, Kind::Partitions, configuring).await??;
    Ok(Json(spec::SpecBody::new(&group, &spec)))
}

async fn delete(State(services): State<Services>, name: Name) -> Result<Json<Value>> {
    let group = parameter(name)?;
    let deleting = async {
        match services.kinds.of(&group) {
            Some(Kind::Messages) => Ok::<_, Error>(services.pulls.delete_group(&group).await?),
            _ => Ok(services.groups.delete(&group).await?),
        }
    };
    services.kinds.deleting(deleting).await?;
    Ok(Json(json!({ "group": group, "status": "deleted" })))
}

async fn rebalance(
    State(services): State<Services>,
    name: Name,
    body: std::result::Result<Bytes, BytesRejection>,
) -> Result<Json<Value>> {
    let group = parameter(name)?;
    expect_nothing(&body.map_err(|error| extract::bytes_error(&error))?)?;
    services.groups.rebalance(&group).await?;
    Ok(Json(json!({ "group": group, "status": "requested" })))
}

/// Refuses a body that asks for something: whoever sent it believes that the call heeds it.
fn expect_nothing(body: &[u8]) -> Result<()> {
    let is_nothing = body.trim_ascii().is_empty()
        || serde_json::from_slice::<PlainMap>(body).is_ok_and(|PlainMap(fields)| fields.is_empty());
    if is_nothing {
        return Ok(());
    }
    Err(Error::new(StatusCode::BAD_REQUEST, "invalid_body", "the body must be empty or {}"))
}

#[derive(Serialize)]
struct OffsetBody {
    topic: String,
    partition: u32,
    offset: u64,
}

async fn reset(
    State(services): State<Services>,
    name: Name,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Value>> {
    let group = parameter(name)?;
    let offsets = services.groups.reset_to(&group, wanted_offsets(&body)?).await?;
    let offset = |(Place { topic, partition }, offset)| OffsetBody { topic, partition, offset };
    let offsets: Vec<_> = offsets.into_iter().map(offset).collect();
    Ok(Json(json!({ "group": group, "offsets": offsets })))
}

fn wanted_offsets(body: &Map<String, Value>) -> Result<Reset> {
    let fields = Fields(body);
    let to = match (fields.text("to")?.as_deref(), fields.whole("offset")?, fields.whole("timeMs")?) {
        (Some("earliest"), None, None) => Target::Earliest,
        (Some("latest"), None, None) => Target::Latest,
        (None, Some(offset), None) => Target::Offset(offset),
        (None, None, Some(at)) => Target::Time(Timestamp(at)),
        _ => return Err(invalid("to", "\"earliest\" or \"latest\", or else give one of offset and timeMs")),
    };
    let must = || invalid("partitions", "a list of whole numbers of 0 or more, together with a topic");
    let numbers = |value: &Value| {
        let numbers = value.as_array()?.iter();
        numbers.map(|number| u32::try_from(number.as_u64()?).ok()).collect::<Option<Vec<_>>>()
    };
    let partitions = fields.get("partitions").map(|value| numbers(value).ok_or_else(must)).transpose()?;
    let topic = fields.text("topic")?;
    if partitions.is_some() && topic.is_none() {
        return Err(must());
    }
    Ok(Reset { topic, partitions, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_where_none_belongs_is_refused() {
        for (body, expected) in [
            ("", Ok(())),
            (" \r\n", Ok(())),
            ("{}", Ok(())),
            (" { }\n", Ok(())),
            ("{\"policy\":\"sticky\"}", Err("invalid_body")),
            ("[]", Err("invalid_body")),
            ("null", Err("invalid_body")),
            ("{", Err("invalid_body")),
            ("{}{}", Err("invalid_body")),
            ("now", Err("invalid_body")),
        ] {
            assert_eq!(expect_nothing(body.as_bytes()).map_err(|error| error.code()), expected, "{body}");
        }
    }

    #[test]
    fn wanted_offsets_are_read() {
        let check = |body: Value, expected: Option<Reset>| {
            let found = wanted_offsets(body.as_object().expect("an object"));
            assert_eq!(found.ok(), expected, "{body}");
        };
        let all = |to| Some(Reset { topic: None, partitions: None, to });
        check(json!({"to": "earliest"}), all(Target::Earliest));
        check(json!({"to": "latest"}), all(Target::Latest));
        check(json!({"offset": 7}), all(Target::Offset(7)));
        check(json!({"timeMs": 7}), all(Target::Time(Timestamp(7))));
        let some = Reset { topic: Some("t".to_owned()), partitions: Some(vec![0, 3]), to: Target::Latest };
        check(json!({"topic": "t", "partitions": [0, 3], "to": "latest"}), Some(some));
        check(json!({}), None);
        check(json!({"to": "middle"}), None);
        check(json!({"to": "latest", "offset": 7}), None);
        check(json!({"offset": -1}), None);
        check(json!({"partitions": [0], "to": "latest"}), None);
        check(json!({"topic": "t", "partitions": ["0"], "to": "latest"}), None);
    }
}
