//! `fulcrum policy build`: runs a project's own build with the tools that are there, and checks what comes out.

mod group;
mod tools;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use fulcrum_policy::Limits;

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
        let (script, out) = (self.dir.join("build.sh"), self.out.clone());
        group::run(script_of(&self.dir, &tools)?, move |status| {
            ensure!(status.success(), "{} failed ({status}); what it said is above", script.display());
            finish(&built, out.as_deref())
        })
    }
}

/// Checks what the script left and puts it where it is wanted.
fn finish(built: &Path, out: Option<&Path>) -> anyhow::Result<()> {
    check_file(built)?;
    // The conformance kit takes minutes for a large language runtime: it has a command of its own.
    Check::quick(built.to_owned()).run()?;
    let component = super::read(built)?;
    if let Some(out) = out {
        super::place::put(out, &component)?;
    }
    crate::cli::print(&format!(
        "\n{}, {} bytes, sha256 {}\n",
        out.unwrap_or(built).display(),
        component.len(),
        fulcrum_policy::artifact::digest(&component)
    ))
}

/// Refuses what a build script left that cannot be a component, before anything reads it: reading a pipe would not end.
fn check_file(built: &Path) -> anyhow::Result<()> {
    let shown = built.display();
    let metadata = match fs::metadata(built) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("build.sh ended well, but it did not write {shown}")
        }
        metadata => metadata.with_context(|| format!("cannot look at {shown}"))?,
    };
    ensure!(metadata.is_file(), "build.sh ended well, but {shown} is no regular file");
    let (bytes, max) = (metadata.len(), Limits::default().artifact_bytes);
    ensure!(
        bytes <= max as u64,
        "{shown} has {bytes} bytes, a host takes at most {max} (policy.artifact_mib_max)"
    );
    Ok(())
}

/// Returns the command that runs the project's script; what that says goes to stderr.
fn script_of(dir: &Path, tools: &tools::Environment) -> anyhow::Result<Command> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut script = Command::new("sh");
    for name in &tools.removed {
        script.env_remove(name);
    }
    script
        .arg("build.sh")
        .current_dir(dir)
        .env("FULCRUM", own)
        .envs(tools.set.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(io::stderr());
    Ok(script)
}
