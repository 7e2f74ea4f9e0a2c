//! What callers see when the store refuses or fails: shared by topics, events and groups.

use axum::http::StatusCode;
use fulcrum_coordinator::{rates, retention};
use fulcrum_store::Error as Refused;

use super::error::Error;
use super::extract;

/// When to try again what the store could not do just now, in seconds.
const RETRY_SECS: u32 = 1;

/// Messages of failures name no file: those stand in the log.
impl From<Refused> for Error {
    fn from(error: Refused) -> Self {
        let code = error.code();
        match &error {
            Refused::UnknownTopic { .. } | Refused::UnknownPartition { .. } => {
                Self::new(StatusCode::NOT_FOUND, code, error.to_string())
            }
            Refused::TopicExists { .. } | Refused::Shrink { .. } => {
                Self::new(StatusCode::CONFLICT, code, error.to_string())
            }
            Refused::TooLarge { what: "record bytes" | "append bytes", .. } => extract::too_large(),
            Refused::Invalid { .. } | Refused::TooLarge { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "invalid_value", error.to_string())
            }
            Refused::Closed => stopping(),
            Refused::Conflict { .. }
            | Refused::DiskFull { .. }
            | Refused::Unavailable { .. }
            | Refused::Ambiguous { .. }
            | Refused::Halted { .. } => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the store failed");
                let message = match &error {
                    Refused::DiskFull { .. } => "there is no room on the host's disk; nothing was stored",
                    Refused::Ambiguous { .. } => {
                        "it is unknown whether this was stored; read before doing it again"
                    }
                    Refused::Halted { .. } => {
                        "the host takes no more writes until it is restarted, see its log"
                    }
                    _ => "the host cannot store this just now; try again",
                };
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).retry_after(RETRY_SECS)
            }
            _ => {
                tracing::error!(error = &error as &dyn std::error::Error, "the store failed");
                Self::internal()
            }
        }
    }
}

impl From<retention::Error> for Error {
    fn from(error: retention::Error) -> Self {
        match error {
            retention::Error::Store(error) => error.into(),
            retention::Error::Groups(error) => error.into(),
        }
    }
}

impl From<rates::Limited> for Error {
    fn from(error: rates::Limited) -> Self {
        let secs = match error {
            // Rounded up: who comes earlier is refused again.
            rates::Limited::Wait { wait, .. } => {
                wait.as_millis().div_ceil(1000).try_into().unwrap_or(u32::MAX)
            }
            rates::Limited::TooMuch { .. } => RETRY_SECS,
        };
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", error.to_string()).retry_after(secs.max(1))
    }
}

/// Returns the answer of a host on its way out.
pub(super) fn stopping() -> Error {
    Error::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the host is stopping; try again, or another one")
        .retry_after(RETRY_SECS)
}
