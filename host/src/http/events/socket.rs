//! The WebSocket of a client: events go out as text frames, and what becomes of them comes in.
//!
//! A client may settle deliveries over it with `{"ack"}`, `{"nack", "delayMs"?}` and `{"extend", "invisibleMs"}`; each
//! is answered by `{"acked"}`, `{"nacked"}`, `{"extended", "deliveryId"}` or `{"error", "code", "deliveryId"}`, in the
//! order they are done. Acknowledgements that are under way do not wait for one another, so they share commits.
//!
//! Invariants: so many answers are owed at most, then nothing more is read; a send that does not get through, or a
//! client that does not answer pings, ends the connection.

use std::pin::Pin;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::http::StatusCode;
use axum::response::Response;
use fulcrum_coordinator::pulls::Connection;
use fulcrum_policy::json::PlainMap;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::ack;
use super::frame;
use super::stream::BATCH;
use crate::app::{Parts, Services};
use crate::http::Result;
use crate::http::error::Error;

/// Largest message of a client, in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;
/// Settlements under way at once.
const OWED_MAX: usize = 1000;
/// Longest wait of one poll; the next one follows at once, and asks the groups the client joined meanwhile too.
const POLL: Duration = Duration::from_secs(5);
/// Time between two pings.
const PING: Duration = Duration::from_secs(10);
/// A client that was not heard for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Longest time one frame may take to go out.
const SEND_MAX: Duration = Duration::from_secs(30);
/// Time a client has to answer the closing of the connection.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Takes a WebSocket in and serves it until one side ends it.
pub(super) fn accept(
    upgrade: WebSocketUpgrade,
    services: Services,
    client: String,
    connection: Connection,
) -> Response {
    let outlives_request = services.lifecycle.outlive();
    upgrade.max_message_size(MESSAGE_BYTES_MAX).max_frame_size(MESSAGE_BYTES_MAX).on_upgrade(
        async move |socket| {
            let socket = Socket { socket, services, client };
            socket.serve(&connection).await;
            drop((connection, outlives_request));
        },
    )
}

struct Socket {
    socket: WebSocket,
    services: Services,
    client: String,
}

/// The other side is gone, or too slow.
struct Gone;

/// Why the host ends a connection.
struct Ending {
    code: u16,
    reason: String,
}

type Settling = Pin<Box<dyn Future<Output = Value> + Send>>;

impl Socket {
    async fn serve(mut self, connection: &Connection) {
        let mut settling = FuturesUnordered::new();
        let pushed = self.push(connection, &mut settling).await;
        // An error says that there is nobody to tell.
        if let Ok(ending) = pushed
            && self.finish(&mut settling).await.is_ok()
        {
            return self.close(ending).await;
        }
        // What a client settled before it went counts all the same.
        while settling.next().await.is_some() {}
    }

