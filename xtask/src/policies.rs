//! `cargo xtask policies`: builds the guests and packs them, or checks that what is committed still matches.
//!
//! The manifest says for each policy which sources its component was built from, so the check needs no wasm
//! toolchain. Two toolchains may give different bytes for the same sources; that is no disagreement.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub(crate) mod toolchain;

/// The default policies, each a package of that name in the `policies/` workspace.
const POLICIES: [&str; 11] = [
    "weighted",
    "p2c",
    "sticky",
    "balanced",
    "greedy",
    "average",
    "average-by-circle",
    "consistent-hash",
    "machine-room",
    "machine-room-nearby",
    "by-config",
];
/// Sources that every policy is built from, beside its own folder.
const SHARED_SOURCES: [&str; 4] =
    ["wit/policy.wit", "policies/guest", "policies/Cargo.toml", "policies/Cargo.lock"];
const REBUILD: &str = "run `cargo xtask policies` and commit policies/prebuilt";

/// What `policies` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only checks that sources, components and manifest agree; needs no wasm toolchain.
    #[arg(long)]
    check: bool,
    /// Installs the missing Debian packages without asking (root only).
    #[arg(long, conflicts_with = "check")]
    install: bool,
}

/// What is known of each built policy, by name.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Manifest(BTreeMap<String, Entry>);

/// One built policy.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    /// Digest of the component, sha256 in hexadecimal.
    sha256: String,
    /// Size of the component in bytes.
    size: u64,
    /// Digest of its sources: paths and contents, sha256 in hexadecimal.
    sources: String,
    /// The compiler that built it; for people.
    built_with: String,
}

/// Builds, or checks, the policies of the repository at `root`.
pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    if args.check { check(root) } else { build(root, args.install) }
}

/// Fails, naming the policy and what to do, if sources, components and manifest disagree.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let path = prebuilt(root).join("manifest.json");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}: {REBUILD}", path.display()))?;
    let manifest: Manifest = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a manifest: {REBUILD}", path.display()))?;
    let mut problems = String::new();
    for name in POLICIES {
        if let Err(problem) = check_one(root, name, manifest.0.get(name)) {
            writeln!(problems, "policy {name}: {problem:#}").expect("a String takes all");
        }
    }
    for name in manifest.0.keys().filter(|name| !POLICIES.contains(&name.as_str())) {
        writeln!(problems, "policy {name}: stands in the manifest, but is no default policy")
            .expect("a String takes all");
    }
    ensure!(problems.is_empty(), "{problems}{REBUILD}");
    Ok(())
}

fn check_one(root: &Path, name: &str, entry: Option<&Entry>) -> anyhow::Result<()> {
    let entry = entry.context("missing in the manifest")?;
    let path = prebuilt(root).join(name).with_extension("wasm");
    let component = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(hex(&Sha256::digest(&component)) == entry.sha256, "the component is not the one in the manifest");
    ensure!(component.len() as u64 == entry.size, "the component has another size than the manifest says");
    ensure!(sources(root, name)? == entry.sources, "its sources changed since it was built");
    Ok(())
}

