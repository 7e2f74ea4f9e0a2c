//! Policies that import WASI: refused unless the runtime offers it, and then they find nothing and hold nobody up.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::support::wasi::{PRINT, SLEEP, WALL_CLOCK, wasi_guest};
use crate::support::*;
use fulcrum_core::scoring::{Loads, Request};
use fulcrum_policy::runtime::Options;
use fulcrum_policy::seat::ScoringFactory as _;
use fulcrum_policy::{Artifact, Failure, Limits, Loaded, Runtime, proof};

const NOW_MS: u64 = 1_700_000_000_123;

fn compat() -> Arc<Runtime> {
    static RUNTIME: LazyLock<Arc<Runtime>> = LazyLock::new(|| {
        let limits = Limits {
            load_deadline: Duration::from_secs(5),
            // An hour of sleep must fit into it, on a busy machine.
            scoring_deadline: Duration::from_millis(500),
            ..Limits::default()
        };
        Runtime::with(limits, Options { wasi: true, ..Options::default() }).unwrap()
    });
    RUNTIME.clone()
}

fn load((imports, cost): (&str, &str)) -> Arc<Loaded> {
    let artifact =
        Artifact::load(&compat(), &wasi_guest(imports, cost)).unwrap_or_else(|error| panic!("{error}"));
    Arc::new(artifact.configured("guest", serde_json::json!({})).unwrap())
}

/// Asks a fresh instance once; returns the cost.
fn ask(loaded: &Loaded, now_ms: u64, seed: u64, client_id: &str) -> Result<f64, Failure> {
    let mut instance = loaded.make().unwrap();
    instance.roster(&roster(1)).unwrap();
    instance.refresh(&Loads::unknown(1)).unwrap();
    let request = Request { client_id, now_ms, seed, ..Request::default() };
    instance.recommend(&request, &[]).map(|proposal| proposal.score)
}

#[test]
fn what_imports_wasi_is_refused_with_advice() {
    let refused = |runtime: &Arc<Runtime>, (imports, cost): (&str, &str), words: &[&str]| {
        let refusal = Artifact::load(runtime, &wasi_guest(imports, cost)).err().unwrap();
        assert_eq!(refusal.code(), "imports", "{refusal}");
        for word in words {
            assert!(refusal.to_string().contains(word), "{refusal} lacks {word}");
        }
    };
    let advice = ["policy.wasi = \"compat\"", "fulcrum policy pack"];
    refused(&runtime(), WALL_CLOCK, &["wasi:clocks/wall-clock@0.2.3", advice[0], advice[1]]);
    refused(&runtime(), SLEEP, &["wasi:clocks/monotonic-clock@0.2.3", "wasi:io/poll@0.2.3, ", advice[0]]);
    let http =
        ("handle http/outgoing-handler handle (param)", "(block (result f64) (call $handle) (f64.const 0))");
    for runtime in [runtime(), compat()] {
        refused(&runtime, http, &["wasi:http/outgoing-handler@0.2.3", "may import nothing but"]);
    }
}

#[test]
fn what_wasi_does_not_have_is_named() {
    // Under a name WASI has, with a function it has not.
    let wasm = wasi_guest(WALL_CLOCK.0, WALL_CLOCK.1);
    let at = wasm.windows(4).enumerate().filter(|(_, bytes)| bytes == b"\x03now").map(|(at, _)| at);
    let mut wasm = wasm.clone();
    at.collect::<Vec<_>>().into_iter().for_each(|at| wasm[at + 1..at + 4].copy_from_slice(b"won"));
    let refusal = Artifact::load(&compat(), &wasm).err().unwrap();
    assert_eq!(refusal.code(), "imports", "{refusal}");
    assert!(
        refusal.to_string().contains("wasi:clocks/wall-clock") && refusal.to_string().contains("`won`"),
        "{refusal}"
    );
}

#[test]
fn clocks_stand_still_at_the_time_of_the_decision() {
    for guest in [
        WALL_CLOCK,
        (
            "now clocks/monotonic-clock now (result i64)",
            "(f64.convert_i64_u (i64.div_u (call $now) (i64.const 1000000)))",
        ),
    ] {
        let loaded = load(guest);
        proof::run(&loaded, &TestClock::default()).unwrap();
        for now_ms in [NOW_MS, 5000, NOW_MS + 1] {
            assert_eq!(ask(&loaded, now_ms, 1, "").unwrap(), now_ms as f64);
        }
    }
}

