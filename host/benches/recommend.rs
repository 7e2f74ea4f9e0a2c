//! One decision: through WebAssembly, the same Rust natively, a plain scan, and LuaJIT.
//!
//! Each contender keeps its state and is told its previous pick as `committed`, as in service. Before anything is
//! measured all contenders of one rule must agree on a long run of picks.

mod support;

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use fulcrum::clock::RealClock;
use fulcrum::embedded;
use fulcrum::journal::{self, Journal};
use fulcrum_coordinator::{Ask, Balancer, Report, Settings};
use fulcrum_core::scoring as host;
use fulcrum_core::seed;
use fulcrum_guest::{Loads, Request, Row, Scoring};
use fulcrum_policy::journal::Header;
use fulcrum_policy::seat::{ScoringFactory, ScoringHost, ScoringPolicy, ScoringSeat, Staged, View};
use fulcrum_policy::tap::Observer;
use fulcrum_policy::{Artifact, Limits, Loaded, Runtime};
use support::loads::{host_loads, loads};
use support::{Contender, Spread, machine, race, time, verdict};

const SIZES: [usize; 3] = [10, 100, 1000];
const CLIENT: &str = "client-17";
const NOW_MS: u64 = 1_800_000_000_000;
/// Picks that contenders of one rule must agree on.
const AGREED: usize = 2000;

fn main() {
    // What is measured is the call, not how long a busy machine keeps this thread from running.
    let limits = Limits { scoring_deadline: Duration::from_secs(10), ..Limits::default() };
    let runtime = Runtime::new(limits).expect("the engine starts");
    let loaded = ["weighted", "p2c"].map(|name| load(&runtime, name));
    let [weighted, p2c] = &loaded;
    for rows in SIZES {
        agree(&mut weighted_contenders(rows, weighted));
        agree(&mut p2c_contenders(rows, p2c));
    }

    let mut criterion = Criterion::default()
        .sample_size(40)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    for rows in SIZES {
        for (rule, contenders) in contenders(rows, weighted, p2c) {
            let mut group = criterion.benchmark_group(rule);
            for mut contender in contenders {
                let id = BenchmarkId::new(&contender.name, rows);
                group.bench_function(id, |bencher| bencher.iter(&mut contender.pick));
            }
            group.finish();
        }
    }
    criterion.final_summary();
    if support::is_bench() {
        table(weighted, p2c);
    }
}

/// Prints the times and ratios the bars are about.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn table(weighted: &Arc<Loaded>, p2c: &Arc<Loaded>) {
    machine();
    println!(
        "lower quartile of 400 alternating rounds, per decision; in brackets times the first of the row"
    );
    for rows in SIZES {
        for (rule, contenders) in contenders(rows, weighted, p2c) {
            let names: Vec<String> = contenders.iter().map(|contender| contender.name.clone()).collect();
            let mut racers: Vec<Contender<'_>> = contenders
                .into_iter()
                .map(|Pickers { name, mut pick }| {
                    Contender::new(name, move || {
                        black_box(pick());
                    })
                })
                .collect();
            let spreads = race(&mut racers, 400, Duration::from_micros(300));
            let lower: Vec<f64> = spreads.iter().map(Spread::lower).collect();
            println!("{rule}, {rows} rows");
            for (name, spread) in names.iter().zip(&spreads) {
                let ratio = spread.lower() / lower[0];
                println!(
                    "  {name:<26} {:>9} (median {:>9})  {ratio:>6.2}x",
                    time(spread.lower()),
                    time(spread.median())
                );
            }
            bars(rule, rows, &names, &lower);
        }
    }
}

