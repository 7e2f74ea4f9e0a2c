//! Reload and failure: drop-to-live, the pointer swap, the call after a trap, the kill of an endless loop, and what a
//! shadow costs those who are served.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fulcrum::app::{App, Running, Services};
use fulcrum::clock::RealClock;
use fulcrum::config::Config;
use fulcrum::embedded;
use fulcrum_coordinator::{Ask, Balancer, Report, Settings};
use fulcrum_core::scoring::{Instance, Load, Loads, Request, Roster};
use fulcrum_policy::artifact::digest;
use fulcrum_policy::seat::{ScoringFactory as _, ScoringHost as _, ScoringSeat, Staged, View};
use fulcrum_policy::shadow::Wanted;
use fulcrum_policy::{Artifact, Limits, Loaded, Outcome, Runtime};
use support::http;
use support::{Spread, machine, time, verdict};

const BASE: &str = include_str!("../crates/policy/tests/guests/base.wat");
const TRAP: &str = include_str!("../crates/policy/tests/guests/trap.wat");
const LOOP: &str = include_str!("../crates/policy/tests/guests/loop-recommend.wat");
/// These guests misbehave for a client id of 66 bytes.
const TROUBLE: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

fn main() {
    if !support::is_bench() {
        return;
    }
    machine();
    drop_to_live(0);
    drop_to_live(2);
    pointer_swap();
    after_a_trap();
    endless_loop();
    shadowed();
}

/// A host that `weighted` serves, in a folder of its own.
fn running() -> (tokio::runtime::Runtime, Running, tempfile::TempDir) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(4 << 20)
        .enable_all()
        .build()
        .expect("a runtime");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut config = Config::default();
    config.host.listen = "127.0.0.1:0".parse().expect("an address");
    config.host.data_dir = folder.path().to_owned();
    config.policy.scoring = "weighted".to_owned();
    // A busy machine keeps a thread waiting for longer than the default deadline; that is not what is measured.
    config.policy.scoring_deadline_ms = 2000;
    config.heartbeat.ttl_ms = 3_600_000;
    let running = runtime.block_on(App::start(&config)).expect("it starts");
    (runtime, running, folder)
}

/// From the start of the write to the first decision of the new digest, with `clients` threads that ask all the time.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn drop_to_live(clients: usize) {
    let (runtime, running, folder) = running();
    let services = running.services().clone();
    beat(&services.balancer, 10);

    let (mut live, mut load_ms) = (Vec::new(), Vec::new());
    let (asked, failed, by_fallback) = hammered(clients, &services, || {
        for version in 0..30_u32 {
            let wasm = version_of("weighted", version);
            let wanted = digest(&wasm);
            let begun = Instant::now();
            put(&folder.path().join("policies"), "weighted.wasm", &wasm);
            while ask(&services).as_deref() != Some(&wanted) {
                assert!(begun.elapsed() < Duration::from_secs(20), "it never serves");
                std::thread::sleep(Duration::from_micros(500));
            }
            live.push(begun.elapsed().as_nanos() as f64);
            let statuses = services.policies.statuses();
            let status = statuses.iter().find(|status| status.name == "weighted").expect("it is known");
            load_ms.push(status.load_ms as f64);
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let (live, load) = (Spread::new(live), Spread::new(load_ms));
    println!(
        "drop-to-live of weighted, {clients} busy clients: median {}, 90 % {}, max {} (of it compile and proof: median {:.0} ms); {asked} decisions, {failed} failed, {by_fallback} by the fallback",
        time(live.median()),
        time(live.at(0.9)),
        time(live.at(1.0)),
        load.median(),
    );
    println!("  bar: <= 500 ms: {}", verdict(live.at(0.9) <= 500e6 && failed == 0));
    runtime.block_on(running.stop());
}

/// `ScoringSeat::install` under the lock that every decision takes, while two threads decide all the time.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn pointer_swap() {
    let limits = Limits { scoring_deadline: Duration::from_secs(2), ..Limits::default() };
    let runtime = Runtime::new(limits).expect("the engine starts");
    let versions = [0, 1].map(|version| load(&runtime, &version_of("weighted", version)));
    let settings = Settings { ttl: Duration::from_secs(3600), ..Settings::default() };
    let seat = ScoringSeat::new(Arc::new(|| {}));
    let balancer = Arc::new(Balancer::new(settings, seat, Arc::new(RealClock::start()), 7));
    beat(&balancer, 100);
    let (mut inside, mut whole) = (Vec::new(), Vec::new());
    let stop = AtomicBool::new(false);
    let longest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    let pick = balancer.recommend(&Ask { client_id: "c", ..Ask::default() }).pick;
                    longest.fetch_max(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    assert!(pick.is_some(), "a row may be chosen");
                }
            });
        }
        for swap in 0..2000 {
            let loaded = &versions[swap % 2];
            let snapshot = balancer.snapshot();
            let mut instance = loaded.make().expect("an instance starts");
            instance.roster(&snapshot.roster).expect("a good roster");
            instance.refresh(&snapshot.loads).expect("good loads");
            let mut staged = Some(Staged {
                factory: loaded.clone(),
                instance,
                roster_revision: 0,
                probation: None,
                is_last_resort: false,
            });
            let mut previous = None;
            let begun = Instant::now();
            balancer.with_seat(&mut |seat| {
                let begun = Instant::now();
                previous = seat.install(staged.take());
                inside.push(begun.elapsed().as_nanos() as f64);
            });
            whole.push(begun.elapsed().as_nanos() as f64);
            drop(previous);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let failures: u64 = balancer.tally().lines().iter().map(|line| failures(&line.outcomes)).sum();
    let (inside, whole) = (Spread::new(inside), Spread::new(whole));
    println!(
        "pointer swap, 2000 under load: install median {}, 99 % {}; with the wait for the lock median {}, 99 % {}, max {}",
        time(inside.median()),
        time(inside.at(0.99)),
        time(whole.median()),
        time(whole.at(0.99)),
        time(whole.at(1.0)),
    );
    println!(
        "  failed decisions {failures}; longest decision of the two busy threads {}",
        time(longest.into_inner() as f64)
    );
    println!("  bar: <= 1 ms: {}", verdict(whole.at(0.99) <= 1e6 && failures == 0));
}

