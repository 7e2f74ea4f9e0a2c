//! Counting the bytes of request and response bodies, of the host and of the client that a call names.
//!
//! A body of known size costs one addition; only a stream is wrapped and counted as it flows.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Query;
use axum::http::{Request, Response};
use fulcrum_coordinator::Meter;
use fulcrum_core::NAME_BYTES_MAX;
use fulcrum_core::time::Clock;
use http_body::{Frame, SizeHint};

/// Whose traffic it is.
#[derive(Clone)]
pub(crate) struct Client {
    id: Arc<str>,
    clock: Arc<dyn Clock>,
}

impl Client {
    /// Returns who a call about events names in its query. Calls that name their client in the body count it by
    /// themselves, where it matters.
    pub(crate) fn of(request: &Request<Body>, clock: &Arc<dyn Clock>) -> Option<Self> {
        let is_about_events = request.uri().path().starts_with("/events/");
        let named = || {
            let Query(query) = Query::<Vec<(String, String)>>::try_from_uri(request.uri()).ok()?;
            let (_, id) = query.into_iter().find(|(name, _)| name == "clientId")?;
            (id.len() <= NAME_BYTES_MAX).then(|| Self { id: id.into(), clock: clock.clone() })
        };
        if is_about_events { named() } else { None }
    }
}

/// Where bytes are counted.
struct Count {
    meter: Arc<Meter>,
    client: Option<Client>,
    is_in: bool,
}

impl Count {
    fn add(&self, bytes: u64) {
        let (inflow, outflow) = if self.is_in { (bytes, 0) } else { (0, bytes) };
        self.meter.add_in(inflow);
        self.meter.add_out(outflow);
        if let Some(client) = self.client.as_ref().filter(|_| bytes > 0) {
            self.meter.add_client(&client.id, inflow, outflow, client.clock.nanos());
        }
    }

    /// Counts a body of known size at once, and wraps any other.
    fn body(self, body: Body) -> Body {
        match body.size_hint().exact() {
            Some(bytes) => {
                self.add(bytes);
                body
            }
            None => Body::new(Counted { inner: body, count: self }),
        }
    }
}

/// Counts what the caller sends.
pub(crate) fn count_in(request: Request<Body>, meter: &Arc<Meter>, client: Option<Client>) -> Request<Body> {
    request.map(|body| Count { meter: meter.clone(), client, is_in: true }.body(body))
}

/// Counts what the caller gets.
pub(crate) fn count_out(
    response: Response<Body>,
    meter: &Arc<Meter>,
    client: Option<Client>,
) -> Response<Body> {
    response.map(|body| Count { meter: meter.clone(), client, is_in: false }.body(body))
}

struct Counted {
    inner: Body,
    count: Count,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.count.add(data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn known_and_streamed_bodies_are_counted() {
        let meter = Arc::new(Meter::default());
        let _ = count_in(Request::new(Body::from("12345")), &meter, None);
        assert_eq!(meter.totals(), (5, 0));
        let stream = Body::new(Chunks(vec!["ab", "cde"]));
        let response = count_out(Response::new(stream), &meter, None);
        assert_eq!(meter.totals(), (5, 0));
        let bytes = axum::body::to_bytes(response.into_body(), 100).await.expect("it is short");
        assert_eq!((&bytes[..], meter.totals()), (&b"cdeab"[..], (5, 5)));
    }

    #[tokio::test]
    async fn what_a_client_streams_counts_as_it_flows() {
        let clock: Arc<dyn Clock> = Arc::new(crate::clock::RealClock::start());
        let of = |uri: &str| {
            let request = Request::builder().uri(uri).body(Body::empty()).expect("a request");
            Client::of(&request, &clock).map(|client| client.id.to_string())
        };
        assert_eq!(of("/events/poll?max=1&clientId=a%20b").as_deref(), Some("a b"));
        assert_eq!(of("/session/recommend?clientId=a"), None);
        assert_eq!(of("/events/poll?client=a"), None);
        assert_eq!(of(&format!("/events/poll?clientId={}", "x".repeat(257))), None);

        let meter = Arc::new(Meter::default());
        let client = || Some(Client { id: "a".into(), clock: clock.clone() });
        let rates = || meter.client("a", clock.nanos());
        let _ = count_in(Request::new(Body::from("12345")), &meter, client());
        assert!(rates().inflow > 0.0 && rates().outflow == 0.0);
        let response = count_out(Response::new(Body::new(Chunks(vec!["ab", "cde"]))), &meter, client());
        let mut body = response.into_body();
        assert!(rates().outflow == 0.0, "nothing flowed yet");
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert!(frame.is_some_and(|frame| frame.is_ok()) && rates().outflow > 0.0);
        assert_eq!(meter.totals(), (5, 3));
    }

    struct Chunks(Vec<&'static str>);

    impl HttpBody for Chunks {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.0.pop().map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))))
        }
    }
}
