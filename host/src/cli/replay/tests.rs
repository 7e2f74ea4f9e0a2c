//! What cannot be read, or is not there any more, does not keep the rest from being replayed.

use std::fs;

use clap::Parser as _;
use fulcrum_core::claiming::{Cycle, Plan, Reason};
use fulcrum_policy::Outcome;
use fulcrum_policy::journal::Encoder;
use fulcrum_policy::planner::{Planned, Wish};
use fulcrum_policy::tap::Claimed;

use super::*;

#[derive(clap::Parser)]
struct Arguments {
    #[command(flatten)]
    replay: Replay,
}

fn replay(journal: &Path, more: &[&str]) -> Replay {
    let journal = journal.to_str().expect("temporary folders have plain names");
    Arguments::parse_from([&["replay", journal], more].concat()).replay
}

/// A segment of one plan by the fallback, written by a host with such limits.
fn segment(limits: &Limits) -> Vec<u8> {
    let cycle = Cycle {
        group: "g".to_owned(),
        members: Vec::new(),
        topics: Vec::new(),
        places: Vec::new(),
        topic: Vec::new(),
        number: Vec::new(),
        place: Vec::new(),
        owner: Vec::new(),
        moving: Vec::new(),
        weight: Vec::new(),
        held_ms: Vec::new(),
        movement_budget: None,
        reason: Reason::Join,
        now_ms: 7,
        seed: 0,
    };
    let planned =
        Planned { plan: Plan::default(), by: None, asked: None, outcome: Outcome::Open, problem: None };
    let wish = Wish { policy: None, config: serde_json::Value::Null };
    let claimed = Claimed { group: "g".to_owned(), wish, cycle, planned, nanos: 1 };
    let (mut encoder, mut text) = (Encoder::new(Header::new("0.0.0", limits)), Vec::new());
    encoder.begin(&mut text).expect("written");
    encoder.claimed(&claimed, &mut text).expect("written");
    text
}

/// A folder with two good segments, 1 and 9.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let more = Limits { memory_bytes: 1 << 30, ..Limits::default() };
    fs::write(path(&folder, 1), segment(&Limits::default())).expect("written");
    fs::write(path(&folder, 9), segment(&more)).expect("written");
    folder
}

fn path(folder: &tempfile::TempDir, number: u32) -> PathBuf {
    folder.path().join(format!("decisions-{number:010}.jsonl"))
}

#[test]
fn segments_that_the_host_removed_meanwhile_are_counted() {
    let folder = folder();
    let gone = path(&folder, 5);
    fs::write(&gone, segment(&Limits::default())).expect("written");
    let replay = replay(folder.path(), &[]);
    let segments = replay.segments().expect("there are some");
    fs::remove_file(gone).expect("removed");
    let report = replay.report(&segments).expect("the others are replayed");
    assert_eq!((segments.len(), report.segments, report.vanished, report.decisions), (3, 2, 1, 2));
    assert!(report.text(false).contains("2 decisions in 2 segments, 1 removed"), "{}", report.text(false));
    replay.verdict(&report).expect("nothing is wrong with that");
}

#[test]
fn segments_that_cannot_be_read_are_told_and_the_others_replayed() {
    let check = |put: &dyn Fn(&Path), expected: &str| {
        let folder = folder();
        put(&path(&folder, 5));
        let replay = replay(folder.path(), &[]);
        let report = replay.report(&replay.segments().expect("there are some")).expect("it goes on");
        assert_eq!((report.segments, report.unreadable, report.decisions), (2, 1, 2), "{expected}");
        let words = report.text(false);
        assert!(words.contains("decisions-0000000005.jsonl") && words.contains(expected), "{words}");
        let error = replay.verdict(&report).expect_err("it is told").to_string();
        assert_eq!(error, "1 segment could not be read");
    };
    let foreign = segment(&Limits::default());
    let foreign = String::from_utf8(foreign).expect("text").replacen("\"format\":1", "\"format\":7", 1);
    check(&|path| fs::write(path, &foreign).expect("written"), "it has format 7");
    check(&|path| fs::write(path, "x\n").expect("written"), "it is no segment");
    check(&|path| fs::create_dir(path).expect("made"), "no regular file");
    let sparse = |path: &Path| {
        let file = fs::File::create_new(path).expect("made");
        file.set_len(fulcrum_policy::journal::SEGMENT_BYTES_MAX + 1).expect("holes cost nothing");
    };
    check(&sparse, "a segment has no more than");
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        check(&|path| symlink("/dev/zero", path).expect("linked"), "no regular file");
        let good = |path: &Path| symlink(path.with_file_name("decisions-0000000001.jsonl"), path);
        check(&|path| good(path).expect("linked"), "no regular file");
        let pipe = |path: &Path| {
            assert!(std::process::Command::new("mkfifo").arg(path).status().expect("it runs").success());
        };
        check(&pipe, "no regular file");
    }
}

#[test]
fn a_limit_is_kept_before_the_next_segment_is_touched() {
    let folder = folder();
    fs::create_dir(path(&folder, 5)).expect("made");
    for (limit, segments, unreadable) in [("0", 0, 0), ("1", 1, 0), ("2", 2, 1)] {
        let replay = replay(folder.path(), &["--limit", limit]);
        let report = replay.report(&replay.segments().expect("there are some")).expect("it goes on");
        assert_eq!((report.segments, report.unreadable), (segments, unreadable), "{limit}");
    }
}

#[test]
fn policies_may_do_what_the_hosts_let_them() {
    let folder = folder();
    let replay = replay(folder.path(), &["--policy", "sticky"]);
    let mut replaying = replay.begin().expect("it begins");
    for (number, expected) in [(1, Limits::default().memory_bytes), (9, 1 << 30), (1, 1 << 30)] {
        replaying.segment(&path(&folder, number), &replay.choice).expect("it is replayed");
        assert_eq!(replaying.runtime.limits().memory_bytes, expected, "{number}");
        assert!(replaying.candidate.is_some());
    }
    assert_eq!((replaying.report.decisions, replaying.report.compared()), (3, 3));
}

#[test]
fn nothing_compared_is_not_the_same() {
    let folder = folder();
    let check = |arguments: &[&str]| {
        let replay = replay(folder.path(), arguments);
        let report = replay.report(&replay.segments().expect("there are some")).expect("it goes on");
        let error = replay.verdict(&report).expect_err("nothing was asked").to_string();
        assert!(error.contains("nothing was compared"), "{error}");
    };
    check(&["--policy", "weighted", "--expect-same"]);
    check(&["--policy", "sticky", "--expect-same", "--limit", "0"]);
}

#[test]
fn counts_are_words() {
    assert_eq!(counted(1, "line"), "1 line");
    assert_eq!(counted(2, "line"), "2 lines");
}
