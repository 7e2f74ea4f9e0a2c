//! Bodies that bring a policy: a component, a configuration, or both.
//!
//! Invariants: few uploads that may be large are in memory at a time, none for longer than it may take, and none that
//! only trickles. Small ones, as configurations are, wait for nobody.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use fulcrum_policy::lifecycle::{CONFIG_BYTES_MAX, Upload};
use futures_util::TryStreamExt as _;
use http_body::Body as _;
use multer::{Constraints, Multipart, SizeLimit};
use tokio::sync::OwnedSemaphorePermit;

use crate::app::Services;
use crate::http::Result;
use crate::http::error::Error;
use crate::http::{discard, extract};

/// What a body with parts may have beside them.
const OVERHEAD_BYTES_MAX: usize = 64 << 10;
/// How long an upload waits for those before it.
const TURN_WAIT: Duration = Duration::from_secs(60);
/// How long a body may take.
const TIME_MAX: Duration = Duration::from_secs(300);
/// Fewest bytes a large body brings within each [`PACE_TIME`]; else it gives up its turn.
const PACE_BYTES: u64 = 128 << 10;
const PACE_TIME: Duration = Duration::from_secs(10);
/// The parts a form may have.
const PARTS: [&str; 4] = ["component", "config", "componentSignature", "configSignature"];
/// Carries the text of the `.sig` file of a body that is a component or a configuration.
const SIGNATURE: &str = "fulcrum-signature";

/// Reads an upload; the permit, which small ones need not, is for as long as it is in memory.
pub(super) async fn read(
    services: &Services,
    request: Request,
) -> Result<(Upload, Option<OwnedSemaphorePermit>)> {
    let (head, body) = request.into_parts();
    let kind = Kind::of(&head.headers)?;
    let declared =
        head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let small = CONFIG_BYTES_MAX + OVERHEAD_BYTES_MAX;
    let is_small = matches!(kind, Kind::Config) || declared.is_some_and(|bytes| bytes <= small as u64);
    let max = match is_small {
        true => small,
        false => services.policies.runtime().limits().artifact_bytes + small,
    };
    if declared.is_some_and(|bytes| bytes > max as u64) {
        discard(body).await;
        return Err(extract::too_large());
    }
    if is_small {
        let upload = tokio::time::timeout(TIME_MAX, kind.upload(body, max, &head.headers)).await;
        return Ok((upload.unwrap_or_else(|_| Err(too_long()))?, None));
    }
    let turn = turn(services).await?;
    let (body, seen) = counted(body);
    let upload = tokio::select! {
        upload = kind.upload(body, max, &head.headers) => upload?,
        () = tokio::time::sleep(TIME_MAX) => return Err(too_long()),
        () = trickles(&seen, PACE_BYTES, PACE_TIME) => {
            let message = format!("the upload brought less than {PACE_BYTES} bytes in {} s", PACE_TIME.as_secs());
            return Err(too_slow(message));
        }
    };
    Ok((upload, Some(turn)))
}

fn too_long() -> Error {
    too_slow(format!("the upload took longer than {} s", TIME_MAX.as_secs()))
}

fn too_slow(message: String) -> Error {
    Error::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message)
}

/// Returns the body, and how many bytes of it came in so far.
fn counted(body: Body) -> (Body, Arc<AtomicU64>) {
    let seen = Arc::<AtomicU64>::default();
    let counter = seen.clone();
    let data = body.into_data_stream().inspect_ok(move |data| {
        counter.fetch_add(data.len() as u64, Ordering::Relaxed);
    });
    (Body::from_stream(data), seen)
}

/// Returns once fewer than `bytes` came in within `time`.
async fn trickles(seen: &AtomicU64, bytes: u64, time: Duration) {
    let mut before = 0;
    loop {
        tokio::time::sleep(time).await;
        let now = seen.load(Ordering::Relaxed);
        if now - before < bytes {
            return;
        }
        before = now;
    }
}

/// Waits for the uploads before this one.
async fn turn(services: &Services) -> Result<OwnedSemaphorePermit> {
    let turn = tokio::time::timeout(TURN_WAIT, services.uploads.clone().acquire_owned()).await;
    turn.ok().and_then(std::result::Result::ok).ok_or_else(|| {
        let message = "other policies are being uploaded; try again";
        Error::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).retry_after(5)
    })
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
    async fn a_body_that_trickles_is_found_out() {
        const TIME: Duration = Duration::from_millis(20);
        // Twenty frames of 10 bytes: as fast as they are read, one for each time, or none.
        let check = async |pause: Option<Duration>, bytes: u64, expected: bool| {
            let frames = futures_util::stream::unfold(0, move |count| async move {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
                (count < 20).then_some((Ok::<_, std::io::Error>("0123456789"), count + 1))
            });
            let (body, seen) = counted(Body::from_stream(frames));
            let is_found_out = tokio::select! {
                read = collect(body, 200) => {
                    assert_eq!(read.map(|bytes| bytes.len()).ok(), Some(200));
                    false
                }
                () = trickles(&seen, bytes, TIME) => true,
            };
            assert_eq!(is_found_out, expected, "{pause:?} {bytes}");
        };
        check(None, 1, true).await;
        check(Some(TIME), 100, true).await;
        check(Some(Duration::ZERO), 1, false).await;
    }

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
