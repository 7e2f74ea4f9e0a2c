//! The same small policy in every language, and natively: time for each decision, load time, memory.
//!
//! The components are those of `cargo xtask languages --build`. A decision is a call of the instance, as in `recommend`:
//! each contender keeps its state and is told its previous pick as `committed`. Before anything is measured all
//! contenders must agree on a run of answers, bit for bit. `FULCRUM_BENCH_ROUNDS` changes how many rounds are raced.

mod support;

use std::cell::Cell;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulcrum_core::scoring as host;
use fulcrum_core::seed;
use fulcrum_guest::{Request, Row, Scoring as _};
use fulcrum_policy::cache::{self, Cache};
use fulcrum_policy::runtime::Options;
use fulcrum_policy::seat::{ScoringFactory as _, ScoringPolicy};
use fulcrum_policy::{Artifact, Limits, Loaded, Runtime};
use support::http::once;
use support::loads::{host_loads, loads};
use support::server::{Server, fulcrum};
use support::{Contender, Spread, machine, race, time};

/// Examples, and how the tables call them.
const LANGUAGES: [(&str, &str); 7] = [
    ("rust", "Rust"),
    ("c", "C"),
    ("zig", "Zig"),
    ("assemblyscript", "AssemblyScript"),
    ("go", "Go"),
    ("javascript", "JavaScript"),
    ("python", "Python"),
];
const SIZES: [usize; 3] = [10, 100, 1000];
const CONFIG: &str = r#"{"farCost":5,"zone":"z1"}"#;
const CLIENT: &str = "client-17";
const NOW_MS: u64 = 1_800_000_000_000;
/// Answers that all contenders must agree on.
const AGREED: usize = 500;
/// Decisions after which an instance's memory is read; it is told its loads anew every so often.
const LIVED: (usize, usize) = (10_000, 100);
/// Rounds in which every component is loaded, without and with kept code.
const ROUNDS_OF_LOADS: usize = 15;
/// Rounds in which a component that takes longer than `SLOW` is loaded without.
const ROUNDS_OF_SLOW_LOADS: usize = 2;
const SLOW: Duration = Duration::from_secs(1);
/// What a host is given until it has freed what it needed to load a policy.
const SETTLED: Duration = Duration::from_secs(1);

fn main() {
    if !support::is_bench() {
        return;
    }
    let Some(components) = components() else { return };
    let rounds = std::env::var("FULCRUM_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    machine();
    decisions(&components, rounds);
    memory_and_loads(&components);
}

/// A built example.
struct Component {
    name: &'static str,
    path: PathBuf,
    wasm: Vec<u8>,
}

/// Reads what is built; says what is missing, and how to build it, and gives up then.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn components() -> Option<Vec<Component>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/languages/components");
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (example, name) in LANGUAGES {
        let path = folder.join(example).with_added_extension("wasm");
        match std::fs::read(&path) {
            Ok(wasm) => found.push(Component { name, path, wasm }),
            Err(_) => missing.push(example),
        }
    }
    if missing.is_empty() {
        return Some(found);
    }
    println!(
        "no component of {} in target/languages/components: build all of them with `cargo xtask languages --build`",
        missing.join(", ")
    );
    None
}

