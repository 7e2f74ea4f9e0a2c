//! A random walk over both stores, next to a model of a few lines.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use fulcrum_core::Timestamp;
use proptest::prelude::*;

use super::{Subject, Verdict, hold, prompt, restart, same};
use crate::{
    Change, ClusterStore as _, Entry, Error, EventLog as _, Expected, FetchLimit, Position, Revision, Stored,
    Update, Versioned, Watch,
};

/// One step of a walk. Small numbers choose among what there is, modulo how much there is.
#[derive(Clone, Debug)]
pub enum Step {
    /// Write or delete a key, believing the truth (0), that it is absent (1), or some earlier revision.
    Swap {
        /// Which key.
        key: u8,
        /// What the writer believes.
        guess: u8,
        /// The value, or a deletion.
        value: Option<Vec<u8>>,
    },
    /// List the keys with the first letters of some key.
    List {
        /// Which key.
        key: u8,
        /// How many letters.
        letters: u8,
    },
    /// Append records of these sizes.
    Append {
        /// Which partition.
        partition: u8,
        /// Size of each record.
        sizes: Vec<u8>,
        /// How far the clock has moved, which may be back.
        clock: i8,
    },
    /// Fetch from the position of some record, there or trimmed, or from the end.
    Fetch {
        /// Which partition.
        partition: u8,
        /// Which record.
        from: u8,
        /// Most records.
        records: u8,
        /// Most bytes.
        bytes: u8,
    },
    /// Search by the time of some record, and a bit.
    Find {
        /// Which partition.
        partition: u8,
        /// Which time.
        at: u8,
    },
    /// Trim below some record.
    Trim {
        /// Which partition.
        partition: u8,
        /// Which record.
        before: u8,
    },
    /// Add a partition.
    Grow,
    /// Delete the topic and make it anew.
    Renew,
    /// Close and open.
    Restart,
}

/// Returns a strategy for walks of up to `length` steps.
pub fn steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    let value = proptest::option::weighted(0.7, proptest::collection::vec(any::<u8>(), 0..8));
    let sizes = proptest::collection::vec(0..40u8, 0..6);
    let step = prop_oneof![
        8 => (any::<u8>(), 0..4u8, value).prop_map(|(key, guess, value)| Step::Swap { key, guess, value }),
        3 => (any::<u8>(), 0..5u8).prop_map(|(key, letters)| Step::List { key, letters }),
        8 => (any::<u8>(), sizes, -5..20i8)
            .prop_map(|(partition, sizes, clock)| Step::Append { partition, sizes, clock }),
        6 => (any::<u8>(), any::<u8>(), 0..9u8, any::<u8>())
            .prop_map(|(partition, from, records, bytes)| Step::Fetch { partition, from, records, bytes }),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(partition, at)| Step::Find { partition, at }),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(partition, before)| Step::Trim { partition, before }),
        1 => Just(Step::Grow),
        1 => Just(Step::Renew),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 0..=length)
}

/// Takes the steps on an empty subject and compares every answer with the model's.
///
/// # Errors
/// The first difference.
pub async fn walk<S: Subject>(subject: S, steps: &[Step]) -> Verdict {
    let mut store = subject.open().await;
    let mut model = Model::default();
    let mut watch = store.watch("").await?;
    model.incarnation = store.create_topic("t", 1).await?.incarnation;
    model.partitions.push(Log::default());
    for step in steps {
        match step {
            Step::Restart => {
                model.compare_changes(&mut watch, subject.may_coalesce()).await?;
                store = restart(&subject, store).await;
                while let Some(left) = prompt("end of a watch", watch.next()).await? {
                    hold!(subject.may_coalesce(), "{left:?} was told beyond every change there was");
                }
                watch = store.watch("").await?;
                model.compare_all(&*store).await?;
            }
            other => model.take(&store, other).await?,
        }
    }
    model.compare_changes(&mut watch, subject.may_coalesce()).await?;
    model.compare_all(&*store).await?;
    subject.close(store).await;
    Ok(())
}

const KEYS: [&str; 6] = ["a", "a/x", "a/y", "ab", "b", "b/x"];
const ALL: FetchLimit = FetchLimit { records: u32::MAX, bytes: usize::MAX };

