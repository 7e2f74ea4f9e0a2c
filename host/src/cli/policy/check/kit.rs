//! The conformance kit as a part of `policy check`: its options, its progress, and its report for people and programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use clap::Args;
use fulcrum_policy::conformance::{self, Cut, Finding, Options, Progress, Slowest, Times};
use fulcrum_policy::seat::ScoringFactory as _;
use fulcrum_policy::{Artifact, Loaded};
use serde::Serialize;

use super::span;
use crate::clock::RealClock;

/// Time after which progress is told, and between two lines of it.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Options of the kit.
#[derive(Clone, Debug, Args)]
pub(super) struct Arguments {
    /// Make other inputs than usual; the same seed makes the same ones
    #[arg(long, value_name = "N", default_value_t = conformance::SEED)]
    seed: u64,
    /// Run one case of the kit, one class or one role: scoring/ties/3, scoring/ties, scoring
    #[arg(long, value_name = "CASE")]
    only: Option<String>,
    /// Leave out cases with more instances than the hosts have that it is for
    #[arg(long, value_name = "N", default_value_t = conformance::ROWS_MAX)]
    rows_max: usize,
}

impl Default for Arguments {
    fn default() -> Self {
        let Options { seed, only, rows_max } = Options::default();
        Self { seed, only, rows_max }
    }
}

impl Arguments {
    #[cfg(test)]
    pub(super) fn only(case: &str) -> Self {
        Self { only: Some(case.to_owned()), ..Self::default() }
    }

    /// Runs the kit on a policy that a host accepts; `command` runs the check again. Errors if there is no such case, or no runtime.
    pub(super) fn run(
        &self,
        policy: &Loaded,
        bytes: &[u8],
        command: &str,
        clock: &RealClock,
    ) -> anyhow::Result<Found> {
        let options = Options { seed: self.seed, only: self.only.clone(), rows_max: self.rows_max };
        let runtime = policy.runtime();
        let metered = match self.only {
            Some(_) => None,
            None => {
                let runtime = conformance::metered_runtime(runtime.limits(), runtime.offers_wasi())
                    .context("cannot start the runtime that counts instructions")?;
                // It was accepted a moment ago.
                let loaded = Artifact::load(&runtime, bytes)
                    .and_then(|artifact| {
                        artifact.configured(&policy.identity().name, policy.config().clone())
                    })
                    .map_err(|refusal| anyhow!("cannot load it again to count instructions: {refusal}"))?;
                Some(loaded)
            }
        };
        let begun = Instant::now();
        let mut told = begun;
        let mut progress = |at: Progress<'_>| {
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                let Progress { class, done, total } = at;
                let passed = begun.elapsed().as_secs();
                // Nobody need listen.
                let _ = writeln!(io::stderr(), "{done} of {total} cases in {passed} s, at {class}");
            }
        };
        let report = conformance::run(policy, metered.as_ref(), &options, clock, &mut progress);
        ensure!(
            !report.classes.is_empty(),
            "the kit has no case {:?} for this policy; the classes are in its full report",
            self.only.as_deref().unwrap_or_default()
        );
        Ok(Found::of(&report, self, command, runtime.limits().memory_bytes))
    }

    /// Returns the command that runs one case again; `command` is the one without the options of the kit.
    fn repeat(&self, command: &str, case: &str) -> String {
        let seed =
            if self.seed == conformance::SEED { String::new() } else { format!(" --seed {}", self.seed) };
        // What is found where calls are cut off has no case of its own.
        let only = if case.starts_with("deadline") { String::new() } else { format!(" --only {case}") };
        format!("{command}{seed}{only}")
    }
}

