//! What was acknowledged survives `kill -9`.
//!
//! The test starts this very binary again as a child, which writes without end and says on stdout what was
//! acknowledged to it. The child is killed at a random moment, the file opened, and everything said is looked for.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fulcrum_core::Timestamp;
use fulcrum_store::{
    ClusterStore as _, EventLog as _, Expected, FetchLimit, Options, Position, Revision, SqliteStore, Stored,
    Update,
};

const CHILD: &str = "FULCRUM_STORE_CRASH_CHILD";
const ROUNDS: u32 = 10;
const PARTITIONS: u32 = 3;
const WRITERS: u32 = 6;
const KEYS: u32 = 3;

/// Not a test by itself: what the child runs, for ever.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(write_for_ever(Path::new(&path)));
}

fn say(words: std::fmt::Arguments<'_>) {
    let line = format!("\nack {words};\n");
    // The parent may be gone, and then so will we be.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

async fn write_for_ever(path: &Path) {
    let store = Arc::new(SqliteStore::open(path, Options::default()).expect("the store opens"));
    if store.topics().await.expect("topics").is_empty() {
        store.create_topic("t", PARTITIONS).await.expect("a topic");
    }
    let round = std::process::id();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let partition = writer % PARTITIONS;
            for number in 0_u64.. {
                let records = (0..3).map(|part| Bytes::from(format!("{round}.{writer}.{number}.{part}")));
                let records: Vec<_> = records.collect();
                let positions =
                    store.append("t", partition, Timestamp(number), records).await.expect("append");
                say(format_args!("append {partition} {} {round} {writer} {number}", positions[0]));
                if writer == 0 && number % 40 == 39 {
                    let before = Position(positions[0].0.saturating_sub(60));
                    let first = store.trim("t", partition, before).await.expect("trim");
                    say(format_args!("trim {partition} {first}"));
                }
            }
        });
    }
    for key in 0..KEYS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let key = format!("k/{key}");
            let mut expected =
                Expected::from(store.get(&key).await.expect("get").map(|found| found.revision));
            for number in 0_u64.. {
                let value = Bytes::from(format!("{round}.{number}"));
                let revision =
                    store.compare_and_swap(&key, expected, Update::Put(value)).await.expect("a swap");
                say(format_args!("swap {key} {revision} {round} {number}"));
                expected = Expected::At(revision);
            }
        });
    }
    tasks.join_next().await;
}

/// What children said, over all rounds.
#[derive(Default)]
struct Said {
    /// Partition and first position of each append, with the stem of its records.
    appends: BTreeMap<(u32, u64), String>,
    firsts: BTreeMap<u32, u64>,
    /// Highest acknowledged revision of each key, with its value.
    swaps: BTreeMap<String, (u64, String)>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        // A line cut off by the kill has no end.
        let Some(words) = line.strip_prefix("ack ").and_then(|line| line.strip_suffix(';')) else { return };
        let words: Vec<_> = words.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().expect("a number");
        let partition = || words[1].parse::<u32>().expect("a partition");
        match words[0] {
            "append" => {
                let stem = format!("{}.{}.{}", words[3], words[4], words[5]);
                let earlier = self.appends.insert((partition(), number(words[2])), stem);
                assert_eq!(earlier, None, "a position was given twice: {line}");
            }
            "trim" => {
                let first = self.firsts.entry(partition()).or_default();
                *first = number(words[2]).max(*first);
            }
            "swap" => {
                let value = (number(words[2]), format!("{}.{}", words[3], words[4]));
                let last = self.swaps.entry(words[1].to_owned()).or_default();
                assert!(last.0 < value.0, "a revision was given twice: {line}");
                *last = value;
            }
            other => panic!("{other}"),
        }
    }

    async fn check(&self, store: &SqliteStore) {
        for partition in 0..PARTITIONS {
            let limit = FetchLimit { records: u32::MAX, bytes: usize::MAX };
            let fetched = store.fetch("t", partition, Position(0), limit).await.expect("a fetch");
            let first = self.firsts.get(&partition).copied().unwrap_or(0);
            assert!(first <= fetched.first.0, "a trim to {first} was undone");
            let records: BTreeMap<_, _> =
                fetched.records.iter().map(|record| (record.position.0, text(record))).collect();
            for ((_, position), stem) in self.appends.range((partition, fetched.first.0)..(partition + 1, 0))
            {
                for part in 0..3 {
                    let found = records.get(&(position + part));
                    assert_eq!(found, Some(&format!("{stem}.{part}")), "{partition}: {}", position + part);
                }
            }
            check_whole(&fetched.records);
        }
        for (key, (revision, value)) in &self.swaps {
            let found = store.get(key).await.expect("a get").expect("an acknowledged key");
            assert!(Revision(*revision) <= found.revision, "{key} fell back from {revision}");
            if found.revision == Revision(*revision) {
                assert_eq!(found.value, value.as_bytes(), "{key} at {revision}");
            }
        }
    }
}

/// Acknowledged or not, each writer's appends are whole, in order, and without a gap but for the trimmed begin.
fn check_whole(records: &[Stored]) {
    let mut last: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for record in records {
        let text = text(record);
        let words: Vec<_> = text.split('.').collect();
        let [round, writer, number, part] = words[..] else { panic!("{text}") };
        let place: (u64, u64) = (number.parse().expect("a number"), part.parse().expect("a part"));
        if let Some(last) = last.insert(format!("{round}.{writer}"), place) {
            let next = if last.1 == 2 { (last.0 + 1, 0) } else { (last.0, last.1 + 1) };
            assert_eq!(place, next, "after {last:?} of {round}.{writer}");
        }
    }
    assert!(last.values().all(|place| place.1 == 2), "an append was torn: {last:?}");
}

fn text(record: &Stored) -> String {
    String::from_utf8_lossy(&record.payload).into_owned()
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let path = home.path().join("store.db");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut said = Said::default();
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut byte = [0];
        getrandom::fill(&mut byte).expect("randomness");
        let span = Duration::from_millis(10 + 2 * u64::from(byte[0]));
        // Round 0 may hit the creation of the file; later ones let it say something first.
        let reader = std::thread::spawn(move || {
            let first = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("ack "));
            (first, lines)
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        while round != 0 && !reader.is_finished() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        std::thread::sleep(span);
        child.kill().expect("the child is killed");
        child.wait().expect("the child is gone");
        let (first, lines) = reader.join().expect("the reader");
        assert!(round == 0 || first.is_some(), "the child said nothing");
        first.into_iter().chain(lines.map_while(Result::ok)).for_each(|line| said.hear(&line));
        let store = SqliteStore::open(&path, Options::default()).expect("the store opens after the kill");
        if !said.appends.is_empty() {
            runtime.block_on(said.check(&store));
        }
        runtime.block_on(store.close());
    }
    assert!(100 < said.appends.len(), "only {} appends", said.appends.len());
    assert_eq!(said.swaps.len(), KEYS as usize, "keys swapped");
    assert!(!said.firsts.is_empty(), "no trim was acknowledged");
}
