//! How much is kept, how fast it may come, and whose traffic it is: retention, hard limits, a full store, rates, metering.
//!
//! Invariant: where a test asks for a trim, the host's own looks are an hour apart.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::events::{Mesh, event};
use crate::groups::{join_by_hand, topic};
use crate::support::*;

const HOUR_MS: u64 = 3_600_000;

async fn host() -> Host {
    Host::with(|config| {
        config.events.retention_interval_ms = HOUR_MS;
        config.policy.claiming_deadline_ms = 20_000;
        config.group.gather_ms = 0;
    })
    .await
}

/// Changes a topic of one partition.
async fn set(api: &Api, limits: &Value) {
    let mut body = json!({ "partitions": 1 });
    for (name, value) in limits.as_object().expect("an object") {
        body[name] = value.clone();
    }
    api.put("/topics/t", &body).await.ok();
}

/// Events of a kilobyte or so.
fn large(id: usize) -> Value {
    let mut event = event(id);
    event["data_base64"] = "AAAA".repeat(256).into();
    event
}

async fn publish(mesh: &Mesh, ids: std::ops::Range<usize>) {
    for id in ids {
        assert!(mesh.publish("t", &large(id)).await);
    }
}

async fn trim(api: &Api) -> Value {
    api.post("/admin/retention", &json!({})).await.ok()
}

/// Where the only partition begins and ends.
async fn bounds(api: &Api) -> (u64, u64) {
    let found = api.get("/topics/t").await.ok();
    let offset = |name: &str| found["offsets"][0][name].as_u64().expect("a number");
    (offset("firstOffset"), offset("endOffset"))
}

/// Trims until the partition begins there.
async fn until_first(api: &Api, first: u64) {
    eventually(format!("the begin is {first}"), SOON, async || {
        trim(api).await;
        (bounds(api).await.0 == first).then_some(())
    })
    .await;
}

#[test]
fn old_events_go_by_themselves() {
    run(async {
        let host = Host::with(|config| {
            config.events.retention_ms = 50;
            config.events.retention_interval_ms = 20;
        })
        .await;
        let mesh = Mesh::new(&host, "c");
        set(&host, &json!({})).await;
        publish(&mesh, 0..10).await;
        eventually("all of them are gone", SOON, async || (bounds(&host).await == (10, 10)).then_some(()))
            .await;
        let metrics = host.get("/metrics").await.text;
        assert!(metrics.contains("\nfulcrum_events_trimmed_total 10\n"), "{metrics}");
        host.stop().await;
    });
}

#[test]
fn limits_are_shown_and_kept_with_the_topic() {
    run(async {
        let host = host().await;
        let shown = async |host: &Host| {
            let found = host.get("/topics/t").await.ok();
            ["retentionMs", "retentionBytes", "hardLimitBytes"].map(|name| found[name].clone())
        };
        let week = json!(7 * 24 * HOUR_MS);
        set(&host, &json!({})).await;
        assert_eq!(shown(&host).await, [week.clone(), Value::Null, Value::Null]);
        set(&host, &json!({ "retentionMs": 0, "retentionBytes": 5000, "hardLimitBytes": 9000 })).await;
        set(&host, &json!({ "hardLimitBytes": null })).await;
        let expected = [Value::Null, json!(5000), Value::Null];
        assert_eq!(shown(&host).await, expected);
        let refused = host.put("/topics/t", &json!({ "partitions": 1, "retentionMs": -1 })).await;
        refused.refused(400, "invalid_value");
        let host = Host::in_folder(host.stop().await, |config| {
            config.events.retention_ms = 0;
            config.events.hard_limit_bytes = 77;
        })
        .await;
        assert_eq!(shown(&host).await, [Value::Null, json!(5000), json!(77)]);
        set(&host, &json!({ "retentionBytes": null, "retentionMs": null })).await;
        assert_eq!(shown(&host).await, [Value::Null, Value::Null, json!(77)]);
        host.delete("/topics/t").await.ok();
        set(&host, &json!({})).await;
        assert_eq!(shown(&host).await, [Value::Null, Value::Null, json!(77)]);
        host.stop().await;
    });
}

