//! `fulcrum policy promote`: puts the candidate of a running host into service, on trial.

use clap::Args;
use serde_json::{Value, json};

use super::lines;
use super::scope::Scope;
use crate::cli::client::{Client, escaped};

/// Arguments of `policy promote`.
#[derive(Debug, Args)]
#[command(after_help = "\
The candidate becomes the version in use, and what is asked for is bound to the policy, in one swap. Without --scoring,
--claiming and --group the present bindings stay; a policy that has none gets what its shadow or canary was on.
--claiming means the groups without a policy of their own. A policy without a candidate is only bound.

It is on trial then: when it fails more than it may, what served before serves again by itself. What is on trial itself
is no way back: --accept ends its trial as passed, and with nothing else to promote does only that.

Examples:
  fulcrum policy promote mine --scoring
  fulcrum policy promote mine --failures-max 0 --decisions 10000
  fulcrum policy promote mine --accept")]
pub(in crate::cli) struct Promote {
    /// The policy
    name: String,
    #[command(flatten)]
    client: Client,
    #[command(flatten)]
    scope: Scope,
    /// Most failures on trial [default: the host's policy.promote_failures_max]
    #[arg(long, value_name = "N")]
    failures_max: Option<u32>,
    /// Decisions and plans the trial lasts [default: the host's policy.promote_decisions]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    decisions: Option<u32>,
    /// End the trial of what serves now as passed
    #[arg(long)]
    accept: bool,
    /// Try a version once more that the host took back
    #[arg(long)]
    again: bool,
    /// Print JSON, as the host answers it
    #[arg(long)]
    json: bool,
}

impl Promote {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut body = self.scope.body();
        for (key, count) in [("failuresMax", self.failures_max), ("decisions", self.decisions)] {
            if let Some(count) = count {
                body.insert(key.to_owned(), json!(count));
            }
        }
        for (key, is_given) in [("accept", self.accept), ("again", self.again)] {
            if is_given {
                body.insert(key.to_owned(), json!(true));
            }
        }
        let path = format!("/admin/policies/{}/promote", escaped(&self.name));
        let status = self.client.post(&path, &Value::Object(body))?;
        if self.json {
            return crate::cli::print_json(&status);
        }
        let promotion = lines::promotion(&status).map_or_else(String::new, |line| line + "\n");
        crate::cli::print(&(lines::in_use(&status) + &promotion + &lines::serves(&self.client)?))
    }
}
