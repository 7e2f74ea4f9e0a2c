//! `cargo xtask test`: everything that must pass, in one command that installs what it needs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::{contract, languages, policies};

/// Runs one tool of the chain and says which one failed.
fn step(root: &Path, title: &str, program: &str, args: &[&str]) -> anyhow::Result<()> {
    eprintln!("\n=== {title}: {program} {}", args.join(" "));
    let status = Command::new(program)
        .args(args)
        .current_dir(root)
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    if status.success() { Ok(()) } else { bail!("{title} failed ({status})") }
}

/// Installs the parts of the Rust toolchain that a minimal installation lacks.
fn install(root: &Path) -> anyhow::Result<()> {
    for (tool, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let has_it = Command::new("cargo").args([tool, "--version"]).output();
        if !has_it.is_ok_and(|output| output.status.success()) {
            step(root, &format!("installation of {component}"), "rustup", &["component", "add", component])?;
        }
    }
    Ok(())
}

/// Formatting, lints, docs, that the contract is the released one, and that the prebuilt policies are those of the
/// sources.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let guests = root.join("policies");
    let warnings = ["--", "-D", "warnings"];
    install(root)?;
    contract::check(root)?;
    policies::check(root)?;
    step(root, "format", "cargo", &["fmt", "--all", "--check"])?;
    step(&guests, "format of the policies", "cargo", &["fmt", "--all", "--check"])?;
    step(
        root,
        "lints",
        "cargo",
        &[&["clippy", "--workspace", "--all-targets", "--locked"][..], &warnings].concat(),
    )?;
    step(
        &guests,
        "lints of the policies",
        "cargo",
        &[&["clippy", "--workspace", "--all-targets", "--all-features", "--locked"][..], &warnings].concat(),
    )?;
    languages::check_examples(root)?;
    eprintln!("\n=== docs: cargo doc");
    let status = Command::new("cargo")
        .args(["doc", "--workspace", "--lib", "--no-deps", "--document-private-items", "--locked"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(root)
        .status()
        .context("cannot run cargo doc")?;
    if status.success() { Ok(()) } else { bail!("docs failed ({status})") }
}

/// The checks, then every test of both workspaces.
pub(crate) fn test(root: &Path) -> anyhow::Result<()> {
    check(root)?;
    // Together, so that both use one build of every dependency: alone, each would choose features of its own.
    step(
        root,
        "build of the host and the tests",
        "cargo",
        &["build", "--workspace", "--bins", "--tests", "--locked"],
    )?;
    languages::install(root)?;
    run_tests(&root.join("policies"), "tests of the policies", &["--workspace", "--all-features"])?;
    run_tests(root, "tests", &["--workspace"])
}

/// Uses nextest where it is installed, for its isolation of tests, and cargo's own runner elsewhere.
fn run_tests(root: &Path, title: &str, selection: &[&str]) -> anyhow::Result<()> {
    let has_nextest = Command::new("cargo")
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    let runner: &[&str] = if has_nextest { &["nextest", "run"] } else { &["test", "--no-fail-fast"] };
    step(root, title, "cargo", &[runner, &["--locked"], selection].concat())
}
