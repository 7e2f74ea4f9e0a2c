//! What the benches share: contenders that run in turn, quartiles, ratios.
//!
//! The machines these run on are small and shared, so an absolute time means little. Every bar is a ratio inside one
//! run: the contenders take turns in short rounds, what disturbs one round disturbs all of them, and the lower
//! quartile of the rounds is compared.

#![allow(dead_code, clippy::print_stdout, reason = "each bench uses a part, and all of them print")]

pub(crate) mod http;
pub(crate) mod loads;
pub(crate) mod server;

use std::time::{Duration, Instant};

/// Says whether this is `cargo bench`, and not `cargo test --benches` (which only wants to see that it runs) or a run
/// under a profiler.
pub(crate) fn is_bench() -> bool {
    let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    has("--bench") && !has("--profile-time")
}

/// Prints what the figures below were measured on.
pub(crate) fn machine() {
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    println!("machine: {} cores, load before this run {load}, {}", cores, std::env::consts::ARCH);
}

/// Something that is measured against others.
pub(crate) struct Contender<'a> {
    pub(crate) name: String,
    pub(crate) call: Box<dyn FnMut() + 'a>,
}

impl<'a> Contender<'a> {
    pub(crate) fn new(name: impl Into<String>, call: impl FnMut() + 'a) -> Self {
        Self { name: name.into(), call: Box::new(call) }
    }
}

/// Lets the contenders run in turn: each round gives each of them about `slice`. Returns per contender the
/// nanoseconds per call in each round.
pub(crate) fn race(contenders: &mut [Contender<'_>], rounds: usize, slice: Duration) -> Vec<Spread> {
    let calls: Vec<u32> = contenders.iter_mut().map(|contender| calls_in(contender, slice)).collect();
    let mut nanos = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            // Everybody is first, and after everybody else, equally often.
            let at = (round + turn) % contenders.len();
            nanos[at].push(timed(&mut contenders[at], calls[at]));
        }
    }
    nanos.into_iter().map(Spread::new).collect()
}

fn calls_in(contender: &mut Contender<'_>, slice: Duration) -> u32 {
    timed(contender, 200);
    let nanos = timed(contender, 200).max(1.0);
    ((slice.as_nanos() as f64 / nanos) as u32).max(1)
}

fn timed(contender: &mut Contender<'_>, calls: u32) -> f64 {
    let begun = Instant::now();
    for _ in 0..calls {
        (contender.call)();
    }
    begun.elapsed().as_nanos() as f64 / f64::from(calls)
}

/// Sorted measurements.
pub(crate) struct Spread(Vec<f64>);

impl Spread {
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// Returns the value below which `share` of all lie.
    pub(crate) fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn lower(&self) -> f64 {
        self.at(0.25)
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }
}

/// Writes nanoseconds in the unit that suits them.
pub(crate) fn time(nanos: f64) -> String {
    match nanos {
        nanos if nanos < 1e3 => format!("{nanos:.0} ns"),
        nanos if nanos < 1e6 => format!("{:.2} µs", nanos / 1e3),
        nanos => format!("{:.2} ms", nanos / 1e6),
    }
}

/// Writes a verdict on a bar.
pub(crate) fn verdict(holds: bool) -> &'static str {
    if holds { "ok" } else { "MISSED" }
}
