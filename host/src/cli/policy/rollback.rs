//! `fulcrum policy rollback`: returns to a former version on a running host.

use clap::Args;
use serde_json::{Value, json};

use super::lines;
use crate::cli::client::{Client, escaped};

/// Arguments of `policy rollback`.
#[derive(Debug, Args)]
#[command(after_help = "\
Returns to the version before the one in use; a second call goes forth again. If the last thing that happened was a
promotion, what that bound is bound as before, too, the version is the candidate again, and going forth promotes it anew.
What is in use decides nothing any more at once. `fulcrum policy status NAME` lists the versions that are kept.

Examples:
  fulcrum policy rollback mine
  fulcrum policy rollback mine --to 3fa9
  fulcrum policy rollback p2c --to embedded")]
pub(in crate::cli) struct Rollback {
    /// The policy
    name: String,
    #[command(flatten)]
    client: Client,
    /// Version to return to: the start of its digest, its name as it is printed, or `embedded`
    #[arg(long, value_name = "DIGEST")]
    to: Option<String>,
    /// Print JSON, as the host answers it
    #[arg(long)]
    json: bool,
}

impl Rollback {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let path = format!("/admin/policies/{}/rollback", escaped(&self.name));
        let body = self.to.as_ref().map_or_else(|| json!({}), |to| json!({ "digest": to }));
        let answer = self.client.post(&path, &body)?;
        if self.json {
            return crate::cli::print_json(&answer);
        }
        crate::cli::print(&(left(&answer) + &lines::serves(&self.client)?))
    }
}

/// Says what is left of a policy.
pub(super) fn left(answer: &Value) -> String {
    match answer.get("status").filter(|status| !status.is_null()) {
        Some(status) => {
            let candidate = status.get("candidate").filter(|candidate| !candidate.is_null());
            let name = lines::text(status, "/name");
            let candidate = candidate.map(|candidate| {
                let (version, taken_back) = (lines::version(candidate), lines::taken_back(candidate));
                format!("{name}: {version} waits as the candidate{taken_back}\n")
            });
            lines::in_use(status) + &candidate.unwrap_or_default()
        }
        None => format!("{}: no version is in use\n", lines::text(answer, "/name")),
    }
}