#[test]
fn a_sleep_moves_the_clock_and_holds_nobody_up() {
    let loaded = load(SLEEP);
    proof::run(&loaded, &TestClock::default()).unwrap();
    assert_eq!(ask(&loaded, NOW_MS, 1, "").unwrap(), (NOW_MS + 3_600_000) as f64);

    // Of two timers the earlier one ends the wait, and only that one.
    let two = load((
        "now clocks/monotonic-clock now (result i64)
         timer clocks/monotonic-clock subscribe-duration (param i64) (result i32)
         poll io/poll poll (param i32 i32 i32)
         drop io/poll [resource-drop]pollable (param i32)",
        "(block (result f64)
          (i32.store (i32.const 0x300) (call $timer (i64.const 3600000000000)))
          (i32.store (i32.const 0x304) (call $timer (i64.const 60000000000)))
          (call $poll (i32.const 0x300) (i32.const 2) (i32.const 0x200))
          (call $drop (i32.load (i32.const 0x300)))
          (call $drop (i32.load (i32.const 0x304)))
          (f64.convert_i64_u (i64.add
            (i64.mul (i64.const 10) (i64.div_u (call $now) (i64.const 1000000)))
            (i64.add
              (i64.extend_i32_u (i32.load (i32.const 0x204)))
              (i64.mul (i64.const 5) (i64.extend_i32_u (i32.load (i32.load (i32.const 0x200)))))))))",
    ));
    // One was ready, the second.
    assert_eq!(ask(&two, 1000, 1, "").unwrap(), f64::from((1000 + 60_000) * 10 + 1 + 5));
}

#[test]
fn chance_comes_from_the_seed() {
    for guest in [
        ("random random/random get-random-u64 (result i64)", "(f64.convert_i64_u (call $random))"),
        (
            "random random/random get-random-bytes (param i64 i32)",
            "(block (result f64)
              (call $random (i64.const 11) (i32.const 0x200))
              (f64.add
                (f64.convert_i32_u (i32.load (i32.const 0x204)))
                (f64.convert_i32_u (i32.load (i32.add (i32.const 7) (i32.load (i32.const 0x200)))))))",
        ),
    ] {
        let loaded = load(guest);
        proof::run(&loaded, &TestClock::default()).unwrap();
        let of = |seed| ask(&loaded, NOW_MS, seed, "").unwrap();
        assert_eq!(of(7).to_bits(), of(7).to_bits());
        assert_ne!(of(7).to_bits(), of(8).to_bits());
    }
}

#[test]
fn there_is_nothing_to_find() {
    let checks = [
        ("environment", "get cli/environment get-environment (param i32)"),
        ("arguments", "get cli/environment get-arguments (param i32)"),
        ("folders", "get filesystem/preopens get-directories (param i32)"),
    ];
    for (what, import) in checks {
        let count = "(block (result f64) (call $get (i32.const 0x200)) (f64.convert_i32_u (i32.load (i32.const 0x204))))";
        assert_eq!(ask(&load((import, count)), NOW_MS, 1, "").unwrap(), 0.0, "{what}");
    }
    // The error's case: 1 is `closed`.
    let stdin = load((
        "in cli/stdin get-stdin (result i32)
         drop io/streams [resource-drop]input-stream (param i32)
         read io/streams [method]input-stream.blocking-read (param i32 i64 i32)",
        "(block (result f64)
          (local.set $a (call $in))
          (call $read (local.get $a) (i64.const 100) (i32.const 0x200))
          (call $drop (local.get $a))
          (f64.convert_i32_u (i32.add
            (i32.mul (i32.const 10) (i32.load8_u (i32.const 0x200)))
            (i32.load8_u (i32.const 0x204)))))",
    ));
    assert_eq!(ask(&stdin, NOW_MS, 1, "").unwrap(), 11.0);
    // 1 is `access-denied`.
    for kind in ["tcp", "udp"] {
        let import = format!("make sockets/{kind}-create-socket create-{kind}-socket (param i32 i32)");
        let cost = "(block (result f64)
          (call $make (i32.const 0) (i32.const 0x200))
          (f64.convert_i32_u (i32.add
            (i32.mul (i32.const 10) (i32.load8_u (i32.const 0x200)))
            (i32.load8_u (i32.const 0x204)))))";
        assert_eq!(ask(&load((&import, cost)), NOW_MS, 1, "").unwrap(), 11.0, "{kind}");
    }
}

/// Decisions run on the threads that serve requests, which belong to an executor: nothing may start another one there.
#[test]
fn calls_work_on_the_threads_of_an_executor() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let loaded = load(SLEEP);
    let found = runtime.block_on(async { ask(&loaded, NOW_MS, 1, "") });
    assert_eq!(found.unwrap(), (NOW_MS + 3_600_000) as f64);
}

