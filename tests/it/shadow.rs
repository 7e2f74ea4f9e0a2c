//! Shadows on a running host: exact counts, nothing changed for whoever is served, and a candidate that fails.

use std::sync::Arc;
use std::time::Duration;

use fulcrum_coordinator::{Ask, Balancer, Report, Settings};
use fulcrum_core::scoring::Load;
use fulcrum_policy::probation::Budget;
use fulcrum_policy::seat::ScoringSeat;
use fulcrum_policy::shadow::Wanted;
use fulcrum_policy::{Limits, Manager, Runtime, Shadows, manager};
use reqwest::Method;
use serde_json::{Value, json};

use crate::groups;
use crate::support::*;

/// A host with two instances on which `mine` chooses the first row; `other` would choose the last.
async fn host() -> Host {
    let host = Host::with(|config| config.policy.scoring = "mine".to_owned()).await;
    host.beat("a", 0).await;
    host.beat("b", 0).await;
    host.policies().put("mine.wasm", &FIRST);
    host.policies().put("other.wasm", &LAST);
    host.until_in_use("mine", &digest(&FIRST)).await;
    host.until_in_use("other", &digest(&LAST)).await;
    host
}

/// Waits until a shadow has compared all it was handed.
async fn until_idle(api: &Api, name: &str) -> Value {
    eventually(format!("the shadow of {name} is done"), SOON, async || {
        let report = api.get(&format!("/admin/policies/{name}/shadow")).await.ok();
        (report["waiting"] == 0).then_some(report)
    })
    .await
}

