//! The decision journal: what a live host decided is decided again in a fresh process, bit for bit.

use std::fs;
use std::path::{Path, PathBuf};

use fulcrum::config::JournalMode;
use fulcrum_coordinator::Ask;
use serde_json::{Value, json};

use crate::groups::{member, topic, until_spread};
use crate::support::*;

/// Decisions the main test records at least.
const DECISIONS: usize = 10_000;
/// Decisions between two heartbeats.
const ROUND: usize = 250;

/// The base guest that crashes for [`TROUBLE`].
const TRAP: &str = include_str!("../../host/crates/policy/tests/guests/trap.wat");
/// The base guest that returns an error for it.
const DECLARES: &str = include_str!("../../host/crates/policy/tests/guests/declares.wat");

async fn host(mode: JournalMode) -> Host {
    Host::with(|config| {
        config.journal.mode = mode;
        config.journal.sample_every = 10;
        config.policy.claiming_deadline_ms = 20_000;
        config.group.gather_ms = 0;
    })
    .await
}

/// Sends a heartbeat with figures that have all their digits.
async fn busy(host: &Api, chance: &mut Chance, id: &str) {
    let mut amount = |top: usize| chance.below(top) as f64 / 7.0;
    let body = json!({ "address": format!("{id}.test:1"), "zone": "z", "capacity": 1.0 + amount(9), "labels": {"k": "v"},
        "activeSessions": amount(700) as u32, "inflowBytesPerSec": amount(40_000_000), "outflowBytesPerSec": amount(9000),
        "cpuLoad": amount(7) });
    host.put(&format!("/instances/{id}"), &body).await.ok();
}

fn written(host: &Host) -> u64 {
    host.services().journal.as_ref().expect("it is on").counts().written
}

/// Lets the host decide so often, and waits until all of it is recorded.
async fn decide(host: &Host, chance: &mut Chance, times: usize) {
    let before = written(host);
    let balancer = host.services().balancer.clone();
    for _ in 0..times {
        let client = format!("client-{}", chance.below(50));
        let client = if chance.below(20) == 0 { TROUBLE } else { &client };
        let exclude = if chance.below(10) == 0 { vec!["i3".to_owned()] } else { Vec::new() };
        let limit = (chance.below(30) == 0).then_some(2);
        let ask = Ask { client_id: client, exclude: &exclude, limit, ..Ask::default() };
        assert!(balancer.recommend(&ask).pick.is_some());
    }
    let what = format!("{times} decisions are recorded");
    eventually(what, SOON, async || (written(host) >= before + times as u64).then_some(())).await;
}