#[derive(Default)]
struct Model {
    keys: BTreeMap<&'static str, Versioned>,
    /// Every revision given out, ascending.
    revisions: Vec<Revision>,
    /// What a watch has yet to tell.
    changes: Vec<Change>,
    incarnation: u64,
    partitions: Vec<Log>,
    clock: u64,
}

#[derive(Default)]
struct Log {
    /// Every record ever, trimmed ones too.
    records: Vec<Stored>,
    /// How many of them are trimmed.
    trimmed: usize,
}

impl Log {
    fn kept(&self) -> &[Stored] {
        &self.records[self.trimmed..]
    }
}

impl Model {
    async fn take<T: crate::ClusterStore + crate::EventLog>(
        &mut self,
        store: &Arc<T>,
        step: &Step,
    ) -> Verdict {
        match step {
            Step::Swap { key, guess, value } => self.swap(&**store, *key, *guess, value.clone()).await,
            Step::List { key, letters } => {
                let key = KEYS[usize::from(*key) % KEYS.len()];
                self.compare_list(&**store, &key[..usize::from(*letters).min(key.len())]).await
            }
            Step::Append { partition, sizes, clock } => {
                let (number, log) = self.choose(*partition);
                let payloads: Vec<_> =
                    sizes.iter().map(|&size| Bytes::from(vec![size; usize::from(size)])).collect();
                self.clock = self.clock.saturating_add_signed(i64::from(*clock));
                let at = Timestamp(self.clock);
                let positions = store.append("t", number, at, payloads.clone()).await?;
                let log = &mut self.partitions[log];
                same!(positions.len(), payloads.len(), "positions of an append");
                let at = log.records.last().map_or(at, |last| last.at.max(at));
                for (position, payload) in positions.into_iter().zip(payloads) {
                    let grows = log.records.last().is_none_or(|last| last.position < position);
                    hold!(grows, "position {position} does not grow");
                    log.records.push(Stored { position, at, payload });
                }
                Ok(())
            }
            Step::Fetch { partition, from, records, bytes } => {
                let (number, log) = self.choose(*partition);
                let log = &self.partitions[log];
                let end = store.partition("t", number).await?.end;
                let from = log.place(*from, end);
                let limit = FetchLimit { records: u32::from(*records), bytes: usize::from(*bytes) };
                let fetched = store.fetch("t", number, from, limit).await?;
                let wanted: Vec<_> = log.kept().iter().filter(|record| from <= record.position).collect();
                let found: Vec<_> = fetched.records.iter().collect();
                hold!(wanted.starts_with(&found), "a fetch from {from} found {found:?}, wanted {wanted:?}");
                hold!(found.is_empty() == wanted.is_empty(), "a fetch from {from} found nothing");
                hold!(found.len() <= limit.records.max(1) as usize, "{} records at {limit:?}", found.len());
                let size: usize = found.iter().map(|record| record.payload.len()).sum();
                hold!(size <= limit.bytes || found.len() == 1, "{size} bytes at {limit:?}");
                if let Some(skipped) = wanted.get(found.len()) {
                    hold!(fetched.next <= skipped.position, "going on from {} skips records", fetched.next);
                }
                Ok(())
            }
            Step::Find { partition, at } => {
                let (number, log) = self.choose(*partition);
                let end = store.partition("t", number).await?.end;
                let at = Timestamp(self.clock.saturating_sub(u64::from(*at)));
                let wanted = self.partitions[log].kept().iter().find(|record| at <= record.at);
                let wanted = wanted.map_or(end, |record| record.position);
                same!(store.position_at("t", number, at).await?, wanted, "position at {at:?}");
                Ok(())
            }
            Step::Trim { partition, before } => {
                let (number, log) = self.choose(*partition);
                let end = store.partition("t", number).await?.end;
                let before = self.partitions[log].place(*before, end);
                let first = store.trim("t", number, before).await?;
                let log = &mut self.partitions[log];
                let below = log.records.iter().filter(|record| record.position < before).count();
                log.trimmed = log.trimmed.max(below);
                if let Some(record) = log.kept().first() {
                    hold!(first <= record.position, "begin {first} is above a record that was kept");
                }
                Ok(())
            }
            Step::Grow => {
                self.partitions.push(Log::default());
                let count = u32::try_from(self.partitions.len()).unwrap_or(u32::MAX);
                same!(store.grow_topic("t", count).await?.partition_count, count, "partitions after growing");
                Ok(())
            }
            Step::Renew => {
                store.delete_topic("t").await?;
                let topic = store.create_topic("t", 1).await?;
                hold!(topic.incarnation != self.incarnation, "the topic came back as the same");
                self.incarnation = topic.incarnation;
                self.partitions = vec![Log::default()];
                Ok(())
            }
            Step::Restart => unreachable!("the walk itself restarts"),
        }
    }