#[test]
fn counts_of_a_constructed_pair_are_exact_and_live_answers_stay() {
    run(async {
        let host = host().await;
        let begun = host.post("/admin/policies/other/shadow", &json!({})).await.ok();
        assert_eq!((&begun["state"], &begun["digest"]), (&json!("running"), &json!(digest(&LAST))));
        assert_eq!(begun["scope"], json!({ "scoring": true, "claiming": false, "groups": [] }));
        // The first is the last where only one may be chosen.
        for number in 0..200 {
            let (exclude, expected) = if number % 4 == 0 { ("&exclude=a", "b") } else { ("", "a") };
            let answer = host.recommend(&format!("clientId=c{number}{exclude}")).await;
            let found = (&answer["instanceId"], &answer["policy"], &answer["digest"]);
            assert_eq!(found, (&json!(expected), &json!("mine"), &json!(digest(&FIRST))));
        }
        let report = until_idle(&host, "other").await;
        let scoring = &report["scoring"];
        let counts = ["compared", "same", "different", "dropped"].map(|key| scoring[key].as_u64().unwrap());
        assert_eq!((counts, &scoring["failed"]), ([200, 50, 150, 0], &json!({})), "{report}");
        assert_eq!(scoring["versions"].as_array().unwrap().len(), 1);
        assert_eq!(scoring["versions"][0]["digest"], digest(&FIRST));
        assert!(scoring["time"]["candidate"]["p99Us"].as_f64().unwrap() > 0.0, "{scoring}");
        let example = &scoring["examples"][0];
        assert_eq!(
            (&example["live"]["instanceId"], &example["candidate"]["instanceId"]),
            (&json!("a"), &json!("b"))
        );
        assert_eq!(example["request"]["clientId"], "c1");
        let metrics = host.get("/metrics").await.text;
        for (result, count) in [("same", 50), ("different", 150), ("failed", 0), ("dropped", 0)] {
            let line =
                format!(r#"fulcrum_shadow_compared_total{{policy="other",result="{result}"}} {count}"#);
            assert!(metrics.lines().any(|found| found == line), "{line}");
        }
        // Another live version is counted apart; the shadow goes on with the version it began with.
        host.policies().put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;
        assert_eq!(host.pick("clientId=c").await, "b");
        let report = until_idle(&host, "other").await;
        let versions = report["scoring"]["versions"].as_array().unwrap();
        assert_eq!((versions.len(), &versions[1]["digest"]), (2, &json!(digest(&LAST))));
        assert_eq!((&versions[1]["same"], &versions[1]["different"]), (&json!(1), &json!(0)));

        assert_eq!(host.get("/admin/shadows").await.ok()["shadows"].as_array().unwrap().len(), 1);
        let ended = host.delete("/admin/policies/other/shadow").await.ok();
        assert_eq!((&ended["state"], &ended["scoring"]["compared"]), (&json!("ended"), &json!(201)));
        host.get("/admin/policies/other/shadow").await.refused(404, "no_shadow");
        host.delete("/admin/policies/other/shadow").await.refused(404, "no_shadow");
        assert_eq!(host.get("/admin/shadows").await.ok(), json!({ "shadows": [] }));
        host.stop().await;
    });
}

#[test]
fn what_cannot_be_compared_is_refused() {
    run(async {
        let host = host().await;
        let start =
            async |name: &str, body: Value| host.post(&format!("/admin/policies/{name}/shadow"), &body).await;
        start("nobody", json!({})).await.refused(404, "unknown_policy");
        start("mine", json!({})).await.refused(409, "already_serves");
        start("other", json!({ "claiming": true })).await.refused(409, "wrong_role");
        start("other", json!({ "groups": ["g"] })).await.refused(409, "wrong_role");
        start("other", json!({ "scoring": false })).await.refused(400, "invalid_body");
        start("other", json!({ "score": true })).await.refused(400, "invalid_body");
        for name in ["other", "p2c", "weighted", "balanced"] {
            start(name, json!({})).await.ok();
        }
        let message = start("greedy", json!({})).await.refused(409, "too_many_shadows").to_owned();
        assert!(message.contains("balanced, other, p2c, weighted"), "{message}");
        // Begun anew, it takes no more room.
        start("p2c", json!({})).await.ok();
        host.stop().await;
    });
}

/// A balancer on virtual time with `weighted` in its seat.
struct World {
    clock: Arc<TestClock>,
    balancer: Arc<Balancer>,
    manager: Arc<Manager>,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (alarm, inbox) = manager::inbox();
        let clock = Arc::new(TestClock::default());
        let settings = Settings { ttl: Duration::from_secs(3600), ..Settings::default() };
        let balancer = Arc::new(Balancer::new(settings, ScoringSeat::new(alarm), clock.clone(), 7));
        let settings = manager::Settings {
            folder: folder.path().join("policies"),
            keep_dir: folder.path().join("keep"),
            scoring: "weighted".to_owned(),
            claiming: fulcrum::embedded::DEFAULT_CLAIMING.to_owned(),
            default_scoring: fulcrum::embedded::DEFAULT_SCORING.to_owned(),
            poll: Duration::from_secs(600),
            settle: Duration::from_millis(50),
            trusted: None,
            keep_versions: 2,
            promote: Budget { failures_max: 1, decisions: 100, renews: false },
        };
        let embedded = fulcrum::embedded::policies();
        // What is compared are answers, not how busy this machine is.
        let limits = Limits { scoring_deadline: Duration::from_secs(2), ..Limits::default() };
        let runtime = Runtime::new(limits).expect("the engine starts");
        let manager =
            Manager::start(settings, runtime, embedded, balancer.clone(), clock.clone(), inbox).unwrap();
        Self { clock, balancer, manager, _folder: folder }
    }

    /// The picks of so many requests, with heartbeats in between.
    fn picks(&self, count: u32) -> Vec<(String, String, u64)> {
        let beat = |row: u32, sessions: u32| {
            let load = Load { sessions, cpu: f64::from(sessions % 10) / 10.0, ..Load::default() };
            let id = format!("i{row}");
            let address = format!("{id}.test:1");
            let report = Report {
                id,
                address,
                capacity: f64::from(row % 3 + 1),
                load: Some(load),
                ..Report::default()
            };
            self.balancer.heartbeat(report).unwrap();
        };
        (0..20).for_each(|row| beat(row, row * 7 % 5));
        (0..count)
            .map(|number| {
                self.clock.advance(Duration::from_millis(3));
                if number % 11 == 0 {
                    beat(number % 20, number % 13);
                }
                let client_id = format!("c{}", number % 40);
                let ask = Ask { client_id: &client_id, ..Ask::default() };
                let pick = self.balancer.recommend(&ask).pick.unwrap();
                (pick.id.to_string(), pick.policy().to_owned(), pick.score.get().to_bits())
            })
            .collect()
    }
}

