//! Chores of this repository, run as `cargo xtask NAME`.

#![allow(clippy::print_stderr, reason = "a chore tells what it does")]

use std::path::{Path, PathBuf};

use clap::Parser;

mod contract;
mod languages;
mod policies;
mod test;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Chores of this repository")]
enum Command {
    /// Builds the default policies into `policies/prebuilt/`, or checks what is there.
    Policies(policies::Args),
    /// Installs the tools of the languages that policies are written in, into `target/languages`.
    Languages(languages::Args),
    /// The released contract, formatting, lints, docs, prebuilt policies: everything but the tests.
    Check,
    /// Everything that must pass: the checks and all tests.
    Test,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Policies(args) => policies::run(&root(), &args),
        Command::Languages(args) => languages::run(&root(), &args),
        Command::Check => test::check(&root()),
        Command::Test => test::test(&root()),
    }
}

/// Returns the repository's root: where the workspace of this package lies.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package is a folder of the workspace").to_owned()
}
