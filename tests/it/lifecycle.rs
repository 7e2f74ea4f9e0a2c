//! The life cycle of policies over HTTP and from the command line: upload, candidate, canary, promotion, the way back.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fulcrum::config::Config;
use fulcrum_policy::seat::label;
use fulcrum_policy::trust::{Content, PrivateKey};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::support::*;

/// A component that crashes when a client with the name [`TROUBLE`] asks, and chooses the first row otherwise.
static TRAP: LazyLock<Vec<u8>> =
    LazyLock::new(|| sins().into_iter().find(|sin| sin.name == "trap").expect("it is among the guests").wasm);

async fn start() -> Host {
    let host = Host::with(|config| config.policy.scoring = "mine".to_owned()).await;
    instances(&host).await;
    host
}

/// Settings of a host that takes only what this key has signed.
fn trusting(key: &PrivateKey) -> impl FnOnce(&mut Config) {
    let key = key.public();
    move |config| {
        config.policy.scoring = "mine".to_owned();
        config.policy.trusted_keys = vec![key];
    }
}

async fn instances(api: &Api) {
    for id in ["a", "b", "c"] {
        api.beat(id, 0).await;
    }
}

async fn send(api: &Api, path: &str, kind: &str, body: impl Into<reqwest::Body>) -> Answer {
    let request = api.request(Method::PUT, path).header("content-type", kind).body(body);
    api.send(request).await
}

async fn push(api: &Api, path: &str, wasm: &[u8]) -> Answer {
    send(api, &format!("/admin/policies/{path}"), "application/wasm", wasm.to_vec()).await
}

async fn configure(api: &Api, path: &str, config: &Value) -> Answer {
    api.put(&format!("/admin/policies/{path}"), config).await
}

async fn promote(api: &Api, name: &str, body: &Value) -> Answer {
    api.post(&format!("/admin/policies/{name}/promote"), body).await
}

async fn roll_back(api: &Api, name: &str, body: &Value) -> Answer {
    api.post(&format!("/admin/policies/{name}/rollback"), body).await
}

