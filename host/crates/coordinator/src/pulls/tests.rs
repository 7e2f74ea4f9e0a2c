use std::sync::atomic::AtomicUsize;

use fulcrum_core::Timestamp;
use fulcrum_store::{Answer as Stored, Entry, Options, Position, Revision, SqliteStore, Versioned, Watch};
use serde_json::{Value, json};

use super::*;

/// Longest that a test waits for what must happen.
const BOUND: Duration = Duration::from_secs(30);

/// Shows the time it was set to.
#[derive(Default)]
struct TestClock(AtomicU64);

impl TestClock {
    fn advance(&self, span: Duration) {
        self.0.fetch_add(fulcrum_core::time::millis(span), Ordering::AcqRel);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_000_000 + self.0.load(Ordering::Acquire))
    }

    fn nanos(&self) -> u64 {
        self.0.load(Ordering::Acquire) * 1_000_000
    }
}

/// A store that refuses writes of keys with a prefix while it is told to, and counts those it does.
struct Faulty {
    inner: Arc<SqliteStore>,
    refused: Mutex<Option<&'static str>>,
    windows_written: AtomicUsize,
}

impl ClusterStore for Faulty {
    fn get<'a>(&'a self, key: &'a str) -> Stored<'a, Option<Versioned>> {
        self.inner.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Stored<'a, Vec<Entry>> {
        self.inner.list(prefix)
    }

    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        expected: Expected,
        update: Update,
    ) -> Stored<'a, Revision> {
        if self.refused.lock().is_some_and(|prefix| key.starts_with(prefix)) {
            let cause = Arc::new(std::io::Error::other("a test's disk fails"));
            let error = fulcrum_store::Error::Unavailable { operation: "write", cause };
            return Box::pin(async move { Err(error) });
        }
        if key.starts_with("pulls/windows/") {
            self.windows_written.fetch_add(1, Ordering::AcqRel);
        }
        self.inner.compare_and_swap(key, expected, update)
    }

    fn watch<'a>(&'a self, prefix: &'a str) -> Stored<'a, Watch> {
        self.inner.watch(prefix)
    }
}

struct Host {
    folder: Arc<tempfile::TempDir>,
    store: Arc<SqliteStore>,
    faulty: Arc<Faulty>,
    /// Whether the next draw of a nonce crashes.
    is_bad: Arc<AtomicBool>,
    clock: Arc<TestClock>,
    pulls: Arc<Pulls>,
    settings: Settings,
}

async fn host() -> Host {
    host_with(Settings::default()).await
}

async fn host_with(settings: Settings) -> Host {
    let folder = Arc::new(tempfile::tempdir().expect("a temporary folder"));
    open(folder, settings, Arc::default(), 1).await
}

async fn open(folder: Arc<tempfile::TempDir>, settings: Settings, clock: Arc<TestClock>, life: u128) -> Host {
    let store = SqliteStore::open(folder.path().join("store.db"), Options::default()).expect("opens");
    let store = Arc::new(store);
    let faulty = Arc::new(Faulty {
        inner: store.clone(),
        refused: Mutex::default(),
        windows_written: AtomicUsize::new(0),
    });
    let numbers = AtomicU64::new(1);
    let is_bad = Arc::new(AtomicBool::new(false));
    let crashes = is_bad.clone();
    let entropy = move || {
        assert!(!crashes.swap(false, Ordering::AcqRel), "a test's chance crashes");
        (life << 100) + u128::from(numbers.fetch_add(1, Ordering::AcqRel))
    };
    let parts = Parts {
        store: faulty.clone(),
        log: store.clone(),
        clock: clock.clone(),
        entropy: Box::new(entropy),
        settings,
    };
    let pulls = Pulls::open(parts).await.expect("opens");
    Host { folder, store, faulty, is_bad, clock, pulls, settings }
}

impl Host {
    /// Ends this life of the host without a word, and begins another.
    async fn crash(self) -> Self {
        let Self { folder, store, clock, settings, .. } = self;
        // What was accepted is done, as a disk would; nothing after it is.
        store.close().await;
        open(folder, settings, clock, 2).await
    }

    async fn publish(
        &self,
        topic: &str,
        partition: u32,
        events: impl IntoIterator<Item = Value>,
    ) -> Vec<u64> {
        let records = events.into_iter().map(|event| Bytes::from(event.to_string())).collect();
        let positions = self.store.append(topic, partition, Timestamp(1), records).await.expect("stored");
        positions.into_iter().map(|Position(position)| position).collect()
    }

    /// Makes a topic of one partition, unless it is there.
    async fn make(&self, topic: &str) {
        match self.store.create_topic(topic, 1).await {
            Ok(_) => self.pulls.topic_changed(topic).await,
            Err(error) => assert!(matches!(error, fulcrum_store::Error::TopicExists { .. }), "{error}"),
        }
    }

    async fn subscribe(&self, client: &str, wish: impl FnOnce(&mut Subscription)) -> String {
        let mut subscription = Subscription::new(client, "t", Mode::LoadBalance);
        wish(&mut subscription);
        self.make(&subscription.topic).await;
        self.pulls.subscribe(subscription).await.expect("subscribes")
    }

    /// Returns what there is now.
    async fn look(&self, client: &str) -> Vec<Delivery> {
        self.pulls.poll(client, 100, Duration::ZERO, 0).await.expect("answered")
    }

    async fn look_at(&self, client: &str) -> Vec<u64> {
        positions(&self.look(client).await)
    }

    /// Polls until something comes.
    async fn wait(&self, client: &str) -> Vec<Delivery> {
        let found = self.pulls.poll(client, 100, BOUND, 0).await.expect("answered");
        assert!(!found.is_empty(), "{client} waits for ever");
        found
    }

    async fn count(&self, name: &str) -> Counts {
        let counts = self.pulls.counts().await;
        counts.into_iter().find(|counts| counts.group == name).expect("there is such a group")
    }