#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn bars(rule: &str, rows: usize, names: &[String], lower: &[f64]) {
    let of = |name: &str| names.iter().position(|other| other == name).map(|at| lower[at]);
    let (Some(native), Some(wasm)) = (of("native"), of("wasm")) else { return };
    if rows == 10 {
        let fixed = wasm - native;
        println!("  bar: {rule} fixed cost <= 450 ns: {} {}", time(fixed), verdict(fixed <= 450.0));
    }
    if rows == 1000 {
        let rivals = [("native", 1.5), ("scan", 1.5), ("luajit-scan", 1.0), ("luajit-kept", 1.0)];
        for (rival, bar) in rivals {
            let Some(time) = of(rival) else { continue };
            let ratio = wasm / time;
            println!("  bar: {rule} wasm <= {bar}x {rival}: {ratio:.2}x {}", verdict(ratio <= bar));
        }
    }
}

/// A contender whose calls return the row they picked.
struct Pickers<'a> {
    name: String,
    pick: Box<dyn FnMut() -> u32 + 'a>,
}

impl<'a> Pickers<'a> {
    fn new(name: &str, pick: impl FnMut() -> u32 + 'a) -> Self {
        Self { name: name.to_owned(), pick: Box::new(pick) }
    }
}

fn contenders<'a>(
    rows: usize,
    weighted: &'a Arc<Loaded>,
    p2c: &'a Arc<Loaded>,
) -> [(&'static str, Vec<Pickers<'a>>); 2] {
    let mut of_weighted = weighted_contenders(rows, weighted);
    of_weighted.push(through_seat(rows, weighted));
    of_weighted.push(through_balancer(rows, weighted));
    of_weighted.push(through_recorded_balancer(rows, weighted));
    let mut of_p2c = p2c_contenders(rows, p2c);
    of_p2c.push(through_seat(rows, p2c));
    of_p2c.push(through_balancer(rows, p2c));
    of_p2c.push(through_recorded_balancer(rows, p2c));
    [("weighted", of_weighted), ("p2c", of_p2c)]
}

fn weighted_contenders(rows: usize, loaded: &Loaded) -> Vec<Pickers<'_>> {
    vec![
        native::<weighted::logic::Weighted>(rows),
        wasm(rows, loaded),
        scan(rows),
        luajit(rows, "kept"),
        luajit(rows, "scan"),
    ]
}

fn p2c_contenders(rows: usize, loaded: &Loaded) -> Vec<Pickers<'_>> {
    vec![native::<p2c::logic::P2c>(rows), wasm(rows, loaded)]
}

fn agree(contenders: &mut [Pickers<'_>]) {
    for call in 0..AGREED {
        let picks: Vec<u32> = contenders.iter_mut().map(|contender| (contender.pick)()).collect();
        for (contender, pick) in contenders.iter().zip(&picks) {
            assert_eq!(*pick, picks[0], "{} disagrees at call {call}", contender.name);
        }
    }
}

fn load(runtime: &Arc<Runtime>, name: &str) -> Arc<Loaded> {
    let wasm = embedded::find(name).expect("it is embedded");
    let artifact = Artifact::load(runtime, wasm).expect("a prebuilt component loads");
    let config = serde_json::Value::Object(serde_json::Map::new());
    Arc::new(artifact.configured(name, config).expect("the defaults are good"))
}

fn id(row: usize) -> String {
    format!("instance-{row:04}")
}

/// Seeds like those of the host; a contender's n-th call has the n-th seed.
fn seeds() -> impl FnMut() -> u64 {
    let next = Cell::new(0);
    move || {
        next.set(next.get() + 1);
        seed::decision(7, next.get())
    }
}

fn native<P: Scoring + 'static>(rows: usize) -> Pickers<'static> {
    let mut policy = P::configure("{}").expect("the defaults are good");
    let row = |row| Row { id: id(row), zone: String::new(), capacity: 1.0, labels: Vec::new(), age_ms: 0 };
    policy.roster((0..rows).map(row).collect()).expect("a good roster");
    policy.refresh(loads(rows)).expect("good loads");
    let mut seed = seeds();
    let mut committed = Vec::with_capacity(1);
    Pickers::new("native", move || {
        let request = Request {
            client_id: CLIENT,
            committed: &committed,
            now_ms: NOW_MS,
            seed: seed(),
            ..Request::default()
        };
        let row = policy.recommend(black_box(&request)).expect("a row may be chosen").row;
        committed.clear();
        committed.push(row);
        row
    })
}

fn roster(rows: usize) -> host::Roster {
    let row = |row| host::Instance {
        id: Arc::from(id(row)),
        zone: String::new(),
        capacity: 1.0,
        labels: Vec::new(),
        age_ms: 0,
    };
    host::Roster::new((0..rows).map(row).collect()).expect("ids differ")
}

fn instance(rows: usize, loaded: &Loaded) -> Box<dyn ScoringPolicy> {
    let mut instance = loaded.make().expect("an instance starts");
    instance.roster(&roster(rows)).expect("a good roster");
    instance.refresh(&host_loads(rows)).expect("good loads");
    instance
}

fn request(seed: u64) -> host::Request<'static> {
    host::Request { client_id: CLIENT, now_ms: NOW_MS, seed, ..host::Request::default() }
}