#[test]
fn live_decisions_are_to_the_bit_those_of_a_host_without_a_shadow() {
    let (plain, shadowed) = (World::new(), World::new());
    let shadows = Shadows::new(shadowed.manager.clone(), shadowed.clock.clone());
    shadows.start("p2c", &Wanted::default()).unwrap();
    let expected = plain.picks(500);
    assert!(expected.iter().all(|(_, policy, _)| policy == "weighted"));
    assert_eq!(shadowed.picks(500), expected);
    let counts = shadows.stop("p2c").unwrap().scoring.unwrap().counts;
    let failed: u64 = counts.failed.values().sum();
    assert_eq!(counts.compared + counts.dropped + failed, 500, "{counts:?}");
    assert_eq!(failed, 0, "{counts:?}");
    plain.manager.stop();
    shadowed.manager.stop();
}

#[test]
fn the_same_component_under_another_name_never_differs() {
    run(async {
        let host = Host::with(|config| config.policy.scoring = "weighted".to_owned()).await;
        for (id, sessions) in [("a", 3), ("b", 1), ("c", 7)] {
            host.beat(id, sessions).await;
        }
        let twin = fulcrum::embedded::find("weighted").unwrap();
        host.policies().put("twin.wasm", twin);
        host.until_in_use("twin", &digest(twin)).await;
        host.post("/admin/policies/twin/shadow", &json!({})).await.ok();
        for number in 0..150 {
            // Loads and roster change in between: what was given out since then counts for both.
            match number {
                40 => host.beat("b", 5).await,
                80 => host.beat("d", 0).await,
                120 => host.beat("a", 0).await,
                _ => {}
            }
            assert_eq!(host.recommend(&format!("clientId=c{}", number % 7)).await["policy"], "weighted");
        }
        let scoring = until_idle(&host, "twin").await["scoring"].take();
        let counts = ["same", "different", "dropped"].map(|key| scoring[key].as_u64().unwrap());
        assert_eq!((counts, &scoring["failed"]), ([150, 0, 0], &json!({})), "{scoring}");
        host.stop().await;
    });
}

#[test]
fn an_example_names_the_terms_of_both_sides() {
    run(async {
        let host = Host::with(|config| config.policy.scoring = "weighted".to_owned()).await;
        host.beat("a", 50).await;
        host.beat("b", 0).await;
        host.policies().put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        host.post("/admin/policies/mine/shadow", &json!({})).await.ok();
        assert_eq!(host.pick("clientId=c").await, "b");
        let report = until_idle(&host, "mine").await;
        let example = &report["scoring"]["examples"][0];
        let rows = example["live"]["explained"].as_array().unwrap();
        let ids: Vec<_> = rows.iter().map(|row| row["instanceId"].as_str().unwrap()).collect();
        assert_eq!(ids, ["b", "a"], "the own choice first: {example}");
        assert!(rows.iter().all(|row| !row["parts"].as_object().unwrap().is_empty()), "{example}");
        assert!(rows[0]["score"].as_f64().unwrap() < rows[1]["score"].as_f64().unwrap(), "{example}");
        assert_eq!(rows[0]["score"], example["live"]["score"], "what was decided: {example}");
        assert_eq!(example["candidate"]["unexplained"], "it does not explain itself");
        host.stop().await;
    });
}