fn form(parts: &[(&str, &[u8])]) -> (&'static str, Vec<u8>) {
    let mut body = Vec::new();
    for (name, content) in parts {
        let head = format!("--limit\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--limit--\r\n");
    ("multipart/form-data; boundary=limit", body)
}

/// Names of the files in a host's policies folder.
fn files(drops: &Drops) -> Vec<String> {
    let names = std::fs::read_dir(&drops.0).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_uploaded_is_proven_and_serves() {
    run(async {
        let host = start().await;
        assert_eq!(host.recommend("").await["policy"], "p2c");
        let status = push(&host, "mine", &LAST).await.ok();
        assert_eq!((&status["digest"], &status["state"]), (&json!(digest(&LAST)), &json!("live")));
        assert_eq!(
            (host.pick("").await.as_str(), files(&host.policies())),
            ("c", vec!["mine.wasm".to_owned()])
        );
        // A configuration alone keeps the component, also an embedded one.
        let status = configure(&host, "mine", &json!({"a": 1})).await.ok();
        assert_eq!((&status["digest"], &status["config"]), (&json!(digest(&LAST)), &json!({"a": 1})));
        let status = configure(&host, "weighted", &json!({"sessionWeight": 7})).await.ok();
        assert_eq!((&status["source"], &status["config"]["sessionWeight"]), (&json!("embedded"), &json!(7)));
        configure(&host, "weighted", &json!({"sessionWeight": "heavy"})).await.refused(422, "config");
        // A component alone keeps the configuration; both come as a form.
        let status = push(&host, "mine", &FIRST).await.ok();
        assert_eq!((&status["digest"], &status["config"]), (&json!(digest(&FIRST)), &json!({"a": 1})));
        let (kind, body) = form(&[("config", b"{\"b\": 2}"), ("component", &LAST)]);
        let status = send(&host, "/admin/policies/mine", kind, body).await.ok();
        assert_eq!((&status["digest"], &status["config"]), (&json!(digest(&LAST)), &json!({"b": 2})));
        assert_eq!(host.pick("").await, "c");
        assert_eq!(files(&host.policies()), ["mine.json", "mine.wasm", "weighted.json"]);
        // What is dropped later wins.
        host.policies().put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;

        host.delete("/admin/policies/mine").await.refused(409, "policy_in_use");
        let left = host.delete("/admin/policies/mine?force=1").await.ok();
        assert_eq!((&left["name"], &left["status"]["state"]), (&json!("mine"), &json!("removed")));
        assert_eq!(left["status"]["versions"][0]["left"]["by"], "removed");
        assert_eq!(host.recommend("").await["policy"], "p2c");
        assert_eq!(host.get("/admin/policies").await.ok()["scoring"]["policy"], "p2c");
        host.delete("/admin/policies/mine").await.refused(409, "removed_policy");
        host.put("/admin/bindings", &json!({ "claiming": "mine" })).await.refused(409, "removed_policy");
        host.delete("/admin/policies/nobody").await.refused(404, "unknown_policy");
        let left = host.delete("/admin/policies/weighted").await.ok();
        assert_eq!(
            (&left["status"]["source"], &left["status"]["state"]),
            (&json!("embedded"), &json!("ready"))
        );
        host.delete("/admin/policies/weighted").await.refused(409, "embedded_policy");
        assert!(files(&host.policies()).is_empty());
        host.stop().await;
    });
}

#[test]
fn bad_uploads_are_named_and_change_nothing() {
    run(async {
        let host = Host::with(|config| {
            config.policy.scoring = "mine".to_owned();
            config.policy.artifact_mib_max = 1;
            config.policy.load_deadline_ms = 500;
            config.host.body_bytes_max = 1024;
        })
        .await;
        instances(&host).await;
        push(&host, "mine", &LAST).await.ok();
        let before = host.policy("mine").await;
        let core = wat_module();
        for (code, bytes) in [
            ("empty", &b""[..]),
            ("not_wasm", b"garbage"),
            ("precompiled", b"\x7fELF"),
            ("core_module", &core),
        ] {
            for query in ["", "?candidate=1"] {
                push(&host, &format!("mine{query}"), bytes).await.refused(422, code);
                push(&host, &format!("other{query}"), bytes).await.refused(422, code);
            }
        }
        // Those that never come back from a call take many times its deadline, which is long here.
        let is_slow = |sin: &Sin| ["loop-roster", "loop-refresh"].contains(&sin.name.as_str());
        for sin in sins().into_iter().filter(|sin| sin.stage == "load" && !is_slow(sin)) {
            push(&host, "mine", &sin.wasm).await.refused(422, &sin.expected);
        }
        let mut large = LAST.clone();
        large.resize((1 << 20) + 1, 0);
        push(&host, "mine", &large).await.refused(422, "too_large");
        let huge = vec![0_u8; 4 << 20];
        push(&host, "mine", &huge).await.refused(413, "too_large");
        let head = "PUT /admin/policies/mine HTTP/1.1\r\nHost: x\r\nContent-Type: application/wasm\r\n\
                    Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunk = [b"10000\r\n".as_slice(), &huge[..0x10000], b"\r\n"].concat();
        let answer = host.raw(&[head.as_bytes(), &chunk.repeat(64), b"0\r\n\r\n"].concat()).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        configure(&host, "mine", &json!({ "long": "x".repeat(1 << 20) })).await.refused(413, "too_large");
        for (kind, body, status, code) in [
            ("text/plain", &b"{}"[..], 415, "unsupported_type"),
            ("application/json", b"{", 422, "config_syntax"),
            ("application/json", b"[]", 422, "config_syntax"),
            ("application/json", b"\xff", 400, "invalid_body"),
            ("multipart/form-data; boundary=x", b"garbage", 400, "invalid_body"),
            ("multipart/form-data; boundary=x", b"--x--", 400, "invalid_body"),
        ] {
            send(&host, "/admin/policies/mine", kind, body).await.refused(status, code);
        }
        for query in ["candidate=maybe", "candidate", "candidate=", "candidates=1", "candidate=1&force=1"] {
            push(&host, &format!("mine?{query}"), &LAST).await.refused(400, "invalid_query");
        }
        for query in ["candidate", "force=", "Candidate=1"] {
            host.delete(&format!("/admin/policies/mine?{query}")).await.refused(400, "invalid_query");
        }
        for order in ["promote", "rollback"] {
            let path = format!("/admin/policies/mine/{order}?candidate=1");
            host.post(&path, &json!({})).await.refused(400, "invalid_query");
        }
        let long = "x".repeat(65);
        for name in
            ["-rf", "..%2f..%2fetc", "%2e%2e%2fx", ".hidden", "a%00b", "%C3%84", "a%20b", "mine.wasm", &long]
        {
            push(&host, name, &LAST).await.refused(400, "invalid_name");
        }
        push(&host, "%ff", &LAST).await.refused(400, "invalid_path");
        push(&host, "reload", &LAST).await.refused(405, "method_not_allowed");
        // Other bodies have their own limit still.
        host.put("/admin/bindings", &json!({ "scoring": "x".repeat(2000) })).await.refused(413, "too_large");
        let after = host.policy("mine").await;
        for field in ["digest", "config", "candidate", "problem", "versions", "source"] {
            assert_eq!(after[field], before[field], "{field}");
        }
        assert_eq!(files(&host.policies()), ["mine.wasm"]);
        assert_eq!(host.pick("").await, "c");
        host.stop().await;
    });
}

/// An empty core module.
fn wat_module() -> Vec<u8> {
    b"\0asm\x01\0\0\0".to_vec()
}

#[test]
fn uploads_need_the_signatures_that_files_need() {
    run(async {
        let key = PrivateKey::from_seed(&[1; 32]);
        let host = Host::with(trusting(&key)).await;
        instances(&host).await;
        push(&host, "mine", &LAST).await.refused(422, "unsigned");
        let signature = key.sign(Content::Component { digest: &digest(&LAST) });
        let signed = async |wasm: &[u8]| {
            let request = host.request(Method::PUT, "/admin/policies/mine");
            let request = request.header("content-type", "application/wasm").body(wasm.to_vec());
            host.send(request.header("fulcrum-signature", signature.trim())).await
        };
        signed(&FIRST).await.refused(422, "signature");
        signed(&LAST).await.ok();
        assert_eq!((host.pick("").await.as_str(), files(&host.policies()).len()), ("c", 2));
        let text = "{\"a\": 1}";
        let config = key.sign(Content::Config { policy: "mine", digest: &digest(text.as_bytes()) });
        let (kind, body) = form(&[("component", &LAST), ("config", text.as_bytes())]);
        send(&host, "/admin/policies/mine", kind, body).await.refused(422, "unsigned");
        let (kind, body) = form(&[
            ("component", &LAST),
            ("componentSignature", signature.as_bytes()),
            ("config", text.as_bytes()),
            ("configSignature", config.as_bytes()),
        ]);
        let status = send(&host, "/admin/policies/mine", kind, body).await.ok();
        assert_eq!(status["config"], json!({"a": 1}));
        // Signatures come back with their version.
        roll_back(&host, "mine", &json!({})).await.ok();
        roll_back(&host, "mine", &json!({})).await.ok();
        assert_eq!(files(&host.policies()), ["mine.json", "mine.json.sig", "mine.wasm", "mine.wasm.sig"]);
        let folder = host.stop().await;
        let host = Host::in_folder(folder, trusting(&PrivateKey::from_seed(&[2; 32]))).await;
        instances(&host).await;
        assert_eq!(host.recommend("").await["policy"], "p2c", "that key is not trusted any more");
        roll_back(&host, "mine", &json!({ "digest": digest(&LAST) })).await.refused(422, "signature");
        host.stop().await;
    });
}

#[test]
fn a_candidate_is_kept_over_a_restart_and_promoted() {
    run(async {
        let host = start().await;
        push(&host, "mine", &FIRST).await.ok();
        let status = push(&host, "mine?candidate=1", &LAST).await.ok();
        assert_eq!(
            (&status["digest"], &status["candidate"]["digest"]),
            (&json!(digest(&FIRST)), &json!(digest(&LAST)))
        );
        push(&host, "fresh?candidate=1", &LAST).await.ok();
        let folder = host.stop().await;
        let host = Host::in_folder(folder, |config| config.policy.scoring = "mine".to_owned()).await;
        instances(&host).await;
        assert_eq!(
            (host.pick("").await.as_str(), files(&host.policies())),
            ("a", vec!["mine.wasm".to_owned()])
        );
        let fresh = host.policy("fresh").await;
        assert_eq!((&fresh["state"], &fresh["candidate"]["version"]), (&json!("candidate"), &json!("1.0.0")));
        host.put("/admin/bindings", &json!({ "scoring": "fresh" })).await.refused(409, "only_candidate");
        promote(&host, "fresh", &json!({})).await.refused(409, "no_role");
        promote(&host, "nobody", &json!({})).await.refused(404, "unknown_policy");
        promote(&host, "mine", &json!({ "claiming": true })).await.refused(409, "wrong_role");
        promote(&host, "mine", &json!({ "decisions": 0 })).await.refused(400, "invalid_body");
        host.delete("/admin/policies/fresh").await.refused(409, "only_candidate");
        host.delete("/admin/policies/fresh?candidate=1").await.ok();
        host.delete("/admin/policies/p2c?candidate=1").await.refused(404, "no_candidate");

        let status = promote(&host, "mine", &json!({ "decisions": 3 })).await.ok();
        assert_eq!((&status["promotion"]["state"], &status["candidate"]), (&json!("running"), &Value::Null));
        assert_eq!(status["promotion"]["from"]["digest"], digest(&FIRST));
        promote(&host, "mine", &json!({})).await.refused(409, "nothing_to_promote");
        push(&host, "mine?candidate=1", &TRAP).await.ok();
        promote(&host, "mine", &json!({})).await.refused(409, "on_trial");
        host.delete("/admin/policies/mine?candidate=1").await.ok();
        for _ in 0..3 {
            assert_eq!(host.pick("").await, "c");
        }
        eventually("it passes", SOON, async || {
            (host.policy("mine").await["promotion"]["state"] == "passed").then_some(())
        })
        .await;
        // There and back again.
        for expected in ["a", "c", "a"] {
            let left = roll_back(&host, "mine", &json!({})).await.ok();
            assert_eq!((host.pick("").await.as_str(), &left["name"]), (expected, &json!("mine")));
        }
        roll_back(&host, "mine", &json!({ "digest": "00" })).await.refused(404, "unknown_version");
        roll_back(&host, "mine", &json!({ "digest": digest(&FIRST) })).await.refused(409, "already_in_use");
        roll_back(&host, "p2c", &json!({})).await.refused(409, "no_former_version");
        let status = host.policy("mine").await;
        let kept: Vec<_> =
            status["versions"].as_array().unwrap().iter().map(|kept| &kept["digest"]).collect();
        assert_eq!(kept, [&json!(digest(&FIRST)), &json!(digest(&LAST))]);
        let metrics = host.get("/metrics").await.text;
        assert!(metrics.contains("fulcrum_policy_promotions_total{result=\"passed\"} 1"), "{metrics}");
        host.stop().await;
    });
}

/// Clients that ask all the time; each answer must be a success that names an instance. Returns how many there were.
struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<u64>>,
}

impl Load {
    fn start(api: &Api, names: &[&str]) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let client = |name: &&str| {
            let (api, stop, query) = (api.another(), stop.clone(), format!("clientId={name}"));
            tokio::spawn(async move {
                let mut answers = 0;
                while !stop.load(Ordering::Relaxed) {
                    // Fails on anything but a success, a lost connection included.
                    let answer = api.recommend(&query).await;
                    let id = answer["instanceId"].as_str().unwrap_or_default();
                    assert!(["a", "b", "c"].contains(&id), "{answer}");
                    answers += 1;
                }
                answers
            })
        };
        Self { clients: names.iter().map(client).collect(), stop }
    }

    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut answers = 0;
        for client in self.clients {
            answers += client.await.expect("every answer was good");
        }
        answers
    }
}

