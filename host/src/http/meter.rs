//! Counting the bytes of request and response bodies.
//!
//! A body of known size costs one addition; only a stream is wrapped and counted as it flows.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use fulcrum_coordinator::Meter;
use http_body::{Frame, SizeHint};

/// Counts what the caller sends.
pub(crate) fn count_in(request: Request<Body>, meter: &Arc<Meter>) -> Request<Body> {
    match request.body().size_hint().exact() {
        Some(0) => request,
        Some(bytes) => {
            meter.add_in(bytes);
            request
        }
        None => request.map(|inner| Body::new(Counted { inner, meter: meter.clone(), add: Meter::add_in })),
    }
}

/// Counts what the caller gets.
pub(crate) fn count_out(response: Response<Body>, meter: &Arc<Meter>) -> Response<Body> {
    match response.body().size_hint().exact() {
        Some(bytes) => {
            meter.add_out(bytes);
            response
        }
        None => response.map(|inner| Body::new(Counted { inner, meter: meter.clone(), add: Meter::add_out })),
    }
}

struct Counted {
    inner: Body,
    meter: Arc<Meter>,
    add: fn(&Meter, u64),
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
            (self.add)(&self.meter, data.len() as u64);
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
        let _ = count_in(Request::new(Body::from("12345")), &meter);
        assert_eq!(meter.totals(), (5, 0));
        let stream = Body::new(Chunks(vec!["ab", "cde"]));
        let response = count_out(Response::new(stream), &meter);
        assert_eq!(meter.totals(), (5, 0));
        let bytes = axum::body::to_bytes(response.into_body(), 100).await.expect("it is short");
        assert_eq!((&bytes[..], meter.totals()), (&b"cdeab"[..], (5, 5)));
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
