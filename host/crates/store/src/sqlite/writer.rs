//! The one thread that writes: takes what waits, commits it at once, answers, and tidies up in between.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tokio::sync::{oneshot, watch};

use super::apply::{Batch, Effect, Op, Outcome, Stop};
use super::catalogue::Catalogue;
use super::fault::{self, File};
use super::queue::{CloseAtExit, Queue, Queued};
use super::reader::Job;
use super::room::{Purpose, Room};
use super::sweep;
use crate::watch::Feed;
use crate::{Error, Result};

/// Most requests of one commit.
const BATCH_REQUESTS: usize = 1024;
/// Bytes after which no more requests join a commit.
const BATCH_BYTES: u64 = 4 << 20;
/// Pages of write-ahead log not yet in the file after which they are copied there, as many as SQLite takes.
const CHECKPOINT_PAGES: i64 = 1000;
/// Pages of write-ahead log after which readers are waited for, so that it can begin anew: 64 MiB.
const RESTART_PAGES: i64 = 16_384;
/// Batches after which a writer that never rests sweeps once.
const SWEEP_BATCHES: u32 = 64;

/// One write with the way back to its caller.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) op: Op,
    pub(super) answer: oneshot::Sender<Result<Outcome>>,
}

/// What the writer shares with the store's handle.
pub(super) struct Shared {
    pub(super) file: File,
    pub(super) queue: Arc<Queue<Request>>,
    pub(super) reads: Arc<Queue<Job>>,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) feeds: Arc<Mutex<Vec<Feed>>>,
}

/// Starts the thread. It ends when the queue is closed and empty; then it stops the readers, closes the file,
/// frees `lock` and last drops `finished`.
pub(super) fn start(
    connection: Connection,
    room: Option<Room>,
    garbage: Vec<i64>,
    shared: Shared,
    readers: Vec<JoinHandle<()>>,
    lock: fs::File,
    finished: watch::Sender<()>,
) -> io::Result<JoinHandle<()>> {
    let writer = Writer {
        connection: Some(connection),
        room,
        shared,
        halted: None,
        has_failed: false,
        garbage: Garbage::from(garbage),
        readers,
        lock: Some(lock),
        finished: Some(finished),
    };
    thread::Builder::new().name("store-writer".to_owned()).spawn(move || writer.run())
}

struct Writer {
    /// There until the thread ends.
    connection: Option<Connection>,
    /// Where the file's size is bounded.
    room: Option<Room>,
    shared: Shared,
    /// Why nothing may be written any more.
    halted: Option<crate::Cause>,
    /// Whether the last transaction failed.
    has_failed: bool,
    garbage: Garbage,
    readers: Vec<JoinHandle<()>>,
    lock: Option<fs::File>,
    finished: Option<watch::Sender<()>>,
}

/// Why a transaction did not happen, or may not have.
enum Lost {
    /// Rolled back for sure.
    Before(rusqlite::Error),
    /// The commit itself failed: it may come to light when the file is opened again.
    Commit(rusqlite::Error),
}

impl From<rusqlite::Error> for Lost {
    fn from(error: rusqlite::Error) -> Self {
        Self::Before(error)
    }
}

impl Writer {
    fn run(mut self) {
        let guard = CloseAtExit(Arc::clone(&self.shared.queue));
        loop {
            let mut batch = Vec::new();
            if !self.garbage.is_workable() {
                match guard.0.pop() {
                    Some(first) => batch.push(first),
                    None => break,
                }
            }
            batch.extend(guard.0.drain(BATCH_REQUESTS - batch.len(), BATCH_BYTES));
            if batch.is_empty() && guard.0.is_closed() {
                // Closed between the two looks, or sweeping: what is left is found at the next start.
                if let Some(last) = guard.0.pop() {
                    self.write(vec![last]);
                    continue;
                }
                break;
            }
            if batch.is_empty() {
                self.sweep();
            } else {
                self.garbage.note(batch.iter().map(|queued| queued.item.op.record_count()).sum());
                self.write(batch);
                if self.garbage.is_due() {
                    self.sweep();
                }
            }
            self.checkpoint();
        }
    }

    fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("the connection is there until the thread ends")
    }

    fn write(&mut self, batch: Vec<Queued<Request>>) {
        if let Some(cause) = &self.halted {
            for queued in batch {
                let path = self.shared.file.path.clone();
                answer(queued, Err(Error::Halted { path, cause: Arc::clone(cause) }));
            }
            return;
        }
        let room = self.room;
        match self.transact(|transaction| apply_all(transaction, room, &batch)) {
            Ok((answers, effects)) => {
                if std::mem::replace(&mut self.has_failed, false) {
                    tracing::info!(store.path = %self.shared.file.path.display(), "store can write again");
                }
                self.publish(effects);
                for (queued, result) in batch.into_iter().zip(answers) {
                    answer(queued, result);
                }
            }
            // A large write must not take a trim down with it that would make room.
            Err(Lost::Before(error) | Lost::Commit(error)) if fault::is_full(&error) && 1 < batch.len() => {
                self.make_room();
                for queued in batch {
                    self.write(vec![queued]);
                }
            }
            Err(lost) => {
                let error = self.fail(lost);
                if matches!(error, Error::DiskFull { .. }) {
                    self.make_room();
                }
                for queued in batch {
                    answer(queued, Err(error.clone()));
                }
            }
        }
    }

    /// Runs `work` in a transaction of its own.
    fn transact<T>(
        &mut self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> std::result::Result<T, Lost> {
        let connection = self.connection();
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let result = work(connection).map_err(Lost::Before).and_then(|worked| {
            let mut commit = connection.prepare_cached("COMMIT")?;
            commit.execute([]).map_err(Lost::Commit)?;
            Ok(worked)
        });
        // SQLite rolls back by itself on some errors, not on others.
        if !connection.is_autocommit()
            && let Err(error) = connection.execute_batch("ROLLBACK")
        {
            return Err(Lost::Commit(error));
        }
        result
    }

    /// Decides what a lost transaction means, and stops writing if nothing can be trusted after it.
    fn fail(&mut self, lost: Lost) -> Error {
        const OPERATION: &str = "write";
        let file = &self.shared.file;
        let (error, is_fatal) = match lost {
            // With no room for the commit's own frame there is nothing in the log that counts.
            Lost::Commit(error) if fault::is_full(&error) => (file.write_error(OPERATION, error), false),
            // After a failed sync the system may have forgotten what it could not write: trying again would only
            // seem to help.
            Lost::Commit(error) => {
                (Error::Ambiguous { operation: OPERATION, cause: Some(fault::cause(error)) }, true)
            }
            Lost::Before(error) => {
                let is_corrupt = fault::is_corrupt(&error);
                (file.write_error(OPERATION, error), is_corrupt)
            }
        };
        // A full disk fails write after write: once is enough, until one goes through again.
        if !std::mem::replace(&mut self.has_failed, true) || is_fatal {
            tracing::error!(
                store.path = %file.path.display(), error = %chain(&error), halted = is_fatal, "store write failed"
            );
        }
        if is_fatal {
            self.halted = Some(Arc::new(error.clone()));
            self.garbage.forget();
            let keep = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
            if let Err(error) = self.connection().set_db_config(keep, true) {
                tracing::warn!(%error, "store log will be copied into the file on close");
            }
        }
        error
    }

    fn publish(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Changed(change) => {
                    for feed in &*self.shared.feeds.lock() {
                        feed.push(&change);
                    }
                }
                Effect::Extended { topic, id, members } => {
                    self.shared.catalogue.extend(&topic, id, &members);
                }
                Effect::Removed { topic, slots } => {
                    self.shared.catalogue.remove(&topic);
                    slots.into_iter().for_each(|slot| self.garbage.add(slot));
                }
                Effect::Moved { slot, end, has_garbage } => {
                    self.shared.catalogue.move_end(slot, end);
                    if has_garbage {
                        self.garbage.add(slot);
                    }
                }
            }
        }
    }

    fn sweep(&mut self) {
        let (slots, room) = (self.garbage.front(), self.room);
        let step = |transaction: &Connection| {
            room.map_or(Ok(()), |room| room.bound(transaction, Purpose::Relief))?;
            sweep::step(transaction, &slots)
        };
        match self.transact(step) {
            Ok(swept) => self.garbage.swept(swept),
            Err(lost) => {
                self.garbage.is_paused = true;
                self.fail(lost);
            }
        }
    }

    /// Copies the write-ahead log into the file if it has grown. A failure costs nothing but space: the log keeps
    /// what it has.
    fn checkpoint(&self) {
        if self.halted.is_some() {
            return;
        }
        let mode = match checkpoint(self.connection(), "NOOP") {
            Ok((pages, _)) if RESTART_PAGES <= pages => "RESTART",
            Ok((pages, copied)) if copied + CHECKPOINT_PAGES <= pages => "PASSIVE",
            Ok(_) => return,
            Err(error) => return tracing::warn!(%error, "store log could not be measured"),
        };
        if let Err(error) = checkpoint(self.connection(), mode) {
            tracing::warn!(%error, mode, "store log could not be copied into the file");
        }
    }

    /// Frees the write-ahead log, so that it need not grow for the next write.
    fn make_room(&self) {
        if let Err(error) = checkpoint(self.connection(), "RESTART") {
            tracing::warn!(%error, "store log could not be freed");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.shared.feeds.lock().clear();
        self.shared.catalogue.close();
        self.shared.reads.close();
        for reader in self.readers.drain(..) {
            if reader.join().is_err() {
                tracing::error!("store reader panicked");
            }
        }
        // The last connection copies the write-ahead log into the file and removes it, unless the file is in doubt.
        drop(self.connection.take());
        drop(self.lock.take());
        drop(self.finished.take());
    }
}