#[test]
fn promotions_under_load_fail_no_request() {
    run(async {
        let host = start().await;
        let mut used = push(&host, "mine", &FIRST).await.ok()["digest"].clone();
        let load = Load::start(&host, &["one", "two", "three", "four", "five", "six"]);
        for turn in 0..10 {
            let wasm: &[u8] = if used == digest(&FIRST) { &LAST } else { &FIRST };
            push(&host, "mine?candidate=1", wasm).await.ok();
            let status = promote(&host, "mine", &json!({ "decisions": 20 })).await.ok();
            assert_eq!(status["digest"], digest(wasm));
            eventually("it passes", SOON, async || {
                (host.policy("mine").await["promotion"]["state"] == "passed").then_some(())
            })
            .await;
            used = json!(digest(wasm));
            if turn % 3 == 2 {
                used = roll_back(&host, "mine", &json!({})).await.ok()["status"]["digest"].clone();
            }
        }
        let answers = load.end().await;
        let status = host.policy("mine").await;
        assert_eq!(
            status["decisions"]["ok"], answers,
            "every one was decided by one of the versions: {status}"
        );
        host.stop().await;
    });
}

#[test]
fn a_policy_that_fails_after_its_promotion_is_taken_back_without_a_failed_request() {
    run(async {
        let host = start().await;
        push(&host, "mine", &LAST).await.ok();
        push(&host, "mine?candidate=1", &TRAP).await.ok();
        let load = Load::start(&host, &["one", "two", "three", TROUBLE]);
        let status = promote(&host, "mine", &json!({ "failuresMax": 2, "decisions": 100_000 })).await.ok();
        assert_eq!(status["digest"], digest(&TRAP));
        let status = eventually("it is taken back", SOON, async || {
            Some(host.policy("mine").await).filter(|status| status["promotion"]["state"] == "returned")
        })
        .await;
        assert_eq!(host.pick("clientId=one").await, "c");
        assert_eq!(host.pick(&format!("clientId={TROUBLE}")).await, "c");
        let answers = load.end().await;
        assert!(answers > 0);
        let promotion = &status["promotion"];
        // The breaker may have opened first, which takes three failures in a row.
        assert_eq!((&status["digest"], &promotion["failed"]), (&json!(digest(&LAST)), &json!(3)), "{status}");
        assert!(promotion["reason"].as_str().unwrap().contains("trap"), "{promotion}");
        assert_eq!(status["candidate"]["digest"], digest(&TRAP), "its author can look at it");
        assert_eq!(status["candidate"]["takenBack"]["reason"], promotion["reason"]);
        assert_eq!(status["versions"][1]["left"]["by"], "taken-back", "{status}");
        let again = promote(&host, "mine", &json!({ "accept": true })).await;
        assert!(again.refused(409, "taken_back").contains("trap"), "{again:?}");
        assert_eq!(std::fs::read(host.policies().path("mine.wasm")).unwrap(), *LAST);
        let metrics = host.get("/metrics").await.text;
        assert!(metrics.contains("fulcrum_policy_promotions_total{result=\"returned\"} 1"), "{metrics}");
        // A restart brings nothing back.
        let folder = host.stop().await;
        let host = Host::in_folder(folder, |config| config.policy.scoring = "mine".to_owned()).await;
        instances(&host).await;
        assert_eq!(host.pick("").await, "c");
        assert_eq!(host.policy("mine").await["promotion"]["state"], "returned");
        host.stop().await;
    });
}

