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
use crate::http::instances::invalid_query;
use crate::http::{Result, query};

/// How many events one gets that does not say.
const EVENTS_DEFAULT: u64 = 100;
/// Longest wait of one poll, and how long one waits that does not say, in milliseconds.
const WAIT_MS_MAX: u64 = 60_000;
const WAIT_MS_DEFAULT: u64 = 1000;
/// How long a client without a subscription waits for its refusal: EventMesh's polls again at once.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);
/// What stands for a poll that has no connection to lose.
const NO_CONNECTION: u64 = 0;

pub(super) fn routes() -> Router<Services> {
    Router::new().route("/events/poll", get(poll))
}

/// Returns how many events a query asks for.
pub(super) fn max(query: &[(String, String)]) -> Result<usize> {
    let max = query::whole(query, "max")?.unwrap_or(EVENTS_DEFAULT);
    let max = usize::try_from(max).ok().filter(|max| (1..=POLL_MAX).contains(max));
    max.ok_or_else(|| invalid_query("max", "1 to 1000"))
}

fn wait(query: &[(String, String)]) -> Result<Duration> {
    let wait_ms = query::whole(query, "timeoutMs")?.unwrap_or(WAIT_MS_DEFAULT);
    if wait_ms > WAIT_MS_MAX {
        return Err(invalid_query("timeoutMs", "0 to 60000"));
    }
    Ok(Duration::from_millis(wait_ms))
}

async fn poll(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response> {
    let (client, max, wait) = (client(&query)?, max(&query)?, wait(&query)?);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_bounded() {
        let check = |name: &str, value: &str, expected: Option<(usize, u64)>| {
            let query = [(name.to_owned(), value.to_owned())];
            let found = max(&query).ok().zip(wait(&query).ok().map(fulcrum_core::time::millis));
            assert_eq!(found, expected, "{name}={value}");
        };
        check("other", "x", Some((100, 1000)));
        check("max", "", Some((100, 1000)));
        check("max", "1", Some((1, 1000)));
        check("max", "1000", Some((1000, 1000)));
        check("timeoutMs", "0", Some((100, 0)));
        check("timeoutMs", "60000", Some((100, 60_000)));
        for (name, value) in [
            ("max", "0"),
            ("max", "1001"),
            ("max", "-1"),
            ("max", "99999999999999999999999"),
            ("timeoutMs", "60001"),
            ("timeoutMs", "1.5"),
        ] {
            check(name, value, None);
        }
    }
}
