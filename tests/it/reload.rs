//! The policies folder of a running host, through the real watcher: what is dropped serves, what is bad does not.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fulcrum::config::Config;
use fulcrum_policy::{Artifact, proof};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::*;

/// Binds scoring to `mine`, which only exists once it is dropped.
fn mine(config: &mut Config) {
    config.policy.scoring = "mine".to_owned();
}

/// A host with two equal instances, `a` before `b`, and nothing dropped yet.
async fn host(change: impl FnOnce(&mut Config)) -> Host {
    let host = Host::with(|config| {
        mine(config);
        change(config);
    })
    .await;
    host.beat("a", 0).await;
    host.beat("b", 0).await;
    host
}

/// The embedded component of a name.
fn embedded(name: &str) -> &'static [u8] {
    fulcrum::embedded::find(name).expect("it is embedded")
}

/// Asks a host without a pause; every answer must be a success that names an instance.
struct Hammer {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Hammer {
    fn start(host: &Api) -> Self {
        let (stop, answers, api) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), host.another());
        let (is_over, count) = (stop.clone(), answers.clone());
        let task = tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let answer = api.recommend("clientId=hammer").await;
                assert!(["a", "b"].contains(&answer["instanceId"].as_str().unwrap()), "{answer}");
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { stop, answers, task }
    }

    /// Ends it; fails if any answer was not what it must be.
    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("every answer was good");
        self.answers.load(Ordering::Relaxed)
    }
}

#[test]
fn a_dropped_component_decides_within_half_a_second() {
    run(async {
        let host = host(|_| {}).await;
        assert_eq!(host.recommend("").await["policy"], "p2c", "the default serves until there is one");
        let hammer = Hammer::start(&host);
        let drops = host.policies();
        type Drop = fn(&Drops, &str, &[u8]);
        let steps: [(&str, &[u8], Drop); 4] = [
            ("5 kB, renamed into place", &FIRST, Drops::put),
            ("5 kB, copied", &LAST, Drops::copy),
            ("70 kB, renamed into place", embedded("weighted"), Drops::put),
            ("70 kB, copied", embedded("p2c"), Drops::copy),
        ];
        for (how, wasm, drop_file) in steps {
            let digest = digest(wasm);
            let begun = Instant::now();
            drop_file(&drops, "mine.wasm", wasm);
            let answer = eventually(format!("{how} serves"), Duration::from_secs(2), async || {
                Some(host.recommend("").await).filter(|answer| answer["digest"] == digest)
            });
            let answer = answer.await;
            println!("drop to live, {how}: {} ms", begun.elapsed().as_millis());
            assert_eq!(answer["policy"], "mine");
        }
        let status = host.policy("mine").await;
        assert_eq!((&status["state"], &status["source"]), (&json!("live"), &json!("file")));
        assert!(hammer.end().await > 0);
        host.stop().await;
    });
}

#[test]
fn a_policy_is_shown_as_it_stands() {
    run(async {
        let host = host(|_| {}).await;
        host.policies().put("mine.wasm", embedded("weighted"));
        let mut status = host.until_in_use("mine", &digest(embedded("weighted"))).await;
        assert!(status["loadMs"].take().is_u64() && status["summary"].take().is_string());
        assert!(status["versions"][0]["at"].take().is_u64());
        let versions = json!([{ "digest": digest(embedded("weighted")), "version": weighted_version(), "config": {},
            "embedded": false, "inUse": true, "at": null, "cameBy": "dropped" }]);
        let expected = json!({ "name": "mine", "state": "live", "source": "file", "digest": digest(embedded("weighted")),
            "version": weighted_version(), "summary": null, "roles": ["scoring"], "bound": ["scoring"], "config": {},
            "sizeBytes": embedded("weighted").len(), "loadMs": null, "lastFailure": null, "problem": null,
            "decisions": { "ok": 0, "timeout": 0, "trap": 0, "limit": 0, "illegal": 0, "error": 0, "open": 0 },
            "plans": { "ok": 0, "timeout": 0, "trap": 0, "limit": 0, "illegal": 0, "error": 0, "open": 0 },
            "candidate": null, "versions": versions, "promotion": null, "canary": null });
        assert_eq!(status, expected);
        host.recommend("").await;
        let all = host.get("/admin/policies").await.ok();
        assert_eq!(all["bindings"]["scoring"], "mine");
        let mut expected: Vec<_> = fulcrum::embedded::policies().iter().map(|policy| policy.name).collect();
        expected.push("mine");
        expected.sort_unstable();
        assert_eq!(names(&all), expected);
        assert_eq!(host.policy("mine").await["decisions"]["ok"], 1);
        assert_eq!(host.policy("weighted").await["state"], "available", "it was not needed yet");
        host.get("/admin/policies/nothing").await.refused(404, "unknown_policy");
        host.stop().await;
    });
}