/// Prints the time of one decision, with its ratio to native.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn decisions(components: &[Component], rounds: usize) {
    // What is measured is the call, not how long a busy machine keeps this thread from running.
    let limits = Limits { scoring_deadline: Duration::from_secs(10), ..Limits::default() };
    let runtime = Runtime::new(limits).expect("the engine starts");
    let loaded: Vec<Loaded> = components
        .iter()
        .map(|component| configured(&Artifact::load(&runtime, &component.wasm).expect("it loads")))
        .collect();
    let mut names = vec!["native Rust"];
    names.extend(components.iter().map(|component| component.name));
    let mut columns = Vec::new();
    for rows in SIZES {
        agree(&names, &mut contenders(rows, &loaded));
        let mut racers: Vec<Contender<'_>> = contenders(rows, &loaded)
            .into_iter()
            .zip(&names)
            .map(|(mut pick, name)| {
                Contender::new(*name, move || {
                    black_box(pick());
                })
            })
            .collect();
        let spreads = race(&mut racers, rounds, Duration::from_micros(300));
        columns.push(spreads.iter().map(Spread::lower).collect::<Vec<f64>>());
    }
    println!("\nlower quartile of {rounds} alternating rounds, per decision; in brackets times native\n");
    println!("| one decision over | {} |", SIZES.map(|rows| format!("{rows} rows")).join(" | "));
    println!("|---|---|---|---|");
    for (at, name) in names.iter().enumerate() {
        let cell = |column: &Vec<f64>| match at {
            0 => time(column[0]),
            _ => format!("{} ({:.1}x)", time(column[at]), column[at] / column[0]),
        };
        println!("| {name} | {} |", columns.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
}

/// Prints what a policy costs before and beside its decisions.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn memory_and_loads(components: &[Component]) {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let usual = executor.block_on(host_kib(None));
    let loads = load_times(components);
    println!(
        "\nload: `Artifact::load`, lower quartile of {ROUNDS_OF_LOADS} alternating rounds ({ROUNDS_OF_SLOW_LOADS} where a first \
         one takes more than {} s); instance: linear memory after {} decisions over 100 rows; host: resident memory of \
         `fulcrum serve` with the policy in service, its code from the cache ({:.1} MiB with `p2c`), and the peak of \
         the start that compiled it ({:.1} MiB)\n",
        SLOW.as_secs(),
        LIVED.0,
        mib(usual.settled),
        mib(usual.peak),
    );
    println!("| | component | load, first | load, cached | instance | host | host, peak of a first load |");
    println!("|---|---|---|---|---|---|---|");
    for (component, [first, cached]) in components.iter().zip(loads) {
        let host = executor.block_on(host_kib(Some(&component.path)));
        println!(
            "| {} | {:.0} kB | {} | {} | {:.1} MiB | {:.1} MiB | {:.1} MiB |",
            component.name,
            component.wasm.len() as f64 / 1e3,
            time(first.lower()),
            time(cached.lower()),
            lived_bytes(&component.wasm) as f64 / f64::from(1 << 20),
            mib(host.settled),
            mib(host.peak),
        );
    }
}

/// Returns per component the nanoseconds of `Artifact::load` by fresh engines: compiling, and with kept code.
fn load_times(components: &[Component]) -> Vec<[Spread; 2]> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || {
        let settings = cache::Settings {
            folder: folder.path().join("compiled"),
            bytes_max: 1 << 30,
            fresh_key: [7; 32],
        };
        Cache::open(settings).expect("the folder is good")
    };
    for component in components {
        load_nanos(&component.wasm, Some(open()));
    }
    let mut nanos = vec![[Vec::new(), Vec::new()]; components.len()];
    for round in 0..ROUNDS_OF_LOADS {
        for (component, [first, cached]) in components.iter().zip(&mut nanos) {
            let is_slow = first.first().is_some_and(|nanos| *nanos > SLOW.as_nanos() as f64);
            if !is_slow || round < ROUNDS_OF_SLOW_LOADS {
                first.push(load_nanos(&component.wasm, None));
            }
            let cache = open();
            cached.push(load_nanos(&component.wasm, Some(cache.clone())));
            assert_eq!(cache.counts().hits, 1, "the code of {} was kept", component.name);
        }
    }
    nanos.into_iter().map(|both| both.map(Spread::new)).collect()
}

fn load_nanos(wasm: &[u8], cache: Option<Arc<Cache>>) -> f64 {
    let runtime =
        Runtime::with(Limits::default(), Options { cache, ..Options::default() }).expect("the engine starts");
    let begun = Instant::now();
    let artifact = Artifact::load(&runtime, wasm).expect("it loads");
    let nanos = begun.elapsed().as_nanos() as f64;
    drop(artifact);
    nanos
}

/// Returns the linear memory of an instance that has decided for a while.
fn lived_bytes(wasm: &[u8]) -> usize {
    let limits = Limits { scoring_deadline: Duration::from_secs(10), ..Limits::default() };
    let runtime = Runtime::new(limits).expect("the engine starts");
    let loaded = configured(&Artifact::load(&runtime, wasm).expect("it loads"));
    let mut instance = instance(100, &loaded);
    let (mut seed, mut committed) = (seeds(), Vec::new());
    for call in 0..LIVED.0 {
        if call % LIVED.1 == 0 {
            instance.refresh(&host_loads(100)).expect("good loads");
            committed.clear();
        }
        let row = instance.recommend(&request(seed()), &committed).expect("it decides").row;
        committed = vec![row];
    }
    instance.memory_bytes()
}

/// Memory of a host's process, in KiB.
struct Kib {
    /// Resident, with the policy's code from the cache and its instance in service.
    settled: u64,
    /// Most that was resident while the policy was loaded for the first time.
    peak: u64,
}

