use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::sessions;

const SECOND: u64 = 1000;

#[derive(Default)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }

    fn nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed) * 1_000_000
    }
}

/// A host's sessions and turns under a clock that stands still until it is moved.
struct World {
    turns: Arc<Turns>,
    sessions: Arc<Sessions>,
    clock: Arc<TestClock>,
}

impl World {
    fn new(settings: Settings) -> Self {
        let counter = || {
            let mut next = 0;
            Box::new(move || {
                next += 1;
                next
            })
        };
        let clock = Arc::new(TestClock::default());
        let of_sessions = sessions::Settings { require_agent: false, ..sessions::Settings::default() };
        let sessions = Arc::new(Sessions::new(of_sessions, counter()));
        let turns = Turns::new(settings, sessions.clone(), clock.clone(), counter());
        Self { turns, sessions, clock }
    }

    fn agent(&self, id: &str) {
        self.sessions.register(id, vec![], 1000, self.clock.now()).expect("valid");
        self.sessions.ready(id, self.clock.now()).expect("registered");
    }

    fn open(&self) -> Arc<str> {
        self.sessions.open("c", None, self.clock.now()).expect("there is room").session_id
    }

    fn start(&self, session: &str) -> Result<Reply, Error> {
        self.turns.start(session, "why?".to_owned(), None, None)
    }

    fn pass(&self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
        self.turns.expire(self.clock.now());
    }

    /// What waits for an agent: turns, and `-` before those that are cancelled.
    fn take(&self, agent: &str) -> Result<Vec<String>, Error> {
        let orders = self.turns.orders(agent, 100, Instant::now(), true);
        let orders = orders.now_or_never().expect("it does not wait")?;
        let shown = |order| match order {
            Order::Turn { turn, .. } => turn.to_string(),
            Order::Cancelled { turn } => format!("-{turn}"),
        };
        Ok(orders.into_iter().map(shown).collect())
    }
}

fn chunk(seq: u64, text: &str) -> Chunk {
    Chunk { seq, text: text.to_owned(), ..Chunk::default() }
}

fn done(seq: u64, error: Option<&str>) -> Chunk {
    Chunk { done: true, error: error.map(str::to_owned), ..chunk(seq, "") }
}

/// Everything that is there to be read, as `seq:text`, with `!` and the error after a done chunk.
fn read(reply: &mut Reply) -> Vec<String> {
    let mut found = Vec::new();
    while let Some(Some(chunk)) = reply.next().now_or_never() {
        found.push(show(chunk.seq, &chunk));
    }
    found
}

fn show(seq: u64, chunk: &Chunk) -> String {
    let end = if chunk.done { format!("!{}", chunk.error.as_deref().unwrap_or("")) } else { String::new() };
    format!("{seq}:{}{end}", chunk.text)
}

fn heard(subscriber: &mut Subscriber) -> Vec<String> {
    let mut found = Vec::new();
    while let Some(Some(told)) = subscriber.next().now_or_never() {
        found.push(match told {
            Told::Chunk { position, chunk } => show(position, &chunk),
            Told::Gap { missed, next } => format!("gap of {missed} to {next}"),
        });
    }
    found
}

fn outcomes(counts: &Counts) -> Vec<&'static str> {
    let ended = Outcome::ALL.iter().zip(counts.ended);
    ended.flat_map(|(outcome, count)| (0..count).map(|_| outcome.name())).collect()
}

