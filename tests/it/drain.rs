//! The end of a host that is told to stop: everybody is told, nothing acknowledged is lost, and it ends in time.

#![cfg(unix)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::events::{Mesh, event};
use crate::support::*;

/// Events with a client that acknowledges them when the host is told to stop.
const EVENTS: usize = 900;
/// How many it acknowledges before, and how many at once.
const ACKS_FIRST: usize = 20;
const WORKERS: usize = 8;

/// Reads a stream to its end.
async fn rest(mut response: reqwest::Response) -> String {
    let mut text = Vec::new();
    loop {
        let chunk = tokio::time::timeout(SOON, response.chunk()).await.expect("the host ends it");
        match chunk.expect("the host ends it properly") {
            Some(chunk) => text.extend_from_slice(&chunk),
            None => return String::from_utf8(text).expect("text"),
        }
    }
}

/// Acknowledges until nothing is left or the host refuses; returns the offsets of what was acknowledged for sure.
async fn acknowledge(api: Api, todo: Arc<Mutex<Vec<Value>>>, acked: watch::Sender<usize>) -> Vec<u64> {
    let mut offsets = Vec::new();
    loop {
        let next = todo.lock().expect("no panic").pop();
        let Some(delivery) = next else { return offsets };
        let body = json!({ "deliveryId": delivery["deliveryId"] });
        let answer = api.request(Method::POST, "/events/ack").json(&body).send().await;
        match answer.map(|answer| answer.status().as_u16()) {
            Ok(200) => {
                offsets.push(delivery["offset"].as_u64().expect("a number"));
                acked.send_modify(|count| *count += 1);
            }
            Ok(503) | Err(_) => return offsets,
            Ok(status) => panic!("an acknowledgement got {status}"),
        }
    }
}

async fn open(api: &Api, method: Method, path: &str, body: Option<&Value>) -> reqwest::Response {
    let request = api.request(method, path).timeout(Duration::from_secs(600));
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    let response = request.send().await.expect("the host answers");
    assert_eq!(response.status(), 200, "{path}");
    response
}