#[test]
fn a_canary_decides_for_its_share() {
    run(async {
        let host = start().await;
        push(&host, "mine", &FIRST).await.ok();
        let canary = async |policy: &str, share: f64| {
            host.put("/admin/bindings", &json!({ "canary": { "policy": policy, "share": share } })).await
        };
        canary("mine", 0.5).await.refused(409, "already_serves");
        canary("nobody", 0.5).await.refused(404, "unknown_policy");
        canary("sticky", 0.5).await.refused(409, "wrong_role");
        canary("mine", 0.0).await.refused(400, "invalid_body");
        push(&host, "mine?candidate=1", &LAST).await.ok();
        let bindings = canary("mine", 0.25).await.ok();
        assert_eq!(bindings["canary"], json!({"policy": "mine", "share": 0.25}));
        let sides = async |host: &Host| {
            let mut sides = Vec::new();
            for client in 0..200 {
                sides.push(
                    host.recommend(&format!("clientId=client-{client}")).await["digest"] == digest(&LAST),
                );
            }
            sides
        };
        let first = sides(&host).await;
        let count = first.iter().filter(|is_canary| **is_canary).count();
        assert!((25..75).contains(&count), "{count} of 200");
        assert_eq!(sides(&host).await, first, "a client stays on its side");
        let status = host.policy("mine").await;
        assert_eq!(
            (&status["canary"]["share"], &status["canary"]["asked"]),
            (&json!(0.25), &json!(2 * count))
        );
        let metrics = host.get("/metrics").await.text;
        assert!(metrics.contains("fulcrum_policy_canary_share{policy=\"mine\"} 0.25"), "{metrics}");

        let folder = host.stop().await;
        let host = Host::in_folder(folder, |config| config.policy.scoring = "mine".to_owned()).await;
        instances(&host).await;
        assert_eq!(sides(&host).await, first, "over a restart, too");
        // One that fails is taken out, and nobody's request fails.
        push(&host, "mine?candidate=1", &TRAP).await.ok();
        host.put("/admin/bindings", &json!({ "canary": { "policy": "mine", "share": 1 } })).await.ok();
        eventually("the canary is taken out", SOON, async || {
            // By the canary's fallback, while it has one.
            assert_ne!(host.pick(&format!("clientId={TROUBLE}")).await, "");
            host.get("/admin/bindings").await.ok()["canary"].is_null().then_some(())
        })
        .await;
        assert!(host.policy("mine").await["canary"]["reason"].as_str().unwrap().contains("trap"));
        host.stop().await;
    });
}

