//! The chunks of one turn on their way to the client that asked: bounded, in order.
//!
//! Invariants: nothing comes after the done chunk; the done chunk always fits, so a turn can end at any time; a pipe that
//! holds nothing takes one chunk of any size.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::chunk::Chunk;

/// See the module. Has one reader.
#[derive(Debug)]
pub(super) struct Pipe {
    chunks_max: usize,
    bytes_max: usize,
    queue: Mutex<Queue>,
    arrived: Notify,
    /// Woken when a chunk was read and when the turn is over.
    pub(super) moved: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Arc<Chunk>>,
    bytes: usize,
    is_finished: bool,
    is_read: bool,
}

impl Pipe {
    pub(super) fn new(chunks_max: usize, bytes_max: usize) -> Self {
        Self { chunks_max, bytes_max, queue: Mutex::default(), arrived: Notify::new(), moved: Notify::new() }
    }

    /// Puts a chunk in; says whether there was room.
    pub(super) fn push(&self, chunk: &Arc<Chunk>) -> bool {
        let mut queue = self.queue.lock();
        let fits = self.has_room(&queue, chunk);
        if fits {
            queue.bytes += chunk.cost();
            queue.chunks.push_back(chunk.clone());
            self.arrived.notify_one();
        }
        fits
    }

    /// Puts the done chunk in.
    pub(super) fn finish(&self, chunk: Arc<Chunk>) {
        let mut queue = self.queue.lock();
        queue.bytes += chunk.cost();
        queue.chunks.push_back(chunk);
        queue.is_finished = true;
        self.arrived.notify_one();
        self.moved.notify_waiters();
    }

    /// Says whether putting this chunk in again is worth a try: there is room, or the turn is over.
    pub(super) fn is_worth_a_try(&self, chunk: &Chunk) -> bool {
        let queue = self.queue.lock();
        queue.is_finished || self.has_room(&queue, chunk)
    }

    fn has_room(&self, queue: &Queue, chunk: &Chunk) -> bool {
        !queue.is_finished
            && (queue.chunks.is_empty()
                || queue.chunks.len() < self.chunks_max && queue.bytes + chunk.cost() <= self.bytes_max)
    }

    /// Waits for the next chunk; `None` after the done chunk.
    pub(super) async fn next(&self) -> Option<Arc<Chunk>> {
        loop {
            {
                let mut queue = self.queue.lock();
                if let Some(chunk) = queue.chunks.pop_front() {
                    queue.bytes -= chunk.cost();
                    queue.is_read |= chunk.done;
                    self.moved.notify_waiters();
                    return Some(chunk);
                }
                if queue.is_read {
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }
}
