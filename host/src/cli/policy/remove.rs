//! `fulcrum policy remove`: removes a policy's files, or its candidate, from a running host.

use clap::Args;

use super::lines;
use super::rollback::left;
use crate::cli::client::{Client, escaped};

/// Arguments of `policy remove`.
#[derive(Debug, Args)]
#[command(after_help = "\
Where a policy of that name is compiled into the host, it serves again. What was removed can be brought back with
`fulcrum policy rollback`.")]
pub(in crate::cli) struct Remove {
    /// The policy
    name: String,
    #[command(flatten)]
    client: Client,
    /// Remove it although something is bound to it: the host's defaults serve then
    #[arg(long)]
    force: bool,
    /// Drop its candidate and leave what is in use alone
    #[arg(long, conflicts_with = "force")]
    candidate: bool,
    /// Print JSON, as the host answers it
    #[arg(long)]
    json: bool,
}

impl Remove {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let query = match (self.candidate, self.force) {
            (true, _) => "?candidate=1",
            (_, true) => "?force=1",
            _ => "",
        };
        let answer = self.client.delete(&format!("/admin/policies/{}{query}", escaped(&self.name)))?;
        if self.json {
            return crate::cli::print_json(&answer);
        }
        crate::cli::print(&(left(&answer) + &lines::serves(&self.client)?))
    }
}