#[test]
fn events_that_a_group_needs_stay() {
    run(async {
        let host = host().await;
        let (mesh, private) = (Mesh::new(&host, "c"), Mesh::new(&host, "private"));
        set(&host, &json!({ "retentionMs": 1 })).await;
        mesh.subscribe("t", "LOAD_BALANCE").await;
        private.subscribe("t", "BROADCAST").await;
        let (session, orders) = join_by_hand(&host, "m", &json!({}), 1).await;
        let epoch = orders["assignments"][0]["epoch"].clone();
        publish(&mesh, 0..10).await;

        let deliveries = eventually("the client has them all", SOON, async || {
            let deliveries = mesh.poll(500).await;
            (deliveries.len() == 10).then_some(deliveries)
        })
        .await;
        assert_eq!(trim(&host).await["trimmed"], 0, "nobody has read anything");
        for delivery in deliveries.iter().filter(|delivery| delivery["offset"] != 3) {
            assert!(mesh.ack(delivery).await);
        }
        let checkpoint = async |offset: u64| {
            let body = json!({ "member": "m", "session": session, "epoch": epoch, "offset": offset });
            host.post("/groups/g/topics/t/partitions/0/checkpoint", &body).await.ok();
        };
        assert_eq!(trim(&host).await["trimmed"], 0, "the member has read nothing");
        checkpoint(2).await;
        until_first(&host, 2).await;
        checkpoint(8).await;
        until_first(&host, 3).await;
        assert_eq!(trim(&host).await["trimmed"], 0, "event 3 is with the client");
        // That holds over a restart, and a group without members still counts.
        let host = Host::in_folder(host.stop().await, |config| {
            config.events.retention_interval_ms = HOUR_MS;
        })
        .await;
        trim(&host).await;
        assert_eq!(bounds(&host).await, (3, 10));
        let mesh = Mesh::new(&host, "c");
        assert_eq!(mesh.take(1).await, ["3"]);
        until_first(&host, 8).await;
        host.delete("/groups/g").await.ok();
        until_first(&host, 10).await;
        // Neither a client of its own nor an old event holds anything.
        assert_eq!(Mesh::new(&host, "private").poll(50).await, Vec::<Value>::new());
        host.stop().await;
    });
}

#[test]
fn a_partition_is_kept_within_its_bytes() {
    run(async {
        let host = host().await;
        let mesh = Mesh::new(&host, "c");
        set(&host, &json!({ "retentionBytes": 10_000 })).await;
        publish(&mesh, 0..30).await;
        eventually("it is small", SOON, async || {
            trim(&host).await;
            let found = host.get("/topics/t").await.ok();
            (found["offsets"][0]["bytes"].as_u64().expect("a number") <= 10_000).then_some(())
        })
        .await;
        let (first, end) = bounds(&host).await;
        assert!((20..=23).contains(&first) && end == 30, "{first}");
        // A group that starts now reads what is left.
        mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "start": "earliest" })).await.ok();
        assert_eq!(mesh.take(usize::try_from(30 - first).expect("few")).await.len() as u64, 30 - first);
        host.stop().await;
    });
}

