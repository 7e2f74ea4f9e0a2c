//! A client and an agent as EventMesh's SDK has them, through one whole story: where to go, stay there, events,
//! turns, and what to do when the instance is gone. They know EventMesh's calls and fields, and nothing of ours.

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Host, SOON, eventually, run};

const EVENT: &str = "application/cloudevents+json";
const BATCH: &str = "application/cloudevents-batch+json";

/// Makes calls to one place after the other.
#[derive(Clone)]
struct Caller {
    http: reqwest::Client,
    url: String,
}

impl Caller {
    fn new(url: &str) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(SOON * 2).build();
        Self { http: http.expect("a client needs nothing"), url: url.to_owned() }
    }

    /// Answers status and body (null if it is no JSON); none if nobody is there.
    async fn send(&self, method: Method, path: &str, kind: &str, body: String) -> Option<(u16, Value)> {
        let request = self.http.request(method, format!("{}{path}", self.url));
        let answer = request.header(CONTENT_TYPE, kind).body(body).send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, serde_json::from_slice(&answer.bytes().await.ok()?).unwrap_or_default()))
    }

    async fn get(&self, path: &str) -> Option<(u16, Value)> {
        self.send(Method::GET, path, "application/json", String::new()).await
    }

    async fn post(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        self.send(Method::POST, path, "application/json", body.to_string()).await
    }

    /// Returns the body of an answer that must come, with this status.
    #[track_caller]
    fn expect(answer: Option<(u16, Value)>, status: u16) -> Value {
        let (found, body) = answer.expect("the host answers");
        assert_eq!(found, status, "{body}");
        body
    }

    /// Returns the data of server-sent events: all there are until `is_last`, or until the stream ends.
    async fn events(&self, request: reqwest::RequestBuilder, is_last: fn(&Value) -> bool) -> Vec<Value> {
        let mut answer = request.send().await.expect("the host answers");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let (mut text, mut found) = (String::new(), Vec::new());
        loop {
            while let Some((line, rest)) = text.split_once('\n') {
                if let Some(data) = line.strip_prefix("data: ") {
                    found.push(serde_json::from_str(data).unwrap_or_else(|_| panic!("{line}")));
                    if found.last().is_some_and(is_last) {
                        return found;
                    }
                }
                text = rest.to_owned();
            }
            let chunk = tokio::time::timeout(SOON, answer.chunk()).await.expect("something comes in time");
            let Some(chunk) = chunk.expect("the stream is complete") else { return found };
            text.push_str(std::str::from_utf8(&chunk).expect("the tests write ASCII"));
        }
    }
}

/// An application: asks the gateway where to go, and stays there.
struct Client {
    gateway: Caller,
    pinned: Caller,
    id: &'static str,
    session: String,
}

impl Client {
    fn new(gateway: &str, id: &'static str) -> Self {
        Self { gateway: Caller::new(gateway), pinned: Caller::new(gateway), id, session: String::new() }
    }

    /// Goes where the gateway says, but not to `failed`.
    async fn connect(&mut self, failed: &str) {
        let path = format!("/session/recommend?clientId={}&exclude={failed}", self.id);
        let answer = Caller::expect(self.gateway.get(&path).await, 200);
        self.pin(&answer);
    }

    fn pin(&mut self, answer: &Value) {
        let url = answer["instanceUrl"].as_str().expect("a text");
        if !url.is_empty() && url != self.pinned.url {
            self.pinned = Caller::new(url);
        }
    }

    /// Opens a session where it is; false if nobody is there.
    async fn open(&mut self, model: &str) -> bool {
        let body = json!({ "clientId": self.id, "model": model });
        let Some(answer) = self.pinned.post("/session/open", &body).await else { return false };
        let opened = Caller::expect(Some(answer), 200);
        assert_eq!(fields(&opened), ["agentId", "instanceUrl", "sessionId"]);
        let agent = opened["agentId"].as_str().expect("a text");
        opened["sessionId"].as_str().expect("a text").clone_into(&mut self.session);
        assert!(self.session.starts_with(&format!("{agent}:")), "{opened}");
        self.pin(&opened);
        true
    }

