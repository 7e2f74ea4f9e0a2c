//! `fulcrum policy status`: asks a running host.

use clap::Args;
use serde_json::Value;

use crate::cli::client::Client;

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
        let policies = match answer.get("policies") {
            Some(Value::Array(policies)) => policies.clone(),
            _ => vec![answer],
        };
        let mut rows = vec![
            ["NAME", "STATE", "SOURCE", "BOUND", "DIGEST", "DECISIONS", "FAILED"].map(str::to_owned).to_vec(),
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
            let digest = text("digest").get(..12).unwrap_or_default();
            rows.push(
                [text("name"), text("state"), text("source"), &bound.join(","), digest]
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
        }
        crate::cli::print(&(crate::cli::table(&rows) + &notes))
    }
}

/// Escapes a path segment.
fn escaped(name: &str) -> String {
    let byte = |byte: u8| {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if plain { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    name.bytes().map(byte).collect()
}
