//! The real host is killed with `kill -9` again and again, at random moments, while clients publish, poll and
//! acknowledge: what they logged is checked afterwards against invariants 4, 5 and 9 of the design.
//!
//! Invariants: a call belongs to one life of the host, for the next one begins when every call to the one before has
//! ended; so the order of the log is an order of what happened. No lease ends by time: what is in nobody's hand any
//! more is so by a nack or by a crash.
//!
//! `FULCRUM_CRASHES` (default 20) says how often the host dies, `FULCRUM_TEST_SEED` when.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::sync::{Notify, RwLock};
use tokio::task::JoinHandle;

use crate::support::{Chance, SOON, command, run, test_seed};

/// Names of the groups; the second one keeps the order of keys.
const GROUPS: [&str; 2] = ["loose", "ordered"];
const ORDERED: usize = 1;
const CLIENTS_PER_GROUP: usize = 4;
const PUBLISHERS: usize = 3;
/// Keys of each publisher: nobody else writes to them, so it knows their order.
const KEYS: usize = 4;
/// Time between two publishes of one publisher.
const PACE: Duration = Duration::from_millis(4);
/// Events that a group may be behind before the publishers wait for it.
const BACKLOG_MAX: usize = 300;
/// Longest life of the host, in milliseconds.
const LIFE_MS_MAX: usize = 600;
/// How long calls to a host that was killed may take to notice; the kernel ends their connections at once.
const MOURNING: Duration = Duration::from_secs(5);
/// Longer than the test: no lease ends by time.
const INVISIBLE_MS: u64 = 3_600_000;

/// What a client did or saw, in the order it happened. `group` is an index into [`GROUPS`].
#[derive(Clone, Debug, PartialEq)]
enum Entry {
    /// An event is on its way to the host.
    Sent { event: u64, key: Option<usize> },
    /// Its publish was answered with 202.
    Stored { event: u64 },
    /// A poll brought it.
    Received { group: usize, event: u64, life: u64 },
    /// An acknowledgement is on its way.
    Ack { group: usize, event: u64 },
    /// It was answered with 200.
    Acked { group: usize, event: u64 },
    /// It was answered with 404; `is_same_life` if the event was received in the host's present life.
    Refused { group: usize, event: u64, is_same_life: bool },
    /// The event is being given back, in the life it was received in.
    Nack { group: usize, event: u64 },
}

/// What one group knows of one event.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The host's life in which it was received last.
    received: Option<u64>,
    is_in_hand: bool,
    /// Acknowledgements that may have taken effect.
    acks: u32,
    is_acked: bool,
}