/// Decisions that the policy did not make, leaving out those before it was there.
fn failures(outcomes: &[u64]) -> u64 {
    Outcome::ALL
        .iter()
        .zip(outcomes)
        .filter(|(outcome, _)| !matches!(outcome, Outcome::Ok | Outcome::Open))
        .map(|(_, count)| count)
        .sum()
}

/// The decision that fails, and the next one, which starts a fresh instance.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn after_a_trap() {
    let limits = Limits { scoring_deadline: Duration::from_secs(2), ..Limits::default() };
    let runtime = Runtime::new(limits).expect("the engine starts");
    let loaded = load(&runtime, &guest(TRAP));
    let world = World::of(100);
    let (mut failing, mut next) = (Vec::new(), Vec::new());
    let mut seat = seat(&loaded);
    for _ in 0..1000 {
        world.decide(&mut seat, "c", Outcome::Ok);
        failing.push(world.decide(&mut seat, TROUBLE, Outcome::Trap));
        next.push(world.decide(&mut seat, "c", Outcome::Ok));
        // Lets the breaker forget the failure.
        for _ in 0..10 {
            world.decide(&mut seat, "c", Outcome::Ok);
        }
    }
    let (failing, next) = (Spread::new(failing), Spread::new(next));
    println!(
        "trap, 100 rows: the decision itself, answered by the fallback: median {}, 99 % {}; the next one, by a fresh instance: median {}, 99 % {}",
        time(failing.median()),
        time(failing.at(0.99)),
        time(next.median()),
        time(next.at(0.99)),
    );
    println!("  bar: next call served within 50 µs: {}", verdict(next.median() <= 50e3));
}

/// A loop that never ends, with a deadline of 5 ms.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn endless_loop() {
    let limits = Limits { scoring_deadline: Duration::from_millis(5), ..Limits::default() };
    let runtime = Runtime::new(limits).expect("the engine starts");
    let loaded = load(&runtime, &guest(LOOP));
    let world = World::of(100);
    let mut killed = Vec::new();
    for _ in 0..200 {
        let mut seat = seat(&loaded);
        world.decide(&mut seat, "c", Outcome::Ok);
        killed.push(world.decide(&mut seat, TROUBLE, Outcome::Timeout));
    }
    let killed = Spread::new(killed);
    println!(
        "endless loop, budget 5 ms, fallback included: median {}, 99 % {}, max {}",
        time(killed.median()),
        time(killed.at(0.99)),
        time(killed.at(1.0)),
    );
    println!("  bar: median <= 6 ms: {}", verdict(killed.median() <= 6e6));
}

