//! Swapping policies under load, in the real binary: no request lost, no mixed decision, no memory lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::Value;

use crate::support::*;

const CLIENTS: usize = 8;
const SWAPS_UNDER_LOAD: usize = 100;
const SWAPS: usize = 1000;
/// How much memory the process may grow over [`SWAPS`] swaps, in KiB. Keeping what one swap loads (a component of 5 kB, its
/// code of two 64 KiB pages and more, an instance) would be 130 MiB; the allocator's own noise is a few.
const GROWTH_KIB_MAX: i64 = 16 * 1024;

/// A host in a process of its own with three equal instances and the first policy in use.
async fn process() -> Process {
    let mut arguments = vec!["--set", "policy.scoring=swap", "--set", "log.filter=warn"];
    // No answer may depend on how busy this machine is.
    for set in ["policy.scoring_deadline_ms=2000", "policy.poll_ms=600000"] {
        arguments.extend(["--set", set]);
    }
    let process = Process::serve(&arguments).await;
    for id in ["a", "b", "c"] {
        process.beat(id, 0).await;
    }
    process.policies().put("swap.wasm", &FIRST);
    process.until_in_use("swap", &digest(&FIRST)).await;
    process
}

/// Swaps policies by renaming files into place, each as soon as the one before is in use; returns the time of each
/// from the drop until it is shown, in milliseconds and ascending.
async fn swap(process: &Process, times: usize) -> Vec<u128> {
    let mut spans = Vec::with_capacity(times);
    for number in 0..times {
        let wasm: &[u8] = if number % 2 == 0 { &LAST } else { &FIRST };
        let begun = Instant::now();
        process.policies().put("swap.wasm", wasm);
        let digest = digest(wasm);
        process.until_in_use("swap", &digest).await;
        spans.push(begun.elapsed().as_millis());
        assert_eq!(
            process.recommend("clientId=swapper").await["digest"],
            digest,
            "each version decides at least once"
        );
    }
    spans.sort_unstable();
    spans
}

fn told(spans: &[u128]) -> String {
    format!("median {} ms, longest {} ms", spans[spans.len() / 2], spans[spans.len() - 1])
}

/// Says what is wrong with an answer: it must be one policy's or the other's, and name the row that one chooses.
fn fault(answer: &Value, first: &str, last: &str) -> Option<String> {
    let [id, digest, policy] =
        ["instanceId", "digest", "policy"].map(|field| answer[field].as_str().unwrap_or_default());
    let score = if digest == first { 0.0 } else { 1.0 };
    let whole = (digest == first && id == "a" || digest == last && id == "c") && answer["score"] == score;
    (!whole || policy != "swap").then(|| answer.to_string())
}

#[test]
fn a_hundred_swaps_under_load_lose_and_mix_nothing() {
    run(async {
        let process = process().await;
        let (first, last) = (digest(&FIRST), digest(&LAST));
        let stop = Arc::<AtomicBool>::default();
        let client = |number: usize| {
            let (api, stop, first, last) = (process.another(), stop.clone(), first.clone(), last.clone());
            tokio::spawn(async move {
                let mut answers = [0_u64; 2];
                while !stop.load(Ordering::Relaxed) {
                    // Fails on anything but a success, a lost connection included.
                    let answer = api.recommend(&format!("clientId=client-{number}")).await;
                    assert_eq!(fault(&answer, &first, &last), None);
                    answers[usize::from(answer["digest"] == *last)] += 1;
                }
                answers
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let begun = Instant::now();
        let spans = swap(&process, SWAPS_UNDER_LOAD).await;
        let took = begun.elapsed();
        stop.store(true, Ordering::Relaxed);
        let mut answers = [0_u64; 2];
        for client in clients {
            let of_client = client.await.expect("every answer was good");
            answers.iter_mut().zip(of_client).for_each(|(sum, count)| *sum += count);
        }
        let all = answers[0] + answers[1];
        println!(
            "{SWAPS_UNDER_LOAD} swaps under load: {}; {all} answers in {took:.1?}, {answers:?} by policy",
            told(&spans)
        );
        assert!(answers.iter().all(|count| *count > 100), "both policies decided: {answers:?}");
        let status = process.policy("swap").await;
        let ok = status["decisions"]["ok"].as_u64().unwrap();
        let others: u64 =
            status["decisions"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
        let expected = all + SWAPS_UNDER_LOAD as u64;
        assert_eq!((ok, others, &status["lastFailure"]), (expected, expected, &Value::Null), "{status}");
    });
}

/// What the process holds: resident memory in KiB, mappings, threads, open files.
fn held(process: &Process) -> [i64; 4] {
    let read =
        |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", process.id())).expect("it runs");
    let pages: i64 =
        read("statm").split_whitespace().nth(1).expect("resident pages").parse().expect("a number");
    let status = read("status");
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).expect("on every Linux");
    let files = std::fs::read_dir(format!("/proc/{}/fd", process.id())).expect("it runs").count();
    let lines = |text: &str| i64::try_from(text.lines().count()).expect("few");
    [
        pages * 4,
        lines(&read("maps")),
        threads.trim().parse().expect("a number"),
        i64::try_from(files).expect("few"),
    ]
}

#[cfg(target_os = "linux")]
#[test]
fn memory_stays_flat_over_a_thousand_swaps() {
    run(async {
        let process = process().await;
        swap(&process, 100).await;
        let before = held(&process);
        let begun = Instant::now();
        let mut spans = Vec::new();
        for part in 1..=4 {
            spans.extend(swap(&process, SWAPS / 4).await);
            println!(
                "after {:4} swaps: {:?} (KiB, mappings, threads, files)",
                part * SWAPS / 4,
                held(&process)
            );
        }
        spans.sort_unstable();
        let after = held(&process);
        println!("{SWAPS} swaps in {:.1?}: {}; from {before:?} to {after:?}", begun.elapsed(), told(&spans));
        let grown: Vec<_> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert!(grown[0] <= GROWTH_KIB_MAX, "{} KiB more after {SWAPS} swaps", grown[0]);
        assert!(grown[1] <= 100 && grown[2] <= 4 && grown[3] <= 4, "{grown:?}");
    });
}
