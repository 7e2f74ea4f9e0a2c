//! The compatibility mode for policies that import WASI, in a running host.

use fulcrum::config::Wasi;
use serde_json::json;

use crate::support::wasi::{PRINT, SLEEP, WALL_CLOCK, wasi_guest};
use crate::support::*;

async fn host(wasi: Wasi) -> Host {
    let host = Host::with(|config| {
        config.policy.scoring = "mine".to_owned();
        config.policy.wasi = wasi;
    })
    .await;
    host.beat("a", 0).await;
    host
}

#[test]
fn a_policy_that_imports_wasi_needs_the_compatibility_mode() {
    run(async {
        let wasm = wasi_guest(WALL_CLOCK.0, WALL_CLOCK.1);
        let strict = host(Wasi::Off).await;
        strict.policies().put("mine.wasm", &wasm);
        let status = strict.until_refused("mine", "imports").await;
        let message = status["problem"]["message"].as_str().unwrap();
        for word in ["wasi:clocks/wall-clock@0.2.3", "policy.wasi = \"compat\""] {
            assert!(message.contains(word), "{message}");
        }
        assert_eq!(strict.recommend("").await["policy"], "p2c");
        strict.stop().await;

        let host = host(Wasi::Compat).await;
        host.policies().put("mine.wasm", &wasm);
        host.until_in_use("mine", &digest(&wasm)).await;
        let before = now_ms();
        let answer = host.recommend("").await;
        assert_eq!(answer["policy"], "mine");
        // The guest's cost is the time it sees.
        let seen = answer["score"].as_f64().unwrap() as u64;
        assert!(
            (before.saturating_sub(1000)..=now_ms() + 1000).contains(&seen),
            "{seen} is not about {before}"
        );

        // Policies without WASI are served by the same host.
        host.policies().put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;
        host.stop().await;
    });
}

#[test]
fn an_author_can_check_for_either_mode() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.wasm");
        std::fs::write(&file, wasi_guest(WALL_CLOCK.0, WALL_CLOCK.1)).unwrap();
        let file = file.to_str().unwrap();
        let strict = fulcrum(&["policy", "check", file], "").await;
        assert_eq!(strict.code, Some(1));
        assert!(strict.out.contains("policy.wasi = \"compat\""), "{strict:?}");
        let said =
            fulcrum(&["policy", "check", "--wasi", "--scoring-deadline-ms", "2000", file], "").await.ok();
        assert!(said.contains("is a policy a host accepts"), "{said}");
    });
}

#[test]
fn neither_sleep_nor_chatter_holds_a_host_up() {
    run(async {
        let host = host(Wasi::Compat).await;
        let sleeper = wasi_guest(SLEEP.0, SLEEP.1);
        host.policies().put("mine.wasm", &sleeper);
        host.until_in_use("mine", &digest(&sleeper)).await;
        for _ in 0..20 {
            assert_eq!(host.recommend("").await["policy"], "mine", "an hour of sleep fits into a decision");
        }

        let printer = wasi_guest(PRINT.0, PRINT.1);
        host.policies().put("mine.wasm", &printer);
        host.until_in_use("mine", &digest(&printer)).await;
        let answer = host.recommend(&format!("clientId={TROUBLE}")).await;
        assert_eq!((&answer["policy"], &answer["instanceId"]), (&json!("fallback"), &json!("a")), "{answer}");
        assert_eq!(host.recommend("").await["policy"], "mine");
        host.stop().await;
    });
}
