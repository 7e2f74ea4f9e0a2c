//! One plan of `sticky` through wasm against the same Rust natively: cold start, one leave, one join.
//!
//! `cargo bench --bench plan`. Both get the same cycles in turn, and their answers are compared first.

#![allow(clippy::print_stdout, reason = "the bench's answer")]

/// The helper of the system tests.
#[path = "../../tests/it/lowered.rs"]
mod lowered;
mod support;

use std::time::Duration;

use fulcrum_core::claiming::Reason;
use fulcrum_guest::testing::claiming::{Group, member};
use fulcrum_guest::{Changes, Claiming as _};
use fulcrum_policy::{Artifact, Limits, Runtime};
use lowered::lowered;
use sticky::logic::Sticky;
use support::{Contender, is_bench, machine, race, time, verdict};

/// Members and partitions.
const SIZES: [(usize, usize); 5] = [(10, 100), (100, 1000), (100, 10_000), (1000, 10_000), (1000, 100_000)];
/// The bars of DESIGN section 8, for the largest size, in nanoseconds.
const BARS: [(&str, f64); 2] = [("cold", 2.6e6), ("leave", 0.9e6)];

fn main() {
    machine();
    let runtime = Runtime::new(Limits::default()).expect("the engine starts");
    let wasm = fulcrum::embedded::find("sticky").expect("it is embedded");
    let artifact = Artifact::load(&runtime, wasm).expect("it loads");
    let loaded = artifact.configured("sticky", serde_json::json!({})).expect("it takes no configuration");
    let native = Sticky::configure("{}").expect("it takes no configuration");
    let sizes = if is_bench() { &SIZES[..] } else { &SIZES[..1] };
    for &(members, partitions) in sizes {
        for (event, group) in events(&native, members, partitions) {
            let cycle = lowered(&group, Reason::Join);
            let mut instance = loaded.make_claiming().expect("an instance starts");
            let expected: Changes = native.plan(&group.cycle()).expect("a plan");
            let found = instance.plan(&cycle).expect("a plan");
            assert!(
                found.partition == expected.partition && found.member == expected.member,
                "the same plan"
            );
            let mut contenders = [
                Contender::new("wasm", || drop(instance.plan(&cycle).expect("a plan"))),
                Contender::new("native", || drop(native.plan(&group.cycle()).expect("a plan"))),
            ];
            let (rounds, slice) =
                if is_bench() { (15, Duration::from_millis(60)) } else { (1, Duration::from_millis(1)) };
            let spreads = race(&mut contenders, rounds, slice);
            let (wasm, native) = (spreads[0].lower(), spreads[1].lower());
            let bar = BARS.iter().find(|(of, _)| *of == event && (members, partitions) == SIZES[4]);
            let verdict = bar
                .map_or(String::new(), |&(_, bar)| format!(", bar {}: {}", time(bar), verdict(wasm <= bar)));
            println!(
                "{members} members x {partitions} partitions, {event}: wasm {} (median {}), native {}, {:.1}x, {} \
                 claims{verdict}",
                time(wasm),
                time(spreads[0].median()),
                time(native),
                wasm / native,
                expected.partition.len(),
            );
        }
    }
}

fn events(policy: &Sticky, members: usize, partitions: usize) -> Vec<(&'static str, Group)> {
    let cold = Group::cold(members, partitions);
    let mut settled = cold.clone();
    settled.apply(&policy.plan(&cold.cycle()).expect("a plan"));
    let mut leave = settled.clone();
    leave.leave(members / 2);
    let mut join = settled;
    join.join(member("newcomer", &[0]));
    vec![("cold", cold), ("leave", leave), ("join", join)]
}