/// Starts a host twice on one data folder, with a component in service or with none dropped.
async fn host_kib(component: Option<&Path>) -> Kib {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let policies = folder.path().join("policies");
    std::fs::create_dir_all(&policies).expect("it can be made");
    if let Some(path) = component {
        std::fs::copy(path, policies.join("near-first.wasm")).expect("it can be copied");
        std::fs::write(policies.join("near-first.json"), CONFIG).expect("it can be written");
    }
    let serving = if component.is_some() { "near-first" } else { "p2c" };
    let binding = format!("policy.scoring={serving}");
    let start = async || {
        let settings = ["--set", &binding, "--set", "policy.scoring_deadline_ms=5000"];
        let server = Server::start(fulcrum(&[], folder.path(), &settings));
        if component.is_some() {
            server.until_in_use(serving).await;
        }
        once(server.addr, "PUT", "/instances/a", r#"{"address":"10.0.0.1:1"}"#).await;
        let answer = once(server.addr, "GET", "/session/recommend?clientId=c", "").await.1;
        assert!(answer.contains(&format!(r#""policy":"{serving}""#)), "{answer}");
        server
    };
    let peak = start().await.memory_kib("VmHWM");
    let server = start().await;
    tokio::time::sleep(SETTLED).await;
    Kib { settled: server.memory_kib("VmRSS"), peak }
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Answers of a contender: the row, and the bits of its score.
type Pick<'a> = Box<dyn FnMut() -> (u32, u64) + 'a>;

/// Native first, then the components in their order.
fn contenders(rows: usize, loaded: &[Loaded]) -> Vec<Pick<'_>> {
    let mut contenders = vec![native(rows)];
    contenders.extend(loaded.iter().map(|loaded| wasm(rows, loaded)));
    contenders
}

fn agree(names: &[&str], contenders: &mut [Pick<'_>]) {
    for call in 0..AGREED {
        let answers: Vec<_> = contenders.iter_mut().map(|pick| pick()).collect();
        for (name, answer) in names.iter().zip(&answers) {
            assert_eq!(*answer, answers[0], "{name} disagrees at call {call}");
        }
    }
}

/// The Rust example's own code.
fn native(rows: usize) -> Pick<'static> {
    let mut policy = near_first::Policy::configure(CONFIG).expect("a good configuration");
    let row = |row| Row {
        id: id(row),
        zone: zone(row).to_owned(),
        capacity: capacity(row),
        labels: Vec::new(),
        age_ms: 0,
    };
    policy.roster((0..rows).map(row).collect()).expect("a good roster");
    policy.refresh(loads(rows)).expect("good loads");
    let mut seed = seeds();
    let mut committed = Vec::with_capacity(1);
    Box::new(move || {
        let request = Request {
            client_id: CLIENT,
            committed: &committed,
            now_ms: NOW_MS,
            seed: seed(),
            ..Request::default()
        };
        let found = policy.recommend(black_box(&request)).expect("a row may be chosen");
        committed.clear();
        committed.push(found.row);
        (found.row, found.score.to_bits())
    })
}

fn wasm(rows: usize, loaded: &Loaded) -> Pick<'_> {
    let mut instance = instance(rows, loaded);
    let mut seed = seeds();
    let mut committed = Vec::with_capacity(1);
    Box::new(move || {
        let found = instance.recommend(&request(seed()), &committed).expect("it decides");
        committed.clear();
        committed.push(found.row);
        (found.row, found.score.to_bits())
    })
}

fn configured(artifact: &Arc<Artifact>) -> Loaded {
    let config = serde_json::from_str(CONFIG).expect("it is JSON");
    artifact.configured("near-first", config).expect("a good configuration")
}

fn instance(rows: usize, loaded: &Loaded) -> Box<dyn ScoringPolicy> {
    let mut instance = loaded.make().expect("an instance starts");
    let row = |row| host::Instance {
        id: Arc::from(id(row)),
        zone: zone(row).to_owned(),
        capacity: capacity(row),
        labels: Vec::new(),
        age_ms: 0,
    };
    let roster = host::Roster::new((0..rows).map(row).collect()).expect("ids differ");
    instance.roster(&roster).expect("a good roster");
    instance.refresh(&host_loads(rows)).expect("good loads");
    instance
}

fn request(seed: u64) -> host::Request<'static> {
    host::Request { client_id: CLIENT, now_ms: NOW_MS, seed, ..host::Request::default() }
}

/// Seeds like those of the host; a contender's n-th call has the n-th seed.
fn seeds() -> impl FnMut() -> u64 {
    let next = Cell::new(0);
    move || {
        next.set(next.get() + 1);
        seed::decision(7, next.get())
    }
}

fn id(row: usize) -> String {
    format!("instance-{row:04}")
}

fn zone(row: usize) -> &'static str {
    ["z1", "z2", "z3"][row % 3]
}

fn capacity(row: usize) -> f64 {
    [1.0, 2.0, 0.5, 1.0][row % 4]
}