    /// Waits until the counts of a group satisfy `is_it`.
    async fn until(&self, name: &str, is_it: impl Fn(&Counts) -> bool) -> Counts {
        let begun = std::time::Instant::now();
        loop {
            let counts = self.count(name).await;
            if is_it(&counts) {
                return counts;
            }
            assert!(begun.elapsed() < BOUND, "never: {counts:?}");
            tokio::task::yield_now().await;
        }
    }
}

fn positions(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(|delivery| delivery.position).collect()
}

fn event(number: u64) -> Value {
    json!({"specversion": "1.0", "id": number.to_string(), "source": "/s", "type": "t"})
}

fn keyed(number: u64, key: &str) -> Value {
    let mut event = event(number);
    event["messagegroup"] = key.into();
    event
}

fn earliest(subscription: &mut Subscription) {
    subscription.start = Some(Start::Earliest);
}

fn is_unknown(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::UnknownDelivery(_)))
}

#[tokio::test]
async fn what_is_acked_never_comes_again_and_the_rest_does() {
    let host = host().await;
    let refused = host.pulls.poll("a", 1, Duration::ZERO, 0).await.expect_err("nobody subscribed");
    assert!(matches!(refused, Error::NotSubscribed(_)), "{refused}");
    let id = host.subscribe("a", |_| {}).await;
    assert_eq!(host.subscribe("a", |_| {}).await, id, "the same subscription");
    assert_ne!(host.subscribe("b", |_| {}).await, id);
    assert!(host.look("a").await.is_empty());

    let at = host.publish("t", 0, (0..3).map(event)).await;
    let given = host.look("a").await;
    assert_eq!(positions(&given), at);
    assert_eq!((given[0].attempt, &*given[0].topic, given[0].partition), (1, "t", 0));
    assert_eq!(given[1].event, Bytes::from(event(1).to_string()));
    assert!(host.look("b").await.is_empty(), "they are leased");

    host.pulls.ack(&given[1].id, false).await.expect("acked");
    assert!(is_unknown(&host.pulls.ack(&given[1].id, false).await), "once");
    for wrong in ["", "x", "1-2-3-0000000000000004", &given[1].id.replace('-', "_")] {
        assert!(is_unknown(&host.pulls.ack(wrong, false).await), "{wrong}");
    }
    host.clock.advance(Duration::from_secs(60));
    let again = host.look("b").await;
    assert_eq!(positions(&again), [at[0], at[2]]);
    assert_eq!(again[0].attempt, 2);
    assert!(is_unknown(&host.pulls.ack(&given[0].id, false).await), "its time ran out");

    let totals = host.count("default").await.totals;
    assert_eq!((totals.delivered, totals.acked, totals.expired), (5, 1, 2));
}

#[tokio::test]
async fn a_restart_keeps_what_is_settled_and_counted() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    let at = host.publish("t", 0, (0..5).map(event)).await;
    let given = host.look("a").await;
    host.pulls.ack(&given[0].id, false).await.expect("acked");
    host.pulls.ack(&given[3].id, false).await.expect("acked");
    host.pulls.nack(&given[1].id, Some(Duration::ZERO)).await.expect("nacked");

    let host = host.crash().await;
    let again = host.look("a").await;
    assert_eq!(positions(&again), [at[1], at[2], at[4]], "without subscribing again");
    let attempts: Vec<_> = again.iter().map(|delivery| delivery.attempt).collect();
    assert_eq!(attempts, [2, 1, 1], "a delivery counts when it failed");
    assert!(is_unknown(&host.pulls.ack(&given[2].id, false).await), "an id of a former life");
    assert_eq!(host.pulls.floors("t", 0), Some(at[1]));
    assert_eq!(host.pulls.floors("other", 0), None);
}

#[tokio::test]
async fn acks_that_come_together_share_commits() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    host.publish("t", 0, (0..100).map(event)).await;
    let given = host.look("a").await;
    assert_eq!(given.len(), 100);
    let before = host.faulty.windows_written.load(Ordering::Acquire);
    let acks = given.iter().map(|delivery| host.pulls.ack(&delivery.id, false));
    for acked in join_all(acks).await {
        acked.expect("acked");
    }
    let written = host.faulty.windows_written.load(Ordering::Acquire) - before;
    assert!((1..=20).contains(&written), "{written} writes for 100 acks");
}

#[tokio::test]
async fn a_relaxed_ack_is_answered_before_it_is_stored() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    let at = host.publish("t", 0, (0..2).map(event)).await;
    let given = host.look("a").await;
    *host.faulty.refused.lock() = Some("pulls/windows/");
    host.pulls.ack(&given[0].id, true).await.expect("answered");
    host.clock.advance(Duration::from_secs(60));
    assert_eq!(host.look_at("a").await, [at[1]]);
    let host = host.crash().await;
    assert_eq!(host.look_at("a").await, at, "a crash may bring it back");
}

#[tokio::test]
async fn an_ack_that_could_not_be_stored_can_be_repeated() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    let at = host.publish("t", 0, (0..2).map(event)).await;
    let given = host.look("a").await;
    *host.faulty.refused.lock() = Some("pulls/windows/");
    for _ in 0..2 {
        let refused = host.pulls.ack(&given[0].id, false).await.expect_err("the disk fails");
        assert!(matches!(refused, Error::Store(fulcrum_store::Error::Unavailable { .. })), "{refused}");
    }
    assert_eq!(host.pulls.floors("t", 0), Some(0), "only what is stored counts");
    *host.faulty.refused.lock() = None;
    host.pulls.ack(&given[0].id, false).await.expect("stored now");
    host.until("default", |_| host.pulls.floors("t", 0) > Some(at[0])).await;
    host.pulls.ack(&given[0].id, false).await.expect("it was stored meanwhile");
    let forged = Id { nonce: 7, ..Id::parse(&given[0].id).expect("an id") };
    assert!(is_unknown(&host.pulls.ack(&forged.to_string(), false).await));
    let host = host.crash().await;
    assert_eq!(host.look_at("a").await, [at[1]]);
}

