//! Signed drops: with trusted keys, nothing serves that none of them signed, however it comes into the folder.

use std::path::Path;

use fulcrum_policy::trust::{Content, PrivateKey};
use serde_json::{Value, json};

use crate::support::*;

fn key(seed: u8) -> PrivateKey {
    PrivateKey::from_seed(&[seed; 32])
}

fn component_signature(key: &PrivateKey, wasm: &[u8]) -> String {
    key.sign(Content::Component { digest: &digest(wasm) })
}

fn config_signature(key: &PrivateKey, policy: &str, text: &str) -> String {
    key.sign(Content::Config { policy, digest: &digest(text.as_bytes()) })
}

async fn start(folder: tempfile::TempDir, keys: &[&PrivateKey]) -> Host {
    let host = Host::in_folder(folder, |config| {
        config.policy.scoring = "mine".to_owned();
        config.policy.trusted_keys = keys.iter().map(|key| key.public()).collect();
    })
    .await;
    host.beat("a", 0).await;
    host.beat("b", 0).await;
    host
}

async fn fresh(keys: &[&PrivateKey]) -> Host {
    start(tempfile::tempdir().unwrap(), keys).await
}

/// What is wrong with a policy, as the host tells it.
fn message(status: &Value) -> &str {
    status["problem"]["message"].as_str().expect("there is a problem")
}

#[test]
fn only_what_is_signed_serves() {
    run(async {
        let host = fresh(&[&key(1), &key(2)]).await;
        let drops = host.policies();
        assert_eq!(host.recommend("").await["policy"], "p2c", "embedded policies are part of the host");

        drops.put("mine.wasm", &LAST);
        let status = host.until_refused("mine", "unsigned").await;
        assert!(message(&status).contains("fulcrum policy sign mine.wasm"), "{status}");
        let cases = [
            ("of a stranger", component_signature(&key(3), &LAST)),
            ("of another file", component_signature(&key(1), &FIRST)),
            ("of a configuration", config_signature(&key(1), "mine", "{}")),
            ("that is none", "sure, run it\n".to_owned()),
            ("that is empty", String::new()),
        ];
        for (what, signature) in cases {
            drops.put("mine.wasm.sig", signature.as_bytes());
            let status = host.until_refused("mine", "signature").await;
            assert!(
                message(&status).contains("mine.wasm.sig does not vouch for mine.wasm"),
                "{what}: {status}"
            );
            assert_eq!(host.recommend("").await["policy"], "p2c", "a signature {what}");
            drops.remove("mine.wasm.sig");
            host.until_refused("mine", "unsigned").await;
        }
        // The signature comes after the file, and any trusted key will do.
        drops.put("mine.wasm.sig", component_signature(&key(2), &LAST).as_bytes());
        host.until_in_use("mine", &digest(&LAST)).await;
        assert_eq!(host.pick("").await, "b");

        // Replaced after signing: the version in use goes on.
        drops.put("mine.wasm", &FIRST);
        let status = host.until_refused("mine", "signature").await;
        assert_eq!((&status["digest"], &status["source"]), (&json!(digest(&LAST)), &json!("last-good")));
        assert_eq!(host.pick("").await, "b");
        // Signed anew, by the other key.
        drops.copy("mine.wasm.sig", component_signature(&key(1), &FIRST).as_bytes());
        host.until_in_use("mine", &digest(&FIRST)).await;
        assert_eq!(host.pick("").await, "a");

        drops.remove("mine.wasm");
        drops.remove("mine.wasm.sig");
        eventually("the default is back", SOON, async || {
            (host.recommend("").await["policy"] == "p2c").then_some(())
        })
        .await;
        host.stop().await;
    });
}

#[test]
fn configurations_are_signed_too() {
    run(async {
        let host = Host::with(|config| {
            config.policy.scoring = "weighted".to_owned();
            config.policy.trusted_keys = vec![key(1).public()];
        })
        .await;
        let drops = host.policies();
        let text = r#"{"sessionWeight": 7}"#;
        let configured = async |what: &str, expected: &Value| {
            eventually(what, SOON, async || {
                (host.policy("weighted").await["config"] == *expected).then_some(())
            })
            .await;
        };
        drops.put("weighted.json", text.as_bytes());
        let status = host.until_refused("weighted", "unsigned").await;
        assert!(message(&status).contains("fulcrum policy sign weighted.json"), "{status}");
        drops.put("weighted.json.sig", config_signature(&key(1), "greedy", text).as_bytes());
        host.until_refused("weighted", "signature").await;
        assert_eq!(host.policy("weighted").await["config"], json!({}));
        drops.put("weighted.json.sig", config_signature(&key(1), "weighted", text).as_bytes());
        configured("the signed configuration serves", &serde_json::from_str(text).unwrap()).await;
        // The same JSON in other words is another text.
        drops.put("weighted.json", text.replace(' ', "").as_bytes());
        host.until_refused("weighted", "signature").await;
        host.stop().await;
    });
}

