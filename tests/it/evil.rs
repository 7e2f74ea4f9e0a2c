//! Misbehaving policies live in a running host: every request is answered, and each failure has its name.

use std::sync::Arc;
use std::time::Duration;

use fulcrum_coordinator::{Ask, Balancer, Report, Settings};
use fulcrum_policy::seat::ScoringSeat;
use fulcrum_policy::status::State;
use fulcrum_policy::{Manager, manager};
use serde_json::{Value, json};

use crate::support::*;

fn provoking(sin: &Sin) -> String {
    let explain = if sin.stage == "explain" { "&explain=1" } else { "" };
    format!("clientId={TROUBLE}{explain}")
}

fn sin(name: &str) -> Sin {
    sins().into_iter().find(|sin| sin.name == name).unwrap_or_else(|| panic!("there is no guest {name}"))
}

/// How often each outcome was counted.
fn count(status: &Value, outcome: &str) -> u64 {
    status["decisions"][outcome].as_u64().unwrap_or_else(|| panic!("{outcome} in {status}"))
}

#[test]
fn every_sin_is_contained_and_named() {
    run(async {
        let host = Host::with(|config| {
            config.policy.scoring = "mine".to_owned();
            // Two guests use all of it, again and again; the others must not be near it even on a busy machine.
            config.policy.scoring_deadline_ms = 300;
        })
        .await;
        host.beat("a", 0).await;
        host.beat("b", 0).await;
        let sins: Vec<_> = sins().into_iter().filter(|sin| sin.stage != "load").collect();
        assert!(sins.len() >= 15, "{}", sins.len());
        for sin in sins {
            let (name, expected) = (&sin.name, &*sin.expected);
            host.policies().put("mine.wasm", &sin.wasm);
            let before = host.until_in_use("mine", &digest(&sin.wasm)).await;
            assert_eq!((&before["state"], &before["lastFailure"]), (&json!("live"), &Value::Null), "{name}");
            // A bad explanation does not spoil decisions, however often it is asked for.
            let opens = sin.stage == "call" && ["timeout", "trap", "limit", "illegal"].contains(&expected);
            let mut provoked = 0;
            let after = loop {
                // A harmless client is served by the policy, whatever others did before.
                if provoked == 0 || !opens {
                    assert_eq!(host.recommend("clientId=harmless").await["policy"], "mine", "{name}");
                }
                let answer = host.recommend(&provoking(&sin)).await;
                provoked += 1;
                assert!(["a", "b"].contains(&answer["instanceId"].as_str().unwrap()), "{name}: {answer}");
                let status = host.policy("mine").await;
                let decides = sin.stage != "call" || expected == "ok";
                let by = if decides { ("mine", digest(&sin.wasm)) } else { ("fallback", String::new()) };
                assert_eq!((&answer["policy"], &answer["digest"]), (&json!(by.0), &json!(by.1)), "{name}");
                if sin.stage == "explain" {
                    assert_eq!(
                        answer["scoreParts"].as_array().unwrap().len(),
                        2,
                        "{name}: the fallback explains"
                    );
                }
                if expected == "ok" {
                    assert_eq!(status["lastFailure"], Value::Null, "{name}");
                } else {
                    let last = status["lastFailure"].as_str().unwrap_or_else(|| panic!("{name}: {status}"));
                    assert!(last.starts_with(&format!("{expected}: ")) && last.len() > 15, "{name}: {last}");
                }
                if status["state"] == "open" || provoked == 20 {
                    break status;
                }
                assert_eq!(status["state"], "live", "{name}");
            };
            let new = |outcome: &str| count(&after, outcome) - count(&before, outcome);
            if sin.stage == "call" {
                assert_eq!(new(expected), if expected == "ok" { 40 } else { provoked }, "{name}: {after}");
            }
            if opens {
                assert!(after["state"] == "open" && provoked <= 4, "{name}: {provoked}, {after}");
            } else {
                assert_eq!((&after["state"], provoked), (&json!("live"), 20), "{name}");
            }
            // Open: nobody asks it, and nobody waits for it.
            if opens {
                for query in ["clientId=harmless".to_owned(), provoking(&sin)] {
                    let answer = host.recommend(&query).await;
                    assert_eq!(answer["policy"], "fallback", "{name}");
                }
                let open = count(&host.policy("mine").await, "open") - count(&after, "open");
                assert_eq!(open, 2, "{name}");
            }
        }
        // A good one is served at once after all of that.
        host.policies().put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        assert_eq!(host.recommend(&format!("clientId={TROUBLE}")).await["policy"], "mine");
        host.stop().await;
    });
}

