//! The way of changes from a backend to those who watch.
//!
//! A watcher is never waited for: one that does not keep up loses its queue and is told so once. That bounds the
//! memory it can cost and keeps a slow reader from slowing the writer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::{Revision, Versioned};

/// Most changes that wait for one watcher.
const CHANGES_MAX: usize = 4096;
/// Most bytes of values that wait for one watcher.
const BYTES_MAX: usize = 8 << 20;

/// What a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A key was written.
    Put {
        /// The key.
        key: String,
        /// Its new value and revision.
        versioned: Versioned,
    },
    /// A key was deleted.
    Deleted {
        /// The key.
        key: String,
        /// Revision of the deletion.
        revision: Revision,
    },
    /// Changes before this moment were dropped: list the prefix again.
    Lagged,
}

/// Creates both ends of a watch; for backends.
#[must_use]
pub fn feed(prefix: &str) -> (Feed, Watch) {
    let shared = Arc::new(Mutex::new(Shared::default()));
    (Feed { prefix: prefix.to_owned(), shared: Arc::clone(&shared) }, Watch { shared })
}

/// The backend's end of a watch. Dropping it ends the watch.
#[derive(Debug)]
pub struct Feed {
    prefix: String,
    shared: Arc<Mutex<Shared>>,
}

impl Feed {
    /// Passes a change on if its key starts with the prefix. Never waits.
    pub fn push(&self, change: &Change) {
        let bytes = match change {
            Change::Put { key, .. } | Change::Deleted { key, .. } if !key.starts_with(&self.prefix) => return,
            Change::Put { versioned, .. } => versioned.value.len(),
            Change::Deleted { .. } => 0,
            Change::Lagged => return self.shared.lock().lag(),
        };
        let mut shared = self.shared.lock();
        if shared.lagged {
            return;
        }
        if shared.queue.len() == CHANGES_MAX || BYTES_MAX < shared.bytes + bytes {
            return shared.lag();
        }
        shared.bytes += bytes;
        shared.queue.push_back(change.clone());
        shared.wake();
    }

    /// Tells whether anybody still watches.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        1 < Arc::strong_count(&self.shared)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut shared = self.shared.lock();
        shared.ended = true;
        shared.wake();
    }
}

/// A watcher's end of a watch.
///
/// Changes come in the order of their revisions, each once, or [`Change::Lagged`] says that some were dropped.
/// After that, everything that changes later comes again. A backend over a cluster may leave out a value that a
/// newer one of the same key has already overtaken, and may stall: a watch hastens, it decides nothing.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Mutex<Shared>>,
}

impl Watch {
    /// Waits for the next change; `None` when the store was closed. Nothing is lost if this is dropped early.
    pub async fn next(&mut self) -> Option<Change> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next change, with the meaning of [`next`](Self::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Change>> {
        let mut shared = self.shared.lock();
        if std::mem::take(&mut shared.lagged) {
            return Poll::Ready(Some(Change::Lagged));
        }
        if let Some(change) = shared.queue.pop_front() {
            if let Change::Put { versioned, .. } = &change {
                shared.bytes -= versioned.value.len();
            }
            return Poll::Ready(Some(change));
        }
        if shared.ended {
            return Poll::Ready(None);
        }
        shared.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[derive(Debug, Default)]
struct Shared {
    queue: VecDeque<Change>,
    bytes: usize,
    lagged: bool,
    ended: bool,
    waker: Option<Waker>,
}

impl Shared {
    fn lag(&mut self) {
        self.queue.clear();
        self.bytes = 0;
        self.lagged = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn put(key: &str, revision: u64, bytes: usize) -> Change {
        let value = Bytes::from(vec![0; bytes]);
        Change::Put { key: key.to_owned(), versioned: Versioned { revision: Revision(revision), value } }
    }

    fn drain(watch: &mut Watch) -> (Vec<Change>, bool) {
        let mut seen = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match watch.poll_next(&mut context) {
                Poll::Ready(Some(change)) => seen.push(change),
                Poll::Ready(None) => return (seen, true),
                Poll::Pending => return (seen, false),
            }
        }
    }

    #[test]
    fn a_slow_watcher_is_told_once_and_goes_on_afterwards() {
        for (count, bytes) in [(CHANGES_MAX + 5, 0), (20, 1 << 20)] {
            let (feed, mut watch) = feed("a/");
            for revision in 0..count {
                feed.push(&put("a/k", revision as u64, bytes));
            }
            assert_eq!(drain(&mut watch), (vec![Change::Lagged], false), "{count} changes of {bytes} bytes");
            feed.push(&put("b/k", 8, 1));
            feed.push(&put("a/k", 9, 1));
            assert_eq!(drain(&mut watch), (vec![put("a/k", 9, 1)], false));
        }
    }

    #[test]
    fn a_watch_ends_after_its_last_change_and_a_feed_sees_its_watcher_leave() {
        let (first, mut watch) = feed("");
        first.push(&put("k", 1, 1));
        assert!(first.is_watched());
        drop(first);
        assert_eq!(drain(&mut watch), (vec![put("k", 1, 1)], true));
        let (second, watch) = feed("");
        drop(watch);
        assert!(!second.is_watched());
    }
}
