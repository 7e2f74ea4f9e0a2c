//! One poll that waits, given to all readers of its client.
//!
//! Invariants: exactly one reader answers it, the one that takes the sender out; an answer that nobody takes any more
//! goes back to its reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Delivery, Error};

pub(super) type Answer = Result<Vec<Delivery>, Error>;

/// See the module.
pub(super) struct Waiter {
    pub(super) client: Arc<str>,
    /// Most deliveries, at least 1.
    pub(super) max: usize,
    /// Connection it came over, 0 for none.
    pub(super) via: u64,
    /// Whether it waits for what is not there yet.
    pub(super) is_patient: bool,
    /// Readers that did not say yet that they have nothing.
    looking: AtomicUsize,
    sender: Mutex<Option<oneshot::Sender<Answer>>>,
}

impl Waiter {
    pub(super) fn new(
        client: Arc<str>,
        max: usize,
        via: u64,
        is_patient: bool,
        readers: usize,
    ) -> (Arc<Self>, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        let sender = Mutex::new(Some(sender));
        let looking = AtomicUsize::new(readers);
        (Arc::new(Self { client, max, via, is_patient, looking, sender }), receiver)
    }

    /// Tells whether it still waits for an answer.
    pub(super) fn is_open(&self) -> bool {
        self.sender.lock().as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Takes the right to answer it; `None` if somebody else did or nobody waits any more.
    pub(super) fn take(&self) -> Option<oneshot::Sender<Answer>> {
        self.sender.lock().take().filter(|sender| !sender.is_closed())
    }

    /// One reader looked and has nothing; the last one of an impatient poll ends it.
    pub(super) fn nothing(&self) {
        if self.looking.fetch_sub(1, Ordering::AcqRel) == 1 && !self.is_patient {
            self.answer(Ok(Vec::new()));
        }
    }

    /// Ends it, unless that happened already.
    pub(super) fn answer(&self, answer: Answer) {
        if let Some(sender) = self.take() {
            // Nobody waits any more, and there is nothing to lose in the answer.
            let _ = sender.send(answer);
        }
    }
}
