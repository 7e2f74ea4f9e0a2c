//! What a reader does outside of its own state: reads and writes, each a future that answers what became of it.
//!
//! Invariants: a payload is stored before the record that names it; a job that failed may have done a part, and doing
//! it again does no harm.

use std::sync::Arc;

use bytes::Bytes;
use fulcrum_core::Timestamp;
use fulcrum_core::delivery::Dying;
use fulcrum_store::{ClusterStore, Error, Expected, FetchLimit, Position, Revision, Update};
use futures_util::future::join_all;
use tokio::sync::RwLock;

use super::attributes::{attributes, routing_key, short_key};
use super::reader::{Name, Spec};
use super::records::{self, DeadRecord, Of, ParkedRecord};
use super::{Error as PullsError, Parts};

/// Partition and position of an event.
pub(super) type Place = (u32, u64);

/// Bytes of one read of the log.
const READ_BYTES: usize = 512 << 10;
/// Events of one read of the log.
pub(super) const READ_RECORDS: u32 = 512;

/// Of whom jobs are done.
#[derive(Clone)]
pub(super) struct Work {
    pub(super) parts: Arc<Parts>,
    pub(super) name: Name,
    pub(super) spec: Arc<Spec>,
    /// Read while the record of a parked event is removed, written while that of a dead letter to be given back is
    /// stored: else the payload of the latter could go with the record of the former, which has the same place.
    records: Arc<RwLock<()>>,
}

/// One event of the log as the group sees it.
pub(super) struct Read {
    pub(super) position: u64,
    pub(super) key: Option<String>,
    /// Whether the group's filters let it through.
    pub(super) is_wanted: bool,
    pub(super) payload: Bytes,
}

/// What one read of the log found.
pub(super) struct Page {
    pub(super) events: Vec<Read>,
    pub(super) next: u64,
    pub(super) end: u64,
}

/// A checkpoint to be written.
pub(super) struct Checkpoint {
    pub(super) partition: u32,
    pub(super) known: Option<Revision>,
    pub(super) record: Bytes,
    /// The floor it says.
    pub(super) floor: u64,
}

/// What became of a checkpoint.
pub(super) struct Written {
    pub(super) partition: u32,
    pub(super) floor: u64,
    /// The revision the key is at now.
    pub(super) revision: Option<Revision>,
    pub(super) result: Result<(), Error>,
}

/// What became of the record of a parked event.
pub(super) struct Removed {
    pub(super) place: Place,
    pub(super) known: Option<Revision>,
    pub(super) result: Result<(), Error>,
}

/// An event to be parked.
pub(super) struct Parking {
    pub(super) place: Place,
    pub(super) key: Option<String>,
    pub(super) attempts: u32,
}

impl Work {
    pub(super) fn new(parts: Arc<Parts>, name: Name, spec: Arc<Spec>) -> Self {
        Self { parts, name, spec, records: Arc::default() }
    }

    fn store(&self) -> &dyn ClusterStore {
        &*self.parts.store
    }

    /// Reads new events.
    pub(super) async fn read(&self, partition: u32, from: u64, room: u64) -> Result<Page, Error> {
        let records = u32::try_from(room).unwrap_or(u32::MAX).min(READ_RECORDS);
        let limit = FetchLimit { records, bytes: READ_BYTES };
        let log = &self.parts.log;
        let fetched = log.fetch(&self.name.topic, partition, Position(from), limit).await?;
        let is_plain = self.spec.filters.is_empty() && !self.spec.is_fifo;
        let events = fetched.records.into_iter().map(|stored| {
            let (key, is_wanted) = if is_plain {
                (None, true)
            } else {
                let attributes = attributes(&stored.payload);
                (routing_key(&attributes).map(short_key), self.spec.filters.matches(&attributes))
            };
            Read { position: stored.position.0, key, is_wanted, payload: stored.payload }
        });
        Ok(Page { events: events.collect(), next: fetched.next.0, end: fetched.end.0 })
    }

