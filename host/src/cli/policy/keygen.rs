//! `fulcrum policy keygen`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use fulcrum_policy::trust::PrivateKey;

/// Arguments of `policy keygen`.
#[derive(Debug, Args)]
#[command(after_help = "\
Whoever has the private key can sign policies, which is code that hosts run: keep it off the hosts. Prints the public \
key, for policy.trusted_keys.

Example:
  fulcrum policy keygen --out release.key")]
pub(in crate::cli) struct Keygen {
    /// Where to write the private key; the public one goes beside it with .pub added. Neither may exist yet
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl Keygen {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let public_file = self.out.with_added_extension("pub");
        if public_file.exists() {
            bail!("{} exists already; name another file with --out", public_file.display());
        }
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).context("the operating system gave no randomness")?;
        let key = PrivateKey::from_seed(&seed);
        write_new(&self.out, &key.to_text(), 0o600)?;
        let public = key.public() + "\n";
        // Without its public half nobody can use it, and a second try needs the name.
        write_new(&public_file, &public, 0o644).inspect_err(|_| drop(std::fs::remove_file(&self.out)))?;
        crate::cli::print(&public)
    }
}

fn write_new(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let written = options.open(path).and_then(|mut file| {
        let filled = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        filled.inspect_err(|_| drop(std::fs::remove_file(path)))
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}
