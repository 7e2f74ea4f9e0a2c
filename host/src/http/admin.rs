//! Operating a running host: `/admin/policies`, `/admin/shadows`, `/admin/bindings` and `/admin/retention`.

mod bindings;
mod lifecycle;
mod policies;
mod shadow;
mod upload;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::Result;
use super::error::Error;
use super::extract::Json;
use crate::app::Services;

pub(crate) fn routes() -> Router<Services> {
    Router::new()
        .merge(policies::routes())
        .merge(lifecycle::routes())
        .merge(bindings::routes())
        .merge(shadow::routes())
        .route("/admin/retention", post(retain))
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

/// Carries out an order about policies; few at a time.
async fn order<T: Send + 'static>(
    services: Services,
    work: impl FnOnce(&Services) -> T + Send + 'static,
) -> Result<T> {
    in_turn(services.orders.clone(), services, work).await
}

/// Does what holds a thread up, when its turn among others of its kind has come.
async fn in_turn<T: Send + 'static>(
    turns: Arc<Semaphore>,
    services: Services,
    work: impl FnOnce(&Services) -> T + Send + 'static,
) -> Result<T> {
    let turn = turns.acquire_owned().await.map_err(|_| super::store::stopping())?;
    blocking(move || {
        let _turn = turn;
        work(&services)
    })
    .await
}

/// Runs what would hold up a worker thread.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "an admin call crashed");
        Error::internal()
    })
}
