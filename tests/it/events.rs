//! Events over HTTP: a client that makes the calls EventMesh's makes, and what we add to them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::support::*;

const ONE: &str = "application/cloudevents+json";
const BATCH: &str = "application/cloudevents-batch+json";

#[allow(clippy::needless_pass_by_value, reason = "a reference would only be noise in the calls")]
pub(crate) fn event(id: impl ToString) -> Value {
    json!({ "specversion": "1.0", "id": id.to_string(), "source": "/test", "type": "order.made",
        "datacontenttype": "application/octet-stream", "data_base64": "AAEC" })
}

fn keyed(id: impl ToString, key: &str) -> Value {
    let mut event = event(id);
    event["messagegroup"] = key.into();
    event
}

/// Does what `CloudEventsClient` of EventMesh's SDK does, call by call: same paths, bodies and content types.
#[derive(Clone)]
pub(crate) struct Mesh {
    pub(crate) api: Api,
    client: String,
}

impl Mesh {
    pub(crate) fn new(api: &Api, client: &str) -> Self {
        Self { api: api.another(), client: client.to_owned() }
    }

    pub(crate) async fn publish(&self, topic: &str, event: &Value) -> bool {
        self.send(&format!("/events/publish?topic={topic}"), ONE, event.to_string()).await.status == 202
    }

    pub(crate) async fn publish_all(&self, topic: &str, events: &[Value]) -> Answer {
        let body = json!(events).to_string();
        self.send(&format!("/events/publish-batch?topic={topic}"), BATCH, body).await
    }

    async fn request(&self, topic: &str, event: &Value, timeout_ms: u64) -> Answer {
        let path = format!("/events/request?topic={topic}&timeoutMs={timeout_ms}");
        self.send(&path, ONE, event.to_string()).await
    }

    async fn reply(&self, correlation_id: &str, event: &Value) -> Answer {
        self.api.post("/events/reply", &json!({ "correlationId": correlation_id, "event": event })).await
    }

    pub(crate) async fn subscribe(&self, topic: &str, mode: &str) -> Value {
        let body = json!({ "clientId": self.client, "topic": topic, "mode": mode });
        self.api.post("/events/subscribe", &body).await.ok()
    }

    /// Subscribes with more than EventMesh knows.
    pub(crate) async fn subscribe_with(&self, topic: &str, mode: &str, more: &Value) -> Answer {
        let mut body = json!({ "clientId": self.client, "topic": topic, "mode": mode });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        self.api.post("/events/subscribe", &body).await
    }

    async fn unsubscribe(&self, topic: Option<&str>) -> bool {
        let mut body = json!({ "clientId": self.client });
        if let Some(topic) = topic {
            body["topic"] = topic.into();
        }
        self.api.post("/events/unsubscribe", &body).await.ok()["removed"].as_bool().expect("a boolean")
    }

    pub(crate) async fn poll(&self, timeout_ms: u64) -> Vec<Value> {
        let path = format!("/events/poll?clientId={}&max=100&timeoutMs={timeout_ms}", self.client);
        self.api.get(&path).await.ok().as_array().expect("a list").clone()
    }

    pub(crate) async fn ack(&self, delivery: &Value) -> bool {
        let body = json!({ "deliveryId": delivery["deliveryId"] });
        self.api.post("/events/ack", &body).await.status == 200
    }

    /// Polls and acknowledges until there were so many; returns their ids in the order they came.
    pub(crate) async fn take(&self, count: usize) -> Vec<String> {
        let mut ids = Vec::new();
        eventually(format!("{} gets {count} events", self.client), SOON, async || {
            for delivery in self.poll(500).await {
                assert!(self.ack(&delivery).await, "{delivery}");
                ids.push(id(&delivery));
            }
            (ids.len() >= count).then_some(())
        })
        .await;
        assert_eq!(ids.len(), count, "{ids:?}");
        ids
    }

    /// Polls until there is something.
    pub(crate) async fn next(&self) -> Vec<Value> {
        eventually(format!("{} gets something", self.client), SOON, async || {
            Some(self.poll(1000).await).filter(|found| !found.is_empty())
        })
        .await
    }

    async fn send(&self, path: &str, kind: &str, body: String) -> Answer {
        let request = self.api.request(Method::POST, path).header(CONTENT_TYPE, kind).body(body);
        self.api.send(request).await
    }
}

fn id(delivery: &Value) -> String {
    delivery["event"]["id"].as_str().expect("a text").to_owned()
}

fn ids(deliveries: &[Value]) -> Vec<String> {
    deliveries.iter().map(id).collect()
}

#[test]
fn an_eventmesh_client_finds_every_call() {
    run(async {
        let host = Host::start().await;
        let mesh = Mesh::new(&host, "order-svc");
        assert!(mesh.publish("orders", &event("before")).await);
        let subscribed = mesh.subscribe("orders", "LOAD_BALANCE").await;
        assert!(!subscribed["subscriptionId"].as_str().unwrap().is_empty());
        assert_eq!(subscribed["instanceUrl"], "", "it advertises none");
        assert_eq!(mesh.subscribe("orders", "LOAD_BALANCE").await, subscribed, "again changes nothing");

        let raw = r#"{ "specversion":"1.0","id":"raw","source":"/s","type":"t","n":1.50,
            "data":{"big":123456789012345678901234567890,"text":"\u00fc"}}"#;
        let answer = mesh.send("/events/publish?topic=orders", ONE, raw.to_owned()).await;
        assert_eq!((answer.status, &answer.body["status"]), (202, &json!("accepted")));
        let polled = mesh.api.get("/events/poll?clientId=order-svc&max=100&timeoutMs=20000").await;
        assert!(polled.text.contains(&raw.replace('\n', " ")), "{}", polled.text);
        let deliveries = polled.ok();
        assert_eq!(deliveries.as_array().unwrap().len(), 1, "{deliveries}");
        let delivery = &deliveries[0];
        assert_eq!((&delivery["attempt"], &delivery["topic"]), (&json!(1), &json!("orders")));
        assert!(mesh.ack(delivery).await);
        assert!(!mesh.ack(delivery).await, "it is settled");
        assert_eq!(mesh.poll(0).await, Vec::<Value>::new());

        let batch: Vec<_> = (0..9).map(event).collect();
        assert_eq!(mesh.publish_all("orders", &batch).await.status, 202);
        assert_eq!(mesh.take(9).await.len(), 9);

        assert!(!mesh.unsubscribe(Some("other")).await);
        assert!(mesh.unsubscribe(Some("orders")).await);
        assert!(!mesh.unsubscribe(None).await);
        mesh.api.get("/events/poll?clientId=order-svc&timeoutMs=0").await.refused(404, "not_subscribed");
        host.stop().await;
    });
}

