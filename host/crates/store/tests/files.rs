//! What the embedded backend does with its files: locks, formats, foreign and damaged ones, full disks, closing.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fulcrum_core::Timestamp;
use fulcrum_store::{
    ClusterStore as _, Error, EventLog as _, Expected, FORMAT_VERSION, FetchLimit, Options, Position, Result,
    SqliteStore, Update, VALUE_BYTES_MAX,
};
use rusqlite::Connection;
use tempfile::TempDir;

const CHILD: &str = "FULCRUM_STORE_FILES_CHILD";
const ALL: FetchLimit = FetchLimit { records: u32::MAX, bytes: usize::MAX };

fn home() -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().expect("a temporary directory");
    let path = home.path().join("data/store.db");
    (home, path)
}

fn open(path: &Path) -> Result<SqliteStore> {
    SqliteStore::open(path, Options::default())
}

fn small(bytes: u64) -> Options {
    Options { file_bytes_max: Some(bytes), ..Options::default() }
}

async fn append(store: &SqliteStore, size: usize) -> Result<Vec<Position>> {
    store.append("t", 0, Timestamp(1), vec![Bytes::from(vec![7; size])]).await
}

fn text(error: &Error) -> String {
    error.to_string()
}

/// Not a test by itself: another process that opens a store, and says what came of it.
#[tokio::test]
async fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let mut said = Vec::new();
    match open(Path::new(&path)) {
        Err(error) => said.push(format!("{}: {error}", error.code())),
        Ok(store) => {
            let mut acked = 0;
            for _ in 0..10_000 {
                match append(&store, 3000).await {
                    Ok(_) => acked += 1,
                    Err(error) => {
                        said.push(error.code().to_owned());
                        break;
                    }
                }
            }
            said.push(
                append(&store, 1).await.map_or_else(|error| error.code().to_owned(), |_| "ok".to_owned()),
            );
            let read = store.fetch("t", 0, Position(0), ALL).await.map(|fetched| fetched.records.len());
            said.push(format!("{}", read.expect("reads go on") == acked));
            said.push(acked.to_string());
            store.close().await;
        }
    }
    writeln!(std::io::stdout(), "\nsaid {}", said.join(" ")).expect("the parent listens");
}

