//! Pushing events over one connection: as server-sent events, or through a WebSocket.
//!
//! A connection asks for more once it sent what it has, so whoever reads slowly is given little. Closing it gives back
//! early what was not acknowledged.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use fulcrum_coordinator::pulls::Connection;
use futures_util::stream::{Stream, unfold};
use serde_json::json;

use super::{client, frame, socket};
use crate::app::Services;
use crate::http::error::Error;
use crate::http::extract::Query;
use crate::http::{Result, is_websocket, store};

/// Most events that are asked for at once.
pub(super) const BATCH: usize = 100;
/// A quiet stream gets a comment this often, so that both sides notice a dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(super) fn routes() -> Router<Services> {
    Router::new().route("/events/stream", get(stream))
}

async fn stream(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    let client = client(&query)?.to_owned();
    if services.lifecycle.is_draining() {
        return Err(store::stopping());
    }
    let connection = services.pulls.connection(&client)?;
    match upgrade {
        Ok(upgrade) => Ok(socket::accept(upgrade, services, client, connection)),
        // Some clients offer other protocols with every request.
        Err(rejection) if is_websocket(&headers) => {
            Err(Error::new(StatusCode::BAD_REQUEST, "invalid_upgrade", rejection.body_text()))
        }
        Err(_) => {
            let frames = frames(Push { services, client, connection });
            let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
            Ok((headers, Body::from_stream(frames)).into_response())
        }
    }
}

struct Push {
    services: Services,
    client: String,
    connection: Connection,
}

/// Returns the chunks of a stream; the last one is an event `end` with a `code` that says why.
fn frames(push: Push) -> impl Stream<Item = std::result::Result<Bytes, Infallible>> {
    // The first one tells the client that it is heard.
    let open = Bytes::from_static(b": open\n\n");
    unfold((Some(push), Some(open)), |(push, open)| async move {
        let push = push?;
        if let Some(open) = open {
            return Some((Ok(open), (Some(push), None)));
        }
        match push.next().await {
            Ok(chunk) => Some((Ok(chunk), (Some(push), None))),
            Err(error) => {
                let data = json!({ "code": error.code(), "error": error.message() });
                Some((Ok(format!("event: end\ndata: {data}\n\n").into()), (None, None)))
            }
        }
    })
}

impl Push {
    /// Returns the next events, or a comment if there were none for a while.
    async fn next(&self) -> Result<Bytes> {
        let deliveries = tokio::select! {
            biased;
            () = self.services.lifecycle.drained() => return Err(store::stopping()),
            polled = self.services.pulls.poll(&self.client, BATCH, KEEP_ALIVE, self.connection.via()) => polled?,
        };
        if deliveries.is_empty() {
            return Ok(Bytes::from_static(b": quiet\n\n"));
        }
        let mut chunk = Vec::with_capacity(frame::bytes(&deliveries));
        for delivery in &deliveries {
            chunk.extend_from_slice(b"data: ");
            frame::write(&mut chunk, delivery);
            chunk.extend_from_slice(b"\n\n");
        }
        Ok(chunk.into())
    }
}