#[test]
fn a_subscriber_is_told_where_to_stay() {
    run(async {
        let host = Host::with(|config| {
            config.host.advertise = Some("127.0.0.1:0".parse().expect("an address"));
        })
        .await;
        let subscribed = Mesh::new(&host, "c").subscribe("t", "BROADCAST").await;
        assert_eq!(subscribed["instanceUrl"], host.url());
        host.stop().await;
    });
}

#[test]
fn a_batch_is_checked_before_any_of_it_is_stored() {
    run(async {
        let host = Host::start().await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe("t", "LOAD_BALANCE").await;
        let mut broken = event("broken");
        broken["specversion"] = "0.3".into();
        let refused = mesh.publish_all("t", &[event(0), event(1), broken]).await;
        assert!(refused.refused(400, "invalid_event").contains("event 2"), "{}", refused.text);
        assert_eq!(refused.body["index"], 2);
        assert_eq!(mesh.poll(0).await, Vec::<Value>::new());

        let empty = mesh.publish_all("never-made", &[]).await;
        assert_eq!((empty.status, &empty.body["accepted"]), (202, &json!(0)));
        host.get("/topics/never-made").await.refused(404, "unknown_topic");

        let events: Vec<_> = (0..40).map(|n| keyed(n, &format!("key-{}", n % 4))).collect();
        let stored = mesh.publish_all("t", &events).await;
        assert_eq!((stored.status, &stored.body["accepted"]), (202, &json!(40)));
        let places = stored.body["events"].as_array().unwrap();
        let mut by_key: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for (n, place) in places.iter().enumerate() {
            let place = (place["partition"].as_u64().unwrap(), place["offset"].as_u64().unwrap());
            by_key.entry(n % 4).or_default().push(place);
        }
        for places in by_key.values() {
            assert!(places.windows(2).all(|two| two[0].0 == two[1].0 && two[0].1 < two[1].1), "{places:?}");
        }
        assert_eq!(mesh.take(40).await.len(), 40);
        host.stop().await;
    });
}

#[test]
fn a_group_shares_events_and_others_each_get_them_all() {
    run(async {
        let host = Host::start().await;
        let client = |name: &str| Mesh::new(&host, name);
        let (a, b, other) = (client("a"), client("b"), client("other"));
        a.subscribe("t", "LOAD_BALANCE").await;
        b.subscribe("t", "LOAD_BALANCE").await;
        other.subscribe_with("t", "LOAD_BALANCE", &json!({ "group": "g" })).await.ok();
        let (all, some, none) = (client("all"), client("some"), client("none"));
        all.subscribe("t", "BROADCAST").await;
        let filters = json!([{ "any": [{ "suffix": { "id": "3" } }, { "exact": { "id": "7" } }] }]);
        some.subscribe_with("t", "MULTICAST", &json!({ "filters": filters })).await.ok();
        none.subscribe_with("t", "MULTICAST", &json!({ "filters": [{ "exact": { "no": "1" } }] })).await.ok();
        let unfiltered = client("unfiltered");
        unfiltered.subscribe("t", "MULTICAST").await;
        for n in 0..20 {
            assert!(a.publish("t", &event(n)).await);
        }
        let expected: BTreeSet<_> = (0..20).map(|n| n.to_string()).collect();
        for mesh in [&other, &all, &unfiltered] {
            assert_eq!(BTreeSet::from_iter(mesh.take(20).await), expected);
        }
        assert_eq!(
            BTreeSet::from_iter(some.take(3).await),
            BTreeSet::from(["3", "7", "13"].map(str::to_owned))
        );
        assert_eq!(none.poll(100).await, Vec::<Value>::new());
        // Two of one group take turns; together they get each event once.
        let mut shared = Vec::new();
        eventually("a and b get all", SOON, async || {
            for mesh in [&a, &b] {
                let path = format!("/events/poll?clientId={}&max=3&timeoutMs=100", mesh.client);
                for delivery in mesh.api.get(&path).await.ok().as_array().unwrap() {
                    assert!(mesh.ack(delivery).await);
                    shared.push(id(delivery));
                }
            }
            (shared.len() >= 20).then_some(())
        })
        .await;
        assert_eq!((shared.len(), BTreeSet::from_iter(shared)), (20, expected));
        host.stop().await;
    });
}

#[test]
fn many_deliveries_are_acknowledged_by_one_call() {
    run(async {
        let host = Host::start().await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe("t", "LOAD_BALANCE").await;
        for number in 0..4 {
            mesh.publish("t", &event(number.to_string())).await;
        }
        let mut found = Vec::new();
        eventually("all four came", SOON, async || {
            found.extend(mesh.poll(500).await);
            (found.len() == 4).then_some(())
        })
        .await;
        assert!(mesh.ack(&found[0]).await);
        let ids: Vec<_> = found[..3].iter().map(|delivery| delivery["deliveryId"].clone()).collect();
        let answer = host.post("/events/ack", &json!({ "deliveryIds": ids })).await.ok();
        assert_eq!(answer, json!({ "status": "acked", "acked": 2, "unknown": [ids[0]] }));
        let answer = host.post("/events/ack", &json!({ "deliveryIds": [] })).await.ok();
        assert_eq!(answer, json!({ "status": "acked", "acked": 0, "unknown": [] }));
        for acked in [1, 0] {
            mesh.publish("t", &event("again".to_owned())).await;
            let again = match acked {
                1 => eventually("it came", SOON, async || mesh.poll(500).await.pop()).await,
                _ => found[0].clone(),
            };
            let ids = vec![again["deliveryId"].clone(); 5];
            let unknown = if acked == 0 { &ids[..1] } else { &[] };
            let answer = host.post("/events/ack", &json!({ "deliveryIds": ids })).await.ok();
            assert_eq!(
                answer,
                json!({ "status": "acked", "acked": acked, "unknown": unknown }),
                "counted once"
            );
        }
        let both = json!({ "deliveryId": found[3]["deliveryId"], "deliveryIds": [] });
        let refused = host.post("/events/ack", &both).await;
        let message = refused.refused(400, "invalid_value");
        assert!(message.contains("both"), "{message}");
        let answer = host.post("/events/ack", &json!({ "deliveryIds": [] })).await.ok();
        assert_eq!(answer, json!({ "status": "acked", "acked": 0, "unknown": [] }));
        assert!(mesh.ack(&found[3]).await, "it was not named");
        host.stop().await;
    });
}

