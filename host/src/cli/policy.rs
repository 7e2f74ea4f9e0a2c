//! `fulcrum policy …`: everything about policies, most of it without a running host.

mod bind;
mod build;
mod check;
mod describe;
mod keygen;
mod lines;
mod list;
mod new;
mod pack;
mod place;
mod project;
mod promote;
mod push;
mod remove;
mod rollback;
mod scope;
mod shadow;
mod shell;
mod sign;
mod status;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use fulcrum_policy::{Artifact, Limits, Roles, Runtime, runtime};
use serde_json::{Map, Value};

use super::eval;
use crate::embedded;

/// Commands about policies.
#[derive(Debug, Subcommand)]
pub(super) enum Policy {
    /// List the policies built into this binary
    List(list::List),
    /// Show the policies of a running host: state, digest, figures, problems
    Status(status::Status),
    /// Show what a policy says about itself and the schema of its configuration
    Describe(describe::Describe),
    /// Check a policy file as a host would before it goes live, and measure it
    Check(check::Check),
    /// Let a policy answer questions from stdin, one JSON object per line
    Eval(eval::Eval),
    /// Send a policy or its configuration to a running host, into use or as the candidate
    Push(push::Push),
    /// Let a policy answer along with the live one on a running host, and show how they differ
    Shadow(shadow::Shadow),
    /// Let a second version decide for a share of the clients of a running host
    Canary(bind::Canary),
    /// Put the candidate of a running host into service, on trial
    Promote(promote::Promote),
    /// Return to a former version on a running host
    Rollback(rollback::Rollback),
    /// Remove a policy's files, or its candidate, from a running host
    Remove(remove::Remove),
    /// Show or change which policy of a running host serves what
    Bind(bind::Bind),
    /// Make a policy project from a template
    New(new::New),
    /// Build a policy project and check the component
    Build(build::Build),
    /// Make a policy component out of a core WebAssembly module
    Pack(pack::Pack),
    /// Make a key pair for signing policies
    Keygen(keygen::Keygen),
    /// Sign a policy file, for hosts that take only signed ones
    Sign(sign::Sign),
    /// Print the contract between host and policies (WIT)
    Wit,
}

impl Policy {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::List(command) => command.run(),
            Self::Status(command) => command.run(),
            Self::Describe(command) => command.run(),
            Self::Check(command) => command.run(),
            Self::Eval(command) => command.run(),
            Self::Push(command) => command.run(),
            Self::Shadow(command) => command.run(),
            Self::Canary(command) => command.run(),
            Self::Promote(command) => command.run(),
            Self::Rollback(command) => command.run(),
            Self::Remove(command) => command.run(),
            Self::Bind(command) => command.run(),
            Self::New(command) => command.run(),
            Self::Build(command) => command.run(),
            Self::Pack(command) => command.run(),
            Self::Keygen(command) => command.run(),
            Self::Sign(command) => command.run(),
            Self::Wit => super::print(fulcrum_pack::WIT),
        }
    }
}

/// What the hosts offer that a policy is meant for.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct Mode {
    /// Take it as a host with policy.wasi = "compat" would
    #[arg(long)]
    wasi: bool,
}

impl Mode {
    /// Starts the policy runtime for a command.
    pub(super) fn runtime(self, limits: Limits) -> anyhow::Result<Arc<Runtime>> {
        let options = runtime::Options { wasi: self.wasi, ..runtime::Options::default() };
        Runtime::with(limits, options).context("cannot start the policy runtime")
    }
}

/// Returns the policy's name and bytes: those of an embedded one, else of a file.
pub(super) fn find(policy: &str) -> anyhow::Result<(String, Vec<u8>)> {
    if let Some(bytes) = embedded::find(policy) {
        return Ok((policy.to_owned(), bytes.to_vec()));
    }
    let path = Path::new(policy);
    let looks_like_a_name = !policy.contains(['/', '.']) && !path.exists();
    if looks_like_a_name {
        let names: Vec<_> = embedded::policies().into_iter().map(|policy| policy.name).collect();
        bail!("there is no embedded policy {policy:?} (there are: {}) and no such file", names.join(", "));
    }
    Ok((name_of(path), read(path)?))
}

/// Reads a policy file.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the name a host would know the file by.
pub(super) fn name_of(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Loads a policy; the error says what is wrong and what to do.
pub(super) fn load(runtime: &Arc<Runtime>, policy: &str) -> anyhow::Result<(String, Arc<Artifact>)> {
    let (name, bytes) = find(policy)?;
    let artifact = Artifact::load(runtime, &bytes).map_err(|refusal| anyhow!("{policy}: {refusal}"))?;
    Ok((name, artifact))
}

/// Reads a policy's configuration, `{}` without a file.
pub(super) fn configuration(path: Option<&Path>) -> anyhow::Result<Value> {
    let Some(path) = path else { return Ok(Value::Object(Map::new())) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str::<Map<String, Value>>(&text)
        .map(Value::Object)
        .with_context(|| format!("{} is not a JSON object", path.display()))
}

/// Names the roles.
pub(super) fn role_names(roles: Roles) -> Vec<&'static str> {
    [("scoring", roles.scoring), ("claiming", roles.claiming)]
        .into_iter()
        .filter_map(|(name, offered)| offered.then_some(name))
        .collect()
}