#[test]
fn every_sin_is_contained_and_named() {
    let timer = "timer clocks/monotonic-clock subscribe-duration (param i64) (result i32)
         block io/poll [method]pollable.block (param i32)";
    let cases: [((&str, &str), Failure); 10] = [
        (
            (timer, "(block (result f64) (call $block (call $timer (i64.const -1))) (f64.const 0))"),
            Failure::Trap("it waits for something that never happens".to_owned()),
        ),
        (
            (
                "now clocks/monotonic-clock now (result i64)",
                "(block (result f64)
                  (loop $again
                    (br_if $again (i64.lt_u (call $now) (i64.mul (local.get $now) (i64.const 2000000)))))
                  (f64.const 0))",
            ),
            Failure::Timeout { deadline_ms: 500 },
        ),
        (
            (
                "random random/random get-random-bytes (param i64 i32)",
                "(block (result f64) (call $random (i64.const 0x100001) (i32.const 0x200)) (f64.const 0))",
            ),
            Failure::Trap(
                "it wants 1048577 random bytes at once, at most 1048576 are given".to_owned(),
            ),
        ),
        (
            ("exit cli/exit exit (param i32)", "(block (result f64) (call $exit (i32.const 1)) (f64.const 0))"),
            Failure::Trap("it ended itself with status 1".to_owned()),
        ),
        (
            (
                "out cli/stdout get-stdout (result i32)",
                "(block (result f64) (loop $again (drop (call $out)) (br $again)) (f64.const 0))",
            ),
            Failure::Limit("holds more than 4096 streams and pollables".to_owned()),
        ),
        (
            (
                "poll io/poll poll (param i32 i32 i32)
                 timer clocks/monotonic-clock subscribe-duration (param i64) (result i32)",
                "(block (result f64)
                  (local.set $a (call $timer (i64.const 1)))
                  (loop $again
                    (i32.store (i32.add (i32.const 0x10000) (i32.shl (local.get $b) (i32.const 2))) (local.get $a))
                    (local.set $b (i32.add (local.get $b) (i32.const 1)))
                    (br_if $again (i32.lt_u (local.get $b) (i32.const 2000))))
                  (call $poll (i32.const 0x10000) (local.get $b) (i32.const 0x200))
                  (f64.const 0))",
            ),
            Failure::Trap("it waits for 2000 things at once, at most 1024".to_owned()),
        ),
        // What is wrong with the arguments of a call is not its answer.
        (
            (timer, "(block (result f64) (call $block (i32.const 12345)) (f64.const 0))"),
            Failure::Trap("in a call into the host: unknown handle index 12345".to_owned()),
        ),
        (
            (
                "random random/random get-random-bytes (param i64 i32)",
                "(block (result f64) (call $random (i64.const 1) (i32.const 0x7ffffffc)) (f64.const 0))",
            ),
            Failure::Trap("in a call into the host: pointer out of bounds".to_owned()),
        ),
        (
            (
                "poll io/poll poll (param i32 i32 i32)
                 timer clocks/monotonic-clock subscribe-duration (param i64) (result i32)",
                "(block (result f64)
                  (drop (memory.grow (i32.const 8)))
                  (local.set $a (call $timer (i64.const 1)))
                  (loop $again
                    (i32.store (i32.add (i32.const 0x20000) (i32.shl (local.get $b) (i32.const 2))) (local.get $a))
                    (local.set $b (i32.add (local.get $b) (i32.const 1)))
                    (br_if $again (i32.lt_u (local.get $b) (i32.const 100001))))
                  (call $poll (i32.const 0x20000) (local.get $b) (i32.const 0x200))
                  (f64.const 0))",
            ),
            Failure::Limit("a call into the host carried more than 64 KiB".to_owned()),
        ),
        (
            (
                "out cli/stdout get-stdout (result i32)
                 zeroes io/streams [method]output-stream.write-zeroes (param i32 i64 i32)",
                "(block (result f64) (call $zeroes (call $out) (i64.const 4097) (i32.const 0x200)) (f64.const 0))",
            ),
            Failure::Limit(
                "in a call into the host: cannot write more zeroes than `check_write` allows".to_owned(),
            ),
        ),
    ];
    for (guest, expected) in cases {
        assert_eq!(ask(&load(guest), NOW_MS, 1, ""), Err(expected), "{}", guest.0);
    }
}

#[test]
fn what_is_printed_is_logged_within_bounds() {
    let loaded = load(PRINT);
    proof::run(&loaded, &TestClock::default()).unwrap();
    assert_eq!(ask(&loaded, NOW_MS, 1, &"x".repeat(66)), Err(Failure::Timeout { deadline_ms: 500 }));
    assert!(loaded.log_lines_dropped() > 100, "{}", loaded.log_lines_dropped());
}