#[test]
fn a_caller_that_goes_away_leaves_nothing_half_done() {
    run(async {
        let host = Host::start().await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe("t", "LOAD_BALANCE").await;
        let address = host.url().strip_prefix("http://").expect("a URL").to_owned();
        let body = event("left").to_string();
        let request = format!(
            "POST /events/publish?topic=t HTTP/1.1\r\nhost: {address}\r\ncontent-type: {ONE}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut chance = Chance::new(test_seed());
        for round in 0..40 {
            host.delete("/topics/t").await;
            // Its publish makes the topic anew, and is reset at some moment of that.
            let mut leaving = TcpStream::connect(&address).await.expect("it listens");
            leaving.set_zero_linger().expect("a socket option");
            leaving.write_all(request.as_bytes()).await.expect("it reads");
            tokio::time::sleep(Duration::from_micros(chance.below(6000) as u64)).await;
            drop(leaving);
            let wanted = format!("kept-{round}");
            assert!(mesh.publish("t", &event(&wanted)).await);
            eventually(format!("{wanted} comes"), SOON, async || {
                let mut found = false;
                for delivery in mesh.poll(500).await {
                    found |= id(&delivery) == wanted;
                    mesh.ack(&delivery).await;
                }
                found.then_some(())
            })
            .await;
        }
        host.stop().await;
    });
}

#[test]
fn what_fails_comes_again_and_ends_as_a_dead_letter() {
    run(async {
        let host = Host::start().await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "group": "g", "maxDeliveries": 2 })).await.ok();
        assert!(mesh.publish("t", &event("x")).await);
        let nack = async |delivery: &Value| {
            let body = json!({ "deliveryId": delivery["deliveryId"], "delayMs": 0 });
            host.post("/events/nack", &body).await.ok()
        };
        let first = mesh.next().await.remove(0);
        // Kept for longer, it has another name, and the old one is over.
        let body = json!({ "deliveryId": first["deliveryId"], "invisibleMs": 3_600_000 });
        let kept = host.post("/events/extend", &body).await.ok();
        assert_ne!(kept["deliveryId"], first["deliveryId"]);
        assert!(!mesh.ack(&first).await);
        assert_eq!(nack(&kept).await, json!({ "status": "nacked" }));
        host.post("/events/nack", &json!({ "deliveryId": kept["deliveryId"] }))
            .await
            .refused(404, "unknown_delivery");
        let second = mesh.next().await.remove(0);
        assert_eq!((&second["attempt"], id(&second)), (&json!(2), "x".to_owned()));
        nack(&second).await;

        let list = async |query: &str| {
            let page = host.get(&format!("/events/dead-letters?topic=t&{query}")).await.ok();
            page["deadLetters"].as_array().unwrap().clone()
        };
        let dead = eventually("it is a dead letter", SOON, async || {
            Some(list("").await).filter(|letters| !letters.is_empty())
        })
        .await;
        assert_eq!(dead.len(), 1);
        let letter = &dead[0];
        assert_eq!((&letter["group"], &letter["attempts"]), (&json!("g"), &json!(2)));
        assert_eq!((&letter["reason"], &letter["event"]), (&json!("rejected"), &event("x")));
        assert_eq!(list("group=other").await, Vec::<Value>::new());
        assert_eq!(mesh.poll(0).await, Vec::<Value>::new());

        let wrong = json!({ "topic": "t", "group": "other" });
        host.post("/events/dead-letters/redrive", &wrong).await.refused(404, "unknown_group");
        let body = json!({ "topic": "t", "group": "g", "ids": [letter["id"]] });
        assert_eq!(host.post("/events/dead-letters/redrive", &body).await.ok()["redriven"], 1);
        let again = mesh.next().await.remove(0);
        assert_eq!((&again["attempt"], id(&again)), (&json!(1), "x".to_owned()));
        assert!(mesh.ack(&again).await);
        assert_eq!(list("").await, Vec::<Value>::new());
        host.stop().await;
    });
}

#[test]
fn dead_letters_come_in_pages() {
    run(async {
        let host = Host::start().await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "maxDeliveries": 1 })).await.ok();
        let events: Vec<_> = (0..5).map(event).collect();
        mesh.publish_all("t", &events).await;
        let mut nacked = 0;
        eventually("all are refused", SOON, async || {
            for delivery in mesh.poll(500).await {
                host.post("/events/nack", &json!({ "deliveryId": delivery["deliveryId"] })).await.ok();
                nacked += 1;
            }
            (nacked == 5).then_some(())
        })
        .await;
        let (mut seen, mut after) = (BTreeSet::new(), String::new());
        eventually("all pages are read", SOON, async || {
            let page = host.get(&format!("/events/dead-letters?topic=t&max=2&after={after}")).await.ok();
            let letters = page["deadLetters"].as_array().unwrap();
            seen.extend(letters.iter().map(id));
            page["next"].as_str().unwrap_or_default().clone_into(&mut after);
            (seen.len() == 5).then_some(())
        })
        .await;
        let redriven = host.post("/events/dead-letters/redrive", &json!({ "topic": "t" })).await.ok();
        assert_eq!(redriven["redriven"], 5);
        assert_eq!(mesh.take(5).await.len(), 5);
        host.stop().await;
    });
}

