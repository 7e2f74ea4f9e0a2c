//! Fifty members that join, leave, stall, crash and change their topics at random, while the host is killed in
//! between: what they saw is checked afterwards from their own logs against invariants 1, 2, 3 and 9 of the design.
//!
//! Runs for `FULCRUM_SOAK_SECONDS` (default 15; minutes are for people), with the seed that is printed on failure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::groups::Serving;
use crate::support::{Chance, SOON, eventually, test_seed};

const MEMBERS: usize = 50;
const TOPICS: [(&str, u32); 2] = [("t", 64), ("u", 32)];
/// Events per second of the soak: so many that the members never run out of them.
const EVENTS_PER_SECOND: u64 = 150;
const TTL: Duration = Duration::from_millis(2000);
const PACE: Duration = Duration::from_millis(100);

/// One checkpoint that was accepted: sent after `sent` and answered before `answered`, on one counter for all.
#[derive(Clone, Debug)]
struct Accepted {
    place: (String, u64),
    epoch: u64,
    offset: u64,
    life: String,
    sent: u64,
    answered: u64,
}

#[derive(Default)]
struct World {
    url: String,
    order: AtomicU64,
    is_calm: AtomicBool,
    is_over: AtomicBool,
    log: Mutex<Vec<Accepted>>,
    violations: Mutex<Vec<String>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl World {
    async fn count(&self, what: &'static str) {
        *self.counts.lock().await.entry(what).or_default() += 1;
    }
}

/// A processor of its own making: it keeps to the protocol, but for its accidents.
struct Processor {
    world: Arc<World>,
    http: Client,
    chance: Chance,
    id: String,
    topics: Vec<&'static str>,
    session: Option<String>,
    seq: u64,
    revision: u64,
    /// What it reads: epoch and next offset.
    reads: BTreeMap<(String, u64), (u64, u64)>,
}

impl Processor {
    async fn call(&self, method: reqwest::Method, path: &str, body: &Value) -> Option<(StatusCode, Value)> {
        let request = self.http.request(method, format!("{}{path}", self.world.url)).json(body);
        // No answer: the host is down, or the answer was lost. Either is part of the game.
        let answer = request.send().await.ok()?;
        let status = answer.status();
        Some((status, answer.json().await.ok()?))
    }

    async fn join(&mut self) {
        let takeover = self.chance.below(4) == 0;
        let body = json!({ "memberId": self.id, "topics": self.topics, "takeover": takeover,
            "ttlMs": TTL.as_millis() as u64 });
        let Some((status, answer)) = self.call(reqwest::Method::POST, "/groups/soak/members", &body).await
        else {
            return;
        };
        if status == StatusCode::OK {
            self.world.count("joins").await;
            self.session = answer["session"].as_str().map(str::to_owned);
            (self.seq, self.revision) = (0, 0);
            self.reads.clear();
            self.obey(&answer).await;
        }
    }

    /// Takes orders in, and gives up what is revoked by not naming it any more.
    async fn obey(&mut self, orders: &Value) {
        let revision = orders["revision"].as_u64().expect("a number");
        if revision < self.revision {
            return;
        }
        self.revision = revision;
        let mut reads = BTreeMap::new();
        for assignment in orders["assignments"].as_array().expect("a list") {
            let topic = assignment["topic"].as_str().expect("a text").to_owned();
            let number = assignment["partition"].as_u64().expect("a number");
            let epoch = assignment["epoch"].as_u64().expect("a number");
            let offset = assignment["offset"].as_u64().expect("a number");
            if !self.topics.contains(&topic.as_str()) {
                let violation = format!("{} was given {topic}/{number} and reads {:?}", self.id, self.topics);
                self.world.violations.lock().await.push(violation);
            }
            let place = (topic, number);
            let known = self.reads.get(&place).filter(|(known, _)| *known == epoch);
            reads.insert(place, (epoch, known.map_or(offset, |(_, at)| offset.max(*at))));
        }
        self.reads = reads;
    }

    async fn beat(&mut self) {
        let Some(session) = self.session.clone() else { return };
        self.seq += 1;
        let owned: Vec<_> = self
            .reads
            .iter()
            .map(|((topic, partition), (epoch, _))| json!({ "topic": topic, "partition": partition, "epoch": epoch }))
            .collect();
        let body = json!({ "session": session, "seq": self.seq, "ackedRevision": self.revision, "owned": owned,
            "released": [] });
        let path = format!("/groups/soak/members/{}/heartbeat", self.id);
        match self.call(reqwest::Method::POST, &path, &body).await {
            Some((StatusCode::OK, orders)) => self.obey(&orders).await,
            Some((StatusCode::NOT_FOUND | StatusCode::CONFLICT, _)) => {
                self.world.count("fenced").await;
                self.session = None;
                self.reads.clear();
            }
            _ => {}
        }
    }

