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

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use fulcrum_policy::json::PlainMap;
use fulcrum_policy::lifecycle::CONFIG_BYTES_MAX;
use fulcrum_policy::{Artifact, Limits, Roles, Runtime, runtime};
use serde_json::{Map, Value};

use super::{ARTIFACT_BYTES_MAX, eval};
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

/// Reads a policy file, or what a pipe says.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    read_at_most(path, ARTIFACT_BYTES_MAX)
}

fn read_at_most(path: &Path, max: usize) -> anyhow::Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(cannot)?;
    let metadata = file.metadata().with_context(cannot)?;
    let mut bytes = Vec::new();
    // A file that is too large by its own account is not read first.
    if metadata.len() <= max as u64 {
        file.take(max as u64 + 1).read_to_end(&mut bytes).with_context(cannot)?;
    }
    if metadata.len() > max as u64 || bytes.len() > max {
        bail!("{} has more than {max} bytes, the most that any host takes", path.display());
    }
    Ok(bytes)
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
    let bytes = read_at_most(path, CONFIG_BYTES_MAX)?;
    serde_json::from_slice::<PlainMap>(&bytes)
        .map(|PlainMap(fields)| Value::Object(fields))
        .with_context(|| format!("{} is not a JSON object", path.display()))
}

/// Names the roles.
pub(super) fn role_names(roles: Roles) -> Vec<&'static str> {
    [("scoring", roles.scoring), ("claiming", roles.claiming)]
        .into_iter()
        .filter_map(|(name, offered)| offered.then_some(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_their_most() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.wasm");
        std::fs::write(&path, [7; 100]).expect("written");
        assert_eq!(read_at_most(&path, 100).expect("small enough").len(), 100);
        let error = read_at_most(&path, 99).expect_err("too large").to_string();
        assert!(error.contains("a.wasm has more than 99 bytes"), "{error}");
        // By its own account it has a terabyte, and is not read.
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(1 << 40))
            .expect("a sparse file");
        assert!(read(&path).is_err());
        // Without an account of its own, it never ends.
        assert!(cfg!(not(unix)) || read_at_most(Path::new("/dev/zero"), 1000).is_err());
        let error = configuration(Some(&path)).expect_err("too large").to_string();
        assert!(error.contains("more than 1048576 bytes"), "{error}");
    }
}
