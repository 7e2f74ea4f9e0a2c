//! `fulcrum policy check`: what a host does before a file goes live, told step by step, and the conformance kit after it.
//!
//! Invariant: the text is made of the report that `--json` prints, so both say the same. The report is an interface:
//! within one format fields are added, and none is renamed, removed or given another type.

mod kit;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use fulcrum_policy::{Artifact, Limits, Refusal, contract, proof};
use serde::Serialize;
use serde_json::Value;

use super::Mode;
use super::shell::quoted;
use crate::clock::RealClock;

/// Number of the report's form, raised when a field goes or changes its meaning.
const FORMAT: u32 = 1;

/// Arguments of `policy check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 1 if a host would refuse it, or if it fails in the conformance kit; the text says what is wrong and what to do.")]
pub(in crate::cli) struct Check {
    /// Name of an embedded policy, or a component file
    #[arg(value_name = "NAME|FILE")]
    policy: PathBuf,
    /// Its configuration, a JSON file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON; the fields are explained in docs/POLICIES.md
    #[arg(long)]
    json: bool,
    /// Do only what a host does before it goes live, not the conformance kit
    #[arg(long, conflicts_with_all = ["seed", "only", "rows_max"])]
    quick: bool,
    #[command(flatten)]
    kit: kit::Arguments,
    /// Time one scoring call may take, in milliseconds
    #[arg(long, value_name = "MS", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    scoring_deadline_ms: u32,
    /// Time one plan may take, in milliseconds
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    claiming_deadline_ms: u32,
    #[command(flatten)]
    mode: Mode,
}

/// What was found; a field is null if the check did not come that far, or if it says nothing about this policy.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    format: u32,
    file: String,
    /// Whether a host takes the file.
    accepted: bool,
    /// Whether it was checked for hosts that offer WASI.
    wasi: bool,
    size_bytes: usize,
    /// Lower-case hex sha256.
    digest: Option<String>,
    name: Option<String>,
    version: Option<String>,
    summary: Option<String>,
    /// The contract it matches, with its version.
    contract: Option<String>,
    roles: Option<Vec<&'static str>>,
    /// Time it took to compile, in milliseconds.
    compile_ms: Option<f64>,
    /// The configuration it took.
    config: Option<Value>,
    self_test: Option<SelfTest>,
    /// Most memory an instance used, in bytes.
    memory_bytes: Option<usize>,
    /// Median time of a decision over 100 rows, in nanoseconds.
    recommend_nanos: Option<u64>,
    /// Median time of a plan over 20 members and 200 partitions, in nanoseconds.
    plan_nanos: Option<u64>,
    /// Whether it explains its scores; null without the scoring role.
    explains: Option<bool>,
    /// What the conformance kit found; null with `--quick`.
    conformance: Option<kit::Found>,
    refusal: Option<Refused>,
}

#[derive(Debug, PartialEq, Serialize)]
struct SelfTest {
    cases: usize,
    decisions: usize,
}

#[derive(Debug, PartialEq, Serialize)]
struct Refused {
    /// `contract`, `configured` or `self-test`.
    step: &'static str,
    /// Stable; docs/OPERATING.md explains them.
    code: &'static str,
    /// What is wrong and what to do; may have several lines.
    message: String,
}

impl Check {
    /// Does with a file what a host does, with the configuration `{}`.
    pub(super) fn quick(file: PathBuf) -> Self {
        let limits = Limits::default();
        Self {
            policy: file,
            config: None,
            json: false,
            quick: true,
            kit: kit::Arguments::default(),
            scoring_deadline_ms: fulcrum_core::time::millis_u32(limits.scoring_deadline),
            claiming_deadline_ms: fulcrum_core::time::millis_u32(limits.claiming_deadline),
            mode: Mode::default(),
        }
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        let (name, bytes) = match self.policy.to_str() {
            Some(policy) => super::find(policy)?,
            None => (super::name_of(&self.policy), super::read(&self.policy)?),
        };
        let config = super::configuration(self.config.as_deref())?;
        let report = self.examine(&name, &bytes, config)?;
        if self.json {
            crate::cli::print_json(&report)?;
        } else {
            crate::cli::print(&report.text())?;
        }
        if let Some(refusal) = report.refusal {
            bail!("a host refuses this file ({})", refusal.code);
        }
        if let Some(found) = report.conformance.filter(|found| !found.passed()) {
            bail!("it does not conform ({})", found.codes().join(", "));
        }
        Ok(())
    }

