//! `fulcrum policy status`: asks a running host.

use clap::Args;
use serde_json::Value;

use super::lines;
use crate::cli::client::{Client, escaped};

/// Arguments of `policy status`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Status {
    /// Show only this policy
    name: Option<String>,
    #[command(flatten)]
    client: Client,
    /// Print JSON, as the host answers it
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let answer = match &self.name {
            Some(name) => self.client.get(&format!("/admin/policies/{}", escaped(name)))?,
            None => self.client.get("/admin/policies")?,
        };
        if self.json {
            return crate::cli::print_json(&answer);
        }
        let stands_in = match &self.name {
            None => lines::stands_in(&answer),
            // Who serves in its place is told by the overview only.
            Some(_) if lines::texts(&answer, "/bound").is_empty() => None,
            Some(_) => lines::stands_in(&self.client.get("/admin/policies")?),
        };
        let policies = match answer.get("policies") {
            Some(Value::Array(policies)) => policies.clone(),
            _ => vec![answer],
        };
        let mut rows = vec![
            ["NAME", "STATE", "SOURCE", "BOUND", "VERSION", "DECISIONS", "FAILED"]
                .map(str::to_owned)
                .to_vec(),
        ];
        let mut notes = String::new();
        for policy in &policies {
            let text = |key: &str| policy.get(key).and_then(Value::as_str).unwrap_or_default();
            let bound: Vec<_> = policy
                .get("bound")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            // Decisions of both roles: hardly any policy has more than one.
            let counted = ["decisions", "plans"].map(|key| policy.get(key).and_then(Value::as_object));
            let counts = || counted.into_iter().flatten().flatten();
            let total: u64 = counts().filter_map(|(_, count)| count.as_u64()).sum();
            let ok: u64 =
                counts().filter(|(name, _)| *name == "ok").filter_map(|(_, count)| count.as_u64()).sum();
            let version = lines::label(policy);
            let source = if version.is_empty() { "" } else { text("source") };
            rows.push(
                [text("name"), text("state"), source, &bound.join(","), &version]
                    .map(str::to_owned)
                    .into_iter()
                    .chain([total.to_string(), (total - ok).to_string()])
                    .collect(),
            );
            if let Some(failure) = policy.get("lastFailure").and_then(Value::as_str) {
                notes.push_str(&format!("\n{}: last failure: {failure}\n", text("name")));
            }
            if let Some(message) = policy.pointer("/problem/message").and_then(Value::as_str) {
                notes.push_str(&format!("\n{}: the newest file is not used: {message}\n", text("name")));
            }
            if let Some(candidate) = policy.get("candidate").filter(|candidate| !candidate.is_null()) {
                let problem = lines::text(candidate, "/problem");
                let problem = if problem.is_empty() {
                    String::new()
                } else {
                    format!("; it cannot be used: {problem}")
                };
                let (version, taken_back) = (lines::version(candidate), lines::taken_back(candidate));
                notes.push_str(&format!("\n{}: candidate {version}{problem}{taken_back}\n", text("name")));
            }
            for line in [lines::promotion(policy), lines::canary(policy)].into_iter().flatten() {
                notes.push_str(&format!("\n{}: {line}\n", text("name")));
            }
        }
        if let Some(serving) = stands_in {
            notes.push_str(&format!("\n{serving}"));
        }
        if self.name.is_some() {
            notes.push_str(&policies.iter().map(versions).collect::<String>());
        }
        crate::cli::print(&(crate::cli::table(&rows) + &notes))
    }
}

/// Lists the versions of a policy that can be returned to.
fn versions(policy: &Value) -> String {
    let mut rows = Vec::new();
    for version in policy.get("versions").and_then(Value::as_array).into_iter().flatten() {
        let is = |key: &str| version.get(key).and_then(Value::as_bool).unwrap_or_default();
        let config = version.get("config").map(Value::to_string).unwrap_or_default();
        rows.push(vec![
            if is("inUse") { "*" } else { " " }.to_owned(),
            lines::label(version),
            if is("embedded") { "embedded" } else { lines::text(version, "/version") }.to_owned(),
            config,
            history(version),
        ]);
    }
    if rows.is_empty() {
        return String::new();
    }
    "\nversions, the latest in use first (* is in use):\n".to_owned() + &crate::cli::table(&rows)
}

/// Says how a version came into use and why it left.
fn history(version: &Value) -> String {
    let when = |pointer: &str| version.pointer(pointer).and_then(Value::as_u64).map(lines::ago);
    let words = |pointer: &str| lines::text(version, pointer).replace('-', " ");
    let mut history = match (words("/cameBy"), when("/at")) {
        (_, None) => return String::new(),
        (came, Some(ago)) if came.is_empty() => format!("came {ago}"),
        (came, Some(ago)) => format!("{came} {ago}"),
    };
    if let Some(ago) = when("/left/at") {
        history.push_str(&format!("; left {ago}: {}", words("/left/by")));
        let reason = lines::text(version, "/left/reason");
        if !reason.is_empty() {
            history.push_str(&format!(" ({reason})"));
        }
    }
    history
}