#[test]
fn a_key_taken_off_the_list_vouches_for_nothing_after_a_restart() {
    run(async {
        let host = fresh(&[&key(1)]).await;
        host.policies().put("mine.wasm.sig", component_signature(&key(1), &LAST).as_bytes());
        host.policies().put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;

        // Still trusted: neither the file nor, without its signature, the last good version is lost.
        let host = start(host.stop().await, &[&key(2), &key(1)]).await;
        assert_eq!(host.pick("").await, "b");
        host.policies().remove("mine.wasm.sig");
        host.until_refused("mine", "unsigned").await;
        let host = start(host.stop().await, &[&key(1)]).await;
        assert_eq!(
            (host.pick("").await.as_str(), &host.policy("mine").await["source"]),
            ("b", &json!("last-good"))
        );

        // Not trusted any more: not even from what the host kept itself.
        let host = start(host.stop().await, &[&key(2)]).await;
        assert_eq!(host.recommend("").await["policy"], "p2c");
        let status = host.policy("mine").await;
        assert_eq!((&status["state"], &status["problem"]["code"]), (&json!("refused"), &json!("unsigned")));

        // Without any keys, signatures are no concern.
        let host = start(host.stop().await, &[]).await;
        assert_eq!(host.pick("").await, "b");
        host.stop().await;
    });
}

#[test]
fn keys_are_made_and_files_signed_by_the_command_line() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |file: &str| folder.path().join(file).to_str().unwrap().to_owned();
        let public = fulcrum(&["policy", "keygen", "--out", &path("release.key")], "").await.ok();
        assert_eq!(std::fs::read_to_string(path("release.key.pub")).unwrap(), public);
        assert_eq!(mode(Path::new(&path("release.key"))), 0o600);
        let again = fulcrum(&["policy", "keygen", "--out", &path("release.key")], "").await;
        assert_eq!(again.code, Some(1));
        assert!(again.err.contains("exists already"), "{again:?}");

        std::fs::write(path("mine.wasm"), &*LAST).unwrap();
        std::fs::write(path("mine.txt"), "x").unwrap();
        let sign = async |file: &str, key: &str| {
            fulcrum(&["policy", "sign", &path(file), "--key", &path(key)], "").await
        };
        let said = sign("mine.wasm", "release.key").await.ok();
        assert!(said.contains(&digest(&LAST)) && said.contains(public.trim()), "{said}");
        let private = std::fs::read_to_string(path("release.key")).unwrap();
        for (file, key, word) in [
            ("mine.txt", "release.key", "neither NAME.wasm nor NAME.json"),
            ("mine.wasm", "release.key.pub", "is not a private key"),
            ("none.wasm", "release.key", "cannot read"),
        ] {
            let ended = sign(file, key).await;
            assert_eq!(ended.code, Some(1), "{ended:?}");
            assert!(ended.err.contains(word) && !ended.err.contains(private.trim()), "{ended:?}");
        }

        // The key as a file, to a real host.
        let keys = format!("policy.trusted_keys={}", path("release.key.pub"));
        let process = Process::serve(&["--set", &keys, "--set", "policy.scoring=mine"]).await;
        process.beat("a", 0).await;
        process.policies().put("mine.wasm.sig", &std::fs::read(path("mine.wasm.sig")).unwrap());
        process.policies().put("mine.wasm", &LAST);
        process.until_in_use("mine", &digest(&LAST)).await;
        assert!(!process.log().contains(private.trim()));

        let data = path("data");
        for (entry, words) in [
            ("nowhere.pub", "policy.trusted_keys: cannot use \"nowhere.pub\""),
            (private.trim(), "an entry is a private key"),
            (&path("release.key"), "not a public key"),
        ] {
            let setting = format!("policy.trusted_keys={entry}");
            let ended = fulcrum(&["serve", "--data-dir", &data, "--set", &setting], "").await;
            assert_eq!(ended.code, Some(1));
            assert!(ended.err.contains(words) && !ended.err.contains(private.trim()), "{ended:?}");
        }
    });
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}