    async fn subscribe(&mut self, topic: &str, mode: &str) {
        let body = json!({ "clientId": self.id, "topic": topic, "mode": mode });
        let subscribed = Caller::expect(self.pinned.post("/events/subscribe", &body).await, 200);
        assert!(!subscribed["subscriptionId"].as_str().expect("a text").is_empty(), "{subscribed}");
        self.pin(&subscribed);
    }

    async fn unsubscribe(&self, body: Value) -> bool {
        let answer = Caller::expect(self.pinned.post("/events/unsubscribe", &body).await, 200);
        answer["removed"].as_bool().expect("a boolean")
    }

    async fn publish(&self, topic: &str, event: &Value) {
        let path = format!("/events/publish?topic={topic}");
        let answer = self.pinned.send(Method::POST, &path, EVENT, event.to_string()).await;
        assert!(Caller::expect(answer, 202)["status"].is_string());
    }

    async fn publish_batch(&self, topic: &str, events: &Value) {
        let path = format!("/events/publish-batch?topic={topic}");
        let answer = self.pinned.send(Method::POST, &path, BATCH, events.to_string()).await;
        assert!(Caller::expect(answer, 202)["status"].is_string());
    }

    async fn poll(&self, timeout_ms: u64) -> Vec<Value> {
        let path = format!("/events/poll?clientId={}&max=100&timeoutMs={timeout_ms}", self.id);
        let answer = Caller::expect(self.pinned.get(&path).await, 200);
        answer.as_array().expect("a list").clone()
    }

    async fn ack(&self, delivery: &Value) -> u16 {
        let body = json!({ "deliveryId": delivery["deliveryId"] });
        self.pinned.post("/events/ack", &body).await.expect("the host answers").0
    }

    /// Polls and acknowledges until there were so many events; returns them.
    async fn take(&self, count: usize) -> Vec<Value> {
        let mut taken = Vec::new();
        eventually(format!("{} gets {count} events", self.id), SOON, async || {
            for mut delivery in self.poll(1000).await {
                assert_eq!(self.ack(&delivery).await, 200);
                taken.push(delivery["event"].take());
            }
            (count <= taken.len()).then_some(())
        })
        .await;
        taken
    }

    /// The event stream's next delivery.
    async fn next_of_stream(&self) -> Value {
        let request = self.pinned.http.get(format!("{}/events/stream?clientId={}", self.pinned.url, self.id));
        self.pinned.events(request, |_| true).await.remove(0)
    }

    async fn request(&self, topic: &str, event: &Value) -> Value {
        let path = format!("/events/request?topic={topic}&timeoutMs=30000");
        Caller::expect(self.pinned.send(Method::POST, &path, EVENT, event.to_string()).await, 200)
    }

    async fn reply(&self, asked: &Value, event: &Value) -> u16 {
        let replyto = asked["replyto"].as_str().expect("a text");
        let url = replyto.strip_suffix("/events/reply").expect("the call for replies");
        let body = json!({ "correlationId": asked["correlationid"], "event": event });
        Caller::new(url).post("/events/reply", &body).await.expect("the host answers").0
    }

    /// Asks the agent; returns the chunks as its parser reads them.
    async fn turn(&self, prompt: &str) -> Vec<Value> {
        let url = format!("{}/session/stream/{}", self.pinned.url, self.session);
        let body = json!({ "prompt": prompt, "model": "echo", "timeoutMs": 30_000 });
        let request = self.pinned.http.post(url).json(&body);
        let lines = self.pinned.events(request, |line| line["done"] == true).await;
        lines.iter().for_each(parse);
        lines
    }

    /// Reads so much of what the session saw, from the head on.
    async fn replay(&self) -> Vec<Value> {
        let url = format!("{}/session/subscribe/{}", self.pinned.url, self.session);
        let lines =
            self.pinned.events(self.pinned.http.get(url), |line| line["eventType"] == "message").await;
        lines.iter().for_each(parse);
        lines
    }

