//! `fulcrum policy bind` and `fulcrum policy canary`: which policy of a running host serves what.

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use super::lines;
use crate::cli::client::Client;

const PATH: &str = "/admin/bindings";

/// Arguments of `policy bind`.
#[derive(Debug, Args)]
#[command(after_help = "\
What is bound survives a restart of the host, until its settings name another policy. Without an option this shows what
is bound. `fulcrum policy promote` binds, too, and takes a policy back that fails.

Examples:
  fulcrum policy bind --scoring weighted
  fulcrum policy bind --group orders=greedy --group billing=
  fulcrum policy bind --reset")]
pub(in crate::cli) struct Bind {
    #[command(flatten)]
    client: Client,
    /// Policy that serves scoring
    #[arg(long, value_name = "NAME")]
    scoring: Option<String>,
    /// Policy that plans for groups without one of their own
    #[arg(long, value_name = "NAME")]
    claiming: Option<String>,
    /// Policy of one group, nothing to take its own one away; may be given again
    #[arg(long = "group", value_name = "GROUP=NAME")]
    groups: Vec<String>,
    /// Bind what the host's settings say, and nothing else
    #[arg(long, conflicts_with_all = ["scoring", "claiming", "groups"])]
    reset: bool,
    /// Print JSON, as the host answers it
    #[arg(long)]
    json: bool,
}

impl Bind {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        if self.reset {
            return show(&self.client, &self.client.delete(PATH)?, self.json);
        }
        let mut body = Map::new();
        for (role, name) in [("scoring", &self.scoring), ("claiming", &self.claiming)] {
            if let Some(name) = name {
                body.insert(role.to_owned(), json!(name));
            }
        }
        let mut groups = Map::new();
        for group in &self.groups {
            let (group, name) =
                group.rsplit_once('=').ok_or_else(|| anyhow!("expected GROUP=NAME, found {group:?}"))?;
            let name = if name.is_empty() { Value::Null } else { json!(name) };
            groups.insert(group.to_owned(), name);
        }
        if !groups.is_empty() {
            body.insert("groups".to_owned(), Value::Object(groups));
        }
        let bindings = if body.is_empty() {
            self.client.get(PATH)?
        } else {
            self.client.put(PATH, &Value::Object(body))?
        };
        show(&self.client, &bindings, self.json)
    }
}

/// Arguments of `policy canary`.
#[derive(Debug, Args)]
#[command(after_help = "\
A client stays on its side. The candidate of the policy decides if there is one, else the version in use. When it fails
more than it may it is taken out by itself.

Examples:
  fulcrum policy canary mine 0.1
  fulcrum policy canary off")]
pub(in crate::cli) struct Canary {
    /// The policy, or `off` to end the canary there is
    name: String,
    /// Share of the clients it decides for, above 0 and at most 1
    share: Option<f64>,
    #[command(flatten)]
    client: Client,
    /// Print JSON, as the host answers it
    #[arg(long)]
    json: bool,
}

impl Canary {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let canary = wanted(&self.name, self.share)?;
        let bindings = self.client.put(PATH, &json!({ "canary": canary }))?;
        show(&self.client, &bindings, self.json)
    }
}

/// Returns the canary to ask for as the host's API names it, null for none.
fn wanted(name: &str, share: Option<f64>) -> anyhow::Result<Value> {
    match (name, share) {
        ("off", None) => Ok(Value::Null),
        (_, Some(share)) if !(share > 0.0 && share <= 1.0) => {
            bail!("the share must be above 0 and at most 1, found {share}")
        }
        (name, Some(share)) => Ok(json!({ "policy": name, "share": share })),
        (name, None) => bail!(
            "say for which share of the clients, for example: canary {name} 0.1; `canary off` ends the one there is"
        ),
    }
}

fn show(client: &Client, bindings: &Value, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return crate::cli::print_json(bindings);
    }
    let mut rows = vec![["FOR", "POLICY"].map(str::to_owned).to_vec()];
    for role in ["scoring", "claiming"] {
        rows.push(vec![role.to_owned(), lines::text(bindings, &format!("/{role}")).to_owned()]);
    }
    for (group, name) in bindings.get("groups").and_then(Value::as_object).into_iter().flatten() {
        rows.push(vec![format!("group {group}"), name.as_str().unwrap_or_default().to_owned()]);
    }
    if let Some(share) = bindings.pointer("/canary/share").and_then(Value::as_f64) {
        let name = lines::text(bindings, "/canary/policy").to_owned();
        rows.push(vec![format!("scoring, a share of {share} (canary)"), name]);
    }
    crate::cli::print(&(crate::cli::table(&rows) + "\n" + &lines::serves(client)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_has_a_share_or_is_off() {
        let check = |name: &str, share: Option<f64>, expected: Result<Value, &str>| match (
            wanted(name, share),
            expected,
        ) {
            (Ok(body), Ok(expected)) => assert_eq!(body, expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (found, expected) => panic!("{name} {share:?}: {found:?}, expected {expected:?}"),
        };
        check("off", None, Ok(Value::Null));
        check("mine", Some(0.1), Ok(json!({ "policy": "mine", "share": 0.1 })));
        check("mine", Some(0.0), Err("above 0 and at most 1"));
        check("mine", None, Err("canary mine 0.1"));
        // A slip of the pen for `off` is told about it.
        check("of", None, Err("`canary off` ends"));
    }
}