    /// Reads payloads again; `None` for one that is not there any more. `wanted` says of each, ascending, whether it
    /// is parked; the answer may leave out some of the later ones.
    pub(super) async fn load(
        &self,
        partition: u32,
        wanted: Vec<(u64, bool)>,
    ) -> Result<Vec<(u64, Option<Bytes>)>, Error> {
        let mut found = Vec::new();
        let mut log_from = None;
        // All that is read at once must fit the cache, or what is read first would be gone when it is needed.
        let mut bytes = 0;
        for (position, is_parked) in &wanted {
            if !is_parked {
                log_from = log_from.or(Some(*position));
            } else if bytes < READ_BYTES {
                let payload = self.payload(Of::Parked, (partition, *position)).await?;
                bytes += payload.as_ref().map_or(0, Bytes::len);
                found.push((*position, payload));
            }
        }
        let Some(from) = log_from else { return Ok(found) };
        let limit = FetchLimit { records: READ_RECORDS, bytes: READ_BYTES };
        let log = &self.parts.log;
        let fetched = log.fetch(&self.name.topic, partition, Position(from), limit).await?;
        let mut records = fetched.records.into_iter().peekable();
        for (position, _) in wanted.into_iter().filter(|(_, is_parked)| !is_parked) {
            while records.next_if(|stored| stored.position.0 < position).is_some() {}
            match records.next_if(|stored| stored.position.0 == position) {
                Some(stored) => found.push((position, Some(stored.payload))),
                None if position < fetched.next.0 || fetched.next == fetched.end => {
                    found.push((position, None));
                }
                // Beyond what this read covers.
                None => break,
            }
        }
        Ok(found)
    }

    async fn load_one(&self, (partition, position): Place, is_parked: bool) -> Result<Option<Bytes>, Error> {
        if is_parked {
            return self.payload(Of::Parked, (partition, position)).await;
        }
        let limit = FetchLimit { records: 1, bytes: 1 };
        let log = &self.parts.log;
        let fetched = log.fetch(&self.name.topic, partition, Position(position), limit).await?;
        let first = fetched.records.into_iter().next();
        Ok(first.filter(|stored| stored.position.0 == position).map(|stored| stored.payload))
    }

    /// Reads the payload of a parked event or of a dead letter.
    pub(super) async fn payload(&self, of: Of, place: Place) -> Result<Option<Bytes>, Error> {
        let key = records::payload_key(&self.name, of, place);
        Ok(self.parts.store.get(&key).await?.map(|found| found.value))
    }

    /// Writes checkpoints and removes the records of parked events that were settled, all at once.
    pub(super) async fn checkpoint(
        &self,
        checkpoints: Vec<Checkpoint>,
        unparked: Vec<(Place, Option<Revision>)>,
    ) -> (Vec<Written>, Vec<Removed>) {
        let written = join_all(checkpoints.into_iter().map(|checkpoint| self.write(checkpoint)));
        let removed = join_all(unparked.into_iter().map(|(place, known)| async move {
            let _shared = self.records.read().await;
            Removed { place, known, result: self.forget(Of::Parked, place, known).await }
        }));
        futures_util::future::join(written, removed).await
    }

    async fn write(&self, checkpoint: Checkpoint) -> Written {
        let Checkpoint { partition, known, record, floor } = checkpoint;
        let key = records::window_key(&self.name, partition);
        let store = &self.parts.store;
        match store.compare_and_swap(&key, Expected::from(known), Update::Put(record)).await {
            Ok(revision) => Written { partition, floor, revision: Some(revision), result: Ok(()) },
            Err(error) => {
                // It may be stored all the same: the next try goes on from what is there.
                let found = store.get(&key).await;
                let revision = found.map_or(known, |found| found.map(|found| found.revision));
                Written { partition, floor, revision, result: Err(error) }
            }
        }
    }

    /// Stores records of events that are to be parked; `None` for one that is not there any more.
    pub(super) async fn park(&self, events: Vec<Parking>) -> Vec<(Parking, Result<Option<Revision>, Error>)> {
        let park = |parking: Parking| async move {
            let parked = self.park_one(&parking).await;
            (parking, parked)
        };
        join_all(events.into_iter().map(park)).await
    }

    async fn park_one(&self, parking: &Parking) -> Result<Option<Revision>, Error> {
        let Some(payload) = self.load_one(parking.place, false).await? else { return Ok(None) };
        let record = ParkedRecord { key: parking.key.clone(), attempts: parking.attempts };
        self.keep(Of::Parked, parking.place, payload, records::encode(&record)).await.map(Some)
    }

    /// Stores a dead letter.
    pub(super) async fn bury(
        &self,
        place: Place,
        dying: Dying,
        is_parked: bool,
        key: Option<String>,
        at: Timestamp,
    ) -> Result<(), Error> {
        let Some(payload) = self.load_one(place, is_parked).await? else {
            let (partition, position) = place;
            let Name { topic, group, .. } = &self.name;
            tracing::warn!(%topic, %group, partition, position, "an event was trimmed before its dead letter");
            return Ok(());
        };
        let Dying { attempts, reason, .. } = dying;
        let reason = records::reason(reason).to_owned();
        let record = DeadRecord { key, attempts, reason, at: at.0 };
        self.keep(Of::Dead, place, payload, records::encode(&record)).await.map(drop)
    }