#[tokio::test]
async fn the_next_of_a_key_waits_until_an_ack_is_stored() {
    let host = host().await;
    host.subscribe("a", |wish| {
        earliest(wish);
        wish.fifo = Some(true);
    })
    .await;
    let at = host.publish("t", 0, (0..3).map(|n| keyed(n, "k"))).await;
    let given = host.look("a").await;
    assert_eq!(positions(&given), [at[0]]);
    *host.faulty.refused.lock() = Some("pulls/windows/");
    host.pulls.ack(&given[0].id, false).await.expect_err("the disk fails");
    assert_eq!(host.look_at("a").await, [0; 0], "a crash would bring the first one back");
    *host.faulty.refused.lock() = None;
    host.pulls.ack(&given[0].id, false).await.expect("stored now");
    let given = host.wait("a").await;
    assert_eq!(positions(&given), [at[1]]);
    // Whoever does not wait for the store does without that.
    *host.faulty.refused.lock() = Some("pulls/windows/");
    host.pulls.ack(&given[0].id, true).await.expect("relaxed");
    assert_eq!(host.look_at("a").await, [at[2]]);
    *host.faulty.refused.lock() = None;
}

#[tokio::test]
async fn a_poll_wakes_with_the_publish() {
    let host = host().await;
    host.subscribe("a", |_| {}).await;
    host.subscribe("a", |wish| wish.topic = "u".to_owned()).await;
    for topic in ["t", "u", "t"] {
        let (given, _) = tokio::join!(host.wait("a"), async {
            host.until("default", |counts| counts.polls_waiting == 1).await;
            host.publish(topic, 0, [event(1)]).await
        });
        assert_eq!(&*given[0].topic, topic);
        host.pulls.ack(&given[0].id, false).await.expect("acked");
    }
}

#[tokio::test]
async fn one_event_wakes_one_poll() {
    let host = host().await;
    for client in ["a", "b"] {
        host.subscribe(client, |_| {}).await;
    }
    let polls = ["a", "b"].map(|client| {
        let pulls = host.pulls.clone();
        tokio::spawn(async move { pulls.poll(client, 10, BOUND, 0).await })
    });
    host.until("default", |counts| counts.polls_waiting == 2).await;
    host.publish("t", 0, [event(1)]).await;
    host.until("default", |counts| counts.polls_waiting == 1 && counts.in_flight == 1).await;
    host.publish("t", 0, [event(2)]).await;
    let mut found = Vec::new();
    for poll in polls {
        found.extend(poll.await.expect("no panic").expect("answered"));
    }
    assert_eq!(found.len(), 2);
}

#[tokio::test]
async fn a_poll_that_gives_up_loses_nothing() {
    let host = host().await;
    host.subscribe("a", |wish| wish.invisible = Some(Duration::from_secs(3600))).await;
    let mut seen = 0;
    // Timeouts and dropped polls at every moment around the publish.
    for turn in 0..200_u64 {
        let poll = host.pulls.poll("a", 10, Duration::from_micros(turn * 20), 0);
        let (found, _) = tokio::join!(
            tokio::time::timeout(Duration::from_micros(turn % 7 * 300), poll),
            host.publish("t", 0, [event(turn)])
        );
        for delivery in found.into_iter().flat_map(|polled| polled.expect("answered")) {
            host.pulls.ack(&delivery.id, false).await.expect("acked");
            seen += 1;
        }
    }
    while seen < 200 {
        for delivery in host.wait("a").await {
            host.pulls.ack(&delivery.id, false).await.expect("acked");
            seen += 1;
        }
    }
    assert_eq!(host.count("default").await.in_flight, 0);
    assert!(host.look("a").await.is_empty());
}

#[tokio::test]
async fn a_client_has_only_so_many_in_hand() {
    let host = host_with(Settings { in_flight_max: 3, ..Settings::default() }).await;
    for client in ["a", "b"] {
        host.subscribe(client, earliest).await;
    }
    let at = host.publish("t", 0, (0..5).map(event)).await;
    let given = host.look("a").await;
    assert_eq!(positions(&given), at[..3]);
    assert!(host.look("a").await.is_empty());
    assert_eq!(host.look_at("b").await, at[3..], "others go on");
    let (more, _) = tokio::join!(host.wait("a"), async {
        host.until("default", |counts| counts.polls_waiting == 1).await;
        host.pulls.ack(&given[0].id, false).await.expect("acked");
        host.publish("t", 0, [event(5)]).await
    });
    assert_eq!(more.len(), 1);
}

#[tokio::test]
async fn private_groups_get_every_event_or_what_their_filters_let_through() {
    let host = host().await;
    host.subscribe("a", |wish| wish.mode = Mode::Broadcast).await;
    host.subscribe("b", |wish| wish.mode = Mode::Multicast).await;
    let filters = |value: Value| Some(Filters::parse(&value).expect("valid"));
    host.subscribe("c", |wish| {
        wish.mode = Mode::Multicast;
        wish.filters = filters(json!([{"any": [{"exact": {"id": "1"}}, {"suffix": {"id": "3"}}]}]));
    })
    .await;
    host.subscribe("d", |wish| {
        wish.group = Some("g".to_owned());
        wish.filters = filters(json!([{"not": {"exact": {"id": "1"}}}]));
    })
    .await;
    let at = host.publish("t", 0, (0..4).map(event)).await;
    assert_eq!(host.look_at("a").await, at);
    assert_eq!(host.look_at("b").await, at);
    assert_eq!(host.look_at("c").await, [at[1], at[3]]);
    assert_eq!(host.look_at("d").await, [at[0], at[2], at[3]]);
    assert_eq!(host.count("c").await.totals.filtered, 2);
    assert_eq!(host.pulls.floors("t", 0), Some(0), "only shared groups hold the log");

    let check = async |mode, change: fn(&mut Subscription), expected: &str| {
        let mut wish = Subscription::new("d", "t", mode);
        change(&mut wish);
        let refused = host.pulls.subscribe(wish).await.expect_err(expected);
        let field = match refused {
            Error::Invalid { field, .. } | Error::Conflict { field, .. } => field,
            other => panic!("{other}"),
        };
        assert_eq!(field, expected);
    };
    let shared = Mode::LoadBalance;
    check(Mode::Broadcast, |wish| wish.group = Some("g".to_owned()), "group").await;
    check(Mode::Broadcast, |wish| wish.filters = Some(Filters(vec![Filter::Any(Vec::new())])), "filters")
        .await;
    check(shared, |wish| wish.group = Some("a/b".to_owned()), "group").await;
    check(shared, |wish| wish.client = String::new(), "clientId").await;
    check(shared, |wish| wish.topic = "\n".to_owned(), "topic").await;
    check(shared, |wish| wish.invisible = Some(Duration::ZERO), "invisibleMs").await;
    check(shared, |wish| wish.deliveries_max = Some(0), "maxDeliveries").await;
    fn of_g(wish: &mut Subscription) {
        wish.group = Some("g".to_owned());
    }
    check(
        shared,
        |wish| {
            of_g(wish);
            wish.filters = Some(Filters::default());
        },
        "filters",
    )
    .await;
    check(
        shared,
        |wish| {
            of_g(wish);
            wish.fifo = Some(true);
        },
        "fifo",
    )
    .await;
    check(
        shared,
        |wish| {
            of_g(wish);
            wish.invisible = Some(Duration::from_secs(5));
        },
        "invisibleMs",
    )
    .await;
    check(
        shared,
        |wish| {
            of_g(wish);
            wish.deliveries_max = Some(3);
        },
        "maxDeliveries",
    )
    .await;
    check(Mode::Broadcast, |wish| wish.client = "b".to_owned(), "mode").await;
}

