//! The HTTP surface: one file per resource, and here what all of them share.
//!
//! Nothing in here takes a decision. Every answer that is not a success is an [`error::Error`], also those of the
//! router itself. A panic in a handler costs its own request only.

pub(crate) mod admin;
pub(crate) mod agents;
pub(crate) mod decisions;
pub mod error;
pub(crate) mod events;
pub mod extract;
pub(crate) mod groups;
pub(crate) mod health;
pub(crate) mod instances;
pub(crate) mod meter;
pub(crate) mod metrics;
mod patience;
mod query;
pub(crate) mod sessions;
pub(crate) mod store;
pub(crate) mod topics;

use std::convert::Infallible;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header::{CONTENT_LENGTH, HOST, ORIGIN, UPGRADE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tower::Service as _;

use crate::app::Services;
use error::{Error, RequestIds};

/// Longest pause of a caller within the body of its request.
const BODY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// What a handler returns.
pub type Result<T> = std::result::Result<T, Error>;

/// How the edge treats every request.
#[derive(Debug)]
pub(crate) struct Edge {
    /// Numbers the requests that fail.
    pub(crate) request_ids: RequestIds,
    /// Largest request body in bytes.
    pub(crate) body_bytes_max: usize,
    /// Whether only this machine can reach the host.
    pub(crate) is_loopback: bool,
    /// Name clients reach the host by, if it advertises one.
    pub(crate) advertised_host: Option<String>,
}

/// The routes of a host behind its edge.
///
/// The edge is no layer of the router: axum boxes a layer on each route, for as much as a decision costs.
pub(crate) struct Front {
    router: Router,
    services: Services,
    edge: Edge,
}

impl Front {
    pub(crate) fn new(services: Services, edge: Edge) -> Self {
        Self { router: router().with_state(services.clone()), services, edge }
    }

    /// Returns what answers the requests of a connection.
    pub(crate) fn into_service(
        self,
    ) -> impl hyper::service::Service<
        hyper::Request<Incoming>,
        Response = Response,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static {
        let front = Arc::new(self);
        service_fn(move |request: hyper::Request<Incoming>| {
            let front = front.clone();
            async move { Ok(front.answer(request.map(Body::new)).await) }
        })
    }

    /// Refuses what no handler should see, counts bytes, survives panics and completes errors.
    async fn answer(&self, mut request: Request) -> Response {
        let Self { router, services, edge } = self;
        let client = meter::Client::of(&request, &services.clock);
        let response = match refuse(&request, edge) {
            Some(error) => {
                // A client that is still sending would see its connection break instead of the answer.
                discard(request.into_body()).await;
                error.into_response()
            }
            None => {
                DefaultBodyLimit::max(edge.body_bytes_max).apply(&mut request);
                let outlives = outlives(&request);
                let request = patience::within(request, BODY_PAUSE_MAX);
                let request = meter::count_in(request, &services.meter, client.clone());
                let handled = surviving(router.clone().call(request));
                match outlives {
                    true => tokio::spawn(handled).await.unwrap_or_else(|_| Error::internal().into_response()),
                    false => handled.await,
                }
            }
        };
        meter::count_out(edge.request_ids.complete(response), &services.meter, client)
    }
}

fn router() -> Router<Services> {
    Router::new()
        .merge(health::routes())
        .merge(instances::routes())
        .merge(sessions::routes())
        .merge(agents::routes())
        .merge(topics::routes())
        .merge(events::routes())
        .merge(groups::routes())
        .merge(admin::routes())
        .merge(decisions::routes())
        .merge(metrics::routes())
        .fallback(no_such_route)
        .method_not_allowed_fallback(method_not_allowed)
}

/// Reads on what nobody wants, within bounds.
async fn discard(body: Body) {
    const BYTES_MAX: usize = 16 << 20;
    const TIME_MAX: Duration = Duration::from_secs(5);
    let mut body = pin!(body);
    let read = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
            bytes += frame.data_ref().map_or(0, |data| data.len());
            if bytes > BYTES_MAX {
                return;
            }
        }
    };
    // Late or not, the answer is the same.
    drop(tokio::time::timeout(TIME_MAX, read).await);
}

fn refuse(request: &Request<Body>, edge: &Edge) -> Option<Error> {
    let headers = request.headers();
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let is_above = declared.is_some_and(|bytes| bytes > edge.body_bytes_max as u64);
    if is_above && !is_upload(request) {
        return Some(extract::too_large());
    }
    // A browser keeps what is read from the pages of others, but not what comes through a WebSocket.
    let reads =
        matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) && !is_websocket(headers);
    if !is_of_another_site(headers) && (reads || is_own_page(headers, request.uri(), edge)) {
        return None;
    }
    let message = "a web page of another origin must not use this host; call it without the headers `Origin` and \
                   `Sec-Fetch-Site`";
    Some(Error::new(StatusCode::FORBIDDEN, "cross_origin", message))
}

/// Says whether a request brings a policy: those have a limit of their own.
fn is_upload(request: &Request<Body>) -> bool {
    *request.method() == Method::PUT && request.uri().path().starts_with("/admin/policies/")
}

/// Says whether a browser sent this for a page of another origin, or for a link on one.
///
/// Such a page cannot see the answer to a plain `GET`, but a poll takes what it answers away from others.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
}

/// Says whether a request wants to become a WebSocket.
fn is_websocket(headers: &HeaderMap) -> bool {
    let mut offers = headers.get_all(UPGRADE).iter().filter_map(|offer| offer.to_str().ok());
    offers.any(|offer| offer.split(',').any(|name| name.trim().eq_ignore_ascii_case("websocket")))
}

/// Says whether a request comes from no web page or from one this host served itself.
///
/// A page elsewhere could otherwise drive a host on the visitor's own machine. On loopback the host must also be
/// called by address or by a name of its own: a foreign name that was made to point here proves nothing.
fn is_own_page(headers: &HeaderMap, uri: &Uri, edge: &Edge) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let host = match headers.get(HOST) {
        Some(host) => host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()),
        None => uri.authority().cloned(),
    };
    let origin =
        origin.to_str().ok().and_then(|origin| origin.split_once("://")?.1.parse::<Authority>().ok());
    let (Some(host), Some(origin)) = (host, origin) else { return false };
    let name = host.host().trim_start_matches('[').trim_end_matches(']');
    let is_own_name = name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || edge.advertised_host.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(name));
    host == origin && (is_own_name || !edge.is_loopback)
}

/// Says whether a request is carried out though its caller goes away: what changes something must not stay half done,
/// stored but never told to those who follow it. A request for a reply is none of these: it waits for minutes, and
/// nobody else wants what it waits for.
fn outlives(request: &Request<Body>) -> bool {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    !reads && request.uri().path() != events::REQUEST_PATH
}

/// Runs the handler; a panic becomes a 500.
async fn surviving(handler: impl Future<Output = std::result::Result<Response, Infallible>>) -> Response {
    let mut handler = pin!(handler);
    // What a handler shares is behind locks that keep their own invariants, so going on after a panic is safe.
    std::future::poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Ok(Error::internal().into_response())))
    })
    .await
    .unwrap_or_else(|never| match never {})
}

async fn no_such_route(method: Method, uri: Uri) -> Error {
    let message = format!("there is no {method} {}", uri.path());
    Error::new(StatusCode::NOT_FOUND, "no_such_route", message)
}

async fn method_not_allowed(method: Method, uri: Uri) -> Error {
    let message = format!("{} does not take {method}; the `allow` header says what it takes", uri.path());
    Error::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

#[cfg(test)]
mod tests;
