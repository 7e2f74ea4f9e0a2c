//! The contract suite on the embedded backend, and on backends broken on purpose, which must not pass it.

use std::sync::Arc;

use bytes::Bytes;
use fulcrum_core::Timestamp;
use fulcrum_store::contract::{self, Subject, steps, walk};
use fulcrum_store::{
    Answer, Change, ClusterStore, Entry, Error, EventLog, Expected, FetchLimit, Fetched, Options, Partition,
    Position, Revision, SqliteStore, Topic, Update, Versioned, Watch, feed,
};
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;

struct Sqlite(TempDir);

impl Sqlite {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }
}

impl Subject for Sqlite {
    type Store = SqliteStore;

    async fn open(&self) -> Arc<SqliteStore> {
        let opened = SqliteStore::open(self.0.path().join("store.db"), Options::default());
        Arc::new(opened.expect("the store opens"))
    }

    async fn close(&self, store: Arc<SqliteStore>) {
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_keeps_the_contract() {
    let violations = contract::check(Sqlite::new).await;
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn sqlite_walks_as_the_model() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&steps(50), |steps| {
        let verdict = runtime.block_on(walk(Sqlite::new(), &steps));
        verdict.map_err(|violation| proptest::test_runner::TestCaseError::fail(violation.to_string()))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// What a broken backend does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sin {
    /// Writes whatever the key was.
    SwapsBlindly,
    /// Answers the same revision always.
    RepeatsRevisions,
    /// Lists keys beyond the prefix.
    ListsTooMuch,
    /// Hides the newest keys from a list.
    ListsTooLittle,
    /// Keeps some changes from its watchers and does not say so.
    WatchesWithGaps,
    /// Stores all records of an append but the last.
    TearsAppends,
    /// Stores an append as several.
    SplitsAppends,
    /// Ignores the limit of bytes.
    FetchesTooMuch,
    /// Goes on too far after a fetch.
    SkipsRecords,
    /// Trims one record more than asked.
    TrimsTooFar,
    /// Lets the begin of a partition fall back.
    ForgetsTrims,
    /// Never wakes those who wait.
    WaitsForEver,
    /// Finds the end for every time.
    IgnoresTimes,
    /// Finds the begin for every size.
    IgnoresSizes,
    /// Starts empty each time.
    ForgetsAll,
    /// Accepts a topic that exists.
    MakesTwice,
    /// Describes the partitions of a topic in the order of their numbers' texts.
    ShufflesPartitions,
}

struct Broken {
    inner: SqliteStore,
    sin: Sin,
}

struct BrokenSubject {
    homes: parking_lot::Mutex<Vec<TempDir>>,
    sin: Sin,
}

impl Subject for BrokenSubject {
    type Store = Broken;

    async fn open(&self) -> Arc<Broken> {
        let mut homes = self.homes.lock();
        if homes.is_empty() || self.sin == Sin::ForgetsAll {
            homes.push(tempfile::tempdir().expect("a temporary directory"));
        }
        let path = homes.last().expect("one was pushed").path().join("store.db");
        let inner = SqliteStore::open(path, Options::default()).expect("the store opens");
        Arc::new(Broken { inner, sin: self.sin })
    }

    async fn close(&self, store: Arc<Broken>) {
        store.inner.close().await;
    }
}

impl ClusterStore for Broken {
    fn get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Versioned>> {
        self.inner.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<Entry>> {
        match self.sin {
            Sin::ListsTooMuch => self.inner.list(prefix.get(..1).unwrap_or_default()),
            Sin::ListsTooLittle => Box::pin(async move {
                let mut entries = self.inner.list(prefix).await?;
                let newest = entries.iter().map(|entry| entry.versioned.revision).max();
                entries.retain(|entry| Some(entry.versioned.revision) != newest);
                Ok(entries)
            }),
            _ => self.inner.list(prefix),
        }
    }

    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        expected: Expected,
        update: Update,
    ) -> Answer<'a, Revision> {
        Box::pin(async move {
            let result = self.inner.compare_and_swap(key, expected, update.clone()).await;
            match (self.sin, result) {
                (Sin::SwapsBlindly, Err(Error::Conflict { current, .. })) => {
                    self.inner.compare_and_swap(key, Expected::from(current), update).await
                }
                (Sin::RepeatsRevisions, Ok(_)) => Ok(Revision(1)),
                (_, result) => result,
            }
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str) -> Answer<'a, Watch> {
        Box::pin(async move {
            let mut inner = self.inner.watch(prefix).await?;
            if self.sin != Sin::WatchesWithGaps {
                return Ok(inner);
            }
            let (feed, watch) = feed(prefix);
            tokio::spawn(async move {
                while let Some(change) = inner.next().await {
                    let is_kept = match &change {
                        Change::Put { versioned, .. } => versioned.revision.0 % 3 != 0,
                        Change::Deleted { .. } | Change::Lagged => true,
                    };
                    if is_kept {
                        feed.push(&change);
                    }
                }
            });
            Ok(watch)
        })
    }
}

impl EventLog for Broken {
    fn create_topic<'a>(&'a self, topic: &'a str, partition_count: u32) -> Answer<'a, Topic> {
        Box::pin(async move {
            match self.inner.create_topic(topic, partition_count).await {
                Err(Error::TopicExists { .. }) if self.sin == Sin::MakesTwice => {
                    self.inner.topic(topic).await
                }
                result => result,
            }
        })
    }

    fn topic<'a>(&'a self, topic: &'a str) -> Answer<'a, Topic> {
        self.inner.topic(topic)
    }

    fn topics(&self) -> Answer<'_, Vec<Topic>> {
        self.inner.topics()
    }

    fn grow_topic<'a>(&'a self, topic: &'a str, partition_count: u32) -> Answer<'a, Topic> {
        self.inner.grow_topic(topic, partition_count)
    }

    fn delete_topic<'a>(&'a self, topic: &'a str) -> Answer<'a, ()> {
        self.inner.delete_topic(topic)
    }

    fn append<'a>(
        &'a self,
        topic: &'a str,
        partition: u32,
        at: Timestamp,
        mut records: Vec<Bytes>,
    ) -> Answer<'a, Vec<Position>> {
        Box::pin(async move {
            match self.sin {
                Sin::TearsAppends if 1 < records.len() => {
                    records.pop();
                    let mut positions = self.inner.append(topic, partition, at, records).await?;
                    positions.extend(positions.last().map(|last| Position(last.0 + 1)));
                    Ok(positions)
                }
                Sin::SplitsAppends => {
                    let mut positions = Vec::new();
                    for record in records {
                        positions.extend(self.inner.append(topic, partition, at, vec![record]).await?);
                        tokio::task::yield_now().await;
                    }
                    Ok(positions)
                }
                _ => self.inner.append(topic, partition, at, records).await,
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
            let bytes = if self.sin == Sin::FetchesTooMuch { usize::MAX } else { limit.bytes };
            let limit = FetchLimit { bytes, ..limit };
            let mut fetched = self.inner.fetch(topic, partition, from, limit).await?;
            if self.sin == Sin::SkipsRecords && fetched.next < fetched.end {
                fetched.next = Position(fetched.next.0 + 1);
            }
            Ok(fetched)
        })
    }

    fn partition<'a>(&'a self, topic: &'a str, partition: u32) -> Answer<'a, Partition> {
        self.inner.partition(topic, partition)
    }

    fn partitions<'a>(&'a self, topic: &'a str) -> Answer<'a, Vec<Partition>> {
        Box::pin(async move {
            let partitions = self.inner.partitions(topic).await?;
            let mut numbered: Vec<_> = partitions.into_iter().enumerate().collect();
            if self.sin == Sin::ShufflesPartitions {
                numbered.sort_by_key(|(number, _)| number.to_string());
            }
            Ok(numbered.into_iter().map(|(_, partition)| partition).collect())
        })
    }

    fn position_at<'a>(&'a self, topic: &'a str, partition: u32, at: Timestamp) -> Answer<'a, Position> {
        match self.sin {
            Sin::IgnoresTimes => {
                Box::pin(async move { Ok(self.inner.partition(topic, partition).await?.end) })
            }
            _ => self.inner.position_at(topic, partition, at),
        }
    }

    fn position_by_size<'a>(&'a self, topic: &'a str, partition: u32, bytes: u64) -> Answer<'a, Position> {
        let bytes = if self.sin == Sin::IgnoresSizes { u64::MAX } else { bytes };
        self.inner.position_by_size(topic, partition, bytes)
    }

    fn wait<'a>(&'a self, topic: &'a str, partition: u32, from: Position) -> Answer<'a, Position> {
        match self.sin {
            Sin::WaitsForEver => Box::pin(std::future::pending()),
            _ => self.inner.wait(topic, partition, from),
        }
    }

    fn trim<'a>(&'a self, topic: &'a str, partition: u32, before: Position) -> Answer<'a, Position> {
        match self.sin {
            Sin::TrimsTooFar => self.inner.trim(topic, partition, Position(before.0.saturating_add(1))),
            Sin::ForgetsTrims => Box::pin(async move {
                self.inner.trim(topic, partition, before).await?;
                Ok(before)
            }),
            _ => self.inner.trim(topic, partition, before),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_backend_does_not_pass() {
    // Each with a case that must find it.
    let table = [
        (Sin::SwapsBlindly, "exactly_one_wins_each_revision"),
        (Sin::SwapsBlindly, "swaps_follow_the_table"),
        (Sin::RepeatsRevisions, "revisions_only_grow"),
        (Sin::ListsTooMuch, "lists_are_complete_and_in_order"),
        (Sin::ListsTooLittle, "lists_are_complete_and_in_order"),
        (Sin::WatchesWithGaps, "a_watch_sees_every_change_in_order"),
        (Sin::TearsAppends, "records_come_back_in_order"),
        (Sin::SplitsAppends, "appends_are_whole_and_unmixed"),
        (Sin::FetchesTooMuch, "a_fetch_keeps_its_limits"),
        (Sin::SkipsRecords, "a_fetch_keeps_its_limits"),
        (Sin::TrimsTooFar, "a_trim_is_for_ever"),
        (Sin::ForgetsTrims, "a_trim_is_for_ever"),
        (Sin::WaitsForEver, "a_wait_ends_on_arrival"),
        (Sin::IgnoresTimes, "positions_are_found_by_time"),
        (Sin::IgnoresSizes, "positions_are_found_by_size"),
        (Sin::ForgetsAll, "keys_survive_a_restart"),
        (Sin::ForgetsAll, "records_survive_a_restart"),
        (Sin::MakesTwice, "topics_are_made_grown_and_deleted"),
        (Sin::ShufflesPartitions, "partitions_are_described_together"),
    ];
    for (sin, name) in table {
        let cases = contract::cases::<BrokenSubject>();
        let case = cases.iter().find(|case| case.name == name).expect("a case of that name");
        let verdict = case.run(BrokenSubject { homes: parking_lot::Mutex::default(), sin }).await;
        assert!(verdict.is_err(), "{name} did not notice that a store {sin:?}");
    }
}

#[test]
fn a_walk_notices_a_broken_backend() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for sin in [Sin::SwapsBlindly, Sin::WatchesWithGaps, Sin::TearsAppends, Sin::TrimsTooFar, Sin::ForgetsAll]
    {
        let config =
            Config { cases: 64, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
        let result = TestRunner::new(config).run(&steps(50), |steps| {
            let subject = BrokenSubject { homes: parking_lot::Mutex::default(), sin };
            let verdict = runtime.block_on(walk(subject, &steps));
            verdict.map_err(|violation| proptest::test_runner::TestCaseError::fail(violation.to_string()))
        });
        assert!(result.is_err(), "no walk noticed that a store {sin:?}");
    }
}
