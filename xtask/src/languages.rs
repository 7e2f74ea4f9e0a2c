//! `cargo xtask languages`: the tools of the languages that policies are written in, and the Rust examples.
//!
//! Invariants: everything but Debian's Rust goes into `target/languages`, versions are those that the templates of
//! `fulcrum policy new` pin, and a tool that cannot be installed is an error: no test passes without it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::policies::toolchain;

/// Templates with a `requirements.txt`.
const FROM_PYPI: [&str; 3] = ["python", "go", "c"];
/// Examples that are Rust packages.
const RUST_EXAMPLES: [&str; 3] = ["rust", "tenant-aware", "zone-weight-aware"];

/// Installs what the tests of the languages need and is not there yet.
pub(crate) fn install(root: &Path) -> anyhow::Result<()> {
    // Installs Debian's packages if no Rust here can build for wasm.
    toolchain::find(true)?;
    let folder = root.join("target/languages");
    let templates = root.join("host/templates");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    from_pypi(&folder, &templates)?;
    from_npm(&folder, &templates)
}

fn from_pypi(folder: &Path, templates: &Path) -> anyhow::Result<()> {
    let lists = FROM_PYPI.map(|language| templates.join(language).join("requirements.txt"));
    let mut wanted = String::new();
    for list in &lists {
        wanted += &read(list)?;
    }
    let stamp = folder.join("venv.stamp");
    if is_done(&stamp, &wanted) {
        return Ok(());
    }
    let venv = folder.join("venv");
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    for list in &lists {
        pip.arg("--requirement").arg(list);
    }
    run(&mut pip)?;
    done(&stamp, &wanted)
}

fn from_npm(folder: &Path, templates: &Path) -> anyhow::Result<()> {
    let names = ["package.json", "package-lock.json"];
    let mut texts = Vec::new();
    for name in names {
        // The templates name the policy, which npm does not care about.
        texts.push(read(&templates.join("javascript").join(name))?.replace("{{name}}", "languages"));
    }
    let (stamp, wanted) = (folder.join("npm.stamp"), texts.concat());
    if is_done(&stamp, &wanted) {
        return Ok(());
    }
    let npm = folder.join("npm");
    fs::create_dir_all(&npm).with_context(|| format!("cannot make {}", npm.display()))?;
    for (name, text) in names.iter().zip(texts) {
        let path = npm.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    run(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&npm))?;
    done(&stamp, &wanted)
}

/// Formatting, lints and tests of the Rust examples, natively.
pub(crate) fn check_examples(root: &Path) -> anyhow::Result<()> {
    for name in RUST_EXAMPLES {
        let folder = root.join("examples").join(name);
        let cargo = |args: &[&str]| {
            let mut command = Command::new("cargo");
            command
                .args(args)
                .current_dir(&folder)
                .env("CARGO_TARGET_DIR", root.join("target/languages/examples"));
            run(&mut command)
        };
        cargo(&["fmt", "--check"])?;
        cargo(&["clippy", "--quiet", "--all-targets", "--locked", "--", "-D", "warnings"])?;
        cargo(&["test", "--quiet", "--lib", "--locked"])?;
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Says whether what was wanted has been installed.
fn is_done(stamp: &Path, wanted: &str) -> bool {
    fs::read_to_string(stamp).is_ok_and(|found| found == wanted)
}

fn done(stamp: &PathBuf, wanted: &str) -> anyhow::Result<()> {
    fs::write(stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    let shown = format!("{} {}", command.get_program().display(), args.join(" "));
    eprintln!("\n=== languages: {shown}");
    let status = command.status().with_context(|| format!("cannot run {shown}"))?;
    if !status.success() {
        bail!("{shown} failed ({status})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rust_example_is_checked() {
        let folder = crate::root().join("examples");
        let mut found: Vec<String> = fs::read_dir(folder)
            .expect("there are examples")
            .map(|entry| entry.expect("it can be listed").path())
            .filter(|path| path.join("Cargo.toml").exists())
            .map(|path| path.file_name().expect("a folder has a name").to_string_lossy().into_owned())
            .collect();
        found.sort_unstable();
        assert_eq!(found, RUST_EXAMPLES);
    }
}