#[tokio::test]
async fn an_answer_comes_back_in_order() {
    let world = World::new(Settings::default());
    world.agent("a");
    let session = world.open();
    let mut reply =
        world.turns.start(&session, "why?".to_owned(), Some("m".to_owned()), None).expect("it is open");
    let counts = world.turns.counts();
    assert_eq!((counts.running, counts.waiting), (1, 1));
    world.clock.0.store(SECOND, Ordering::Relaxed);
    let orders = world.turns.orders("a", 9, Instant::now(), true).await.expect("registered");
    let [Order::Turn { turn, session: asked, prompt, model, left }] = &orders[..] else {
        panic!("{orders:?}")
    };
    assert_eq!((asked, &**prompt, model.as_deref()), (&session, "why?", Some("m")));
    assert_eq!(*left, Duration::from_secs(59));
    assert_eq!(world.turns.counts().waiting, 0);
    assert_eq!(world.take("a"), Ok(vec![]), "a turn is taken once");

    assert_eq!(read(&mut reply), [""; 0]);
    for (text, seq) in [("be", 0), ("cause", 1)] {
        world.turns.answer(&session, turn, chunk(seq, text)).await.expect("it is next");
    }
    assert_eq!(read(&mut reply), ["0:be", "1:cause"]);
    world.turns.answer(&session, turn, done(2, None)).await.expect("it is next");
    assert_eq!(read(&mut reply), ["2:!"]);
    assert_eq!(reply.next().await, None);
    drop(reply);
    assert_eq!(outcomes(&world.turns.counts()), ["ok"]);
    assert_eq!(world.take("a"), Ok(vec![]), "the agent knows that it is over");
}

#[tokio::test]
async fn a_session_has_one_turn_at_a_time() {
    let world = World::new(Settings::default());
    world.agent("a");
    let session = world.open();
    let mut first = world.start(&session).expect("it is open");
    assert_eq!(world.start(&session).err(), Some(Error::TurnRunning { id: session.to_string() }));
    let other = world.start(&world.open()).expect("another session");
    let turns = world.take("a").expect("registered");
    world.turns.answer(&session, &turns[0], done(0, Some("no"))).await.expect("it is next");
    // Before the client has read it.
    let second = world.start(&session).expect("the first is over");
    assert_eq!(read(&mut first), ["0:!no"]);
    drop((first, second, other));
    assert_eq!(outcomes(&world.turns.counts()), ["failed", "cancelled", "cancelled"]);
}

#[tokio::test]
async fn turns_are_refused_where_nobody_could_answer() {
    let world = World::new(Settings::default());
    let alone = world.open();
    assert_eq!(world.start(&alone).err(), Some(Error::NoAgent { id: alone.to_string() }));
    let unknown = world.start("a:1").err().expect("there is no such session");
    assert!(matches!(unknown, Error::Refused(crate::Error::UnknownSession { .. })), "{unknown}");
    assert_eq!(world.turns.counts(), Counts::default());
}

