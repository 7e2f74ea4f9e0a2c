//! A reader is brought back from the store, and follows its topic.
//!
//! Invariants: positions of a topic that is gone mean nothing to its successor of the same name: windows, parked
//! events and dead letters go with their topic, the group and its subscribers stay.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use fulcrum_core::delivery::Saved;
use fulcrum_store::{Revision, Topic};

use super::Error;
use super::jobs::{self, Place, Work};
use super::reader::{Name, Partition, RETRY, Reader};
use super::records::{self, Of, ParkedRecord, ReaderRecord, WindowRecord};

impl Reader {
    /// Restores what is stored, however long the store takes.
    ///
    /// Errors with [`Error::UnknownGroup`] if the group was deleted, [`Error::Corrupt`], [`Error::Stopping`], or a store
    /// that is closed or damaged.
    pub(super) async fn restore_patiently(&mut self) -> Result<(), Error> {
        loop {
            let error = match self.restore().await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if self.handle.is_dropped() {
                return Err(Error::Stopping);
            }
            let is_final = match &error {
                Error::Store(error) => {
                    matches!(error, fulcrum_store::Error::Closed | fulcrum_store::Error::Corrupt { .. })
                }
                _ => true,
            };
            if is_final || self.handle.is_stopping.load(Ordering::Acquire) {
                return Err(error);
            }
            let Name { topic, group, .. } = &self.handle.name;
            tracing::warn!(%topic, %group, %error, "a message group cannot be brought back just now");
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn restore(&mut self) -> Result<(), Error> {
        let key = records::reader_key(&self.handle.name);
        let Some(found) = self.parts.store.get(&key).await? else {
            let Name { topic, group, .. } = &self.handle.name;
            return Err(Error::UnknownGroup { group: group.to_string(), topic: topic.to_string() });
        };
        let record: ReaderRecord = records::decode(&key, &found.value)?;
        self.reader_revision = Some(found.revision);
        self.incarnation = record.incarnation;
        let topic = self.work.topic().await?;
        if topic.as_ref().map_or(0, |topic| topic.incarnation) != record.incarnation {
            return self.start_over(topic).await;
        }
        let Some(topic) = topic else {
            self.publish_floors();
            return Ok(());
        };
        let windows = self.work.stored_windows().await?;
        let mut parked = self.work.stored_parked().await?;
        self.forget_partitions();
        for number in 0..topic.partition_count {
            let start = record.starts.get(number as usize).copied().unwrap_or(0);
            let mut partition = match windows.get(&number) {
                // It belongs to a topic of this name that was deleted before.
                Some((revision, record)) if record.incarnation != self.incarnation => {
                    Partition::new(self.make_window(start), Some(*revision))
                }
                Some((revision, record)) => {
                    let saved: Saved = record.saved();
                    Partition::new(self.restore_window(&saved), Some(*revision))
                }
                None => Partition::new(self.make_window(start), None),
            };
            for (position, revision, record) in parked.remove(&number).unwrap_or_default() {
                partition.window.restore_parked(position, record.key.as_deref(), record.attempts);
                partition.parked.insert(position, revision);
            }
            self.partitions.push(partition);
            self.touch(number);
            self.behind.insert(number);
        }
        self.publish_floors();
        Ok(())
    }

    /// Looks what became of the topic if there is news of it: it grew, or it is another one of the same name, or none.
    /// Tries again later if the store refuses.
    ///
    /// What the news said does not count: of two that came at once the older one may have come last.
    pub(super) async fn follow_topic(&mut self) {
        if !self.has_topic_news || self.rests_from_writing || self.is_stopping() {
            return;
        }
        self.has_topic_news = false;
        if let Err(error) = self.follow().await {
            let Name { topic, group, .. } = &self.handle.name;
            tracing::warn!(%topic, %group, %error, "a message group cannot follow its topic just now");
            self.has_topic_news = true;
            self.rest_from_writing();
        }
    }

    async fn follow(&mut self) -> Result<(), Error> {
        let topic = self.work.topic().await?;
        if topic.as_ref().map_or(0, |topic| topic.incarnation) == self.incarnation {
            let known = u32::try_from(self.partitions.len()).unwrap_or(u32::MAX);
            for number in known..topic.map_or(0, |topic| topic.partition_count) {
                self.partitions.push(Partition::new(self.make_window(0), None));
                self.touch(number);
                self.behind.insert(number);
            }
            self.publish_floors();
            return Ok(());
        }
        self.finish_jobs().await;
        for answer in self.answers.drain(..) {
            // The event is gone for good.
            let _ = answer.send(Ok(()));
        }
        for waiting in std::mem::take(&mut self.parking).into_values().flatten() {
            let _ = waiting.send(Ok(()));
        }
        self.start_over(topic).await
    }

    async fn start_over(&mut self, topic: Option<Topic>) -> Result<(), Error> {
        // Until it is done the group needs everything: the floors of the former topic say nothing of this one.
        *self.handle.floors.lock() = None;
        self.forget_partitions();
        self.work.wipe().await?;
        let (incarnation, partition_count) =
            topic.map_or((0, 0), |topic| (topic.incarnation, topic.partition_count));
        let record = ReaderRecord::new(&self.handle.spec, incarnation, Vec::new());
        let key = records::reader_key(&self.handle.name);
        self.reader_revision = Some(jobs::put(&*self.parts.store, &key, records::encode(&record)).await?);
        self.incarnation = incarnation;
        for number in 0..partition_count {
            self.partitions.push(Partition::new(self.make_window(0), None));
            self.touch(number);
            self.behind.insert(number);
        }
        self.publish_floors();
        Ok(())
    }

    fn publish_floors(&self) {
        let floors = self.partitions.iter().map(|at| at.stored_floor).collect();
        *self.handle.floors.lock() = Some(floors);
    }

    /// Forgets what says that the group is on this topic. The rest is for the caller to remove, or for whoever makes the
    /// group anew.
    pub(super) async fn delete(&mut self) -> Result<(), Error> {
        self.finish_jobs().await;
        let key = records::reader_key(&self.handle.name);
        jobs::delete(&*self.parts.store, &key, None).await?;
        for answer in self.answers.drain(..) {
            let _ = answer.send(Ok(()));
        }
        self.forget_partitions();
        for waiter in self.waiters.drain(..) {
            waiter.nothing();
        }
        Ok(())
    }
}

impl Work {
    /// Returns the topic as it is; `None` if there is none.
    async fn topic(&self) -> Result<Option<Topic>, fulcrum_store::Error> {
        match self.parts.log.topic(&self.name.topic).await {
            Ok(topic) => Ok(Some(topic)),
            Err(fulcrum_store::Error::UnknownTopic { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn stored_windows(&self) -> Result<HashMap<u32, (Revision, WindowRecord)>, Error> {
        let entries = self.parts.store.list(&records::windows_prefix(&self.name)).await?;
        let mut windows = HashMap::new();
        for entry in entries {
            let record = records::decode(&entry.key, &entry.versioned.value)?;
            if let Some(partition) = records::partition_of(&entry.key) {
                windows.insert(partition, (entry.versioned.revision, record));
            }
        }
        Ok(windows)
    }

    async fn stored_parked(&self) -> Result<HashMap<u32, Vec<(u64, Revision, ParkedRecord)>>, Error> {
        let prefix = records::events_prefix(&self.name, Of::Parked);
        let mut parked: HashMap<u32, Vec<_>> = HashMap::new();
        for entry in self.parts.store.list(&prefix).await? {
            let record = records::decode(&entry.key, &entry.versioned.value)?;
            let place: Option<Place> = records::place_of(&entry.key);
            if let Some((partition, position)) = place {
                parked.entry(partition).or_default().push((position, entry.versioned.revision, record));
            }
        }
        Ok(parked)
    }
}