    async fn publish_on_session(&self, text: &str) {
        let path = format!("/session/publish/{}", self.session);
        Caller::expect(self.pinned.send(Method::POST, &path, "text/plain", text.to_owned()).await, 201);
    }

    async fn close(&self) -> u16 {
        let path = format!("/session/close/{}", self.session);
        self.pinned.post(&path, &json!({})).await.expect("the host answers").0
    }
}

/// Reads a line as EventMesh's parser does, which takes these fields and no other.
#[track_caller]
fn parse(line: &Value) {
    const KNOWN: [&str; 7] = ["chunk", "done", "error", "eventType", "meta", "seq", "sessionId"];
    assert!(fields(line).iter().all(|field| KNOWN.contains(field)), "{line}");
    assert!(line["seq"].is_u64() && line["done"].is_boolean() && line["chunk"].is_string(), "{line}");
}

fn fields(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn text_of(lines: &[Value]) -> String {
    lines.iter().map(|line| line["chunk"].as_str().expect("a text")).collect()
}

/// Serves sessions: answers every prompt word by word.
struct Agent {
    caller: Caller,
    id: String,
    serving: JoinHandle<()>,
}

impl Agent {
    async fn start(url: &str, id: &str) -> Self {
        let (caller, id) = (Caller::new(url), id.to_owned());
        let unknown = json!({ "agentId": id });
        Caller::expect(caller.post("/agent/ready", &unknown).await, 404);
        let body = json!({ "agentId": id, "capabilities": ["echo"], "capacity": 4 });
        let registered = Caller::expect(caller.post("/agent/register", &body).await, 200);
        assert_eq!(fields(&registered), ["clientParent", "parent"]);
        let ready = Caller::expect(caller.post("/agent/ready", &json!({ "agentId": id })).await, 200);
        assert!(ready["status"].is_string());
        let serving = tokio::spawn(Self::serve(caller.clone(), id.clone()));
        Self { caller, id, serving }
    }

    async fn serve(caller: Caller, id: String) {
        loop {
            let beat = json!({ "agentId": id, "activeSessions": 1 });
            // Nobody there: the host is gone, and so is this agent's work.
            let Some(answer) = caller.post("/agent/heartbeat", &beat).await else { return };
            if answer.0 == 404 {
                return;
            }
            let path = format!("/agent/poll?agentId={id}&max=10&timeoutMs=1000");
            let Some((200, orders)) = caller.get(&path).await else { return };
            for order in orders.as_array().expect("a list") {
                Self::answer(&caller, order).await;
            }
        }
    }

    async fn answer(caller: &Caller, order: &Value) {
        let path = format!("/session/publish/{}", order["sessionId"].as_str().expect("a text"));
        let prompt = order["prompt"].as_str().expect("a text");
        let words: Vec<_> = prompt.split_inclusive(' ').collect();
        for (seq, word) in words.iter().enumerate() {
            let body = json!({ "turnId": order["turnId"], "seq": seq, "chunk": word,
                "done": seq + 1 == words.len() });
            Caller::expect(caller.post(&path, &body).await, 201);
        }
    }

    async fn stop(self) {
        let body = json!({ "agentId": self.id });
        let answer = Caller::expect(self.caller.post("/agent/unregister", &body).await, 200);
        assert!(answer["status"].is_string());
        self.serving.await.expect("no panic");
        let beat = json!({ "agentId": self.id, "activeSessions": 0 });
        Caller::expect(self.caller.post("/agent/heartbeat", &beat).await, 404);
    }
}

fn event(id: &str) -> Value {
    json!({ "specversion": "1.0", "id": id, "source": "/shop", "type": "order.made",
        "datacontenttype": "application/json", "data": { "total": 12.5 } })
}

/// An instance that says where it is.
async fn instance() -> Host {
    Host::with(|config| config.host.advertise = Some("127.0.0.1:0".parse().expect("an address"))).await
}

#[test]
fn a_client_of_eventmesh_goes_through_its_whole_life() {
    run(async {
        let gateway = Host::start().await;
        let (first, second) = (instance().await, instance().await);
        for (host, id, sessions) in [(&first, "first", 0), (&second, "second", 50)] {
            let body = json!({ "address": host.url().strip_prefix("http://"), "activeSessions": sessions,
                "inflowBytesPerSec": 0, "outflowBytesPerSec": 0, "cpuLoad": 0 });
            gateway.put(&format!("/instances/{id}"), &body).await.ok();
        }
        let agent = Agent::start(first.url(), "agent-1").await;
        let spare = Agent::start(second.url(), "agent-2").await;

        // Where to go: to the less loaded one, and from then on only there.
        let mut client = Client::new(gateway.url(), "shop");
        client.connect("").await;
        assert_eq!(client.pinned.url, first.url());
        assert!(client.open("echo").await);
        assert!(client.session.starts_with("agent-1:"));
        client.subscribe("orders", "LOAD_BALANCE").await;
        assert_eq!(client.pinned.url, first.url(), "it stays");

        // Events.
        client.publish("orders", &event("1")).await;
        client.publish_batch("orders", &json!([event("2"), event("3")])).await;
        let mut taken = client.take(3).await;
        taken.sort_by_key(|event| event["id"].as_str().map(str::to_owned));
        assert_eq!(taken, [event("1"), event("2"), event("3")]);
        client.publish("orders", &event("4")).await;
        let delivery = client.next_of_stream().await;
        assert_eq!(delivery["event"], event("4"));
        assert_eq!((client.ack(&delivery).await, client.ack(&delivery).await), (200, 404));
        assert_eq!(client.poll(0).await, Vec::<Value>::new());
        let broken = json!({ "id": "no specversion" }).to_string();
        let refused = client.pinned.send(Method::POST, "/events/publish?topic=orders", EVENT, broken).await;
        Caller::expect(refused, 400);

        // Somebody else answers its question.
        let mut clerk = Client::new(first.url(), "clerk");
        clerk.subscribe("quotes", "BROADCAST").await;
        let answering = async {
            let asked = clerk.take(1).await.remove(0);
            let first = clerk.reply(&asked, &event("answer")).await;
            let late = clerk.reply(&asked, &event("late")).await;
            (asked, first, late)
        };
        let question = event("question");
        let (answer, (asked, first_reply, late)) =
            tokio::join!(client.request("quotes", &question), answering);
        assert_eq!((&answer, &asked["id"]), (&event("answer"), &question["id"]));
        assert_eq!((first_reply, late), (200, 404));

        // A turn, another one on the same session, a message, and all of it again from the head.
        let lines = client.turn("why is it so?").await;
        assert_eq!((lines.len(), text_of(&lines)), (4, "why is it so?".to_owned()));
        assert!(lines.iter().enumerate().all(|(seq, line)| line["seq"] == seq && line["error"].is_null()));
        assert_eq!(text_of(&client.turn("and now?").await), "and now?");
        client.publish_on_session("note").await;
        assert_eq!(text_of(&client.replay().await), "why is it so?and now?note");

        // The end of it.
        assert!(!client.unsubscribe(json!({ "clientId": "shop", "topic": "quotes" })).await);
        assert!(client.unsubscribe(json!({ "clientId": "shop", "topic": "orders" })).await);
        assert!(!client.unsubscribe(json!({ "clientId": "shop" })).await);
        assert_eq!((client.close().await, client.close().await), (200, 404));
        let path = format!("/session/stream/{}", client.session);
        Caller::expect(client.pinned.post(&path, &json!({ "prompt": "?" })).await, 404);

        // Without an agent there is no session; without the instance it asks again where to go.
        agent.stop().await;
        let body = json!({ "clientId": "shop" });
        Caller::expect(client.pinned.post("/session/open", &body).await, 429);
        let failed = first.url().to_owned();
        first.stop().await;
        assert!(!client.open("echo").await);
        client.connect(&failed).await;
        assert_eq!(client.pinned.url, second.url());
        assert!(client.open("echo").await);
        assert_eq!(text_of(&client.turn("still here").await), "still here");
        assert_eq!(client.close().await, 200);
        spare.stop().await;
        second.stop().await;
        gateway.stop().await;
    });
}