#[test]
fn what_a_hard_limit_takes_becomes_dead_letters_and_gaps() {
    run(async {
        let host = host().await;
        let mesh = Mesh::new(&host, "c");
        set(&host, &json!({})).await;
        mesh.subscribe("t", "LOAD_BALANCE").await;
        let (session, orders) = join_by_hand(&host, "m", &json!({}), 1).await;
        let epoch = &orders["assignments"][0]["epoch"];
        publish(&mesh, 0..30).await;
        let held = mesh.next().await;
        assert!(!held.is_empty());
        set(&host, &json!({ "hardLimitBytes": 10_000 })).await;
        let first = eventually("it is trimmed", SOON, async || {
            trim(&host).await;
            let (first, _) = bounds(&host).await;
            (first >= 20).then_some(first)
        })
        .await;
        // Every event is a dead letter or comes; none is both.
        let page = host.get("/events/dead-letters?topic=t&max=1000").await.ok();
        let letters = page["deadLetters"].as_array().expect("a list");
        assert!(letters.iter().all(|letter| letter["reason"] == "expired"), "{page}");
        let dead: BTreeSet<_> =
            letters.iter().map(|letter| letter["offset"].as_u64().expect("a number")).collect();
        assert_eq!(dead, (0..first).collect());
        let mut left = BTreeSet::new();
        eventually("what is left comes", SOON, async || {
            let still_held = held.iter().filter(|delivery| delivery["offset"].as_u64() >= Some(first));
            for delivery in mesh.poll(100).await.iter().chain(still_held) {
                mesh.ack(delivery).await;
                left.insert(delivery["offset"].as_u64().expect("a number"));
            }
            (left.len() as u64 >= 30 - first).then_some(())
        })
        .await;
        assert_eq!(left, (first..30).collect());
        let redriven = host.post("/events/dead-letters/redrive", &json!({ "topic": "t" })).await.ok();
        assert_eq!(redriven["redriven"], first);
        assert_eq!(mesh.take(usize::try_from(first).expect("few")).await.len() as u64, first);

        let path = format!("/groups/g/topics/t/partitions/0/events?member=m&session={session}&epoch={epoch}");
        let pulled = host.get(&path).await.ok();
        assert_eq!((&pulled["firstOffset"], &pulled["events"][0]["offset"]), (&json!(first), &json!(first)));
        let metrics = host.get("/metrics").await.text;
        assert!(metrics.contains(&format!("\nfulcrum_events_gap_total {first}\n")), "{metrics}");
        host.stop().await;
    });
}

#[test]
fn a_full_store_goes_on_and_recovers() {
    run(async {
        let host = Host::with(|config| {
            config.host.store_bytes_max = 4 << 20;
            config.events.retention_interval_ms = HOUR_MS;
        })
        .await;
        let mesh = Mesh::new(&host, "c");
        set(&host, &json!({})).await;
        topic(&host, "u", 1).await;
        mesh.subscribe("t", "LOAD_BALANCE").await;
        publish(&mesh, 0..20).await;
        let mut heavy = event("heavy");
        heavy["data_base64"] = "AAAA".repeat(25_000).into();
        let full = async |topic: &str| {
            for _ in 0..100 {
                let answer = host.post(&format!("/events/publish?topic={topic}"), &heavy).await;
                if answer.status != 202 {
                    answer.refused(503, "disk_full");
                    assert_eq!(answer.headers["retry-after"], "1");
                    return;
                }
            }
            panic!("it never fills");
        };
        full("u").await;
        // Everything but publishing goes on.
        assert_eq!(mesh.take(20).await.len(), 20);
        Mesh::new(&host, "another").subscribe("t", "BROADCAST").await;
        set(&host, &json!({ "retentionMs": 1 })).await;
        host.put("/topics/u", &json!({ "partitions": 1, "retentionBytes": 1_000_000 })).await.ok();
        let goes_through = async |topic: &str| {
            eventually("there is room again", SOON, async || {
                trim(&host).await;
                mesh.publish(topic, &heavy).await.then_some(())
            })
            .await;
        };
        goes_through("u").await;
        full("u").await;
        host.delete("/topics/u").await.ok();
        goes_through("t").await;
        host.stop().await;
    });
}