#[tokio::test]
async fn a_stuck_key_blocks_no_other_even_over_a_full_window_and_a_restart() {
    let host = host_with(Settings { window: 50, ..Settings::default() }).await;
    host.subscribe("a", |wish| {
        earliest(wish);
        wish.fifo = Some(true);
        wish.invisible = Some(Duration::from_secs(40));
    })
    .await;
    assert!(host.pulls.is_fifo_reading("t") && !host.pulls.is_fifo_reading("u"));
    let at = host.publish("t", 0, (0..4).map(|n| keyed(n, "stuck"))).await;
    let first = host.look("a").await;
    assert_eq!(positions(&first), at[..1], "one of a key at a time");
    let others = host.publish("t", 0, (10..310).map(|n| keyed(n, &format!("k{n}")))).await;
    let mut seen = Vec::new();
    while seen.len() < others.len() {
        let given = host.wait("a").await;
        seen.extend(positions(&given));
        for delivery in given {
            host.pulls.ack(&delivery.id, false).await.expect("acked");
        }
    }
    assert_eq!(seen, others);
    let counts = host.count("default").await;
    assert!(counts.parked >= 3, "{counts:?}");

    let host = host.crash().await;
    for (turn, position) in at.iter().enumerate() {
        let given = host.wait("a").await;
        assert_eq!(positions(&given), [*position]);
        assert_eq!(given[0].event, Bytes::from(keyed(turn as u64, "stuck").to_string()));
        host.pulls.ack(&given[0].id, false).await.expect("acked");
    }
    let host = host.crash().await;
    assert!(host.look("a").await.is_empty(), "all is settled, parked ones too");
    let counts = host.count("default").await;
    assert_eq!((counts.parked, counts.lag), (0, 0), "{counts:?}");
}

#[tokio::test]
async fn a_refused_event_waits_as_long_as_asked_and_a_lease_can_be_prolonged() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    let at = host.publish("t", 0, (0..3).map(event)).await;
    let given = host.look("a").await;
    host.pulls.nack(&given[0].id, Some(Duration::from_secs(5))).await.expect("nacked");
    host.pulls.nack(&given[1].id, None).await.expect("nacked");
    let id = host.pulls.extend(&given[2].id, Duration::from_secs(600)).await.expect("extended");
    assert!(is_unknown(&host.pulls.ack(&given[2].id, false).await), "the old id is over");
    assert!(is_unknown(&host.pulls.nack(&given[0].id, None).await));
    assert!(matches!(
        host.pulls.extend(&given[1].id, Duration::from_secs(5)).await,
        Err(Error::UnknownDelivery(_))
    ));
    assert!(matches!(host.pulls.extend(&id, Duration::ZERO).await, Err(Error::Invalid { .. })));
    assert!(matches!(host.pulls.nack(&id, Some(Duration::MAX)).await, Err(Error::Invalid { .. })));
    assert!(host.look("a").await.is_empty());
    host.clock.advance(Duration::from_secs(5));
    assert_eq!(host.look_at("a").await, [at[0]]);
    host.clock.advance(Duration::from_secs(5));
    assert_eq!(host.look_at("a").await, [at[1]], "10 s by the table");
    host.clock.advance(Duration::from_secs(500));
    host.pulls.ack(&id, false).await.expect("still leased");
}

#[tokio::test]
async fn a_long_wait_does_not_hold_the_log() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    let at = host.publish("t", 0, (0..2).map(event)).await;
    let given = host.look("a").await;
    host.pulls.nack(&given[0].id, Some(Duration::from_secs(3600))).await.expect("nacked");
    host.pulls.ack(&given[1].id, false).await.expect("acked");
    host.until("default", |_| host.pulls.floors("t", 0) > Some(at[1])).await;
    let counts = host.count("default").await;
    assert_eq!((counts.parked, counts.lag), (1, 1), "it is still to be settled");
    host.store.trim("t", 0, Position(at[1] + 1)).await.expect("trimmed");
    let host = host.crash().await;
    let again = host.look("a").await;
    assert_eq!(positions(&again), [at[0]]);
    assert_eq!((again[0].attempt, &again[0].event), (2, &given[0].event));
    *host.faulty.refused.lock() = Some("pulls/parked/");
    host.pulls.ack(&again[0].id, false).await.expect_err("its record cannot be removed");
    *host.faulty.refused.lock() = None;
    host.pulls.ack(&again[0].id, false).await.expect("acked");
    let host = host.crash().await;
    assert!(host.look("a").await.is_empty());
    assert!(host.store.list("pulls/parked").await.expect("listed").is_empty(), "no record is left");
}

