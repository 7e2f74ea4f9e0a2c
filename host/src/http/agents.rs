//! Agents: workers that register on this host and serve its sessions. Names and answers are EventMesh's; what they have
//! to do has a file of its own.

mod inbox;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Result;
use super::extract::Json;
use crate::app::Services;

/// Name under which EventMesh's agents keep their topics. Our agents get their turns from `/agent/poll`, so the two parents
/// only complete the answer its client expects.
const PARENT: &str = "agents";
/// The same for its clients.
const CLIENT_PARENT: &str = "clients";

pub(crate) fn routes() -> Router<Services> {
    Router::new()
        .route("/agent/register", post(register))
        .route("/agent/ready", post(ready))
        .route("/agent/heartbeat", post(heartbeat))
        .route("/agent/unregister", post(unregister))
        .merge(inbox::routes())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RegisterBody {
    agent_id: String,
    #[serde(default)]
    capabilities: Vec<String>,
    capacity: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RegisteredBody {
    parent: &'static str,
    client_parent: &'static str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentBody {
    agent_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeartbeatBody {
    agent_id: String,
    active_sessions: u32,
}

async fn register(
    State(services): State<Services>,
    Json(body): Json<RegisterBody>,
) -> Result<Json<RegisteredBody>> {
    let now = services.clock.now();
    services.sessions.register(&body.agent_id, body.capabilities, body.capacity, now)?;
    Ok(Json(RegisteredBody { parent: PARENT, client_parent: CLIENT_PARENT }))
}

async fn ready(State(services): State<Services>, Json(body): Json<AgentBody>) -> Result<Json<Value>> {
    services.sessions.ready(&body.agent_id, services.clock.now())?;
    Ok(Json(json!({ "status": "ready" })))
}

async fn heartbeat(State(services): State<Services>, Json(body): Json<HeartbeatBody>) -> Result<Json<Value>> {
    services.sessions.agent_heartbeat(&body.agent_id, body.active_sessions, services.clock.now())?;
    Ok(Json(json!({ "status": "ok" })))
}

async fn unregister(State(services): State<Services>, Json(body): Json<AgentBody>) -> Result<Json<Value>> {
    services.sessions.unregister(&body.agent_id, services.clock.now())?;
    Ok(Json(json!({ "status": "unregistered" })))
}
