//! Cases of [`ClusterStore`].

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::{Subject, Verdict, Violation, hold, join, prompt, refused, restart, same};
use crate::{
    Change, ClusterStore as _, Error, Expected, KEY_BYTES_MAX, Revision, Update, VALUE_BYTES_MAX, Versioned,
    Watch,
};

fn put(text: impl Into<Bytes>) -> Update {
    Update::Put(text.into())
}

pub(super) async fn swaps_follow_the_table<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    let old = store.compare_and_swap("other", Expected::Absent, put("x")).await?;
    #[derive(Clone, Copy, Debug)]
    enum Guess {
        Absent,
        Right,
        Stale,
        Future,
    }
    use Guess::{Absent, Future, Right, Stale};
    // Is the key there? What does the writer believe? What does it want? Does it get it?
    let table = [
        (false, Absent, Some("new"), true),
        (false, Stale, Some("new"), false),
        (false, Stale, None, false),
        (true, Absent, Some("new"), false),
        (true, Right, Some("new"), true),
        (true, Right, Some("old"), true),
        (true, Right, None, true),
        (true, Stale, Some("new"), false),
        (true, Stale, None, false),
        (true, Future, Some("new"), false),
    ];
    for (row, (exists, guess, value, wins)) in table.into_iter().enumerate() {
        let key = format!("table/{row}");
        let mut before = None;
        if exists {
            let revision = store.compare_and_swap(&key, Expected::Absent, put("old")).await?;
            before = Some(Versioned { revision, value: Bytes::from("old") });
        }
        let current = before.as_ref().map(|versioned| versioned.revision);
        let expected = match guess {
            Absent => Expected::Absent,
            Right => Expected::from(current),
            Stale => Expected::At(old),
            Future => Expected::At(Revision(current.map_or(0, |revision| revision.0) + 1)),
        };
        let update = value.map_or(Update::Delete, put);
        let result = store.compare_and_swap(&key, expected, update).await;
        let found = store.get(&key).await?;
        match result {
            Ok(revision) => {
                hold!(wins, "row {row}: the write was accepted");
                hold!(current < Some(revision), "row {row}: revision {revision} after {current:?}");
                let wanted = value.map(|value| Versioned { revision, value: Bytes::from(value) });
                same!(found, wanted, "row {row}: after the write");
            }
            Err(Error::Conflict { key: named, current: told }) => {
                hold!(!wins, "row {row}: the write was refused");
                same!((named, told), (key, current), "row {row}: what the conflict says");
                same!(found, before, "row {row}: after the refusal");
            }
            Err(other) => return Err(other.into()),
        }
    }
    subject.close(store).await;
    Ok(())
}

pub(super) async fn revisions_only_grow<S: Subject>(subject: Arc<S>) -> Verdict {
    let mut store = subject.open().await;
    let mut last = Revision(0);
    for round in 0..4 {
        for key in ["a", "b"] {
            let created = store.compare_and_swap(key, Expected::Absent, put("1")).await?;
            let updated = store.compare_and_swap(key, Expected::At(created), put("2")).await?;
            let deleted = store.compare_and_swap(key, Expected::At(updated), Update::Delete).await?;
            let seen = [last, created, updated, deleted];
            hold!(seen.is_sorted_by(|a, b| a < b), "round {round}: {seen:?} do not grow");
            for stale in [created, updated, deleted] {
                refused!(store.compare_and_swap(key, Expected::At(stale), put("3")), "conflict");
            }
            last = deleted;
        }
        if round % 2 == 0 {
            store = restart(&*subject, store).await;
        }
    }
    subject.close(store).await;
    Ok(())
}

pub(super) async fn lists_are_complete_and_in_order<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    let keys =
        ["a", "a/", "a/1", "a/10", "a/2", "a0", "aa", "b", "é", "é/x", "\u{10ffff}", "\u{10ffff}a", "A"];
    let mut wanted = BTreeMap::new();
    for key in keys {
        wanted.insert(key.to_owned(), store.compare_and_swap(key, Expected::Absent, put(key)).await?);
    }
    let gone = store.compare_and_swap("a/3", Expected::Absent, put("gone")).await?;
    store.compare_and_swap("a/3", Expected::At(gone), Update::Delete).await?;
    for prefix in ["", "a", "a/", "a/1", "A", "b", "c", "é", "é/", "\u{10ffff}", "a/10/"] {
        let found = store.list(prefix).await?;
        let wanted: Vec<_> = wanted.iter().filter(|(key, _)| key.starts_with(prefix)).collect();
        let found: Vec<_> = found.iter().map(|entry| (&entry.key, &entry.versioned.revision)).collect();
        same!(found, wanted, "list of {prefix:?}");
    }
    for entry in store.list("").await? {
        same!(&entry.versioned.value[..], entry.key.as_bytes(), "value of {:?}", entry.key);
    }
    subject.close(store).await;
    Ok(())
}