fn run_child(path: &Path, limit: &str) -> String {
    let script = format!("trap '' XFSZ; {limit} exec \"$0\" --exact child --nocapture");
    let binary = std::env::current_exe().expect("this binary");
    let child = Command::new("sh")
        .arg("-c")
        .arg(script)
        .arg(binary)
        .env(CHILD, path)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the child starts");
    let output = child.wait_with_output().expect("the child ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text.lines().find_map(|line| line.strip_prefix("said "));
    said.unwrap_or_else(|| panic!("the child said nothing: {text}")).to_owned()
}

#[tokio::test]
async fn a_second_process_is_told_who_holds_the_store() {
    let (_home, path) = home();
    let store = open(&path).expect("opens");
    let said = run_child(&path, "");
    let lock = format!("{}.lock", path.display());
    for part in ["store_in_use", &path.display().to_string(), &lock, &std::process::id().to_string(), "stop"]
    {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
    let error = open(&path).expect_err("this process holds it too");
    assert!(matches!(error, Error::InUse { .. }) && error.is_retryable(), "{error}");
    store.close().await;
    drop(open(&path).expect("opens once the other is closed"));
    open(&path).expect("opens once the other is dropped").close().await;
}

#[tokio::test]
async fn another_format_is_refused_by_name() {
    let (_home, path) = home();
    open(&path).expect("opens").close().await;
    let advice = [(FORMAT_VERSION + 1, "use the newer host"), (0, "can upgrade it")];
    for (found, advice) in advice {
        Connection::open(&path).and_then(|c| c.pragma_update(None, "user_version", found)).expect("a pragma");
        let error = open(&path).expect_err("another format");
        assert_eq!((error.code(), error.is_retryable()), ("store_format", false));
        let words = [path.display().to_string(), format!("format {found}"), advice.to_owned()];
        assert!(words.iter().all(|word| text(&error).contains(word)), "{error}");
    }
    Connection::open(&path)
        .and_then(|c| c.pragma_update(None, "user_version", FORMAT_VERSION))
        .expect("a pragma");
    open(&path).expect("opens again").close().await;
}

#[test]
fn a_foreign_file_is_refused_and_left_alone() {
    let (_home, path) = home();
    fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    let check = |what: &str| {
        let before = fs::read(&path).expect("the file");
        let error = open(&path).expect_err(what);
        assert_eq!(error.code(), "store_foreign", "{what}: {error}");
        assert!(text(&error).contains(&path.display().to_string()), "{error}");
        assert_eq!(fs::read(&path).expect("the file"), before, "{what} was changed");
        fs::remove_file(&path).expect("the file");
    };
    fs::write(&path, "my diary").expect("a file");
    check("a text");
    fs::write(&path, [0; 8192]).expect("a file");
    check("zeros");
    fs::write(&path, [&b"SQLite format 3\0"[..], &[9; 8000]].concat()).expect("a file");
    check("something that only begins like a database");
    let other = "CREATE TABLE mine (x); INSERT INTO mine VALUES (1)";
    Connection::open(&path).and_then(|c| c.execute_batch(other)).expect("a database");
    check("another database");
    let other = "PRAGMA application_id = 7";
    Connection::open(&path).and_then(|c| c.execute_batch(other)).expect("a database");
    check("an empty database of another application");
    fs::write(&path, "").expect("a file");
    drop(open(&path).expect("an empty file is as good as none"));
    let error = open(path.parent().expect("a directory")).expect_err("a directory");
    assert_eq!(error.code(), "store_open", "{error}");
}

#[tokio::test]
async fn a_damaged_file_is_never_read_as_a_whole_one() {
    const PAGE: u64 = 4096;
    let (_home, path) = home();
    let store = open(&path).expect("opens");
    store.create_topic("t", 2).await.expect("a topic");
    for number in 0..40 {
        append(&store, 900).await.expect("append");
        let key = format!("k/{number}");
        let value = Update::Put(Bytes::from(vec![1; 900]));
        store.compare_and_swap(&key, Expected::Absent, value).await.expect("swap");
    }
    let keys = store.list("").await.expect("list");
    let records = store.fetch("t", 0, Position(0), ALL).await.expect("fetch");
    store.close().await;
    let whole = fs::read(&path).expect("the file");
    let pages = whole.len() as u64 / PAGE;
    let (mut damaged, mut refused) = (0, 0);
    for page in 0..pages {
        for is_cut in [false, true] {
            fs::write(&path, &whole).expect("the file");
            let mut file = fs::OpenOptions::new().write(true).open(&path).expect("the file");
            if is_cut {
                file.set_len(page * PAGE + 100).expect("cut");
            } else {
                file.seek(SeekFrom::Start(page * PAGE)).expect("seek");
                file.write_all(&[0xaa; PAGE as usize]).expect("write");
            }
            drop(file);
            damaged += 1;
            let store = match open(&path) {
                Ok(store) => store,
                Err(error) => {
                    let code = error.code();
                    assert!(["store_corrupt", "store_foreign"].contains(&code), "page {page}: {error:?}");
                    refused += 1;
                    continue;
                }
            };
            let found = (store.list("").await, store.fetch("t", 0, Position(0), ALL).await);
            let codes = [found.0.as_ref().err(), found.1.as_ref().err()];
            for error in codes.iter().flatten() {
                assert_eq!(error.code(), "store_corrupt", "page {page}: {error:?}");
                assert!(text(error).contains(&path.display().to_string()), "{error}");
            }
            refused += usize::from(codes.iter().any(Option::is_some));
            assert!(found.0.is_err() || found.0.is_ok_and(|list| list == keys), "page {page}: other keys");
            assert!(
                found.1.is_err() || found.1.is_ok_and(|all| all == records),
                "page {page}: other records"
            );
            store.close().await;
        }
    }
    assert!(damaged / 2 < refused, "only {refused} of {damaged} damages were noticed");
}

#[tokio::test]
async fn a_record_that_is_missing_is_no_silent_gap() {
    let (_home, path) = home();
    let store = open(&path).expect("opens");
    store.create_topic("t", 1).await.expect("a topic");
    for size in 0..5 {
        append(&store, size).await.expect("append");
    }
    store.close().await;
    let delete = "DELETE FROM log WHERE length(payload) = 2";
    Connection::open(&path).and_then(|c| c.execute_batch(delete)).expect("a deletion");
    let store = open(&path).expect("opens");
    let error = store.fetch("t", 0, Position(0), ALL).await.expect_err("a gap");
    assert_eq!(error.code(), "store_corrupt", "{error}");
    assert_eq!(store.fetch("t", 0, Position(3), ALL).await.expect("after the gap").records.len(), 2);
}

#[tokio::test]
async fn a_full_store_refuses_writes_reads_on_and_recovers() {
    let (_home, path) = home();
    let store = SqliteStore::open(&path, small(4 << 20)).expect("opens");
    store.create_topic("t", 1).await.expect("a topic");
    let mut positions = Vec::new();
    let error = loop {
        match append(&store, 100_000).await {
            Ok(position) => positions.extend(position),
            Err(error) => break error,
        }
        assert!(positions.len() < 100, "it never fills");
    };
    assert_eq!((error.code(), error.is_retryable()), ("disk_full", true), "{error}");
    assert!(text(&error).contains(&path.display().to_string()), "{error}");
    let fetched = store.fetch("t", 0, Position(0), ALL).await.expect("reads go on");
    assert_eq!(fetched.records.len(), positions.len());
    // In one batch with writes that cannot be, what can be is.
    let store = Arc::new(store);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(&store);
        tasks.spawn(async move { append(&store, VALUE_BYTES_MAX).await.map(|_| ()) });
    }
    store.trim("t", 0, positions[20]).await.expect("a trim goes on");
    tasks.join_all().await;
    store.trim("t", 0, Position(u64::MAX)).await.expect("a trim goes on");
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(error) = append(&store, 500_000).await {
        assert_eq!(error.code(), "disk_full", "{error}");
        assert!(Instant::now() < deadline, "the space never came back");
        tokio::task::yield_now().await;
    }
    store.close().await;
    open(&path).expect("opens").close().await;
}

#[tokio::test]
async fn a_store_full_of_events_keeps_progress_and_can_be_emptied() {
    let (_home, path) = home();
    let store = SqliteStore::open(&path, small(4 << 20)).expect("opens");
    store.create_topic("t", 2).await.expect("a topic");
    let fill = async |size: usize| {
        for _ in 0..10_000 {
            match append(&store, size).await {
                Ok(_) => {}
                Err(error) => return assert_eq!(error.code(), "disk_full", "{error}"),
            }
        }
        panic!("it never fills");
    };
    for size in [100_000, 3000, 1] {
        fill(size).await;
    }
    let refused = store.create_topic("u", 1000).await.expect_err("a topic is for events");
    assert_eq!(refused.code(), "disk_full", "{refused}");
    // Progress of readers: new keys, and old ones that grow.
    let mut revisions = std::collections::BTreeMap::new();
    for round in 0..20_usize {
        for reader in 0..5 {
            let key = format!("reader/{reader}");
            let expected = revisions.get(&key).map_or(Expected::Absent, |revision| Expected::At(*revision));
            let value = Update::Put(Bytes::from(vec![1; 100 * (round + 1)]));
            let revision = store.compare_and_swap(&key, expected, value).await.expect("progress is kept");
            revisions.insert(key, revision);
        }
    }
    // Records have an end too, and then space can still be made.
    let error = loop {
        let key = format!("large/{}", revisions.len());
        let value = Update::Put(Bytes::from(vec![1; 50_000]));
        match store.compare_and_swap(&key, Expected::Absent, value).await {
            Ok(revision) => revisions.insert(key, revision),
            Err(error) => break error,
        };
        assert!(revisions.len() < 1000, "records never fill it");
    };
    assert_eq!(error.code(), "disk_full", "{error}");
    let (key, revision) = revisions.pop_first().expect("there are some");
    store.compare_and_swap(&key, Expected::At(revision), Update::Delete).await.expect("a deletion goes on");
    store.trim("t", 0, Position(3)).await.expect("a trim goes on");
    store.delete_topic("t").await.expect("a deletion goes on");
    eventually("a topic is made again", async || store.create_topic("t", 1).await.is_ok()).await;
    eventually("events are taken again", async || append(&store, 500_000).await.is_ok()).await;
    assert!(fs::metadata(&path).expect("the file").len() <= 4 << 20, "it is larger than it may be");
    store.close().await;
}

#[tokio::test]
async fn swept_space_is_used_again() {
    let (_home, path) = home();
    let mut sizes = Vec::new();
    for _ in 0..5 {
        let store = open(&path).expect("opens");
        store.create_topic("t", 1).await.expect("a topic");
        for trim in [true, false] {
            for _ in 0..20 {
                append(&store, 100_000).await.expect("append");
            }
            if trim {
                store.trim("t", 0, Position(u64::MAX)).await.expect("trim");
                eventually("a trim is swept", async || store.partition("t", 0).await.expect("it").bytes == 0)
                    .await;
            }
        }
        store.delete_topic("t").await.expect("delete");
        store.close().await;
        // What was left at the close is swept after the next open.
        let store = open(&path).expect("opens");
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let reader = Connection::open_with_flags(&path, flags).expect("a reader");
        let count = "SELECT (SELECT count(*) FROM topics) + (SELECT count(*) FROM log)";
        let left = || reader.query_row(count, [], |row| row.get::<_, i64>(0)).expect("a count");
        eventually("a deleted topic is swept", async || left() == 0).await;
        drop(reader);
        store.close().await;
        sizes.push(fs::metadata(&path).expect("the file").len());
    }
    assert!(sizes[4] <= sizes[0] * 5 / 4, "the file grows: {sizes:?}");
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn after_a_failed_commit_nothing_more_is_written() {
    let (_home, path) = home();
    let store = open(&path).expect("opens");
    store.create_topic("t", 1).await.expect("a topic");
    store.close().await;
    // Writing beyond the limit fails with an error that is not about a full disk.
    let said = run_child(&path, "ulimit -f 1000;");
    let words: Vec<_> = said.split(' ').collect();
    assert_eq!(words[..3], ["store_ambiguous", "store_halted", "true"], "{said}");
    let acked: usize = words[3].parse().expect("a number");
    assert!(10 < acked, "{said}");
    let store = open(&path).expect("opens again");
    let found = store.fetch("t", 0, Position(0), ALL).await.expect("a fetch").records.len();
    assert!((acked..=acked + 1).contains(&found), "{found} of {acked} are there");
    append(&store, 1).await.expect("writing goes on");
}

#[tokio::test]
async fn a_closed_store_did_what_it_accepted_and_refuses_the_rest() {
    let (_home, path) = home();
    let store = Arc::new(open(&path).expect("opens"));
    store.create_topic("t", 1).await.expect("a topic");
    let waiter = Arc::clone(&store);
    let wait = tokio::spawn(async move { waiter.wait("t", 0, Position(1_000_000)).await });
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let store = Arc::clone(&store);
        // Together more than the queue takes at once.
        tasks.spawn(async move { append(&store, 200_000).await });
    }
    while store.partition("t", 0).await.expect("a partition").bytes == 0 {
        tokio::task::yield_now().await;
    }
    tokio::join!(store.close(), store.close());
    let mut done = 0;
    for result in tasks.join_all().await {
        match result {
            Ok(_) => done += 1,
            Err(error) => assert_eq!(error.code(), "store_closed", "{error}"),
        }
    }
    assert!(0 < done, "nothing was done");
    let code = |error: Error| error.code();
    assert_eq!(wait.await.expect("no panic").map_err(code), Err("store_closed"));
    assert_eq!(store.get("k").await.map_err(code), Err("store_closed"));
    assert_eq!(store.topics().await.map_err(code), Err("store_closed"));
    assert_eq!(store.topic("t").await.map_err(code), Err("store_closed"));
    assert_eq!(append(&store, 1).await.map_err(code), Err("store_closed"));
    assert!(matches!(store.watch("").await, Err(Error::Closed)));
    assert!(!path.with_extension("db-wal").exists(), "the write-ahead log is left");
    let store = open(&path).expect("opens");
    assert_eq!(store.fetch("t", 0, Position(0), ALL).await.expect("a fetch").records.len(), done);
}