    /// Returns this command without the options that say what to print and what to run.
    fn command(&self) -> String {
        let mut command = format!("fulcrum policy check {}", quoted(&self.policy));
        if let Some(config) = &self.config {
            command += &format!(" --config {}", quoted(config));
        }
        let limits = Limits::default();
        for (flag, ms, default) in [
            ("scoring", self.scoring_deadline_ms, limits.scoring_deadline),
            ("claiming", self.claiming_deadline_ms, limits.claiming_deadline),
        ] {
            if Duration::from_millis(ms.into()) != default {
                command += &format!(" --{flag}-deadline-ms {ms}");
            }
        }
        if self.mode.wasi {
            command += " --wasi";
        }
        command
    }

    fn limits(&self) -> Limits {
        Limits {
            scoring_deadline: Duration::from_millis(self.scoring_deadline_ms.into()),
            claiming_deadline: Duration::from_millis(self.claiming_deadline_ms.into()),
            ..Limits::default()
        }
    }

    /// Goes through the steps until one is refused. Errors if there is no runtime to try it on.
    fn examine(&self, name: &str, bytes: &[u8], config: Value) -> anyhow::Result<Report> {
        let runtime = self.mode.runtime(self.limits())?;
        let mut report = Report {
            format: FORMAT,
            file: self.policy.display().to_string(),
            wasi: runtime.offers_wasi(),
            size_bytes: bytes.len(),
            ..Report::default()
        };
        let begun = Instant::now();
        let artifact = match Artifact::load(&runtime, bytes) {
            Ok(artifact) => artifact,
            Err(refusal) => return Ok(report.refused("contract", &refusal)),
        };
        let about = artifact.describe();
        report.digest = Some(artifact.digest().to_owned());
        report.name = Some(about.name.clone());
        report.version = Some(about.version.clone());
        report.summary = Some(about.summary.clone());
        report.contract = Some(format!("fulcrum:policy@{}", contract::VERSION));
        report.roles = Some(super::role_names(artifact.roles()));
        report.compile_ms = Some(begun.elapsed().as_secs_f64() * 1e3);

        let loaded = match artifact.configured(name, config) {
            Ok(loaded) => loaded,
            Err(refusal) => return Ok(report.refused("configured", &refusal)),
        };
        report.config = Some(loaded.config().clone());
        let clock = RealClock::start();
        let proven = match proof::run(&loaded, &clock) {
            Ok(proven) => proven,
            Err(refusal) => return Ok(report.refused("self-test", &refusal)),
        };
        report.self_test = Some(SelfTest { cases: proven.cases, decisions: proven.decisions });
        report.memory_bytes = Some(proven.memory_bytes);
        report.recommend_nanos = proven.recommend_nanos;
        report.plan_nanos = proven.plan_nanos;
        report.explains = artifact.roles().scoring.then_some(proven.explains);
        report.accepted = true;
        if !self.quick {
            report.conformance = Some(self.kit.run(&loaded, bytes, &self.command(), &clock)?);
        }
        Ok(report)
    }
}

impl Report {
    fn refused(self, step: &'static str, refusal: &Refusal) -> Self {
        let refusal = Refused { step, code: refusal.code(), message: refusal.to_string() };
        Self { refusal: Some(refusal), ..self }
    }

    /// Writes it for people: a line per step, and what came of it.
    fn text(&self) -> String {
        let mut rows = vec![["size".to_owned(), format!("{} bytes", self.size_bytes)]];
        let mut add = |step: &str, found: Option<String>| {
            rows.extend(found.map(|found| [step.to_owned(), found]));
        };
        add("sha256", self.digest.clone());
        if let (Some(name), Some(version), Some(summary)) = (&self.name, &self.version, &self.summary) {
            add("policy", Some(format!("{name} {version}: {summary}")));
        }
        add("contract", self.roles.as_ref().map(|roles| format!("ok, roles: {}", roles.join(", "))));
        add("compiled", self.compile_ms.map(|ms| format!("in {ms:.1} ms")));
        add("configured", self.config.as_ref().map(|config| format!("with {config}")));
        let passed = |SelfTest { cases, decisions }: &SelfTest| {
            format!("passed, {cases} cases, {decisions} decisions")
        };
        add("self-test", self.self_test.as_ref().map(passed));
        let mebibytes = |bytes: usize| format!("{:.1} MiB at most", bytes as f64 / f64::from(1 << 20));
        add("memory", self.memory_bytes.map(mebibytes));
        add("recommend", self.recommend_nanos.map(|nanos| format!("{} over 100 rows", span(nanos))));
        let offered = |explains| if explains { "offered" } else { "not offered" }.to_owned();
        add("explain", self.explains.map(offered));
        let over = |nanos| format!("{} over 20 members and 200 partitions", span(nanos));
        add("plan", self.plan_nanos.map(over));
        add("conformance", self.conformance.as_ref().map(kit::Found::summary));
        let end = match &self.refusal {
            None => {
                let details = self.conformance.as_ref().map(kit::Found::text).unwrap_or_default();
                let but = match &self.conformance {
                    Some(found) if !found.passed() => ", but it does not conform",
                    _ => "",
                };
                format!("{details}{} is a policy a host accepts{but}", self.file)
            }
            Some(refusal) => {
                add(refusal.step, Some(format!("refused ({})", refusal.code)));
                refusal.message.clone()
            }
        };
        let rows: Vec<_> = rows.into_iter().map(Vec::from).collect();
        format!("{}\n{end}\n", crate::cli::table(&rows))
    }
}