fn build(root: &Path, install: bool) -> anyhow::Result<()> {
    let workspace = root.join("policies");
    let toolchain = toolchain::find(install)?;
    report(&format!("building {} with {}", POLICIES.join(", "), toolchain.version));
    // The digests are taken first: a file that is edited during the build must not pass for built.
    let mut digests = Vec::new();
    for name in POLICIES {
        digests.push(sources(root, name)?);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let target = std::path::absolute(target)?;
    run_command(&mut toolchain.build(&workspace, &target, &POLICIES))?;

    fs::create_dir_all(prebuilt(root)).context("cannot make policies/prebuilt")?;
    let mut manifest = Manifest::default();
    for (name, sources) in POLICIES.into_iter().zip(digests) {
        let core = target
            .join(toolchain::TARGET)
            .join("release")
            .join(name.replace('-', "_"))
            .with_extension("wasm");
        let core = fs::read(&core).with_context(|| format!("cannot read {}", core.display()))?;
        let component = fulcrum_pack::component(&core, fulcrum_pack::Options::default())
            .with_context(|| format!("cannot pack policy {name}"))?;
        let path = prebuilt(root).join(name).with_extension("wasm");
        fs::write(&path, &component).with_context(|| format!("cannot write {}", path.display()))?;
        report(&format!("{name}: {} bytes", component.len()));
        let entry = Entry {
            sha256: hex(&Sha256::digest(&component)),
            size: component.len() as u64,
            sources,
            built_with: toolchain.version.clone(),
        };
        manifest.0.insert(name.to_owned(), entry);
    }
    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    fs::write(prebuilt(root).join("manifest.json"), text)
        .context("cannot write policies/prebuilt/manifest.json")
}

/// Returns the digest over everything that policy `name` is built from: for each file, in the order of their paths,
/// the length and bytes of its path from the root and of its content.
fn sources(root: &Path, name: &str) -> anyhow::Result<String> {
    let mut files = BTreeMap::new();
    for source in SHARED_SOURCES {
        collect(root, source, &mut files)?;
    }
    collect(root, &format!("policies/{name}"), &mut files)?;
    let mut digest = Sha256::new();
    for (path, content) in &files {
        for part in [path.as_bytes(), content] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
    }
    Ok(hex(&digest.finalize()))
}

/// Reads the file or folder at `path` (from `root`, with slashes) into `files`.
fn collect(root: &Path, path: &str, files: &mut BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    let place = root.join(path);
    if !place.is_dir() {
        let content = fs::read(&place).with_context(|| format!("cannot read {}", place.display()))?;
        files.insert(path.to_owned(), content);
        return Ok(());
    }
    for entry in fs::read_dir(&place).with_context(|| format!("cannot list {}", place.display()))? {
        let name = entry?.file_name();
        let name = name.to_str().with_context(|| format!("a name in {path} is not UTF-8"))?;
        if name != "target" && !name.starts_with('.') {
            collect(root, &format!("{path}/{name}"), files)?;
        }
    }
    Ok(())
}

fn prebuilt(root: &Path) -> PathBuf {
    root.join("policies").join("prebuilt")
}

/// Writes bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all");
        text
    })
}

fn run_command(command: &mut Command) -> anyhow::Result<()> {
    let status =
        command.status().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !status.success() {
        bail!("{} ended with {status}", command.get_program().display());
    }
    Ok(())
}

#[allow(clippy::print_stderr, reason = "the progress of a chore")]
fn report(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with everything in agreement.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (path, content) in [
            ("wit/policy.wit", "package p;"),
            ("policies/Cargo.toml", "[workspace]"),
            ("policies/Cargo.lock", ""),
            ("policies/guest/src/lib.rs", "guest"),
        ] {
            write(root.path(), path, content);
        }
        for name in POLICIES {
            write(root.path(), &format!("policies/{name}/src/lib.rs"), name);
            write(root.path(), &format!("policies/prebuilt/{name}.wasm"), &format!("wasm of {name}"));
        }
        let mut manifest = Manifest::default();
        for name in POLICIES {
            let component =
                fs::read(prebuilt(root.path()).join(name).with_extension("wasm")).expect("written");
            let entry = Entry {
                sha256: hex(&Sha256::digest(&component)),
                size: component.len() as u64,
                sources: sources(root.path(), name).expect("readable"),
                built_with: "a compiler".into(),
            };
            manifest.0.insert(name.into(), entry);
        }
        write(
            root.path(),
            "policies/prebuilt/manifest.json",
            &serde_json::to_string(&manifest).expect("JSON"),
        );
        root
    }

    fn write(root: &Path, path: &str, content: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("has one")).expect("a folder");
        fs::write(path, content).expect("a file");
    }

    #[test]
    fn agreement_passes_and_any_change_is_named() {
        let expect = |path: &str, content: &str, expected: &[&str]| {
            let root = tree();
            check(root.path()).expect("agrees");
            write(root.path(), path, content);
            match check(root.path()) {
                Ok(()) => assert!(expected.is_empty(), "{path} was not noticed"),
                Err(error) => {
                    let said = format!("{error:#}");
                    assert!(said.contains("cargo xtask policies"), "{said}");
                    for name in POLICIES {
                        assert_eq!(
                            said.contains(&format!("policy {name}:")),
                            expected.contains(&name),
                            "{said}"
                        );
                    }
                }
            }
        };
        expect("wit/policy.wit", "package q;", &POLICIES);
        expect("policies/guest/src/lib.rs", "guess", &POLICIES);
        expect("policies/guest/src/new.rs", "", &POLICIES);
        expect("policies/p2c/src/lib.rs", "q", &["p2c"]);
        expect("policies/prebuilt/weighted.wasm", "wasm v", &["weighted"]);
        expect("policies/prebuilt/manifest.json", "{}", &POLICIES);
        expect("policies/p2c/target/debug/junk", "junk", &[]);
    }
}