#[test]
fn what_is_bound_at_run_time_survives_until_the_settings_change() {
    run(async {
        let host = Host::start().await;
        let body = json!({ "scoring": "weighted", "groups": { "orders": "greedy" } });
        host.put("/admin/bindings", &body).await.ok();
        let host = Host::in_folder(host.stop().await, |_| {}).await;
        let bindings = host.get("/admin/bindings").await.ok();
        assert_eq!((&bindings["scoring"], &bindings["groups"]), (&json!("weighted"), &body["groups"]));
        host.beat("a", 0).await;
        assert_eq!(host.recommend("").await["policy"], "weighted");
        let host =
            Host::in_folder(host.stop().await, |config| config.policy.claiming = "greedy".to_owned()).await;
        let bindings = host.get("/admin/bindings").await.ok();
        assert_eq!((&bindings["scoring"], &bindings["claiming"]), (&json!("weighted"), &json!("greedy")));
        let bindings = host.delete("/admin/bindings").await.ok();
        assert_eq!(bindings, json!({ "scoring": "p2c", "claiming": "greedy", "groups": {}, "canary": null }));
        host.stop().await;
    });
}

#[test]
fn configurations_are_not_logged() {
    run(async {
        let process = Process::serve(&["--set", "policy.scoring=mine"]).await;
        push(&process, "mine", &FIRST).await.ok();
        for path in ["mine", "mine?candidate=1"] {
            configure(&process, path, &json!({ "password": format!("hush {path}") })).await.ok();
        }
        promote(&process, "mine", &json!({})).await.ok();
        let log = process.log();
        for line in ["policy serves scoring", "a candidate was pushed", "policy promoted", "config_digest"] {
            assert!(log.contains(line), "{line}: {log}");
        }
        assert!(!log.contains("hush") && !log.contains("password"), "{log}");
    });
}

#[test]
fn a_killed_host_comes_back_with_one_version_or_the_other() {
    const KILLS: usize = 8;
    run(async {
        let mut chance = Chance::new(test_seed());
        let arguments = ["--set", "policy.scoring=mine", "--set", "policy.scoring_deadline_ms=2000"];
        let mut process = Process::serve(&arguments).await;
        push(&process, "mine", &FIRST).await.ok();
        let digests = [&*FIRST, &*LAST].map(|wasm| digest(wasm));
        for kill in 0..KILLS {
            let wasm: &[u8] =
                if process.policy("mine").await["digest"] == digests[0] { &LAST } else { &FIRST };
            push(&process, "mine?candidate=1", wasm).await.ok();
            let api = process.another();
            let order = tokio::spawn(async move {
                let body = json!({ "accept": true });
                let request = api.request(Method::POST, "/admin/policies/mine/promote").json(&body);
                // It may be cut off.
                drop(request.send().await);
            });
            // A random moment of the order.
            tokio::time::sleep(Duration::from_micros(chance.below(40_000) as u64)).await;
            process.signal("KILL");
            process.ended().await;
            order.await.unwrap();
            process = Process::serve_in(process.into_folder(), &arguments).await;
            instances(&process).await;
            let status = process.policy("mine").await;
            let answer = process.recommend("").await;
            let file = digest(&std::fs::read(process.policies().path("mine.wasm")).unwrap());
            let told = format!("kill {kill}, seed {}: {status} {answer}", test_seed());
            assert!(digests.contains(&file), "{told}");
            assert_eq!((&answer["digest"], &answer["policy"]), (&json!(file), &json!("mine")), "{told}");
            assert_eq!((&status["digest"], &status["problem"]), (&json!(file), &Value::Null), "{told}");
            // Carried out as a whole, or not at all.
            let is_promoted =
                status["promotion"]["state"] == "running" && status["promotion"]["digest"] == file;
            if status["candidate"].is_null() {
                assert!(is_promoted, "{told}");
            } else {
                assert_ne!(status["candidate"]["digest"], file, "{told}");
            }
            let left: Vec<_> =
                files(&process.policies()).into_iter().filter(|name| name.starts_with('.')).collect();
            assert!(left.is_empty(), "{left:?}");
        }
    });
}