pub(super) async fn odd_keys_and_values_come_back<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    let long = "k".repeat(KEY_BYTES_MAX);
    let keys = [" ", "nul\0nul", "*", ">", "a.b", "%_", "'; --", "\u{feff}", long.as_str()];
    let values = [vec![], vec![0], vec![0xff; 3], vec![7; VALUE_BYTES_MAX]];
    for (row, key) in keys.into_iter().enumerate() {
        let value = Bytes::from(values[row % values.len()].clone());
        let revision = store.compare_and_swap(key, Expected::Absent, put(value.clone())).await?;
        let found = store.get(key).await?;
        hold!(found == Some(Versioned { revision, value }), "row {row}: key {key:?} came back otherwise");
    }
    same!(store.list("").await?.len(), keys.len(), "keys listed");
    subject.close(store).await;
    Ok(())
}

pub(super) async fn impossible_writes_are_refused<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    refused!(store.compare_and_swap("", Expected::Absent, put("x")), "invalid");
    refused!(store.get(""), "invalid");
    refused!(store.compare_and_swap("k", Expected::Absent, Update::Delete), "invalid");
    refused!(store.compare_and_swap(&long, Expected::Absent, put("x")), "too_large");
    refused!(store.get(&long), "too_large");
    refused!(store.list(&long), "too_large");
    refused!(store.watch(&long), "too_large");
    refused!(store.compare_and_swap("k", Expected::Absent, put(vec![0; VALUE_BYTES_MAX + 1])), "too_large");
    same!(store.list("").await?.len(), 0, "keys written by refused calls");
    subject.close(store).await;
    Ok(())
}

pub(super) async fn exactly_one_wins_each_revision<S: Subject>(subject: Arc<S>) -> Verdict {
    const TASKS: u64 = 16;
    const ROUNDS: u64 = 20;
    let store = subject.open().await;
    let mut expected = Expected::Absent;
    for round in 0..ROUNDS {
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                match store.compare_and_swap("one", expected, put(task.to_string())).await {
                    Ok(revision) => Ok(Some((revision, task))),
                    Err(Error::Conflict { .. }) => Ok(None),
                    Err(other) => Err(Violation::from(other)),
                }
            });
        }
        let winners: Vec<_> = join(tasks).await?.into_iter().flatten().collect();
        let [(revision, task)] = winners[..] else {
            return Err(Violation(format!("round {round}: {} winners", winners.len())));
        };
        let wanted = Versioned { revision, value: Bytes::from(task.to_string()) };
        same!(store.get("one").await?, Some(wanted), "round {round}: what the winner wrote");
        expected = Expected::At(revision);
    }
    // The same with readers that try again: no increment is lost.
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                loop {
                    let found = store.get("sum").await?;
                    let sum = found.as_ref().map_or(0, |found| found.value.len());
                    let expected = Expected::from(found.map(|found| found.revision));
                    match store.compare_and_swap("sum", expected, put(vec![1; sum + 1])).await {
                        Ok(_) => break,
                        Err(Error::Conflict { .. }) => {}
                        Err(other) => return Err(Violation::from(other)),
                    }
                }
            }
            Ok(())
        });
    }
    join(tasks).await?;
    let sum = store.get("sum").await?.map_or(0, |found| found.value.len() as u64);
    same!(sum, TASKS * ROUNDS, "increments that count");
    subject.close(store).await;
    Ok(())
}

/// Reads a watch until `last` was deleted or written; the watch's first `Lagged` ends it too.
async fn until(watch: &mut Watch, last: Revision) -> Result<Vec<Change>, Violation> {
    let mut seen = Vec::new();
    loop {
        let change = prompt("next change", watch.next()).await?;
        let Some(change) = change else { return Err(Violation("the watch ended too early".to_owned())) };
        let is_last = match &change {
            Change::Put { versioned, .. } => versioned.revision == last,
            Change::Deleted { revision, .. } => *revision == last,
            Change::Lagged => true,
        };
        seen.push(change);
        if is_last {
            return Ok(seen);
        }
    }
}