fn span(nanos: u64) -> String {
    match nanos as f64 {
        nanos if nanos < 1e3 => format!("{nanos:.0} ns"),
        nanos if nanos < 1e6 => format!("{:.2} µs", nanos / 1e3),
        nanos => format!("{:.2} ms", nanos / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn examined(bytes: &[u8], config: Value) -> Report {
        // A few cases are enough to see every field.
        let kit = kit::Arguments::only("scoring/one-row");
        let check = Check { quick: false, kit, ..Check::quick(PathBuf::from("p.wasm")) };
        check.examine("p", bytes, config).expect("the engine starts")
    }

    /// Others read these: a name or a type that changes here needs another `FORMAT`.
    #[test]
    fn the_fields_of_the_report_stay() {
        let weighted = crate::embedded::find("weighted").expect("it is embedded");
        let report = examined(weighted, json!({}));
        assert!(
            report.accepted && report.text().ends_with("p.wasm is a policy a host accepts\n"),
            "{report:?}"
        );
        let refused = examined(weighted, json!({ "sessionWeight": -1 }));
        let kind = |value: &Value| match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "text",
            Value::Array(_) => "list",
            Value::Object(_) => "object",
        };
        let kinds = |report: &Report| {
            let value = serde_json::to_value(report).expect("plain data");
            let fields = value.as_object().expect("an object").iter();
            fields.map(|(name, value)| format!("{name} {}", kind(value))).collect::<Vec<_>>()
        };
        let fields = [
            ("accepted", "bool", "bool"),
            ("compileMs", "number", "number"),
            ("config", "object", "null"),
            ("conformance", "object", "null"),
            ("contract", "text", "text"),
            ("digest", "text", "text"),
            ("explains", "bool", "null"),
            ("file", "text", "text"),
            ("format", "number", "number"),
            ("memoryBytes", "number", "null"),
            ("name", "text", "text"),
            ("planNanos", "null", "null"),
            ("recommendNanos", "number", "null"),
            ("refusal", "null", "object"),
            ("roles", "list", "list"),
            ("selfTest", "object", "null"),
            ("sizeBytes", "number", "number"),
            ("summary", "text", "text"),
            ("version", "text", "text"),
            ("wasi", "bool", "bool"),
        ];
        let sorted = |mut kinds: Vec<String>| {
            kinds.sort();
            kinds
        };
        assert_eq!(sorted(kinds(&report)), fields.map(|(name, kind, _)| format!("{name} {kind}")));
        assert_eq!(sorted(kinds(&refused)), fields.map(|(name, _, kind)| format!("{name} {kind}")));
        let value = |report: &Report| serde_json::to_value(report).expect("plain data");
        assert_eq!(value(&report)["format"], 1);
        assert_eq!(value(&report)["contract"], "fulcrum:policy@1.0.0");
        assert_eq!(value(&report)["selfTest"].as_object().map(|test| test.len()), Some(2));
        let refusal = value(&refused)["refusal"].take();
        assert_eq!((&refusal["step"], &refusal["code"]), (&json!("configured"), &json!("config")));
        assert!(refusal["message"].as_str().is_some_and(|text| text.contains("sessionWeight")), "{refusal}");
    }

    #[test]
    fn what_is_no_policy_is_reported_too() {
        let report = examined(b"nonsense", json!({}));
        let refusal = report.refusal.as_ref().map(|refusal| (refusal.step, refusal.code));
        assert_eq!((refusal, report.accepted, report.size_bytes), (Some(("contract", "not_wasm")), false, 8));
        assert!(
            report.text().starts_with("size      8 bytes\ncontract  refused (not_wasm)\n\n"),
            "{}",
            report.text()
        );
    }
}