/// Checks a log: nothing that was acknowledged to a client is forgotten, nobody shares a lease, keys keep their order.
fn violations(log: &[Entry]) -> Vec<String> {
    let mut found = Vec::new();
    let mut key_of: BTreeMap<u64, Option<usize>> = BTreeMap::new();
    let mut order: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    let mut stored = BTreeSet::new();
    let mut seen: BTreeMap<(usize, u64), Seen> = BTreeMap::new();
    for entry in log {
        match *entry {
            Entry::Sent { event, key } => {
                key_of.insert(event, key);
                order.entry(key.unwrap_or(usize::MAX)).or_default().push(event);
            }
            Entry::Stored { event } => stored.extend([event]),
            Entry::Received { group, event, life } => {
                let before = seen.get(&(group, event)).copied().unwrap_or_default();
                let who = format!("event {event} in {} in life {life}", GROUPS[group]);
                if before.is_acked {
                    found.push(format!("came again after its acknowledgement: {who}"));
                } else if before.is_in_hand && before.received == Some(life) {
                    found.push(format!("in two hands at once: {who}"));
                }
                match key_of.get(&event) {
                    None => found.push(format!("nobody published it: {who}")),
                    Some(&Some(key)) if group == ORDERED => {
                        let order = &order[&key];
                        let at = order.iter().position(|other| *other == event).expect("it was sent");
                        for (index, other) in order.iter().enumerate() {
                            let seen = seen.get(&(group, *other)).copied().unwrap_or_default();
                            let is_there = stored.contains(other) || seen.received.is_some();
                            if index < at && is_there && !seen.is_acked && seen.acks == 0 {
                                found.push(format!("overtook {other} of its key: {who}"));
                            }
                            if at < index && seen.received.is_some() {
                                found.push(format!("came after {other} of its key: {who}"));
                            }
                        }
                    }
                    Some(_) => {}
                }
                let now = Seen { received: Some(life), is_in_hand: true, ..before };
                seen.insert((group, event), now);
            }
            Entry::Ack { group, event } => seen.entry((group, event)).or_default().acks += 1,
            Entry::Acked { group, event } => {
                let seen = seen.entry((group, event)).or_default();
                if std::mem::replace(&mut seen.is_acked, true) {
                    found.push(format!("acknowledged twice: event {event} in {}", GROUPS[group]));
                }
            }
            Entry::Refused { group, event, is_same_life } => {
                let seen = seen.entry((group, event)).or_default();
                seen.acks = seen.acks.saturating_sub(1);
                if is_same_life {
                    found.push(format!("the host forgot a lease: event {event} in {}", GROUPS[group]));
                }
            }
            Entry::Nack { group, event } => seen.entry((group, event)).or_default().is_in_hand = false,
        }
    }
    for (group, name) in GROUPS.iter().enumerate() {
        let is_lost = |event: &&u64| seen.get(&(group, **event)).is_none_or(|seen| seen.received.is_none());
        found.extend(stored.iter().filter(is_lost).map(|event| format!("lost: event {event} in {name}")));
    }
    found
}

#[test]
fn the_checks_see_violations() {
    use Entry::*;
    let check = |log: &[Entry], expected: &[&str]| {
        let found = violations(log);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found:?} is not {expected:?}");
        }
    };
    let (loose, ordered) = (0, ORDERED);
    let received = |group, event, life| Received { group, event, life };
    let (ack, acked) = (|group, event| Ack { group, event }, |group, event| Acked { group, event });
    let refused = |group, event, is_same_life| Refused { group, event, is_same_life };
    // Two events of one key, stored, and each taken in order by both groups.
    let sent = [
        Sent { event: 1, key: Some(0) },
        Stored { event: 1 },
        Sent { event: 2, key: Some(0) },
        Stored { event: 2 },
    ];
    let both = [received(loose, 1, 1), received(loose, 2, 1)];
    let log = |rest: &[Entry]| [&sent[..], &both[..], rest].concat();
    let one = |rest: &[Entry]| log(&[&[received(ordered, 1, 1)], rest].concat());

    // What is allowed: in order, again after a nack, again after a crash, an acknowledgement in doubt either way.
    check(&one(&[ack(ordered, 1), acked(ordered, 1), received(ordered, 2, 1)]), &[]);
    check(&one(&[ack(ordered, 1), received(ordered, 2, 1), acked(ordered, 1)]), &[]);
    check(
        &one(&[
            Nack { group: ordered, event: 1 },
            received(ordered, 1, 1),
            ack(ordered, 1),
            received(ordered, 2, 2),
        ]),
        &[],
    );
    check(
        &one(&[
            received(ordered, 1, 2),
            refused(ordered, 1, false),
            ack(ordered, 1),
            received(ordered, 2, 2),
        ]),
        &[],
    );
    check(
        &one(&[
            ack(ordered, 1),
            received(ordered, 1, 2),
            ack(ordered, 1),
            acked(ordered, 1),
            received(ordered, 2, 2),
        ]),
        &[],
    );
    check(&one(&[ack(ordered, 1), received(ordered, 2, 2), received(ordered, 2, 3)]), &[]);
    // An event whose publish got no answer need not be there.
    let doubtful = [
        Sent { event: 1, key: Some(0) },
        Sent { event: 2, key: Some(0) },
        Stored { event: 2 },
        received(loose, 2, 1),
    ];
    check(&[&doubtful[..], &[received(ordered, 2, 1)]].concat(), &[]);
    check(&[&doubtful[..], &[received(ordered, 1, 1), received(ordered, 2, 1)]].concat(), &["overtook 1"]);
    // Order is for keys, and for the group that keeps it.
    check(
        &log(&[received(ordered, 1, 1), ack(ordered, 1), received(ordered, 2, 1), received(loose, 1, 2)]),
        &[],
    );

    check(
        &sent,
        &[
            "lost: event 1 in loose",
            "lost: event 2 in loose",
            "lost: event 1 in ordered",
            "lost: event 2 in ordered",
        ],
    );
    check(&one(&[]), &["lost: event 2 in ordered"]);
    let done = [ack(ordered, 1), acked(ordered, 1), received(ordered, 2, 1)];
    let after = |rest: &[Entry]| one(&[&done[..], rest].concat());
    check(&after(&[]), &[]);
    check(&after(&[received(ordered, 1, 1)]), &["came again", "came after 2"]);
    check(&after(&[received(ordered, 1, 2)]), &["came again", "came after 2"]);
    check(&after(&[ack(loose, 1), acked(loose, 1), received(loose, 1, 2)]), &["came again"]);
    check(&after(&[received(loose, 1, 1)]), &["in two hands"]);
    check(&after(&[ack(ordered, 1), acked(ordered, 1)]), &["acknowledged twice"]);
    check(&after(&[refused(ordered, 2, true)]), &["the host forgot a lease"]);
    check(&after(&[received(loose, 3, 1)]), &["nobody published"]);
    check(&one(&[received(ordered, 2, 1)]), &["overtook 1"]);
    check(&one(&[Nack { group: ordered, event: 1 }, received(ordered, 2, 1)]), &["overtook 1"]);
    check(&one(&[ack(ordered, 1), refused(ordered, 1, false), received(ordered, 2, 1)]), &["overtook 1"]);
    check(
        &log(&[received(ordered, 2, 1), ack(ordered, 2), received(ordered, 1, 1)]),
        &["overtook 1", "came after 2"],
    );
    // An acknowledgement nobody answered was as good as none: then its successor should not have been delivered.
    check(&one(&[ack(ordered, 1), received(ordered, 2, 1), received(ordered, 1, 2)]), &["came after 2"]);
}

