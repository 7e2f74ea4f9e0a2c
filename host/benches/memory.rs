//! Idle memory of the real binary with all default policies loaded.

mod support;

use std::time::{Duration, Instant};

use fulcrum::embedded;
use support::http::once;
use support::server::{Server, fulcrum};
use support::{machine, verdict};

fn main() {
    if support::is_bench() {
        machine();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(measure());
    }
}

#[allow(clippy::print_stdout, reason = "the bench's answer")]
async fn measure() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policies = folder.path().join("policies");
    let begun = Instant::now();
    let server = Server::start(fulcrum(&[], folder.path(), &[]));
    println!("ready after {} ms: {}", begun.elapsed().as_millis(), memory(&server));

    // Dropped as files, every default policy is compiled, proven and kept; bound in turn, each scoring one has served.
    for policy in embedded::policies() {
        std::fs::write(policies.join(format!("{}.wasm", policy.name)), policy.wasm)
            .expect("it can be written");
    }
    once(server.addr, "PUT", "/instances/a", r#"{"address":"10.0.0.1:1"}"#).await;
    for policy in embedded::policies() {
        if !server.until_in_use(policy.name).await["roles"].to_string().contains(r#""scoring""#) {
            continue;
        }
        once(server.addr, "PUT", "/admin/bindings", &format!(r#"{{"scoring":"{}"}}"#, policy.name)).await;
        let answer = once(server.addr, "GET", "/session/recommend?clientId=c", "").await.1;
        assert!(answer.contains(&format!(r#""policy":"{}""#, policy.name)), "{answer}");
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("idle with {} default policies loaded: {}", embedded::policies().len(), memory(&server));
    let mib = server.memory_kib("VmRSS") as f64 / 1024.0;
    println!("  bar: <= 100 MiB: {mib:.1} MiB {}", verdict(mib <= 100.0));
}

fn memory(server: &Server) -> String {
    let mib = |name| server.memory_kib(name) as f64 / 1024.0;
    format!(
        "RSS {:.1} MiB (anonymous {:.1}, files {:.1}), peak {:.1} MiB",
        mib("VmRSS"),
        mib("RssAnon"),
        mib("RssFile"),
        mib("VmHWM")
    )
}
