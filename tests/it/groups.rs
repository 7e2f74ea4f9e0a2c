//! Consumer groups through HTTP, the real client and the real binary: convergence, hand-over, fencing, restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fulcrum_client::{Member, Options};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::support::{Answer, Api, Host, SOON, eventually};

/// Events per test that publishes while members come and go.
const EVENTS: usize = 300;

pub(crate) async fn host() -> Host {
    Host::with(|config| {
        config.policy.claiming_deadline_ms = 20_000;
        config.group.gather_ms = 0;
    })
    .await
}

/// Makes a topic of so many partitions.
pub(crate) async fn topic(api: &Api, name: &str, partitions: u32) {
    api.put(&format!("/topics/{name}"), &json!({ "partitions": partitions })).await.ok();
}

pub(crate) async fn publish(api: &Api, topic: &str, id: usize) -> Answer {
    let event = json!({ "specversion": "1.0", "id": id.to_string(), "source": "/test", "type": "t",
        "partitionkey": format!("key-{}", id % 50), "data": { "n": id } });
    api.post(&format!("/events/publish?topic={topic}"), &event).await
}

fn options(api: &Api, group: &str, topic: &str, member: &str) -> Options {
    let mut options = Options::new(api.url(), group, &[topic]);
    options.member = member.to_owned();
    // So long that only a push or the end of a connection can tell anything in time.
    options.ttl = Some(Duration::from_secs(600));
    options
}

pub(crate) async fn member(api: &Api, group: &str, topic: &str, name: &str) -> Member {
    Member::join(options(api, group, topic, name)).await.expect("it joins")
}

pub(crate) async fn view(api: &Api, group: &str) -> Value {
    api.get(&format!("/groups/{group}")).await.ok()
}

/// Counts owned partitions by owner; those on their way count for nobody.
pub(crate) fn shares(view: &Value) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for member in view["members"].as_array().expect("a list") {
        shares.insert(member["memberId"].as_str().expect("a text").to_owned(), 0);
    }
    for partition in view["partitions"].as_array().expect("a list") {
        if partition["state"] == "owned" {
            *shares.entry(partition["owner"].as_str().expect("a text").to_owned()).or_default() += 1;
        }
    }
    shares
}

/// Waits until so many members own so many partitions, nobody over one more than another.
pub(crate) async fn until_spread(api: &Api, group: &str, members: usize, partitions: usize) -> Value {
    let what = format!("{members} members of {group} share {partitions} partitions");
    eventually(what, SOON * 2, async || {
        let answer = api.get(&format!("/groups/{group}")).await;
        // The group is made by its first member.
        let view = if answer.status == 404 { return None } else { answer.ok() };
        let shares = shares(&view);
        let (min, max) = (shares.values().min().copied()?, shares.values().max().copied()?);
        (shares.len() == members && shares.values().sum::<usize>() == partitions && max - min <= 1)
            .then_some(view)
    })
    .await
}

