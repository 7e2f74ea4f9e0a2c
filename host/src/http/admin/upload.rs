//! Bodies that bring a policy: a component, a configuration, or both.
//!
//! Invariant: one upload is in memory at a time, and none for longer than it may take.

use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use fulcrum_policy::lifecycle::Upload;
use http_body::Body as _;
use multer::{Constraints, Multipart, SizeLimit};
use tokio::sync::OwnedSemaphorePermit;

use crate::app::Services;
use crate::http::Result;
use crate::http::error::Error;
use crate::http::{discard, extract};

/// Longest configuration, in bytes.
const CONFIG_BYTES_MAX: usize = 1 << 20;
/// What a body with parts may have beside them.
const OVERHEAD_BYTES_MAX: usize = 64 << 10;
/// How long an upload waits for the one before it.
const TURN_WAIT: Duration = Duration::from_secs(60);
/// How long a body may take.
const TIME_MAX: Duration = Duration::from_secs(300);
/// The parts a form may have.
const PARTS: [&str; 4] = ["component", "config", "componentSignature", "configSignature"];
/// Carries the text of the `.sig` file of a body that is a component or a configuration.
const SIGNATURE: &str = "fulcrum-signature";

/// Reads an upload; the permit is for as long as it is in memory.
pub(super) async fn read(services: &Services, request: Request) -> Result<(Upload, OwnedSemaphorePermit)> {
    let (head, body) = request.into_parts();
    let kind = Kind::of(&head.headers)?;
    let max = services.policies.runtime().limits().artifact_bytes + CONFIG_BYTES_MAX + OVERHEAD_BYTES_MAX;
    let declared =
        head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|bytes| bytes > max as u64) {
        discard(body).await;
        return Err(extract::too_large());
    }
    let turn = tokio::time::timeout(TURN_WAIT, services.uploads.clone().acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        let message = "another policy is being uploaded; try again";
        return Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).retry_after(5));
    };
    let Ok(upload) = tokio::time::timeout(TIME_MAX, kind.upload(body, max, &head.headers)).await else {
        let message = format!("the upload took longer than {} s", TIME_MAX.as_secs());
        return Err(Error::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message));
    };
    Ok((upload?, turn))
}

async fn collect(mut body: Body, max: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame
            .map_err(|error| Error::new(StatusCode::BAD_REQUEST, "unreadable_body", error.to_string()))?;
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > max {
            drop(bytes);
            discard(body).await;
            return Err(extract::too_large());
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes)
}

/// What a body is.
#[derive(Debug)]
enum Kind {
    Component,
    Config,
    Parts { boundary: String },
}

