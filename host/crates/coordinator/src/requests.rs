//! Requests that wait for the reply to an event: who waits, and the one reply each of them gets.
//!
//! Invariants: a correlation id is unguessable and serves one reply, the first; whoever stops waiting (answered, too
//! late, gone) leaves no trace; there are never more than `max` waiting.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Why a request cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// So many wait already.
    #[error("too many requests wait for a reply, at most {max} do")]
    TooMany {
        /// The cap.
        max: usize,
    },
    /// The host is on its way out.
    #[error("the host is stopping")]
    Stopping,
}

/// See the module.
pub struct Requests {
    table: Arc<Mutex<Table>>,
    max: usize,
    entropy: Box<dyn Fn() -> u128 + Send + Sync>,
}

#[derive(Debug, Default)]
struct Table {
    waiting: HashMap<String, oneshot::Sender<Bytes>>,
    is_stopping: bool,
}

impl Requests {
    /// Makes an empty table of at most `max` that wait; `entropy` draws an unguessable number.
    #[must_use]
    pub fn new(max: usize, entropy: Box<dyn Fn() -> u128 + Send + Sync>) -> Self {
        Self { table: Arc::default(), max, entropy }
    }

    /// Begins to wait for a reply, before the event that asks for it is published.
    ///
    /// Errors with [`Error::TooMany`] and [`Error::Stopping`].
    pub fn open(&self) -> Result<Request, Error> {
        let mut table = self.table.lock();
        if table.is_stopping {
            return Err(Error::Stopping);
        }
        if table.waiting.len() >= self.max {
            return Err(Error::TooMany { max: self.max });
        }
        let id = format!("{:032x}", (self.entropy)());
        let (sender, reply) = oneshot::channel();
        table.waiting.insert(id.clone(), sender);
        drop(table);
        Ok(Request { id, reply, table: self.table.clone() })
    }

    /// Hands a reply to whoever waits for it; false if nobody does (any more).
    #[must_use]
    pub fn reply(&self, correlation_id: &str, event: Bytes) -> bool {
        let Some(waiting) = self.table.lock().waiting.remove(correlation_id) else { return false };
        // Who waited may have gone in this very moment.
        waiting.send(event).is_ok()
    }

    /// Returns how many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.table.lock().waiting.len()
    }

    /// Ends all waiting with [`Error::Stopping`].
    pub fn stop(&self) {
        let mut table = self.table.lock();
        table.is_stopping = true;
        table.waiting.clear();
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("waiting", &self.waiting()).field("max", &self.max).finish()
    }
}

/// One that waits; dropping it ends that.
#[derive(Debug)]
pub struct Request {
    id: String,
    reply: oneshot::Receiver<Bytes>,
    table: Arc<Mutex<Table>>,
}

impl Request {
    /// Returns the correlation id the reply must name.
    #[must_use]
    pub fn correlation_id(&self) -> &str {
        &self.id
    }

    /// Waits for the reply, under the caller's own deadline.
    ///
    /// Errors with [`Error::Stopping`].
    pub async fn reply(&mut self) -> Result<Bytes, Error> {
        (&mut self.reply).await.map_err(|_| Error::Stopping)
    }

    /// Stops waiting; returns the reply if it came in this very moment, as its sender was told that it arrived.
    #[must_use]
    pub fn give_up(mut self) -> Option<Bytes> {
        self.reply.close();
        self.reply.try_recv().ok()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.table.lock().waiting.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn requests(max: usize) -> Requests {
        let next = AtomicU64::new(1);
        Requests::new(max, Box::new(move || next.fetch_add(1, Ordering::Relaxed).into()))
    }

    #[tokio::test]
    async fn the_first_reply_wins() {
        let requests = requests(9);
        let (mut one, mut two) = (requests.open().expect("room"), requests.open().expect("room"));
        assert_ne!(one.correlation_id(), two.correlation_id());
        assert!(requests.reply(two.correlation_id(), "for two".into()));
        assert!(requests.reply(one.correlation_id(), "for one".into()));
        assert!(!requests.reply(one.correlation_id(), "late".into()));
        assert_eq!(one.reply().await, Ok("for one".into()));
        assert_eq!(two.reply().await, Ok("for two".into()));
        for unknown in ["", "x", "00000000000000000000000000000009"] {
            assert!(!requests.reply(unknown, "nobody".into()), "{unknown}");
        }
    }

    #[tokio::test]
    async fn who_gives_up_makes_room() {
        let requests = requests(2);
        let (one, _two) = (requests.open().expect("room"), requests.open().expect("room"));
        assert_eq!(requests.open().err(), Some(Error::TooMany { max: 2 }));
        let id = one.correlation_id().to_owned();
        drop(one);
        assert!(!requests.reply(&id, "late".into()));
        assert_eq!(requests.waiting(), 1);
        assert!(requests.open().is_ok());
    }

    #[test]
    fn a_reply_that_was_taken_in_is_not_lost() {
        let requests = requests(2);
        let request = requests.open().expect("room");
        assert!(requests.reply(request.correlation_id(), "in time".into()));
        assert_eq!(request.give_up(), Some("in time".into()));
        assert_eq!(requests.open().expect("room").give_up(), None);
        assert_eq!(requests.waiting(), 0);
    }

    #[tokio::test]
    async fn stopping_ends_all() {
        let requests = requests(2);
        let mut one = requests.open().expect("room");
        requests.stop();
        assert_eq!(one.reply().await, Err(Error::Stopping));
        assert_eq!(requests.open().err(), Some(Error::Stopping));
        assert_eq!(requests.waiting(), 0);
    }
}