    /// Reads one event of some partition it has, and checkpoints it.
    async fn read(&mut self) {
        let Some(session) = self.session.clone() else { return };
        if self.reads.is_empty() {
            return;
        }
        let at = self.chance.below(self.reads.len());
        let (place, (epoch, offset)) =
            self.reads.iter().nth(at).map(|(a, b)| (a.clone(), *b)).expect("counted");
        let path = format!("/groups/soak/topics/{}/partitions/{}/checkpoint", place.0, place.1);
        let next = offset + 1;
        let body = json!({ "member": self.id, "session": session, "epoch": epoch, "offset": next });
        let sent = self.world.order.fetch_add(1, Ordering::SeqCst);
        match self.call(reqwest::Method::POST, &path, &body).await {
            Some((StatusCode::OK, _)) => {
                let answered = self.world.order.fetch_add(1, Ordering::SeqCst);
                let life = format!("{}:{session}", self.id);
                let accepted = Accepted { place: place.clone(), epoch, offset: next, life, sent, answered };
                self.world.log.lock().await.push(accepted);
                self.reads.insert(place, (epoch, next));
            }
            // The end of the partition: nothing more to read there.
            Some((StatusCode::BAD_REQUEST, _)) | None => {}
            Some(_) => self.world.count("stale").await,
        }
    }

    async fn run(mut self) {
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.world.is_over.load(Ordering::SeqCst) {
            pace.tick().await;
            if self.session.is_none() {
                self.join().await;
                continue;
            }
            let accident =
                if self.world.is_calm.load(Ordering::SeqCst) { usize::MAX } else { self.chance.below(200) };
            match accident {
                // It crashes: everything it knew is gone.
                0 => {
                    self.world.count("crashes").await;
                    self.session = None;
                    self.reads.clear();
                }
                // It stalls past its time, and goes on as if nothing had been.
                1 => {
                    self.world.count("stalls").await;
                    pace.reset_after(TTL * 2);
                }
                2 => {
                    self.world.count("leaves").await;
                    let session = self.session.take().unwrap_or_default();
                    let path = format!("/groups/soak/members/{}?session={session}", self.id);
                    self.call(reqwest::Method::DELETE, &path, &json!({})).await;
                    self.reads.clear();
                }
                // It comes back with other topics, in a new life.
                3 => {
                    self.world.count("subscriptions").await;
                    self.topics = topics(&mut self.chance);
                    self.session = None;
                    self.reads.clear();
                }
                _ => {
                    self.beat().await;
                    self.read().await;
                }
            }
        }
    }
}

fn topics(chance: &mut Chance) -> Vec<&'static str> {
    match chance.below(4) {
        0 => vec!["t"],
        1 => vec!["u"],
        _ => vec!["t", "u"],
    }
}

/// Checks what the members logged: one life per epoch, no write of an old epoch after one of a newer, no offset that
/// falls.
fn violations(log: &[Accepted]) -> Vec<String> {
    let mut found = Vec::new();
    let mut by_place: BTreeMap<_, Vec<&Accepted>> = BTreeMap::new();
    for accepted in log {
        by_place.entry(&accepted.place).or_default().push(accepted);
    }
    for accepted in by_place.values() {
        let mut owners = BTreeMap::new();
        for one in accepted {
            let owner = owners.entry(one.epoch).or_insert(&one.life);
            if **owner != one.life {
                found.push(format!(
                    "two owners of {:?} in epoch {}: {owner}, {}",
                    one.place, one.epoch, one.life
                ));
            }
        }
        for before in accepted {
            for after in accepted.iter().filter(|after| before.answered < after.sent) {
                if after.epoch < before.epoch {
                    found.push(format!("a stale write took effect: {after:?} after {before:?}"));
                }
                if after.offset < before.offset {
                    found.push(format!("an offset fell: {after:?} after {before:?}"));
                }
            }
        }
    }
    found
}

