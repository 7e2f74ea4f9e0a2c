//! Turns of sessions over real HTTP, with a small agent and a small client.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::*;

/// The lines of a stream of server-sent events.
struct Stream {
    response: reqwest::Response,
    text: String,
}

impl Stream {
    async fn open(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.expect("the host answers");
        assert_eq!(response.status(), 200, "{:?}", response.text().await);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// The next event's data, `None` at the end; comments are skipped.
    async fn next(&mut self) -> Option<Value> {
        tokio::time::timeout(SOON, self.read()).await.expect("something comes in time")
    }

    async fn read(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.strip_prefix("data: ").map(|data| serde_json::from_str(data).expect("JSON"));
                self.text = rest.to_owned();
                if data.is_some() {
                    return data;
                }
                continue;
            }
            let bytes = self.response.chunk().await.expect("the stream is complete")?;
            self.text.push_str(std::str::from_utf8(&bytes).expect("the tests write ASCII"));
        }
    }

    /// The rest, shown like [`shown`].
    async fn rest(mut self) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(line) = self.next().await {
            found.push(shown(&line));
        }
        found
    }
}

/// A line as `seq:chunk`, with `!` and the error after a done chunk; it must have exactly seven fields.
#[track_caller]
fn shown(line: &Value) -> String {
    let names: Vec<_> = line.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(names, ["chunk", "done", "error", "eventType", "meta", "seq", "sessionId"]);
    let end = match (&line["done"], &line["error"]) {
        (Value::Bool(true), error) => format!("!{}", error.as_str().unwrap_or_default()),
        (Value::Bool(false), Value::Null) => String::new(),
        _ => panic!("{line}"),
    };
    format!("{}:{}{end}", line["seq"], line["chunk"].as_str().expect("a text"))
}

impl Api {
    async fn agent(&self, id: &str) {
        self.post("/agent/register", &json!({ "agentId": id, "capacity": 100 })).await.ok();
        self.post("/agent/ready", &json!({ "agentId": id })).await.ok();
    }

    /// Opens a session; returns its id.
    async fn session(&self, client: &str) -> String {
        let opened = self.post("/session/open", &json!({ "clientId": client })).await.ok();
        opened["sessionId"].as_str().expect("a text").to_owned()
    }

    async fn ask(&self, session: &str, body: &Value) -> Stream {
        Stream::open(self.request(Method::POST, &format!("/session/stream/{session}")).json(body)).await
    }

    async fn refused_turn(&self, session: &str, body: &Value) -> Answer {
        self.post(&format!("/session/stream/{session}"), body).await
    }

    async fn subscribe(&self, session: &str) -> Stream {
        Stream::open(self.request(Method::GET, &format!("/session/subscribe/{session}"))).await
    }

    async fn agent_stream(&self, agent: &str) -> Stream {
        Stream::open(self.request(Method::GET, &format!("/agent/stream?agentId={agent}"))).await
    }

    async fn poll(&self, agent: &str, wait_ms: u64) -> Vec<Value> {
        let answer = self.get(&format!("/agent/poll?agentId={agent}&timeoutMs={wait_ms}")).await.ok();
        answer.as_array().expect("a list").clone()
    }

    /// Waits for the only thing that comes.
    async fn take(&self, agent: &str) -> Value {
        let mut orders = self.poll(agent, 20_000).await;
        assert_eq!(orders.len(), 1, "{orders:?}");
        orders.remove(0)
    }

    async fn publish_chunk(&self, session: &str, body: &Value) -> Answer {
        self.post(&format!("/session/publish/{session}"), body).await
    }

    async fn answer(&self, order: &Value, seq: u64, chunk: &str, done: bool) {
        let body = json!({ "turnId": order["turnId"], "seq": seq, "chunk": chunk, "done": done });
        let answer = self.publish_chunk(order["sessionId"].as_str().expect("a text"), &body).await;
        assert_eq!((answer.status, &answer.body), (201, &json!({ "status": "published" })), "{answer:?}");
    }

    async fn metric(&self, line: &str) -> u64 {
        let text = self.get("/metrics").await.text;
        let value = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {line} in\n{text}"))
    }
}

fn why() -> Value {
    json!({ "prompt": "why?" })
}