#[test]
fn orders_and_drops_at_once_end_in_one_state() {
    run(async {
        let host = start().await;
        push(&host, "mine", &FIRST).await.ok();
        let load = Load::start(&host, &["one", "two"]);
        let actor = |number: usize| {
            let (api, drops) = (host.another(), host.policies());
            tokio::spawn(async move {
                for turn in 0..8 {
                    let wasm: &[u8] = [&*FIRST, &*LAST, &*TRAP][(number + turn) % 3];
                    // Which of them are refused depends on who was first; none may break anything.
                    let answer = match (number + turn) % 6 {
                        0 => push(&api, "mine", wasm).await,
                        1 => {
                            push(&api, "mine?candidate=1", wasm).await;
                            promote(&api, "mine", &json!({ "accept": true })).await
                        }
                        2 => roll_back(&api, "mine", &json!({})).await,
                        3 => configure(&api, "mine", &json!({ "turn": turn })).await,
                        4 => {
                            let beside = drops.path(&format!(".{number}.part"));
                            std::fs::write(&beside, wasm).unwrap();
                            std::fs::rename(&beside, drops.path("mine.wasm")).unwrap();
                            continue;
                        }
                        _ => api.delete("/admin/policies/mine").await,
                    };
                    assert!(answer.status < 500, "{answer:?}");
                }
            })
        };
        let actors: Vec<_> = (0..8).map(actor).collect();
        for actor in actors {
            actor.await.expect("no order broke anything");
        }
        load.end().await;
        let file = std::fs::read(host.policies().path("mine.wasm")).map(|bytes| digest(&bytes)).unwrap();
        host.until_in_use("mine", &file).await;
        host.post("/admin/policies/reload", &json!({})).await.ok();
        let text =
            std::fs::read_to_string(host.policies().path("mine.json")).unwrap_or_else(|_| "{}".to_owned());
        let status = host.policy("mine").await;
        assert_eq!((&status["digest"], &status["problem"]), (&json!(file), &Value::Null), "{status}");
        assert_eq!(status["config"], serde_json::from_str::<Value>(&text).unwrap());
        let answer = host.recommend("clientId=one").await;
        assert_eq!((&answer["policy"], &answer["digest"]), (&json!("mine"), &json!(file)));
        let left: Vec<_> = files(&host.policies()).into_iter().filter(|name| name.ends_with("new")).collect();
        assert!(left.is_empty(), "{left:?}");
        host.stop().await;
    });
}

#[test]
fn the_command_line_drives_the_life_cycle() {
    run(async {
        let host = start().await;
        let folder = tempfile::tempdir().unwrap();
        let path = |file: &str| folder.path().join(file).to_str().unwrap().to_owned();
        std::fs::write(path("mine.wasm"), &*FIRST).unwrap();
        std::fs::write(path("next.wasm"), &*LAST).unwrap();
        std::fs::write(path("bad.wasm"), b"garbage").unwrap();
        std::fs::write(path("mine.json"), b"{\"a\": 1}").unwrap();
        let policy = async |arguments: &[&str]| {
            let all = [&["policy"], arguments, &["--host", host.url()]].concat();
            fulcrum(&all, "").await
        };
        let failed = async |arguments: &[&str], word: &str| {
            let ended = policy(arguments).await;
            assert!(ended.code == Some(1) && ended.out.is_empty() && ended.err.contains(word), "{ended:?}");
        };
        let first = label(&digest(&FIRST), "{}");
        let last = label(&digest(&LAST), "{\"a\":1}");
        let begins = |out: &str, line: &str| assert!(out.starts_with(line), "{line}: {out}");
        let serves = |out: &str, line: &str| assert!(out.contains(&format!("\n{line}")), "{line}: {out}");

        let out = policy(&["push", &path("mine.wasm")]).await.ok();
        begins(
            &out,
            &format!("mine: {first} (version 1.0.0) is in use, bound to scoring\nscoring: mine {first}\n"),
        );
        serves(&out, "claiming: sticky ");
        let out = policy(&["push", &path("mine.json"), "--json"]).await.ok();
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["config"], json!({"a": 1}));
        failed(&["push", &path("bad.wasm"), "--name", "mine"], "this is not WebAssembly").await;
        failed(&["push", &path("none.wasm")], "cannot read").await;
        failed(&["push", &path("mine.json"), "--config", &path("mine.json")], "leave --config out").await;
        let both =
            ["push", &path("next.wasm"), "--name", "mine", "--config", &path("mine.json"), "--candidate"];
        let out = policy(&both).await.ok();
        begins(&out, &format!("mine: {last} (version 1.0.0) waits as the candidate\n"));
        // Only the configuration is another one.
        let first = label(&digest(&FIRST), "{\"a\":1}");
        serves(&out, &format!("scoring: mine {first}\n"));

        let out = policy(&["canary", "mine", "0.5"]).await.ok();
        assert!(out.contains("scoring, a share of 0.5 (canary)  mine"), "{out}");
        serves(&out, &format!("canary: mine {last} for a share of 0.5\n"));
        failed(&["canary", "mine"], "for which share").await;
        for arguments in [["canary", "p2c", "2"], ["canary", "p2c", "NaN"]] {
            failed(&arguments, "the share must be above 0 and at most 1").await;
        }
        assert!(!policy(&["canary", "off"]).await.ok().contains("canary"));

        let out = policy(&["promote", "mine", "--failures-max", "1", "--decisions", "50"]).await.ok();
        let expected = format!("promotion of {last}: running, 0 of at most 1 failures in 0 of 50 decisions");
        assert!(out.contains(&expected), "{out}");
        failed(&["promote", "mine"], "nothing to promote").await;
        failed(&["promote", "mine"], "`fulcrum policy push --candidate`").await;
        failed(&["promote", "nobody", "--scoring"], "there is no policy `nobody`").await;
        assert_eq!(host.pick("").await, "c");
        let out = policy(&["status", "mine"]).await.ok();
        for part in [
            &expected.replace("0 of 50", "1 of 50"),
            &format!("*  {last}  1.0.0  {{\"a\":1}}  promoted "),
            &first,
        ] {
            assert!(out.contains(part.as_str()), "{part}: {out}");
        }

        std::fs::write(path("mine.json"), b"{\"a\": 2}").unwrap();
        let out = policy(&["push", &path("mine.json")]).await.ok();
        let other = label(&digest(&LAST), "{\"a\":2}");
        serves(
            &out,
            &format!(
                "the trial of mine goes on: promotion of {other}: running, 0 of at most 1 failures in 0 "
            ),
        );
        let out = policy(&["rollback", "mine"]).await.ok();
        begins(&out, &format!("mine: {first} (version 1.0.0) is in use, bound to scoring\n"));
        serves(
            &out,
            &format!("mine: {other} (version 1.0.0) waits as the candidate\nscoring: mine {first}\n"),
        );
        let out = policy(&["rollback", "mine"]).await.ok();
        begins(&out, &format!("mine: {other} "));
        let out = policy(&["promote", "mine", "--accept"]).await.ok();
        assert!(out.contains("passed") && out.contains("(accepted by hand)"), "{out}");
        let out = policy(&["rollback", "mine", "--to", &last, "--json"]).await.ok();
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["status"]["digest"], digest(&LAST));
        failed(&["rollback", "mine", "--to", "00"], "kept are").await;
        failed(&["remove", "mine"], "is bound to scoring").await;
        let out = policy(&["remove", "mine", "--force"]).await.ok();
        begins(&out, "mine: no version is in use; `fulcrum policy rollback mine` brings the last one back\n");
        serves(&out, "scoring: p2c ");
        assert!(out.contains("(mine is bound, but has no version to serve)"), "{out}");
        let out = policy(&["status"]).await.ok();
        assert!(out.contains("mine      removed") || out.contains(" removed "), "{out}");
        failed(&["remove", "mine"], "`fulcrum policy rollback mine` brings its last version back").await;
        failed(&["remove", "mine", "--candidate"], "has no candidate").await;
        failed(&["bind", "--claiming", "mine"], "`fulcrum policy rollback mine`").await;
        failed(&["status", "nobody"], "`fulcrum policy status` lists all").await;

        let out = policy(&["bind", "--scoring", "weighted", "--group", "orders=greedy"]).await.ok();
        assert!(out.contains("scoring       weighted") && out.contains("group orders  greedy"), "{out}");
        let out = policy(&["bind", "--group", "orders=", "--json"]).await.ok();
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["groups"], json!({}));
        assert!(policy(&["bind"]).await.ok().contains("weighted"));
        assert!(policy(&["bind", "--reset"]).await.ok().contains("mine"));
        failed(&["bind", "--scoring", "nobody"], "there is no policy").await;
        failed(&["bind", "--group", "orders"], "expected GROUP=NAME").await;
        host.stop().await;
    });
}

