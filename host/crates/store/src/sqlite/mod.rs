//! The embedded backend of both traits: one SQLite file, one process, no set-up.
//!
//! - **One writer.** A thread of its own takes whatever waits in a bounded queue, does it in one transaction and
//!   answers all of it after one commit: a sync of the disk is shared by everyone who waited for it.
//! - **A few readers.** They see every commit that was answered, and go on when writing cannot.
//! - **Full queues push back.** A caller waits for room, in order; memory stays bounded.
//! - **After a commit only** do watchers, waiters and the catalogue learn of a change.
//!
//! Space of trimmed records and deleted topics is given back by the writer in small steps between batches.

mod apply;
mod catalogue;
mod fault;
mod open;
mod queue;
mod reader;
mod room;
mod schema;
mod sweep;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use fulcrum_core::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use self::apply::{Op, Outcome};
use self::catalogue::Catalogue;
use self::fault::File;
use self::queue::Queue;
use self::reader::Job;
use self::writer::Request;
use crate::cluster::{check_key, check_prefix, check_swap};
use crate::log::{check_records, check_topic};
use crate::watch::{Feed, feed};
use crate::{
    Answer, ClusterStore, Entry, Error, EventLog, Expected, FetchLimit, Fetched, Partition, Position, Result,
    Revision, Topic, Update, Versioned, Watch,
};

/// The one format of the file that this host reads and writes.
pub const FORMAT_VERSION: u32 = schema::FORMAT_VERSION;

/// Bytes of requests that may wait for the writer or be in its hands.
const WRITE_QUEUE_BYTES: u32 = 16 << 20;
/// What a request counts at least, so that 1,024 small ones fill the queue.
const WRITE_BYTES_MIN: u32 = WRITE_QUEUE_BYTES / 1024;
/// Reads that may wait for a reader or be in its hands.
const READ_QUEUE: u32 = 1024;

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Threads that read, each with a connection; 0 means 1.
    pub readers: usize,
    /// Largest size of the file in bytes, beyond which writes answer [`Error::DiskFull`]; `None` leaves it to the
    /// disk. Events get seven eighths of it, so that records can still be kept and topics trimmed and deleted. The
    /// write-ahead log beside the file comes on top, usually a few MiB.
    pub file_bytes_max: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { readers: 2, file_bytes_max: None }
    }
}

/// Both stores in one SQLite file. Share it as an `Arc`.
///
/// [`close`](Self::close) it before the process ends; dropping it does the same but blocks the thread.
pub struct SqliteStore {
    path: PathBuf,
    writes: Arc<Queue<Request>>,
    reads: Arc<Queue<Job>>,
    catalogue: Arc<Catalogue>,
    feeds: Arc<Mutex<Vec<Feed>>>,
    done: watch::Receiver<()>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl SqliteStore {
    /// Opens the file at `path`, creating it and its directory if need be, and starts the threads.
    ///
    /// Blocks for some milliseconds, whatever the size. Beside the file are `path` + `.lock`, held by this process
    /// until the store is closed, and SQLite's `-wal` and `-shm`.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process, or another store of this one, has it open; [`Error::Foreign`],
    /// [`Error::Format`] or [`Error::Corrupt`] for a file that is not one of ours, of another format, or damaged;
    /// [`Error::DiskFull`] or [`Error::Open`] for whatever the system has against it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let file = File::new(&path);
        let opened = open::open(&file, options)?;
        let catalogue = Arc::new(opened.catalogue);
        let feeds = Arc::new(Mutex::new(Vec::new()));
        let writes = Arc::new(Queue::new(WRITE_QUEUE_BYTES));
        let reads = Arc::new(Queue::new(READ_QUEUE));
        let failed = |error: std::io::Error| Error::Open { path: path.clone(), cause: Arc::new(error) };
        let readers = reader::start(opened.readers, &reads).map_err(failed)?;
        let (finished, done) = watch::channel(());
        let shared = writer::Shared {
            file,
            queue: Arc::clone(&writes),
            reads: Arc::clone(&reads),
            catalogue: Arc::clone(&catalogue),
            feeds: Arc::clone(&feeds),
        };
        let writer =
            writer::start(opened.writer, opened.room, opened.garbage, shared, readers, opened.lock, finished);
        let writer = Mutex::new(Some(writer.map_err(failed)?));
        Ok(Self { path, writes, reads, catalogue, feeds, done, writer })
    }