/// Decisions at a steady pace, with and without a shadow of another policy, in turn: as a client sees them over HTTP, and
/// the call in the host alone.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn shadowed() {
    const CALLS: usize = 2_000;
    /// Time between two calls in the host: 2000 decisions per second.
    const CALL_PACE: Duration = Duration::from_micros(500);
    const REQUESTS: usize = 1_500;
    const REQUEST_PACE: Duration = Duration::from_millis(1);

    let (runtime, running, _folder) = running();
    let services = running.services().clone();
    beat(&services.balancer, 100);

    let paths = |_| (0..100).map(|client| format!("/session/recommend?clientId=c{client}")).collect();
    let mut load = runtime.block_on(http::Load::connect(running.addr(), 1, paths));
    let by_http = || {
        let answers = runtime.block_on(load.paced(REQUESTS, REQUEST_PACE));
        assert_eq!(answers.failed, 0, "every request is answered");
        Spread::new(answers.nanos)
    };
    compare("over HTTP, 1000 requests per second", &services, 20, by_http);

    let by_call = || {
        let mut nanos = Vec::with_capacity(CALLS);
        let mut next = Instant::now();
        for _ in 0..CALLS {
            // A thread that sleeps wakes late; what is measured is the call, not the pace.
            next += CALL_PACE;
            while Instant::now() < next {
                std::hint::spin_loop();
            }
            let begun = Instant::now();
            let digest = ask(&services);
            nanos.push(begun.elapsed().as_nanos() as f64);
            assert!(digest.is_some(), "a row may be chosen");
        }
        Spread::new(nanos)
    };
    compare("the call alone, 2000 per second", &services, 20, by_call);
    runtime.block_on(running.stop());
}

/// Runs rounds with and without a shadow; each is first equally often.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn compare(what: &str, services: &Services, pairs: usize, mut round: impl FnMut() -> Spread) {
    round();
    let (mut plain, mut shadowed) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let (mut compared, mut dropped) = (0, 0);
    for number in 0..2 * pairs {
        let is_shadowed = [false, true, true, false][number % 4];
        let sink = if is_shadowed { &mut shadowed } else { &mut plain };
        if is_shadowed {
            services.shadows.start("p2c", &Wanted::default()).expect("another policy serves");
        }
        let spread = round();
        if is_shadowed {
            let scoring = services.shadows.stop("p2c").expect("it runs").scoring.expect("it scores");
            compared += scoring.counts.compared;
            dropped += scoring.counts.dropped;
        }
        sink[0].push(spread.median());
        sink[1].push(spread.at(0.99));
    }
    let [plain_p50, plain_p99] = plain.map(|rounds| Spread::new(rounds).at(0.25));
    let [shadowed_p50, shadowed_p99] = shadowed.map(|rounds| Spread::new(rounds).at(0.25));
    println!(
        "shadow of p2c beside weighted, 100 rows, {what}: p50 {} with, {} without ({:.3} times); p99 {} and {} ({:.3} times); lower quartiles of {pairs} rounds each; {compared} compared, {dropped} dropped",
        time(shadowed_p50),
        time(plain_p50),
        shadowed_p50 / plain_p50,
        time(shadowed_p99),
        time(plain_p99),
        shadowed_p99 / plain_p99,
    );
    println!("  bar: p99 within 10 %: {}", verdict(shadowed_p99 <= 1.1 * plain_p99));
}

struct World {
    roster: Arc<Roster>,
    loads: Loads,
    clock: RealClock,
}

impl World {
    fn of(rows: usize) -> Self {
        let row = |row| Instance {
            id: Arc::from(format!("i{row:04}")),
            zone: String::new(),
            capacity: 1.0,
            labels: Vec::new(),
            age_ms: 0,
        };
        let roster = Arc::new(Roster::new((0..rows).map(row).collect()).expect("ids differ"));
        let mut loads = Loads::unknown(rows);
        (0..rows).for_each(|row| loads.set(row, Some(Load { sessions: row as u32, ..Load::default() })));
        Self { roster, loads, clock: RealClock::start() }
    }

