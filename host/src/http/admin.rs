//! Operating a running host: `/admin/policies`, `/admin/bindings` and `/admin/retention`.

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use fulcrum_coordinator::groups::check_name;
use fulcrum_policy::manager::BindError;
use fulcrum_policy::status::{Bindings, Rebind, Report, Status};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Result;
use super::error::Error;
use super::extract::Json;
use super::instances::parameter;
use crate::app::Services;

pub(crate) fn routes() -> Router<Services> {
    Router::new()
        .route("/admin/policies", get(list))
        .route("/admin/policies/reload", post(reload))
        .route("/admin/policies/{name}", get(show))
        .route("/admin/bindings", get(bindings).put(bind))
        .route("/admin/retention", post(retain))
}

#[derive(Serialize)]
struct Overview {
    bindings: Bindings,
    policies: Vec<Status>,
}

async fn list(State(services): State<Services>) -> Json<Overview> {
    Json(Overview { bindings: services.policies.bindings(), policies: services.planner.statuses() })
}

async fn show(
    State(services): State<Services>,
    name: std::result::Result<Path<String>, PathRejection>,
) -> Result<Json<Status>> {
    let name = parameter(name)?;
    let found = services.planner.statuses().into_iter().find(|status| status.name == name);
    found.map(Json).ok_or_else(|| {
        Error::new(
            StatusCode::NOT_FOUND,
            "unknown_policy",
            format!("there is no policy {name:?}; GET /admin/policies lists all"),
        )
    })
}

async fn reload(State(services): State<Services>) -> Result<Json<Report>> {
    let report = blocking(move || services.policies.reload()).await?;
    match report.error {
        Some(error) => Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, "folder_unreadable", error)),
        None => Ok(Json(report)),
    }
}

/// Trims what may go now, without waiting for the next look.
async fn retain(State(services): State<Services>) -> Result<Json<Value>> {
    let before = services.retention.counts();
    let is_done = services.retention.pass().await?;
    let after = services.retention.counts();
    let trimmed = after.trimmed.saturating_sub(before.trimmed);
    Ok(Json(
        json!({ "trimmed": trimmed, "failed": after.failed.saturating_sub(before.failed), "done": is_done }),
    ))
}

async fn bindings(State(services): State<Services>) -> Json<Bindings> {
    Json(services.policies.bindings())
}

async fn bind(
    State(services): State<Services>,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Bindings>> {
    let rebind = rebind(&body)?;
    blocking(move || services.policies.bind(rebind)).await?.map(Json).map_err(|error| bind_error(&error))
}

/// Reads which bindings the body changes; a group with `null` loses its own policy.
fn rebind(body: &Map<String, Value>) -> Result<Rebind> {
    let refuse = |message: String| Error::new(StatusCode::BAD_REQUEST, "invalid_body", message);
    let name = |key: &str, value: &Value| {
        value.as_str().map(str::to_owned).ok_or_else(|| refuse(format!("{key} must be the name of a policy")))
    };
    let mut rebind = Rebind::default();
    for (key, value) in body {
        match (key.as_str(), value) {
            ("scoring", _) => rebind.scoring = Some(name("\"scoring\"", value)?),
            ("claiming", _) => rebind.claiming = Some(name("\"claiming\"", value)?),
            ("groups", Value::Object(groups)) => {
                for (group, value) in groups {
                    check_name("group", group)?;
                    let policy =
                        if value.is_null() { None } else { Some(name("each group's value", value)?) };
                    rebind.groups.insert(group.clone(), policy);
                }
            }
            ("groups", _) => return Err(refuse("\"groups\" must be an object".to_owned())),
            _ => {
                return Err(refuse(format!(
                    "unknown key {key:?}, expected \"scoring\", \"claiming\" or \"groups\""
                )));
            }
        }
    }
    Ok(rebind)
}

fn bind_error(error: &BindError) -> Error {
    let (status, code) = match error {
        BindError::Unknown(_) => (StatusCode::NOT_FOUND, "unknown_policy"),
        BindError::WrongRole { .. } => (StatusCode::CONFLICT, "wrong_role"),
        BindError::TooMany { .. } => (StatusCode::CONFLICT, "too_many_bindings"),
        BindError::Unusable { .. } => (StatusCode::CONFLICT, "unusable_policy"),
        BindError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
    };
    Error::new(status, code, error.to_string())
}

/// Runs what would hold up a worker thread.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "an admin call crashed");
        Error::internal()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bodies_of_bindings_are_checked() {
        let check = |body: Value, expected: std::result::Result<Rebind, &str>| {
            let found = rebind(body.as_object().expect("an object"));
            assert_eq!(
                found.as_ref().map_err(Error::code),
                expected.as_ref().map_err(|code| *code),
                "{body}"
            );
        };
        let name = |name: &str| Some(name.to_owned());
        check(json!({}), Ok(Rebind::default()));
        let both = Rebind { scoring: name("weighted"), claiming: name("sticky"), ..Rebind::default() };
        check(json!({ "scoring": "weighted", "claiming": "sticky" }), Ok(both));
        let groups = [("a".to_owned(), name("greedy")), ("b".to_owned(), None)].into();
        check(json!({ "groups": {"a": "greedy", "b": null} }), Ok(Rebind { groups, ..Rebind::default() }));
        check(json!({ "scoring": 1 }), Err("invalid_body"));
        check(json!({ "scorin": "weighted" }), Err("invalid_body"));
        check(json!({ "groups": [] }), Err("invalid_body"));
        check(json!({ "groups": {"a": 1} }), Err("invalid_body"));
    }
}
