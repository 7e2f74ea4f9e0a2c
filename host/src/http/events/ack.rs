//! What becomes of a delivery: acknowledged, given back, or kept for longer.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
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
    delivery_id: String,
    #[serde(default)]
    relaxed: Option<bool>,
}

async fn ack(State(services): State<Services>, Json(body): Json<AckBody>) -> Result<Json<Value>> {
    services.pulls.ack(&body.delivery_id, body.relaxed.unwrap_or(false)).await?;
    Ok(Json(json!({ "status": "acked" })))
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
