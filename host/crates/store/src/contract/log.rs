//! Cases of [`EventLog`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fulcrum_core::{NAME_BYTES_MAX, Timestamp};
use tokio::task::JoinSet;

use super::{Subject, Verdict, Violation, hold, join, prompt, refused, restart, same};
use crate::{
    APPEND_BYTES_MAX, APPEND_RECORDS_MAX, EventLog, FetchLimit, PARTITIONS_MAX, Partition, Position, Result,
    SIZE_STEP_RECORDS, Stored, Topic, VALUE_BYTES_MAX,
};

const NO_LIMIT: FetchLimit = FetchLimit { records: u32::MAX, bytes: usize::MAX };
const START: Position = Position(0);

/// Reads a partition from `from` to its end, in as many fetches as it takes.
pub(super) async fn read(
    store: &impl EventLog,
    topic: &str,
    partition: u32,
    from: Position,
    limit: FetchLimit,
) -> std::result::Result<Vec<Stored>, Violation> {
    let (mut records, mut next) = (Vec::<Stored>::new(), from);
    loop {
        let fetched = store.fetch(topic, partition, next, limit).await?;
        if fetched.records.is_empty() {
            hold!(
                fetched.end <= fetched.next,
                "nothing was fetched at {next}, before the end {}",
                fetched.end
            );
            return Ok(records);
        }
        for record in &fetched.records {
            let after = records.last().is_none_or(|last| last.position < record.position);
            hold!(after && next <= record.position, "position {} does not grow", record.position);
            hold!(
                record.position < fetched.next,
                "{} is not below the next, {}",
                record.position,
                fetched.next
            );
            hold!((fetched.first..fetched.end).contains(&record.position), "a record outside its partition");
        }
        next = fetched.next;
        records.extend(fetched.records);
    }
}

fn texts(records: &[Stored]) -> Vec<String> {
    records.iter().map(|record| String::from_utf8_lossy(&record.payload).into_owned()).collect()
}

async fn append(store: &impl EventLog, partition: u32, at: u64, text: &str) -> Result<Vec<Position>> {
    let records = text.split_whitespace().map(|word| Bytes::from(word.to_owned())).collect();
    store.append("t", partition, Timestamp(at), records).await
}

pub(super) async fn topics_are_made_grown_and_deleted<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    same!(store.topics().await?, vec![], "topics at first");
    let made = store.create_topic("t", 2).await?;
    same!((made.name.as_str(), made.partition_count), ("t", 2), "the topic made");
    let other = store.create_topic("größe*.> x", 1).await?;
    refused!(store.create_topic("t", 2), "topic_exists");
    refused!(store.create_topic("t", 3), "topic_exists");
    refused!(store.create_topic("", 1), "invalid");
    refused!(store.create_topic("z", 0), "invalid");
    refused!(store.create_topic("z", PARTITIONS_MAX + 1), "too_large");
    refused!(store.create_topic(&"z".repeat(NAME_BYTES_MAX + 1), 1), "too_large");
    append(&*store, 1, 1, "a b").await?;
    let grown = store.grow_topic("t", 5).await?;
    same!(grown, Topic { partition_count: 5, ..made.clone() }, "the topic grown");
    same!(store.grow_topic("t", 5).await?, grown, "the topic grown by nothing");
    refused!(store.grow_topic("t", 4), "partitions_only_grow");
    refused!(store.grow_topic("t", PARTITIONS_MAX + 1), "too_large");
    same!(store.topic("t").await?, grown, "the topic described");
    same!(texts(&read(&*store, "t", 1, START, NO_LIMIT).await?), ["a", "b"], "records of a grown topic");
    append(&*store, 4, 1, "c").await?;
    let mut all = vec![grown, other.clone()];
    all.sort_by(|a, b| a.name.cmp(&b.name));
    same!(store.topics().await?, all, "topics");

    store.delete_topic("t").await?;
    refused!(store.delete_topic("t"), "unknown_topic");
    refused!(append(&*store, 0, 1, "x"), "unknown_topic");
    same!(store.topics().await?, vec![other], "topics after one was deleted");
    let store = restart(&*subject, store).await;
    refused!(store.topic("t"), "unknown_topic");
    let again = store.create_topic("t", 2).await?;
    hold!(again.incarnation != made.incarnation, "a deleted topic came back as the same");
    same!(read(&*store, "t", 1, START, NO_LIMIT).await?, vec![], "records of a topic made again");
    subject.close(store).await;
    Ok(())
}