/// Whatever ends a turn, its client and a subscriber get one done chunk that says why, and nothing after it; an agent
/// that took the turn is told, and one that did not never sees it; chunks that come late are refused.
#[tokio::test]
async fn every_end_is_told_once() {
    type Act = fn(&World, &str);
    let closed: Act = |world, session| world.sessions.close(session, world.clock.now()).expect("open");
    let over: Act = |world, _| {
        (0..6).for_each(|_| {
            world.pass(10 * SECOND);
            world.sessions.agent_heard("a", world.clock.now()).expect("in time");
        });
        world.pass(1);
    };
    let unregistered: Act = |world, _| world.sessions.unregister("a", world.clock.now()).expect("registered");
    let silent: Act = |world, _| world.pass(15 * SECOND + 1);
    let stopped: Act = |world, _| world.turns.stop();
    let gone = "the agent is gone";
    for (act, says, outcome, agent_lives) in [
        (closed, "the session was closed", "closed", true),
        (over, "the turn did not end in time", "timeout", true),
        (unregistered, gone, "agent_gone", false),
        (silent, gone, "agent_gone", false),
        (stopped, "host is stopping", "stopping", false),
    ] {
        for taken in [true, false] {
            let world = World::new(Settings::default());
            world.agent("a");
            let session = world.open();
            let mut subscriber = world.turns.subscribe(&session).expect("the only one");
            let mut reply = world.start(&session).expect("it is open");
            let mut expected = Vec::new();
            let id = format!("{:032x}", 1);
            if taken {
                assert_eq!(world.take("a"), Ok(vec![id.clone()]));
                world.turns.answer(&session, &id, chunk(0, "x")).await.expect("it is next");
                expected.push("0:x".to_owned());
            }
            act(&world, &session);
            expected.push(format!("{}:!{says}", expected.len()));
            assert_eq!(read(&mut reply), expected, "{outcome} {taken}");
            assert_eq!(heard(&mut subscriber), expected, "{outcome} {taken}");
            assert_eq!(reply.next().await, None);
            let late = world.turns.answer(&session, &id, chunk(1, "y")).await.expect_err("it is over");
            match outcome {
                "timeout" | "stopping" => assert_eq!(late, Error::TurnOver),
                _ => assert!(matches!(late, Error::Refused(crate::Error::UnknownSession { .. })), "{late}"),
            }
            drop(reply);
            assert_eq!(outcomes(&world.turns.counts()), [outcome]);
            let notices = if taken { vec![format!("-{id}")] } else { vec![] };
            if agent_lives {
                assert_eq!(world.take("a"), Ok(notices), "{outcome} {taken}");
            }
            if outcome == "stopping" {
                assert_eq!(world.start(&session).err(), Some(Error::Stopping));
                assert_eq!(world.turns.publish(&session, "x".to_owned()), Err(Error::Stopping));
                assert_eq!(world.turns.subscribe(&session).err(), Some(Error::Stopping));
                assert_eq!(world.take("a"), Ok(vec![]));
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_turn() {
    let world = World::new(Settings::default());
    world.agent("a");
    let session = world.open();
    let mut subscriber = world.turns.subscribe(&session).expect("the only one");
    drop(world.start(&session).expect("it is open"));
    assert_eq!(world.take("a"), Ok(vec![]), "nobody took it");
    let reply = world.start(&session).expect("the first is over");
    let turn = world.take("a").expect("registered").remove(0);
    drop(reply);
    assert_eq!(world.take("a"), Ok(vec![format!("-{turn}")]));
    assert_eq!(world.turns.answer(&session, &turn, chunk(0, "x")).await, Err(Error::TurnOver));
    assert_eq!(heard(&mut subscriber), ["0:!the client is gone", "1:!the client is gone"]);
}

#[tokio::test]
async fn only_the_next_chunk_is_taken() {
    let world = World::new(Settings::default());
    world.agent("a");
    let (session, other) = (world.open(), world.open());
    let mut reply = world.start(&session).expect("it is open");
    let _other = world.start(&other).expect("it is open");
    let turns = world.take("a").expect("registered");
    let answer = |session: &Arc<str>, turn: &str, chunk: Chunk| {
        let world = &world;
        let (session, turn) = (session.clone(), turn.to_owned());
        async move { world.turns.answer(&session, &turn, chunk).await }
    };
    assert_eq!(answer(&session, &turns[0], chunk(1, "x")).await, Err(Error::NotNext { next: 0 }));
    assert_eq!(answer(&session, &turns[0], chunk(0, "x")).await, Ok(()));
    assert_eq!(answer(&session, &turns[0], chunk(0, "x")).await, Err(Error::NotNext { next: 1 }));
    assert_eq!(answer(&session, &turns[0], done(2, None)).await, Err(Error::NotNext { next: 1 }));
    assert_eq!(answer(&session, &turns[1], chunk(0, "x")).await, Err(Error::UnknownTurn));
    assert_eq!(answer(&session, "x", chunk(0, "x")).await, Err(Error::UnknownTurn));
    let large = chunk(1, &"x".repeat((256 << 10) + 1));
    assert_eq!(answer(&session, &turns[0], large).await, Err(Error::ChunkTooLarge { max: 256 << 10 }));
    assert_eq!(answer(&session, &turns[0], done(1, None)).await, Ok(()));
    assert_eq!(answer(&session, &turns[0], done(1, None)).await, Err(Error::TurnOver));
    assert_eq!(answer(&session, &turns[0], chunk(2, "x")).await, Err(Error::TurnOver));
    assert_eq!(read(&mut reply), ["0:x", "1:!"]);
    let _next = world.start(&session).expect("the first is over");
    assert_eq!(answer(&session, &turns[0], chunk(2, "x")).await, Err(Error::UnknownTurn), "long over");
}

#[tokio::test]
async fn a_slow_client_holds_its_agent_up() {
    let settings = Settings { pipe_chunks_max: 2, chunk_wait: Duration::ZERO, ..Settings::default() };
    let world = World::new(settings);
    world.agent("a");
    let session = world.open();
    let mut reply = world.start(&session).expect("it is open");
    let turn = world.take("a").expect("registered").remove(0);
    for seq in 0..2 {
        world.turns.answer(&session, &turn, chunk(seq, "x")).await.expect("there is room");
    }
    assert_eq!(world.turns.answer(&session, &turn, chunk(2, "y")).await, Err(Error::SlowClient));
    assert_eq!(reply.next().await.expect("there is one").seq, 0);
    assert_eq!(world.turns.answer(&session, &turn, chunk(2, "y")).await, Ok(()), "the same again");
    // The end always fits.
    assert_eq!(world.turns.answer(&session, &turn, chunk(3, "y")).await, Err(Error::SlowClient));
    assert_eq!(world.turns.answer(&session, &turn, done(3, None)).await, Ok(()));
    assert_eq!(read(&mut reply), ["1:x", "2:y", "3:!"]);
}

#[tokio::test]
async fn a_chunk_waits_until_there_is_room_or_the_turn_ends() {
    let settings =
        Settings { pipe_chunks_max: 1, chunk_wait: Duration::from_secs(600), ..Settings::default() };
    let world = World::new(settings);
    world.agent("a");
    let session = world.open();
    let mut reply = world.start(&session).expect("it is open");
    let turn = world.take("a").expect("registered").remove(0);
    world.turns.answer(&session, &turn, chunk(0, "x")).await.expect("there is room");
    // Two of one number: one is taken.
    let mut first = Box::pin(world.turns.answer(&session, &turn, chunk(1, "y")));
    let mut second = Box::pin(world.turns.answer(&session, &turn, chunk(1, "z")));
    assert_eq!((first.as_mut().now_or_never(), second.as_mut().now_or_never()), (None, None));
    assert_eq!(reply.next().await.expect("there is one").text, "x");
    assert_eq!(tokio::join!(first, second), (Ok(()), Err(Error::NotNext { next: 2 })));
    let mut third = Box::pin(world.turns.answer(&session, &turn, chunk(2, "z")));
    assert_eq!(third.as_mut().now_or_never(), None);
    world.sessions.close(&session, Timestamp(0)).expect("it is open");
    assert!(third.await.is_err());
    assert_eq!(read(&mut reply), ["1:y", "2:!the session was closed"]);
}

#[tokio::test]
async fn a_subscriber_gets_what_is_kept_and_what_comes() {
    let world = World::new(Settings { replay_chunks_max: 3, ..Settings::default() });
    world.agent("a");
    let session = world.open();
    let publish = |text: &str| world.turns.publish(&session, text.to_owned()).expect("it is open");
    assert_eq!(&*publish("m0"), "c");
    let mut subscriber = world.turns.subscribe(&session).expect("the only one");
    let second = world.turns.subscribe(&session).err();
    assert_eq!(second, Some(Error::AlreadySubscribed { id: session.to_string() }));
    assert_eq!(heard(&mut subscriber), ["0:m0"]);
    let reply = world.start(&session).expect("it is open");
    let turn = world.take("a").expect("registered").remove(0);
    world.turns.answer(&session, &turn, chunk(0, "t0")).await.expect("it is next");
    publish("m2");
    world.turns.answer(&session, &turn, done(1, None)).await.expect("it is next");
    assert_eq!(heard(&mut subscriber), ["1:t0", "2:m2", "3:!"]);
    drop((reply, subscriber));

    let mut again = world.turns.subscribe(&session).expect("the first is gone");
    assert_eq!(heard(&mut again), ["gap of 1 to 1", "1:t0", "2:m2", "3:!"]);
    (4..9).for_each(|n| drop(publish(&format!("m{n}"))));
    assert_eq!(heard(&mut again), ["gap of 2 to 6", "6:m6", "7:m7", "8:m8"]);
    publish("m9");
    world.sessions.close(&session, Timestamp(0)).expect("it is open");
    assert_eq!(heard(&mut again), ["9:m9"]);
    assert_eq!(again.next().await, None);
    assert_eq!(world.turns.counts().replay_bytes, 0);
    assert!(world.turns.subscribe(&session).is_err());
}

#[tokio::test]
async fn all_sessions_together_keep_so_much() {
    let text = "x".repeat(1000);
    let cost = chunk(0, &text).cost();
    let world = World::new(Settings { replay_bytes_total_max: 10 * cost, ..Settings::default() });
    let sessions: Vec<_> = (0..4).map(|_| world.open()).collect();
    // One that stays quiet, and so many others that the queue of the oldest is tidied.
    world.turns.publish(&sessions[0], text.clone()).expect("it is open");
    for n in 0..5000 {
        world.turns.publish(&sessions[1 + n % 3], text.clone()).expect("it is open");
        assert!(world.turns.counts().replay_bytes <= 10 * cost);
    }
    let state = world.turns.state.lock();
    assert!(state.shelf.order_len() <= 2 * 10 + 1024);
    drop(state);
    let mut found = 0;
    for session in &sessions {
        let heard = heard(&mut world.turns.subscribe(session).expect("the only one"));
        assert!(heard[0].starts_with("gap of"), "{heard:?}");
        found += heard.len() - 1;
    }
    assert_eq!(found, 10);
    sessions.iter().for_each(|session| world.sessions.close(session, Timestamp(0)).expect("it is open"));
    assert_eq!(world.turns.state.lock().shelf.size, Size::default());
}

#[tokio::test]
async fn what_waits_for_an_agent_is_bounded() {
    let settings = Settings { inbox_max: 2, inbox_bytes_max: 100, running_max: 4, ..Settings::default() };
    let world = World::new(settings);
    world.agent("a");
    let start = |bytes: usize| world.turns.start(&world.open(), "x".repeat(bytes), None, None);
    let large = start(1000).expect("the first may be of any size");
    assert_eq!(start(1).err(), Some(Error::AgentBusy { id: "a".to_owned() }));
    drop(large);
    let (one, two) = (start(50).expect("there is room"), start(50).expect("there is room"));
    assert_eq!(start(0).err(), Some(Error::AgentBusy { id: "a".to_owned() }));
    let turns = world.take("a").expect("registered");
    let (three, four) = (start(1).expect("there is room"), start(1).expect("there is room"));
    assert_eq!(start(1).err(), Some(Error::TooManyTurns { max: 4 }));
    drop(three);
    assert!(world.take("a").expect("registered").len() == 1);
    drop((one, four, two));
    let notices = world.take("a").expect("registered");
    assert_eq!(notices.len(), 2, "the oldest gave way: {notices:?}");
    assert_eq!(notices[1], format!("-{}", turns[1]));
}

#[tokio::test]
async fn a_poll_waits_for_a_turn_the_end_of_its_agent_or_of_the_host() {
    let world = World::new(Settings::default());
    let later = || Instant::now() + Duration::from_secs(600);
    let unknown = world.turns.orders("a", 1, later(), true).await.expect_err("it is not registered");
    assert!(matches!(unknown, Error::Refused(crate::Error::UnknownAgent { .. })), "{unknown}");
    assert!(world.turns.state.lock().inboxes.is_empty(), "nothing is kept for strangers");

    world.agent("a");
    let mut polls: Vec<_> = (0..2).map(|_| Box::pin(world.turns.orders("a", 1, later(), true))).collect();
    polls.iter_mut().for_each(|poll| assert!(poll.as_mut().now_or_never().is_none()));
    // Each of two turns wakes one of them.
    let replies: Vec<_> = (0..2).map(|_| world.start(&world.open()).expect("it is open")).collect();
    for poll in polls {
        assert_eq!(poll.await.expect("registered").len(), 1);
    }
    drop(replies);
    assert_eq!(world.take("a").expect("registered").len(), 2);

    let mut poll = Box::pin(world.turns.orders("a", 1, later(), true));
    assert!(poll.as_mut().now_or_never().is_none());
    world.sessions.unregister("a", Timestamp(0)).expect("registered");
    assert!(poll.await.is_err());
    world.agent("a");
    let mut poll = Box::pin(world.turns.orders("a", 1, later(), true));
    assert!(poll.as_mut().now_or_never().is_none());
    world.turns.stop();
    assert_eq!(poll.await, Ok(vec![]));
}

#[test]
fn polls_are_signs_of_life_and_looks_are_not() {
    for (is_alive, lives) in [(true, true), (false, false)] {
        let world = World::new(Settings::default());
        world.agent("a");
        for _ in 0..3 {
            world.pass(10 * SECOND);
            let orders = world.turns.orders("a", 1, Instant::now(), is_alive);
            drop(orders.now_or_never().expect("it does not wait"));
        }
        assert_eq!(world.sessions.check_agent("a", world.clock.now()).is_ok(), lives);
    }
}

#[tokio::test]
async fn the_task_ends_what_is_over() {
    let world = World::new(Settings { timeout: Duration::from_millis(30), ..Settings::default() });
    world.agent("a");
    let mut running = Box::pin(world.turns.run());
    assert!(running.as_mut().now_or_never().is_none());
    let mut reply = world.start(&world.open()).expect("it is open");
    world.clock.0.store(31, Ordering::Relaxed);
    tokio::select! {
        () = running => {}
        chunk = reply.next() => {
            let chunk = chunk.expect("the done chunk");
            assert_eq!(show(chunk.seq, &chunk), "0:!the turn did not end in time");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Agent(u8),
    Open,
    Start(usize),
    Take(u8),
    /// Which turn, how far its number is from the next one, and whether it is the last.
    Answer(usize, u64, bool),
    Read(usize),
    Cancel(usize),
    Close(usize),
    Unregister(u8),
    Publish(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..3).prop_map(Step::Agent),
        Just(Step::Open),
        (0_usize..20).prop_map(Step::Start),
        (0_usize..20).prop_map(Step::Start),
        (0_u8..3).prop_map(Step::Take),
        (0_usize..20, 0_u64..2, any::<bool>()).prop_map(|(turn, off, last)| Step::Answer(turn, off, last)),
        (0_usize..20).prop_map(|turn| Step::Answer(turn, 0, false)),
        (0_usize..20).prop_map(Step::Read),
        (0_usize..20).prop_map(Step::Cancel),
        (0_usize..20).prop_map(Step::Close),
        (0_u8..3).prop_map(Step::Unregister),
        (0_usize..20).prop_map(Step::Publish),
        (0_u64..20 * SECOND).prop_map(Step::Pass),
    ]
}

/// A turn as its client sees it.
struct Asked {
    session: Arc<str>,
    reply: Option<Reply>,
    read: u64,
    is_done: bool,
}

impl Asked {
    fn read(&mut self) {
        let Some(reply) = &mut self.reply else { return };
        while let Some(Some(chunk)) = reply.next().now_or_never() {
            assert!(!self.is_done, "nothing comes after the done chunk");
            assert_eq!(chunk.seq, self.read, "in order, none twice");
            self.read += 1;
            self.is_done = chunk.done;
        }
    }
}

proptest! {
    /// After any history: a session has one turn at most, clients read their chunks in order and one done chunk last,
    /// and once all is over nothing is left behind.
    #[test]
    fn turns_end_once_and_leave_nothing(steps in prop::collection::vec(step(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("it starts");
        let _guard = runtime.enter();
        let settings = Settings {
            chunk_wait: Duration::ZERO, pipe_chunks_max: 3, inbox_max: 4, replay_chunks_max: 5,
            replay_bytes_total_max: 1000, timeout: Duration::from_secs(30), ..Settings::default()
        };
        let world = World::new(settings);
        let mut sessions: Vec<Arc<str>> = Vec::new();
        let mut asked: Vec<Asked> = Vec::new();
        let mut started = 0;
        for step in steps {
            let agent = |n: u8| format!("agent{n}");
            let session = |n: usize| sessions.get(n % sessions.len().max(1)).cloned().unwrap_or("x".into());
            let now = world.clock.now();
            match step {
                Step::Agent(n) => world.agent(&agent(n)),
                Step::Open => sessions.push(world.open()),
                Step::Start(n) => {
                    let session = session(n);
                    if let Ok(reply) = world.start(&session) {
                        started += 1;
                        asked.push(Asked { session, reply: Some(reply), read: 0, is_done: false });
                    }
                }
                Step::Take(n) => drop(world.take(&agent(n))),
                Step::Answer(n, off, done) if !asked.is_empty() => {
                    let n = n % asked.len();
                    let turn = format!("{:032x}", n + 1);
                    let next = world.turns.state.lock().turns.get(&*turn).map(|turn| turn.next_seq);
                    let chunk = Chunk { done, ..chunk(next.unwrap_or(0) + off, "x") };
                    let answered = runtime.block_on(world.turns.answer(&asked[n].session, &turn, chunk));
                    prop_assert!(answered.is_err() || next.is_some() && off == 0);
                }
                Step::Read(n) if !asked.is_empty() => {
                    let n = n % asked.len();
                    asked[n].read();
                }
                Step::Cancel(n) if !asked.is_empty() => {
                    let n = n % asked.len();
                    asked[n].reply = None;
                }
                Step::Close(n) => drop(world.sessions.close(&session(n), now)),
                Step::Unregister(n) => drop(world.sessions.unregister(&agent(n), now)),
                Step::Publish(n) => drop(world.turns.publish(&session(n), "x".to_owned())),
                Step::Pass(ms) => world.pass(ms),
                Step::Answer(..) | Step::Read(_) | Step::Cancel(_) => {}
            }
            let state = world.turns.state.lock();
            let mut busy: Vec<_> = state.turns.values().map(|turn| turn.session.clone()).collect();
            busy.sort();
            let running = busy.len();
            busy.dedup();
            prop_assert_eq!(busy.len(), running, "one turn of a session at a time");
            prop_assert_eq!(state.deadlines.len(), running);
            let waiting = state.turns.values().filter(|turn| turn.place.is_some()).count();
            prop_assert_eq!(state.inboxes.values().map(Inbox::turns).sum::<usize>(), waiting);
            prop_assert!(state.shelf.size.bytes <= 1000);
            let ended: u64 = state.ended.iter().sum();
            prop_assert_eq!(ended + running as u64, started);
        }
        for session in &sessions {
            drop(world.sessions.close(session, world.clock.now()));
        }
        for asked in &mut asked {
            asked.read();
            prop_assert!(asked.is_done || asked.reply.is_none(), "every turn ends");
        }
        let mut state = world.turns.state.lock();
        prop_assert!(state.turns.is_empty() && state.latest.is_empty());
        prop_assert_eq!(state.shelf.size, Size::default());
        state.inboxes.values_mut().for_each(|inbox| while inbox.take().is_some() {});
    }
}