/// The names in a list of policies.
fn names(all: &Value) -> Vec<&str> {
    all["policies"].as_array().unwrap().iter().map(|status| status["name"].as_str().unwrap()).collect()
}

fn weighted_version() -> String {
    <weighted::logic::Weighted as fulcrum_guest::Scoring>::describe().version.to_owned()
}

#[test]
fn an_admin_path_that_is_no_text_is_refused_in_json() {
    run(async {
        let host = Host::start().await;
        host.get("/admin/policies/%FF").await.refused(400, "invalid_path");
        host.stop().await;
    });
}

#[test]
fn a_configuration_is_hot() {
    run(async {
        let host = Host::with(|config| config.policy.scoring = "weighted".to_owned()).await;
        host.beat("a", 3).await;
        let score = async || {
            host.beat("a", 3).await;
            host.recommend("").await["score"].clone()
        };
        let until_score = async |expected: f64| {
            eventually(format!("the score is {expected}"), SOON, async || {
                (score().await == expected).then_some(())
            })
            .await;
        };
        assert_eq!(score().await, 3.0);
        // Beside the embedded policy of that name …
        let drops = host.policies();
        drops.put("weighted.json", br#"{"sessionWeight": 5}"#);
        until_score(15.0).await;
        // A decision may come before the list of policies shows what it was made by.
        let until_shown = async |what: &str, is_it: fn(&Value) -> bool| {
            let look = async || Some(host.policy("weighted").await).filter(is_it);
            eventually(what, SOON, look).await
        };
        until_shown("the configuration", |status| status["config"] == json!({ "sessionWeight": 5 })).await;
        drops.copy("weighted.json", br#"{"sessionWeight": 7}"#);
        until_score(21.0).await;
        until_shown("the next one", |status| status["config"] == json!({ "sessionWeight": 7 })).await;

        for (text, code, words) in [
            (r#"{"sessionWeight": -1}"#, "config", "/sessionWeight: -1 is less than the minimum"),
            (r#"{"sesionWeight": 1}"#, "config", "'sesionWeight' was unexpected"),
            ("{", "config_syntax", "weighted.json is not a JSON object: EOF"),
            ("[1]", "config_syntax", "weighted.json is not a JSON object: it is another kind of value"),
        ] {
            drops.put("weighted.json", text.as_bytes());
            // The same code may stand there from the row before.
            let status = eventually(format!("{text} is refused with {code}: {words}"), SOON, async || {
                let status = host.policy("weighted").await;
                let Value::String(message) = &status["problem"]["message"] else { return None };
                (status["problem"]["code"] == code && message.contains(words)).then_some(status)
            });
            assert_eq!(status.await["config"], json!({ "sessionWeight": 7 }), "{text}");
            assert_eq!(score().await, 21.0, "{text}");
        }
        drops.remove("weighted.json");
        until_score(3.0).await;
        until_shown("no problem", |status| status["problem"].is_null()).await;

        // … and beside a component.
        drops.put("weighted.json", br#"{"sessionWeight": 2}"#);
        drops.put("weighted.wasm", embedded("weighted"));
        let file = eventually("the file serves", SOON, async || {
            Some(host.policy("weighted").await).filter(|status| status["source"] == "file")
        });
        file.await;
        until_score(6.0).await;
        until_shown("both", |status| status["config"] == json!({ "sessionWeight": 2 })).await;
        host.stop().await;
    });
}

#[test]
fn a_deleted_file_gives_way() {
    run(async {
        let host = host(|config| config.policy.scoring = "p2c".to_owned()).await;
        let drops = host.policies();
        assert_eq!(host.policy("p2c").await["source"], "embedded");
        drops.put("p2c.wasm", &LAST);
        host.until_in_use("p2c", &digest(&LAST)).await;
        assert_eq!(host.pick("").await, "b");
        drops.remove("p2c.wasm");
        let status = host.until_in_use("p2c", &digest(embedded("p2c"))).await;
        assert_eq!((&status["source"], &status["state"]), (&json!("embedded"), &json!("live")));
        assert_eq!(host.recommend("").await["digest"], digest(embedded("p2c")));
        host.stop().await;
    });
}

#[test]
fn a_bound_name_without_a_file_waits_for_it() {
    run(async {
        let host = host(|_| {}).await;
        let drops = host.policies();
        drops.put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;
        drops.remove("mine.wasm");
        let state = async || host.policy("mine").await["state"].clone();
        eventually("it is removed", SOON, async || (state().await == "removed").then_some(())).await;
        assert_eq!(host.recommend("").await["policy"], "p2c");
        assert_eq!(host.get("/admin/bindings").await.ok()["scoring"], "mine");
        drops.put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        assert_eq!(host.recommend("").await["policy"], "mine");
        host.stop().await;
    });
}

/// Issue 2: a configuration that was left behind must not keep a deleted component in service.
#[test]
fn a_deleted_component_gives_way_although_its_configuration_stays() {
    run(async {
        let host = host(|_| {}).await;
        let drops = host.policies();
        drops.put("mine.json", br#"{"sessionWeight": 2}"#);
        drops.put("mine.wasm", embedded("weighted"));
        host.until_in_use("mine", &digest(embedded("weighted"))).await;
        drops.remove("mine.wasm");
        eventually("the default serves", SOON, async || {
            (host.recommend("").await["policy"] == "p2c").then_some(())
        })
        .await;
        host.stop().await;
    });
}

/// Issue 2: the same for an embedded name, and over a restart at which the configuration is bad.
#[test]
fn a_deleted_component_stays_away_after_a_restart() {
    run(async {
        let weighted = |config: &mut Config| config.policy.scoring = "weighted".to_owned();
        let host = host(weighted).await;
        let drops = host.policies();
        drops.put("weighted.json", b"{}");
        drops.put("weighted.wasm", &LAST);
        host.until_in_use("weighted", &digest(&LAST)).await;
        drops.remove("weighted.wasm");
        host.until_in_use("weighted", &digest(embedded("weighted"))).await;
        let folder = host.stop().await;
        drops.put("weighted.json", b"{");
        let host = Host::in_folder(folder, weighted).await;
        host.until_refused("weighted", "config_syntax").await;
        host.beat("a", 0).await;
        assert_eq!(host.recommend("").await["digest"], digest(embedded("weighted")));
        host.stop().await;
    });
}

/// A component from its text.
fn component(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The start of what `wasmtime compile` writes: a 64-bit ELF file whose "operating system" is wasmtime.
fn precompiled() -> Vec<u8> {
    let mut header = vec![0; 4096];
    header[..9].copy_from_slice(b"\x7fELF\x02\x01\x01\xc8\x00");
    header[0x10..0x14].copy_from_slice(&[1, 0, 0, 0]);
    header[0x14] = 1;
    // e_flags: a component.
    header[0x30] = 2;
    header[0x34] = 64;
    header
}

#[test]
fn a_bad_file_is_named_and_changes_nothing() {
    run(async {
        let own = std::fs::read("/proc/self/exe").map(|binary| binary[..4096].to_vec()).unwrap();
        let mut flipped = FIRST.clone();
        flipped[9] ^= 0x40;
        let import = r#"(component (import "wasi:cli/environment@0.2.0" (instance)))"#;
        let other = r#"(component (instance $i) (export "wasi:http/incoming-handler@0.2.0" (instance $i)))"#;
        let version = r#"(component (instance $i) (export "fulcrum:policy/scoring@2.0.0" (instance $i)))"#;
        let lacking = r#"(component (instance $i) (export "fulcrum:policy/scoring@1.0.0" (instance $i)))"#;
        let table: Vec<(&str, Vec<u8>, &str, &[&str])> = vec![
            ("a program", own, "precompiled", &["native code", "drop the .wasm component"]),
            ("a file precompiled by wasmtime", precompiled(), "precompiled", &["native code"]),
            ("a core module", component("(module)"), "core_module", &["fulcrum policy pack"]),
            ("text of a module", b";; hello\n(module)".to_vec(), "text", &["fulcrum policy pack"]),
            ("text of a component", b"(component)".to_vec(), "text", &["fulcrum policy pack"]),
            ("an empty file", vec![], "empty", &["rename it when complete"]),
            ("a letter", b"Dear host".to_vec(), "not_wasm", &["\"Dear hos\"", "starts with \\0asm"]),
            ("a cut header", FIRST[..6].to_vec(), "damaged", &["copy it again"]),
            ("half a component", FIRST[..FIRST.len() / 2].to_vec(), "damaged", &["incomplete or damaged"]),
            ("all but one byte", FIRST[..FIRST.len() - 1].to_vec(), "damaged", &["incomplete or damaged"]),
            ("a flipped bit", flipped, "damaged", &["incomplete or damaged"]),
            ("two files in one", FIRST.repeat(2), "damaged", &["copy it again"]),
            (
                "nothing but a header",
                component("(component)"),
                "other_world",
                &["exports nothing", "policy wit"],
            ),
            (
                "another world",
                component(other),
                "other_world",
                &["wasi:http/incoming-handler@0.2.0", "policy wit"],
            ),
            ("another version", component(version), "version", &["fulcrum:policy@2.0.0", "speaks 1.0.0"]),
            ("WASI", component(import), "imports", &["wasi:cli/environment@0.2.0", "without WASI"]),
            (
                "missing functions",
                component(lacking),
                "differences",
                &["`scoring.recommend` is missing", "lifecycle"],
            ),
            ("too large", vec![0; (1 << 20) + 1], "too_large", &["1048577", "policy.artifact_mib_max"]),
        ];
        let host = host(|config| config.policy.artifact_mib_max = 1).await;
        let drops = host.policies();
        drops.put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;
        let hammer = Hammer::start(&host);
        for (what, bytes, code, words) in table {
            drops.put("mine.wasm", &bytes);
            // The same code may stand there from the row before.
            let is_digest_known = code != "too_large";
            let status = eventually(format!("{what} is refused with {code}"), SOON, async || {
                let status = host.policy("mine").await;
                let problem = &status["problem"];
                let is_it = problem["digest"] == if is_digest_known { digest(&bytes) } else { String::new() };
                (is_it && problem["code"].is_string()).then_some(status)
            });
            let status = status.await;
            let problem = &status["problem"];
            assert_eq!(problem["code"], code, "{what}: {problem}");
            let message = problem["message"].as_str().unwrap();
            for word in words {
                assert!(message.contains(word), "{what}: {message:?} lacks {word:?}");
            }
            assert_eq!(
                (&status["digest"], &status["state"], &status["source"]),
                (&json!(digest(&LAST)), &json!("live"), &json!("last-good"))
            );
            let answer = host.recommend("").await;
            assert_eq!(
                (&answer["instanceId"], &answer["digest"]),
                (&json!("b"), &json!(digest(&LAST))),
                "{what}"
            );
        }
        // The same bytes as before are good again.
        drops.put("mine.wasm", &LAST);
        let good = eventually("it is good again", SOON, async || {
            Some(host.policy("mine").await).filter(|status| status["problem"].is_null())
        });
        assert_eq!(good.await["source"], "file");
        assert!(hammer.end().await > 0);
        host.stop().await;
    });
}

#[test]
fn guests_that_fail_while_they_are_loaded_never_serve() {
    run(async {
        let host = host(|config| {
            config.policy.load_deadline_ms = 1000;
            config.policy.scoring_deadline_ms = 10;
        })
        .await;
        let mut tried = 0;
        for Sin { name, stage, expected, wasm } in sins().into_iter().filter(|sin| sin.stage == "load") {
            host.policies().put("mine.wasm", &wasm);
            let refused = eventually(format!("{name} is refused"), SOON, async || {
                Some(host.policy("mine").await).filter(|status| status["problem"]["digest"] == digest(&wasm))
            });
            let status = refused.await;
            assert_eq!(
                (&status["problem"]["code"], &status["state"]),
                (&json!(expected), &json!("refused")),
                "{stage} {name}"
            );
            assert_eq!(host.recommend("").await["policy"], "p2c", "{name}");
            tried += 1;
        }
        assert!(tried >= 9, "{tried}");
        host.stop().await;
    });
}

#[test]
fn a_digest_file_guards_its_component() {
    run(async {
        let host = host(|_| {}).await;
        let drops = host.policies();
        let sum = |wasm: &[u8]| format!("{}  mine.wasm\n", digest(wasm)).into_bytes();
        drops.put("mine.wasm.sha256", &sum(&FIRST));
        drops.put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        // A good component, but not the one that was meant.
        drops.put("mine.wasm", &LAST);
        let status = host.until_refused("mine", "digest").await;
        let message = status["problem"]["message"].as_str().unwrap();
        assert!(message.contains(&digest(&FIRST)) && message.contains(&digest(&LAST)), "{message}");
        assert_eq!(
            (&status["digest"], &status["problem"]["digest"]),
            (&json!(digest(&FIRST)), &json!(digest(&LAST)))
        );
        assert_eq!(host.pick("").await, "a");
        drops.put("mine.wasm.sha256", &sum(&LAST));
        host.until_in_use("mine", &digest(&LAST)).await;
        drops.copy("mine.wasm.sha256", b"hello");
        host.until_refused("mine", "digest_syntax").await;
        assert_eq!(host.pick("").await, "b");
        drops.remove("mine.wasm.sha256");
        eventually("nothing is wrong", SOON, async || {
            host.policy("mine").await["problem"].is_null().then_some(())
        })
        .await;
        host.stop().await;
    });
}

#[test]
fn the_last_good_version_survives_a_restart() {
    run(async {
        let host = host(|_| {}).await;
        let drops = host.policies();
        drops.put("mine.json", br#"{"sessionWeight": 4}"#);
        drops.put("mine.wasm", embedded("weighted"));
        let serves = eventually("it serves as configured", SOON, async || {
            Some(host.policy("mine").await).filter(|status| status["config"] == json!({ "sessionWeight": 4 }))
        });
        serves.await;
        drops.put("mine.wasm", b"nonsense");
        host.until_refused("mine", "not_wasm").await;

        let host = Host::in_folder(host.stop().await, mine).await;
        let status = host.policy("mine").await;
        assert_eq!((&status["state"], &status["source"]), (&json!("live"), &json!("last-good")));
        assert_eq!(
            (&status["digest"], &status["config"]),
            (&json!(digest(embedded("weighted"))), &json!({ "sessionWeight": 4 }))
        );
        assert_eq!(status["problem"]["code"], "not_wasm");
        host.beat("a", 2).await;
        let answer = host.recommend("").await;
        assert_eq!((&answer["policy"], &answer["score"]), (&json!("mine"), &json!(8.0)));

        // Deleted while the host is down: it does not come back.
        let (drops, folder) = (host.policies(), host.stop().await);
        drops.remove("mine.wasm");
        drops.remove("mine.json");
        let host = Host::in_folder(folder, mine).await;
        let status = host.policy("mine").await;
        assert_eq!(
            (&status["state"], &status["versions"][0]["left"]["by"]),
            (&json!("removed"), &json!("removed"))
        );
        let folder = host.stop().await;
        drops.put("mine.wasm", b"nonsense");
        let host = Host::in_folder(folder, mine).await;
        host.until_refused("mine", "not_wasm").await;
        assert_eq!(host.policy("mine").await["state"], "refused");
        host.stop().await;
    });
}

#[test]
fn a_bad_file_at_boot_does_not_stop_the_host() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let drops = Drops(folder.path().join("data").join("policies"));
        std::fs::create_dir_all(&drops.0).unwrap();
        drops.put("p2c.wasm", b"\x7fELF");
        drops.put("mine.wasm", b"");
        drops.put("weighted.json", b"{");
        drops.put("good.wasm", &FIRST);
        let host = Host::in_folder(folder, mine).await;
        assert_eq!(host.get("/readyz").await.ok()["status"], "ready");
        host.beat("a", 0).await;
        let answer = host.recommend("").await;
        assert_eq!((&answer["policy"], &answer["digest"]), (&json!("p2c"), &json!(digest(embedded("p2c")))));
        for (name, code) in [("p2c", "precompiled"), ("mine", "empty"), ("weighted", "config_syntax")] {
            host.until_refused(name, code).await;
        }
        host.until_in_use("good", &digest(&FIRST)).await;
        assert_eq!(host.get("/readyz").await.ok(), json!({ "status": "ready" }), "nothing is left to prove");
        host.stop().await;
    });
}

#[test]
fn a_file_that_is_being_written_is_not_taken() {
    run(async {
        let host = host(|config| config.policy.settle_ms = 2000).await;
        let drops = host.policies();
        drops.put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        for wasm in [&LAST[..], embedded("weighted")] {
            let before = host.policy("mine").await["digest"].clone();
            let mut file = std::fs::File::create(drops.path("mine.wasm")).unwrap();
            let mut pace = tokio::time::interval(Duration::from_millis(15));
            for piece in wasm.chunks(wasm.len().div_ceil(25)) {
                pace.tick().await;
                file.write_all(piece).unwrap();
                let status = host.policy("mine").await;
                assert_eq!((&status["digest"], &status["problem"]), (&before, &Value::Null));
            }
            let begun = Instant::now();
            drop(file);
            host.until_in_use("mine", &digest(wasm)).await;
            println!("closed to live, {} bytes in pieces: {} ms", wasm.len(), begun.elapsed().as_millis());
        }
        host.stop().await;
    });
}

#[test]
fn a_writer_that_pauses_gets_its_file_in_the_end() {
    run(async {
        let host = host(|config| config.policy.settle_ms = 30).await;
        let drops = host.policies();
        drops.put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        let mut file = std::fs::File::create(drops.path("mine.wasm")).unwrap();
        for piece in LAST.chunks(LAST.len().div_ceil(4)) {
            file.write_all(piece).unwrap();
            file.sync_all().unwrap();
            if piece.as_ptr_range().end == LAST.as_ptr_range().end {
                break;
            }
            // It pauses so long that the piece looks complete: refused, and nothing changes.
            let written = std::fs::read(drops.path("mine.wasm")).unwrap();
            let refused = eventually("the piece is refused", SOON, async || {
                Some(host.policy("mine").await)
                    .filter(|status| status["problem"]["digest"] == digest(&written))
            });
            assert_eq!(refused.await["digest"], digest(&FIRST));
            assert_eq!(host.pick("").await, "a");
        }
        drop(file);
        let status = host.until_in_use("mine", &digest(&LAST)).await;
        assert_eq!((&status["problem"], host.pick("").await), (&Value::Null, "b".to_owned()));
        host.stop().await;
    });
}

#[test]
fn another_policy_can_be_bound_at_run_time() {
    run(async {
        let host = host(|config| config.policy.scoring = "p2c".to_owned()).await;
        let bound = async || host.get("/admin/bindings").await.ok()["scoring"].clone();
        assert_eq!(bound().await, "p2c");
        let bind = async |body: Value| host.put("/admin/bindings", &body).await;
        assert_eq!(bind(json!({ "scoring": "weighted" })).await.ok()["scoring"], "weighted");
        assert_eq!(bound().await, "weighted");
        assert_eq!(host.recommend("").await["policy"], "weighted");
        let (old, new) = (host.policy("p2c").await, host.policy("weighted").await);
        assert_eq!((&old["state"], &old["bound"]), (&json!("ready"), &json!([])));
        assert_eq!((&new["state"], &new["bound"]), (&json!("live"), &json!(["scoring"])));

        let drops = host.policies();
        drops.put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;
        assert_eq!(host.recommend("").await["policy"], "weighted", "a file nobody asked for changes nothing");
        bind(json!({ "scoring": "mine" })).await.ok();
        assert_eq!(host.pick("").await, "b");

        drops.put("bad.wasm", b"bad");
        host.until_refused("bad", "not_wasm").await;
        let claiming = component(include_str!("../../host/crates/policy/tests/tiny.wat"));
        drops.put("claims.wasm", &claiming);
        host.until_in_use("claims", &digest(&claiming)).await;
        for (body, status, code) in [
            (json!({ "scoring": "nothing" }), 404, "unknown_policy"),
            (json!({ "scoring": "bad" }), 409, "unusable_policy"),
            (json!({ "scoring": "claims" }), 409, "wrong_role"),
            (json!({ "scoring": 1 }), 400, "invalid_body"),
            (json!({ "scorin": "p2c" }), 400, "invalid_body"),
            (json!([]), 400, "invalid_body"),
        ] {
            bind(body).await.refused(status, code);
        }
        assert_eq!(bind(json!({})).await.ok()["scoring"], "mine");
        assert_eq!(host.pick("").await, "b");
        host.stop().await;
    });
}

/// A policies folder whose component is a link, as mounted configuration is: changes behind it make no event.
#[cfg(unix)]
fn link(host: &Host) -> Drops {
    let store = Drops(host.policies().0.with_file_name("store"));
    std::fs::create_dir_all(&store.0).unwrap();
    store.put("mine.wasm", &FIRST);
    std::os::unix::fs::symlink(store.path("mine.wasm"), host.policies().path("mine.wasm")).unwrap();
    store
}

#[cfg(unix)]
#[test]
fn a_reload_finds_what_made_no_event() {
    run(async {
        let host = host(|_| {}).await;
        let store = link(&host);
        host.until_in_use("mine", &digest(&FIRST)).await;
        store.put("mine.wasm", &LAST);
        assert_eq!(host.policy("mine").await["digest"], digest(&FIRST), "nobody has told the host");
        // Two looks some time apart must find the same.
        let reports = eventually("a reload has taken it", SOON, async || {
            let report = host.post("/admin/policies/reload", &json!({})).await.ok();
            if report["waiting"] == json!(["mine"]) {
                return None;
            }
            Some(report)
        });
        assert_eq!(reports.await, json!({ "changed": ["mine"], "refused": [], "waiting": [] }));
        assert_eq!(host.pick("").await, "b", "when a reload answers, it is done");
        let nothing = host.send(host.request(reqwest::Method::POST, "/admin/policies/reload")).await.ok();
        assert_eq!(nothing, json!({ "changed": [], "refused": [], "waiting": [] }));
        host.policies().put("bad.wasm", b"bad");
        host.until_refused("bad", "not_wasm").await;
        let report = host.post("/admin/policies/reload", &json!({})).await.ok();
        assert_eq!(report["refused"][0][0], "bad", "{report}");
        host.stop().await;
    });
}

#[cfg(unix)]
#[test]
fn the_slow_poll_finds_what_made_no_event() {
    run(async {
        let host = host(|config| config.policy.poll_ms = 50).await;
        let store = link(&host);
        host.until_in_use("mine", &digest(&FIRST)).await;
        store.put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;
        // A folder that is away for a while changes nothing; the one that comes instead is watched.
        let (drops, away) = (host.policies(), host.policies().0.with_file_name("away"));
        std::fs::rename(&drops.0, &away).unwrap();
        host.post("/admin/policies/reload", &json!({})).await.refused(503, "folder_unreadable");
        assert_eq!(host.recommend("").await["digest"], digest(&LAST));
        std::fs::create_dir(&drops.0).unwrap();
        drops.put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        host.stop().await;
    });
}

#[test]
fn other_things_in_the_folder_are_ignored() {
    run(async {
        let host = host(|_| {}).await;
        let drops = host.policies();
        drops.put("README.md", b"hello");
        drops.put("not a name.wasm", &FIRST);
        drops.copy(".hidden.wasm", &FIRST);
        std::fs::create_dir(drops.path("folder.wasm")).unwrap();
        std::fs::create_dir(drops.path("sub")).unwrap();
        drops.copy("sub/mine.wasm", &FIRST);
        drops.put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;
        let all = host.get("/admin/policies").await.ok();
        let dropped = |name: &&str| fulcrum::embedded::find(name).is_none();
        assert_eq!(names(&all).into_iter().filter(dropped).collect::<Vec<_>>(), ["mine"]);
        host.stop().await;
    });
}

/// What the host's own checks say about some bytes, asked directly.
fn is_proven(wasm: &[u8]) -> bool {
    let loaded = Artifact::load(&check_runtime(), wasm)
        .and_then(|artifact| artifact.configured("oracle", json!({})))
        .and_then(|loaded| proof::run(&loaded, &fulcrum::clock::RealClock::start()));
    loaded.is_ok()
}

#[test]
fn fifty_damaged_files_through_the_watcher() {
    run(async {
        let seed = test_seed();
        let mut chance = Chance::new(seed);
        let host = host(|config| {
            config.policy.scoring_deadline_ms = 50;
            config.policy.load_deadline_ms = 2000;
        })
        .await;
        let drops = host.policies();
        drops.put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        let hammer = Hammer::start(&host);
        let mut good = vec![digest(&FIRST)];
        let mut refused = 0;
        for number in 0..50 {
            let whole: &[u8] = if chance.below(4) == 0 { embedded("p2c") } else { &FIRST };
            let mut bytes = whole.to_vec();
            let damage = if number % 2 == 0 {
                bytes.truncate(chance.below(whole.len()));
                format!("the first {} of {} bytes", bytes.len(), whole.len())
            } else {
                let (at, flip) = (chance.below(whole.len()), 1 + chance.below(255));
                bytes[at] ^= u8::try_from(flip).unwrap();
                format!("byte {at} of {} changed by {flip:#x}", whole.len())
            };
            let what = format!("seed {seed}, number {number}: {damage}");
            if chance.below(2) == 0 {
                drops.put("mine.wasm", &bytes);
            } else {
                drops.copy("mine.wasm", &bytes);
            }
            let damaged = digest(&bytes);
            let status = eventually(format!("{what} is judged"), SOON, async || {
                let status = host.policy("mine").await;
                let in_use = status["digest"].as_str().unwrap().to_owned();
                assert!(
                    good.contains(&in_use) || (in_use == damaged && is_proven(&bytes)),
                    "{what}: {status}"
                );
                (in_use == damaged || status["problem"]["digest"] == damaged).then_some(status)
            });
            let status = status.await;
            if status["digest"] == damaged {
                assert!(is_proven(&bytes), "{what} serves");
                good.push(damaged);
            } else {
                refused += 1;
            }
            assert_eq!(status["bound"], json!(["scoring"]), "{what}");
        }
        println!(
            "{refused} of 50 damaged files refused, the others are complete policies that pass the self-test"
        );
        assert!(refused >= 30, "seed {seed}: only {refused} were refused");
        drops.put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;
        assert!(hammer.end().await > 0);
        host.stop().await;
    });
}

#[test]
fn with_a_digest_file_no_damage_serves() {
    run(async {
        let seed = test_seed();
        let mut chance = Chance::new(seed + 1);
        let host = host(|_| {}).await;
        let drops = host.policies();
        drops.put("mine.wasm.sha256", digest(&FIRST).as_bytes());
        drops.put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        for number in 0..20 {
            let mut bytes = FIRST.clone();
            if number % 2 == 0 {
                bytes.truncate(chance.below(FIRST.len()));
            } else {
                bytes[chance.below(FIRST.len())] ^= 1 << chance.below(8);
            }
            drops.put("mine.wasm", &bytes);
            let judged = eventually(format!("seed {seed}, number {number} is judged"), SOON, async || {
                let status = host.policy("mine").await;
                assert_eq!(status["digest"], digest(&FIRST), "seed {seed}, number {number}");
                (status["problem"]["digest"] == digest(&bytes)).then_some(status)
            });
            assert_eq!(judged.await["problem"]["code"], "digest");
        }
        host.stop().await;
    });
}

/// Binding what was dropped just before is what everybody does.
#[test]
fn what_was_just_dropped_can_be_bound_at_once() {
    run(async {
        let host = Host::start().await;
        host.beat("a", 0).await;
        let slow = guest(include_str!("../../host/crates/policy/tests/guests/loop-describe.wat"));
        host.policies().put("aaa.wasm", &slow);
        for name in ["plain", "configured", "renamed"] {
            let drops = host.policies();
            match name {
                "configured" => {
                    drops.put("configured.json", b"{}");
                    // It is told that something is missing, and no more once it is there.
                    host.until_refused(name, "no_component").await;
                    drops.copy("configured.wasm", &FIRST);
                }
                _ => drops.put(&format!("{name}.wasm"), &FIRST),
            }
            host.put("/admin/bindings", &json!({ "scoring": name })).await.ok();
            assert_eq!(host.recommend("clientId=c").await["policy"], name);
            assert_eq!(host.policy(name).await["problem"], Value::Null);
        }
        host.put("/admin/bindings", &json!({ "scoring": "nobody" })).await.refused(404, "unknown_policy");
    });
}

#[test]
fn no_order_waits_for_those_who_wait_for_proofs() {
    run(async {
        let host = Host::start().await;
        host.policies().put("mine.wasm", &FIRST);
        host.put("/admin/bindings", &json!({ "scoring": "mine" })).await.ok();
        let slow = guest(include_str!("../../host/crates/policy/tests/guests/loop-describe.wat"));
        host.policies().put("slow.wasm", &slow);
        let ask = |number: usize| {
            let api = host.another();
            let push = api.request(Method::PUT, &format!("/admin/policies/slow{number}"));
            let push = push.header("content-type", "application/wasm").body(slow.clone());
            let reload = api.request(Method::POST, "/admin/policies/reload");
            let request = if number < 4 { push } else { reload };
            tokio::spawn(async move { api.send(request).await })
        };
        let mut waiting: Vec<_> = (0..8).map(ask).collect();
        eventually("the slow file is being proven", SOON, async || {
            let proving = host.get("/admin/policies").await.ok()["task"]["proving"].clone();
            proving.as_array().is_some_and(|names| !names.is_empty()).then_some(())
        })
        .await;
        host.put("/admin/bindings", &json!({ "scoring": "p2c" })).await.ok();
        host.delete("/admin/policies/mine").await.ok();
        host.post("/admin/policies/mine/rollback", &json!({})).await.ok();
        assert!(waiting.iter().all(|call| !call.is_finished()), "the orders were carried out meanwhile");
        // What is being proven is not waited for; whoever waits for a look is told.
        waiting.drain(..4).for_each(|push| push.abort());
        host.stop().await;
        for reload in waiting {
            reload.await.expect("no call panics").refused(503, "stopping");
        }
    });
}