#[tokio::test]
async fn dead_letters_are_kept_and_can_be_given_back() {
    let host = host().await;
    for group in ["g", "h"] {
        host.subscribe("a", |wish| {
            earliest(wish);
            wish.group = Some(group.to_owned());
            wish.deliveries_max = Some(2);
        })
        .await;
    }
    let at = host.publish("t", 0, (0..3).map(event)).await;
    for _ in 0..2 {
        let mut seen = 0;
        while seen < 6 {
            for delivery in host.wait("a").await {
                host.pulls.nack(&delivery.id, Some(Duration::ZERO)).await.expect("nacked");
                seen += 1;
            }
        }
    }
    host.until("g", |counts| counts.totals.dead == 3).await;
    host.until("h", |counts| counts.totals.dead == 3).await;
    assert!(host.look("a").await.is_empty());

    let host = host.crash().await;
    assert!(host.look("a").await.is_empty());
    let letters = host.pulls.dead_letters("t", Some("g"), 100, None).await.expect("listed");
    assert_eq!(letters.iter().map(|letter| letter.position).collect::<Vec<_>>(), at);
    let letter = &letters[0];
    assert_eq!((letter.attempts, &*letter.reason, &*letter.group), (2, "rejected", "g"));
    assert_eq!(letter.event, Bytes::from(event(0).to_string()));
    let mut pages = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = host.pulls.dead_letters("t", None, 2, after.as_deref()).await.expect("listed");
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        pages.extend(page.into_iter().map(|letter| letter.id));
    }
    assert_eq!(pages.len(), 6);
    assert!(host.pulls.dead_letters("t", None, 2, Some("x")).await.is_err());
    assert!(host.pulls.dead_letters("u", None, 2, None).await.expect("listed").is_empty());

    let one = [letters[1].id.clone(), "shared/g/000000/00000000000000000099".to_owned(), "x".to_owned()];
    assert_eq!(host.pulls.redrive("t", None, Some(&one)).await.expect("given back"), 1);
    let again = host.wait("a").await;
    assert_eq!((positions(&again), again[0].attempt), (vec![at[1]], 1));
    assert_eq!(again[0].event, letters[1].event);
    host.pulls.ack(&again[0].id, false).await.expect("acked");
    assert_eq!(host.pulls.redrive("t", Some("h"), None).await.expect("given back"), 3);
    assert_eq!(host.pulls.redrive("t", None, None).await.expect("given back"), 2);
    assert!(matches!(host.pulls.redrive("t", Some("x"), None).await, Err(Error::UnknownGroup { .. })));
    assert!(host.pulls.dead_letters("t", None, 2, None).await.expect("listed").is_empty());

    let host = host.crash().await;
    let mut seen = Vec::new();
    while seen.len() < 5 {
        for delivery in host.wait("a").await {
            host.pulls.ack(&delivery.id, false).await.expect("acked");
            seen.push(delivery.position);
        }
    }
    let host = host.crash().await;
    assert!(host.look("a").await.is_empty());
    assert!(host.store.list("pulls/dead").await.expect("listed").is_empty(), "no record is left");
}

#[tokio::test]
async fn a_dead_letter_that_cannot_be_stored_is_not_lost() {
    let host = host().await;
    host.subscribe("a", |wish| {
        earliest(wish);
        wish.deliveries_max = Some(1);
    })
    .await;
    host.publish("t", 0, [event(0)]).await;
    let given = host.look("a").await;
    *host.faulty.refused.lock() = Some("pulls/dead");
    host.pulls.nack(&given[0].id, None).await.expect("nacked");
    assert!(host.look("a").await.is_empty());
    assert_eq!(host.count("default").await.dying, 1);
    assert_eq!(host.pulls.floors("t", 0), Some(given[0].position), "it holds the log");
    let host = host.crash().await;
    assert!(host.look("a").await.is_empty());
    host.until("default", |counts| counts.totals.dead == 1).await;
    let letters = host.pulls.dead_letters("t", None, 9, None).await.expect("listed");
    assert_eq!((letters.len(), &*letters[0].reason), (1, "unknown"));
}

#[tokio::test]
async fn what_the_log_has_to_drop_becomes_dead_letters() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    assert!(host.pulls.expire_below("t", 0, 1000, 10).await.expect("done"), "there is nothing");
    let at = host.publish("t", 0, (0..30).map(event)).await;
    let given = host.pulls.poll("a", 5, BOUND, 0).await.expect("answered");
    host.pulls.ack(&given[2].id, false).await.expect("acked");
    let mut calls = 0;
    while !host.pulls.expire_below("t", 0, at[20], 8).await.expect("done") {
        calls += 1;
        assert!(calls < 10, "it never ends");
    }
    assert_eq!(host.pulls.floors("t", 0), Some(at[20]));
    let letters = host.pulls.dead_letters("t", None, 100, None).await.expect("listed");
    assert_eq!(letters.len(), 19);
    assert!(letters.iter().all(|letter| letter.reason == "expired"));
    assert!(is_unknown(&host.pulls.ack(&given[0].id, false).await));
    assert_eq!(host.look_at("a").await, at[20..]);
    assert!(host.pulls.expire_below("u", 0, 1, 1).await.expect("nobody reads it"));
}

#[tokio::test]
async fn what_was_trimmed_away_is_passed_over() {
    let host = host().await;
    host.subscribe("a", |wish| {
        earliest(wish);
        wish.mode = Mode::Broadcast;
    })
    .await;
    let at = host.publish("t", 0, (0..5).map(event)).await;
    assert_eq!(host.look_at("a").await, at);
    let later = host.publish("t", 0, (5..8).map(event)).await;
    host.store.trim("t", 0, Position(later[1])).await.expect("trimmed");
    host.clock.advance(Duration::from_secs(60));
    assert_eq!(positions(&host.wait("a").await), later[1..]);
    let counts = host.until("a", |counts| counts.ready == 0).await;
    assert_eq!((counts.in_flight, counts.dying), (2, 0));
}