type Applied = (Vec<Result<Outcome>>, Vec<Effect>);

fn apply_all(
    transaction: &Connection,
    room: Option<Room>,
    requests: &[Queued<Request>],
) -> rusqlite::Result<Applied> {
    let mut batch = Batch::new(transaction, room)?;
    let mut answers = Vec::with_capacity(requests.len());
    for queued in requests {
        answers.push(match batch.apply(&queued.item.op) {
            Ok(outcome) => Ok(outcome),
            Err(Stop::Refused(error)) => Err(error),
            Err(Stop::Failed(error)) => return Err(error),
        });
    }
    Ok((answers, batch.finish()?))
}

fn answer(queued: Queued<Request>, result: Result<Outcome>) {
    // Whoever no longer waits has given up its right to know.
    let _ = queued.item.answer.send(result);
}

/// Checkpoints; returns the pages in the write-ahead log, and how many of them are in the file too.
fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<(i64, i64)> {
    let mut statement = connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?;
    statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))
}

fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// Slots to be swept, and when.
struct Garbage {
    slots: VecDeque<i64>,
    known: HashSet<i64>,
    /// After a failure, until the next write.
    is_paused: bool,
    /// Batches since the last step.
    batches: u32,
    /// Records appended since the last step.
    records: u64,
}

impl From<Vec<i64>> for Garbage {
    fn from(slots: Vec<i64>) -> Self {
        let known = slots.iter().copied().collect();
        Self { slots: slots.into(), known, is_paused: false, batches: 0, records: 0 }
    }
}

impl Garbage {
    fn add(&mut self, slot: i64) {
        if self.known.insert(slot) {
            self.slots.push_back(slot);
        }
    }

    fn is_workable(&self) -> bool {
        !self.is_paused && !self.slots.is_empty()
    }

    /// Notes a batch that was written.
    fn note(&mut self, records: u64) {
        self.is_paused = false;
        self.batches += 1;
        self.records += records;
    }

    /// A busy writer sweeps twice as many records as it appends, so that garbage cannot pile up; and now and then
    /// in any case.
    fn is_due(&self) -> bool {
        self.is_workable() && (sweep::STEP_RECORDS / 2 <= self.records || SWEEP_BATCHES <= self.batches)
    }

    /// Returns the slots to look at next.
    fn front(&mut self) -> Vec<i64> {
        (self.batches, self.records) = (0, 0);
        self.slots.iter().take(sweep::STEP_SLOTS).copied().collect()
    }

    /// Drops the slots that are clean now; the one that follows has had its turn and goes to the back.
    fn swept(&mut self, swept: sweep::Swept) {
        for slot in self.slots.drain(..swept.clean) {
            self.known.remove(&slot);
        }
        if swept.has_more
            && let Some(slot) = self.slots.pop_front()
        {
            self.slots.push_back(slot);
        }
    }

    fn forget(&mut self) {
        *self = Self::from(Vec::new());
    }
}
