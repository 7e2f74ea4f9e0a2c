//! What becomes of a delivery: acknowledged, given back, or kept for longer.

use std::collections::HashSet;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use fulcrum_coordinator::pulls::{self, POLL_MAX};
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::Services;
use crate::http::Result;
use crate::http::extract::Json;
use crate::http::instances::{Fields, invalid};

pub(super) fn routes() -> Router<Services> {
    Router::new()
        .route("/events/ack", post(ack))
        .route("/events/nack", post(nack))
        .route("/events/extend", post(extend))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AckBody {
    delivery_id: Option<String>,
    delivery_ids: Option<Vec<String>>,
    #[serde(default)]
    relaxed: Option<bool>,
}

async fn ack(State(services): State<Services>, Json(body): Json<AckBody>) -> Result<Json<Value>> {
    let is_relaxed = body.relaxed.unwrap_or(false);
    match (body.delivery_id, body.delivery_ids) {
        (Some(id), None) => {
            services.pulls.ack(&id, is_relaxed).await?;
            Ok(Json(json!({ "status": "acked" })))
        }
        (None, Some(ids)) if ids.len() <= POLL_MAX => ack_all(&services, &ids, is_relaxed).await,
        (None, Some(_)) => Err(invalid("deliveryIds", "a list of at most 1000 texts")),
        (Some(_), Some(_)) => Err(invalid("deliveryId", "left out where deliveryIds is given: both are")),
        (None, None) => Err(invalid("deliveryId", "given, or else deliveryIds, a list of them")),
    }
}

/// Acknowledges many deliveries at once, so that they share a commit. Those that are over already are listed; that is
/// no reason to do the call again. What is given several times counts once.
async fn ack_all(services: &Services, ids: &[String], is_relaxed: bool) -> Result<Json<Value>> {
    let (mut acked, mut unknown, mut failed) = (0, Vec::new(), None);
    let mut seen = HashSet::with_capacity(ids.len());
    let ids: Vec<_> = ids.iter().filter(|id| seen.insert(*id)).collect();
    for (id, result) in
        ids.iter().zip(join_all(ids.iter().map(|id| services.pulls.ack(id, is_relaxed))).await)
    {
        match result {
            Ok(()) => acked += 1,
            Err(pulls::Error::UnknownDelivery(_)) => unknown.push(id),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(Json(json!({ "status": "acked", "acked": acked, "unknown": unknown }))),
    }
}

async fn nack(State(services): State<Services>, Json(body): Json<Map<String, Value>>) -> Result<Json<Value>> {
    let (id, delay) = (delivery_id(&body)?, delay(&body)?);
    services.pulls.nack(&id, delay).await?;
    Ok(Json(json!({ "status": "nacked" })))
}

async fn extend(
    State(services): State<Services>,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Value>> {
    let (id, invisible) = (delivery_id(&body)?, invisible(&body)?);
    let id = services.pulls.extend(&id, invisible).await?;
    Ok(Json(json!({ "deliveryId": id })))
}

fn delivery_id(body: &Map<String, Value>) -> Result<String> {
    Fields(body).text("deliveryId")?.ok_or_else(|| invalid("deliveryId", "given"))
}

/// Returns the delay a nack asks for; the group's own backoff if none. Its range is the group's to check.
pub(super) fn delay(body: &Map<String, Value>) -> Result<Option<Duration>> {
    Ok(Fields(body).whole("delayMs")?.map(Duration::from_millis))
}

/// Returns how long a delivery is to be kept.
pub(super) fn invisible(body: &Map<String, Value>) -> Result<Duration> {
    let invisible = Fields(body).whole("invisibleMs")?.map(Duration::from_millis);
    invisible.ok_or_else(|| invalid("invisibleMs", "given: 1000 to 43200000"))
}