#[test]
fn a_fifo_group_keeps_the_order_of_a_key_while_others_go_on() {
    run(async {
        let host = Host::start().await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "group": "g", "fifo": true })).await.ok();
        for n in 0..3 {
            for key in ["stuck", "free"] {
                assert!(mesh.publish("t", &keyed(format!("{key}-{n}"), key)).await);
            }
        }
        let mut held = None;
        let mut seen = Vec::new();
        eventually("all of the free key", SOON, async || {
            for delivery in mesh.poll(200).await {
                if id(&delivery).starts_with("stuck") {
                    assert!(held.replace(delivery).is_none(), "two of one key at once");
                } else {
                    assert!(mesh.ack(&delivery).await);
                    seen.push(id(&delivery));
                }
            }
            (seen.len() == 3).then_some(())
        })
        .await;
        assert_eq!(seen, ["free-0", "free-1", "free-2"]);
        let held = match held {
            Some(held) => held,
            None => mesh.next().await.remove(0),
        };
        assert_eq!(id(&held), "stuck-0");
        assert_eq!(mesh.poll(100).await, Vec::<Value>::new());
        assert!(mesh.ack(&held).await);
        assert_eq!(mesh.take(2).await, ["stuck-1", "stuck-2"]);

        // More partitions would send the key elsewhere.
        let more = json!({ "partitions": 9 });
        host.put("/topics/t", &more).await.refused(409, "fifo_topic");
        host.delete("/groups/g").await.ok();
        host.put("/topics/t", &more).await.ok();
        host.stop().await;
    });
}

#[test]
fn a_name_is_a_group_of_one_kind() {
    run(async {
        let host = crate::groups::host().await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "group": "events" })).await.ok();
        host.put("/groups/owners", &json!({})).await.ok();

        let join = json!({ "memberId": "m", "topics": ["t"] });
        host.post("/groups/events/members", &join).await.refused(409, "wrong_kind");
        host.put("/groups/events", &json!({})).await.refused(409, "wrong_kind");
        let subscribing = mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "group": "owners" })).await;
        subscribing.refused(409, "wrong_kind");

        let kinds: BTreeMap<String, Value> = host
            .get("/groups")
            .await
            .ok()
            .as_array()
            .unwrap()
            .iter()
            .map(|group| (group["group"].as_str().unwrap().to_owned(), group["kind"].clone()))
            .collect();
        assert_eq!(kinds["events"], "messages");
        assert_eq!(kinds["owners"], "partitions");
        let shown = host.get("/groups/events").await.ok();
        assert_eq!((&shown["kind"], &shown["topics"][0]["topic"]), (&json!("messages"), &json!("t")));
        assert_eq!(host.get("/groups/owners").await.ok()["kind"], "partitions");

        // A name is free again once its group is gone.
        host.delete("/groups/events").await.ok();
        host.get("/groups/events").await.refused(404, "unknown_group");
        host.post("/groups/events/members", &join).await.ok();
        host.delete("/groups/owners").await.ok();
        mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "group": "owners" })).await.ok();
        host.stop().await;
    });
}

#[test]
fn of_two_kinds_made_at_once_one_wins() {
    run(async {
        let host = crate::groups::host().await;
        for round in 0..20 {
            let (name, mesh) = (format!("g{round}"), Mesh::new(&host, "c"));
            let (join, path) =
                (json!({ "memberId": "m", "topics": ["t"] }), format!("/groups/{name}/members"));
            let group = json!({ "group": name });
            let (joined, subscribed) =
                tokio::join!(host.post(&path, &join), mesh.subscribe_with("t", "LOAD_BALANCE", &group));
            let (lost, won) = if joined.status == 200 { (subscribed, joined) } else { (joined, subscribed) };
            lost.refused(409, "wrong_kind");
            won.ok();
        }
        host.stop().await;
    });
}

#[test]
fn a_groups_settings_are_those_it_was_made_with() {
    run(async {
        let host = Host::start().await;
        let made = json!({ "group": "g", "fifo": true, "maxDeliveries": 3, "invisibleMs": 5000 });
        Mesh::new(&host, "a").subscribe_with("t", "LOAD_BALANCE", &made).await.ok();
        let other = Mesh::new(&host, "b");
        other.subscribe_with("t", "LOAD_BALANCE", &json!({ "group": "g" })).await.ok();
        other.subscribe_with("t", "LOAD_BALANCE", &made).await.ok();
        for differs in [
            json!({ "group": "g", "fifo": false }),
            json!({ "group": "g", "maxDeliveries": 4 }),
            json!({ "group": "g", "invisibleMs": 6000 }),
            json!({ "group": "g", "filters": [{ "exact": { "type": "a" } }] }),
        ] {
            other.subscribe_with("t", "LOAD_BALANCE", &differs).await.refused(409, "group_conflict");
        }
        host.stop().await;
    });
}

#[test]
fn a_request_gets_the_first_reply() {
    run(async {
        let host = Host::start().await;
        let (asker, responder) = (Mesh::new(&host, "asker"), Mesh::new(&host, "responder"));
        responder.subscribe("ask", "LOAD_BALANCE").await;
        let mut asked = event("question");
        asked["correlationid"] = "mine".into();
        asked["data_base64"] = Value::Null;
        asked["data"] = json!({ "n": 1 });
        let question = asked.clone();
        let asking = tokio::spawn({
            let asker = asker.clone();
            async move { asker.request("ask", &question, 30_000).await }
        });
        let delivery = responder.next().await.remove(0);
        let found = &delivery["event"];
        assert_eq!((&found["id"], &found["data"]), (&asked["id"], &asked["data"]));
        assert_eq!(found["replyto"], format!("{}/events/reply", host.url()));
        let correlation = found["correlationid"].as_str().unwrap();
        assert_ne!(correlation, "mine", "it must not be guessable");
        let (first, second) = (event("first"), event("second"));
        assert_eq!(responder.reply(correlation, &first).await.ok(), json!({ "status": "ok" }));
        responder.reply(correlation, &second).await.refused(404, "unknown_request");
        assert!(responder.ack(&delivery).await);
        let answer = asking.await.expect("it ends");
        assert_eq!(answer.headers["content-type"], ONE);
        assert_eq!(answer.ok(), first);

        asker.request("ask", &asked, 1).await.refused(504, "no_reply");
        // It stays published, and whoever replies hears that nobody waits.
        let late = responder.next().await.remove(0);
        let correlation = late["event"]["correlationid"].as_str().unwrap();
        responder.reply(correlation, &first).await.refused(404, "unknown_request");
        responder.reply("", &first).await.refused(404, "unknown_request");
        host.stop().await;
    });
}

