//! `fulcrum policy check`: what a host does before a file goes live, told step by step.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use fulcrum_policy::{Artifact, Limits, Refusal, Runtime, proof, runtime};

use crate::clock::RealClock;

/// Arguments of `policy check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 1 if a host would refuse the file; the text says what is wrong and what to do.")]
pub(in crate::cli) struct Check {
    /// Component file
    file: PathBuf,
    /// Its configuration, a JSON file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check it as a host with policy.wasi = "compat" would
    #[arg(long)]
    wasi: bool,
}

impl Check {
    /// Checks a file with the configuration `{}`.
    pub(super) fn of(file: PathBuf) -> Self {
        Self { file, config: None, wasi: false }
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        let shown = self.file.display();
        let bytes = super::read(&self.file)?;
        let config = super::configuration(self.config.as_deref())?;
        let options = runtime::Options { wasi: self.wasi, cache: None };
        let runtime = Runtime::with(Limits::default(), options).context("cannot start the policy runtime")?;
        let mut steps = Steps(vec![vec!["size".to_owned(), format!("{} bytes", bytes.len())]]);

        let begun = Instant::now();
        let artifact = match Artifact::load(&runtime, &bytes) {
            Ok(artifact) => artifact,
            Err(refusal) => return steps.refused("contract", &refusal),
        };
        let about = artifact.describe();
        steps.add("sha256", artifact.digest());
        steps.add("policy", format!("{} {}: {}", about.name, about.version, about.summary));
        steps.add("contract", format!("ok, roles: {}", super::role_names(artifact.roles()).join(", ")));
        steps.add("compiled", format!("in {:.1} ms", begun.elapsed().as_secs_f64() * 1e3));

        let loaded = match artifact.configured(&super::name_of(&self.file), config) {
            Ok(loaded) => loaded,
            Err(refusal) => return steps.refused("configured", &refusal),
        };
        steps.add("configured", format!("with {}", loaded.config()));
        let report = match proof::run(&loaded, &RealClock::start()) {
            Ok(report) => report,
            Err(refusal) => return steps.refused("self-test", &refusal),
        };
        steps.add("self-test", format!("passed, {} cases, {} decisions", report.cases, report.decisions));
        steps.add("memory", format!("{:.1} MiB at most", report.memory_bytes as f64 / f64::from(1 << 20)));
        if let Some(nanos) = report.recommend_nanos {
            steps.add("recommend", format!("{} over 100 rows", span(nanos)));
            steps.add("explain", if report.explains { "offered" } else { "not offered" });
        }
        if let Some(nanos) = report.plan_nanos {
            steps.add("plan", format!("{} over 20 members and 200 partitions", span(nanos)));
        }
        crate::cli::print(&format!("{}\n{shown} is a policy a host accepts\n", steps.text()))
    }
}

/// What was found so far.
struct Steps(Vec<Vec<String>>);

impl Steps {
    fn add(&mut self, step: &str, found: impl Into<String>) {
        self.0.push(vec![step.to_owned(), found.into()]);
    }

    fn text(&self) -> String {
        crate::cli::table(&self.0)
    }

    /// Prints everything found, the refusal last, each of its lines on its own.
    fn refused(mut self, step: &str, refusal: &Refusal) -> anyhow::Result<()> {
        self.add(step, format!("refused ({})", refusal.code()));
        crate::cli::print(&format!("{}\n{refusal}\n", self.text()))?;
        bail!("a host refuses this file ({})", refusal.code())
    }
}

fn span(nanos: u64) -> String {
    match nanos as f64 {
        nanos if nanos < 1e3 => format!("{nanos:.0} ns"),
        nanos if nanos < 1e6 => format!("{:.2} µs", nanos / 1e3),
        nanos => format!("{:.2} ms", nanos / 1e6),
    }
}