#[test]
fn a_candidate_in_an_endless_loop_ends_its_shadow_and_nobody_waits_for_it() {
    run(async {
        let host = Host::with(|config| {
            config.policy.scoring = "mine".to_owned();
            config.policy.scoring_deadline_ms = 100;
        })
        .await;
        host.beat("a", 0).await;
        let sin = sins().into_iter().find(|sin| sin.name == "loop-recommend").unwrap();
        host.policies().put("mine.wasm", &FIRST);
        host.policies().put("evil.wasm", &sin.wasm);
        host.until_in_use("mine", &digest(&FIRST)).await;
        host.until_in_use("evil", &digest(&sin.wasm)).await;
        host.post("/admin/policies/evil/shadow", &json!({})).await.ok();
        for _ in 0..30 {
            let answer = host.recommend(&format!("clientId={TROUBLE}")).await;
            assert_eq!((&answer["policy"], &answer["instanceId"]), (&json!("mine"), &json!("a")));
        }
        let report = eventually("it ends itself", SOON, async || {
            let report = host.get("/admin/policies/evil/shadow").await.ok();
            (report["state"] == "failed" && report["waiting"] == 0).then_some(report)
        })
        .await;
        assert!(report["reason"].as_str().unwrap().contains("timeout"), "{report}");
        let scoring = &report["scoring"];
        assert_eq!(scoring["failed"], json!({ "timeout": 2 }), "{report}");
        // What comes once it is over is not counted.
        assert!(scoring["dropped"].as_u64().unwrap() <= 28 && scoring["compared"] == 0, "{report}");
        let status = host.policy("mine").await;
        assert_eq!((&status["decisions"]["ok"], &status["lastFailure"]), (&json!(30), &Value::Null));
        // It makes room for others, and can be begun anew.
        for name in ["p2c", "weighted", "balanced", "evil", "greedy"] {
            let answer = host.post(&format!("/admin/policies/{name}/shadow"), &json!({})).await;
            if name == "greedy" {
                answer.refused(409, "too_many_shadows");
            } else {
                answer.ok();
            }
        }
        host.stop().await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn cycles_of_groups_are_planned_along() {
    let host = groups::host().await;
    groups::topic(&host, "t", 6).await;
    let body = json!({ "claiming": true });
    host.post("/admin/policies/average/shadow", &body).await.ok();
    let first = groups::member(&host, "g", "t", "m1").await;
    groups::until_spread(&host, "g", 1, 6).await;
    let second = groups::member(&host, "g", "t", "m2").await;
    let view = groups::until_spread(&host, "g", 2, 6).await;
    assert_eq!(view["lastCycle"]["policy"], "sticky", "the live policy plans as ever");
    let report = eventually("both joins are compared", SOON, async || {
        let report = until_idle(&host, "average").await;
        (report["groups"]["g"]["moves"]["live"] == 3).then_some(report)
    })
    .await;
    let group = &report["groups"]["g"];
    // `average` lays 6 partitions over 2 members as 3 and 3, so it moves at least as many as the stickiest plan.
    assert!(group["moves"]["candidate"].as_u64().unwrap() >= 3, "{group}");
    assert_eq!(group["after"]["live"], json!({ "spread": 0, "free": 0 }), "{group}");
    assert_eq!(group["after"]["candidate"], json!({ "spread": 0, "free": 0 }), "{group}");
    assert_eq!((&group["failed"], &group["dropped"]), (&json!({}), &json!(0)), "{group}");
    assert_eq!((&report["scoring"], &group["versions"][0]["policy"]), (&Value::Null, &json!("sticky")));
    first.leave().await.expect("it leaves");
    second.leave().await.expect("it leaves");
    host.stop().await;
}

#[test]
fn the_command_line_begins_shows_and_ends_it() {
    run(async {
        let process = Process::serve(&["--set", "policy.scoring=mine"]).await;
        process.beat("a", 0).await;
        process.beat("b", 0).await;
        process.policies().put("mine.wasm", &FIRST);
        process.policies().put("other.wasm", &LAST);
        process.until_in_use("mine", &digest(&FIRST)).await;
        process.until_in_use("other", &digest(&LAST)).await;
        let shadow = async |arguments: &[&str]| {
            let mut all = vec!["policy", "shadow", "--host", process.url()];
            all.extend(arguments);
            fulcrum(&all, "").await
        };
        let begun = shadow(&["other"]).await.ok();
        assert!(begun.contains("running") && begun.contains("nothing to compare yet"), "{begun}");
        for number in 0..10 {
            process.recommend(&format!("clientId=c{number}")).await;
        }
        until_idle(&process, "other").await;
        let shown = shadow(&["other"]).await.ok();
        let row =
            shown.lines().find(|line| line.starts_with("scoring ")).unwrap_or_else(|| panic!("{shown}"));
        let cells: Vec<_> = row.split_whitespace().take(6).collect();
        assert_eq!(cells, ["scoring", "10", "0", "10", "0", "0"], "{shown}");
        assert!(shown.contains("live chose a at 0, the candidate b at 1"), "{shown}");
        let asked: Value =
            serde_json::from_str(&shadow(&["other", "--scoring", "--json"]).await.ok()).unwrap();
        assert_eq!(asked["scoring"]["compared"], 10, "the same scope shows what runs");
        let refused = shadow(&["other", "--group", "g"]).await;
        assert_eq!(refused.code, Some(1));
        assert!(refused.err.contains("--restart"), "{refused:?}");
        let anew: Value =
            serde_json::from_str(&shadow(&["other", "--restart", "--json"]).await.ok()).unwrap();
        assert_eq!(anew["scoring"]["compared"], 0);
        let ended = shadow(&["other", "--stop"]).await.ok();
        assert!(ended.starts_with("other ") && ended.contains(": ended"), "{ended}");
        let gone = shadow(&["other", "--stop"]).await;
        assert!(gone.code == Some(1) && gone.err.contains("has no shadow"), "{gone:?}");
        let unknown = shadow(&["nobody"]).await;
        assert!(unknown.code == Some(1) && unknown.err.contains("nobody"), "{unknown:?}");
    });
}

/// Pushes a candidate.
async fn push(api: &Api, name: &str, wasm: &[u8]) {
    let path = format!("/admin/policies/{name}?candidate=1");
    let request = api.request(Method::PUT, &path).header("content-type", "application/wasm");
    api.send(request.body(wasm.to_vec())).await.ok();
}

async fn report(api: &Api, name: &str) -> Value {
    api.get(&format!("/admin/policies/{name}/shadow")).await.ok()
}

#[test]
fn a_shadow_of_a_former_candidate_says_so_and_the_command_begins_anew() {
    run(async {
        let host = host().await;
        push(&host, "mine", &LAST).await;
        let begun = host.post("/admin/policies/mine/shadow", &json!({ "scoring": true })).await.ok();
        assert_eq!((&begun["isCurrent"], &begun["digest"]), (&json!(true), &json!(digest(&LAST))));
        for number in 0..4 {
            host.recommend(&format!("clientId=c{number}")).await;
        }
        until_idle(&host, "mine").await;
        let trap = guest(include_str!("../../host/crates/policy/tests/guests/trap.wat"));
        push(&host, "mine", &trap).await;
        let former = report(&host, "mine").await;
        assert_eq!((&former["isCurrent"], &former["scoring"]["compared"]), (&json!(false), &json!(4)));
        assert_eq!(host.get("/admin/shadows").await.ok()["shadows"][0]["isCurrent"], false);

        let shadow = async |arguments: &[&str]| {
            fulcrum(&[&["policy", "shadow", "mine", "--host", host.url()], arguments].concat(), "").await
        };
        let told = shadow(&[]).await;
        assert!(told.err.contains("begins anew"), "{told:?}");
        let told = told.ok();
        let (old, new) = (&digest(&LAST)[..8], &digest(&trap)[..8]);
        let heads: Vec<_> = told.lines().filter(|line| line.starts_with("mine ")).collect();
        assert_eq!(heads.len(), 2, "the old counts once, and the new ones: {told}");
        assert!(heads[0].contains(old) && heads[0].contains("a former version"), "{told}");
        assert!(heads[1].contains(new) && heads[1].ends_with("running"), "{told}");
        let now = report(&host, "mine").await;
        assert_eq!((&now["isCurrent"], &now["scoring"]["compared"]), (&json!(true), &json!(0)));
        assert_eq!(now["scope"], begun["scope"], "it answers what the former one did");
        let again = shadow(&[]).await;
        assert!(again.err.is_empty() && !again.ok().contains("former"), "once");

        push(&host, "mine", &LAST).await;
        let both: Value = serde_json::from_str(&shadow(&["--json"]).await.ok()).unwrap();
        assert_eq!((&both["isCurrent"], &both["former"]["isCurrent"]), (&json!(true), &json!(false)));
        assert_eq!(both["former"]["digest"], digest(&trap));
        host.stop().await;
    });
}

#[test]
fn a_promotion_ends_the_shadow_of_its_version_and_keeps_the_report() {
    run(async {
        let host = host().await;
        push(&host, "mine", &LAST).await;
        for name in ["mine", "other"] {
            host.post(&format!("/admin/policies/{name}/shadow"), &json!({})).await.ok();
        }
        for number in 0..3 {
            host.recommend(&format!("clientId=c{number}")).await;
        }
        until_idle(&host, "mine").await;
        host.post("/admin/policies/mine/promote", &json!({ "scoring": true })).await.ok();
        assert_eq!(host.pick("clientId=c").await, "b");
        let ended = report(&host, "mine").await;
        assert_eq!(
            (&ended["state"], &ended["reason"]),
            (&json!("ended"), &json!("this version was promoted"))
        );
        let scoring = &ended["scoring"];
        assert_eq!((&scoring["compared"], &scoring["itself"]), (&json!(3), &json!(0)), "{ended}");
        assert_eq!(until_idle(&host, "other").await["state"], "running", "that of another policy goes on");
        host.delete("/admin/policies/mine/shadow").await.ok();
        host.stop().await;
    });
}

#[test]
fn a_version_is_never_compared_with_itself() {
    run(async {
        let host = host().await;
        push(&host, "mine", &LAST).await;
        host.post("/admin/policies/mine/shadow", &json!({})).await.ok();
        for number in 0..3 {
            host.recommend(&format!("clientId=c{number}")).await;
        }
        let canary = json!({ "canary": { "policy": "mine", "share": 1.0 } });
        host.put("/admin/bindings", &canary).await.ok();
        for number in 0..5 {
            assert_eq!(host.pick(&format!("clientId=c{number}")).await, "b");
        }
        let scoring = until_idle(&host, "mine").await["scoring"].take();
        let counts = ["compared", "different", "itself", "dropped"].map(|key| scoring[key].as_u64().unwrap());
        assert_eq!(counts, [3, 3, 5, 0], "{scoring}");
        let versions = scoring["versions"].as_array().unwrap();
        assert_eq!((versions.len(), &versions[0]["digest"]), (1, &json!(digest(&FIRST))), "{scoring}");
        host.stop().await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_of_the_very_version_is_not_compared() {
    let host = groups::host().await;
    groups::topic(&host, "t", 4).await;
    host.post("/admin/policies/sticky/shadow", &json!({ "groups": ["g"] })).await.ok();
    let member = groups::member(&host, "g", "t", "m1").await;
    groups::until_spread(&host, "g", 1, 4).await;
    let report = eventually("its plan is counted", SOON, async || {
        let report = until_idle(&host, "sticky").await;
        (report["groups"]["g"]["itself"].as_u64() > Some(0)).then_some(report)
    })
    .await;
    let group = &report["groups"]["g"];
    assert_eq!((&group["compared"], &group["versions"]), (&json!(0), &json!([])), "{group}");
    member.leave().await.expect("it leaves");
    host.stop().await;
}
