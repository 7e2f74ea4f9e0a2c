//! The decision journal of a running host: a thread that writes what is decided into a folder of bounded size.
//!
//! Whoever decides puts the decision into a bounded queue and goes on; one thread takes all that waits, writes it as
//! lines (`fulcrum_policy::journal` knows how they look) and keeps the folder within its bound. No lock that a decision
//! takes is held while a file is touched. The thread writes what it has gathered after 50 ms, so that is what a kill
//! costs at most; a power failure costs what the system had not written yet, as nothing is synced but finished segments.
//!
//! Invariants: no decision waits or fails because of the journal; what is not written is counted as dropped; the folder
//! never holds more than `bytes_max` bytes of it; a thread that crashed shows as paused, with what is wrong. Only one host
//! writes into a folder: it lies in the data directory, which the store keeps for one.

mod latest;
mod queue;
mod segments;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use fulcrum_core::time::Clock;
use fulcrum_policy::journal::Header;
use fulcrum_policy::tap::{Claimed, Observer, Scored};
use parking_lot::Mutex;

use self::latest::Latest;
pub use self::latest::{Filter, Shown};
use self::queue::{Item, Queue};
pub use self::segments::segments_of;
use self::writer::Writer;

/// Decisions that may wait for the thread, and about how many bytes of them.
const WAITING_MAX: usize = 16_384;
const WAITING_BYTES_MAX: usize = 64 << 20;

/// What a journal is opened with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its folder; made if missing, closed to other users.
    pub folder: PathBuf,
    /// Every how many-th scoring decision is recorded; 1 is every one. Plans always are.
    pub sample_every: u64,
    /// Most bytes of segments in the folder; a sixteenth of it is one segment, if that is no more than a segment may
    /// have.
    pub bytes_max: u64,
    /// First line of each segment.
    pub header: Header,
}

/// What a journal did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Decisions written.
    pub written: u64,
    /// Decisions that were to be written and were not: the queue was full, or the folder could not be written.
    pub dropped: u64,
    /// Bytes of segments in the folder.
    pub bytes: u64,
    /// Whether the folder cannot be written at present, or the thread crashed.
    pub is_paused: bool,
}

#[derive(Default)]
struct Tally {
    written: AtomicU64,
    dropped: AtomicU64,
    bytes: AtomicU64,
    is_paused: AtomicBool,
    /// What is wrong while it is paused.
    problem: Mutex<Option<String>>,
}

impl Tally {
    fn pause(&self, problem: String) {
        *self.problem.lock() = Some(problem);
        self.is_paused.store(true, Ordering::Relaxed);
    }

    fn go_on(&self) {
        self.is_paused.store(false, Ordering::Relaxed);
        *self.problem.lock() = None;
    }
}

/// See the module. Dropping it ends the thread once it has written what waits.
pub struct Journal {
    sample_every: u64,
    tap: Arc<Tap>,
    latest: Arc<Latest>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Where decisions come in.
struct Tap {
    queue: Queue,
    tally: Arc<Tally>,
    sample_every: u64,
    seen: AtomicU64,
}

impl Journal {
    /// Starts the thread. A folder that cannot be used is told in the log and tried again.
    pub fn start(settings: Settings, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Self::start_with(settings, clock, WAITING_MAX, WAITING_BYTES_MAX)
    }

    fn start_with(
        settings: Settings,
        clock: Arc<dyn Clock>,
        waiting_max: usize,
        waiting_bytes_max: usize,
    ) -> io::Result<Self> {
        let tally = Arc::<Tally>::default();
        let sample_every = settings.sample_every.max(1);
        let tap = Arc::new(Tap {
            queue: Queue::new(waiting_max, waiting_bytes_max),
            tally: tally.clone(),
            sample_every,
            seen: AtomicU64::new(0),
        });
        let latest = Arc::<Latest>::default();
        let writer = Writer::new(settings, clock, tally, latest.clone());
        let source = tap.clone();
        let thread =
            std::thread::Builder::new().name("journal".to_owned()).spawn(move || run(&source, writer))?;
        Ok(Self { sample_every, tap, latest, thread: Mutex::new(Some(thread)) })
    }

    /// Returns what sees the decisions, for the policy manager.
    #[must_use]
    pub fn observer(&self) -> Arc<dyn Observer> {
        self.tap.clone()
    }

    /// Returns every how many-th scoring decision is recorded.
    #[must_use]
    pub fn sample_every(&self) -> u64 {
        self.sample_every
    }

    /// Returns what it did since it was opened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let tally = &self.tap.tally;
        Counts {
            written: tally.written.load(Ordering::Relaxed),
            dropped: tally.dropped.load(Ordering::Relaxed),
            bytes: tally.bytes.load(Ordering::Relaxed),
            is_paused: tally.is_paused.load(Ordering::Relaxed),
        }
    }

    /// Returns what keeps it from recording at present, in words, and what becomes of that.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.tap.tally.problem.lock().clone()
    }

    /// Returns the latest decisions that were to be recorded, newest first, at most `limit`.
    #[must_use]
    pub fn latest(&self, filter: &Filter<'_>, limit: usize) -> Vec<Shown> {
        self.latest.list(filter, limit)
    }

    /// Takes no decision any more; returns when all that waited are written. Blocks.
    pub fn stop(&self) {
        self.tap.queue.close();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the journal's thread crashed, its last decisions are not recorded");
        }
    }
}

/// Writes what is decided until the queue is closed.
fn run(tap: &Tap, mut writer: Writer) {
    let mut taken = 0;
    let work = || {
        writer.start();
        while let Some(items) = tap.queue.take() {
            taken += items.len() as u64;
            writer.write(&items);
        }
        writer.finish();
    };
    // After a crash nothing of the writer is used any more but its count.
    if catch_unwind(AssertUnwindSafe(work)).is_ok() {
        return;
    }
    tap.queue.close();
    tap.tally.pause("its thread crashed, see the log: restart the host".to_owned());
    let mut lost = taken.saturating_sub(writer.settled());
    while let Some(items) = tap.queue.take() {
        lost += items.len() as u64;
    }
    tap.tally.dropped.fetch_add(lost, Ordering::Relaxed);
    tracing::error!(
        lost,
        "the journal's thread crashed: decisions are not recorded until the host is restarted"
    );
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.tap.queue.close();
    }
}

impl Tap {
    fn put(&self, item: Item) {
        if !self.queue.put(item) {
            self.tally.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Observer for Tap {
    fn wants_scored(&self) -> bool {
        let number = self.seen.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(self.sample_every) {
            return false;
        }
        // Said here too, so that what nobody takes is not even copied.
        let is_full = self.queue.is_full();
        if is_full {
            self.tally.dropped.fetch_add(1, Ordering::Relaxed);
        }
        !is_full
    }

    fn scored(&self, scored: &Arc<Scored>) {
        self.put(Item::Scored(scored.clone()));
    }

    fn claimed(&self, claimed: &Arc<Claimed>) {
        self.put(Item::Claimed(claimed.clone()));
    }
}
