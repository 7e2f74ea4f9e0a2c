//! Events: publishing them, and getting them one by one in message groups. Names, bodies and status codes are those of
//! EventMesh's HTTP protocol where it has the call.

mod ack;
mod dead;
mod event;
mod frame;
mod poll;
mod publish;
mod request;
mod socket;
mod stream;
mod subscribe;

use axum::Router;
use axum::http::StatusCode;
use fulcrum_coordinator::pulls;
use fulcrum_core::NAME_BYTES_MAX;

use super::error::Error;
use super::instances::invalid_query;
use super::{Result, query, store};
use crate::app::Services;

pub(super) use request::PATH as REQUEST_PATH;

pub(crate) fn routes() -> Router<Services> {
    Router::new()
        .merge(publish::routes())
        .merge(subscribe::routes())
        .merge(poll::routes())
        .merge(stream::routes())
        .merge(ack::routes())
        .merge(request::routes())
        .merge(dead::routes())
}

/// Maps what a message group refuses to a status and a code.
impl From<pulls::Error> for Error {
    fn from(error: pulls::Error) -> Self {
        let refused = |status, code| Self::new(status, code, error.to_string());
        match &error {
            pulls::Error::NotSubscribed(_) => refused(StatusCode::NOT_FOUND, "not_subscribed"),
            pulls::Error::UnknownDelivery(_) => {
                // The id can be any text of any length.
                let message = "there is no such delivery: it was settled, or its time ran out";
                Self::new(StatusCode::NOT_FOUND, "unknown_delivery", message)
            }
            pulls::Error::UnknownGroup { .. } => refused(StatusCode::NOT_FOUND, "unknown_group"),
            pulls::Error::Conflict { .. } => refused(StatusCode::CONFLICT, "group_conflict"),
            pulls::Error::Invalid { .. } => refused(StatusCode::BAD_REQUEST, "invalid_value"),
            pulls::Error::TooMany { .. } => {
                refused(StatusCode::TOO_MANY_REQUESTS, "too_many_subscriptions").retry_after(60)
            }
            pulls::Error::TooManyPolls => {
                refused(StatusCode::TOO_MANY_REQUESTS, "too_many_polls").retry_after(1)
            }
            pulls::Error::Restarted => {
                refused(StatusCode::SERVICE_UNAVAILABLE, "group_restarted").retry_after(1)
            }
            pulls::Error::Stopping => store::stopping(),
            pulls::Error::Store(error) => error.clone().into(),
            pulls::Error::Corrupt { .. } => {
                tracing::error!(%error, "a message group's record cannot be read");
                Self::internal()
            }
        }
    }
}

/// Returns the client a query names.
fn client(query: &[(String, String)]) -> Result<&str> {
    let client = query::required(query, "clientId")?;
    if client.len() > NAME_BYTES_MAX || client.contains(char::is_control) {
        return Err(invalid_query("clientId", "1 to 256 bytes without control characters"));
    }
    Ok(client)
}