pub(super) async fn records_come_back_in_order<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    store.create_topic("t", 3).await?;
    store.create_topic("u", 1).await?;
    let mut positions = Vec::new();
    for round in 0..30 {
        positions.extend(append(&*store, 1, round, &format!("{round}.a {round}.b")).await?);
        append(&*store, 2, round, "other").await?;
    }
    store.append("u", 0, Timestamp(1), vec![Bytes::from("u")]).await?;
    let found = read(&*store, "t", 1, START, NO_LIMIT).await?;
    let wanted: Vec<_> = (0..30).flat_map(|round| [format!("{round}.a"), format!("{round}.b")]).collect();
    same!(texts(&found), wanted, "records");
    let places: Vec<_> = found.iter().map(|record| record.position).collect();
    same!(places, positions, "positions");
    same!(read(&*store, "t", 0, START, NO_LIMIT).await?, vec![], "a partition nobody wrote to");
    let partition = store.partition("t", 1).await?;
    hold!(partition.first <= positions[0], "first {} above the first record", partition.first);
    hold!(positions[59] < partition.end, "end {} not above the last record", partition.end);
    // From the middle, from between and from beyond.
    same!(read(&*store, "t", 1, positions[40], NO_LIMIT).await?, found[40..].to_vec(), "from the middle");
    let beyond = Position(partition.end.0 + 1000);
    let fetched = store.fetch("t", 1, beyond, NO_LIMIT).await?;
    same!(
        (fetched.records, fetched.next, fetched.end),
        (vec![], beyond, partition.end),
        "from beyond the end"
    );
    let odd = vec![Bytes::new(), Bytes::from(vec![0xff; VALUE_BYTES_MAX]), Bytes::from_static(b"\0")];
    store.append("t", 0, Timestamp(1), odd.clone()).await?;
    let found: Vec<_> = read(&*store, "t", 0, START, NO_LIMIT).await?;
    hold!(found.into_iter().map(|record| record.payload).eq(odd), "odd records came back otherwise");
    same!(append(&*store, 0, 1, "").await?, vec![], "an append of nothing");
    subject.close(store).await;
    Ok(())
}

pub(super) async fn a_fetch_keeps_its_limits<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    store.create_topic("t", 1).await?;
    append(&*store, 0, 1, "1 22 333 4444 55555 666666 1 1 1 1").await?;
    let all = read(&*store, "t", 0, START, NO_LIMIT).await?;
    let table =
        [(0, 100), (1, 100), (3, 100), (100, 0), (100, 1), (100, 3), (100, 5), (100, 10), (2, 3), (7, 7)];
    for (records, bytes) in table {
        let limit = FetchLimit { records, bytes };
        for from in 0..all.len() {
            let found = store.fetch("t", 0, all[from].position, limit).await?.records;
            let count = found.len();
            hold!(1 <= count && count <= records.max(1) as usize, "{count} records at {limit:?}");
            hold!(all[from..].starts_with(&found), "other records at {limit:?}");
            let size: usize = found.iter().map(|record| record.payload.len()).sum();
            hold!(size <= bytes || count == 1, "{size} bytes in {count} records at {limit:?}");
        }
        same!(read(&*store, "t", 0, START, limit).await?, all, "all records at {limit:?}");
    }
    subject.close(store).await;
    Ok(())
}

