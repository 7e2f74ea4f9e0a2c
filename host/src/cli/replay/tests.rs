//! What cannot be read, or is not there any more, does not keep the rest from being replayed.

use std::fs;

use clap::Parser as _;
use fulcrum_core::claiming::Plan;
use fulcrum_policy::Outcome;
use fulcrum_policy::journal::Encoder;
use fulcrum_policy::planner::{Planned, Wish};
use fulcrum_policy::seat::Identity;
use fulcrum_policy::tap::Claimed;

use super::*;
use crate::journal::tests::cycle;

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
    plans(limits, &[("g", None)])
}

/// A segment of plans for groups, by versions or the fallback. Each group has nobody and nothing, so no plan does anything.
fn plans(limits: &Limits, plans: &[(&str, Option<Identity>)]) -> Vec<u8> {
    let (mut encoder, mut text) = (Encoder::new(Header::new("0.0.0", limits)), Vec::new());
    encoder.begin(&mut text).expect("written");
    for (group, by) in plans {
        encoder.claimed(&plan(group, by.clone().map(Arc::new)), &mut text).expect("written");
    }
    text
}

fn plan(group: &str, by: Option<Arc<Identity>>) -> Claimed {
    let cycle = cycle(group, Vec::new());
    let outcome = if by.is_some() { Outcome::Ok } else { Outcome::Open };
    let planned = Planned { plan: Plan::default(), by: by.clone(), asked: by, outcome, problem: None };
    let wish = Wish { policy: None, config: serde_json::Value::Null };
    Claimed { group: group.to_owned(), wish, cycle, planned, nanos: 1 }
}

/// A version of an embedded policy.
fn embedded(name: &str, config: &str) -> Identity {
    let wasm = crate::embedded::find(name).expect("it is embedded");
    let digest = fulcrum_policy::artifact::digest(wasm);
    Identity { name: name.to_owned(), digest, config: config.to_owned() }
}

/// A version whose component is of these bytes.
fn version_of(bytes: &[u8]) -> Identity {
    let digest = fulcrum_policy::artifact::digest(bytes);
    Identity { name: "mine".to_owned(), digest, config: "{}".to_owned() }
}