fn journal(folder: &Path) -> PathBuf {
    folder.join("data/journal")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// Replays and returns the report, too.
async fn replay(path: &Path, arguments: &[&str]) -> (Ended, Value) {
    let ended = fulcrum(&[&["replay", text(path), "--json"], arguments].concat(), "").await;
    let report = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
    (ended, report)
}

/// The sum of some counts of a role.
fn sum(report: &Value, role: &str, counts: &[&str]) -> u64 {
    counts
        .iter()
        .map(|count| report[role][count].as_u64().unwrap_or_else(|| panic!("{count}: {report}")))
        .sum()
}

/// Checks that everything came out the same.
#[track_caller]
fn all_same(ended: &Ended, report: &Value) {
    assert_eq!(ended.code, Some(0), "{} {report:#}", ended.err);
    for role in ["scoring", "claiming"] {
        assert_eq!(sum(report, role, &["same"]), sum(report, role, &["decisions"]), "{report:#}");
    }
}

/// The lines of all segments.
fn lines(folder: &Path) -> Vec<Value> {
    let segments = fulcrum::journal::segments_of(folder).expect("the folder is there");
    let text: String = segments.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// Records scoring by five versions, two of which fail now and then, and plans of three groups.
async fn record(versions: &Path) -> tempfile::TempDir {
    let host = host(JournalMode::Full).await;
    let mut chance = Chance::new(test_seed());
    for policy in ["sticky", "greedy", "consistent-hash"] {
        topic(&host, policy, 12).await;
        let config = if policy == "greedy" { json!({ "claimPercent": 50 }) } else { json!({}) };
        let settings = json!({ "policy": policy, "config": config, "gatherMs": 0, "fastIntervalMs": 20, "intervalMs": 200 });
        host.put(&format!("/groups/{policy}"), &settings).await.ok();
    }
    let rules: [(&str, Vec<u8>); 5] = [
        ("weighted", Vec::new()),
        ("p2c", Vec::new()),
        ("first", FIRST.clone()),
        ("mine", guest(TRAP)),
        ("mine", guest(DECLARES)),
    ];
    for (at, (name, wasm)) in rules.iter().enumerate() {
        if !wasm.is_empty() {
            fs::write(versions.join(format!("{at}.wasm")), wasm).unwrap();
            host.policies().put(&format!("{name}.wasm"), wasm);
            host.until_in_use(name, &digest(wasm)).await;
        }
        host.put("/admin/bindings", &json!({ "scoring": name })).await.ok();
        let mut members = Vec::new();
        for round in 0..DECISIONS / rules.len() / ROUND + 1 {
            for _ in 0..3 {
                let id = format!("i{}", chance.below(8));
                busy(&host, &mut chance, &id).await;
            }
            if round == 1 {
                for group in ["sticky", "greedy"] {
                    for name in ["a", "b"] {
                        members.push(member(&host, group, group, name).await);
                    }
                }
                until_spread(&host, "greedy", 2, 12).await;
            }
            if round == 2 {
                members.push(member(&host, "consistent-hash", "consistent-hash", "a").await);
                members.swap_remove(0).leave().await.expect("it leaves");
            }
            decide(&host, &mut chance, ROUND).await;
            // A few through the front door.
            host.recommend("clientId=caller").await;
        }
        for member in members {
            member.leave().await.expect("it leaves");
        }
    }
    let counts = host.services().journal.as_ref().expect("it is on").counts();
    assert_eq!((counts.dropped, counts.is_paused), (0, false), "{counts:?}");
    host.stop().await
}

#[test]
fn ten_thousand_decisions_replay_bit_equal_in_a_fresh_process() {
    run(async {
        let versions = tempfile::tempdir().unwrap();
        let folder = record(versions.path()).await;
        let path = journal(folder.path());
        // Versions that are neither embedded nor in a folder beside are named.
        let kept = tempfile::tempdir().unwrap();
        fs::rename(folder.path().join("data/state"), kept.path().join("state")).unwrap();
        fs::rename(folder.path().join("data/policies"), kept.path().join("policies")).unwrap();
        let (ended, report) = replay(&path, &[]).await;
        assert_eq!(ended.code, Some(1));
        assert!(ended.err.contains("--versions"), "{}", ended.err);
        let missing: Vec<_> =
            report["missing"].as_array().unwrap().iter().map(|found| found["digest"].clone()).collect();
        assert!(missing.contains(&json!(digest(&FIRST))), "{report:#}");
        assert_eq!(missing.len(), 3, "{report:#}");
        assert_eq!(sum(&report, "scoring", &["different", "sameChoice"]), 0, "{report:#}");

        let given = ["--versions", text(versions.path())];
        let (ended, report) = replay(&path, &given).await;
        all_same(&ended, &report);
        assert!(sum(&report, "scoring", &["decisions"]) >= DECISIONS as u64, "{report:#}");
        assert!(sum(&report, "claiming", &["decisions"]) >= 30, "{report:#}");
        assert!(report["alone"].as_u64() >= Some(DECISIONS as u64 / 100), "{report:#}");
        let failures = &report["scoring"]["failures"];
        for outcome in ["trap", "error"] {
            let of = |count: &str| failures[outcome][count].as_u64();
            assert!(of("recorded") > Some(0) && of("recorded") == of("again"), "{report:#}");
        }
        assert!(
            failures["open"]["recorded"].as_u64() > Some(0) && failures["open"]["tried"] == 0,
            "{report:#}"
        );
        for group in ["sticky", "greedy", "consistent-hash"] {
            assert!(report["groups"][group]["decisions"].as_u64() > Some(3), "{report:#}");
        }
        // In words, and as far as one likes.
        let words = fulcrum(&[&["replay", text(&path)], &given[..]].concat(), "").await.ok();
        assert!(words.contains("scoring") && words.contains("failed again"), "{words}");
        let (ended, report) = replay(&path, &["--limit", "100"]).await;
        assert_eq!((ended.code, &report["decisions"]), (Some(0), &json!(100)));

        another_policy_differs(&path).await;
        past_decisions_are_explained(&path).await;
        what_was_changed_is_found(&path).await;
    });
}

/// The first fifth of the scoring decisions is by `weighted`, the second by `p2c`.
async fn another_policy_differs(path: &Path) {
    let is_greedy = |line: &Value| line["kind"] == "policy" && line["name"] == "greedy";
    let greedy = lines(path).into_iter().find(is_greedy).expect("it planned");
    assert_eq!(greedy["config"], json!({ "claimPercent": 50 }), "the group's own is recorded");
    let (ended, report) = replay(path, &["--policy", "weighted"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let scoring = |counts: &[&str]| sum(&report, "scoring", counts);
    assert!(scoring(&["same"]) >= (DECISIONS / 5) as u64 && scoring(&["different"]) > 100, "{report:#}");
    assert_eq!(scoring(&["same", "sameChoice", "different", "skipped"]), scoring(&["decisions"]));
    assert_eq!(
        sum(&report, "claiming", &["skipped"]),
        sum(&report, "claiming", &["decisions"]),
        "{report:#}"
    );
    let differences = report["firstDifferences"].as_array().unwrap();
    assert_eq!(differences.len(), 10);
    for difference in differences {
        for answer in ["recorded", "replayed"] {
            assert!(difference[answer].as_str().unwrap().contains(" at "), "{difference}");
        }
        assert!(difference["clientId"].is_string(), "{difference}");
        assert_eq!(difference.get("recordedWhy"), None);
    }
    // Other choices are told before the same choice at another score.
    let kinds: Vec<_> = differences.iter().map(|difference| &difference["isSameChoice"]).collect();
    assert!(kinds.is_sorted_by_key(|kind| kind.as_bool()) && kinds[0] == false, "{report:#}");
    let (_, report) = replay(path, &["--policy", "weighted", "--only", "p2c", "--explain"]).await;
    let told = &report["firstDifferences"][0];
    assert_eq!(told["policy"], "p2c", "{told}");
    let costs = |why: &Value| why["text"].as_str().is_some_and(|text| text.contains(" costs "));
    assert!(costs(&told["recordedWhy"]) && costs(&told["replayedWhy"]), "{told}");
    assert!(!told["replayedWhy"]["terms"].as_array().unwrap().is_empty(), "{told}");
    let words =
        fulcrum(&["replay", text(path), "--policy", "weighted", "--only", "p2c", "--explain"], "").await.ok();
    assert!(words.contains("decided by p2c ") && words.contains(" costs "), "{words}");
    // What a version decided itself comes out the same, whoever else decided.
    let (ended, report) =
        replay(path, &["--policy", "weighted", "--only", "weighted", "--expect-same"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let chosen = sum(&report, "scoring", &["decisions"]);
    assert!(chosen >= (DECISIONS / 5) as u64 && sum(&report, "claiming", &["decisions"]) == 0, "{report:#}");
    let (_, report) = replay(path, &["--role", "claiming", "--group", "greedy"]).await;
    let groups: Vec<_> = report["groups"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!((groups, sum(&report, "scoring", &["decisions"])), (vec!["greedy"], 0), "{report:#}");
    let (_, report) = replay(path, &["--client", "caller", "--only", "weighted"]).await;
    let of_caller = sum(&report, "scoring", &["decisions"]);
    assert!(of_caller > 0 && of_caller < 100, "{report:#}");
    let nobody = fulcrum(&["replay", text(path), "--client", "nobody"], "").await;
    assert!(nobody.code == Some(1) && nobody.err.contains("no recorded decision"), "{nobody:?}");
    let nothing =
        fulcrum(&["replay", text(path), "--policy", "weighted", "--role", "claiming", "--expect-same"], "")
            .await;
    assert!(nothing.code == Some(1) && nothing.err.contains("nothing was compared"), "{nothing:?}");
    let (ended, _) = replay(path, &["--policy", "weighted", "--expect-same"]).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("did not come out the same"), "{}", ended.err);
    // A claim policy is asked about plans only. What a group set for its own policy need not suit another one.
    let (ended, report) = replay(path, &["--policy", "average"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let refused = report["refused"].as_u64();
    assert!(refused > Some(0) && refused == report["groups"]["greedy"]["skipped"].as_u64(), "{report:#}");
    assert!(report["firstRefusal"].as_str().unwrap().contains("--config FILE"), "{report:#}");
    let compared = sum(&report, "claiming", &["same", "sameChoice", "different"]);
    assert_eq!(compared + refused.unwrap(), sum(&report, "claiming", &["decisions"]), "{report:#}");
    let arguments = ["--policy", "average", "--only", "greedy", "--expect-same"];
    let ended = fulcrum(&[&["replay", text(path)], &arguments[..]].concat(), "").await;
    assert_eq!(ended.code, Some(1), "a configuration that is not taken is no sameness: {ended:?}");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    fs::write(&config, "{}").unwrap();
    let (ended, report) = replay(path, &["--policy", "average", "--config", text(&config)]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(sum(&report, "scoring", &["skipped"]), sum(&report, "scoring", &["decisions"]));
    let claiming = |counts: &[&str]| sum(&report, "claiming", counts);
    assert_eq!(claiming(&["same", "sameChoice", "different"]), claiming(&["decisions"]), "{report:#}");
    assert!(claiming(&["different"]) > 0, "{report:#}");
    assert_eq!(report["groups"].as_object().unwrap().len(), 3);
    let words = report["firstDifferences"][0]["recorded"].as_str().unwrap();
    assert!(words.contains(" releases; "), "{words}");
}

/// Each kind of decision is told with what it was made from; what was known is a question for `policy eval`.
async fn past_decisions_are_explained(path: &Path) {
    let segment = fulcrum::journal::segments_of(path).unwrap().remove(0);
    let file = segment.file_name().unwrap().to_str().unwrap();
    let lines: Vec<Value> = fs::read_to_string(&segment)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let line_of = |kind: &str| {
        let is_it = |line: &Value| {
            line["kind"] == kind && line["by"] == "policy" && line["plan"]["claims"] != json!([])
        };
        lines.iter().position(is_it).unwrap() + 1
    };
    let line = line_of("scoring");
    let place = format!("{file}:{line}");
    let ended = fulcrum(&["replay", text(path), "--explain", &place, "--json"], "").await.ok();
    let explained: Value = serde_json::from_str(&ended).unwrap();
    let recorded = &lines[line - 1];
    assert_eq!(
        (&explained["role"], &explained["by"]),
        (&json!("scoring"), &json!("policy")),
        "{explained:#}"
    );
    assert_eq!(explained["answer"]["instanceId"], recorded["id"], "{explained:#}");
    let policy = explained["policy"].as_str().unwrap();
    let why = explained["why"]["text"].as_str().unwrap();
    assert!(why.starts_with(&format!("{} costs ", recorded["id"].as_str().unwrap())), "{why}");
    assert!(!explained["explained"].as_array().unwrap().is_empty(), "{explained:#}");
    assert_eq!(explained["isExplainedByFallback"], false, "{explained:#}");
    // It can be asked again by hand.
    let again =
        fulcrum(&["policy", "eval", policy, "--role", "scoring"], &format!("{}\n", explained["input"]))
            .await
            .lines();
    assert_eq!(again[0]["id"], recorded["id"], "{again:?}");

    // Without its component a version cannot be asked; what is recorded is told all the same.
    let is_lost = |line: &Value| line["kind"] == "policy" && line["digest"] == digest(&FIRST);
    let lost = &lines.iter().find(|line| is_lost(line)).expect("it decided in the first segment")["id"];
    let lost =
        lines.iter().position(|line| line["kind"] == "scoring" && line["policy"] == *lost).unwrap() + 1;
    let words = fulcrum(&["replay", text(&segment), "--at", &lost.to_string()], "").await.ok();
    assert!(words.contains("--versions DIR") && words.contains("by the fallback's rule"), "{words}");

    let at = line.to_string();
    let words = fulcrum(&["replay", text(&segment), "--at", &at, "--policy", "p2c"], "").await.ok();
    for word in ["asked ", "decided  by ", " costs ", "instead  p2c ", "INSTANCE"] {
        assert!(words.contains(word), "{word}: {words}");
    }
    assert!(words.starts_with(&place), "{words}");

    let line = line_of("claiming");
    let words = fulcrum(&["replay", text(path), "--explain", &format!("{file}:{line}")], "").await.ok();
    for word in ["a cycle of ", "because ", " claim", "from nobody to "] {
        assert!(words.contains(word), "{word}: {words}");
    }
    let wrong = fulcrum(&["replay", text(path), "--explain", &format!("{file}:1")], "").await;
    assert!(wrong.code == Some(1) && wrong.err.contains("no decision on line 1"), "{wrong:?}");
    let wrong = fulcrum(&["replay", text(path), "--explain", "there"], "").await;
    assert!(wrong.code == Some(1) && wrong.err.contains("FILE:LINE"), "{wrong:?}");
}

#[test]
fn a_dropped_policy_is_found_by_its_name() {
    run(async {
        let host = host(JournalMode::Full).await;
        host.policies().put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        host.put("/admin/bindings", &json!({ "scoring": "mine" })).await.ok();
        for id in ["a", "b"] {
            host.beat(id, 0).await;
        }
        for _ in 0..3 {
            host.recommend("clientId=c").await;
        }
        let folder = host.stop().await;
        let (ended, report) = replay(&journal(folder.path()), &["--policy", "mine", "--expect-same"]).await;
        assert_eq!(
            (ended.code, sum(&report, "scoring", &["same"])),
            (Some(0), 3),
            "{} {report:#}",
            ended.err
        );
    });
}

/// Somebody raises one score by the smallest amount there is.
async fn what_was_changed_is_found(path: &Path) {
    let segment = fulcrum::journal::segments_of(path).unwrap().remove(0);
    let text = fs::read_to_string(&segment).unwrap();
    let is_by_policy =
        |line: &&str| line.starts_with(r#"{"kind":"scoring""#) && line.contains(r#""by":"policy""#);
    let line = text.lines().filter(is_by_policy).nth(20).unwrap();
    let score = serde_json::from_str::<Value>(line).unwrap()["score"].as_f64().unwrap();
    let changed =
        line.replace(&format!(r#""score":{score:?}"#), &format!(r#""score":{:?}"#, score.next_up()));
    assert_ne!(line, changed);
    let number = text.lines().position(|other| other == line).unwrap() + 1;
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("decisions-0000000001.jsonl");
    fs::write(&copy, text.replacen(line, &changed, 1)).unwrap();
    let (ended, report) = replay(&copy, &["--limit", "500"]).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("1 decision did not come out the same"), "{}", ended.err);
    let difference = &report["firstDifferences"][0];
    assert_eq!((&difference["line"], &difference["role"]), (&json!(number), &json!("scoring")), "{report:#}");
    // A line that is none is named, and the others are replayed.
    fs::write(&copy, text.replacen(line, "garbage", 1)).unwrap();
    let (ended, report) = replay(&copy, &["--limit", "500"]).await;
    assert_eq!((ended.code, &report["problems"], &report["decisions"]), (Some(1), &json!(1), &json!(500)));
    let problem = report["firstProblems"][0].as_str().unwrap();
    assert!(problem.contains(&format!("decisions-0000000001.jsonl:{number}: ")), "{problem}");
}

#[test]
fn what_was_written_before_a_kill_replays() {
    run(async {
        let recorded = async |process: &Process| {
            let shown = process.get("/admin/decisions?limit=1").await.ok();
            shown["written"].as_u64().expect("a number")
        };
        let arguments = ["--set", "journal.mode=full", "--set", "policy.scoring=weighted"];
        let mut folder = tempfile::tempdir().unwrap();
        let mut at_least = 0;
        for life in 1..=2 {
            let mut process = Process::serve_in(folder, &arguments).await;
            for id in ["a", "b", "c"] {
                process.beat(id, life).await;
            }
            let hammer = |number: usize| {
                let api = process.another();
                tokio::spawn(async move {
                    let path = format!("/session/recommend?clientId=c{number}");
                    // Until the host is gone.
                    while api.request(reqwest::Method::GET, &path).send().await.is_ok() {}
                })
            };
            let hammers: Vec<_> = (0..4).map(hammer).collect();
            eventually("300 are recorded", SOON, async || (recorded(&process).await >= 300).then_some(()))
                .await;
            at_least += recorded(&process).await;
            process.signal("KILL");
            process.ended().await;
            for hammer in hammers {
                hammer.await.expect("it ends with the host");
            }
            folder = process.into_folder();
        }
        let (ended, report) = replay(&journal(folder.path()), &[]).await;
        all_same(&ended, &report);
        assert_eq!(report["segments"], 2, "{report:#}");
        assert!(report["decisions"].as_u64() >= Some(at_least), "{at_least}: {report:#}");
    });
}

#[test]
fn a_sample_replays_and_is_shown() {
    run(async {
        let host = host(JournalMode::Sampled).await;
        let mut chance = Chance::new(test_seed());
        for id in ["a", "b", "c"] {
            busy(&host, &mut chance, id).await;
        }
        for _ in 0..95 {
            host.recommend("clientId=caller").await;
        }
        topic(&host, "t", 3).await;
        let one = member(&host, "orders", "t", "m").await;
        until_spread(&host, "orders", 1, 3).await;
        let plans = async || {
            let shown = host.get("/admin/decisions?role=claiming&group=orders").await.ok();
            let plans = shown["decisions"].as_array().expect("a list").clone();
            plans.iter().any(|plan| plan["claims"] == 3).then_some(plans)
        };
        let plans = eventually("the plan is shown", SOON, plans).await;
        assert!(
            plans.iter().all(|plan| plan["role"] == "claiming" && plan["policy"] == "sticky"),
            "{plans:?}"
        );
        let shown = host.get("/admin/decisions?role=scoring&limit=4").await.ok();
        assert_eq!((&shown["sampleEvery"], &shown["dropped"]), (&json!(10), &json!(0)));
        let decisions = shown["decisions"].as_array().expect("a list");
        assert_eq!(decisions.len(), 4);
        for decision in decisions {
            assert_eq!(
                (&decision["clientId"], &decision["by"]),
                (&json!("caller"), &json!("policy")),
                "{decision}"
            );
            assert!(decision["score"].is_number() && decision["digest"].is_string(), "{decision}");
            assert!(["a", "b", "c"].contains(&decision["instanceId"].as_str().unwrap()), "{decision}");
        }
        assert!(decisions.windows(2).all(|pair| pair[0]["atMs"].as_u64() >= pair[1]["atMs"].as_u64()));
        host.get("/admin/decisions?role=both").await.refused(400, "invalid_query");
        let metrics = host.get("/metrics").await.text;
        for line in ["fulcrum_journal_records_total{result=\"dropped\"} 0", "fulcrum_journal_paused 0"] {
            assert!(metrics.contains(line), "{metrics}");
        }
        one.leave().await.expect("it leaves");
        let folder = host.stop().await;
        let (ended, report) = replay(&journal(folder.path()), &[]).await;
        all_same(&ended, &report);
        assert_eq!(sum(&report, "scoring", &["decisions"]), 10, "{report:#}");
        let mode = fs::metadata(journal(folder.path())).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o700);
    });
}

#[test]
fn decisions_go_on_while_they_cannot_be_recorded_and_the_loss_is_shown() {
    run(async {
        let process = Process::serve(&["--set", "journal.mode=full"]).await;
        process.beat("a", 0).await;
        let folder = process.policies().0.with_file_name("journal");
        let counts = async || {
            let shown = process.get("/admin/decisions?limit=1").await.ok();
            (shown["written"].as_u64().unwrap(), shown["dropped"].as_u64().unwrap(), shown)
        };
        let decide = async |dropped: u64| {
            process.recommend("clientId=c").await;
            eventually("it is counted", SOON, async || {
                let (written, lost, shown) = counts().await;
                (lost >= dropped && written + lost >= dropped).then_some(shown)
            })
            .await
        };
        process.recommend("clientId=c").await;
        eventually("one is recorded", SOON, async || (counts().await.0 == 1).then_some(())).await;
        // Removed, it is made again.
        fs::remove_dir_all(&folder).unwrap();
        process.recommend("clientId=c").await;
        eventually("it is recorded", SOON, async || (counts().await.0 == 2).then_some(())).await;
        let (_, dropped, shown) = counts().await;
        assert_eq!((dropped, &shown["paused"], &shown["problem"]), (0, &json!(false), &Value::Null));
        // What is in its place cannot be written.
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, b"not a folder").unwrap();
        for lost in 1..=3 {
            let shown = decide(lost).await;
            assert_eq!(shown["paused"], true, "{shown}");
            let problem = shown["problem"].as_str().unwrap();
            assert!(
                problem.contains("journal cannot be written: ") && problem.contains("every 5 s"),
                "{problem}"
            );
            assert_eq!(shown["decisions"][0]["clientId"], "c", "it is shown all the same");
        }
        let metrics = process.get("/metrics").await.text;
        for line in ["fulcrum_journal_records_total{result=\"dropped\"} 3", "fulcrum_journal_paused 1"] {
            assert!(metrics.contains(line), "{line} is not in {metrics}");
        }
        fs::remove_file(&folder).unwrap();
        let again = eventually("it is recorded again", SOON, async || {
            process.recommend("clientId=c").await;
            let (written, _, shown) = counts().await;
            (written > 2).then_some(shown)
        });
        let shown = again.await;
        assert_eq!((&shown["paused"], &shown["problem"]), (&json!(false), &Value::Null));
        let log = process.log();
        let told = |words: &str| log.lines().filter(|line| line.contains(words)).count();
        assert_eq!(told("the decision journal cannot be written"), 1, "{log}");
        assert_eq!(told("the decision journal is written again"), 1, "{log}");
    });
}

#[test]
fn nothing_is_recorded_unless_it_is_switched_on() {
    run(async {
        let host = Host::start().await;
        host.beat("a", 0).await;
        host.recommend("").await;
        let message = host.get("/admin/decisions").await;
        assert!(message.refused(409, "journal_off").contains("journal.mode"));
        assert!(!host.get("/metrics").await.text.contains("fulcrum_journal"));
        let folder = host.stop().await;
        assert!(!journal(folder.path()).exists());
        let ended = fulcrum(&["replay", text(folder.path())], "").await;
        assert_eq!(ended.code, Some(1));
        assert!(ended.err.contains("journal.mode"), "{}", ended.err);
        for nowhere in ["nowhere.jsonl", "no/where"] {
            let ended = fulcrum(&["replay", nowhere], "").await;
            assert_eq!(ended.code, Some(1));
            assert!(ended.err.contains(nowhere) && ended.err.contains("journal.mode"), "{}", ended.err);
        }
    });
}
