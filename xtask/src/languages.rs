//! `cargo xtask languages`: the tools of the languages that policies are written in, and the examples.
//!
//! Invariants: everything but Debian's Rust goes into `target/languages`, versions are those that the examples, and so
//! the projects of `fulcrum policy new`, pin, and a tool that cannot be installed is an error: no test passes without it.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::policies::toolchain;

/// Examples with a `requirements.txt`.
const FROM_PYPI: [&str; 3] = ["python", "go", "c"];
/// Examples that are Rust packages.
const RUST_EXAMPLES: [&str; 3] = ["rust", "tenant-aware", "zone-weight-aware"];
/// Examples of the same small policy, one for each language.
const SAME_POLICY: [&str; 7] = ["rust", "c", "zig", "assemblyscript", "go", "javascript", "python"];

/// Arguments of `cargo xtask languages`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Builds the same policy in all languages too, into `target/languages/components`, where the bench `languages`
    /// looks for it
    #[arg(long)]
    build: bool,
}

/// Installs, and builds if it is told to.
pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    install(root)?;
    if args.build { build(root) } else { Ok(()) }
}

/// Installs what the tests of the languages need and is not there yet.
pub(crate) fn install(root: &Path) -> anyhow::Result<()> {
    // Installs Debian's packages if no Rust here can build for wasm.
    toolchain::find(true)?;
    let folder = root.join("target/languages");
    let examples = root.join("examples");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    from_pypi(&folder, &examples)?;
    from_npm(&folder, "npm", &examples.join("javascript"))?;
    from_npm(&folder, "npm-assemblyscript", &examples.join("assemblyscript"))
}

/// Builds the same policy in every language, with a host of the development profile.
fn build(root: &Path) -> anyhow::Result<()> {
    let languages = root.join("target/languages");
    let components = languages.join("components");
    fs::create_dir_all(&components).with_context(|| format!("cannot make {}", components.display()))?;
    let mut host = Command::new("cargo");
    call(host.args(["build", "--package", "fulcrum", "--bin", "fulcrum", "--locked"]).current_dir(root))?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let tools = ["venv/bin", "npm/node_modules/.bin", "npm-assemblyscript/node_modules/.bin"];
    let mut path: Vec<PathBuf> = tools.iter().map(|folder| languages.join(folder)).collect();
    path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let path = env::join_paths(path).context("the name of a folder cannot be part of a PATH")?;
    for name in SAME_POLICY {
        let mut command = Command::new(target.join("debug/fulcrum"));
        command
            .args(["policy", "build"])
            .arg(root.join("examples").join(name))
            .arg("--out")
            .arg(components.join(name).with_added_extension("wasm"))
            .env("PATH", &path)
            .env("CARGO_TARGET_DIR", languages.join("rust"));
        call(&mut command)?;
    }
    Ok(())
}

fn from_pypi(folder: &Path, examples: &Path) -> anyhow::Result<()> {
    let lists = FROM_PYPI.map(|language| examples.join(language).join("requirements.txt"));
    let mut wanted = String::new();
    for list in &lists {
        wanted += &read(list)?;
    }
    let stamp = folder.join("venv.stamp");
    if is_done(&stamp, &wanted) {
        return Ok(());
    }
    let venv = folder.join("venv");
    call(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    for list in &lists {
        pip.arg("--requirement").arg(list);
    }
    call(&mut pip)?;
    done(&stamp, &wanted)
}

/// Installs what `source` pins, into the folder `name` in `folder`.
fn from_npm(folder: &Path, name: &str, source: &Path) -> anyhow::Result<()> {
    let files = ["package.json", "package-lock.json"];
    let mut texts = Vec::new();
    for file in files {
        texts.push(read(&source.join(file))?);
    }
    let (stamp, wanted) = (folder.join(name).with_added_extension("stamp"), texts.concat());
    if is_done(&stamp, &wanted) {
        return Ok(());
    }
    let npm = folder.join(name);
    fs::create_dir_all(&npm).with_context(|| format!("cannot make {}", npm.display()))?;
    for (file, text) in files.iter().zip(texts) {
        let path = npm.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    call(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&npm))?;
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
            call(&mut command)
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

fn call(command: &mut Command) -> anyhow::Result<()> {
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

    #[test]
    fn zig_is_the_one_that_c_is_compiled_with() {
        let read = |path: &str| fs::read_to_string(crate::root().join(path)).expect("it is there");
        // So one installation serves both.
        assert_eq!(read("examples/zig/requirements.txt"), read("examples/c/requirements.txt"));
    }
}