#[test]
fn a_client_asks_and_an_agent_answers() {
    run(async {
        let host = Host::start().await;
        host.agent("a").await;
        let session = host.session("c").await;
        // The agent waits before there is anything.
        let waiting = host.another();
        let taken = tokio::spawn(async move { waiting.take("a").await });
        let ask = json!({ "prompt": "why?", "model": "m", "timeoutMs": 30_000 });
        let mut answer = host.ask(&session, &ask).await;
        let order = taken.await.expect("it comes");
        let left = order["deadlineMs"].as_u64().expect("a number");
        assert!((1..=30_000).contains(&left), "{order}");
        let names: Vec<_> = order.as_object().expect("an object").keys().collect();
        assert_eq!(names, ["deadlineMs", "model", "prompt", "sessionId", "turnId"]);
        assert_eq!((&order["sessionId"], &order["prompt"]), (&json!(session), &json!("why?")));
        assert_eq!(order["model"], "m");
        assert_eq!(host.metric("fulcrum_turns_running").await, 1);

        host.answer(&order, 0, "be", false).await;
        let first = answer.next().await.expect("a chunk");
        assert_eq!((&first["sessionId"], shown(&first)), (&json!(session), "0:be".to_owned()));
        host.answer(&order, 1, "cause", false).await;
        host.answer(&order, 2, ".", true).await;
        assert_eq!(answer.rest().await, ["1:cause", "2:.!"]);
        assert_eq!(host.poll("a", 0).await, [] as [Value; 0]);
        assert_eq!(host.metric("fulcrum_turns_running").await, 0);
        assert_eq!(host.metric("fulcrum_turns_total{outcome=\"ok\"}").await, 1);

        let services = host.services();
        let traffic = services.meter.client("c", services.clock.nanos());
        assert!(traffic.inflow > 0.0 && traffic.outflow > 0.0, "{traffic:?}");

        // What the agent says failed has failed.
        let answer = host.ask(&session, &why()).await;
        let order = host.take("a").await;
        assert_eq!(order["model"], Value::Null);
        let body = json!({ "turnId": order["turnId"], "seq": 0, "done": true, "error": "no idea" });
        assert_eq!(host.publish_chunk(&session, &body).await.status, 201);
        assert_eq!(answer.rest().await, ["0:!no idea"]);
        assert_eq!(host.metric("fulcrum_turns_total{outcome=\"failed\"}").await, 1);
        host.stop().await;
    });
}

#[test]
fn two_clients_get_their_own_answers() {
    run(async {
        let host = Host::start().await;
        host.agent("a").await;
        let mut orders = host.agent_stream("a").await;
        let mut asked = Vec::new();
        for client in ["c1", "c2"] {
            let session = host.session(client).await;
            let answer = host.ask(&session, &json!({ "prompt": client })).await;
            asked.push((orders.next().await.expect("a turn"), answer));
        }
        for seq in 0..20 {
            for (order, _) in &asked {
                host.answer(order, seq, order["prompt"].as_str().expect("a text"), seq == 19).await;
            }
        }
        for (order, answer) in asked {
            let prompt = order["prompt"].as_str().expect("a text");
            let mut expected: Vec<_> = (0..20).map(|seq| format!("{seq}:{prompt}")).collect();
            expected[19].push('!');
            assert_eq!(answer.rest().await, expected);
        }
        drop(orders);
        host.stop().await;
    });
}

#[test]
fn a_second_turn_waits_for_the_end_of_the_first() {
    run(async {
        let host = Host::start().await;
        host.agent("a").await;
        let session = host.session("c").await;
        let answer = host.ask(&session, &why()).await;
        host.refused_turn(&session, &why()).await.refused(409, "turn_running");
        let order = host.take("a").await;
        host.refused_turn(&session, &why()).await.refused(409, "turn_running");
        host.answer(&order, 0, "x", true).await;
        let second = host.ask(&session, &why()).await;
        assert_eq!(answer.rest().await, ["0:x!"]);
        host.answer(&host.take("a").await, 0, "y", true).await;
        assert_eq!(second.rest().await, ["0:y!"]);
        host.refused_turn("a:1", &why()).await.refused(404, "unknown_session");
        host.stop().await;
        let host = Host::with(|config| config.session.require_agent = false).await;
        let alone = host.session("c").await;
        host.refused_turn(&alone, &why()).await.refused(409, "session_has_no_agent");
        host.stop().await;
    });
}

