//! `fulcrum policy new`: a complete policy project, from templates in this binary.

mod templates;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;

use super::project::{self, Language, Role};
use super::shell::quoted;

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
        if self.lang == Language::Rust && templates::is_our_package(&self.name) {
            bail!("{} is the name of a package the project depends on; take another one", self.name);
        }
        match &self.guest {
            Some(_) if self.lang != Language::Rust => {
                bail!("--guest is for Rust; a policy in {} uses no package of ours", self.lang)
            }
            Some(guest) if guest.is_empty() || guest.chars().any(char::is_control) => {
                bail!("--guest is a path in one line, this is {guest:?}")
            }
            _ => {}
        }
        let dir = self.dir.clone().unwrap_or_else(|| PathBuf::from(&self.name));
        let shown = dir.display();
        match fs::read_dir(&dir).map(|mut entries| entries.next().is_none()) {
            Ok(true) => {}
            Ok(false) => bail!("{shown} is not empty; name another folder with --dir"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Ok(target) = fs::read_link(&dir) {
                    bail!(
                        "{shown} is a link to {}, which does not exist; make that folder first",
                        target.display()
                    );
                }
            }
            Err(error) => return Err(error).with_context(|| format!("cannot look into {shown}")),
        }
        let files = templates::project(&self.name, self.lang, self.role, self.guest.as_deref());
        let mut made = Made::default();
        for (path, text) in &files {
            made.write(&dir.join(path), text)?;
        }
        made.keep();
        crate::cli::print(&format!(
            "{shown}: a {} policy in {}, {} files\nnext: see {}, then `fulcrum policy build {}`\n",
            self.role,
            self.lang,
            files.len(),
            dir.join("README.md").display(),
            quoted(&dir)
        ))
    }
}

/// What was made of a project so far, in order. Dropped, it is removed again, and nothing else.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Made {
    /// Writes one file of a project; scripts can be run.
    fn write(&mut self, path: &Path, text: &str) -> anyhow::Result<()> {
        self.try_write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    fn try_write(&mut self, path: &Path, text: &str) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            self.folder(folder)?;
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
        self.0.push(path.to_owned());
        file.write_all(text.as_bytes())?;
        #[cfg(unix)]
        if path.extension().is_some_and(|extension| extension == "sh") {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// Makes a folder and those above it, unless they are there.
    fn folder(&mut self, path: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() || path.is_dir() {
            return Ok(());
        }
        if let Some(above) = path.parent() {
            self.folder(above)?;
        }
        match fs::create_dir(path) {
            Ok(()) => self.0.push(path.to_owned()),
            // Made by somebody else in between, or named by way of one that was made (`new/..`).
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // A folder in which somebody else has put something meanwhile stays.
            drop(if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_half_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("there")).expect("made");
        let mut made = Made::default();
        made.write(&at("there/a"), "x").expect("written");
        made.write(&at("new/b/c.sh"), "x").expect("written");
        made.write(&at("new/d/e"), "x").expect("written");
        // Somebody else's.
        fs::write(at("new/d/mine"), "x").expect("written");
        made.write(&at("new/d/mine"), "x").expect_err("it is not ours");
        assert!(at("new/b/c.sh").exists());
        drop(made);
        assert!(at("there").exists() && !at("there/a").exists() && !at("new/b").exists());
        assert!(!at("new/d/e").exists() && at("new/d/mine").exists());
    }
}