#[tokio::test]
async fn many_may_make_one_group_at_once() {
    let host = host().await;
    host.make("t").await;
    let clients: Vec<_> = (0..20).map(|number| format!("c{number}")).collect();
    let subscribe = |client: &String| host.pulls.subscribe(Subscription::new(client, "t", Mode::LoadBalance));
    let ids: std::collections::BTreeSet<_> =
        join_all(clients.iter().map(subscribe)).await.into_iter().map(|id| id.expect("subscribes")).collect();
    assert_eq!(ids.len(), 20);
    assert_eq!(host.count("default").await.subscribers, 20);
    assert_eq!(host.pulls.counts().await.len(), 1);
}

#[tokio::test]
async fn deliveries_of_who_left_come_back_early() {
    let host = host().await;
    for client in ["a", "b"] {
        host.subscribe(client, earliest).await;
    }
    let at = host.publish("t", 0, (0..2).map(event)).await;
    let connection = host.pulls.connection("a").expect("subscribed");
    let over = host.pulls.poll("a", 1, BOUND, connection.via()).await.expect("answered");
    let by_poll = host.pulls.poll("a", 1, BOUND, 0).await.expect("answered");
    assert_eq!((positions(&over), positions(&by_poll)), (vec![at[0]], vec![at[1]]));
    drop(connection);
    assert!(host.look("b").await.is_empty(), "its answer may be on the way");
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(host.look_at("b").await, at[..1]);

    assert_eq!(host.pulls.unsubscribe("a", Some("u")).await.expect("done"), 0);
    assert_eq!(host.pulls.unsubscribe("a", None).await.expect("done"), 1);
    assert!(matches!(host.pulls.poll("a", 1, Duration::ZERO, 0).await, Err(Error::NotSubscribed(_))));
    assert!(host.pulls.connection("a").is_err());
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(host.look_at("b").await, at[1..]);
    let host = host.crash().await;
    assert!(matches!(host.pulls.poll("a", 1, Duration::ZERO, 0).await, Err(Error::NotSubscribed(_))));
    assert_eq!(host.pulls.names(), [("default".to_owned(), vec!["t".to_owned()])].into());
}

#[tokio::test]
async fn what_is_not_used_is_dropped() {
    let host = host().await;
    host.subscribe("a", |wish| wish.mode = Mode::Broadcast).await;
    host.subscribe("b", |wish| wish.mode = Mode::Broadcast).await;
    host.subscribe("c", |_| {}).await;
    host.clock.advance(Duration::from_secs(400));
    host.look("b").await;
    host.clock.advance(Duration::from_secs(400));
    host.pulls.sweep().await;
    assert!(matches!(host.pulls.poll("a", 1, Duration::ZERO, 0).await, Err(Error::NotSubscribed(_))));
    host.look("b").await;
    host.look("c").await;
    assert_eq!(host.pulls.unsubscribe("b", Some("t")).await.expect("done"), 1);
    host.clock.advance(Duration::from_secs(25 * 3600));
    host.pulls.sweep().await;
    assert!(matches!(host.pulls.poll("c", 1, Duration::ZERO, 0).await, Err(Error::NotSubscribed(_))));
    let left: Vec<_> =
        host.store.list("pulls/").await.expect("listed").into_iter().map(|at| at.key).collect();
    assert_eq!(left, ["pulls/readers/shared/default/t"], "a shared group stays");
    host.pulls.delete_group("default").await.expect("deleted");
    assert!(matches!(host.pulls.delete_group("default").await, Err(Error::UnknownGroup { .. })));
    assert!(host.store.list("pulls/").await.expect("listed").is_empty());
    assert!(host.pulls.counts().await.is_empty());
}

#[tokio::test]
async fn a_group_follows_its_topic() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    host.publish("t", 0, (0..3).map(event)).await;
    let given = host.look("a").await;
    host.pulls.ack(&given[0].id, false).await.expect("acked");

    host.store.grow_topic("t", 3).await.expect("grown");
    let (more, _) = tokio::join!(host.wait("a"), async {
        host.until("default", |counts| counts.polls_waiting == 1).await;
        host.pulls.topic_changed("t").await;
        host.publish("t", 2, [event(7)]).await
    });
    assert_eq!(more[0].partition, 2);

    host.store.delete_topic("t").await.expect("deleted");
    host.pulls.topic_changed("t").await;
    assert!(host.look("a").await.is_empty());
    assert!(is_unknown(&host.pulls.ack(&given[1].id, false).await));
    host.store.create_topic("t", 1).await.expect("made");
    host.pulls.topic_changed("t").await;
    let at = host.publish("t", 0, [event(8)]).await;
    let given = host.wait("a").await;
    assert_eq!(positions(&given), at);
    host.pulls.ack(&given[0].id, false).await.expect("acked");
    // Somebody tells late of the topic that is gone.
    host.pulls.topic_changed("t").await;
    assert!(host.look("a").await.is_empty(), "what was acked stays so");

    // Deleted and made anew, and the host stopped before anybody heard of it.
    host.store.delete_topic("t").await.expect("deleted");
    host.store.create_topic("t", 1).await.expect("made");
    let host = host.crash().await;
    let at = host.publish("t", 0, (0..2).map(event)).await;
    assert_eq!(positions(&host.wait("a").await), at, "positions of the former topic mean nothing");
}

#[tokio::test]
async fn a_new_group_starts_where_it_was_told() {
    let host = host().await;
    host.store.create_topic("t", 2).await.expect("made");
    host.publish("t", 1, (0..3).map(event)).await;
    host.subscribe("late", |wish| wish.group = Some("late".to_owned())).await;
    host.subscribe("early", |wish| {
        earliest(wish);
        wish.group = Some("early".to_owned());
    })
    .await;
    assert_eq!(host.look("early").await.len(), 3);
    assert!(host.look("late").await.is_empty());
    let host = host.crash().await;
    host.publish("t", 1, [event(3)]).await;
    assert_eq!(host.look("late").await.len(), 1, "it started at the end of then, not of now");
    assert_eq!(host.count("early").await.lag, 4);
}