fn report(replay: &Replay) -> Report {
    replay.report(&replay.segments().expect("there are some")).expect("it goes on")
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
fn versions_that_cannot_be_used_are_told_and_the_others_replayed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let versions = tempfile::tempdir().expect("a temporary folder");
    let put = |file: &str, bytes: &[u8]| fs::write(versions.path().join(file), bytes).expect("written");
    let greedy = crate::embedded::find("greedy").expect("it is embedded");
    let torn = &greedy[..greedy.len() / 2];
    put("torn.wasm", torn);
    let text = b"(component)";
    put("text.wasm", text);
    // Other bytes than those that decided, and what cannot be read but is not needed.
    put("missing.wasm", b"one byte less");
    fs::File::create_new(versions.path().join("large.wasm"))
        .and_then(|file| file.set_len(ARTIFACT_BYTES_MAX as u64 + 1))
        .expect("holes cost nothing");
    let decided = [
        ("g", None),
        ("g", Some(version_of(torn))),
        ("g", Some(embedded("greedy", r#"{"claimPercent":500}"#))),
        ("g", Some(version_of(b"one byte more"))),
        ("h", Some(embedded("greedy", "{}"))),
        ("h", Some(version_of(torn))),
        ("h", Some(version_of(text))),
        ("h", Some(embedded("greedy", r#"{"claimPercent":50}"#))),
    ];
    fs::write(path(&folder, 1), plans(&Limits::default(), &decided)).expect("written");
    let given = ["--versions", versions.path().to_str().expect("a plain name")];
    let replay = replay(folder.path(), &given);
    let report = report(&replay);
    assert_eq!((report.decisions, report.compared(), report.not_replayed), (8, 3, 5));
    let words = report.text(false);
    let json = serde_json::to_value(&report).expect("JSON");
    let unusable = json["unusable"].as_array().expect("a list");
    for (at, name, decisions, problem) in [
        (0, "mine", 2, "not a valid component"),
        (1, "greedy", 1, "the configuration does not fit the policy's schema"),
        (2, "mine", 1, "this is WebAssembly text"),
    ] {
        let found = &unusable[at];
        assert_eq!((&found["name"], &found["decisions"]), (&name.into(), &decisions.into()), "{found}");
        let found = found["problem"].as_str().expect("a text");
        assert!(found.contains(problem) && words.contains(found), "{found}: {words}");
    }
    assert_eq!((unusable.len(), json["missing"].as_array().map(Vec::len)), (3, Some(1)), "{json:#}");
    assert!(json["unreadableFiles"][0].as_str().is_some_and(|file| file.contains("large.wasm")), "{json:#}");
    assert!(words.contains(report::ADVICE) && words.contains("not looked into: "), "{words}");
    let error = replay.verdict(&report).expect_err("not all were replayed").to_string();
    for part in ["5 decisions could not be replayed", "--versions DIR", report::ADVICE] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    // Why one of them came out so cannot be told, but what was asked and answered.
    let mut replaying = replay.begin().expect("it begins");
    let shown = replaying.explain(&path(&folder, 1), 4).expect("it is shown");
    assert!(shown.text().contains("by mine "), "{}", shown.text());
}

#[test]
fn any_number_of_versions_and_groups_is_replayed_within_bounds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = |percent: usize| format!(r#"{{"claimPercent":{percent}}}"#);
    let group = |at: usize| format!("g{at}");
    let names: Vec<_> = (0..10_050).map(group).collect();
    let mut decided: Vec<_> = names.iter().map(|name| (name.as_str(), None)).collect();
    let long = "g".repeat(10_000);
    decided.push((&long, None));
    for round in 0..2 {
        for at in 0..150 {
            let unknown = version_of(format!("unknown {at}").as_bytes());
            decided.push(("g0", Some(Identity { name: long.clone(), ..unknown })));
            let name = if round == 0 { "greedy" } else { "balanced" };
            decided.push(("g1", Some(embedded(name, &config(at)))));
        }
        for at in [40, 3, 40, 7] {
            decided.push(("g2", Some(embedded("greedy", &config(at)))));
        }
    }
    fs::write(path(&folder, 1), plans(&Limits::default(), &decided)).expect("written");
    let replay = replay(folder.path(), &[]);
    let run = |versions_max: Option<usize>| {
        let mut replaying = replay.begin().expect("it begins");
        if let Some(max) = versions_max {
            replaying.versions = Versions::with(&replaying.runtime, Vec::new(), max);
        }
        replaying.segment(&path(&folder, 1), &replay.choice).expect("it is replayed");
        replaying.report.finish(&[]);
        (serde_json::to_value(&replaying.report).expect("JSON"), replaying.versions.len())
    };
    let (json, kept) = run(None);
    assert!((1..=32).contains(&kept), "{kept}");
    // What is kept does not show in the answer.
    assert_eq!(run(Some(1)), (json.clone(), 1));
    assert_eq!(run(Some(1000)).0, json);
    assert_eq!(json["decisions"], decided.len());
    let lists = |list: &str| json[list].as_array().map(Vec::len);
    // 150 versions are missing, of which 50 are not told one by one; two policies refuse 49 configurations each.
    assert_eq!((lists("missing"), lists("unusable")), (Some(100), Some(98)), "{json:#}");
    assert_eq!((&json["notReplayed"], &json["needingOthers"]), (&(300 + 98).into(), &100.into()));
    assert_eq!(json["groups"].as_object().map(serde_json::Map::len), Some(10_000));
    assert_eq!(json["otherGroups"]["decisions"], 51);
    assert!(json.to_string().len() < 4 << 20, "{} bytes", json.to_string().len());
}

#[test]
fn counts_are_words() {
    assert_eq!(words::count(1, "line"), "1 line");
    assert_eq!(words::count(2, "line"), "2 lines");
}