#[test]
fn so_many_requests_wait_and_no_more() {
    run(async {
        let host = Host::with(|config| config.events.requests_max = 1).await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe("ask", "LOAD_BALANCE").await;
        let waiting = tokio::spawn({
            let mesh = mesh.clone();
            async move { mesh.request("ask", &event(1), 600_000).await }
        });
        let delivery = mesh.next().await.remove(0);
        let refused = mesh.request("ask", &event(2), 600_000).await;
        refused.refused(429, "too_many_requests");
        assert_eq!(refused.headers["retry-after"], "1");
        let correlation = delivery["event"]["correlationid"].as_str().unwrap();
        mesh.reply(correlation, &event("reply")).await.ok();
        assert_eq!(waiting.await.expect("it ends").ok()["id"], "reply");
        // Who hangs up makes room.
        let hanging = tokio::spawn({
            let mesh = mesh.clone();
            async move { mesh.request("ask", &event(3), 600_000).await }
        });
        mesh.next().await;
        hanging.abort();
        eventually("there is room again", SOON, async || {
            (mesh.request("ask", &event(4), 1).await.status == 504).then_some(())
        })
        .await;
        host.stop().await;
    });
}

/// Reads server-sent events.
struct Sse {
    response: reqwest::Response,
    text: String,
}

impl Sse {
    async fn open(api: &Api, client: &str) -> Self {
        let path = format!("/events/stream?clientId={client}");
        let request = api.request(Method::GET, &path).timeout(Duration::from_secs(600));
        let response = request.send().await.expect("the host answers");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut sse = Self { response, text: String::new() };
        assert_eq!(sse.block().await.as_deref(), Some(": open"));
        sse
    }

    /// Returns the next block of lines; none at the end of the stream.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                return Some(block);
            }
            let chunk = tokio::time::timeout(SOON, self.response.chunk()).await.expect("in time");
            self.text.push_str(std::str::from_utf8(&chunk.ok()??).expect("whole characters"));
        }
    }

    /// Returns the next delivery, read as EventMesh's client does.
    async fn delivery(&mut self) -> Value {
        loop {
            let block = self.block().await.expect("the stream goes on");
            if let Some(data) = block.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap_or_else(|_| panic!("{block}"));
            }
            assert!(block.starts_with(':'), "{block}");
        }
    }
}

#[test]
fn a_stream_of_server_sent_events_gives_back_what_it_did_not_settle() {
    run(async {
        let host = Host::start().await;
        let (mesh, other) = (Mesh::new(&host, "c"), Mesh::new(&host, "other"));
        host.get("/events/stream?clientId=c").await.refused(404, "not_subscribed");
        mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "invisibleMs": 3_600_000 })).await.ok();
        let mut sse = Sse::open(&mesh.api, "c").await;
        for n in 0..3 {
            assert!(mesh.publish("t", &event(n)).await);
        }
        let mut found = BTreeMap::new();
        for _ in 0..3 {
            let delivery = sse.delivery().await;
            found.insert(id(&delivery), delivery);
        }
        assert_eq!(found.keys().collect::<Vec<_>>(), ["0", "1", "2"]);
        assert!(mesh.ack(&found["1"]).await);
        other.subscribe("t", "LOAD_BALANCE").await;
        drop(sse);
        // Long before their hour is over.
        let mut again = Vec::new();
        eventually("the others come back", SOON, async || {
            again.extend(other.poll(500).await);
            (again.len() >= 2).then_some(())
        })
        .await;
        let mut back = ids(&again);
        back.sort_unstable();
        assert_eq!(back, ["0", "2"]);
        assert!(again.iter().all(|delivery| delivery["attempt"] == 2), "{again:?}");
        assert!(!mesh.ack(&found["0"]).await, "its lease is over");
        host.stop().await;
    });
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn socket(api: &Api, client: &str, origin: Option<&str>) -> Result<Socket, Error> {
    let url = format!("{}/events/stream?clientId={client}", api.url().replacen("http", "ws", 1));
    let mut request = url.into_client_request().expect("a valid URL");
    if let Some(origin) = origin {
        request.headers_mut().insert("origin", origin.parse().expect("a valid header"));
    }
    connect_async(request).await.map(|(socket, _)| socket)
}

/// Returns the next text frame, or the code the host closes with.
async fn frame(socket: &mut Socket) -> Result<Value, CloseCode> {
    loop {
        let message = tokio::time::timeout(SOON, socket.next()).await.expect("in time");
        match message.expect("the host says goodbye first").expect("the host speaks WebSocket") {
            Message::Text(text) => return Ok(serde_json::from_str(&text).expect("JSON")),
            Message::Close(close) => return Err(close.expect("with a reason").code),
            _ => {}
        }
    }
}

