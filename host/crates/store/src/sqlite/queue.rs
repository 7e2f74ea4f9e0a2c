//! A bounded queue from many tasks to a few threads.
//!
//! Room is counted in a unit of the queue's own and held until the item is dropped, so it bounds what waits and
//! what is being worked on together. Tasks wait for room in order.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The queue takes no more items.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// An item with the room it takes.
#[derive(Debug)]
pub(super) struct Queued<T> {
    pub(super) item: T,
    pub(super) cost: u32,
    _room: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(super) struct Queue<T> {
    room: Arc<Semaphore>,
    state: Mutex<State<T>>,
    filled: Condvar,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<Queued<T>>,
    closed: bool,
}

impl<T> Queue<T> {
    pub(super) fn new(room: u32) -> Self {
        let state = Mutex::new(State { items: VecDeque::new(), closed: false });
        Self { room: Arc::new(Semaphore::new(room as usize)), state, filled: Condvar::new() }
    }

    /// Waits for room of `cost`, at most all there is, and adds the item.
    pub(super) async fn push(&self, item: T, cost: u32) -> Result<(), Closed> {
        let room = Arc::clone(&self.room).acquire_many_owned(cost).await.map_err(|_| Closed)?;
        let mut state = self.state.lock();
        if state.closed {
            return Err(Closed);
        }
        state.items.push_back(Queued { item, cost, _room: room });
        self.filled.notify_one();
        Ok(())
    }

    /// Blocks for the next item; `None` once the queue is closed and empty.
    pub(super) fn pop(&self) -> Option<Queued<T>> {
        let mut state = self.state.lock();
        loop {
            if let Some(queued) = state.items.pop_front() {
                return Some(queued);
            }
            if state.closed {
                return None;
            }
            self.filled.wait(&mut state);
        }
    }

    /// Takes what waits, at most `count` items, and no more once `cost` is reached. Never blocks.
    pub(super) fn drain(&self, count: usize, cost: u64) -> Vec<Queued<T>> {
        let mut state = self.state.lock();
        let mut drained = Vec::new();
        let mut sum = 0;
        while drained.len() < count && sum < cost {
            let Some(queued) = state.items.pop_front() else { break };
            sum += u64::from(queued.cost);
            drained.push(queued);
        }
        drained
    }

    /// Refuses new items; those inside are still handed out.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.room.close();
        self.filled.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}

/// Closes a queue when its thread ends, even by a panic, and drops what is left inside: nobody waits for ever.
pub(super) struct CloseAtExit<T>(pub(super) Arc<Queue<T>>);

impl<T> Drop for CloseAtExit<T> {
    fn drop(&mut self) {
        self.0.close();
        drop(self.0.drain(usize::MAX, u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_full_queue_lets_callers_wait_in_order_until_an_item_is_done() {
        let queue = Queue::new(10);
        let mut context = Context::from_waker(Waker::noop());
        let (mut a, mut b, mut c) =
            (Box::pin(queue.push('a', 8)), Box::pin(queue.push('b', 5)), Box::pin(queue.push('c', 1)));
        assert_eq!(a.as_mut().poll(&mut context), Poll::Ready(Ok(())));
        assert_eq!(b.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(c.as_mut().poll(&mut context), Poll::Pending, "a small one must not overtake");
        let taken = queue.pop().expect("a is inside");
        assert_eq!(b.as_mut().poll(&mut context), Poll::Pending, "taken is not done");
        drop(taken);
        assert_eq!(b.as_mut().poll(&mut context), Poll::Ready(Ok(())));
        assert_eq!(c.as_mut().poll(&mut context), Poll::Ready(Ok(())));
        let drained: Vec<_> = queue.drain(9, 5).into_iter().map(|queued| queued.item).collect();
        assert_eq!(drained, ['b'], "its cost reaches the bound");
    }

    #[test]
    fn a_closed_queue_hands_out_what_it_has_and_refuses_the_rest() {
        let queue = Queue::new(2);
        let mut context = Context::from_waker(Waker::noop());
        let mut inside = Box::pin(queue.push('a', 2));
        assert!(inside.as_mut().poll(&mut context).is_ready());
        let mut waiting = Box::pin(queue.push('b', 2));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        queue.close();
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(Err(Closed)));
        assert_eq!(queue.pop().map(|queued| queued.item), Some('a'));
        assert!(queue.pop().is_none());
    }
}