#[test]
fn the_checks_see_violations() {
    let one = |epoch, offset, life: &str, sent| Accepted {
        place: ("t".to_owned(), 0),
        epoch,
        offset,
        life: life.to_owned(),
        sent,
        answered: sent + 1,
    };
    assert_eq!(violations(&[one(1, 5, "a", 0), one(2, 6, "b", 2)]), Vec::<String>::new());
    assert_eq!(violations(&[one(1, 5, "a", 0), one(1, 6, "b", 2)]).len(), 1);
    assert_eq!(violations(&[one(2, 5, "b", 0), one(1, 6, "a", 2)]).len(), 1);
    assert_eq!(violations(&[one(1, 5, "a", 0), one(1, 4, "a", 2)]).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_unruly_members_break_no_invariant() {
    let seconds = std::env::var("FULCRUM_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    let seed = test_seed();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut serving = Serving::start(folder.path(), "127.0.0.1:0").await;
    let url = serving.url.clone();
    let listen = url.strip_prefix("http://").expect("http").to_owned();
    let http = Client::builder().no_proxy().timeout(Duration::from_secs(5)).build().expect("a client");
    let put = async |path: String, body: Value| {
        let sent = http.put(format!("{url}{path}")).json(&body).send().await.expect("it answers");
        assert!(sent.status().is_success(), "{path}: {}", sent.text().await.unwrap_or_default());
    };
    for (topic, partitions) in TOPICS {
        put(format!("/topics/{topic}"), json!({ "partitions": partitions })).await;
    }
    let settings = json!({ "start": "earliest", "intervalMs": 500, "fastIntervalMs": 100, "handoverDeadlineMs": 1000,
        "ownershipExpiryMs": 2000, "graceMs": 300 });
    put("/groups/soak".to_owned(), settings).await;
    let events = usize::try_from(seconds * EVENTS_PER_SECOND).expect("a number of people");
    for id in 0..events {
        let event = json!({ "specversion": "1.0", "id": id.to_string(), "source": "/soak", "type": "t" });
        let topic = TOPICS[id % TOPICS.len()].0;
        let sent = http.post(format!("{url}/events/publish?topic={topic}")).json(&event).send().await;
        assert_eq!(sent.expect("it answers").status(), 202);
    }

    let world = Arc::new(World { url: url.clone(), ..World::default() });
    let mut tasks = Vec::new();
    for number in 0..MEMBERS {
        let mut chance = Chance::new(seed.wrapping_add(number as u64));
        let processor = Processor {
            world: world.clone(),
            http: http.clone(),
            id: format!("m{number:02}"),
            topics: topics(&mut chance),
            chance,
            session: None,
            seq: 0,
            revision: 0,
            reads: BTreeMap::new(),
        };
        tasks.push(tokio::spawn(processor.run()));
    }
    // Twice in the middle of it the host is killed and comes back.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(seconds) / 3).await;
        serving.kill().await;
        serving = Serving::start(folder.path(), &listen).await;
    }
    tokio::time::sleep(Duration::from_secs(seconds) / 3).await;

    world.is_calm.store(true, Ordering::SeqCst);
    let calm = Instant::now();
    let view = eventually(format!("the group settles (seed {seed})"), SOON * 4, async || {
        let view = serving.get("/groups/soak").await;
        let partitions = view["partitions"].as_array()?;
        let live = view["members"].as_array()?.iter().filter(|member| member["live"] == true).count();
        let owned = partitions.iter().filter(|at| at["state"] == "owned").count();
        let all = TOPICS.iter().map(|(_, partitions)| *partitions as usize).sum::<usize>();
        (live == MEMBERS && owned == all && partitions.len() == all).then_some(view)
    })
    .await;
    let settled = calm.elapsed();
    world.is_over.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("no panic");
    }

    let log = world.log.lock().await;
    let mut found = violations(&log);
    found.append(&mut *world.violations.lock().await);
    let view = if view.is_null() { view } else { serving.get("/groups/soak").await };
    for at in view["partitions"].as_array().expect("a list") {
        let place =
            (at["topic"].as_str().expect("a text").to_owned(), at["partition"].as_u64().expect("a number"));
        let best =
            log.iter().filter(|accepted| accepted.place == place).map(|accepted| accepted.offset).max();
        let stored = at["checkpoint"].as_u64();
        if best.is_some_and(|best| stored.is_none_or(|stored| stored < best)) {
            found.push(format!("{place:?}: {best:?} was acknowledged, {stored:?} is there"));
        }
    }
    let counts = world.counts.lock().await;
    assert!(found.is_empty(), "seed {seed}: {} violations, the first: {:?}", found.len(), found.first());
    assert!(
        log.len() > 200 && counts.get("joins") > Some(&50),
        "seed {seed}: too little happened: {counts:?}"
    );
    // For people: `cargo nextest run --no-capture soak`.
    let mut out = std::io::stderr().lock();
    let _ = std::io::Write::write_all(
        &mut out,
        format!(
            "soak of {seconds} s, seed {seed}: {} checkpoints, {counts:?}, settled {} ms after the last accident\n",
            log.len(),
            settled.as_millis()
        )
        .as_bytes(),
    );
}