#[test]
fn a_host_that_is_told_to_stop_tells_everybody_and_loses_nothing() {
    run(async {
        const DRAIN: Duration = Duration::from_secs(15);
        let drain = format!("drain_ms={}", DRAIN.as_millis());
        let mut process = Process::serve(&["--set", &drain, "--advertise", "127.0.0.1:0"]).await;
        let api = process.another();
        let mesh = Mesh::new(&api, "c");
        api.put("/topics/t", &json!({ "partitions": 1 })).await.ok();
        mesh.subscribe("t", "LOAD_BALANCE").await;
        let events: Vec<_> = (0..EVENTS).map(event).collect();
        assert_eq!(mesh.publish_all("t", &events).await.status, 202);
        let mut held = Vec::new();
        eventually("the client has them all", SOON, async || {
            held.extend(mesh.poll(500).await);
            (held.len() == events.len()).then_some(())
        })
        .await;

        // One of each kind waits.
        let polling = tokio::spawn({
            let api = api.another();
            async move { api.get("/events/poll?clientId=c&timeoutMs=60000").await.ok() }
        });
        let streaming = open(&api, Method::GET, "/events/stream?clientId=c", None).await;
        let url = format!("{}/events/stream?clientId=c", api.url().replacen("http", "ws", 1));
        let mut socket = tokio_tungstenite::connect_async(url).await.expect("it opens").0;
        let joined = json!({ "memberId": "m", "topics": ["t"], "ttlMs": 600_000 });
        let joined = api.post("/groups/g/members", &joined).await.ok();
        let session = joined["session"].as_str().expect("a text");
        let watching =
            open(&api, Method::GET, &format!("/groups/g/members/m/watch?session={session}"), None).await;
        api.post("/agent/register", &json!({ "agentId": "a", "capacity": 10 })).await.ok();
        api.post("/agent/ready", &json!({ "agentId": "a" })).await.ok();
        let opened = api.post("/session/open", &json!({ "clientId": "c" })).await.ok();
        let session = opened["sessionId"].as_str().expect("a text").to_owned();
        let path = format!("/session/stream/{session}");
        let turn = open(&api, Method::POST, &path, Some(&json!({ "prompt": "why?" }))).await;
        let inbox = open(&api, Method::GET, "/agent/stream?agentId=a", None).await;
        let asking = tokio::spawn({
            let api = api.another();
            async move { api.post("/events/request?topic=nobody&timeoutMs=600000", &event("ask")).await }
        });
        eventually("all of them wait", SOON, async || {
            let metrics = api.get("/metrics").await.text;
            let has = |line: &str| metrics.lines().any(|found| found == line);
            let all = ["fulcrum_polls_waiting 3", "fulcrum_requests_waiting 1", "fulcrum_turns_running 1"];
            all.into_iter().all(has).then_some(())
        })
        .await;
        let idle = tokio::net::TcpStream::connect(api.url().trim_start_matches("http://")).await;

        // Acknowledgements go in while the host is told to stop.
        let todo = Arc::new(Mutex::new(held));
        let (acked, mut count) = watch::channel(0);
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            workers.spawn(acknowledge(api.another(), todo.clone(), acked.clone()));
        }
        drop(acked);
        let begun = count.wait_for(|count| *count >= ACKS_FIRST);
        let begun = tokio::time::timeout(SOON, begun).await.expect("they go in");
        drop(begun.expect("some go in before the host stops"));
        process.signal("TERM");
        let told_at = Instant::now();
        let acked: BTreeSet<u64> = workers.join_all().await.into_iter().flatten().collect();

        assert_eq!(polling.await.expect("it ends"), json!([]));
        let streamed = rest(streaming).await;
        assert!(streamed.contains("event: end") && streamed.contains("stopping"), "{streamed}");
        loop {
            let message = tokio::time::timeout(SOON, socket.next()).await.expect("the host ends it");
            if let Message::Close(close) = message.expect("it says goodbye").expect("it speaks WebSocket") {
                assert_eq!(close.expect("with a reason").code, CloseCode::Away);
                break;
            }
        }
        drop(socket);
        rest(watching).await;
        rest(inbox).await;
        let last = rest(turn).await;
        let last = last.trim_end().rsplit("data: ").next().expect("a line").to_owned();
        let last: Value = serde_json::from_str(&last).expect("JSON");
        assert!(last["done"] == true && last["error"].is_string(), "{last}");
        asking.await.expect("it ends").refused(503, "stopping");
        drop(idle);

        assert_eq!(process.ended().await, Some(0), "{}", process.log());
        let took = told_at.elapsed();
        assert!(took < DRAIN, "it took {took:?}");
        let log = process.log();
        assert!(log.contains("host has stopped") && !log.contains("cut off"), "{log}");
        assert!(!log.contains("ERROR"), "{log}");

        // Another life on the same data gives back what was not acknowledged, and nothing else.
        let host = Host::in_folder(process.into_folder(), |_| {}).await;
        let mesh = Mesh::new(&host, "c");
        let mut back = BTreeSet::new();
        eventually("the rest comes back", SOON, async || {
            for delivery in mesh.poll(500).await {
                back.insert(delivery["offset"].as_u64().expect("a number"));
            }
            (back.len() + acked.len() >= events.len()).then_some(())
        })
        .await;
        let lost: Vec<_> = acked.intersection(&back).collect();
        assert!(lost.is_empty(), "acknowledged, and delivered again: {lost:?}");
        host.stop().await;
    });
}

#[test]
fn a_host_does_not_wait_longer_than_it_may() {
    run(async {
        const DRAIN: Duration = Duration::from_millis(500);
        let drain = format!("drain_ms={}", DRAIN.as_millis());
        let mut process = Process::serve(&["--set", &drain]).await;
        // A request that never comes to its end.
        let address = process.url().trim_start_matches("http://").to_owned();
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let head = b"POST /events/publish?topic=t HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n\
            content-length: 100\r\n\r\n{";
        tokio::io::AsyncWriteExt::write_all(&mut stream, head).await.expect("it reads");
        process.get("/healthz").await.ok();
        let told_at = Instant::now();
        process.signal("TERM");
        assert_eq!(process.ended().await, Some(0), "{}", process.log());
        let took = told_at.elapsed();
        assert!(took < DRAIN + SOON / 2, "it took {took:?}");
        assert!(process.log().contains("cut off"), "{}", process.log());
    });
}

#[test]
fn a_host_that_gives_notice_serves_until_it_drains() {
    run(async {
        let process =
            &mut Process::serve(&["--set", "drain_notice_ms=3000", "--advertise", "127.0.0.1:0"]).await;
        assert_eq!(process.get("/readyz").await.status, 200);
        assert_eq!(process.get("/instances").await.ok().as_array().map(Vec::len), Some(1));
        process.signal("TERM");
        // Each request comes on a connection of its own: the first that is taken in on notice says so.
        let api = process.another();
        eventually("it says that it leaves", SOON, async || {
            let fresh = api.another();
            (fresh.get("/readyz").await.status == 503).then_some(())
        })
        .await;
        let fresh = api.another();
        assert_eq!(fresh.get("/healthz").await.status, 200);
        assert_eq!(fresh.get("/instances").await.ok(), json!([]), "its own row is out of the roster");
        assert_eq!(fresh.post("/events/publish?topic=t", &event("late")).await.status, 202);
        assert_eq!(process.ended().await, Some(0), "{}", process.log());
    });
}