    /// Returns the file it is in.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Does what was accepted so far, refuses the rest with [`Error::Closed`], ends every watch and wait, and
    /// returns once the file is closed and its lock is free. May be called again.
    pub async fn close(&self) {
        self.shut();
        let mut done = self.done.clone();
        // The other end never sends: it is dropped as the writer's last act.
        let _ = done.changed().await;
        self.join();
    }

    fn shut(&self) {
        self.writes.close();
    }

    fn join(&self) {
        let handle = self.writer.lock().take();
        if handle.is_some_and(|handle| handle.join().is_err()) {
            tracing::error!(store.path = %self.path.display(), "store writer panicked");
        }
    }

    async fn write(&self, operation: &'static str, bytes: usize, op: Op) -> Result<Outcome> {
        let (answer, answered) = oneshot::channel();
        let cost = u32::try_from(bytes).unwrap_or(WRITE_QUEUE_BYTES).max(WRITE_BYTES_MIN);
        self.writes.push(Request { op, answer }, cost).await.map_err(|_| Error::Closed)?;
        answered.await.unwrap_or(Err(Error::Ambiguous { operation, cause: None }))
    }

    async fn write_topic(&self, operation: &'static str, op: Op) -> Result<Topic> {
        match self.write(operation, 0, op).await? {
            Outcome::Topic(topic) => Ok(topic),
            other => unreachable!("{operation} was answered with {other:?}"),
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            // Nobody waits any more: the read has no effect, so there is nobody to tell.
            let _ = answer.send(job(connection));
        });
        self.reads.push(job, 1).await.map_err(|_| Error::Closed)?;
        let result = answered.await.map_err(|_| Error::Closed)?;
        result.map_err(|error| File::new(&self.path).read_error(operation, error))
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.shut();
        self.join();
    }
}