pub(crate) async fn until_holds(member: &Member, count: usize) {
    let mut held = member.held_changes();
    let found = held.wait_for(|held| held.len() == count);
    tokio::time::timeout(SOON, found).await.expect("in time").expect("it lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_converge_under_every_policy_that_promises_it() {
    let host = host().await;
    topic(&host, "t", 12).await;
    let embedded = host.get("/admin/policies").await.ok();
    let embedded = embedded["policies"].as_array().expect("a list").clone();
    let mut tried = 0;
    for policy in ["sticky", "balanced", "greedy", "average", "average-by-circle"] {
        if !embedded.iter().any(|known| known["name"] == policy) {
            continue;
        }
        tried += 1;
        let settings = json!({ "policy": policy, "gatherMs": 0, "fastIntervalMs": 20, "intervalMs": 500 });
        host.put(&format!("/groups/{policy}"), &settings).await.ok();
        let mut members = Vec::new();
        for name in ["a", "b", "c"] {
            members.push(member(&host, policy, "t", name).await);
        }
        let view = until_spread(&host, policy, 3, 12).await;
        assert_eq!(
            (&view["policy"], &view["lastCycle"]["policy"]),
            (&json!(policy), &json!(policy)),
            "{view}"
        );
        assert_eq!(view["lastCycle"]["problem"], Value::Null, "{view}");
        // One leaves: the others have it all.
        members.pop().expect("three").leave().await.expect("it leaves");
        until_spread(&host, policy, 2, 12).await;
    }
    assert!(tried > 0, "no claim policy is embedded: {embedded:?}");
}

/// What several members read, with who is at which partition just now.
#[derive(Default)]
struct Seen {
    at_work: BTreeMap<(String, u32), String>,
    events: BTreeMap<String, usize>,
    acked: BTreeMap<u32, u64>,
}

/// Reads until told to stop; each batch takes a moment, so that hand-overs meet work under way.
fn consume(
    mut member: Member,
    name: &str,
    seen: &Arc<Mutex<Seen>>,
) -> (JoinHandle<()>, tokio::sync::oneshot::Sender<()>) {
    let (name, seen) = (name.to_owned(), seen.clone());
    let (stop, mut stopped) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        loop {
            let batch = tokio::select! {
                batch = member.next() => batch.expect("it stays in the group"),
                _ = &mut stopped => break,
            };
            let place = (batch.held.place.topic.clone(), batch.held.place.partition);
            let other = seen.lock().await.at_work.insert(place.clone(), name.clone());
            assert_eq!(other, None, "{name} reads {place:?} too");
            tokio::task::yield_now().await;
            let ids: Vec<_> = batch
                .events
                .iter()
                .map(|event| event.event["id"].as_str().expect("a text").to_owned())
                .collect();
            let next = batch.events.last().expect("at least one").offset + 1;
            seen.lock().await.at_work.remove(&place);
            let stored = batch.checkpoint().await;
            let mut seen = seen.lock().await;
            ids.into_iter().for_each(|id| *seen.events.entry(id).or_default() += 1);
            if stored.is_ok() {
                let acked = seen.acked.entry(place.1).or_default();
                *acked = next.max(*acked);
            }
        }
        member.leave().await.expect("it leaves");
    });
    (task, stop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cooperative_hand_over_has_no_two_readers_and_repeats_nothing() {
    let host = host().await;
    topic(&host, "t", 12).await;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut running = Vec::new();
    running.push(consume(member(&host, "g", "t", "a").await, "a", &seen));
    until_spread(&host, "g", 1, 12).await;
    for id in 0..EVENTS {
        assert_eq!(publish(&host, "t", id).await.status, 202);
        match id {
            60 => running.push(consume(member(&host, "g", "t", "b").await, "b", &seen)),
            120 => running.push(consume(member(&host, "g", "t", "c").await, "c", &seen)),
            200 => {
                let (task, stop) = running.remove(0);
                stop.send(()).expect("it runs");
                task.await.expect("no two readers");
            }
            _ => {}
        }
    }
    let all = async || (seen.lock().await.events.len() == EVENTS).then_some(());
    eventually("every event is read", SOON, all).await;
    for (task, stop) in running {
        stop.send(()).expect("it runs");
        task.await.expect("no two readers");
    }
    let repeated: Vec<_> =
        seen.lock().await.events.clone().into_iter().filter(|(_, times)| *times != 1).collect();
    assert_eq!(repeated, [], "nobody crashed");
    let view = view(&host, "g").await;
    assert_eq!((&view["lag"], &view["members"]), (&json!(0), &json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_pushed_and_a_leave_or_a_crash_hands_over_at_once() {
    let host = host().await;
    topic(&host, "t", 4).await;
    let a = member(&host, "g", "t", "a").await;
    until_holds(&a, 4).await;
    // The next heartbeat of `a` is 200 s away: only the watch tells it.
    let b = member(&host, "g", "t", "b").await;
    until_holds(&a, 2).await;
    until_holds(&b, 2).await;
    b.leave().await.expect("it leaves");
    until_holds(&a, 4).await;
    assert_eq!(view(&host, "g").await["lastCycle"]["reason"], "leave");
    let c = member(&host, "g", "t", "c").await;
    until_holds(&c, 2).await;
    drop(c);
    until_holds(&a, 4).await;
    assert_eq!(view(&host, "g").await["lastCycle"]["reason"], "disconnected");
    // More partitions are claimed at once, too.
    topic(&host, "t", 6).await;
    until_holds(&a, 6).await;
    a.leave().await.expect("it leaves");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_the_host_forgot_joins_again() {
    let host = host().await;
    topic(&host, "t", 2).await;
    let mut options = options(&host, "g", "t", "a");
    options.ttl = Some(Duration::from_millis(600));
    let a = Member::join(options).await.expect("it joins");
    until_holds(&a, 2).await;
    host.delete("/groups/g").await.ok();
    eventually("it is back", SOON, async || {
        let answer = host.get("/groups/g").await;
        (answer.status == 200 && shares(&answer.body).get("a") == Some(&2)).then_some(())
    })
    .await;
    until_holds(&a, 2).await;
}

/// Joins by hand and waits until everything of a topic is assigned.
pub(crate) async fn join_by_hand(api: &Api, name: &str, more: &Value, count: usize) -> (String, Value) {
    let mut body = json!({ "memberId": name, "topics": ["t"], "ttlMs": 600_000 });
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    let joined = api.post("/groups/g/members", &body).await.ok();
    assert_eq!(
        (&joined["memberId"], &joined["ttlMs"], &joined["heartbeatIntervalMs"]),
        (&json!(name), &json!(600_000), &json!(200_000))
    );
    let session = joined["session"].as_str().expect("a text").to_owned();
    let orders = eventually("it is assigned", SOON, async || {
        let orders = beat(api, name, &session, &json!({})).await.ok();
        (orders["assignments"].as_array().expect("a list").len() == count).then_some(orders)
    })
    .await;
    (session, orders)
}

pub(crate) async fn beat(api: &Api, name: &str, session: &str, more: &Value) -> Answer {
    let mut body = json!({ "session": session, "seq": 1 });
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    api.post(&format!("/groups/g/members/{name}/heartbeat"), &body).await
}

pub(crate) async fn pull(api: &Api, partition: u32, session: &str, epoch: u64, more: &str) -> Answer {
    let path = format!(
        "/groups/g/topics/t/partitions/{partition}/events?member=a&session={session}&epoch={epoch}&timeoutMs=0{more}"
    );
    api.get(&path).await
}

pub(crate) async fn checkpoint(api: &Api, partition: u32, session: &str, epoch: u64, offset: u64) -> Answer {
    let body = json!({ "member": "a", "session": session, "epoch": epoch, "offset": offset });
    api.post(&format!("/groups/g/topics/t/partitions/{partition}/checkpoint"), &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_owners_are_fenced() {
    let host = host().await;
    topic(&host, "t", 1).await;
    let (session, orders) = join_by_hand(&host, "a", &json!({}), 1).await;
    assert_eq!(orders["assignments"], json!([{ "topic": "t", "partition": 0, "epoch": 1, "offset": 0 }]));
    assert_eq!(orders["revocations"], json!([]));
    for id in 0..3 {
        let stored = publish(&host, "t", id).await;
        assert_eq!((stored.status, &stored.body["status"]), (202, &json!("accepted")), "{stored:?}");
    }
    let pulled = pull(&host, 0, &session, 1, "&max=2").await.ok();
    assert_eq!((&pulled["nextOffset"], &pulled["endOffset"]), (&json!(2), &json!(3)));
    assert_eq!(
        (&pulled["events"][1]["offset"], &pulled["events"][1]["event"]["id"]),
        (&json!(1), &json!("1"))
    );
    assert_eq!(pull(&host, 0, &session, 1, "&offset=2").await.ok()["events"][0]["offset"], 2);
    checkpoint(&host, 0, &session, 1, 2).await.ok();
    let rewind = checkpoint(&host, 0, &session, 1, 1).await;
    rewind.refused(409, "rewind");
    assert_eq!(rewind.body["checkpoint"], 2);
    checkpoint(&host, 0, &session, 1, 4).await.refused(400, "invalid_value");
    assert_eq!(pull(&host, 0, &session, 1, "").await.ok()["events"].as_array().expect("a list").len(), 1);
    checkpoint(&host, 1, &session, 1, 0).await.refused(404, "unknown_partition");
    let stale = checkpoint(&host, 0, &session, 9, 3).await;
    stale.refused(409, "stale_epoch");
    assert_eq!(stale.body["epoch"], 1);

    let again = host.post("/groups/g/members", &json!({ "memberId": "a", "topics": ["t"] })).await;
    again.refused(409, "duplicate_member");
    let left = again.body["retryAfterMs"].as_u64().expect("a number");
    assert!((1..=600_001).contains(&left) && again.headers.contains_key("retry-after"), "{again:?}");
    // The same session goes on as it was, another one fences it.
    let (same, _) = join_by_hand(&host, "a", &json!({ "session": session }), 1).await;
    assert_eq!(same, session);
    let (other, orders) = join_by_hand(&host, "a", &json!({ "takeover": true }), 1).await;
    assert_eq!(orders["assignments"], json!([{ "topic": "t", "partition": 0, "epoch": 2, "offset": 2 }]));
    beat(&host, "a", &session, &json!({})).await.refused(409, "fenced");
    checkpoint(&host, 0, &session, 1, 3).await.refused(409, "fenced");
    pull(&host, 0, &session, 1, "").await.refused(409, "fenced");
    pull(&host, 0, &other, 1, "").await.refused(409, "stale_epoch");
    pull(&host, 0, &other, 2, "").await.ok();

    beat(&host, "nobody", &other, &json!({})).await.refused(404, "unknown_member");
    host.get("/groups/nothing").await.refused(404, "unknown_group");
    let leave = format!("/groups/g/members/a?session={other}");
    host.delete(&leave).await.ok();
    host.delete(&leave).await.refused(404, "unknown_member");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_waits_and_notices_when_the_partition_moves() {
    let host = host().await;
    topic(&host, "t", 1).await;
    let (session, _) = join_by_hand(&host, "a", &json!({}), 1).await;
    let waiting = |api: Api, session: String| async move {
        let path = format!(
            "/groups/g/topics/t/partitions/0/events?member=a&session={session}&epoch=1&timeoutMs=30000"
        );
        api.get(&path).await
    };
    let first = tokio::spawn(waiting(host.another(), session.clone()));
    publish(&host, "t", 7).await;
    let pulled = tokio::time::timeout(SOON, first).await.expect("it is woken").expect("no panic").ok();
    assert_eq!(pulled["events"][0]["event"]["data"], json!({ "n": 7 }));
    checkpoint(&host, 0, &session, 1, 1).await.ok();
    let second = tokio::spawn(waiting(host.another(), session.clone()));
    // Whichever comes first, the fenced session gets no event.
    join_by_hand(&host, "a", &json!({ "takeover": true }), 1).await;
    publish(&host, "t", 8).await;
    let refused = tokio::time::timeout(SOON, second).await.expect("it is woken").expect("no panic");
    refused.refused(409, "fenced");
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_are_reset_and_a_rebalance_can_be_asked_for() {
    let host = host().await;
    topic(&host, "t", 3).await;
    for id in 0..20 {
        publish(&host, "t", id).await;
    }
    // A new group starts at the end.
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (task, stop) = consume(member(&host, "g", "t", "a").await, "a", &seen);
    let view = until_spread(&host, "g", 1, 3).await;
    assert_eq!(view["lag"], 0);
    let reset = host.post("/groups/g/offsets", &json!({ "topic": "t", "to": "earliest" })).await.ok();
    assert_eq!(reset["offsets"].as_array().expect("a list").len(), 3);
    let all = async || (seen.lock().await.events.len() == 20).then_some(());
    eventually("every event is read again", SOON, all).await;
    let after = eventually("they are checkpointed", SOON, async || {
        Some(self::view(&host, "g").await).filter(|view| view["lag"] == 0)
    })
    .await;
    assert!(
        after["partitions"].as_array().expect("a list").iter().all(|partition| partition["epoch"] == 2),
        "{after}"
    );
    for (body, status, code) in [
        (json!({ "to": "earliest", "topic": "t", "partitions": [3] }), 404, "unknown_partition"),
        (json!({ "to": "earliest", "topic": "u" }), 404, "unknown_partition"),
        (json!({ "offset": 1000 }), 400, "invalid_value"),
        (json!({}), 400, "invalid_value"),
    ] {
        host.post("/groups/g/offsets", &body).await.refused(status, code);
    }
    let at =
        host.post("/groups/g/offsets", &json!({ "topic": "t", "partitions": [0], "timeMs": 0 })).await.ok();
    assert_eq!(at["offsets"], json!([{ "topic": "t", "partition": 0, "offset": 0 }]));

    host.post("/groups/g/rebalance", &json!({})).await.ok();
    eventually("a cycle ran", SOON, async || {
        (self::view(&host, "g").await["lastCycle"]["reason"] == "manual").then_some(())
    })
    .await;
    stop.send(()).expect("it runs");
    task.await.expect("no panic");
    host.delete("/groups/g").await.ok();
    host.get("/groups/g").await.refused(404, "unknown_group");
    assert_eq!(host.get("/groups").await.ok(), json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_events_and_settings_are_checked() {
    let host = host().await;
    assert_eq!(
        host.put("/topics/t", &json!({ "partitions": 2 })).await.ok(),
        json!({ "topic": "t", "partitions": 2 })
    );
    assert_eq!(host.put("/topics/t", &json!({ "partitions": 5 })).await.ok()["partitions"], 5);
    host.put("/topics/t", &json!({ "partitions": 4 })).await.refused(409, "partitions_only_grow");
    for partitions in [json!(0), json!(-1), json!("4"), json!(100_001), Value::Null] {
        host.put("/topics/u", &json!({ "partitions": partitions })).await.refused(400, "invalid_value");
    }
    let event = json!({ "specversion": "1.0", "id": "1", "source": "s", "type": "t" });
    assert_eq!(host.post("/events/publish?topic=made", &event).await.status, 202);
    assert_eq!(
        host.get("/topics").await.ok(),
        json!([{ "topic": "made", "partitions": 4 }, { "topic": "t", "partitions": 5 }])
    );
    let structured = host.request(Method::POST, "/events/publish?topic=made");
    let structured = structured.header("content-type", "application/cloudevents+json; charset=utf-8");
    assert_eq!(host.send(structured.body(event.to_string())).await.status, 202);
    let text = host.request(Method::POST, "/events/publish?topic=made").body(event.to_string());
    host.send(text).await.refused(415, "not_json");
    host.post("/events/publish", &event).await.refused(400, "invalid_query");
    host.post("/events/publish?topic=made", &json!({ "id": "1" })).await.refused(400, "invalid_event");
    let mut large = event.clone();
    large["data"] = "x".repeat(1 << 20).into();
    host.post("/events/publish?topic=made", &large).await.refused(413, "too_large");
    let ends = host.get("/topics/made").await.ok();
    let stored: u64 =
        ends["offsets"].as_array().expect("a list").iter().filter_map(|at| at["endOffset"].as_u64()).sum();
    assert_eq!(stored, 2);
    host.delete("/topics/made").await.ok();
    host.delete("/topics/made").await.refused(404, "unknown_topic");

    let settings =
        host.put("/groups/g", &json!({ "intervalMs": 5000, "graceMs": 7, "start": "earliest" })).await.ok();
    assert_eq!(
        (&settings["intervalMs"], &settings["graceMs"], &settings["start"]),
        (&json!(5000), &json!(7), &json!("earliest"))
    );
    host.put("/groups/g", &json!({ "policy": "nothing" })).await.refused(409, "unusable_policy");
    host.put("/groups/g", &json!({ "policy": "weighted" })).await.refused(409, "unusable_policy");
    host.put("/groups/g", &json!({ "handover": "push" })).await.refused(400, "invalid_value");
    host.put("/groups/g", &json!({ "ownershipExpiryMs": 6000 })).await.ok();
    let warnings = view(&host, "g").await["warnings"].to_string();
    assert!(warnings.contains("ownershipExpiryMs"), "{warnings}");
    for body in [json!({ "memberId": "a" }), json!({ "memberId": "a", "topics": "t" })] {
        host.post("/groups/g/members", &body).await.refused(400, "invalid_body");
    }
    for body in [
        json!({ "memberId": "", "topics": ["t"] }),
        json!({ "memberId": "a/b", "topics": ["t"] }),
        json!({ "memberId": "a", "topics": [] }),
        json!({ "memberId": "a", "topics": ["t"], "capacity": 0 }),
        json!({ "memberId": "a", "topics": ["t"], "ttlMs": 1 }),
    ] {
        host.post("/groups/g/members", &body).await.refused(400, "invalid_value");
    }
    let metrics = host.get("/metrics").await.text;
    for line in [
        "fulcrum_groups 1",
        "fulcrum_group_members{state=\"live\"} 0",
        "fulcrum_group_partitions{state=\"owned\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

/// The real binary in a folder that outlives it.
pub(crate) struct Serving {
    child: Child,
    pub(crate) url: String,
}

impl Serving {
    pub(crate) async fn start(folder: &Path, listen: &str) -> Self {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("stderr"));
        let mut child = command()
            .args(["serve", "--listen", listen, "--set", "group.gather_ms=0", "--data-dir"])
            .arg(folder.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("the folder can be written"))
            .spawn()
            .expect("the binary can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let line = tokio::time::timeout(SOON, lines.next_line()).await.expect("in time").expect("readable");
        let line = line.unwrap_or_else(|| {
            panic!("it ended: {}", std::fs::read_to_string(folder.join("stderr")).unwrap_or_default())
        });
        Self { child, url: line.strip_prefix("listening on ").expect("its first line").to_owned() }
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("it runs");
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let answer = http.get(format!("{}{path}", self.url)).send().await.expect("it answers");
        answer.json().await.expect("JSON")
    }

    async fn publish(&self, id: usize) -> bool {
        let http =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build().expect("a client");
        let event = json!({ "specversion": "1.0", "id": id.to_string(), "source": "/test", "type": "t" });
        let sent = http.post(format!("{}/events/publish?topic=t", self.url)).json(&event).send().await;
        sent.is_ok_and(|answer| answer.status() == 202)
    }
}

fn command() -> Command {
    let own = std::env::current_exe().expect("a process knows its file");
    let folder = own.parent().and_then(Path::parent).expect("tests lie in deps/");
    let mut command = Command::new(folder.join(format!("fulcrum{}", std::env::consts::EXE_SUFFIX)));
    command.env_clear().kill_on_drop(true);
    command
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_host_comes_back_with_its_members_and_loses_nothing_it_acknowledged() {
    let folder = folder();
    let mut serving = Serving::start(folder.path(), "127.0.0.1:0").await;
    let listen = serving.url.strip_prefix("http://").expect("http").to_owned();
    let seen = Arc::new(Mutex::new(Seen::default()));
    assert!(serving.publish(0).await);
    let mut stops = Vec::new();
    for name in ["a", "b"] {
        let mut options = Options::new(&serving.url, "g", &["t"]);
        options.member = name.to_owned();
        let member = Member::join(options).await.expect("it joins");
        stops.push(consume(member, name, &seen));
    }
    let both = async |serving: &Serving| {
        eventually("both own two", SOON, async || {
            let view = serving.get("/groups/g").await;
            (shares(&view) == BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 2)])).then_some(view)
        })
        .await
    };
    let before = both(&serving).await;
    let mut published = BTreeSet::new();
    for round in 0..3 {
        for id in 0..40 {
            let id = 1 + round * 40 + id;
            if serving.publish(id).await {
                published.insert(id.to_string());
            }
        }
        let acked = eventually("something is acknowledged", SOON, async || {
            Some(seen.lock().await.acked.clone()).filter(|acked| !acked.is_empty())
        })
        .await;
        serving.kill().await;
        serving = Serving::start(folder.path(), &listen).await;
        let view = serving.get("/groups/g").await;
        let owners = |view: &Value| {
            let partitions = view["partitions"].as_array().expect("a list").iter();
            partitions.map(|at| (at["owner"].clone(), at["epoch"].clone())).collect::<Vec<_>>()
        };
        assert_eq!(owners(&view), owners(&before), "nobody has to join again");
        for (partition, offset) in acked {
            let stored = view["partitions"][partition as usize]["checkpoint"].as_u64().expect("a number");
            assert!(offset <= stored, "partition {partition}: {offset} was acknowledged, {stored} is there");
        }
    }
    eventually("every acknowledged event is read", SOON * 2, async || {
        let seen = seen.lock().await;
        published.iter().all(|id| seen.events.contains_key(id)).then_some(())
    })
    .await;
    for (task, stop) in stops {
        stop.send(()).expect("it runs");
        task.await.expect("no panic");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lost_its_host_stops_reading_or_goes_to_another() {
    let folder = folder();
    let serving = Serving::start(folder.path(), "127.0.0.1:0").await;
    assert!(serving.publish(0).await);
    let mut options = Options::new(&serving.url, "g", &["t"]);
    options.ttl = Some(Duration::from_millis(900));
    let alone = Member::join(options.clone()).await.expect("it joins");
    until_holds(&alone, 4).await;
    alone.leave().await.expect("it leaves");
    // A host that recommends nobody takes the member in itself.
    let other = host().await;
    topic(&other, "t", 3).await;
    let alone = Member::join(options.clone()).await.expect("it joins");
    options.member = "mobile".to_owned();
    options.hosts.push(other.url().to_owned());
    let mobile = Member::join(options).await.expect("it joins");
    until_holds(&alone, 2).await;
    until_holds(&mobile, 2).await;
    serving.kill().await;
    until_holds(&alone, 0).await;
    until_holds(&mobile, 3).await;
    assert_eq!(shares(&view(&other, "g").await), BTreeMap::from([("mobile".to_owned(), 3)]));
    mobile.leave().await.expect("it leaves");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_host_on_the_same_folder_is_refused() {
    let folder = folder();
    let _serving = Serving::start(folder.path(), "127.0.0.1:0").await;
    let second = command()
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path().join("data"))
        .output();
    let ended = tokio::time::timeout(SOON, second).await.expect("it ends").expect("it can be run");
    let error = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && error.contains("in use by another process"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_member_prints_events_and_leaves_when_interrupted() {
    let host = host().await;
    topic(&host, "t", 2).await;
    let mut child = command()
        .args(["group", "member", "--host", host.url(), "--group", "g", "--topic", "t", "--member", "cli"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be run");
    until_spread(&host, "g", 1, 2).await;
    for id in 0..5 {
        publish(&host, "t", id).await;
    }
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut ids = BTreeSet::new();
    while ids.len() < 5 {
        let line = tokio::time::timeout(SOON, lines.next_line())
            .await
            .expect("in time")
            .expect("readable")
            .expect("a line");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&line["topic"], &line["epoch"]), (&json!("t"), &json!(1)));
        ids.insert(line["event"]["id"].as_str().expect("a text").to_owned());
    }
    let id = child.id().expect("it runs").to_string();
    let sent = std::process::Command::new("kill").args(["-s", "INT", &id]).status();
    assert!(sent.expect("there is a kill command").success());
    let ended = tokio::time::timeout(SOON, child.wait()).await.expect("it ends").expect("waited for");
    assert!(ended.success(), "{ended:?}");
    let view = view(&host, "g").await;
    assert_eq!((&view["members"], &view["lag"]), (&json!([]), &json!(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_stops_ends_its_watches_and_keeps_its_members() {
    let host = host().await;
    topic(&host, "t", 2).await;
    let a = member(&host, "g", "t", "a").await;
    until_holds(&a, 2).await;
    let begun = std::time::Instant::now();
    let folder = host.stop().await;
    // The drain would wait 10 s for a connection that stays open.
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    let host = Host::in_folder(folder, |_| {}).await;
    let view = view(&host, "g").await;
    assert_eq!(shares(&view), BTreeMap::from([("a".to_owned(), 2)]), "{view}");
}
