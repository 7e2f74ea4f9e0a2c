//! What waits for a shadow: bounded in number and bytes, and never waited for.
//!
//! Invariant: putting takes no lock and wakes no thread, since it happens while a decision is made: a thread that is
//! woken costs more than a decision. The thread of the shadow looks for itself instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, SyncSender};

/// The sending end, with the count of what was taken out but is not done yet.
pub(super) struct Queue<T> {
    sender: SyncSender<(Arc<T>, usize)>,
    len_max: usize,
    bytes_max: usize,
    waiting: AtomicUsize,
    bytes: AtomicUsize,
}

/// The other end.
pub(super) type Receiver<T> = mpsc::Receiver<(Arc<T>, usize)>;

impl<T> Queue<T> {
    pub(super) fn new(len_max: usize, bytes_max: usize) -> (Self, Receiver<T>) {
        let (sender, receiver) = mpsc::sync_channel(len_max);
        let none = || AtomicUsize::new(0);
        (Self { sender, len_max, bytes_max, waiting: none(), bytes: none() }, receiver)
    }

    /// Says whether the next one would be dropped.
    pub(super) fn is_full(&self) -> bool {
        self.waiting() >= self.len_max || self.bytes.load(Ordering::Relaxed) >= self.bytes_max
    }

    /// Puts one in; false if it was dropped instead.
    pub(super) fn put(&self, item: Arc<T>, bytes: usize) -> bool {
        if self.is_full() {
            return false;
        }
        // Counted before it can be taken out.
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_in = self.sender.try_send((item, bytes)).is_ok();
        if !is_in {
            self.done(bytes);
        }
        is_in
    }

    /// Notes that one was dealt with, whatever came of it.
    pub(super) fn done(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns how many were put in and are not done.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_in_number_and_bytes_until_one_is_done() {
        let check = |bytes: usize, fits: usize| {
            let (queue, inbox) = Queue::new(3, 100);
            let put = |queue: &Queue<usize>| queue.put(Arc::new(0), bytes);
            for at in 0..fits {
                assert!(put(&queue), "{bytes} bytes, number {at}");
            }
            assert!(queue.is_full() && !put(&queue), "{bytes} bytes");
            assert_eq!(queue.waiting(), fits);
            let (_, taken) = inbox.try_recv().expect("one waits");
            assert!(!put(&queue), "one that was taken out counts until it is done");
            queue.done(taken);
            assert!(put(&queue), "{bytes} bytes, one is done");
        };
        check(1, 3);
        check(50, 2);
        check(1000, 1);
    }
}