impl ClusterStore for SqliteStore {
    fn get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Versioned>> {
        Box::pin(async move {
            check_key(key)?;
            let key = key.to_owned();
            self.read("get a key", move |connection| reader::get(connection, &key)).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<Entry>> {
        Box::pin(async move {
            check_prefix(prefix)?;
            let prefix = prefix.to_owned();
            self.read("list keys", move |connection| reader::list(connection, &prefix)).await
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        expected: Expected,
        update: Update,
    ) -> Answer<'a, Revision> {
        Box::pin(async move {
            check_swap(key, expected, &update)?;
            let bytes = match &update {
                Update::Put(value) => value.len(),
                Update::Delete => 0,
            };
            let op = Op::Swap { key: key.to_owned(), expected, update };
            match self.write("the change of a key", key.len() + bytes, op).await? {
                Outcome::Revision(revision) => Ok(revision),
                other => unreachable!("a swap was answered with {other:?}"),
            }
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str) -> Answer<'a, Watch> {
        Box::pin(async move {
            check_prefix(prefix)?;
            let (feed, watch) = feed(prefix);
            let mut feeds = self.feeds.lock();
            // Under the lock, as the writer sets it before it ends the watches.
            if self.writes.is_closed() {
                return Err(Error::Closed);
            }
            feeds.retain(Feed::is_watched);
            feeds.push(feed);
            Ok(watch)
        })
    }
}

impl EventLog for SqliteStore {
    fn create_topic<'a>(&'a self, topic: &'a str, partition_count: u32) -> Answer<'a, Topic> {
        Box::pin(async move {
            check_topic(topic, partition_count)?;
            let op = Op::CreateTopic { topic: topic.to_owned(), partition_count };
            self.write_topic("the creation of a topic", op).await
        })
    }

    fn topic<'a>(&'a self, topic: &'a str) -> Answer<'a, Topic> {
        Box::pin(async move { self.catalogue.topic(topic) })
    }

    fn topics(&self) -> Answer<'_, Vec<Topic>> {
        Box::pin(async move { self.catalogue.topics() })
    }

    fn grow_topic<'a>(&'a self, topic: &'a str, partition_count: u32) -> Answer<'a, Topic> {
        Box::pin(async move {
            check_topic(topic, partition_count)?;
            let op = Op::GrowTopic { topic: topic.to_owned(), partition_count };
            self.write_topic("the growth of a topic", op).await
        })
    }

    fn delete_topic<'a>(&'a self, topic: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let op = Op::DeleteTopic { topic: topic.to_owned() };
            self.write("the deletion of a topic", 0, op).await.map(|_| ())
        })
    }

    fn append<'a>(
        &'a self,
        topic: &'a str,
        partition: u32,
        at: Timestamp,
        records: Vec<Bytes>,
    ) -> Answer<'a, Vec<Position>> {
        Box::pin(async move {
            let bytes = check_records(&records)?;
            let op = Op::Append { topic: topic.to_owned(), partition, at, records };
            match self.write("an append", bytes, op).await? {
                Outcome::Positions(positions) => Ok(positions.map(Position).collect()),
                other => unreachable!("an append was answered with {other:?}"),
            }
        })
    }

    fn fetch<'a>(
        &'a self,
        topic: &'a str,
        partition: u32,
        from: Position,
        limit: FetchLimit,
    ) -> Answer<'a, Fetched> {
        Box::pin(async move {
            let place = self.catalogue.place(topic, partition)?;
            let fetch = move |connection: &_| reader::fetch(connection, place, from, limit);
            self.read("fetch records", fetch).await?.ok_or_else(|| unknown(topic))
        })
    }

    fn partition<'a>(&'a self, topic: &'a str, partition: u32) -> Answer<'a, Partition> {
        Box::pin(async move {
            let place = self.catalogue.place(topic, partition)?;
            let describe = move |connection: &_| reader::partition(connection, place);
            self.read("describe a partition", describe).await?.ok_or_else(|| unknown(topic))
        })
    }

    fn partitions<'a>(&'a self, topic: &'a str) -> Answer<'a, Vec<Partition>> {
        Box::pin(async move {
            let id = self.catalogue.topic(topic)?.incarnation.cast_signed();
            let describe = move |connection: &_| reader::partitions(connection, id);
            let partitions = self.read("describe the partitions of a topic", describe).await?;
            if partitions.is_empty() { Err(unknown(topic)) } else { Ok(partitions) }
        })
    }

    fn position_at<'a>(&'a self, topic: &'a str, partition: u32, at: Timestamp) -> Answer<'a, Position> {
        Box::pin(async move {
            let place = self.catalogue.place(topic, partition)?;
            let search = move |connection: &_| reader::position_at(connection, place, at);
            self.read("find a position by time", search).await?.ok_or_else(|| unknown(topic))
        })
    }

    fn position_by_size<'a>(&'a self, topic: &'a str, partition: u32, bytes: u64) -> Answer<'a, Position> {
        Box::pin(async move {
            let place = self.catalogue.place(topic, partition)?;
            let search = move |connection: &_| reader::position_by_size(connection, place, bytes);
            self.read("find a position by size", search).await?.ok_or_else(|| unknown(topic))
        })
    }

    fn wait<'a>(&'a self, topic: &'a str, partition: u32, from: Position) -> Answer<'a, Position> {
        Box::pin(async move {
            let mut end = self.catalogue.end(topic, partition)?;
            match end.wait_for(|end| from < *end).await {
                Ok(end) => Ok(*end),
                // The catalogue dropped the partition: it knows why.
                Err(_) => Err(self.catalogue.topic(topic).err().unwrap_or_else(|| unknown(topic))),
            }
        })
    }

    fn trim<'a>(&'a self, topic: &'a str, partition: u32, before: Position) -> Answer<'a, Position> {
        Box::pin(async move {
            let op = Op::Trim { topic: topic.to_owned(), partition, before };
            match self.write("a trim", 0, op).await? {
                Outcome::First(first) => Ok(first),
                other => unreachable!("a trim was answered with {other:?}"),
            }
        })
    }
}

fn unknown(topic: &str) -> Error {
    Error::UnknownTopic { topic: topic.to_owned() }
}
