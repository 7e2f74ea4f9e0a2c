//! Writing what the queue hands out.
//!
//! Invariants: each decision is counted once, as written or as dropped; what is in the buffer belongs to the segment
//! being written, its header included unless that is in the file already.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fulcrum_core::time::{Clock, millis};
use fulcrum_policy::journal::Encoder;

use super::latest::Latest;
use super::queue::Item;
use super::segments::Segments;
use super::{Settings, Tally};

/// Time until a folder that could not be written is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(5);
/// Lines are written when they have so many bytes, and at the end of what the queue handed out.
const BUFFER_BYTES: usize = 1 << 20;

pub(super) struct Writer {
    settings: Settings,
    clock: Arc<dyn Clock>,
    tally: Arc<Tally>,
    latest: Arc<Latest>,
    encoder: Encoder,
    /// None until the folder could be opened.
    segments: Option<Segments>,
    buffer: Vec<u8>,
    /// Decisions in the buffer.
    buffered: u64,
    /// Whether the segment being written has a header.
    is_begun: bool,
    /// Decisions in the segment being written, those in the buffer included.
    in_segment: u64,
    /// Decisions counted, as written or as dropped.
    settled: u64,
    /// When to try again, on the clock's nanoseconds; `None` while all is well.
    retry_at: Option<u64>,
}

impl Writer {
    pub(super) fn new(
        settings: Settings,
        clock: Arc<dyn Clock>,
        tally: Arc<Tally>,
        latest: Arc<Latest>,
    ) -> Self {
        Self {
            encoder: Encoder::new(settings.header.clone()),
            settings,
            clock,
            tally,
            latest,
            segments: None,
            buffer: Vec::new(),
            buffered: 0,
            is_begun: false,
            in_segment: 0,
            settled: 0,
            retry_at: None,
        }
    }

    /// Opens the folder, so that a mistake shows at once.
    pub(super) fn start(&mut self) {
        self.attempt(|_| Ok(()));
    }

    /// Returns how many decisions it counted, as written or as dropped.
    pub(super) fn settled(&self) -> u64 {
        self.settled
    }

    /// Writes decisions; when it returns, the system has them.
    pub(super) fn write(&mut self, items: &[Item]) {
        self.latest.add(items);
        if self.segments.as_ref().is_some_and(Segments::is_lost) {
            let folder = &self.settings.folder;
            tracing::warn!(folder = %folder.display(), "the segment being written was removed: another is begun");
            self.segments = None;
            self.buffer.clear();
            self.next_segment();
        }
        for item in items {
            self.add(item);
        }
        self.flush();
    }

    /// Ends the segment.
    pub(super) fn finish(&mut self) {
        if !self.is_paused() {
            self.attempt(Segments::rotate);
        }
    }

    fn is_paused(&self) -> bool {
        self.retry_at.is_some_and(|at| self.clock.nanos() < at)
    }

    /// Adds a decision to the buffer, in a segment that has room for it.
    fn add(&mut self, item: &Item) {
        let is_open = !self.is_paused() && (self.segments.is_some() || self.attempt(|_| Ok(())));
        if !is_open {
            return self.drop_some(1);
        }
        let Some(start) = self.encode(item) else { return };
        let segment_bytes = self.segments.as_ref().map_or(0, Segments::segment_bytes);
        if self.segment_len() > segment_bytes && self.in_segment > 0 {
            // It opens the next segment instead, which carries anew what it refers to.
            self.buffer.truncate(start);
            self.flush();
            self.rotate();
            if self.is_paused() {
                return self.drop_some(1);
            }
            if self.encode(item).is_none() {
                return;
            }
        }
        if self.segment_len() > self.settings.bytes_max {
            tracing::warn!(
                bytes = self.buffer.len(),
                "a decision is larger than the journal may be: not recorded"
            );
            self.buffer.clear();
            self.is_begun = false;
            return self.drop_some(1);
        }
        self.in_segment += 1;
        self.buffered += 1;
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Appends the lines of a decision to the buffer, after a header where the segment has none; returns where they
    /// begin, or drops it.
    fn encode(&mut self, item: &Item) -> Option<usize> {
        let encoded = self.append(item);
        if let Err(error) = &encoded {
            tracing::error!(%error, "a decision cannot be written as JSON: not recorded");
            self.drop_some(1);
        }
        encoded.ok()
    }

    fn append(&mut self, item: &Item) -> serde_json::Result<usize> {
        if !self.is_begun {
            self.encoder.begin(&mut self.buffer)?;
            self.is_begun = true;
        }
        let start = self.buffer.len();
        match item {
            Item::Scored(scored) => self.encoder.scored(scored, &mut self.buffer)?,
            Item::Claimed(claimed) => self.encoder.claimed(claimed, &mut self.buffer)?,
        }
        Ok(start)
    }

    fn segment_len(&self) -> u64 {
        self.segments.as_ref().map_or(0, Segments::len) + self.buffer.len() as u64
    }

    /// Writes the buffer, unless there is nothing but a header in it.
    fn flush(&mut self) {
        if self.buffered == 0 {
            return;
        }
        let lines = std::mem::take(&mut self.buffer);
        let count = std::mem::take(&mut self.buffered);
        if self.attempt(|segments| segments.append(&lines)) {
            self.tally.written.fetch_add(count, Ordering::Relaxed);
            self.settled += count;
            if self.retry_at.take().is_some() {
                self.tally.go_on();
                let dropped = self.tally.dropped.load(Ordering::Relaxed);
                tracing::info!(dropped, "the decision journal is written again");
            }
        } else {
            self.drop_some(count);
            self.next_segment();
        }
        self.buffer = lines;
        self.buffer.clear();
    }

    fn rotate(&mut self) {
        self.attempt(Segments::rotate);
        self.next_segment();
    }

    fn next_segment(&mut self) {
        self.is_begun = false;
        self.in_segment = 0;
    }

    /// Does something with the folder, which is opened for it if need be; says whether it worked. If not, the journal
    /// pauses.
    fn attempt(&mut self, work: impl FnOnce(&mut Segments) -> io::Result<()>) -> bool {
        let Settings { folder, bytes_max, .. } = &self.settings;
        let result = match &mut self.segments {
            Some(segments) => work(segments),
            none => Segments::open(folder.clone(), *bytes_max).and_then(|opened| work(none.insert(opened))),
        };
        if let Some(segments) = &self.segments {
            self.tally.bytes.store(segments.bytes(), Ordering::Relaxed);
        }
        let Err(error) = result else { return true };
        // What the folder holds by the next time is looked up anew.
        self.segments = None;
        let retry_at = self.clock.nanos().saturating_add(u64::try_from(RETRY.as_nanos()).unwrap_or(u64::MAX));
        self.tally.pause(format!(
            "{} cannot be written: {error}; it is tried again every {} s",
            folder.display(),
            RETRY.as_secs()
        ));
        if self.retry_at.replace(retry_at).is_none() {
            tracing::warn!(
                folder = %folder.display(), %error, retry_ms = millis(RETRY),
                "the decision journal cannot be written: decisions are not recorded until it can"
            );
        }
        false
    }

    fn drop_some(&mut self, count: u64) {
        self.settled += count;
        self.tally.dropped.fetch_add(count, Ordering::Relaxed);
    }
}