#[tokio::test]
async fn partitions_take_turns() {
    let host = host().await;
    host.store.create_topic("t", 3).await.expect("made");
    host.subscribe("a", earliest).await;
    host.publish("t", 0, (0..2000).map(event)).await;
    host.publish("t", 1, [event(1)]).await;
    host.publish("t", 2, [event(2)]).await;
    let mut seen = std::collections::BTreeSet::new();
    let first = host.pulls.poll("a", 10, BOUND, 0).await.expect("answered");
    seen.extend(first.iter().map(|delivery| delivery.partition));
    // All three were read for the first poll, the first one as far as one read goes.
    let read = u64::from(jobs::READ_RECORDS) + 2;
    host.until("default", |counts| counts.ready + counts.in_flight == read).await;
    for _ in 0..3 {
        let given = host.pulls.poll("a", 10, BOUND, 0).await.expect("answered");
        seen.extend(given.iter().map(|delivery| delivery.partition));
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

#[tokio::test]
async fn only_a_window_of_what_is_unread_is_held() {
    let host = host_with(Settings { window: 100, ..Settings::default() }).await;
    host.subscribe("a", earliest).await;
    for batch in 0..10_u64 {
        host.publish("t", 0, (0..1000).map(|n| event(batch * 1000 + n))).await;
    }
    let mut seen = 0;
    while seen < 300 {
        let given = host.wait("a").await;
        seen += given.len();
        let counts = host.count("default").await;
        let held = counts.ready + counts.waiting + counts.in_flight;
        assert!(held <= 100, "{counts:?}");
        assert!(counts.lag > 9000, "{counts:?}");
        for acked in join_all(given.iter().map(|delivery| host.pulls.ack(&delivery.id, false))).await {
            acked.expect("acked");
        }
    }
}

#[tokio::test]
async fn large_events_come_one_after_the_other() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    let large = |number: u64| {
        let mut event = event(number);
        event["data"] = "x".repeat(900_000).into();
        event
    };
    for number in 0..12 {
        host.publish("t", 0, [large(number)]).await;
    }
    let mut seen = Vec::new();
    while seen.len() < 12 {
        for delivery in host.wait("a").await {
            assert_eq!(delivery.event, Bytes::from(large(seen.len() as u64).to_string()));
            seen.push(delivery.position);
        }
    }
}

#[tokio::test]
async fn large_dead_letters_are_paged_and_come_one_after_the_other() {
    let host = host().await;
    host.subscribe("a", |wish| {
        earliest(wish);
        wish.deliveries_max = Some(1);
    })
    .await;
    let large = |number: u64| {
        let mut event = event(number);
        event["data"] = "x".repeat(1_000_000).into();
        event
    };
    let mut at = Vec::new();
    for number in 0..7 {
        at.extend(host.publish("t", 0, [large(number)]).await);
        for delivery in host.wait("a").await {
            host.pulls.nack(&delivery.id, None).await.expect("nacked");
        }
    }
    host.until("default", |counts| counts.totals.dead == 7).await;
    let page = host.pulls.dead_letters("t", None, 100, None).await.expect("listed");
    assert_eq!(page.len(), 5, "a page is bounded in bytes");
    let rest = host.pulls.dead_letters("t", None, 100, Some(&page[4].id)).await.expect("listed");
    assert_eq!(rest.len(), 2);

    assert_eq!(host.pulls.redrive("t", None, None).await.expect("given back"), 7);
    let mut seen = Vec::new();
    while seen.len() < 7 {
        for delivery in host.wait("a").await {
            assert_eq!(delivery.event, Bytes::from(large(seen.len() as u64).to_string()));
            seen.push(delivery.position);
        }
    }
    assert_eq!(seen, at);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_dies_again_while_dead_letters_are_given_back_is_not_lost() {
    const COUNT: u64 = 300;
    let host = host().await;
    host.subscribe("a", |wish| {
        earliest(wish);
        wish.deliveries_max = Some(1);
    })
    .await;
    host.publish("t", 0, (0..COUNT).map(event)).await;
    let refuse = async |dead: u64| {
        while host.count("default").await.totals.dead < dead {
            let given = host.pulls.poll("a", 300, Duration::from_millis(20), 0).await.expect("answered");
            // All at once, so that they die faster than their former dead letters go.
            let nack = async |delivery: &Delivery| host.pulls.nack(&delivery.id, None).await.expect("nacked");
            join_all(given.iter().map(nack)).await;
        }
    };
    refuse(COUNT).await;
    let (redriven, ()) = tokio::join!(host.pulls.redrive("t", None, None), refuse(2 * COUNT));
    assert_eq!(redriven.expect("given back"), 300);
    let letters = host.pulls.dead_letters("t", None, 1000, None).await.expect("listed");
    assert_eq!(letters.len(), 300);
}

#[tokio::test]
async fn a_long_wait_for_what_was_trimmed_is_over() {
    let host = host().await;
    host.subscribe("a", |wish| {
        earliest(wish);
        wish.mode = Mode::Broadcast;
    })
    .await;
    let at = host.publish("t", 0, (0..2).map(event)).await;
    let given = host.look("a").await;
    host.store.trim("t", 0, Position(at[1] + 1)).await.expect("trimmed");
    for delivery in &given {
        host.pulls.nack(&delivery.id, Some(Duration::from_secs(3600))).await.expect("nacked");
    }
    let counts = host.until("a", |counts| counts.waiting == 0).await;
    assert_eq!((counts.in_flight, counts.parked, counts.dying), (0, 0, 0));
    assert!(host.store.list("pulls/parked").await.expect("listed").is_empty());
}

#[tokio::test]
async fn a_group_whose_state_cannot_be_read_can_be_deleted() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    let at = host.publish("t", 0, (0..2).map(event)).await;
    let key = "pulls/windows/shared/default/t/000000";
    jobs::put(&*host.store, key, Bytes::from_static(b"x")).await.expect("stored");
    let host = host.crash().await;
    let polled = host.pulls.poll("a", 1, BOUND, 0).await;
    assert!(matches!(&polled, Err(Error::Corrupt { key: at, .. }) if at == key), "{polled:?}");
    host.pulls.delete_group("default").await.expect("deleted");
    assert!(host.store.list("pulls/").await.expect("listed").is_empty());
    host.subscribe("a", earliest).await;
    assert_eq!(host.look_at("a").await, at);
}

#[tokio::test]
async fn a_deletion_that_failed_half_way_can_be_repeated() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    host.publish("t", 0, (0..2).map(event)).await;
    let given = host.look("a").await;
    host.pulls.ack(&given[0].id, false).await.expect("acked");
    *host.faulty.refused.lock() = Some("pulls/windows/");
    host.pulls.delete_group("default").await.expect_err("its window cannot be removed");
    let polled = host.pulls.poll("a", 1, BOUND, 0).await;
    assert!(matches!(polled, Err(Error::NotSubscribed(_))), "nothing can come: {polled:?}");
    *host.faulty.refused.lock() = None;
    host.pulls.delete_group("default").await.expect("deleted");
    assert!(host.store.list("pulls/").await.expect("listed").is_empty());
    assert!(matches!(host.pulls.delete_group("default").await, Err(Error::UnknownGroup { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_was_answered_is_stored_even_while_its_group_is_deleted() {
    let host = host().await;
    for _ in 0..50 {
        host.subscribe("a", earliest).await;
        let deleting = tokio::spawn({
            let pulls = host.pulls.clone();
            async move { pulls.delete_group("default").await }
        });
        host.subscribe("b", earliest).await;
        deleting.await.expect("no crash").expect("deleted");
        let is_subscribed =
            !matches!(host.pulls.poll("b", 1, Duration::ZERO, 0).await, Err(Error::NotSubscribed(_)));
        let is_stored = host.store.get("pulls/subscribers/shared/default/t/b").await.expect("read").is_some();
        let is_group = host.store.get("pulls/readers/shared/default/t").await.expect("read").is_some();
        assert_eq!((is_subscribed, is_subscribed), (is_stored, is_group));
        assert_eq!(host.pulls.is_group("default"), is_group);
    }
}

#[tokio::test]
async fn subscriptions_are_bounded() {
    let host = host().await;
    for number in 0..SUBSCRIPTIONS_MAX {
        let name = Name { topic: number.to_string().into(), kind: Kind::Shared, group: "g".into() };
        host.pulls.subscribed(&name, "a", String::new());
    }
    let wish = Subscription::new("a", "t", Mode::LoadBalance);
    assert!(matches!(host.pulls.subscribe(wish).await, Err(Error::TooMany { max: SUBSCRIPTIONS_MAX, .. })));
    host.subscribe("b", earliest).await;
    for (max, multiplier) in [(DELAY_MAX + Duration::from_secs(1), 2), (Duration::from_secs(1), 0)] {
        let mut wish = Subscription::new("b", "t", Mode::LoadBalance);
        wish.backoff = Some(Backoff::Exponential { initial: Duration::ZERO, max, multiplier });
        let refused = host.pulls.subscribe(wish).await;
        assert!(matches!(refused, Err(Error::Invalid { field: "backoff", .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn a_group_whose_task_crashed_comes_back_from_the_store() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    let at = host.publish("t", 0, (0..3).map(event)).await;
    let given = host.pulls.poll("a", 2, BOUND, 0).await.expect("answered");
    host.pulls.ack(&given[0].id, false).await.expect("acked");
    host.is_bad.store(true, Ordering::Release);
    assert!(host.look("a").await.is_empty(), "the task crashed");
    assert!(matches!(host.pulls.ack(&given[1].id, false).await, Err(Error::Restarted)));
    assert!(is_unknown(&host.pulls.ack(&given[1].id, false).await), "of a former life");
    assert_eq!(host.look_at("a").await, at[1..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_clients_settle_everything_once() {
    let host = Arc::new(host().await);
    host.store.create_topic("t", 4).await.expect("made");
    let clients: Vec<_> = (0..8).map(|number| format!("c{number}")).collect();
    for client in &clients {
        host.subscribe(client, earliest).await;
    }
    let seen = Arc::new(Mutex::new(std::collections::BTreeSet::new()));
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let (host, seen) = (host.clone(), seen.clone());
            tokio::spawn(async move {
                while seen.lock().len() < 2000 {
                    let given = host.pulls.poll(&client, 20, Duration::from_millis(20), 0).await;
                    for delivery in given.expect("answered") {
                        let place = (delivery.partition, delivery.position);
                        assert!(seen.lock().insert(place), "{place:?} came twice");
                        host.pulls.ack(&delivery.id, false).await.expect("acked");
                    }
                }
            })
        })
        .collect();
    for batch in 0..100_u64 {
        let partition = u32::try_from(batch % 4).expect("small");
        host.publish("t", partition, (0..20).map(|n| event(batch * 20 + n))).await;
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let counts = host.until("default", |counts| counts.totals.acked == 2000).await;
    assert_eq!((counts.totals.delivered, counts.in_flight, counts.lag), (2000, 0, 0));
}

#[tokio::test]
async fn stopping_answers_everybody_and_stores_what_is_in_hand() {
    let host = host().await;
    host.subscribe("a", earliest).await;
    let at = host.publish("t", 0, (0..3).map(event)).await;
    let given = host.look("a").await;
    let poll = {
        let pulls = host.pulls.clone();
        tokio::spawn(async move { pulls.poll("a", 10, BOUND, 0).await })
    };
    host.until("default", |counts| counts.polls_waiting == 1).await;
    host.pulls.ack(&given[2].id, true).await.expect("acked");
    let (acked, ()) = tokio::join!(host.pulls.ack(&given[0].id, false), host.pulls.stop());
    acked.expect("it came before the end");
    assert_eq!(poll.await.expect("no panic").expect("answered"), []);
    assert!(matches!(host.pulls.ack(&given[1].id, false).await, Err(Error::Stopping)));
    assert!(matches!(host.pulls.poll("a", 1, BOUND, 0).await, Err(Error::Stopping)));
    assert!(matches!(
        host.pulls.subscribe(Subscription::new("a", "t", Mode::Broadcast)).await,
        Err(Error::Stopping)
    ));
    let host = host.crash().await;
    assert_eq!(host.look_at("a").await, at[1..2], "relaxed ones were stored too");
}
