//! How long a request body may pause: one that never ends would keep its connection for ever.

use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

/// Breaks a request body off that sends nothing for longer than `pause`.
pub(super) fn within(request: Request<Body>, pause: Duration) -> Request<Body> {
    if request.body().is_end_stream() {
        return request;
    }
    request.map(|inner| Body::new(Patient { inner, pause, waiting: None }))
}

struct Patient {
    inner: Body,
    pause: Duration,
    /// Runs while a frame is awaited; made when one is for the first time.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for Patient {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { inner, pause, waiting } = &mut *self;
        if let Poll::Ready(frame) = Pin::new(inner).poll_frame(context) {
            if let Some(waiting) = waiting {
                waiting.as_mut().reset(Instant::now() + *pause);
            }
            return Poll::Ready(frame);
        }
        let waiting = waiting.get_or_insert_with(|| Box::pin(sleep(*pause)));
        let late = || axum::Error::new(std::io::Error::from(ErrorKind::TimedOut));
        waiting.as_mut().poll(context).map(|()| Some(Err(late())))
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
    use futures_util::stream;

    use super::*;

    async fn read(body: Body) -> Result<Bytes, String> {
        let request = within(Request::new(body), Duration::from_millis(20));
        axum::body::to_bytes(request.into_body(), 100).await.map_err(|error| format!("{error:?}"))
    }

    #[tokio::test]
    async fn a_body_that_stops_is_broken_off() {
        let begun = Body::from_stream(stream::unfold(0, |count| async move {
            if count == 2 {
                std::future::pending::<()>().await;
            }
            Some((Ok::<_, std::io::Error>("x"), count + 1))
        }));
        let error = read(begun).await.expect_err("it never ends");
        assert!(error.contains("TimedOut"), "{error}");
        assert_eq!(read(Body::from("whole")).await.as_deref(), Ok(&b"whole"[..]));
        assert_eq!(read(Body::empty()).await.as_deref(), Ok(&b""[..]));
    }
}