    async fn swap(
        &mut self,
        store: &impl crate::ClusterStore,
        key: u8,
        guess: u8,
        value: Option<Vec<u8>>,
    ) -> Verdict {
        let key = KEYS[usize::from(key) % KEYS.len()];
        let current = self.keys.get(key).map(|versioned| versioned.revision);
        let expected = match guess {
            0 => Expected::from(current),
            1 => Expected::Absent,
            other => {
                let old = self.revisions.len().checked_sub(usize::from(other) - 1);
                Expected::from(old.map(|index| self.revisions[index]))
            }
        };
        let value = value.map(Bytes::from);
        let update = value.clone().map_or(Update::Delete, Update::Put);
        let result = store.compare_and_swap(key, expected, update).await;
        match result {
            Ok(revision) => {
                hold!(expected == Expected::from(current), "{key} was not as {expected:?}, but {current:?}");
                hold!(self.revisions.last() < Some(&revision), "revision {revision} does not grow");
                self.revisions.push(revision);
                self.changes.push(match value {
                    Some(value) => {
                        let versioned = Versioned { revision, value };
                        self.keys.insert(key, versioned.clone());
                        Change::Put { key: key.to_owned(), versioned }
                    }
                    None => {
                        self.keys.remove(key);
                        Change::Deleted { key: key.to_owned(), revision }
                    }
                });
            }
            Err(Error::Conflict { current: told, .. }) => {
                hold!(expected != Expected::from(current), "{key} was as {expected:?}");
                same!(told, current, "what the conflict says of {key}");
            }
            Err(Error::Invalid { .. }) => {
                let is_impossible = expected == Expected::Absent && value.is_none();
                hold!(is_impossible, "{key} from {expected:?} is possible");
            }
            Err(other) => return Err(other.into()),
        }
        same!(store.get(key).await?, self.keys.get(key).cloned(), "{key} after a write");
        Ok(())
    }

    fn choose(&self, partition: u8) -> (u32, usize) {
        let index = usize::from(partition) % self.partitions.len();
        (u32::from(partition) % u32::try_from(self.partitions.len()).unwrap_or(u32::MAX), index)
    }

    async fn compare_list(&self, store: &impl crate::ClusterStore, prefix: &str) -> Verdict {
        let keys = self.keys.iter().filter(|(key, _)| key.starts_with(prefix));
        let wanted: Vec<_> = keys
            .map(|(key, versioned)| Entry { key: (*key).to_owned(), versioned: versioned.clone() })
            .collect();
        same!(store.list(prefix).await?, wanted, "list of {prefix:?}");
        Ok(())
    }

    async fn compare_all<T: crate::ClusterStore + crate::EventLog>(&self, store: &T) -> Verdict {
        self.compare_list(store, "").await?;
        let topic = store.topic("t").await?;
        let known = (topic.partition_count as usize, topic.incarnation);
        same!(known, (self.partitions.len(), self.incarnation), "the topic");
        for (number, log) in (0..).zip(&self.partitions) {
            let found = super::log::read(store, "t", number, Position(0), ALL).await?;
            same!(&found[..], log.kept(), "records of partition {number}");
        }
        Ok(())
    }

    async fn compare_changes(&mut self, watch: &mut Watch, may_coalesce: bool) -> Verdict {
        for wanted in std::mem::take(&mut self.changes) {
            if may_coalesce {
                continue;
            }
            let found = prompt("next change", watch.next()).await?;
            same!(found, Some(wanted), "next change");
        }
        Ok(())
    }
}

impl Log {
    /// Returns the position of some record, or the end.
    fn place(&self, index: u8, end: Position) -> Position {
        let index = usize::from(index) % (self.records.len() + 1);
        self.records.get(index).map_or(end, |record| record.position)
    }
}
