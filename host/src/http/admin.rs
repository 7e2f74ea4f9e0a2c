//! Operating the policies of a running host: `/admin/policies` and `/admin/bindings`.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use fulcrum_policy::manager::BindError;
use fulcrum_policy::status::{Bindings, Report, Status};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Result;
use super::error::Error;
use super::extract::Json;
use crate::app::Services;

pub(crate) fn routes() -> Router<Services> {
    Router::new()
        .route("/admin/policies", get(list))
        .route("/admin/policies/reload", post(reload))
        .route("/admin/policies/{name}", get(show))
        .route("/admin/bindings", get(bindings).put(bind))
}

#[derive(Serialize)]
struct Overview {
    bindings: Bindings,
    policies: Vec<Status>,
}

async fn list(State(services): State<Services>) -> Json<Overview> {
    Json(Overview { bindings: services.policies.bindings(), policies: services.policies.statuses() })
}

async fn show(State(services): State<Services>, Path(name): Path<String>) -> Result<Json<Status>> {
    let found = services.policies.statuses().into_iter().find(|status| status.name == name);
    found.map(Json).ok_or_else(|| {
        Error::new(
            StatusCode::NOT_FOUND,
            "unknown_policy",
            format!("there is no policy {name:?}; GET /admin/policies lists all"),
        )
    })
}

async fn reload(State(services): State<Services>) -> Result<Json<Report>> {
    blocking(move || services.policies.reload()).await.map(Json)
}

async fn bindings(State(services): State<Services>) -> Json<Bindings> {
    Json(services.policies.bindings())
}

async fn bind(
    State(services): State<Services>,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Bindings>> {
    match wanted_scoring(&body)? {
        None => Ok(Json(services.policies.bindings())),
        Some(name) => blocking(move || services.policies.bind(&name))
            .await?
            .map(Json)
            .map_err(|error| bind_error(&error)),
    }
}

/// Returns the policy the body asks for, `None` if it asks for nothing.
fn wanted_scoring(body: &Map<String, Value>) -> Result<Option<String>> {
    let refuse = |code, message: String| Err(Error::new(StatusCode::BAD_REQUEST, code, message));
    for key in body.keys() {
        match key.as_str() {
            "scoring" => {}
            "claiming" | "groups" => {
                return refuse(
                    "unsupported_binding",
                    format!("{key:?} cannot be bound yet: claims come with the next version of the host"),
                );
            }
            _ => return refuse("invalid_body", format!("unknown key {key:?}, expected \"scoring\"")),
        }
    }
    match body.get("scoring") {
        None => Ok(None),
        Some(Value::String(name)) => Ok(Some(name.clone())),
        Some(_) => refuse("invalid_body", "\"scoring\" must be the name of a policy".to_owned()),
    }
}

fn bind_error(error: &BindError) -> Error {
    let (status, code) = match error {
        BindError::Unknown(_) => (StatusCode::NOT_FOUND, "unknown_policy"),
        BindError::WrongRole(_) => (StatusCode::CONFLICT, "wrong_role"),
        BindError::Unusable { .. } => (StatusCode::CONFLICT, "unusable_policy"),
        BindError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
    };
    Error::new(status, code, error.to_string())
}

/// Runs what would hold up a worker thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
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
        let check = |body: Value, expected: std::result::Result<Option<&str>, &str>| {
            let found = wanted_scoring(body.as_object().expect("an object"));
            let found = found.as_ref().map(|name| name.as_deref()).map_err(Error::code);
            assert_eq!(found, expected, "{body}");
        };
        check(json!({}), Ok(None));
        check(json!({ "scoring": "weighted" }), Ok(Some("weighted")));
        check(json!({ "scoring": 1 }), Err("invalid_body"));
        check(json!({ "scorin": "weighted" }), Err("invalid_body"));
        check(json!({ "scoring": "weighted", "claiming": "sticky" }), Err("unsupported_binding"));
        check(json!({ "groups": {} }), Err("unsupported_binding"));
    }
}