pub(super) async fn appends_are_whole_and_unmixed<S: Subject>(subject: Arc<S>) -> Verdict {
    const TASKS: usize = 8;
    const ROUNDS: usize = 15;
    let store = subject.open().await;
    store.create_topic("t", 2).await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let mut made = Vec::new();
            for round in 0..ROUNDS {
                let text = format!("{task}.{round}.0 {task}.{round}.1 {task}.{round}.2");
                let positions = append(&*store, 1, 1, &text).await?;
                made.extend(positions.into_iter().zip(text.split_whitespace().map(str::to_owned)));
            }
            hold!(made.is_sorted(), "one writer's positions do not grow");
            Ok(made)
        });
    }
    let mut wanted: Vec<_> = join(tasks).await?.into_iter().flatten().collect();
    wanted.sort();
    let found = read(&*store, "t", 1, START, NO_LIMIT).await?;
    let places = found.iter().map(|record| record.position);
    let found: Vec<_> = places.zip(texts(&found)).collect();
    same!(found.len(), TASKS * ROUNDS * 3, "records");
    same!(found, wanted, "records at their positions");
    for batch in found.chunks(3) {
        let stem = |text: &str| text.rsplit_once('.').map(|(stem, _)| stem.to_owned());
        hold!(batch.iter().all(|(_, text)| stem(text) == stem(&batch[0].1)), "a batch was torn: {batch:?}");
    }
    subject.close(store).await;
    Ok(())
}

pub(super) async fn a_trim_is_for_ever<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    store.create_topic("t", 2).await?;
    let words: Vec<_> = (0..2500).map(|word| word.to_string()).collect();
    let positions = append(&*store, 0, 1, &words.join(" ")).await?;
    append(&*store, 1, 1, "other").await?;
    let mut last = Position(0);
    // Up, back, up by more than one step of any sweep, back.
    for index in [5, 3, 2300, 2299, 0] {
        let highest = last.max(positions[index]);
        let first = store.trim("t", 0, positions[index]).await?;
        same!(first, highest, "begin after a trim to record {index}");
        same!(store.partition("t", 0).await?.first, highest, "begin as described");
        let fetched = store.fetch("t", 0, START, FetchLimit { records: 1, bytes: 1 }).await?;
        same!(fetched.first, highest, "begin as a fetch tells it");
        same!(fetched.records.first().map(|record| record.position), Some(highest), "first record fetched");
        last = highest;
    }
    same!(texts(&read(&*store, "t", 0, START, NO_LIMIT).await?), &words[2300..], "records after trims");
    let end = store.partition("t", 0).await?.end;
    same!(store.trim("t", 0, Position(u64::MAX)).await?, end, "begin after everything was trimmed");
    let store = restart(&*subject, store).await;
    same!(read(&*store, "t", 0, START, NO_LIMIT).await?, vec![], "records after everything was trimmed");
    let partition = store.partition("t", 0).await?;
    same!((partition.first, partition.end), (end, end), "the empty partition after a restart");
    let after = append(&*store, 0, 1, "after").await?;
    hold!(positions[2499] < after[0], "a position was given twice");
    same!(texts(&read(&*store, "t", 0, START, NO_LIMIT).await?), ["after"], "records appended after a trim");
    same!(texts(&read(&*store, "t", 1, START, NO_LIMIT).await?), ["other"], "records of the other partition");
    subject.close(store).await;
    Ok(())
}

pub(super) async fn positions_are_found_by_time<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    store.create_topic("t", 1).await?;
    same!(store.position_at("t", 0, Timestamp(5)).await?, store.partition("t", 0).await?.end, "in nothing");
    let mut positions = Vec::new();
    // A clock that falls back: the log's own times do not.
    for (at, text) in [(10, "a b"), (20, "c"), (15, "d"), (30, "e f"), (30, "g")] {
        positions.extend(append(&*store, 0, at, text).await?);
    }
    let times: Vec<_> =
        read(&*store, "t", 0, START, NO_LIMIT).await?.iter().map(|record| record.at.0).collect();
    same!(times, [10, 10, 20, 20, 30, 30, 30], "times of the records");
    for (at, index) in [(0, 0), (10, 0), (11, 2), (20, 2), (21, 4), (30, 4)] {
        same!(store.position_at("t", 0, Timestamp(at)).await?, positions[index], "first at {at} or later");
    }
    let end = store.partition("t", 0).await?.end;
    same!(store.position_at("t", 0, Timestamp(31)).await?, end, "later than all");
    same!(store.position_at("t", 0, Timestamp(u64::MAX)).await?, end, "at the end of time");
    store.trim("t", 0, positions[3]).await?;
    same!(store.position_at("t", 0, Timestamp(0)).await?, positions[3], "first after a trim");
    subject.close(store).await;
    Ok(())
}