#[test]
fn a_websocket_carries_events_and_acknowledgements() {
    run(async {
        let host = Host::start().await;
        let (mesh, other) = (Mesh::new(&host, "c"), Mesh::new(&host, "other"));
        let status = |refused: Result<Socket, Error>| match refused {
            Err(Error::Http(response)) => response.status().as_u16(),
            other => panic!("{other:?}"),
        };
        assert_eq!(status(socket(&host, "c", None).await), 404);
        mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "invisibleMs": 3_600_000, "maxDeliveries": 9 }))
            .await
            .ok();
        // A page of another origin could read what it is not meant to.
        assert_eq!(status(socket(&host, "c", Some("https://evil.example")).await), 403);
        let mut ws = socket(&host, "c", Some(host.url())).await.expect("its own page may");
        for n in 0..4 {
            assert!(mesh.publish("t", &event(n)).await);
        }
        let mut found = BTreeMap::new();
        for _ in 0..4 {
            let delivery = frame(&mut ws).await.expect("an event");
            found.insert(id(&delivery), delivery["deliveryId"].clone());
        }
        // Asked one after the other, answered as they are done.
        for message in [
            json!({ "ack": found["0"] }),
            json!({ "ack": found["1"], "relaxed": true }),
            json!({ "extend": found["2"], "invisibleMs": 7_200_000 }),
            json!({ "ack": "no-such-delivery" }),
            json!({ "ack": 7 }),
        ] {
            ws.send(Message::text(message.to_string())).await.expect("sent");
        }
        let mut answers = Vec::new();
        for _ in 0..5 {
            answers.push(frame(&mut ws).await.expect("an answer"));
        }
        let has = |name: &str, value: &Value| answers.iter().find(|answer| answer[name] == *value);
        assert!(has("acked", &found["0"]).is_some() && has("acked", &found["1"]).is_some(), "{answers:?}");
        let extended = has("extended", &found["2"]).unwrap_or_else(|| panic!("{answers:?}"));
        let unknown = has("code", &json!("unknown_delivery")).unwrap_or_else(|| panic!("{answers:?}"));
        assert_eq!(unknown["deliveryId"], "no-such-delivery");
        assert!(has("code", &json!("invalid_message")).is_some(), "{answers:?}");
        assert!(!mesh.ack(&json!({ "deliveryId": found["0"] })).await, "it is settled");

        let nack = json!({ "nack": extended["deliveryId"], "delayMs": 0 });
        ws.send(Message::text(nack.to_string())).await.expect("sent");
        let (mut nacked, mut again) = (false, None);
        while !nacked || again.is_none() {
            let frame = frame(&mut ws).await.expect("an answer or an event");
            nacked |= frame["nacked"] == extended["deliveryId"];
            if frame["event"].is_object() {
                again = Some(frame);
            }
        }
        let again = again.expect("it came");
        assert_eq!((id(&again), &again["attempt"]), ("2".to_owned(), &json!(2)));
        assert!(mesh.ack(&again).await, "over HTTP as well");

        // What it had in hand when it went comes back.
        ws.close(None).await.expect("closed");
        drop(ws);
        other.subscribe("t", "LOAD_BALANCE").await;
        assert_eq!(ids(&other.next().await), ["3"]);
        host.stop().await;
    });
}

#[test]
fn hostile_websockets_cost_only_themselves() {
    run(async {
        let host = Host::start().await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe("t", "LOAD_BALANCE").await;
        let mut ws = socket(&host, "c", None).await.expect("it opens");
        for junk in ["", "x", "[]", "{\"ack\":{}}", "{\"ack\":\"a\",\"nack\":\"a\"}"] {
            ws.send(Message::text(junk)).await.expect("sent");
            assert_eq!(frame(&mut ws).await.expect("an answer")["code"], "invalid_message", "{junk}");
        }
        ws.send(Message::binary(vec![0, 1, 2])).await.expect("sent");
        assert_eq!(frame(&mut ws).await.expect("an answer")["code"], "invalid_message");
        // Too large: the host hangs up.
        drop(ws.send(Message::text("x".repeat(1 << 20))).await);
        let ended = async { while let Some(Ok(_)) = ws.next().await {} };
        tokio::time::timeout(SOON, ended).await.expect("it hangs up");
        let half = "GET /events/stream?clientId=c HTTP/1.1\r\nhost: h\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\
                    sec-websocket-version: 7\r\n\r\n";
        let answer = mesh.api.raw(half.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("invalid_upgrade"), "{answer}");
        let mut ws = socket(&host, "c", None).await.expect("others go on");
        assert!(mesh.publish("t", &event("fine")).await);
        assert_eq!(id(&frame(&mut ws).await.expect("an event")), "fine");
        host.stop().await;
    });
}

#[test]
fn a_client_gets_no_more_than_it_may_have_in_hand() {
    run(async {
        let host = Host::with(|config| {
            config.events.in_flight_max = 2;
            config.events.default_partitions = 1;
        })
        .await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe("t", "LOAD_BALANCE").await;
        let events: Vec<_> = (0..5).map(event).collect();
        mesh.publish_all("t", &events).await;
        let mut held = Vec::new();
        eventually("two", SOON, async || {
            held.extend(mesh.poll(100).await);
            (held.len() >= 2).then_some(())
        })
        .await;
        assert_eq!(held.len(), 2);
        assert_eq!(mesh.poll(50).await, Vec::<Value>::new());
        assert!(mesh.ack(&held[0]).await);
        assert_eq!(mesh.next().await.len(), 1);
        host.stop().await;
    });
}

#[test]
fn a_poll_waits_until_there_is_something_or_the_host_ends() {
    run(async {
        let host = Host::start().await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe("t", "LOAD_BALANCE").await;
        let polling = |mesh: &Mesh| {
            let mesh = mesh.clone();
            tokio::spawn(async move { mesh.poll(60_000).await })
        };
        let waiting = polling(&mesh);
        assert!(mesh.publish("t", &event("x")).await);
        let found = tokio::time::timeout(SOON, waiting).await.expect("woken").expect("it ends");
        assert_eq!(ids(&found), ["x"]);
        assert!(mesh.ack(&found[0]).await);

        // A poll, a stream and a socket meet the end of the host.
        let mut sse = Sse::open(&mesh.api, "c").await;
        let mut ws = socket(&host, "c", None).await.expect("it opens");
        let asking = tokio::spawn({
            let mesh = mesh.clone();
            async move { mesh.request("nobody", &event(1), 600_000).await }
        });
        let waiting = polling(&mesh);
        eventually("all of them wait", SOON, async || {
            let metrics = host.get("/metrics").await.text;
            let line = |line: &str| metrics.lines().any(|found| found == line);
            (line("fulcrum_polls_waiting 3") && line("fulcrum_requests_waiting 1")).then_some(())
        })
        .await;
        let stopping = tokio::spawn(host.stop());
        assert_eq!(
            tokio::time::timeout(SOON, waiting).await.expect("answered").expect("it ends"),
            [] as [Value; 0]
        );
        assert_eq!(frame(&mut ws).await, Err(CloseCode::Away));
        while let Some(block) = sse.block().await {
            if let Some(end) = block.strip_prefix("event: end\ndata: ") {
                assert!(end.contains("\"stopping\""), "{end}");
                break;
            }
            assert!(block.starts_with(':'), "{block}");
        }
        assert_eq!(sse.block().await, None);
        asking.await.expect("it ends").refused(503, "stopping");
        drop(ws);
        tokio::time::timeout(SOON, stopping).await.expect("it ends").expect("it stops");
    });
}