/// One life of the host: the real binary, from a folder that outlives it.
struct Process {
    child: Child,
    url: String,
}

impl Process {
    fn spawn(folder: &Path) -> Child {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("stderr"));
        command()
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(folder.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("the folder can be written"))
            .spawn()
            .expect("the binary can be run")
    }

    async fn start(folder: &Path) -> Self {
        let mut child = Self::spawn(folder);
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let log = || std::fs::read_to_string(folder.join("stderr")).unwrap_or_default();
        let line = tokio::time::timeout(SOON * 3, lines.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("it does not start: {}", log()));
        let line = line.expect("stdout can be read").unwrap_or_else(|| panic!("it ended: {}", log()));
        let url = line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, url }
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    async fn kill(mut self) {
        self.child.kill().await.expect("it runs");
    }
}

/// Where the host of the present life is.
struct Serving {
    life: u64,
    url: String,
    http: Client,
    /// Ends calls to a host that is long dead.
    is_buried: Arc<Notify>,
}

impl Serving {
    fn new(life: u64, host: &Process, is_buried: Arc<Notify>) -> Self {
        let http = Client::builder().no_proxy().build().expect("a client needs nothing");
        Self { life, url: host.url.clone(), http, is_buried }
    }

    /// Answers status and body; none if the host died over it.
    async fn post(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        self.send(self.http.post(format!("{}{path}", self.url)).json(body)).await
    }

