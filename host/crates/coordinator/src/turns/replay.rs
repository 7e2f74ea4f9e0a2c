//! The latest chunks of one session, for a subscriber that comes late; and the memory of all of them together.
//!
//! Invariants: positions of a session count from 0 without gaps, and what is kept is a run of them up to the newest; the
//! newest chunk is kept until the host runs out of room; a reader is told how much it missed, never silently skips.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::chunk::Chunk;

/// How much is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) chunks: usize,
    pub(super) bytes: usize,
}

/// What a reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Chunk(Arc<Chunk>),
    /// The oldest chunk kept has this position, which is later than the one asked for.
    Gap(u64),
    /// Nothing yet.
    Wait,
    /// Nothing any more.
    End,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Replay {
    kept: Mutex<Kept>,
    /// Woken when there is something new; for the one reader.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    chunks: VecDeque<Arc<Chunk>>,
    first: u64,
    bytes: usize,
    is_closed: bool,
    is_read: bool,
}

impl Kept {
    fn drop_oldest(&mut self) -> usize {
        let Some(chunk) = self.chunks.pop_front() else { return 0 };
        self.first += 1;
        self.bytes -= chunk.cost();
        chunk.cost()
    }
}

impl Replay {
    /// Returns the chunk at a position.
    pub(super) fn at(&self, position: u64) -> Next {
        let kept = self.kept.lock();
        if position < kept.first {
            return Next::Gap(kept.first);
        }
        let at = usize::try_from(position - kept.first).unwrap_or(usize::MAX);
        match kept.chunks.get(at) {
            Some(chunk) => Next::Chunk(chunk.clone()),
            None if kept.is_closed => Next::End,
            None => Next::Wait,
        }
    }

    /// Lets the only reader in; false if there is one.
    pub(super) fn enter(&self) -> bool {
        !std::mem::replace(&mut self.kept.lock().is_read, true)
    }

    /// Lets the reader out.
    pub(super) fn leave(&self) {
        self.kept.lock().is_read = false;
    }

    /// Lets the reader have what is kept, and then end.
    pub(super) fn close(&self) {
        self.kept.lock().is_closed = true;
        self.changed.notify_one();
    }

    fn push(&self, chunk: Arc<Chunk>, max: Size) -> (u64, Size) {
        let mut kept = self.kept.lock();
        kept.bytes += chunk.cost();
        kept.chunks.push_back(chunk);
        let position = kept.first + kept.chunks.len() as u64 - 1;
        let mut dropped = Size::default();
        while kept.chunks.len() > 1 && (kept.chunks.len() > max.chunks || kept.bytes > max.bytes) {
            dropped.bytes += kept.drop_oldest();
            dropped.chunks += 1;
        }
        self.changed.notify_one();
        (position, dropped)
    }

    /// Drops the chunk at a position if it is the oldest; returns its bytes, `None` if it was dropped before.
    fn forget(&self, position: u64) -> Option<usize> {
        let mut kept = self.kept.lock();
        (kept.first == position && !kept.chunks.is_empty()).then(|| kept.drop_oldest())
    }

    fn first(&self) -> u64 {
        self.kept.lock().first
    }

    fn size(&self) -> Size {
        let kept = self.kept.lock();
        Size { chunks: kept.chunks.len(), bytes: kept.bytes }
    }
}

/// What all sessions keep together: beyond `bytes_max` the oldest chunk of all is dropped first.
#[derive(Debug)]
pub(super) struct Shelf {
    each_max: Size,
    bytes_max: usize,
    pub(super) size: Size,
    replays: HashMap<Arc<str>, Arc<Replay>>,
    /// Every chunk kept, oldest first, and some that were dropped.
    order: VecDeque<(Arc<str>, u64)>,
}

impl Shelf {
    pub(super) fn new(each_max: Size, bytes_max: usize) -> Self {
        Self { each_max, bytes_max, size: Size::default(), replays: HashMap::new(), order: VecDeque::new() }
    }

    /// Returns what a session keeps, made if it is new.
    pub(super) fn of(&mut self, session: &Arc<str>) -> &Arc<Replay> {
        self.replays.entry(session.clone()).or_default()
    }

    /// Keeps a chunk.
    pub(super) fn push(&mut self, session: &Arc<str>, chunk: Arc<Chunk>) {
        self.size.chunks += 1;
        self.size.bytes += chunk.cost();
        let max = self.each_max;
        let (position, dropped) = self.of(session).push(chunk, max);
        self.size.chunks -= dropped.chunks;
        self.size.bytes -= dropped.bytes;
        self.order.push_back((session.clone(), position));
        while self.size.bytes > self.bytes_max
            && let Some((session, position)) = self.order.pop_front()
        {
            if let Some(bytes) = self.replays.get(&session).and_then(|replay| replay.forget(position)) {
                self.size.chunks -= 1;
                self.size.bytes -= bytes;
            }
        }
        // Half of it or more is about chunks that are gone: as many steps as pushes made them.
        if self.order.len() > 2 * self.size.chunks + 1024 {
            let replays = &self.replays;
            self.order.retain(|(session, position)| {
                replays.get(session).is_some_and(|replay| replay.first() <= *position)
            });
        }
    }

    /// Forgets a session; its reader gets what is kept.
    pub(super) fn remove(&mut self, session: &str) {
        let Some(replay) = self.replays.remove(session) else { return };
        let size = replay.size();
        self.size.chunks -= size.chunks;
        self.size.bytes -= size.bytes;
        replay.close();
    }

    /// Returns how much is remembered of what came when.
    #[cfg(test)]
    pub(super) fn order_len(&self) -> usize {
        self.order.len()
    }

    /// Lets all readers end; what is kept stays.
    pub(super) fn close(&self) {
        self.replays.values().for_each(|replay| replay.close());
    }
}
