//! Whether the process lives (`/healthz`) and whether it should get traffic (`/readyz`).

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use fulcrum_policy::status::TaskState;
use serde_json::json;

use crate::app::Services;

pub(crate) fn routes() -> Router<Services> {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

async fn healthz() -> Response {
    Json(json!({ "status": "ok" })).into_response()
}

async fn readyz(State(services): State<Services>) -> Response {
    // The host listens only when what is bound has been read, so there is no "not yet" here.
    if services.lifecycle.is_leaving() {
        (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "draining" }))).into_response()
    } else {
        let mut body = json!({ "status": "ready" });
        let task = services.policies.task();
        // No reason to get no traffic: what serves goes on serving.
        if task.crashes > 0 || task.state != TaskState::Running || !task.proving.is_empty() {
            body["policyTask"] = json!(task);
        }
        Json(body).into_response()
    }
}