    async fn get(&self, path: &str) -> Option<(u16, Value)> {
        self.send(self.http.get(format!("{}{path}", self.url))).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Option<(u16, Value)> {
        let answered = async {
            let answer = request.send().await.ok()?;
            let status = answer.status().as_u16();
            Some((status, answer.json().await.ok()?))
        };
        tokio::select! {
            biased;
            answered = answered => answered,
            () = self.is_buried.notified() => None,
        }
    }
}

/// What everybody shares.
struct World {
    /// Held by each call until its answer is in the log.
    serving: RwLock<Serving>,
    is_buried: Arc<Notify>,
    log: Mutex<Vec<Entry>>,
    /// Events that each group still has to take, as far as anybody can know.
    open: Mutex<[BTreeSet<u64>; GROUPS.len()]>,
    /// Answers that nobody should get.
    surprises: Mutex<Vec<String>>,
    events: AtomicU64,
    /// Nothing new is published, and nothing is dropped any more.
    is_calm: AtomicBool,
    is_over: AtomicBool,
}

/// One event as a poll brought it.
struct Delivery {
    id: Value,
    event: u64,
    life: u64,
}

impl World {
    fn log(&self, entry: Entry) {
        let mut open = self.open.lock().unwrap();
        match entry {
            Entry::Sent { event, .. } => open.iter_mut().for_each(|open| open.extend([event])),
            Entry::Received { group, event, .. } => open[group].extend([event]),
            Entry::Acked { group, event } => {
                open[group].remove(&event);
            }
            _ => {}
        }
        self.log.lock().unwrap().push(entry);
    }

    /// An acknowledgement got no answer: the event comes again, or never.
    fn may_be_settled(&self, group: usize, event: u64) {
        self.open.lock().unwrap()[group].remove(&event);
    }

    fn surprise(&self, what: &str, answer: &(u16, Value)) {
        self.surprises.lock().unwrap().push(format!("{what} is answered {answer:?}"));
    }

    /// How far the slower group is behind.
    fn backlog(&self) -> usize {
        self.open.lock().unwrap().iter().map(BTreeSet::len).max().unwrap_or_default()
    }

    async fn publish(&self, keys: &[Option<usize>]) {
        let serving = self.serving.read().await;
        let mut events = Vec::new();
        let mut bodies = Vec::new();
        for key in keys {
            let event = self.events.fetch_add(1, Ordering::SeqCst);
            self.log(Entry::Sent { event, key: *key });
            let mut body = json!({ "specversion": "1.0", "id": event.to_string(), "source": "/crash", "type": "t",
                "data": "x".repeat(200) });
            if let Some(key) = key {
                body["messagegroup"] = format!("key-{key}").into();
            }
            events.push(event);
            bodies.push(body);
        }
        let (path, body) = match &mut bodies[..] {
            [one] => ("/events/publish?topic=t", one.take()),
            _ => ("/events/publish-batch?topic=t", json!(bodies)),
        };
        match serving.post(path, &body).await {
            Some((202, _)) => events.into_iter().for_each(|event| self.log(Entry::Stored { event })),
            Some(answer) => self.surprise(path, &answer),
            // They may be stored: whoever gets one will know.
            None => {
                for group in 0..GROUPS.len() {
                    events.iter().for_each(|event| self.may_be_settled(group, *event));
                }
            }
        }
    }

    async fn poll(&self, group: usize, client: &str, max: usize, timeout_ms: u64) -> Vec<Delivery> {
        let serving = self.serving.read().await;
        let path = format!("/events/poll?clientId={client}&max={max}&timeoutMs={timeout_ms}");
        let life = serving.life;
        let found = match serving.get(&path).await {
            Some((200, found)) => found,
            Some(answer) => {
                self.surprise("a poll", &answer);
                return Vec::new();
            }
            None => return Vec::new(),
        };
        let delivery = |found: &Value| {
            let event = found["event"]["id"].as_str().and_then(|id| id.parse().ok()).expect("as published");
            self.log(Entry::Received { group, event, life });
            Delivery { id: found["deliveryId"].clone(), event, life }
        };
        found.as_array().expect("a list").iter().map(delivery).collect()
    }

    async fn ack(&self, group: usize, delivery: Delivery) {
        let Delivery { id, event, life } = delivery;
        let serving = self.serving.read().await;
        self.log(Entry::Ack { group, event });
        match serving.post("/events/ack", &json!({ "deliveryId": id })).await {
            Some(answer @ (200, _)) if life != serving.life => {
                self.surprise("an ack of a former life", &answer);
            }
            Some((200, _)) => self.log(Entry::Acked { group, event }),
            Some((404, _)) => {
                self.log(Entry::Refused { group, event, is_same_life: life == serving.life });
            }
            Some(answer) => self.surprise("an ack", &answer),
            None => self.may_be_settled(group, event),
        }
    }

