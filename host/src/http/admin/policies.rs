//! `/admin/policies`: what there is and how it stands.

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use fulcrum_policy::seat::Identity;
use fulcrum_policy::status::{Bindings, Report, Status, TaskStatus};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::bindings::gone_code;
use super::blocking;
use crate::app::Services;
use crate::http::error::Error;
use crate::http::extract::Json;
use crate::http::instances::parameter;
use crate::http::{Result, store};

pub(super) fn routes() -> Router<Services> {
    Router::new()
        .route("/admin/policies", get(list))
        .route("/admin/policies/reload", post(reload))
        .route("/admin/policies/{name}", get(show))
}

#[derive(Serialize)]
struct Overview {
    bindings: Bindings,
    /// Which version decides what is asked for now; null is the fallback.
    scoring: Option<Decides>,
    /// Whether the task that changes policies does its work.
    task: TaskStatus,
    policies: Vec<Status>,
}

#[derive(Serialize)]
struct Decides {
    policy: String,
    digest: String,
    config: Value,
}

impl From<&Identity> for Decides {
    fn from(identity: &Identity) -> Self {
        let Identity { name, digest, config } = identity.clone();
        Self { policy: name, digest, config: serde_json::from_str(&config).unwrap_or_default() }
    }
}

async fn list(State(services): State<Services>) -> Json<Overview> {
    let scoring = services.policies.decides().map(|identity| Decides::from(&*identity));
    let (bindings, task) = (services.policies.bindings(), services.policies.task());
    Json(Overview { bindings, scoring, task, policies: services.planner.statuses() })
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
            format!("there is no policy `{name}`; `fulcrum policy status` lists all"),
        )
    })
}

async fn reload(State(services): State<Services>) -> Result<Json<Report>> {
    let (reply, report) = oneshot::channel();
    let policies = services.policies.clone();
    blocking(move || policies.reload_then(|report| drop(reply.send(report)))).await?;
    // No order about policies waits behind this one: proofs may take their time.
    let report = tokio::select! {
        report = report => report.unwrap_or_else(|_| services.policies.gone()),
        () = services.lifecycle.drained() => return Err(store::stopping()),
    };
    let (status, code) =
        report.gone.map_or((StatusCode::SERVICE_UNAVAILABLE, "folder_unreadable"), gone_code);
    match report.error {
        Some(error) => Err(Error::new(status, code, error)),
        None => Ok(Json(report)),
    }
}
