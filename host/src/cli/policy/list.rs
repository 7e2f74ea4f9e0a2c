//! `fulcrum policy list`.

use clap::Args;
use fulcrum_policy::Limits;
use serde_json::json;

use crate::embedded;

/// Arguments of `policy list`.
#[derive(Debug, Args)]
#[command(after_help = "`fulcrum policy status` shows what a running host uses.")]
pub(in crate::cli) struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let runtime = super::Mode::default().runtime(Limits::default())?;
        let mut rows = vec![["NAME", "VERSION", "ROLES", "DIGEST", "SUMMARY"].map(str::to_owned).to_vec()];
        let mut documents = Vec::new();
        for policy in embedded::policies() {
            let (name, artifact) = super::load(&runtime, policy.name)?;
            let (about, digest) = (artifact.describe(), artifact.digest());
            let roles = super::role_names(artifact.roles());
            documents.push(json!({
                "name": name, "version": about.version, "summary": about.summary, "roles": roles, "digest": digest,
                "sizeBytes": policy.wasm.len(),
            }));
            let short = digest.get(..12).unwrap_or(digest).to_owned();
            rows.push(vec![name, about.version.clone(), roles.join(","), short, about.summary.clone()]);
        }
        if self.json {
            crate::cli::print_json(&documents)
        } else {
            crate::cli::print(&crate::cli::table(&rows))
        }
    }
}