#[test]
fn acknowledged_events_stay_so_over_a_restart() {
    run(async {
        let host = Host::start().await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "invisibleMs": 3_600_000 })).await.ok();
        let events: Vec<_> = (0..8).map(event).collect();
        mesh.publish_all("t", &events).await;
        let mut found = BTreeMap::new();
        eventually("all", SOON, async || {
            found.extend(mesh.poll(200).await.into_iter().map(|delivery| (id(&delivery), delivery)));
            (found.len() == 8).then_some(())
        })
        .await;
        for n in [0, 3, 4, 7] {
            assert!(mesh.ack(&found[&n.to_string()]).await);
        }
        let old = found["1"].clone();
        let host = Host::in_folder(host.stop().await, |_| {}).await;
        let mesh = Mesh::new(&host, "c");
        assert!(!mesh.ack(&old).await, "its lease ended with the host");
        let mut rest = Vec::new();
        eventually("the rest", SOON, async || {
            rest.extend(mesh.poll(200).await);
            (rest.len() >= 4).then_some(())
        })
        .await;
        let mut found = ids(&rest);
        found.sort_unstable();
        assert_eq!(found, ["1", "2", "5", "6"]);
        host.stop().await;
    });
}

#[test]
fn what_happens_to_events_is_counted() {
    run(async {
        let host = Host::with(|config| config.events.default_partitions = 1).await;
        let mesh = Mesh::new(&host, "c");
        mesh.subscribe_with("t", "LOAD_BALANCE", &json!({ "group": "g", "maxDeliveries": 1 })).await.ok();
        mesh.publish_all("t", &[event(0), event(1), event(2)]).await;
        let mut held = Vec::new();
        eventually("three", SOON, async || {
            held.extend(mesh.poll(100).await);
            (held.len() == 3).then_some(())
        })
        .await;
        assert!(mesh.ack(&held[0]).await);
        host.post("/events/nack", &json!({ "deliveryId": held[1]["deliveryId"] })).await.ok();
        let expected = [
            "fulcrum_events_published_total 3",
            "fulcrum_deliveries_total{what=\"delivered\"} 3",
            "fulcrum_deliveries_total{what=\"acked\"} 1",
            "fulcrum_deliveries_total{what=\"nacked\"} 1",
            "fulcrum_deliveries_total{what=\"expired\"} 0",
            "fulcrum_deliveries_total{what=\"dead\"} 1",
            "fulcrum_message_groups{kind=\"shared\"} 1",
            "fulcrum_message_groups{kind=\"private\"} 0",
            "fulcrum_window_events{state=\"in_flight\"} 1",
            "fulcrum_windows_full 0",
            "fulcrum_polls_waiting 0",
            "fulcrum_requests_waiting 0",
            "fulcrum_message_group_lag{group=\"g\",topic=\"t\"} 1",
        ];
        eventually("every count", SOON, async || {
            let metrics = host.get("/metrics").await.text;
            let missing: Vec<_> =
                expected.iter().filter(|line| !metrics.lines().any(|found| found == **line)).collect();
            if !missing.is_empty() {
                println!("missing {missing:?}");
            }
            missing.is_empty().then_some(())
        })
        .await;
        host.stop().await;
    });
}

