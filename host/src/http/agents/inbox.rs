//! What an agent has to do: taken by polling or from a stream.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use fulcrum_coordinator::turns::Order;
use fulcrum_core::time::millis;
use futures_util::stream::{Stream, unfold};
use serde::Serialize;
use tokio::time::Instant;

use crate::app::Services;
use crate::http::extract::{Json, Query};
use crate::http::{Result, query};

/// Comments sent on a quiet stream, so that both sides notice a dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Most items of one poll.
const ITEMS_MAX: u32 = 1000;
/// How long a stream waits for its next item in one go.
const STREAM_WAIT: Duration = Duration::from_secs(3600);

pub(super) fn routes() -> Router<Services> {
    Router::new().route("/agent/poll", get(poll)).route("/agent/stream", get(stream))
}

/// A turn to answer, or one that is over.
#[derive(Serialize)]
#[serde(untagged)]
enum OrderBody {
    #[serde(rename_all = "camelCase")]
    Turn { turn_id: String, session_id: String, prompt: String, model: Option<String>, deadline_ms: u64 },
    #[serde(rename_all = "camelCase")]
    Cancelled { turn_id: String, cancelled: bool },
}

impl From<Order> for OrderBody {
    /// `deadlineMs` is the time left, so that no two clocks are compared.
    fn from(order: Order) -> Self {
        match order {
            Order::Cancelled { turn } => Self::Cancelled { turn_id: turn.to_string(), cancelled: true },
            Order::Turn { turn, session, prompt, model, left } => Self::Turn {
                turn_id: turn.to_string(),
                session_id: session.to_string(),
                prompt,
                model,
                deadline_ms: millis(left),
            },
        }
    }
}

async fn poll(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<Vec<OrderBody>>> {
    let agent_id = query::required(&query, "agentId")?;
    let max = query::max(&query, ITEMS_MAX)?;
    let until = Instant::now() + query::wait(&query)?;
    let orders = services.turns.orders(agent_id, max as usize, until, true).await?;
    Ok(Json(orders.into_iter().map(OrderBody::from).collect()))
}

async fn stream(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Sse<impl Stream<Item = std::result::Result<Event, Infallible>>>> {
    let agent_id = query::required(&query, "agentId")?;
    // A sign of life. Later ones are heartbeats: an open connection proves nothing.
    services.sessions.agent_heard(agent_id, services.clock.now())?;
    Ok(Sse::new(orders(services, agent_id.to_owned())).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Streams what arrives, one by one, so that nothing is taken that cannot be sent; ends with the agent or when the host
/// stops.
fn orders(
    services: Services,
    agent_id: String,
) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
    unfold((services, agent_id), |(services, agent_id)| async move {
        loop {
            let until = Instant::now() + STREAM_WAIT;
            let order = services.turns.orders(&agent_id, 1, until, false).await.ok()?.pop();
            if let Some(order) = order {
                let data = serde_json::to_string(&OrderBody::from(order)).expect("an order is plain data");
                return Some((Ok(Event::default().data(data)), (services, agent_id)));
            }
            if services.lifecycle.is_draining() {
                return None;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_written() {
        let check = |order: Order, expected: &str| {
            assert_eq!(serde_json::to_string(&OrderBody::from(order)).expect("plain data"), expected);
        };
        let turn = Order::Turn {
            turn: "t".into(),
            session: "a:1".into(),
            prompt: "p".to_owned(),
            model: None,
            left: Duration::from_millis(1500),
        };
        check(turn, r#"{"turnId":"t","sessionId":"a:1","prompt":"p","model":null,"deadlineMs":1500}"#);
        check(Order::Cancelled { turn: "t".into() }, r#"{"turnId":"t","cancelled":true}"#);
    }
}