/// What the bars are about: one call into the guest.
fn wasm(rows: usize, loaded: &Loaded) -> Pickers<'_> {
    let mut instance = instance(rows, loaded);
    let mut seed = seeds();
    let mut committed = Vec::with_capacity(1);
    Pickers::new("wasm", move || {
        let row = instance.recommend(&request(seed()), &committed).expect("it decides").row;
        committed.clear();
        committed.push(row);
        row
    })
}

/// The plain EventMesh scan over the columns, everything recomputed for each decision.
fn scan(rows: usize) -> Pickers<'static> {
    let mut loads = loads(rows);
    Pickers::new("scan", move || {
        let row = cheapest(black_box(&loads));
        loads.pending[row] += 1;
        row as u32
    })
}

#[inline(never)]
fn cheapest(loads: &Loads) -> usize {
    let mut best = (f64::INFINITY, 0);
    for row in 0..loads.flags.len() {
        if loads.flags[row] & 6 != 0 {
            continue;
        }
        let overloaded = loads.cpu[row] > 0.8 || loads.inflow[row] > 5_000_000.0;
        let cost = f64::from(loads.sessions[row])
            + f64::from(loads.pending[row])
            + (loads.inflow[row] + loads.outflow[row]) * 0.001
            + loads.cpu[row] * 1000.0
            + if overloaded { 10_000.0 } else { 0.0 };
        if cost < best.0 {
            best = (cost, row);
        }
    }
    best.1
}

/// The strongest script peer, with its state kept too.
fn luajit(rows: usize, rule: &str) -> Pickers<'static> {
    let lua = mlua::Lua::new();
    let module: mlua::Table = lua.load(include_str!("recommend.lua")).eval().expect("the script is good");
    let loads = loads(rows);
    let refresh: mlua::Function = module.get("refresh").expect("it is there");
    refresh
        .call::<()>((loads.sessions, loads.inflow, loads.outflow, loads.cpu, loads.pending, loads.flags))
        .expect("good loads");
    let recommend: mlua::Function = module.get(rule).expect("it is there");
    let mut seed = seeds();
    let mut committed = -1_i64;
    Pickers::new(&format!("luajit-{rule}"), move || {
        // It ends with the last of its owners, of which a function is none.
        let _alive = &lua;
        // A number in Lua has 53 bits.
        let seed = seed() >> 11;
        let (row, _score): (i64, f64) =
            recommend.call((CLIENT, 0.0, 0.0, committed, NOW_MS, seed)).expect("it decides");
        committed = row;
        row as u32
    })
}