pub(super) async fn positions_are_found_by_size<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    store.create_topic("t", 2).await?;
    same!(store.position_by_size("t", 0, 0).await?, store.partition("t", 0).await?.end, "in nothing");
    append(&*store, 1, 1, "other").await?;
    let mut positions = Vec::new();
    for text in ["1 22", "333 4444", "55555"] {
        positions.extend(append(&*store, 0, 1, text).await?);
    }
    positions.push(store.partition("t", 0).await?.end);
    let table = [(100, 0), (15, 0), (14, 1), (13, 2), (12, 2), (11, 3), (9, 3), (5, 4), (4, 5), (0, 5)];
    for (bytes, index) in table {
        same!(store.position_by_size("t", 0, bytes).await?, positions[index], "where {bytes} bytes begin");
    }
    // What was trimmed does not count, whether it is swept away or not.
    store.trim("t", 0, positions[2]).await?;
    for (bytes, index) in [(100, 2), (12, 2), (11, 3), (4, 5)] {
        let found = store.position_by_size("t", 0, bytes).await?;
        same!(found, positions[index], "where {bytes} bytes begin after a trim");
    }
    // Step by step through more than one search looks at.
    let step = usize::try_from(SIZE_STEP_RECORDS).unwrap_or(usize::MAX);
    for _ in 0..3 {
        store.append("t", 1, Timestamp(1), vec![Bytes::from_static(b"x"); step / 2]).await?;
    }
    let wanted = Position(store.partition("t", 1).await?.end.0 - 100);
    let mut steps = 0;
    while store.partition("t", 1).await?.first < wanted {
        let to = store.position_by_size("t", 1, 100).await?;
        hold!(to <= wanted, "trimmed to {to}, above {wanted}");
        store.trim("t", 1, to).await?;
        steps += 1;
        hold!(steps < 1_000_000, "a trim by size never ends");
        tokio::task::yield_now().await;
    }
    subject.close(store).await;
    Ok(())
}

pub(super) async fn a_wait_ends_on_arrival<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    store.create_topic("t", 2).await?;
    let mut waits = JoinSet::new();
    let start = store.partition("t", 0).await?.end;
    for _ in 0..50 {
        let store = Arc::clone(&store);
        waits.spawn(async move { Ok(store.wait("t", 0, start).await?) });
    }
    append(&*store, 1, 1, "elsewhere").await?;
    let early = tokio::time::timeout(Duration::from_millis(50), waits.join_next()).await;
    hold!(early.is_err(), "a wait ended with nothing there");
    append(&*store, 0, 1, "here").await?;
    let ends = prompt("ends of waits", join(waits)).await??;
    hold!(ends.iter().all(|end| start < *end), "a wait answered an end that is not above");
    prompt("a wait for what is there", store.wait("t", 0, start)).await??;
    // A wait from further on goes on, and ends with its topic.
    let end = store.partition("t", 0).await?.end;
    let waiter = Arc::clone(&store);
    let late = tokio::spawn(async move { waiter.wait("t", 0, end).await.map_err(|error| error.code()) });
    tokio::task::yield_now().await;
    store.delete_topic("t").await?;
    let outcome = prompt("end of a wait with its topic", late).await?;
    let outcome = outcome.map_err(|error| Violation(error.to_string()))?;
    same!(outcome, Err("unknown_topic"), "a wait whose topic was deleted");
    subject.close(store).await;
    Ok(())
}

