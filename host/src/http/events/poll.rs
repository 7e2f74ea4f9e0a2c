//! The long poll.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use fulcrum_coordinator::pulls::{self, POLL_MAX};

use super::{client, frame};
use crate::app::Services;
use crate::http::extract::Query;
use crate::http::{Result, query};

/// How long a client without a subscription waits for its refusal: EventMesh's polls again at once.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);
/// What stands for a poll that has no connection to lose.
const NO_CONNECTION: u64 = 0;

pub(super) fn routes() -> Router<Services> {
    Router::new().route("/events/poll", get(poll))
}

/// Returns how many events a query asks for.
pub(super) fn max(query: &[(String, String)]) -> Result<usize> {
    let most = u32::try_from(POLL_MAX).expect("it is small");
    Ok(query::max(query, most)? as usize)
}

async fn poll(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response> {
    let (client, max, wait) = (client(&query)?, max(&query)?, query::wait(&query)?);
    let polled = tokio::select! {
        biased;
        // Nothing is given out any more; who waits is answered, so that the host can end.
        () = services.lifecycle.drained() => Ok(Vec::new()),
        polled = services.pulls.poll(client, max, wait, NO_CONNECTION) => polled,
    };
    if let Err(pulls::Error::NotSubscribed(_)) = polled {
        tokio::select! {
            () = tokio::time::sleep(wait.min(UNKNOWN_WAIT)) => {}
            () = services.lifecycle.drained() => {}
        }
    }
    let deliveries = polled?;
    let mut body = Vec::with_capacity(frame::bytes(&deliveries) + 2);
    body.push(b'[');
    for (at, delivery) in deliveries.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        frame::write(&mut body, delivery);
    }
    body.push(b']');
    Ok(([(CONTENT_TYPE, "application/json")], Body::from(body)).into_response())
}