#[test]
fn a_turn_ends_at_its_deadline() {
    run(async {
        let host = Host::with(|config| config.session.turn_timeout_ms = 1500).await;
        host.agent("a").await;
        let session = host.session("c").await;
        for body in [json!({ "prompt": "why?", "timeoutMs": 1400 }), why()] {
            let answer = host.ask(&session, &body).await;
            let order = host.take("a").await;
            host.answer(&order, 0, "well", false).await;
            assert_eq!(answer.rest().await, ["0:well", "1:!the turn did not end in time"]);
            assert_eq!(host.take("a").await, json!({ "turnId": order["turnId"], "cancelled": true }));
            let late = json!({ "turnId": order["turnId"], "seq": 1, "chunk": "x" });
            host.publish_chunk(&session, &late).await.refused(409, "turn_over");
        }
        // One that nobody takes.
        assert_eq!(host.ask(&session, &why()).await.rest().await, ["0:!the turn did not end in time"]);
        assert_eq!(host.poll("a", 0).await, [] as [Value; 0]);
        assert_eq!(host.metric("fulcrum_turns_total{outcome=\"timeout\"}").await, 3);
        host.stop().await;
    });
}

#[test]
fn a_turn_ends_with_its_agent_or_its_session() {
    run(async {
        let host = Host::start().await;
        host.agent("a").await;
        let (one, two) = (host.session("c").await, host.session("c").await);
        let taken = host.ask(&one, &why()).await;
        let mut orders = host.agent_stream("a").await;
        let order = orders.next().await.expect("a turn");
        host.post(&format!("/session/close/{one}"), &json!({})).await.ok();
        assert_eq!(taken.rest().await, ["0:!the session was closed"]);
        let cancelled = orders.next().await.expect("a notice");
        assert_eq!(cancelled, json!({ "turnId": order["turnId"], "cancelled": true }));
        let taken = host.ask(&two, &why()).await;
        orders.next().await.expect("a turn");
        host.post("/agent/unregister", &json!({ "agentId": "a" })).await.ok();
        assert_eq!(taken.rest().await, ["0:!the agent is gone"]);
        assert_eq!(orders.next().await, None, "its stream ends");
        host.get("/agent/poll?agentId=a").await.refused(404, "unknown_agent");
        host.get("/agent/stream?agentId=a").await.refused(404, "unknown_agent");
        host.stop().await;
    });
}

#[test]
fn a_turn_ends_when_its_agent_falls_silent() {
    run(async {
        let host = Host::with(|config| {
            config.heartbeat.interval_ms = 1900;
            config.heartbeat.ttl_ms = 2000;
        })
        .await;
        host.agent("a").await;
        let mut orders = host.agent_stream("a").await;
        // Polls are signs of life, also while they wait.
        assert_eq!(host.poll("a", 2500).await, [] as [Value; 0]);
        let session = host.session("c").await;
        let answer = host.ask(&session, &why()).await;
        // An open stream is none.
        assert_eq!(answer.rest().await, ["0:!the agent is gone"]);
        while orders.next().await.is_some() {}
        assert_eq!(host.metric("fulcrum_turns_total{outcome=\"agent_gone\"}").await, 1);
        host.stop().await;
    });
}

#[test]
fn a_client_that_leaves_cancels_its_turn() {
    run(async {
        let host = Host::start().await;
        host.agent("a").await;
        let session = host.session("c").await;
        let client = host.another();
        let answer = client.ask(&session, &why()).await;
        let order = host.take("a").await;
        drop(answer);
        assert_eq!(host.take("a").await, json!({ "turnId": order["turnId"], "cancelled": true }));
        let late = json!({ "turnId": order["turnId"], "seq": 0, "chunk": "x" });
        host.publish_chunk(&session, &late).await.refused(409, "turn_over");
        // Not taken yet: the agent never hears of it.
        drop(client.ask(&session, &why()).await);
        let gone = async || (host.metric("fulcrum_turns_running").await == 0).then_some(());
        eventually("the turn is cancelled", SOON, gone).await;
        assert_eq!(host.poll("a", 0).await, [] as [Value; 0]);
        assert_eq!(host.metric("fulcrum_turns_total{outcome=\"cancelled\"}").await, 2);
        host.stop().await;
    });
}