impl Kind {
    fn of(headers: &HeaderMap) -> Result<Self> {
        let content_type =
            headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match media_type.as_str() {
            "application/wasm" => Ok(Self::Component),
            "application/json" => Ok(Self::Config),
            "multipart/form-data" => match multer::parse_boundary(content_type) {
                Ok(boundary) => Ok(Self::Parts { boundary }),
                Err(error) => Err(invalid(&error.to_string())),
            },
            _ => {
                let message = "expected the header `content-type`: application/wasm for a component, application/json \
                               for a configuration, or multipart/form-data for both";
                Err(Error::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_type", message))
            }
        }
    }

    async fn upload(self, body: Body, max: usize, headers: &HeaderMap) -> Result<Upload> {
        let signature = headers
            .get(SIGNATURE)
            .map(|value| value.to_str().map(str::to_owned))
            .transpose()
            .map_err(|_| invalid("the header Fulcrum-Signature must be one line of text"))?;
        match self {
            Self::Component => Ok(Upload {
                component: Some(collect(body, max).await?),
                component_signature: signature,
                ..Upload::default()
            }),
            Self::Config => Ok(Upload {
                config: Some(config(collect(body, max).await?)?),
                config_signature: signature,
                ..Upload::default()
            }),
            Self::Parts { .. } if signature.is_some() => {
                Err(invalid("signatures of parts come as the parts componentSignature and configSignature"))
            }
            Self::Parts { boundary } => parts(body, max, boundary).await,
        }
    }
}

/// Reads the parts of a form, each at most once.
async fn parts(body: Body, max: usize, boundary: String) -> Result<Upload> {
    let limits = SizeLimit::new().whole_stream(max as u64);
    let limits = PARTS
        .into_iter()
        .filter(|part| *part != "component")
        .fold(limits, |limits, part| limits.for_field(part, CONFIG_BYTES_MAX as u64));
    let constraints = Constraints::new().allowed_fields(PARTS.to_vec()).size_limit(limits);
    let mut form = Multipart::with_constraints(body.into_data_stream(), boundary, constraints);
    let mut upload = Upload::default();
    while let Some(part) = form.next_field().await.map_err(|error| unusable(&error))? {
        let name = part.name().unwrap_or_default().to_owned();
        let content = part.bytes().await.map_err(|error| unusable(&error))?.to_vec();
        let text = |content| {
            String::from_utf8(content).map_err(|_| invalid("all parts but the component must be UTF-8"))
        };
        let is_second = match name.as_str() {
            "component" => upload.component.replace(content).is_some(),
            "config" => upload.config.replace(text(content)?).is_some(),
            "componentSignature" => upload.component_signature.replace(text(content)?).is_some(),
            _ => upload.config_signature.replace(text(content)?).is_some(),
        };
        if is_second {
            return Err(invalid("two parts have the same name"));
        }
    }
    Ok(upload)
}

/// Says what is wrong with a form.
fn unusable(error: &multer::Error) -> Error {
    match error {
        multer::Error::FieldSizeExceeded { .. } | multer::Error::StreamSizeExceeded { .. } => {
            extract::too_large()
        }
        multer::Error::UnknownField { .. } => invalid(&format!("its parts must be {}", PARTS.join(", "))),
        error => invalid(&error.to_string()),
    }
}

fn config(bytes: Vec<u8>) -> Result<String> {
    if bytes.len() > CONFIG_BYTES_MAX {
        return Err(extract::too_large());
    }
    String::from_utf8(bytes).map_err(|_| invalid("a configuration must be UTF-8"))
}

fn invalid(message: &str) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "invalid_body", format!("the body cannot be used: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[tokio::test]
    async fn a_content_type_says_what_a_body_is() {
        let check = async |content_type: &str,
                           signature: Option<&str>,
                           body: &[u8],
                           expected: std::result::Result<[bool; 4], &str>| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_str(content_type).expect("plain"));
            if let Some(signature) = signature {
                headers.insert(SIGNATURE, HeaderValue::from_str(signature).expect("plain"));
            }
            let found = match Kind::of(&headers) {
                Ok(kind) => kind.upload(Body::from(body.to_vec()), 2 * CONFIG_BYTES_MAX, &headers).await,
                Err(error) => Err(error),
            };
            let found = found.as_ref().map_err(Error::code).map(|upload| {
                [
                    upload.component.is_some(),
                    upload.component_signature.is_some(),
                    upload.config.is_some(),
                    upload.config_signature.is_some(),
                ]
            });
            assert_eq!(found, expected, "{content_type} {body:?}");
        };
        check("application/wasm", None, b"\0asm", Ok([true, false, false, false])).await;
        check("Application/WASM", Some("sig"), b"", Ok([true, true, false, false])).await;
        check("application/json; charset=utf-8", Some("sig"), b"{}", Ok([false, false, true, true])).await;
        check("application/json", None, b"\xff", Err("invalid_body")).await;
        check("application/json", None, &vec![b' '; CONFIG_BYTES_MAX + 1], Err("too_large")).await;
        check("text/plain", None, b"{}", Err("unsupported_type")).await;
        check("", None, b"{}", Err("unsupported_type")).await;
        check("multipart/form-data", None, b"", Err("invalid_body")).await;
        let parts = |names: &[&str]| {
            let part =
                |name: &&str| format!("--x\r\nContent-Disposition: form-data; name={name}\r\n\r\n1\r\n");
            (names.iter().map(part).collect::<String>() + "--x--").into_bytes()
        };
        let form = "multipart/form-data; boundary=x";
        check(form, None, &parts(&["component", "config"]), Ok([true, false, true, false])).await;
        check(form, None, &parts(&["configSignature", "componentSignature"]), Ok([false, true, false, true]))
            .await;
        check(form, None, &parts(&["config", "config"]), Err("invalid_body")).await;
        check(form, None, &parts(&["other"]), Err("invalid_body")).await;
        check(form, None, b"garbage", Err("invalid_body")).await;
        check(
            form,
            None,
            b"--x\r\nContent-Disposition: form-data; name=config\r\n\r\n{",
            Err("invalid_body"),
        )
        .await;
        check(form, None, b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--", Err("invalid_body"))
            .await;
        let large = |name: &str, len: usize| {
            let head = format!("--x\r\nContent-Disposition: form-data; name={name}\r\n\r\n");
            [head.as_bytes(), &vec![b' '; len], b"\r\n--x--"].concat()
        };
        check(form, None, &large("config", CONFIG_BYTES_MAX + 1), Err("too_large")).await;
        check(form, None, &large("configSignature", CONFIG_BYTES_MAX + 1), Err("too_large")).await;
        check(form, None, &large("component", CONFIG_BYTES_MAX + 1), Ok([true, false, false, false])).await;
        check(form, None, &large("component", 2 * CONFIG_BYTES_MAX), Err("too_large")).await;
        check(form, Some("sig"), &parts(&["component"]), Err("invalid_body")).await;
    }
}
