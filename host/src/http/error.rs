//! What callers see when a request fails: a status, a stable code, a message and the request's id.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// An answer that is not a success.
///
/// As a response it carries itself along, so that `RequestIds` can add the request's id at the edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// Numbers a program needs to go on, as further fields of the body.
    facts: Vec<(&'static str, u64)>,
    retry_after_secs: Option<u32>,
}

impl Error {
    /// Makes an error. `code` is stable and in `snake_case`; `message` is for people and holds no internal detail.
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), facts: Vec::new(), retry_after_secs: None }
    }

    /// Adds a number as a field of the body.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: u64) -> Self {
        self.facts.push((name, value));
        self
    }

    /// Says what the message is about, in front of it.
    #[must_use]
    pub fn about(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Says when the same call may succeed, in the header `retry-after`.
    #[must_use]
    pub fn retry_after(mut self, secs: u32) -> Self {
        self.retry_after_secs = Some(secs);
        self
    }

    /// Makes the answer to something that went wrong inside; the detail belongs into the log.
    #[must_use]
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "something went wrong inside the host, see its log",
        )
    }

    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// Returns what it says to people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns a number that was added as a field.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<u64> {
        self.facts.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn render(&self, request_id: Option<&str>) -> Response {
        let mut body = json!({ "error": self.message, "code": self.code });
        for (name, value) in &self.facts {
            body[*name] = (*value).into();
        }
        if let Some(id) = request_id {
            body["requestId"] = id.into();
        }
        (self.status, axum::Json(body)).into_response()
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = self.render(None);
        if let Some(secs) = self.retry_after_secs {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(secs));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Numbers the requests that fail.
#[derive(Debug)]
pub(crate) struct RequestIds {
    boot: u32,
    next: AtomicU64,
}

impl RequestIds {
    /// `boot` tells the ids of two runs apart.
    pub(crate) fn new(boot: u32) -> Self {
        Self { boot, next: AtomicU64::new(1) }
    }

    /// Adds an id to the body of an error and logs it; leaves every other response alone.
    ///
    /// An error that is no [`Error`] comes from the router itself, as plain text, and becomes one.
    pub(crate) fn complete(&self, mut response: Response) -> Response {
        let error = response.extensions_mut().remove::<Error>().or_else(|| foreign(&response));
        let Some(error) = error else { return response };
        let id = format!("{:08x}-{}", self.boot, self.next.fetch_add(1, Ordering::Relaxed));
        let status = error.status.as_u16();
        if error.status.is_server_error() {
            tracing::warn!(
                request.id = id,
                status,
                code = error.code,
                error = error.message,
                "request failed"
            );
        } else {
            tracing::debug!(
                request.id = id,
                status,
                code = error.code,
                error = error.message,
                "request refused"
            );
        }
        let mut complete = error.render(Some(&id));
        // Headers the handler or the router set stay, for example `allow` and `retry-after`.
        for (name, value) in response.headers() {
            if name != CONTENT_LENGTH && name != CONTENT_TYPE {
                complete.headers_mut().append(name, value.clone());
            }
        }
        if let Ok(value) = HeaderValue::from_str(&id) {
            complete.headers_mut().insert("x-request-id", value);
        }
        complete
    }
}

/// Returns the error in a response that says so by its status alone.
fn foreign(response: &Response) -> Option<Error> {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if !is_error || is_json {
        return None;
    }
    Some(match status {
        StatusCode::PAYLOAD_TOO_LARGE => super::extract::too_large(),
        status if status.is_server_error() => Error { status, ..Error::internal() },
        status => {
            let message = "the request cannot be read; check its path, its query and their %-escapes";
            Error::new(status, "invalid_request", message)
        }
    })
}
