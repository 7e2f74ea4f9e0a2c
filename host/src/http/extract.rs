//! Extractors whose refusals are our JSON errors instead of plain text.

use axum::extract::rejection::{BytesRejection, JsonRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use fulcrum_policy::json::PlainMap;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::Error;

/// A JSON body, coming in or going out.
///
/// Refused with 415 `not_json` (content type), 400 `invalid_json` (syntax), 400 `invalid_body` (a field is missing
/// or of another type) and 413 `too_large`.
#[derive(Clone, Copy, Debug)]
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        // By way of a map: serde would take an array for an object, its items for the fields in order.
        let body = axum::Json::<PlainMap>::from_request(request, state).await;
        let axum::Json(PlainMap(fields)) = body.map_err(|rejection| body_error(&rejection))?;
        serde_json::from_value(serde_json::Value::Object(fields))
            .map(Self)
            .map_err(|error| Error::new(StatusCode::BAD_REQUEST, "invalid_body", error.to_string()))
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

/// The query string; refused with 400 `invalid_query`.
#[derive(Clone, Copy, Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        // Decoding would replace what is not UTF-8, and two broken names would become one.
        if !is_utf8_when_decoded(parts.uri.query().unwrap_or_default()) {
            let message = "the query must be percent-encoded UTF-8";
            return Err(Error::new(StatusCode::BAD_REQUEST, "invalid_query", message));
        }
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(rejection) => Err(query_error(&rejection)),
        }
    }
}

fn is_utf8_when_decoded(query: &str) -> bool {
    let mut decoded = Vec::with_capacity(query.len());
    let mut bytes = query.as_bytes();
    while let [first, rest @ ..] = bytes {
        let escaped = match (first, rest) {
            (b'%', [high, low, ..]) => {
                std::str::from_utf8(&[*high, *low]).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok())
            }
            _ => None,
        };
        decoded.push(escaped.unwrap_or(*first));
        bytes = if escaped.is_some() { &rest[2..] } else { rest };
    }
    std::str::from_utf8(&decoded).is_ok()
}

/// Returns the answer to a body that could not be read as bytes.
pub(crate) fn bytes_error(rejection: &BytesRejection) -> Error {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        too_large()
    } else {
        Error::new(StatusCode::BAD_REQUEST, "unreadable_body", innermost(rejection))
    }
}

fn body_error(rejection: &JsonRejection) -> Error {
    let (status, code) = match rejection {
        _ if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => return too_large(),
        JsonRejection::JsonSyntaxError(_) => (StatusCode::BAD_REQUEST, "invalid_json"),
        JsonRejection::JsonDataError(_) => (StatusCode::BAD_REQUEST, "invalid_body"),
        JsonRejection::MissingJsonContentType(_) => {
            let message = "expected a JSON body with the header `content-type: application/json`";
            return Error::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", message);
        }
        _ => (StatusCode::BAD_REQUEST, "unreadable_body"),
    };
    Error::new(status, code, innermost(rejection))
}

/// Returns the answer to a body above the limit.
pub(crate) fn too_large() -> Error {
    Error::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "too_large",
        "the request body is larger than this host accepts",
    )
}

fn query_error(rejection: &QueryRejection) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "invalid_query", innermost(rejection))
}

/// Returns what the deepest cause says: the outer ones only repeat that parsing failed.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