/// A decision of the seat: the call, its verification, breaker and tally.
fn through_seat<'a>(rows: usize, loaded: &'a Arc<Loaded>) -> Pickers<'a> {
    let mut seat = ScoringSeat::new(Arc::new(|| {}));
    seat.install(Some(Staged {
        factory: loaded.clone(),
        instance: instance(rows, loaded),
        roster_revision: 0,
        probation: None,
        is_last_resort: false,
    }));
    let (roster, mut loads, clock) = (Arc::new(roster(rows)), host_loads(rows), RealClock::start());
    let mut seed = seeds();
    Pickers::new("seat", move || {
        let view = View { roster: &roster, loads: &loads, roster_revision: 1, loads_revision: 1 };
        let decision = seat.decide(view, &request(seed()), &clock).expect("a row may be chosen");
        assert!(decision.by.is_some(), "the fallback decided");
        let row = decision.recommendation.row;
        loads.give_out(row);
        seat.commit(row as u32);
        row as u32
    })
}

/// A decision of the balancer: everything between the handler and the guest.
fn through_balancer<'a>(rows: usize, loaded: &'a Arc<Loaded>) -> Pickers<'a> {
    through_balancer_seen_by(rows, loaded, "balancer", None)
}

/// The same with every decision recorded, in a folder that goes with the contender.
fn through_recorded_balancer<'a>(rows: usize, loaded: &'a Arc<Loaded>) -> Pickers<'a> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = journal::Settings {
        folder: folder.path().join("journal"),
        sample_every: 1,
        bytes_max: 256 << 20,
        header: Header::new("bench", &Limits::default()),
    };
    let journal = Journal::start(settings, Arc::new(RealClock::start())).expect("a thread starts");
    let observer = journal.observer();
    let mut balancer = through_balancer_seen_by(rows, loaded, "balancer with journal full", Some(&observer));
    let recorded = Recorded { journal, rows, _folder: folder };
    Pickers::new("balancer with journal full", move || {
        // Lives as long as it is asked.
        let _recorded = &recorded;
        (balancer.pick)()
    })
}

/// Says at its end how much of what was decided could be recorded: beyond what one thread writes, the rest is dropped.
struct Recorded {
    journal: Journal,
    rows: usize,
    _folder: tempfile::TempDir,
}

impl Drop for Recorded {
    #[allow(clippy::print_stdout, reason = "the bench's answer")]
    fn drop(&mut self) {
        self.journal.stop();
        let journal::Counts { written, dropped, .. } = self.journal.counts();
        println!("balancer with journal full, {} rows: {written} recorded, {dropped} dropped", self.rows);
    }
}

fn through_balancer_seen_by<'a>(
    rows: usize,
    loaded: &'a Arc<Loaded>,
    title: &str,
    observer: Option<&Arc<dyn Observer>>,
) -> Pickers<'a> {
    let settings = Settings { ttl: Duration::from_secs(3600), ..Settings::default() };
    let seat = ScoringSeat::new(Arc::new(|| {}));
    let balancer = Balancer::new(settings, seat, Arc::new(RealClock::start()), 7);
    let loads = host_loads(rows);
    for row in 0..rows {
        let report = Report {
            id: id(row),
            address: format!("{}.test:1", id(row)),
            capacity: 1.0,
            load: loads.get(row),
            ..Report::default()
        };
        balancer.heartbeat(report).expect("a good heartbeat");
    }
    let mut staged = Some(Staged {
        factory: loaded.clone(),
        instance: instance(rows, loaded),
        roster_revision: 0,
        probation: None,
        is_last_resort: false,
    });
    balancer.with_seat(&mut |seat| {
        drop(seat.install(staged.take()));
        seat.observe(observer.into_iter().cloned().collect());
    });
    // One client for each decision, as many as sessions a client has on average is none.
    let mut client = 0_u64;
    let mut name = String::new();
    Pickers::new(title, move || {
        use std::fmt::Write as _;
        client += 1;
        name.clear();
        let _ = write!(name, "client-{}", client % 10_000);
        let ask = Ask { client_id: &name, ..Ask::default() };
        let pick = balancer.recommend(&ask).pick.expect("a row may be chosen");
        u32::from(pick.by.is_some())
    })
}
