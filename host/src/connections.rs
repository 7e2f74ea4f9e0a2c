//! Taking in connections: how many at once, and how long one may dawdle.
//!
//! Invariants: a connection that does not send the head of a request in time is closed, however far it got; beyond the
//! most at once, connections wait in the system's queue and those that are served go on. A WebSocket counts no more
//! once it is one; it watches over itself with pings.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};

use crate::app::Lifecycle;

/// Pause after the system refused to give a connection, for want of file handles for example.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// A quiet HTTP/2 connection is asked this often whether it lives, and has as long to answer.
const PING: Duration = Duration::from_secs(20);
/// What an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How connections are taken in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most at once.
    pub(crate) connections_max: usize,
    /// Time to send the head of the next request.
    pub(crate) header_timeout: Duration,
}

/// Serves connections until the host drains, then finishes the requests that run; dropped, it cuts them off.
pub(crate) async fn serve<S>(listener: TcpListener, service: S, limits: Limits, lifecycle: Arc<Lifecycle>)
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut drained = pin!(lifecycle.drained());
    loop {
        let stream = tokio::select! {
            biased;
            () = &mut drained => break,
            Some(_) = connections.join_next() => continue,
            stream = accept(&listener), if connections.len() < limits.connections_max => stream,
        };
        // Answers are small and complete: waiting for more to send would only add latency.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let stream = TokioIo::new(Opening::new(stream, limits.header_timeout));
        let connection = builder.serve_connection_with_upgrades(stream, service.clone()).into_owned();
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            if let Err(error) = connection.await {
                // The other side went away, or was too slow.
                tracing::trace!(%error, "a connection failed");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Takes in the next connection.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => match error.kind() {
                // It was gone before it was taken in.
                ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset => {}
                _ => {
                    tracing::error!(%error, "cannot take in a connection");
                    sleep(REFUSED_PAUSE).await;
                }
            },
        }
    }
}

/// A connection that has a deadline until it is known which HTTP it speaks; after that the protocols have their own.
struct Opening {
    stream: TcpStream,
    /// Bytes of the HTTP/2 preface so far, and when it is too late; `None` once something else or all of it came.
    preface: Option<(usize, Pin<Box<Sleep>>)>,
}

impl Opening {
    fn new(stream: TcpStream, time: Duration) -> Self {
        Self { stream, preface: Some((0, Box::pin(sleep(time)))) }
    }
}

impl AsyncRead for Opening {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Some((seen, deadline)) = &mut self.preface else { return polled };
        match polled {
            Poll::Ready(_) => {
                let read = &buffer.filled()[before..];
                *seen += read.len();
                let is_open = *seen < PREFACE.len() && PREFACE[*seen - read.len()..].starts_with(read);
                if !is_open {
                    self.preface = None;
                }
                polled
            }
            Poll::Pending => deadline.as_mut().poll(context).map(|()| Err(ErrorKind::TimedOut.into())),
        }
    }
}

impl AsyncWrite for Opening {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use hyper_util::service::TowerToHyperService;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::{Instant, timeout};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    async fn host(connections_max: usize, header_timeout: Duration) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let router = Router::new().route("/", get(async || "here"));
        let service = TowerToHyperService::new(router);
        tokio::spawn(serve(listener, service, Limits { connections_max, header_timeout }, Arc::default()));
        addr
    }

    /// Returns everything the host says until it closes the connection.
    async fn said(stream: &mut TcpStream) -> String {
        let mut said = Vec::new();
        let read = timeout(SOON, stream.read_to_end(&mut said)).await.expect("the host ends it");
        // Closed with something unread is a reset, and an end all the same.
        drop(read);
        String::from_utf8_lossy(&said).into_owned()
    }

    #[tokio::test]
    async fn who_does_not_send_a_head_in_time_is_cut_off() {
        let wait = Duration::from_millis(300);
        let addr = host(100, wait).await;
        let check = async |sent: &str, expected: &str| {
            let began = Instant::now();
            let mut stream = TcpStream::connect(addr).await.expect("the host listens");
            stream.write_all(sent.as_bytes()).await.expect("the host reads");
            let said = said(&mut stream).await;
            assert!(said.starts_with(expected), "{sent:?} is answered {said:?}");
            assert!(wait <= began.elapsed(), "{sent:?} had no time");
        };
        check("", "").await;
        check("P", "").await;
        check("PRI * HTTP/2.0\r\n", "").await;
        check("GET / HTTP/1.1\r\n", "").await;
        check("GET / HTTP/1.1\r\nhost: h\r\nx: ", "").await;
        // Served, then silent.
        check("GET / HTTP/1.1\r\nhost: h\r\n\r\n", "HTTP/1.1 200 OK").await;
    }

    #[tokio::test]
    async fn beyond_the_most_at_once_connections_wait() {
        let addr = host(2, SOON).await;
        let mut holders = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(addr).await.expect("the host listens");
            stream.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.expect("the host reads");
            let mut one = [0; 12];
            timeout(SOON, stream.read_exact(&mut one)).await.expect("in time").expect("an answer");
            holders.push(stream);
        }
        let mut third = TcpStream::connect(addr).await.expect("the system takes it in");
        let request = b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
        third.write_all(request).await.expect("the system takes it in");
        let mut byte = [0; 1];
        let early = timeout(Duration::from_millis(100), third.read(&mut byte)).await;
        assert!(early.is_err(), "it was served beside two others");
        holders.pop();
        let said = said(&mut third).await;
        assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
    }
}