#[test]
fn topics_and_sessions_have_their_rates() {
    run(async {
        // So low that not even a slow machine makes room while the test runs.
        let host = Host::with(|config| {
            config.limits.topic_events_per_sec = Some(3);
            config.limits.session_turns_per_sec = Some(1);
        })
        .await;
        let mesh = Mesh::new(&host, "c");
        let waits = |answer: &Answer| {
            answer.refused(429, "rate_limited");
            answer.headers["retry-after"].to_str().expect("text").parse::<u64>().expect("a number")
        };
        let batch: Vec<_> = (0..3).map(event).collect();
        assert_eq!(mesh.publish_all("a", &batch).await.status, 202);
        let refused = mesh.publish_all("a", &batch).await;
        assert_eq!(waits(&refused), 1);
        assert_eq!(mesh.publish_all("b", &batch).await.status, 202, "another topic");
        let four: Vec<_> = (0..4).map(event).collect();
        let message = mesh.publish_all("a", &four).await.refused(429, "rate_limited").to_owned();
        assert!(message.contains("more than 3 events"), "{message}");
        eventually("the topic takes some again", SOON, async || {
            (mesh.publish_all("a", &batch).await.status == 202).then_some(())
        })
        .await;

        host.post("/agent/register", &json!({ "agentId": "x", "capacity": 10 })).await.ok();
        host.post("/agent/ready", &json!({ "agentId": "x" })).await.ok();
        let mut sessions = Vec::new();
        for _ in 0..2 {
            let opened = host.post("/session/open", &json!({ "clientId": "c" })).await.ok();
            sessions.push(opened["sessionId"].as_str().expect("a text").to_owned());
        }
        let say = async |session: &str| {
            let path = format!("/session/publish/{session}");
            host.send(host.request(Method::POST, &path).body("hello")).await
        };
        // One each second: of two in a row at least one is refused, unless a second lies between them.
        let refused = eventually("one is refused", SOON, async || {
            let answer = say(&sessions[0]).await;
            (answer.status != 201).then_some(answer)
        })
        .await;
        assert_eq!(waits(&refused), 1);
        assert_eq!(say(&sessions[1]).await.status, 201, "another session");
        host.stop().await;
    });
}

#[test]
fn what_a_client_streams_reaches_the_policy() {
    run(async {
        let host = Host::with(|config| config.policy.scoring = "mine".to_owned()).await;
        let traffic = guest(include_str!("guests/traffic.wat"));
        host.policies().put("mine.wasm", &traffic);
        host.until_in_use("mine", &digest(&traffic)).await;
        host.beat("a", 0).await;
        let rate = async |client: &str| {
            let answer = host.recommend(&format!("clientId={client}")).await;
            assert_eq!((&answer["policy"], &answer["instanceId"]), (&json!("mine"), &json!("a")), "{answer}");
            answer["score"].as_f64().expect("a number")
        };
        let publisher = Mesh::new(&host, "publisher");
        for client in ["polls", "streams", "socket", "quiet"] {
            Mesh::new(&host, client).subscribe("t", "BROADCAST").await;
            assert!(rate(client).await < 100.0, "{client}");
        }
        let mut socket = {
            let url = format!("{}/events/stream?clientId=socket", host.url().replacen("http", "ws", 1));
            tokio_tungstenite::connect_async(url).await.expect("it opens").0
        };
        let streaming = host.request(Method::GET, "/events/stream?clientId=streams");
        let mut streaming =
            streaming.timeout(Duration::from_secs(600)).send().await.expect("the host answers");
        publish(&publisher, 0..50).await;

        let mut count = 0;
        eventually("all were polled", SOON, async || {
            count += Mesh::new(&host, "polls").poll(500).await.len();
            (count >= 50).then_some(())
        })
        .await;
        let mut text = String::new();
        while text.matches("data: ").count() < 50 {
            let chunk = tokio::time::timeout(SOON, streaming.chunk()).await.expect("in time");
            text.push_str(std::str::from_utf8(&chunk.expect("it flows").expect("it goes on")).expect("text"));
        }
        let mut deliveries = 0;
        while deliveries < 50 {
            let message = tokio::time::timeout(SOON, socket.next()).await.expect("in time");
            if let Message::Text(text) = message.expect("it goes on").expect("it flows") {
                let delivery: Value = serde_json::from_str(&text).expect("JSON");
                let ack = json!({ "ack": delivery["deliveryId"] }).to_string();
                socket.send(Message::text(ack)).await.expect("it flows");
                deliveries += usize::from(delivery["event"].is_object());
            }
        }
        // 60 kB are 4 kB/s at once, which halve each ten seconds.
        for client in ["polls", "streams", "socket"] {
            let rate = rate(client).await;
            assert!(rate > 1000.0, "{client} has {rate}");
        }
        assert!(rate("quiet").await < 100.0);
        host.stop().await;
    });
}