    /// Makes parked events of dead letters: those at `places`, or all, at most `max`. The dead letters stay until
    /// [`forget`](Self::forget).
    pub(super) async fn revive(
        &self,
        places: Option<Vec<Place>>,
        max: usize,
    ) -> Result<Vec<(Place, Option<String>, Revision)>, PullsError> {
        let places = match places {
            Some(places) => places,
            None => self.dead_places().await?,
        };
        let mut revived = Vec::new();
        for place in places.into_iter().take(max) {
            let Some((dead, payload)) = self.dead(place).await? else { continue };
            let parked = ParkedRecord { key: dead.key.clone(), attempts: 0 };
            let alone = self.records.write().await;
            let revision = self.keep(Of::Parked, place, payload, records::encode(&parked)).await?;
            drop(alone);
            revived.push((place, dead.key, revision));
        }
        Ok(revived)
    }

    /// Returns where this group's dead letters are, ascending.
    pub(super) async fn dead_places(&self) -> Result<Vec<Place>, Error> {
        let entries = self.parts.store.list(&records::events_prefix(&self.name, Of::Dead)).await?;
        Ok(entries.iter().filter_map(|entry| records::place_of(&entry.key)).collect())
    }

    /// Reads one dead letter; `None` if there is none.
    ///
    /// Errors with [`PullsError::Store`] and [`PullsError::Corrupt`].
    pub(super) async fn dead(&self, place: Place) -> Result<Option<(DeadRecord, Bytes)>, PullsError> {
        let key = records::event_key(&self.name, Of::Dead, place);
        let Some(found) = self.parts.store.get(&key).await? else { return Ok(None) };
        let dead = records::decode(&key, &found.value)?;
        Ok(self.payload(Of::Dead, place).await?.map(|payload| (dead, payload)))
    }

    /// Stores a payload, then the record that names it; returns the record's revision.
    async fn keep(&self, of: Of, place: Place, payload: Bytes, record: Bytes) -> Result<Revision, Error> {
        put(self.store(), &records::payload_key(&self.name, of, place), payload).await?;
        put(self.store(), &records::event_key(&self.name, of, place), record).await
    }

    /// Removes the record of an event, then its payload. With a `known` revision only that very record goes: one that
    /// was made since stays.
    pub(super) async fn forget(&self, of: Of, place: Place, known: Option<Revision>) -> Result<(), Error> {
        let key = records::event_key(&self.name, of, place);
        if delete(self.store(), &key, known).await? {
            delete(self.store(), &records::payload_key(&self.name, of, place), None).await?;
        }
        Ok(())
    }

    /// Removes everything that belongs to the positions of a topic: windows, parked events, dead letters.
    pub(super) async fn wipe(&self) -> Result<(), Error> {
        let store = &self.parts.store;
        for entry in store.list(&records::windows_prefix(&self.name)).await? {
            delete(self.store(), &entry.key, Some(entry.versioned.revision)).await?;
        }
        for of in [Of::Parked, Of::Dead] {
            let entries = store.list(&records::events_prefix(&self.name, of)).await?;
            for entry in entries {
                if let Some(place) = records::place_of(&entry.key) {
                    self.forget(of, place, Some(entry.versioned.revision)).await?;
                }
            }
        }
        Ok(())
    }
}

/// Writes a key whatever is there.
pub(super) async fn put(store: &dyn ClusterStore, key: &str, value: Bytes) -> Result<Revision, Error> {
    let mut expected = Expected::Absent;
    loop {
        match store.compare_and_swap(key, expected, Update::Put(value.clone())).await {
            Err(Error::Conflict { current, .. }) if expected != Expected::from(current) => {
                expected = Expected::from(current);
            }
            put => return put,
        }
    }
}

/// Deletes a key, if it is at the `known` revision, or whatever it is at; returns whether it is gone.
pub(super) async fn delete(
    store: &dyn ClusterStore,
    key: &str,
    known: Option<Revision>,
) -> Result<bool, Error> {
    let mut at = known;
    loop {
        let revision = match at {
            Some(revision) => revision,
            None => match store.get(key).await? {
                Some(found) => found.revision,
                None => return Ok(true),
            },
        };
        match store.compare_and_swap(key, Expected::At(revision), Update::Delete).await {
            Ok(_) | Err(Error::Conflict { current: None, .. }) => return Ok(true),
            Err(Error::Conflict { .. }) if known.is_some() => return Ok(false),
            Err(Error::Conflict { current, .. }) => at = current,
            Err(error) => return Err(error),
        }
    }
}