pub(super) async fn a_watch_sees_every_change_in_order<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    store.compare_and_swap("w/before", Expected::Absent, put("x")).await?;
    let mut watch = store.watch("w/").await?;
    let mut everything = store.watch("").await?;
    let mut tasks = JoinSet::new();
    for task in 0..4 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let (key, mut expected, mut made) = (format!("w/{task}"), Expected::Absent, Vec::new());
            for round in 0..25 {
                let value = Bytes::from(format!("{task}.{round}"));
                let is_delete = round % 5 == 4;
                let update = if is_delete { Update::Delete } else { put(value.clone()) };
                let revision = store.compare_and_swap(&key, expected, update).await?;
                store.compare_and_swap(&format!("v/{task}.{round}"), Expected::Absent, put("other")).await?;
                expected = if is_delete { Expected::Absent } else { Expected::At(revision) };
                made.push((revision, (!is_delete).then_some(value)));
            }
            Ok(made.into_iter().map(|(revision, value)| (revision, (key.clone(), value))).collect::<Vec<_>>())
        });
    }
    let mut wanted: BTreeMap<_, _> = join(tasks).await?.into_iter().flatten().collect();
    let last = store.compare_and_swap("w/last", Expected::Absent, put("end")).await?;
    wanted.insert(last, ("w/last".to_owned(), Some(Bytes::from("end"))));
    let mut found = Vec::new();
    for change in until(&mut watch, last).await? {
        match change {
            Change::Put { key, versioned } => found.push((versioned.revision, (key, Some(versioned.value)))),
            Change::Deleted { key, revision } => found.push((revision, (key, None))),
            Change::Lagged => return Err(Violation("a hundred small changes made it lag".to_owned())),
        }
    }
    if subject.may_coalesce() {
        // Every key's last change came, what came is true, and each key's changes are in order.
        for (place, change) in found.iter().enumerate() {
            same!(wanted.get(&change.0), Some(&change.1), "a change that was told");
            let later = found[place + 1..].iter().find(|later| later.1.0 == change.1.0);
            hold!(later.is_none_or(|later| change.0 < later.0), "{later:?} was told after {change:?}");
        }
        for (revision, change) in &wanted {
            let is_last = !wanted.range(revision..).skip(1).any(|(_, later)| later.0 == change.0);
            let is_told = found.iter().any(|told| told.0 == *revision);
            hold!(is_told || !is_last, "the last change of {} was not told", change.0);
        }
    } else {
        same!(found, wanted.into_iter().collect::<Vec<_>>(), "changes told");
        same!(until(&mut everything, last).await?.len(), 201, "changes of every key told");
    }
    subject.close(store).await;
    Ok(())
}

pub(super) async fn a_watch_that_lags_is_told<S: Subject>(subject: Arc<S>) -> Verdict {
    const CHANGES: usize = 300;
    let store = subject.open().await;
    let mut watch = store.watch("").await?;
    for number in 0..CHANGES {
        let value = vec![0; 64 << 10];
        store.compare_and_swap(&format!("{number}"), Expected::Absent, put(value)).await?;
    }
    let last = store.compare_and_swap("last", Expected::Absent, put("1")).await?;
    let seen = until(&mut watch, last).await?;
    if seen.last() != Some(&Change::Lagged) {
        same!(seen.len(), CHANGES + 1, "changes of a watch that was not told it lagged");
    }
    // Told or not, it goes on with what happens now.
    let after = store.compare_and_swap("last", Expected::At(last), put("2")).await?;
    let seen = until(&mut watch, after).await?;
    hold!(!seen.contains(&Change::Lagged), "it was told twice");
    subject.close(store).await;
    Ok(())
}

pub(super) async fn a_watch_ends_with_the_store<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    let mut watch = store.watch("").await?;
    let last = store.compare_and_swap("k", Expected::Absent, put("1")).await?;
    subject.close(store).await;
    until(&mut watch, last).await?;
    same!(prompt("end of a watch", watch.next()).await?, None, "after the store was closed");
    Ok(())
}

pub(super) async fn keys_survive_a_restart<S: Subject>(subject: Arc<S>) -> Verdict {
    let store = subject.open().await;
    for key in ["a", "b", "c"] {
        let revision = store.compare_and_swap(key, Expected::Absent, put("1")).await?;
        store.compare_and_swap(key, Expected::At(revision), put(key)).await?;
    }
    let gone = store.get("b").await?.map(|found| found.revision);
    store.compare_and_swap("b", Expected::from(gone), Update::Delete).await?;
    let before = store.list("").await?;
    let store = restart(&*subject, store).await;
    same!(store.list("").await?, before, "keys after a restart");
    same!(before.len(), 2, "keys");
    store.compare_and_swap("a", Expected::At(before[0].versioned.revision), put("after")).await?;
    subject.close(store).await;
    Ok(())
}