/// What the kit found.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Found {
    passed: bool,
    seed: u64,
    cases: usize,
    failed: usize,
    skipped: usize,
    calls: usize,
    memory_bytes: usize,
    memory_bytes_max: usize,
    classes: Vec<Class>,
    slowest: Vec<Slow>,
    cuts: Vec<CutOff>,
    findings: Vec<Told>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Class {
    class: String,
    cases: usize,
    failed: usize,
    /// Not run, because three had failed.
    skipped: usize,
    calls: usize,
    /// By the contract's names.
    errors: BTreeMap<&'static str, usize>,
    median_nanos: Option<u64>,
    p99_nanos: Option<u64>,
    worst_nanos: Option<u64>,
    deadline_nanos: u64,
    memory_bytes: usize,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Slow {
    call: &'static str,
    case: String,
    size: String,
    median_nanos: u64,
    deadline_nanos: u64,
}

#[derive(Debug, PartialEq, Serialize)]
struct CutOff {
    call: &'static str,
    size: &'static str,
    instructions: u64,
    cuts: usize,
}

#[derive(Debug, PartialEq, Serialize)]
struct Told {
    code: &'static str,
    /// Else it is something to know.
    failure: bool,
    class: String,
    case: String,
    /// In how many cases of the class.
    cases: usize,
    message: String,
    fix: &'static str,
    /// The command that runs the case again.
    repeat: String,
}

impl Found {
    fn of(
        report: &conformance::Report,
        arguments: &Arguments,
        command: &str,
        memory_bytes_max: usize,
    ) -> Self {
        let sum = |of: fn(&conformance::Class) -> usize| report.classes.iter().map(of).sum();
        let class = |class: &conformance::Class| Class {
            class: class.name.clone(),
            cases: class.cases,
            failed: class.failed,
            skipped: class.skipped,
            calls: class.calls,
            errors: class.errors.clone(),
            median_nanos: class.times.map(|Times { median_nanos, .. }| median_nanos),
            p99_nanos: class.times.map(|Times { p99_nanos, .. }| p99_nanos),
            worst_nanos: class.times.map(|Times { worst_nanos, .. }| worst_nanos),
            deadline_nanos: class.deadline_nanos,
            memory_bytes: class.memory_bytes,
        };
        let slow = |Slowest { call, case, size, median_nanos, deadline_nanos }: &Slowest| Slow {
            call,
            case: case.clone(),
            size: size.clone(),
            median_nanos: *median_nanos,
            deadline_nanos: *deadline_nanos,
        };
        let cut = |&Cut { call, size, instructions, cuts }: &Cut| CutOff { call, size, instructions, cuts };
        let told = |finding: &Finding| Told {
            code: finding.kind.code(),
            failure: finding.kind.is_failure(),
            class: finding.class.clone(),
            case: finding.case.clone(),
            cases: finding.cases,
            message: finding.message.clone(),
            fix: finding.kind.fix(),
            repeat: arguments.repeat(command, &finding.case),
        };
        Self {
            passed: report.passed(),
            seed: arguments.seed,
            cases: sum(|class| class.cases),
            failed: sum(|class| class.failed),
            skipped: sum(|class| class.skipped),
            calls: sum(|class| class.calls),
            memory_bytes: report.classes.iter().map(|class| class.memory_bytes).max().unwrap_or(0),
            memory_bytes_max,
            classes: report.classes.iter().map(class).collect(),
            slowest: report.slowest.iter().map(slow).collect(),
            cuts: report.cuts.iter().map(cut).collect(),
            findings: report.findings.iter().map(told).collect(),
        }
    }

    /// Says whether no finding is a failure.
    pub(super) fn passed(&self) -> bool {
        self.passed
    }

    /// Returns the codes of what failed, each once.
    pub(super) fn codes(&self) -> Vec<&'static str> {
        let mut codes: Vec<_> =
            self.findings.iter().filter(|told| told.failure).map(|told| told.code).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }

    /// Says in a line how it went.
    pub(super) fn summary(&self) -> String {
        let Self { cases, failed, skipped, calls, seed, .. } = self;
        let skipped = if *skipped > 0 { format!(", {skipped} not tried") } else { String::new() };
        let ended = if self.passed { "passed".to_owned() } else { format!("{failed} cases failed{skipped}") };
        format!("{ended}, {cases} cases, {calls} calls (seed {seed})")
    }

    /// Writes classes, figures beside their limits, and findings with what to do, each with an empty line after it.
    pub(super) fn text(&self) -> String {
        let head = ["CLASS", "CASES", "OK", "MEDIAN", "99 %", "WORST", "OF", "MEMORY", "ERRORS"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        let time = |nanos: Option<u64>| nanos.map_or_else(|| "-".to_owned(), span);
        for class in &self.classes {
            let errors: Vec<_> = class.errors.iter().map(|(name, count)| format!("{name} {count}")).collect();
            rows.push(vec![
                class.class.clone(),
                (class.cases + class.skipped).to_string(),
                (class.cases - class.failed).to_string(),
                time(class.median_nanos),
                time(class.p99_nanos),
                time(class.worst_nanos),
                format!("{:.0} ms", class.deadline_nanos as f64 / 1e6),
                format!("{:.1} MiB", mebibytes(class.memory_bytes)),
                errors.join(", "),
            ]);
        }
        let mut text = format!("{}\n", crate::cli::table(&rows));
        let mut line = |line: String| {
            // Into a text, this cannot fail.
            let _ = writeln!(text, "{line}");
        };
        for Slow { call, case, size, median_nanos, deadline_nanos } in &self.slowest {
            let share = *median_nanos as f64 / *deadline_nanos as f64 * 100.0;
            line(format!(
                "slowest {call}: {} of {:.0} ms ({share:.1} %), {size}, {case}",
                span(*median_nanos),
                *deadline_nanos as f64 / 1e6
            ));
        }
        line(format!(
            "most memory: {:.1} of {:.0} MiB ({:.0} %)",
            mebibytes(self.memory_bytes),
            mebibytes(self.memory_bytes_max),
            self.memory_bytes as f64 / self.memory_bytes_max as f64 * 100.0
        ));
        for CutOff { call, size, instructions, cuts } in &self.cuts {
            line(format!(
                "deadline: {call} over {size} takes {instructions} instructions; cut off {cuts} times on the way"
            ));
        }
        for told in &self.findings {
            let word = if told.failure { "failed" } else { "note" };
            line(format!(
                "\n{word} ({}) in {} of {} cases of {}, first in {}:\n  {}\n  to mend it: {}\n  to see it again: {}",
                told.code,
                told.cases,
                self.cases_of(&told.class),
                told.class,
                told.case,
                told.message,
                told.fix,
                told.repeat
            ));
        }
        text.push('\n');
        text
    }

    fn cases_of(&self, class: &str) -> usize {
        self.classes.iter().find(|known| known.class == class).map_or(self.cuts.len(), |known| known.cases)
    }
}

fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
