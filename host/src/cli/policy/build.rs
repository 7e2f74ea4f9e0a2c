//! `fulcrum policy build`: runs a project's own build with the tools that are there, and checks what comes out.

mod tools;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use clap::Args;

use super::check::Check;
use super::project::Project;

/// Arguments of `policy build`.
#[derive(Debug, Args)]
#[command(after_help = "\
The project says in fulcrum-policy.toml what it is; `fulcrum policy new` makes one. Its build.sh is run, with the tools
of the folder (.venv, node_modules) or of the PATH. What a host would refuse is not put anywhere.")]
pub(in crate::cli) struct Build {
    /// Folder of the project
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Where to put the component as well [default: only build/NAME.wasm in the project]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Build {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let project = Project::read(&self.dir)?;
        let tools = match project.language {
            Some(language) => tools::find(language, &self.dir)?,
            None => tools::Environment::default(),
        };
        let built = self.dir.join(project.output());
        // What an earlier build left must not pass for this one's.
        match fs::remove_file(&built) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", built.display()));
            }
            _ => {}
        }
        run_script(&self.dir, &tools)?;
        ensure!(built.exists(), "build.sh ended well, but it did not write {}", built.display());
        Check::of(built.clone()).run()?;

        let component = super::read(&built)?;
        let mut place = &built;
        if let Some(out) = &self.out {
            // Written aside and renamed: a host that watches the folder never sees half a file.
            let aside = out.with_added_extension("part");
            fs::write(&aside, &component).with_context(|| format!("cannot write {}", aside.display()))?;
            fs::rename(&aside, out).with_context(|| format!("cannot write {}", out.display()))?;
            place = out;
        }
        crate::cli::print(&format!(
            "\n{}, {} bytes, sha256 {}\n",
            place.display(),
            component.len(),
            fulcrum_policy::artifact::digest(&component)
        ))
    }
}

/// Runs the project's script; what it says goes to stderr.
fn run_script(dir: &Path, tools: &tools::Environment) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut script = Command::new("sh");
    for name in &tools.removed {
        script.env_remove(name);
    }
    let status = script
        .arg("build.sh")
        .current_dir(dir)
        .env("FULCRUM", own)
        .envs(tools.set.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .status()
        .context("cannot run sh, which build.sh is written for")?;
    if !status.success() {
        bail!("{} failed ({status}); what it said is above", dir.join("build.sh").display());
    }
    Ok(())
}
