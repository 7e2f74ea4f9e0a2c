//! Compiled policies on disk: a second start compiles nothing, and nothing but what the host wrote is believed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use fulcrum_policy::cache::Counts;

use crate::support::*;

fn counts(host: &Host) -> Counts {
    host.services().policies.runtime().cache().expect("it is on").counts()
}

/// Checks what `/metrics` says of the cache: hits, misses where there was nothing, files that were refused.
async fn metrics_say(host: &Host, [hit, miss, refused]: [u64; 3]) {
    let metrics = host.get("/metrics").await.text;
    for (result, count) in [("hit", hit), ("miss", miss), ("refused", refused)] {
        let line = format!("fulcrum_policy_cache_loads_total{{result=\"{result}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
}

/// The files with code.
fn compiled(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join("data/compiled")).expect("the folder is there");
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "native")).collect()
}

async fn start(folder: tempfile::TempDir) -> Host {
    let host = Host::in_folder(folder, |config| config.policy.scoring = "mine".to_owned()).await;
    host.beat("a", 0).await;
    host.beat("b", 0).await;
    host
}

#[test]
fn a_second_start_compiles_nothing() {
    run(async {
        let host = start(tempfile::tempdir().unwrap()).await;
        host.policies().put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;
        assert_eq!(host.pick("").await, "b");
        let first = counts(&host);
        assert!(first.hits == 0 && first.refused == 0 && first.stored == first.misses, "{first:?}");
        metrics_say(&host, [0, first.misses, 0]).await;
        let folder = host.stop().await;
        assert_eq!(compiled(folder.path()).len() as u64, first.stored);
        let mode =
            |path: &str| std::fs::metadata(folder.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("data/compiled"), mode("data/compiled/key")), (0o700, 0o600));

        let host = start(folder).await;
        assert_eq!(host.pick("").await, "b");
        let second = counts(&host);
        assert!(second.hits > 0 && second.misses == 0, "{second:?}");
        metrics_say(&host, [second.hits, 0, 0]).await;

        // An embedded policy is kept like a dropped one.
        host.policies().remove("mine.wasm");
        host.put("/admin/bindings", &serde_json::json!({ "scoring": "weighted" })).await.ok();
        assert_eq!(host.recommend("").await["policy"], "weighted");
        let misses = counts(&host).misses;
        let host = start(host.stop().await).await;
        host.put("/admin/bindings", &serde_json::json!({ "scoring": "weighted" })).await.ok();
        assert_eq!((counts(&host).misses, misses), (0, 1));
        host.stop().await;
    });
}

#[test]
fn what_was_tampered_with_is_compiled_anew() {
    run(async {
        let host = start(tempfile::tempdir().unwrap()).await;
        host.policies().put("mine.wasm", &LAST);
        host.until_in_use("mine", &digest(&LAST)).await;
        let folder = host.stop().await;
        let files = compiled(folder.path());
        for (at, file) in files.iter().enumerate() {
            let mut bytes = std::fs::read(file).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1 << (at % 8);
            std::fs::write(file, bytes).unwrap();
        }
        let host = start(folder).await;
        assert_eq!(host.pick("").await, "b");
        let found = counts(&host);
        assert!(
            found.hits == 0 && found.refused == found.misses && found.stored == found.misses,
            "{found:?}"
        );
        metrics_say(&host, [0, 0, found.refused]).await;
        let host = start(host.stop().await).await;
        let mended = counts(&host);
        assert!(mended.hits > 0 && mended.misses == 0, "{mended:?}");
        let folder = host.stop().await;

        // A file from outside does not have the key, however well it is made.
        let elsewhere = start(tempfile::tempdir().unwrap()).await;
        elsewhere.policies().put("mine.wasm", &LAST);
        elsewhere.until_in_use("mine", &digest(&LAST)).await;
        let other = elsewhere.stop().await;
        for file in compiled(other.path()) {
            std::fs::copy(&file, folder.path().join("data/compiled").join(file.file_name().unwrap()))
                .unwrap();
        }
        let host = start(folder).await;
        assert_eq!(host.pick("").await, "b");
        assert_eq!(counts(&host).hits, 0);
        host.stop().await;
    });
}

#[test]
fn compiled_code_in_the_policies_folder_is_never_run() {
    run(async {
        let host = start(tempfile::tempdir().unwrap()).await;
        host.policies().put("other.wasm", &LAST);
        host.until_in_use("other", &digest(&LAST)).await;
        let folder = host.stop().await;
        let files = compiled(folder.path());
        let host = start(folder).await;
        for (at, file) in files.iter().enumerate() {
            let bytes = std::fs::read(file).unwrap();
            host.policies().put(&format!("whole{at}.wasm"), &bytes);
            host.until_refused(&format!("whole{at}"), "not_wasm").await;
            // The code alone, an ELF file, as `wasmtime compile` would write it.
            let start = bytes.windows(4).position(|bytes| bytes == b"\x7fELF").expect("it is in there");
            host.policies().put(&format!("bare{at}.wasm"), &bytes[start..]);
            host.until_refused(&format!("bare{at}"), "precompiled").await;
        }
        host.stop().await;
    });
}

#[test]
fn a_host_runs_without_a_cache() {
    run(async {
        let host = Host::with(|config| config.policy.cache = false).await;
        assert!(host.services().policies.runtime().cache().is_none());
        assert!(!host.get("/metrics").await.text.contains("fulcrum_policy_cache"));
        let folder = host.stop().await;
        assert!(!folder.path().join("data/compiled").exists());

        // Something else has its name.
        std::fs::write(folder.path().join("data/compiled"), b"x").unwrap();
        let host = start(folder).await;
        assert!(host.services().policies.runtime().cache().is_none());
        assert_eq!(host.recommend("").await["policy"], "p2c");
        host.stop().await;
    });
}

#[test]
fn a_cache_that_cannot_be_used_is_told_once() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        std::fs::write(folder.path().join("data/compiled"), b"x").unwrap();
        let mut process = Process::serve_in(folder, &[]).await;
        assert_eq!(process.get("/healthz").await.status, 200);
        process.signal("TERM");
        assert_eq!(process.ended().await, Some(0));
        let log = process.log();
        assert_eq!(log.matches("compiled policies are not kept").count(), 1, "{log}");
        assert!(log.contains("cannot use the folder"), "{log}");
    });
}