    /// Decides once; returns the nanoseconds it took.
    fn decide(&self, seat: &mut ScoringSeat, client_id: &str, expected: Outcome) -> f64 {
        let view = View { roster: &self.roster, loads: &self.loads, roster_revision: 1, loads_revision: 1 };
        let request = Request { client_id, now_ms: 1, seed: 1, ..Request::default() };
        let begun = Instant::now();
        let decision = seat.decide(view, &request, &self.clock).expect("a row may be chosen");
        let nanos = begun.elapsed().as_nanos() as f64;
        assert_eq!(decision.outcome, expected, "for {client_id:.1}");
        nanos
    }
}

fn seat(loaded: &Arc<Loaded>) -> ScoringSeat {
    let mut seat = ScoringSeat::new(Arc::new(|| {}));
    let instance = loaded.make().expect("an instance starts");
    seat.install(Some(Staged {
        factory: loaded.clone(),
        instance,
        roster_revision: 0,
        probation: None,
        is_last_resort: false,
    }));
    seat
}

fn load(runtime: &Arc<Runtime>, wasm: &[u8]) -> Arc<Loaded> {
    let artifact = Artifact::load(runtime, wasm).expect("a good component");
    let config = serde_json::Value::Object(serde_json::Map::new());
    Arc::new(artifact.configured("bench", config).expect("the defaults are good"))
}

/// The base guest with its `recommend` replaced, as a component.
fn guest(sin: &str) -> Vec<u8> {
    let (open, close) = (";; <recommend>", ";; </recommend>");
    let split = |text: &str| -> [usize; 2] {
        [text.find(open).expect("it is marked") + open.len(), text.find(close).expect("it is marked")]
    };
    let ([into, until], [from, to]) = (split(BASE), split(sin));
    let text = [&BASE[..into], &sin[from..to], &BASE[until..]].concat();
    fulcrum_pack::from_wat(&text, "scoring-policy").expect("the guest is well formed")
}

/// An embedded policy with another digest: a section that means nothing is added.
fn version_of(name: &str, version: u32) -> Vec<u8> {
    let mut wasm = embedded::find(name).expect("it is embedded").to_vec();
    let mut section = vec![5];
    section.extend(b"bench");
    section.extend(version.to_le_bytes());
    wasm.extend([0, u8::try_from(section.len()).expect("it is short")]);
    wasm.extend(section);
    wasm
}

/// Drops a file as one should: written under a name the host ignores, then renamed.
fn put(folder: &Path, file: &str, bytes: &[u8]) {
    let beside = folder.join(format!(".{file}.part"));
    std::fs::write(&beside, bytes).expect("the folder can be written");
    std::fs::rename(&beside, folder.join(file)).expect("the folder can be written");
}

fn beat(balancer: &Balancer, rows: usize) {
    for row in 0..rows {
        let report = Report {
            id: format!("i{row:04}"),
            address: format!("i{row:04}.test:1"),
            capacity: 1.0,
            load: Some(Load { sessions: row as u32, ..Load::default() }),
            ..Report::default()
        };
        balancer.heartbeat(report).expect("a good heartbeat");
    }
}

/// Asks once; returns the digest that decided.
fn ask(services: &Services) -> Option<String> {
    let pick = services.balancer.recommend(&Ask { client_id: "c", ..Ask::default() }).pick?;
    Some(pick.digest().to_owned())
}

/// Runs `work` while `clients` threads ask all the time; returns how often they asked, how often in vain, and how often
/// the fallback answered.
fn hammered(clients: usize, services: &Services, work: impl FnOnce()) -> (u64, u64, u64) {
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let (failed, by_fallback) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    asked.fetch_add(1, Ordering::Relaxed);
                    match ask(services).as_deref() {
                        None => failed.fetch_add(1, Ordering::Relaxed),
                        Some("") => by_fallback.fetch_add(1, Ordering::Relaxed),
                        Some(_) => 0,
                    };
                }
            });
        }
        work();
        stop.store(true, Ordering::Relaxed);
    });
    (asked.into_inner(), failed.into_inner(), by_fallback.into_inner())
}