#[test]
fn what_a_way_back_leads_to_stays_or_comes_back() {
    run(async {
        let host = start().await;
        push(&host, "mine", &FIRST).await.ok();
        push(&host, "next?candidate=1", &LAST).await.ok();
        let status = promote(&host, "next", &json!({ "scoring": true })).await.ok();
        assert_eq!(status["promotion"]["from"].get("problem"), None, "{status}");
        for query in ["", "?force=1"] {
            let answer = host.delete(&format!("/admin/policies/mine{query}")).await;
            let text = answer.refused(409, "way_back");
            assert!(text.contains("`fulcrum policy promote next --accept`"), "{text}");
        }
        let removed = fulcrum(&["policy", "remove", "mine", "--host", host.url()], "").await;
        assert!(
            removed.code == Some(1) && removed.err.contains("`fulcrum policy rollback next`"),
            "{removed:?}"
        );
        // By hand it is gone, but not for good.
        std::fs::remove_file(host.policies().path("mine.wasm")).unwrap();
        host.post("/admin/policies/reload", &json!({})).await.ok();
        let status = host.policy("next").await;
        let problem = status["promotion"]["from"]["problem"].as_str().unwrap();
        assert!(problem.contains("is kept and put back"), "{status}");
        let shown = fulcrum(&["policy", "status", "next", "--host", host.url()], "").await.ok();
        assert!(shown.contains(problem), "{shown}");
        roll_back(&host, "next", &json!({})).await.ok();
        assert_eq!(
            (host.pick("").await.as_str(), files(&host.policies())),
            ("a", vec!["mine.wasm".to_owned()])
        );
        host.stop().await;
    });
}