    /// Sends events and answers until the host wants to end.
    async fn push(
        &mut self,
        connection: &Connection,
        settling: &mut FuturesUnordered<Settling>,
    ) -> std::result::Result<Ending, Gone> {
        let (services, client) = (self.services.clone(), self.client.clone());
        let poll = || services.pulls.poll(&client, BATCH, POLL, connection.via());
        let mut polling = Box::pin(poll());
        let mut pings = interval(PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard_at = Instant::now();
        loop {
            tokio::select! {
                () = services.lifecycle.drained() => {
                    return Ok(Ending { code: close_code::AWAY, reason: "the host is stopping".to_owned() });
                }
                polled = &mut polling => {
                    let deliveries = match polled {
                        Ok(deliveries) => deliveries,
                        Err(error) => return Ok(Ending::of(&error.into())),
                    };
                    for delivery in deliveries {
                        let mut text = Vec::with_capacity(frame::bytes(std::slice::from_ref(&delivery)));
                        frame::write(&mut text, &delivery);
                        let text = Utf8Bytes::try_from(text).expect("published events are JSON, and so UTF-8");
                        self.send(Message::Text(text)).await?;
                    }
                    polling.set(poll());
                }
                Some(answer) = settling.next(), if !settling.is_empty() => self.answer(&answer).await?,
                received = self.socket.recv(), if settling.len() < OWED_MAX => {
                    let Some(Ok(message)) = received else { return Err(Gone) };
                    heard_at = Instant::now();
                    match self.read(message) {
                        Ok(None) => {}
                        Ok(Some(settle)) => settling.push(settle),
                        Err(error) => self.answer(&refusal(&error, None)).await?,
                    }
                }
                _ = pings.tick() => {
                    // Who is owed much is not listened to.
                    if SILENCE_MAX < heard_at.elapsed() && settling.len() < OWED_MAX {
                        return Err(Gone);
                    }
                    self.send(Message::Ping(axum::body::Bytes::new())).await?;
                }
            }
        }
    }

    /// Answers what is under way.
    async fn finish(&mut self, settling: &mut FuturesUnordered<Settling>) -> std::result::Result<(), Gone> {
        while let Some(answer) = settling.next().await {
            self.answer(&answer).await?;
        }
        Ok(())
    }

    /// Says goodbye and waits a moment for the answer, so that the last frames are not lost with the connection.
    async fn close(mut self, ending: Ending) {
        let Ending { code, reason } = ending;
        if self.send(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await.is_err() {
            return;
        }
        let answered = async { while let Some(Ok(_)) = self.socket.recv().await {} };
        // Late or not, the connection ends.
        drop(timeout(CLOSE_MAX, answered).await);
    }

    async fn answer(&mut self, answer: &Value) -> std::result::Result<(), Gone> {
        self.send(Message::text(answer.to_string())).await
    }

    async fn send(&mut self, message: Message) -> std::result::Result<(), Gone> {
        let bytes = match &message {
            Message::Text(text) => text.len() as u64,
            _ => 0,
        };
        let sent = timeout(SEND_MAX, self.socket.send(message)).await;
        self.count(0, bytes);
        if let Ok(Ok(())) = sent { Ok(()) } else { Err(Gone) }
    }

    fn count(&self, inflow: u64, outflow: u64) {
        let Parts { meter, clock, .. } = &*self.services;
        meter.add_in(inflow);
        meter.add_out(outflow);
        meter.add_client(&self.client, inflow, outflow, clock.nanos());
    }

    /// Reads a message; pings and the like want nothing of us.
    fn read(&self, message: Message) -> Result<Option<Settling>> {
        let text = match message {
            Message::Text(text) => text,
            Message::Binary(_) => return Err(invalid("messages must be text")),
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return Ok(None),
        };
        self.count(text.len() as u64, 0);
        let Settle { id, what } = Settle::read(&text)?;
        let pulls = self.services.pulls.clone();
        Ok(Some(Box::pin(async move {
            let done = match what {
                What::Ack { relaxed } => pulls.ack(&id, relaxed).await.map(|()| json!({ "acked": id })),
                What::Nack { delay } => pulls.nack(&id, delay).await.map(|()| json!({ "nacked": id })),
                What::Extend { invisible } => {
                    let extended = pulls.extend(&id, invisible).await;
                    extended.map(|new| json!({ "extended": id, "deliveryId": new }))
                }
            };
            done.unwrap_or_else(|error| refusal(&error.into(), Some(&id)))
        })))
    }
}

impl Ending {
    fn of(error: &Error) -> Self {
        let code = match error.status() {
            StatusCode::SERVICE_UNAVAILABLE => close_code::AWAY,
            status if status.is_server_error() => close_code::ERROR,
            _ => close_code::POLICY,
        };
        Self { code, reason: error.code().to_owned() }
    }
}

fn refusal(error: &Error, id: Option<&str>) -> Value {
    json!({ "error": error.message(), "code": error.code(), "deliveryId": id })
}

/// What a client wants to become of a delivery.
#[derive(Debug, PartialEq)]
struct Settle {
    id: String,
    what: What,
}

#[derive(Debug, PartialEq)]
enum What {
    Ack { relaxed: bool },
    Nack { delay: Option<Duration> },
    Extend { invisible: Duration },
}

impl Settle {
    fn read(text: &str) -> Result<Self> {
        let PlainMap(body) = serde_json::from_str(text).map_err(|error| invalid(&error.to_string()))?;
        let id = |name| body.get(name).and_then(Value::as_str).map(str::to_owned);
        let (id, what) = match (id("ack"), id("nack"), id("extend")) {
            (Some(id), None, None) => {
                let relaxed = body.get("relaxed").and_then(Value::as_bool).unwrap_or(false);
                (id, What::Ack { relaxed })
            }
            (None, Some(id), None) => (id, What::Nack { delay: ack::delay(&body)? }),
            (None, None, Some(id)) => (id, What::Extend { invisible: ack::invisible(&body)? }),
            _ => return Err(invalid("a message has one of ack, nack and extend, with a delivery id")),
        };
        Ok(Self { id, what })
    }
}

fn invalid(message: &str) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "invalid_message", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read() {
        let check = |text: &str, expected: Option<(&str, What)>| {
            let found = Settle::read(text).ok();
            let expected = expected.map(|(id, what)| Settle { id: id.to_owned(), what });
            assert_eq!(found, expected, "{text}");
        };
        check(r#"{"ack":"a"}"#, Some(("a", What::Ack { relaxed: false })));
        check(r#"{"ack":"a","relaxed":true}"#, Some(("a", What::Ack { relaxed: true })));
        check(r#"{"nack":"a"}"#, Some(("a", What::Nack { delay: None })));
        let delay = Some(Duration::from_millis(5));
        check(r#"{"nack":"a","delayMs":5}"#, Some(("a", What::Nack { delay })));
        let invisible = Duration::from_secs(1);
        check(r#"{"extend":"a","invisibleMs":1000}"#, Some(("a", What::Extend { invisible })));
        for wrong in [
            "",
            "x",
            "[]",
            "{}",
            r#"{"ack":1}"#,
            r#"{"ack":"a","nack":"a"}"#,
            r#"{"nack":"a","delayMs":-1}"#,
            r#"{"extend":"a"}"#,
        ] {
            check(wrong, None);
        }
    }
}