#[test]
fn an_open_breaker_is_tried_again() {
    run(async {
        let process =
            Process::serve(&["--set", "policy.scoring=mine", "--set", "policy.scoring_deadline_ms=300"])
                .await;
        process.beat("a", 0).await;
        let sin = sin("trap");
        process.policies().put("mine.wasm", &sin.wasm);
        process.until_in_use("mine", &digest(&sin.wasm)).await;
        eventually("it opens its breaker", SOON, async || {
            process.recommend(&provoking(&sin)).await;
            (process.policy("mine").await["state"] == "open").then_some(())
        })
        .await;
        // The trial repeats what it failed on, and it fails again: it stays open.
        let is_it = |line: &str| line.contains("trial of an open breaker") && line.contains("passed=false");
        eventually("a trial has run", SOON, async || process.log().lines().any(is_it).then_some(())).await;
        assert_eq!(process.policy("mine").await["state"], "open");
        assert_eq!(process.recommend("clientId=harmless").await["policy"], "fallback");
    });
}

/// Lets a policy fail on virtual time until it is in quarantine, in the folders of a host that does not run.
fn quarantine(data: &std::path::Path, wasm: &[u8]) {
    let (alarm, inbox) = manager::inbox();
    let clock = Arc::new(TestClock::default());
    let settings = Settings { ttl: Duration::from_secs(3600), ..Settings::default() };
    let balancer = Arc::new(Balancer::new(settings, ScoringSeat::new(alarm), clock.clone(), 1));
    let report = Report { id: "a".to_owned(), address: "h:1".to_owned(), capacity: 1.0, ..Report::default() };
    balancer.heartbeat(report).unwrap();
    let settings = manager::Settings {
        folder: data.join("policies"),
        keep_dir: data.join("state").join("policies"),
        scoring: "mine".to_owned(),
        claiming: fulcrum::embedded::DEFAULT_CLAIMING.to_owned(),
        default_scoring: fulcrum::embedded::DEFAULT_SCORING.to_owned(),
        poll: Duration::from_secs(600),
        settle: Duration::from_millis(50),
        keep_versions: 5,
        promote: fulcrum::config::Config::default().promote_budget(),
        trusted: None,
    };
    std::fs::create_dir_all(&settings.folder).unwrap();
    Drops(settings.folder.clone()).put("mine.wasm", wasm);
    let embedded = fulcrum::embedded::policies();
    let manager =
        Manager::start(settings, check_runtime(), embedded, balancer.clone(), clock.clone(), inbox).unwrap();
    let state =
        || manager.statuses().into_iter().find(|status| status.name == "mine").map(|status| status.state);
    for _ in 0..100 {
        // Files settle in virtual time too.
        if state() == Some(State::Live) {
            break;
        }
        clock.advance(Duration::from_millis(50));
        drop(manager.reload());
    }
    let ask = Ask { client_id: TROUBLE, ..Ask::default() };
    while state() == Some(State::Live) {
        assert!(balancer.recommend(&ask).pick.is_some());
    }
    assert_eq!(state(), Some(State::Open));
    let mut trials = 0;
    while state() == Some(State::Open) {
        clock.advance(Duration::from_secs(31));
        drop(manager.reload());
        trials += 1;
        assert!(trials < 20, "it is tried for ever");
    }
    assert_eq!(state(), Some(State::Quarantined));
    assert_eq!(balancer.recommend(&ask).pick.unwrap().policy(), "p2c");
    manager.stop();
}

#[test]
fn quarantine_survives_a_restart_and_ends_with_the_file() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let trap = sin("trap").wasm;
        quarantine(&folder.path().join("data"), &trap);
        let host = Host::in_folder(folder, |config| config.policy.scoring = "mine".to_owned()).await;
        host.beat("a", 0).await;
        let status = host.policy("mine").await;
        assert_eq!(
            (&status["state"], &status["problem"]["code"]),
            (&json!("quarantined"), &json!("quarantined"))
        );
        let message = status["problem"]["message"].as_str().unwrap();
        assert!(message.contains("unreachable") && message.contains("drop another version"), "{message}");
        assert_eq!(host.recommend(&format!("clientId={TROUBLE}")).await["policy"], "p2c");
        // It is the digest that is in quarantine, whatever its name; another version is welcome.
        let drops = host.policies();
        drops.put("other.wasm", &trap);
        host.until_refused("other", "quarantined").await;
        drops.put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        drops.put("mine.wasm", &trap);
        host.until_refused("mine", "quarantined").await;
        assert_eq!(host.recommend(&format!("clientId={TROUBLE}")).await["digest"], digest(&FIRST));
        // Whoever removes the file and drops it again wants it.
        drops.remove("other.wasm");
        drops.remove("mine.wasm");
        eventually("it is gone", SOON, async || {
            (host.policy("mine").await["state"] == "removed").then_some(())
        })
        .await;
        drops.put("mine.wasm", &trap);
        host.until_in_use("mine", &digest(&trap)).await;
        assert_eq!(host.recommend("clientId=harmless").await["policy"], "mine");
        host.stop().await;
    });
}