#[test]
fn a_host_that_stops_tells_everybody() {
    run(async {
        let host = Host::with(|config| config.host.drain_ms = 60_000).await;
        host.agent("a").await;
        let session = host.session("c").await;
        let answer = host.ask(&session, &why()).await;
        host.answer(&host.take("a").await, 0, "x", false).await;
        let subscriber = host.subscribe(&session).await;
        let mut orders = host.agent_stream("a").await;
        let poller = host.another();
        let poll = tokio::spawn(async move { poller.poll("a", 60_000).await });
        let begun = tokio::time::Instant::now();
        let stopped = tokio::spawn(host.stop());
        assert_eq!(answer.rest().await, ["0:x", "1:!host is stopping"]);
        assert_eq!(subscriber.rest().await, ["0:x", "1:!host is stopping"]);
        while orders.next().await.is_some() {}
        drop(poll.await);
        stopped.await.expect("it stops");
        assert!(begun.elapsed() < SOON, "nothing holds it up");
    });
}

#[test]
fn a_subscriber_gets_what_was_and_what_comes() {
    run(async {
        let host = Host::with(|config| config.session.replay_chunks = 3).await;
        host.agent("a").await;
        let session = host.session("c").await;
        let message = json!({ "text": "hello" });
        assert_eq!(host.publish_chunk(&session, &message).await.status, 201);
        let plain = host.request(Method::POST, &format!("/session/publish/{session}")).body("plain");
        assert_eq!(host.send(plain).await.status, 201);
        let mut subscriber = host.another().subscribe(&session).await;
        let first = subscriber.next().await.expect("the first message");
        assert_eq!(
            (shown(&first), &first["eventType"]),
            (r#"0:{"text":"hello"}"#.to_owned(), &json!("message"))
        );
        assert_eq!(shown(&subscriber.next().await.expect("the second message")), "1:plain");
        host.get(&format!("/session/subscribe/{session}")).await.refused(409, "already_subscribed");

        let answer = host.ask(&session, &why()).await;
        let order = host.take("a").await;
        host.answer(&order, 0, "x", false).await;
        host.answer(&order, 1, "y", true).await;
        assert_eq!(answer.rest().await, ["0:x", "1:y!"]);
        let live = [subscriber.next().await.expect("a chunk"), subscriber.next().await.expect("a chunk")];
        assert_eq!([shown(&live[0]), shown(&live[1])], ["2:x", "3:y!"]);
        assert_eq!(live[0]["eventType"], Value::Null);

        drop(subscriber);
        let again = async || {
            let request = host.request(Method::GET, &format!("/session/subscribe/{session}"));
            let response = request.send().await.expect("the host answers");
            (response.status() == 200).then_some(Stream { response, text: String::new() })
        };
        let mut subscriber = eventually("the first one is gone", SOON, again).await;
        let gap = subscriber.next().await.expect("a gap");
        assert_eq!((&gap["eventType"], &gap["meta"]), (&json!("gap"), &json!({ "missed": 1 })));
        assert_eq!(shown(&gap), "1:");
        host.post(&format!("/session/close/{session}"), &json!({})).await.ok();
        assert_eq!(subscriber.rest().await, ["1:plain", "2:x", "3:y!"]);
        host.get(&format!("/session/subscribe/{session}")).await.refused(404, "unknown_session");
        host.stop().await;
    });
}

#[test]
fn a_slow_client_holds_its_agent_up_and_loses_nothing() {
    run(async {
        let host = Host::with(|config| config.session.chunk_wait_ms = 100).await;
        host.agent("a").await;
        let session = host.session("c").await;
        let mut answer = host.another().ask(&session, &why()).await;
        let order = host.take("a").await;
        // The machine's own buffers hold some, too.
        let text = "x".repeat(200_000);
        let mut seq = 0;
        let full = loop {
            let body = json!({ "turnId": order["turnId"], "seq": seq, "chunk": text });
            let answer = host.publish_chunk(&session, &body).await;
            if answer.status != 201 {
                break answer;
            }
            seq += 1;
            assert!(seq < 1000, "nothing holds it up");
        };
        full.refused(429, "slow_client");
        assert_eq!(full.headers["retry-after"], "1");
        for read in 0..seq {
            let line = answer.next().await.expect("a chunk");
            assert_eq!((&line["seq"], line["chunk"].as_str().map(str::len)), (&json!(read), Some(200_000)));
        }
        // The same chunk again.
        host.answer(&order, seq, "y", false).await;
        host.answer(&order, seq + 1, "", true).await;
        assert_eq!(answer.rest().await, [format!("{seq}:y"), format!("{}:!", seq + 1)]);
        host.stop().await;
    });
}

#[test]
fn hostile_bodies_are_refused() {
    run(async {
        let host = Host::with(|config| config.session.chunk_bytes_max = 1024).await;
        host.agent("a").await;
        let (session, other) = (host.session("c").await, host.session("d").await);
        let long = "x".repeat(257);
        for (body, code) in [
            (json!({}), "invalid_body"),
            (json!([]), "invalid_body"),
            (json!({ "prompt": 1 }), "invalid_body"),
            (json!({ "prompt": "" }), "invalid_value"),
            (json!({ "prompt": "p", "model": long }), "invalid_value"),
            (json!({ "prompt": "p", "model": "a\nb" }), "invalid_value"),
            (json!({ "prompt": "p", "timeoutMs": 0 }), "invalid_value"),
            (json!({ "prompt": "p", "timeoutMs": 600_001 }), "invalid_value"),
            (json!({ "prompt": "p", "timeoutMs": -1 }), "invalid_body"),
        ] {
            host.refused_turn(&session, &body).await.refused(400, code);
        }
        host.refused_turn("%FF", &why()).await.refused(400, "invalid_path");
        let answer = host.ask(&session, &why()).await;
        let _other = host.ask(&other, &why()).await;
        let orders = host.poll("a", 0).await;
        let turn = &orders[0]["turnId"];
        let large = "x".repeat(1025);
        for (body, status, code) in [
            (json!({ "turnId": turn }), 400, "invalid_body"),
            (json!({ "turnId": 1, "seq": 0 }), 400, "invalid_body"),
            (json!({ "turnId": turn, "seq": -1 }), 400, "invalid_body"),
            (json!({ "turnId": turn, "seq": 0, "chunk": ["x"] }), 400, "invalid_body"),
            (json!({ "turnId": turn, "seq": 0, "done": "yes" }), 400, "invalid_body"),
            (json!({ "turnId": turn, "seq": 0, "error": "e" }), 400, "invalid_value"),
            (json!({ "turnId": turn, "seq": 0, "chunk": large }), 413, "too_large"),
            (json!({ "turnId": turn, "seq": 0, "done": true, "error": large }), 413, "too_large"),
            (json!({ "text": large }), 413, "too_large"),
            (json!({ "text": "x".repeat(10_000) }), 413, "too_large"),
            (json!({ "turnId": "x", "seq": 0 }), 404, "unknown_turn"),
            (json!({ "turnId": orders[1]["turnId"], "seq": 0 }), 404, "unknown_turn"),
            (json!({ "turnId": turn, "seq": u64::MAX }), 409, "seq_not_next"),
            (json!({ "turnId": turn, "seq": 1, "done": true }), 409, "seq_not_next"),
        ] {
            let refused = host.publish_chunk(&session, &body).await;
            refused.refused(status, code);
            if code == "seq_not_next" {
                assert_eq!(refused.body["nextSeq"], 0);
            }
        }
        let nobody = json!({ "turnId": turn, "seq": 0 });
        host.publish_chunk("a:1", &nobody).await.refused(404, "unknown_session");
        host.publish_chunk("a:1", &json!({ "text": "x" })).await.refused(404, "unknown_session");
        let publish = || host.request(Method::POST, &format!("/session/publish/{session}"));
        let broken = publish().header("content-type", "application/json").body("{\"turnId\":");
        host.send(broken).await.refused(400, "invalid_json");
        host.send(publish().body(vec![0xff])).await.refused(400, "invalid_body");
        host.send(publish()).await.refused(400, "invalid_body");
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        assert_eq!(host.send(publish().body(deep)).await.status, 201, "it is a text");

        for query in [
            "",
            "agentId=",
            "agentId=a&max=0",
            "agentId=a&max=1001",
            "agentId=a&timeoutMs=60001",
            "agentId=a&max=x",
        ] {
            host.get(&format!("/agent/poll?{query}")).await.refused(400, "invalid_query");
        }
        host.get("/agent/stream").await.refused(400, "invalid_query");
        host.get("/agent/poll?agentId=nobody").await.refused(404, "unknown_agent");
        // Nothing of all this reached the client.
        host.answer(&orders[0], 0, "x", true).await;
        assert_eq!(answer.rest().await, ["0:x!"]);
        host.stop().await;
    });
}
