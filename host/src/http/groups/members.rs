//! Members of a group: join, heartbeat, watch, leave.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::{delete, get, post};
use fulcrum_coordinator::groups::{Told, Watching};
use fulcrum_coordinator::kinds::Kind;
use fulcrum_core::group::{Heartbeat, Join};
use fulcrum_core::time::{Clock, Timestamp, millis};
use futures_util::stream::{Stream, unfold};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{HeldBody, Name, path};
use crate::app::Services;
use crate::http::extract::{Json, Query};
use crate::http::instances::{flag, invalid, parameter};
use crate::http::{Result, query};

/// Comments sent on a quiet watch, so that both sides notice a dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// A member should send so many heartbeats within its time to live.
const BEATS_PER_TTL: u32 = 3;

pub(super) fn routes() -> Router<Services> {
    Router::new()
        .route("/groups/{group}/members", post(join))
        .route("/groups/{group}/members/{member}", delete(leave))
        .route("/groups/{group}/members/{member}/heartbeat", post(heartbeat))
        .route("/groups/{group}/members/{member}/watch", get(watch))
}

type Names = std::result::Result<Path<(String, String)>, PathRejection>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JoinBody {
    member_id: String,
    topics: Vec<String>,
    zone: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    capacity: Option<f64>,
    ttl_ms: Option<u64>,
    session: Option<String>,
    takeover: Option<bool>,
}

impl JoinBody {
    fn join(self) -> Result<Join> {
        let capacity = self.capacity.unwrap_or(1.0);
        if !(capacity.is_finite() && capacity > 0.0) {
            return Err(invalid("capacity", "a number above 0"));
        }
        Ok(Join {
            member: self.member_id,
            topics: self.topics,
            zone: self.zone.unwrap_or_default(),
            labels: self.labels.unwrap_or_default().into_iter().collect(),
            // Saturates; the group checks the range.
            capacity_milli: (capacity * 1000.0).round() as u64,
            ttl: self.ttl_ms.map(Duration::from_millis),
            session: self.session.filter(|session| !session.is_empty()),
            takeover: self.takeover.unwrap_or(false),
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JoinedBody {
    member_id: String,
    session: String,
    resumed: bool,
    ttl_ms: u64,
    #[serde(flatten)]
    orders: OrdersBody,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OrdersBody {
    revision: u64,
    assignments: Vec<AssignmentBody>,
    revocations: Vec<RevocationBody>,
    heartbeat_interval_ms: u64,
}

#[derive(Serialize)]
struct AssignmentBody {
    topic: String,
    partition: u32,
    epoch: u64,
    offset: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RevocationBody {
    topic: String,
    partition: u32,
    epoch: u64,
    deadline_ms: u64,
}

impl OrdersBody {
    /// `deadlineMs` is the time left, so that no two clocks are compared.
    fn new(told: Told, now: Timestamp) -> Self {
        let Told { orders, ttl } = told;
        let assignments = orders.assignments.into_iter().map(|assignment| AssignmentBody {
            topic: assignment.place.topic,
            partition: assignment.place.partition,
            epoch: assignment.epoch,
            // A partition nobody checkpointed came after the group: it is read from its begin.
            offset: assignment.checkpoint.unwrap_or(0),
        });
        let revocations = orders.revocations.into_iter().map(|revocation| RevocationBody {
            topic: revocation.place.topic,
            partition: revocation.place.partition,
            epoch: revocation.epoch,
            deadline_ms: millis(revocation.deadline.since(now)),
        });
        Self {
            revision: orders.revision,
            assignments: assignments.collect(),
            revocations: revocations.collect(),
            heartbeat_interval_ms: millis(ttl / BEATS_PER_TTL).max(1),
        }
    }
}

async fn join(
    State(services): State<Services>,
    group: Name,
    Json(body): Json<JoinBody>,
) -> Result<Json<JoinedBody>> {
    let join = body.join()?;
    let member_id = join.member.clone();
    let group = parameter(group)?;
    let joining = services.groups.join(&group, join);
    let (joined, told) = services.kinds.making(&group, Kind::Partitions, joining).await??;
    Ok(Json(JoinedBody {
        member_id,
        session: joined.session,
        resumed: joined.resumed,
        ttl_ms: millis(told.ttl),
        orders: OrdersBody::new(told, services.clock.now()),
    }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeartbeatBody {
    session: String,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    acked_revision: u64,
    #[serde(default)]
    owned: Vec<HeldBody>,
    #[serde(default)]
    released: Vec<HeldBody>,
}

async fn heartbeat(
    State(services): State<Services>,
    names: Names,
    Json(body): Json<HeartbeatBody>,
) -> Result<Json<OrdersBody>> {
    let (group, member) = path(names)?;
    let beat = Heartbeat {
        seq: body.seq,
        acked_revision: body.acked_revision,
        owned: body.owned.into_iter().map(Into::into).collect(),
        released: body.released.into_iter().map(Into::into).collect(),
    };
    let told = services.groups.heartbeat(&group, &member, &body.session, beat).await?;
    Ok(Json(OrdersBody::new(told, services.clock.now())))
}

async fn watch(
    State(services): State<Services>,
    names: Names,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Sse<impl Stream<Item = std::result::Result<Event, Infallible>>>> {
    let (group, member) = path(names)?;
    let session = query::required(&query, "session")?;
    let watching = services.groups.watch(&group, &member, session).await?;
    Ok(Sse::new(changes(watching, services.clock.clone())).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Streams the present orders and each change; ends when the member is gone or the host stops.
fn changes(
    watching: Watching,
    clock: Arc<dyn Clock>,
) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
    unfold((watching, clock, true), |(mut watching, clock, is_first)| async move {
        let told = watching.next(is_first).await?;
        let orders = OrdersBody::new(told, clock.now());
        let data = serde_json::to_string(&orders).expect("orders are plain data");
        Some((Ok(Event::default().data(data)), (watching, clock, false)))
    })
}

async fn leave(
    State(services): State<Services>,
    names: Names,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<Value>> {
    let (group, member) = path(names)?;
    let session = query::required(&query, "session")?;
    services.groups.leave(&group, &member, session, flag(&query, "returning")?).await?;
    Ok(Json(json!({ "memberId": member, "status": "left" })))
}
