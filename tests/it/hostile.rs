//! Mends that an earlier, hostile review asked for: pipes among the policies, a second signal, a folder that is made anew.
//!
//! Invariant: no answer comes from the slow poll, which is set so high that it never runs.

#![cfg(unix)]

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::support::*;

/// A host with two equal instances, `a` before `b`, that wants a policy `mine`.
async fn host() -> Host {
    let host = Host::with(|config| config.policy.scoring = "mine".to_owned()).await;
    host.beat("a", 0).await;
    host.beat("b", 0).await;
    host
}

/// Puts another name of the pipe where a policy's file is.
fn put_pipe(pipe: &Path, drops: &Drops, file: &str) {
    let beside = drops.path(".pipe.part");
    std::fs::hard_link(pipe, &beside).expect("the folder can be written");
    std::fs::rename(&beside, drops.path(file)).expect("the folder can be written");
}

/// A pipe that comes between looking at a file and opening it would hold its reader up for ever.
#[test]
fn a_pipe_that_takes_the_place_of_a_file_holds_no_reload_up() {
    run(async {
        // The real binary: a test that fails ends it, whatever it hangs on.
        let settings = ["policy.scoring=mine", "policy.scoring_deadline_ms=2000", "policy.poll_ms=600000"];
        let process = Process::serve(&settings.map(|setting| ["--set", setting]).concat()).await;
        process.beat("a", 0).await;
        process.beat("b", 0).await;
        let drops = process.policies();
        let pipe = drops.0.with_file_name("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("there is a mkfifo command").success());
        let reloading = Arc::new(());
        let (goes_on, swapped) = (Arc::downgrade(&reloading), drops.clone());
        let swaps = tokio::task::spawn_blocking(move || {
            let mut swaps = 0;
            while goes_on.upgrade().is_some() {
                swapped.put("mine.wasm", &FIRST);
                swapped.put("mine.json", b"{}");
                put_pipe(&pipe, &swapped, "mine.wasm");
                put_pipe(&pipe, &swapped, "mine.json");
                swaps += 1;
            }
            swaps
        });
        for number in 0..100 {
            let (body, path) = (json!({}), "/admin/policies/reload");
            let answer = tokio::time::timeout(SOON, process.post(path, &body)).await;
            answer.unwrap_or_else(|_| panic!("reload {number} hangs")).ok();
            assert!(["a", "b"].contains(&&*process.pick("").await), "somebody serves");
        }
        drop(reloading);
        println!("100 reloads during {} swaps", swaps.await.expect("every swap worked"));
        drops.remove("mine.json");
        drops.put("mine.wasm", &LAST);
        process.until_in_use("mine", &digest(&LAST)).await;
        assert_eq!(process.pick("").await, "b");
    });
}

/// Sends all of a request, or its beginning, and waits until the host has read its head, which announces `len` bytes of
/// body. No other request to that host may have had a body.
async fn begin(process: &Process, request: &str, len: usize) -> TcpStream {
    let address = process.url().strip_prefix("http://").expect("always http");
    let mut stream = TcpStream::connect(address).await.expect("the host listens");
    stream.write_all(request.as_bytes()).await.expect("the host reads");
    let is_in = format!(r#"fulcrum_http_body_bytes_total{{direction="in"}} {len}"#);
    let read = async || process.get("/metrics").await.text.lines().any(|line| line == is_in).then_some(());
    eventually("the request has begun", SOON, read).await;
    stream
}

/// Tells a host to stop, and tells it again once it drains: it must end at once, as `docs/OPERATING.md` says.
async fn stops_at_the_second_signal(process: &mut Process) {
    process.signal("TERM");
    let drains = async || process.log().contains("host is draining").then_some(());
    eventually("the host drains", SOON, drains).await;
    process.signal("TERM");
    assert_eq!(process.ended().await, Some(1), "{}", process.log());
    let log = process.log();
    assert!(log.contains("error: told to stop a second time") && !log.contains("host has stopped"), "{log}");
}

#[test]
fn a_second_signal_ends_a_long_drain() {
    run(async {
        let mut process = Process::serve(&["--set", "drain_ms=600000"]).await;
        let head = "PUT /instances/a HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
        let _open = begin(&process, head, 9).await;
        stops_at_the_second_signal(&mut process).await;
    });
}

/// A policy that says so in the log when it is configured, and then never comes back.
fn endless() -> Vec<u8> {
    guest(
        r#";; <import>
  (import "fulcrum:policy/host@1.0.0" "log" (func $log (param i32 i32 i32)))
  ;; </import>
  ;; <configure>
  (func (export "fulcrum:policy/lifecycle@1.0.0#configure") (param i32 i32) (result i32)
    (call $log (i32.const 0) (i32.const 0xa0) (i32.const 7))
    (loop $forever (br $forever)) unreachable)
  ;; </configure>"#,
    )
}

#[test]
fn no_proof_holds_the_end_of_a_host_up() {
    run(async {
        let settings = ["drain_ms=600000", "policy.load_deadline_ms=600000", "policy.poll_ms=600000"];
        let arguments = settings.map(|setting| ["--set", setting]).concat();
        for is_waited_for in [true, false] {
            let mut process = Process::serve(&arguments).await;
            process.policies().put("mine.wasm", &endless());
            let loads = async || process.log().contains("by hand").then_some(());
            eventually("the policy is being loaded", SOON, loads).await;
            let request = "POST /admin/policies/reload HTTP/1.1\r\nhost: h\r\n\
                 content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            // Whoever waits for the proof is told that the host stops.
            let _open = if is_waited_for { Some(begin(&process, request, 2).await) } else { None };
            process.signal("TERM");
            assert_eq!(process.ended().await, Some(0), "{}", process.log());
        }
    });
}

#[test]
fn callers_that_wait_for_a_long_reload_and_those_that_hang_up_hold_nothing_else_up() {
    run(async {
        let settings = ["drain_ms=2000", "policy.load_deadline_ms=600000", "policy.poll_ms=600000"];
        let mut process = Process::serve(&settings.map(|setting| ["--set", setting]).concat()).await;
        process.put("/topics/t", &json!({ "partitions": 4 })).await.ok();
        let join = async |member: &str| {
            let wish = json!({ "memberId": member, "topics": ["t"], "ttlMs": 600_000 });
            process.post("/groups/g/members", &wish).await.ok();
        };
        let shares = async |wanted: &[usize]| {
            let group = process.get("/groups/g").await.ok();
            let members = group["members"].as_array().expect("a list");
            let held = |member: &Value| member["partitions"].as_array().map_or(0, Vec::len);
            (members.iter().map(held).collect::<Vec<_>>() == wanted).then_some(())
        };
        process.put("/groups/g", &json!({ "handover": "steal" })).await.ok();
        join("a").await;
        eventually("it is planned for", SOON, async || shares(&[4]).await).await;
        process.policies().put("mine.wasm", &endless());
        eventually("the policy is being loaded", SOON, async || {
            process.log().contains("by hand").then_some(())
        })
        .await;
        // More than there are threads to wait on.
        let mut waiting = Vec::new();
        for _ in 0..600 {
            let address = process.url().strip_prefix("http://").expect("always http");
            let mut stream = TcpStream::connect(address).await.expect("the host listens");
            let request = b"POST /admin/policies/reload HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(request).await.expect("the host reads");
            waiting.push(stream);
        }
        join("b").await;
        eventually("two are planned for", SOON, async || shares(&[2, 2]).await).await;
        drop(waiting);
        join("c").await;
        join("d").await;
        eventually("four are planned for", SOON, async || shares(&[1, 1, 1, 1]).await).await;
        let told_at = Instant::now();
        process.signal("TERM");
        assert_eq!(process.ended().await, Some(0), "{}", process.log());
        assert!(told_at.elapsed() < SOON, "it took {:?}", told_at.elapsed());
    });
}

#[test]
fn a_folder_that_another_one_replaced_is_watched_again() {
    run(async {
        let host = host().await;
        let drops = host.policies();
        let beside = drops.0.with_file_name("beside");
        for wasm in [&FIRST, &LAST, &FIRST] {
            // Renamed over the empty folder, so that the path never is without one.
            std::fs::create_dir(&beside).unwrap();
            std::fs::rename(&beside, &drops.0).unwrap();
            drops.put("mine.wasm", wasm);
            host.until_in_use("mine", &digest(wasm)).await;
            drops.remove("mine.wasm");
            eventually("it is gone", SOON, async || {
                (host.policy("mine").await["state"] == "removed").then_some(())
            })
            .await;
        }
        host.stop().await;
    });
}

#[test]
fn a_folder_that_was_removed_and_made_again_is_watched_again() {
    run(async {
        let host = host().await;
        let drops = host.policies();
        let inode = || std::fs::metadata(&drops.0).unwrap().ino();
        let mut same = 0;
        for wasm in [&FIRST, &LAST, &FIRST, &LAST] {
            let before = inode();
            std::fs::remove_dir_all(&drops.0).unwrap();
            std::fs::create_dir(&drops.0).unwrap();
            same += usize::from(inode() == before);
            // While there was none it may have found that out; a folder that comes back then is found by asking.
            host.post("/admin/policies/reload", &json!({})).await.ok();
            for wasm in [wasm, &LAST, &FIRST] {
                drops.put("mine.wasm", wasm);
                host.until_in_use("mine", &digest(wasm)).await;
            }
        }
        println!("{same} of 4 folders had the inode of the one before");
        host.stop().await;
    });
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    run(async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut child = command()
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let line = tokio::time::timeout(SOON, lines.next_line()).await.expect("it starts in time");
        let line = line.expect("stdout can be read").expect("a line");
        let api = Api::new(line.strip_prefix("listening on ").expect("an address").to_owned());
        drop(child.stderr.take());
        // Each of these is told in the log.
        for name in ["weighted", "p2c", "weighted"] {
            let bound = api.put("/admin/bindings", &json!({ "scoring": name })).await.ok();
            assert_eq!(bound["scoring"], name);
        }
        Drops(folder.path().join("policies")).put("mine.wasm", &guest(""));
        let there = async || (api.get("/admin/policies/weighted").await.status == 200).then_some(());
        eventually("the dropped file is found", SOON, there).await;
        let id = child.id().expect("it runs").to_string();
        let told = std::process::Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(told.expect("there is a kill command").success());
        let ended = tokio::time::timeout(SOON, child.wait()).await.expect("it ends in time");
        assert_eq!(ended.expect("it can be waited for").code(), Some(0));
    });
}

/// A text that a parser of JSON may take for more JSON, many times over, each with a stack of its own.
fn texts_within_texts() -> String {
    (0..60).fold("1".to_owned(), |inner, _| {
        let inner = inner.replace('\\', "\\u005c").replace('"', "\\u0022");
        format!(r#"{}{{"$serde_json::private::RawValue":"{inner}"}}{}"#, "[".repeat(100), "]".repeat(100))
    })
}

/// In a process of its own, which is what would end.
#[test]
fn texts_within_texts_end_no_host() {
    run(async {
        let mut process = Process::serve(&["--set", "policy.scoring=mine"]).await;
        let text = texts_within_texts();
        process.put("/topics/t", &json!({ "partitions": 1 })).await.ok();
        let calls = [
            ("PUT", "/instances/a"),
            ("POST", "/instances/a/drain"),
            ("POST", "/session/open"),
            ("POST", "/agent/register"),
            ("PUT", "/topics/t"),
            ("POST", "/events/publish?topic=t"),
            ("POST", "/events/publish-batch?topic=t"),
            ("POST", "/events/ack"),
            ("PUT", "/groups/g"),
            ("POST", "/groups/g/rebalance"),
            ("PUT", "/admin/bindings"),
            ("PUT", "/admin/policies/weighted"),
            ("POST", "/admin/policies/weighted/rollback"),
        ];
        for (method, path) in calls {
            let body = match path {
                "/events/publish-batch?topic=t" => format!(r#"[{{"data":1,"x":{text}}}]"#),
                _ => format!(r#"{{"x":{text}}}"#),
            };
            let request = process.request(method.parse().expect("a method"), path).body(body);
            let answer = process.send(request.header("content-type", "application/json")).await;
            let message = answer.body["error"].as_str().unwrap_or_default();
            assert!([400, 409, 422].contains(&answer.status), "{method} {path}: {} {message}", answer.status);
        }
        process.policies().put("mine.json", format!(r#"{{"x":{text}}}"#).as_bytes());
        process.policies().put("mine.wasm", &FIRST);
        process.until_refused("mine", "config_syntax").await;
        process.signal("TERM");
        assert_eq!(process.ended().await, Some(0), "{}", process.log());
        let process = Process::serve_in(process.into_folder(), &["--set", "policy.scoring=mine"]).await;
        process.until_refused("mine", "config_syntax").await;
    });
}
