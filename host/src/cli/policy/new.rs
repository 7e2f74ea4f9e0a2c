//! `fulcrum policy new`: a complete policy project, from templates in this binary.

mod templates;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;

use super::project::{self, Language, Role};

/// Arguments of `policy new`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fulcrum policy new near-first --lang python
  fulcrum policy new zone-aware --lang rust --role claiming --dir policies/zone-aware")]
pub(in crate::cli) struct New {
    /// Name of the policy: 1 to 64 of a-z, 0-9 and -, beginning with a letter
    name: String,
    /// Language to write it in
    #[arg(long, value_name = "LANGUAGE")]
    lang: Language,
    /// Question it answers
    #[arg(long, default_value = "scoring")]
    role: Role,
    /// Folder to make [default: the name, in this folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Rust only: use the package fulcrum-guest that lies there, seen from the new folder, instead of a copy
    #[arg(long, value_name = "DIR")]
    guest: Option<String>,
}

impl New {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        project::check_name(&self.name)?;
        if self.guest.is_some() && self.lang != Language::Rust {
            bail!("--guest is for Rust; a policy in {} uses no package of ours", self.lang);
        }
        let dir = self.dir.clone().unwrap_or_else(|| PathBuf::from(&self.name));
        let shown = dir.display();
        match fs::read_dir(&dir).map(|mut entries| entries.next().is_none()) {
            Ok(true) => {}
            Ok(false) => bail!("{shown} is not empty; name another folder with --dir"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot look into {shown}")),
        }
        let files = templates::project(&self.name, self.lang, self.role, self.guest.as_deref());
        for (path, text) in &files {
            write(&dir.join(path), text)?;
        }
        crate::cli::print(&format!(
            "{shown}: a {} policy in {}, {} files\nnext: see {}, then `fulcrum policy build {shown}`\n",
            self.role,
            self.lang,
            files.len(),
            dir.join("README.md").display()
        ))
    }
}

/// Writes one file of a project; scripts can be run.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    fs::write(path, text).with_context(failed)?;
    #[cfg(unix)]
    if path.extension().is_some_and(|extension| extension == "sh") {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).with_context(failed)?;
    }
    Ok(())
}