pub(super) async fn what_is_not_there_is_named<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    let one = || vec![Bytes::from("x")];
    store.create_topic("t", 1).await?;
    for (topic, partition) in [("t", 1), ("t", u32::MAX), ("u", 0), ("", 0)] {
        macro_rules! each {
            ($code:literal) => {
                refused!(store.append(topic, partition, Timestamp(1), one()), $code);
                refused!(store.fetch(topic, partition, START, NO_LIMIT), $code);
                refused!(store.partition(topic, partition), $code);
                refused!(store.position_at(topic, partition, Timestamp(1)), $code);
                refused!(store.position_by_size(topic, partition, 1), $code);
                refused!(store.wait(topic, partition, START), $code);
                refused!(store.trim(topic, partition, START), $code);
            };
        }
        if topic == "t" {
            each!("unknown_partition");
        } else {
            each!("unknown_topic");
        }
    }
    refused!(store.topic("u"), "unknown_topic");
    refused!(store.grow_topic("u", 2), "unknown_topic");
    refused!(store.delete_topic("u"), "unknown_topic");
    subject.close(store).await;
    Ok(())
}

pub(super) async fn impossible_appends_are_refused<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    store.create_topic("t", 1).await?;
    let large = Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
    let full = vec![Bytes::from(vec![0; VALUE_BYTES_MAX]); APPEND_BYTES_MAX / VALUE_BYTES_MAX];
    let over = [full.clone(), vec![Bytes::from("x")]].concat();
    let many = vec![Bytes::new(); APPEND_RECORDS_MAX + 1];
    for records in [vec![Bytes::from("x"), large], over, many] {
        refused!(store.append("t", 0, Timestamp(1), records), "too_large");
    }
    same!(read(&*store, "t", 0, START, NO_LIMIT).await?, vec![], "records of refused appends");
    store.append("t", 0, Timestamp(1), full).await?;
    store.append("t", 0, Timestamp(1), vec![Bytes::new(); APPEND_RECORDS_MAX]).await?;
    subject.close(store).await;
    Ok(())
}

pub(super) async fn records_survive_a_restart<S: Subject>(subject: Arc<S>) -> Verdict {
    let mut store = subject.open().await;
    store.create_topic("t", 2).await?;
    let mut wanted = Vec::new();
    for round in 0..5 {
        append(&*store, 0, round, &format!("{round}.a {round}.b")).await?;
        wanted.extend([format!("{round}.a"), format!("{round}.b")]);
        let before = read(&*store, "t", 0, START, NO_LIMIT).await?;
        let partition = store.partition("t", 0).await?;
        let topics = store.topics().await?;
        store = restart(&*subject, store).await;
        same!(read(&*store, "t", 0, START, NO_LIMIT).await?, before, "records after restart {round}");
        same!(texts(&before), wanted, "records before restart {round}");
        same!(store.partition("t", 0).await?, partition, "the partition after restart {round}");
        same!(store.topics().await?, topics, "topics after restart {round}");
    }
    subject.close(store).await;
    Ok(())
}

pub(super) async fn partitions_are_described_together<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    refused!(store.partitions("t"), "unknown_topic");
    store.create_topic("u", 3).await?;
    // More than ten, so that an order of texts is noticed.
    store.create_topic("t", 12).await?;
    for (partition, text) in [(0, "a"), (2, "b b b"), (10, "c c"), (11, "d d d d")] {
        append(&*store, partition, 1, text).await?;
    }
    let end = store.partition("t", 11).await?.end;
    store.trim("t", 11, end).await?;
    store.grow_topic("t", 14).await?;
    append(&*store, 13, 1, "e").await?;
    // What was trimmed may be swept away between the calls.
    let swept = |at: Partition| Partition { bytes: if at.first == at.end { 0 } else { at.bytes }, ..at };
    let mut wanted = Vec::new();
    for partition in 0..14 {
        wanted.push(swept(store.partition("t", partition).await?));
    }
    let found: Vec<_> = store.partitions("t").await?.into_iter().map(swept).collect();
    same!(found, wanted, "all partitions");
    same!(store.partitions("u").await?.len(), 3, "partitions of another topic");
    let store = restart(&*subject, store).await;
    let found: Vec<_> = store.partitions("t").await?.into_iter().map(swept).collect();
    same!(found, wanted, "all partitions after a restart");
    store.delete_topic("t").await?;
    refused!(store.partitions("t"), "unknown_topic");
    store.create_topic("t", 2).await?;
    let made = [store.partition("t", 0).await?, store.partition("t", 1).await?];
    same!(store.partitions("t").await?, made.to_vec(), "partitions of a topic made again");
    subject.close(store).await;
    Ok(())
}