    async fn nack(&self, group: usize, delivery: Delivery) {
        let Delivery { id, event, life } = delivery;
        let serving = self.serving.read().await;
        let is_same_life = life == serving.life;
        if is_same_life {
            self.log(Entry::Nack { group, event });
        }
        match serving.post("/events/nack", &json!({ "deliveryId": id, "delayMs": 0 })).await {
            Some((200, _)) | None => {}
            Some((404, _)) if !is_same_life => {}
            Some(answer) => self.surprise("a nack", &answer),
        }
    }

    /// Publishes to keys of its own, single events and batches, until there is calm.
    async fn publisher(self: Arc<Self>, number: usize, mut chance: Chance) {
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.is_calm.load(Ordering::SeqCst) {
            pace.tick().await;
            if BACKLOG_MAX < self.backlog() {
                continue;
            }
            let count = if chance.below(3) == 0 { 2 + chance.below(7) } else { 1 };
            let mut key = || Some(chance.below(KEYS + 1)).filter(|key| *key < KEYS);
            let keys: Vec<_> = (0..count).map(|_| key().map(|key| number * KEYS + key)).collect();
            self.publish(&keys).await;
        }
    }

    /// Takes events; acknowledges most, gives some back, and keeps a few until the host has forgotten its leases.
    async fn consumer(self: Arc<Self>, group: usize, client: String, mut chance: Chance) {
        let mut kept: Vec<Delivery> = Vec::new();
        while !self.is_over.load(Ordering::SeqCst) {
            let deliveries = self.poll(group, &client, 1 + chance.below(20), 100).await;
            let life = deliveries.first().map_or(0, |delivery| delivery.life);
            for delivery in kept.extract_if(.., |kept| kept.life < life) {
                self.ack(group, delivery).await;
            }
            let is_calm = self.is_calm.load(Ordering::SeqCst);
            let mut settling = Vec::new();
            for delivery in deliveries {
                let fate = chance.below(20);
                if fate == 0 && !is_calm {
                    kept.push(delivery);
                    continue;
                }
                let world = &self;
                settling.push(async move {
                    match fate {
                        1 | 2 => world.nack(group, delivery).await,
                        _ => world.ack(group, delivery).await,
                    }
                });
            }
            join_all(settling).await;
        }
    }
}

fn client(group: usize, number: usize) -> String {
    format!("{}-{number}", GROUPS[group])
}

/// Waits until every call to a killed host has ended, and starts it again; now and then it dies on the way up.
async fn resurrect(
    world: &World,
    folder: &Path,
    life: u64,
    stillborn_ms: Option<u64>,
    is_calm: bool,
) -> Process {
    let is_over = world.serving.write();
    tokio::pin!(is_over);
    let mut serving = match tokio::time::timeout(MOURNING, &mut is_over).await {
        Ok(serving) => serving,
        // Nobody is there to answer: what the client did not notice until now it never will.
        Err(_) => {
            println!("some call to a dead host did not end by itself");
            world.is_buried.notify_waiters();
            tokio::time::timeout(SOON, is_over).await.expect("now it ends")
        }
    };
    if let Some(ms) = stillborn_ms {
        let mut child = Process::spawn(folder);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        child.kill().await.expect("it was started");
    }
    let host = Process::start(folder).await;
    *serving = Serving::new(life, &host, world.is_buried.clone());
    world.is_calm.store(is_calm, Ordering::SeqCst);
    host
}

#[test]
fn a_host_that_is_killed_again_and_again_keeps_its_word() {
    run(async {
        let crashes = std::env::var("FULCRUM_CRASHES").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
        let seed = test_seed();
        println!("{crashes} crashes, seed {seed}");
        let mut chance = Chance::new(seed);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let is_buried = Arc::new(Notify::new());
        let begun = Instant::now();
        let mut host = Process::start(folder.path()).await;
        let boot_ms = usize::try_from(begun.elapsed().as_millis()).expect("a short time").max(1);

        let serving = Serving::new(0, &host, is_buried.clone());
        for (group, name) in GROUPS.iter().enumerate() {
            for number in 0..CLIENTS_PER_GROUP {
                let body = json!({ "clientId": client(group, number), "topic": "t", "mode": "LOAD_BALANCE",
                    "group": name, "fifo": group == ORDERED, "invisibleMs": INVISIBLE_MS, "maxDeliveries": 1000 });
                let (status, answer) = serving.post("/events/subscribe", &body).await.expect("it lives");
                assert_eq!(status, 200, "{answer}");
            }
        }
        let world = Arc::new(World {
            serving: RwLock::new(serving),
            is_buried,
            log: Mutex::default(),
            open: Mutex::default(),
            surprises: Mutex::default(),
            events: AtomicU64::new(0),
            is_calm: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let mut streams = 0..;
        let mut chance_of_one = || Chance::new(seed.wrapping_add(1 + streams.next().unwrap_or_default()));
        let mut tasks: Vec<JoinHandle<()>> = Vec::new();
        for number in 0..PUBLISHERS {
            tasks.push(tokio::spawn(world.clone().publisher(number, chance_of_one())));
        }
        for group in 0..GROUPS.len() {
            for number in 0..CLIENTS_PER_GROUP {
                tasks.push(tokio::spawn(world.clone().consumer(
                    group,
                    client(group, number),
                    chance_of_one(),
                )));
            }
        }
        for life in 1..=crashes {
            tokio::time::sleep(Duration::from_millis(chance.below(LIFE_MS_MAX) as u64)).await;
            host.kill().await;
            let stillborn_ms = (chance.below(4) == 0).then(|| chance.below(boot_ms) as u64);
            host = resurrect(&world, folder.path(), life, stillborn_ms, life == crashes).await;
        }

        // In peace everything that was promised gets done; what does not is found below.
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        let done = async {
            while world.backlog() > 0 {
                looks.tick().await;
            }
        };
        let is_done = tokio::time::timeout(SOON, done).await.is_ok();
        world.is_over.store(true, Ordering::SeqCst);
        for task in tasks {
            task.await.expect("no panic");
        }
        // And once more: now nobody should get anything, but for what the log forgives.
        host.kill().await;
        let host = resurrect(&world, folder.path(), crashes + 1, None, true).await;
        for group in 0..GROUPS.len() {
            while !world.poll(group, &client(group, 0), 100, 300).await.is_empty() {}
        }
        host.kill().await;

        let log = world.log.lock().unwrap();
        let mut found = world.surprises.lock().unwrap().clone();
        found.extend(violations(&log));
        let count = |what: fn(&Entry) -> bool| log.iter().filter(|entry| what(entry)).count();
        let sent = count(|entry| matches!(entry, Entry::Sent { .. }));
        let stored = count(|entry| matches!(entry, Entry::Stored { .. }));
        let received = count(|entry| matches!(entry, Entry::Received { .. }));
        let acked = count(|entry| matches!(entry, Entry::Acked { .. }));
        let stale = count(|entry| matches!(entry, Entry::Refused { .. }));
        let doubtful = count(|entry| matches!(entry, Entry::Ack { .. })) - acked - stale;
        println!(
            "{crashes} crashes in {:.1} s: {stored} of {sent} publishes answered, {received} deliveries, {acked} \
             acknowledged, {doubtful} in doubt, {stale} too late",
            begun.elapsed().as_secs_f64()
        );
        let kept = std::fs::read_to_string(folder.path().join("stderr")).unwrap_or_default();
        assert!(
            found.is_empty(),
            "seed {seed}: {} violations: {:#?}\n{kept}",
            found.len(),
            &found[..found.len().min(20)]
        );
        assert!(is_done, "seed {seed}: some event is never acknowledged\n{kept}");
        let least = usize::try_from(crashes).expect("a number of people") * 10;
        assert!(least < stored && 2 * stored < received, "seed {seed}: too little happened");
    });
}