#[test]
fn bad_calls_are_refused() {
    run(async {
        let host = Host::start().await;
        Mesh::new(&host, "c").subscribe("t", "LOAD_BALANCE").await;
        let long = "x".repeat(257);
        let huge = "x".repeat(900_000);
        let mesh = |field: &str, value: Value| {
            let mut body = json!({ "clientId": "c", "topic": "t", "mode": "LOAD_BALANCE" });
            body[field] = value;
            body
        };
        let posts = [
            ("/events/publish", event(1), 400, "invalid_query"),
            ("/events/publish?topic=", event(1), 400, "invalid_query"),
            ("/events/publish?topic=a/b", event(1), 400, "invalid_value"),
            ("/events/publish?topic=t", json!({}), 400, "invalid_event"),
            ("/events/publish?topic=t", json!([event(1)]), 400, "invalid_event"),
            ("/events/publish-batch", json!([]), 400, "invalid_query"),
            ("/events/publish-batch?topic=t", event(1), 400, "invalid_body"),
            ("/events/publish-batch?topic=t", json!([1]), 400, "invalid_event"),
            ("/events/subscribe", json!({}), 400, "invalid_value"),
            ("/events/subscribe", json!([]), 400, "invalid_body"),
            ("/events/subscribe", mesh("clientId", json!(null)), 400, "invalid_value"),
            ("/events/subscribe", mesh("clientId", json!("")), 400, "invalid_value"),
            ("/events/subscribe", mesh("clientId", json!(long)), 400, "invalid_value"),
            ("/events/subscribe", mesh("clientId", json!("a\u{0}b")), 400, "invalid_value"),
            ("/events/subscribe", mesh("topic", json!(7)), 400, "invalid_value"),
            ("/events/subscribe", mesh("topic", json!(long)), 400, "invalid_value"),
            ("/events/subscribe", mesh("mode", json!("ALL")), 400, "invalid_value"),
            ("/events/subscribe", mesh("group", json!("a/b")), 400, "invalid_value"),
            ("/events/subscribe", mesh("invisibleMs", json!(999)), 400, "invalid_value"),
            ("/events/subscribe", mesh("invisibleMs", json!(43_200_001)), 400, "invalid_value"),
            ("/events/subscribe", mesh("maxDeliveries", json!(0)), 400, "invalid_value"),
            ("/events/subscribe", mesh("maxDeliveries", json!(1001)), 400, "invalid_value"),
            ("/events/subscribe", mesh("filters", json!([{ "sql": "1" }])), 400, "invalid_value"),
            ("/events/subscribe", mesh("filters", json!({})), 400, "invalid_value"),
            (
                "/events/subscribe",
                json!({ "clientId": "c", "topic": "t", "mode": "BROADCAST", "filters": [{ "exact": { "id": "1" } }] }),
                400,
                "invalid_value",
            ),
            ("/events/unsubscribe", json!({}), 400, "invalid_value"),
            ("/events/unsubscribe", json!({ "clientId": 7 }), 400, "invalid_value"),
            ("/events/ack", json!({}), 400, "invalid_value"),
            ("/events/ack", json!({ "deliveryId": "x", "deliveryIds": ["x"] }), 400, "invalid_value"),
            ("/events/ack", json!({ "deliveryIds": vec!["x"; 1001] }), 400, "invalid_value"),
            ("/events/ack", json!({ "deliveryIds": "x" }), 400, "invalid_body"),
            ("/events/ack", json!({ "deliveryIds": [7] }), 400, "invalid_body"),
            ("/events/ack", json!({ "deliveryId": 7 }), 400, "invalid_body"),
            ("/events/ack", json!({ "deliveryId": "" }), 404, "unknown_delivery"),
            ("/events/ack", json!({ "deliveryId": huge }), 404, "unknown_delivery"),
            ("/events/ack", json!({ "deliveryId": "1-2-3-4" }), 404, "unknown_delivery"),
            ("/events/ack", json!({ "deliveryId": "-1--1--1-zz" }), 404, "unknown_delivery"),
            (
                "/events/ack",
                json!({ "deliveryId": "18446744073709551616-4294967296-18446744073709551616-ffffffffffffffffff" }),
                404,
                "unknown_delivery",
            ),
            ("/events/ack", json!({ "deliveryId": "../../\u{0}\u{1F4A5}" }), 404, "unknown_delivery"),
            ("/events/nack", json!({}), 400, "invalid_value"),
            ("/events/nack", json!({ "deliveryId": "x" }), 404, "unknown_delivery"),
            ("/events/nack", json!({ "deliveryId": "x", "delayMs": -1 }), 400, "invalid_value"),
            ("/events/nack", json!({ "deliveryId": "x", "delayMs": "1" }), 400, "invalid_value"),
            ("/events/extend", json!({ "deliveryId": "x" }), 400, "invalid_value"),
            ("/events/extend", json!({ "deliveryId": "x", "invisibleMs": 60_000 }), 404, "unknown_delivery"),
            ("/events/request?topic=t&timeoutMs=0", event(1), 400, "invalid_query"),
            ("/events/request?topic=t&timeoutMs=600001", event(1), 400, "invalid_query"),
            ("/events/request", event(1), 400, "invalid_query"),
            ("/events/request?topic=t", json!({}), 400, "invalid_event"),
            ("/events/reply", json!({ "event": event(1) }), 400, "invalid_value"),
            ("/events/reply", json!({ "correlationId": 7, "event": event(1) }), 400, "invalid_value"),
            ("/events/reply", json!({ "correlationId": "x" }), 400, "invalid_value"),
            ("/events/reply", json!({ "correlationId": "x", "event": {} }), 400, "invalid_event"),
            ("/events/reply", json!([]), 400, "invalid_body"),
            ("/events/reply", json!({ "correlationId": huge, "event": event(1) }), 404, "unknown_request"),
            ("/events/dead-letters/redrive", json!({}), 400, "invalid_value"),
            ("/events/dead-letters/redrive", json!({ "topic": "t", "ids": "x" }), 400, "invalid_value"),
            ("/events/dead-letters/redrive", json!({ "topic": "t", "ids": [7] }), 400, "invalid_value"),
        ];
        for (path, body, status, code) in posts {
            host.post(path, &body).await.refused(status, code);
        }
        for (path, code) in [
            ("/events/poll", "invalid_query"),
            ("/events/poll?clientId=", "invalid_query"),
            ("/events/poll?clientId=%00", "invalid_query"),
            ("/events/poll?clientId=%FF", "invalid_query"),
            (&format!("/events/poll?clientId={long}"), "invalid_query"),
            ("/events/poll?clientId=c&max=0", "invalid_query"),
            ("/events/poll?clientId=c&max=1001", "invalid_query"),
            ("/events/poll?clientId=c&timeoutMs=60001", "invalid_query"),
            ("/events/poll?clientId=c&timeoutMs=-1", "invalid_query"),
            ("/events/stream", "invalid_query"),
            ("/events/dead-letters", "invalid_query"),
            ("/events/dead-letters?topic=t&max=0", "invalid_query"),
        ] {
            host.get(path).await.refused(400, code);
        }
        for path in
            ["/events/publish?topic=t", "/events/publish-batch?topic=t", "/events/reply", "/events/ack"]
        {
            let post = || host.request(Method::POST, path);
            host.send(post().header(CONTENT_TYPE, "text/plain").body("{}")).await.refused(415, "not_json");
            let broken = post().header(CONTENT_TYPE, "application/json").body("{");
            host.send(broken).await.refused(400, "invalid_json");
            let large = post().header(CONTENT_TYPE, "application/json").body("x".repeat((1 << 20) + 1));
            host.send(large).await.refused(413, "too_large");
        }
        for path in ["/events/subscribe", "/events/ack", "/events/request", "/events/publish-batch"] {
            host.get(path).await.refused(405, "method_not_allowed");
        }
        host.stop().await;
    });
}