#[test]
fn an_order_that_crashes_the_task_is_told_from_a_host_that_stops() {
    run(async {
        let host = start().await;
        assert_eq!(host.get("/readyz").await.ok(), json!({ "status": "ready" }));
        let task = async |host: &Host| host.get("/admin/policies").await.ok()["task"].clone();
        assert_eq!(task(&host).await, json!({ "state": "running", "crashes": 0, "lastCrashAt": null }));
        let (crashes, armed) = {
            let crashes = Arc::<AtomicBool>::default();
            (crashes.clone(), crashes)
        };
        host.services().policies.on_change(Arc::new(move || {
            assert!(!armed.swap(false, Ordering::Relaxed), "this crash is part of the test");
        }));
        crashes.store(true, Ordering::Relaxed);
        let answer = push(&host, "mine", &LAST).await;
        let text = answer.refused(500, "policies_crashed");
        assert!(text.contains("restart the host") && text.contains("the log of the host"), "{text}");
        crashes.store(true, Ordering::Relaxed);
        host.put("/admin/bindings", &json!({ "scoring": "weighted" })).await.refused(500, "policies_crashed");
        eventually("both are counted", SOON, async || (task(&host).await["crashes"] == 2).then_some(()))
            .await;
        let ready = host.get("/readyz").await.ok();
        assert_eq!((&ready["status"], &ready["policyTask"]), (&json!("ready"), &task(&host).await));
        let metrics = host.get("/metrics").await.text;
        assert!(metrics.contains("fulcrum_policy_task_crashes_total 2"), "{metrics}");
        // It goes on.
        push(&host, "mine", &FIRST).await.ok();
        host.put("/admin/bindings", &json!({ "scoring": "mine" })).await.ok();
        assert_eq!(host.pick("").await, "a");
        host.stop().await;
    });
}

#[test]
fn a_group_with_a_policy_of_its_own_counts() {
    run(async {
        let host = start().await;
        let greedy = fulcrum::embedded::find("greedy").unwrap();
        push(&host, "claims", greedy).await.ok();
        push(&host, "other?candidate=1", greedy).await.ok();
        let groups = |group: &str| json!({ "groups": [group] });
        let answer = promote(&host, "other", &groups("orders")).await;
        assert!(answer.refused(404, "unknown_group").contains("`orders`"), "{answer:?}");
        host.put("/groups/orders", &json!({ "policy": "claims" })).await.ok();
        let answer = promote(&host, "other", &groups("orders")).await;
        assert!(answer.refused(409, "own_policy").contains("`claims`"), "{answer:?}");
        let answer = host.delete("/admin/policies/claims").await;
        assert!(answer.refused(409, "policy_in_use").contains("group orders"), "{answer:?}");
        // It serves that group, so that a candidate can be promoted without another word.
        configure(&host, "claims?candidate=1", &json!({})).await.ok();
        promote(&host, "claims", &json!({})).await.refused(409, "already_in_use");
        host.put("/groups/orders", &json!({ "policy": null })).await.ok();
        promote(&host, "claims", &json!({})).await.refused(409, "no_role");
        let status = promote(&host, "other", &groups("orders")).await.ok();
        assert_eq!(status["bound"], json!(["group:orders"]));
        host.delete("/admin/policies/claims").await.ok();
        host.stop().await;
    });
}

#[test]
fn nobody_waits_behind_an_upload_that_stopped() {
    run(async {
        let host = start().await;
        push(&host, "mine", &FIRST).await.ok();
        // Somebody uploads a component and stops in the middle.
        let mut slow =
            tokio::net::TcpStream::connect(host.url().trim_start_matches("http://")).await.unwrap();
        let head = "PUT /admin/policies/other HTTP/1.1\r\nHost: x\r\nContent-Type: application/wasm\r\n\
                    Content-Length: 8000000\r\n\r\n\0asm";
        let uploads = host.services().uploads.clone();
        let all = uploads.available_permits();
        slow.write_all(head.as_bytes()).await.unwrap();
        eventually("it has its turn", SOON, async || (uploads.available_permits() < all).then_some(())).await;
        let status = configure(&host, "mine", &json!({"a": 1})).await.ok();
        assert_eq!(status["config"], json!({"a": 1}));
        // Nor does another component.
        push(&host, "third", &FIRST).await.ok();
        assert_eq!(uploads.available_permits(), all - 1, "the first one is not done yet");
        drop(slow);
        host.stop().await;
    });
}

#[test]
fn the_command_line_sends_signatures() {
    run(async {
        let key = PrivateKey::from_seed(&[1; 32]);
        let host = Host::with(trusting(&key)).await;
        let folder = tempfile::tempdir().unwrap();
        let path = |file: &str| folder.path().join(file).to_str().unwrap().to_owned();
        std::fs::write(path("mine.wasm"), &*LAST).unwrap();
        std::fs::write(path("mine.json"), b"{\"a\": 1}").unwrap();
        std::fs::write(path("key"), key.to_text()).unwrap();
        // A key that others may read is refused.
        #[cfg(unix)]
        std::fs::set_permissions(path("key"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let secret = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path("key"), secret).unwrap();
        let push = async |arguments: &[&str]| {
            let file = path("mine.wasm");
            let all = [&["policy", "push", &file, "--host", host.url()], arguments].concat();
            fulcrum(&all, "").await
        };
        let refused = push(&[]).await;
        assert!(refused.code == Some(1) && refused.err.contains("is not signed"), "{refused:?}");
        push(&["--sign-key", &path("key"), "--config", &path("mine.json")]).await.ok();
        assert_eq!(host.policy("mine").await["config"], json!({"a": 1}));
        for file in ["mine.wasm", "mine.json"] {
            fulcrum(&["policy", "sign", &path(file), "--key", &path("key")], "").await.ok();
        }
        push(&[]).await.ok();
        push(&["--config", &path("mine.json"), "--candidate"]).await.ok();
        host.stop().await;
    });
}
