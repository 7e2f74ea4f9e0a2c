//! Finds a Rust toolchain that can build for wasm32-unknown-unknown.
//!
//! First choice is the active one, if it has the target's standard library (`rustup target add`). Where that cannot
//! be had, Debian's `rustc-web` builds the standard library from source.

use std::ffi::OsString;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use super::{report, run_command};

/// The target of every guest.
pub(crate) const TARGET: &str = "wasm32-unknown-unknown";
const DEBIAN_PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "lld-19"];
/// Files of those packages that the build needs.
const DEBIAN_FILES: [&str; 4] = [
    "/usr/bin/rustc",
    "/usr/bin/cargo",
    "/usr/lib/rustlib/src/rust/library/std/Cargo.toml",
    "/usr/bin/wasm-ld-19",
];

/// A toolchain that can build guests.
pub(crate) struct Toolchain {
    /// What its `rustc --version` says.
    pub(crate) version: String,
    cargo: PathBuf,
    rustc: PathBuf,
    builds_std: bool,
}

/// Finds a toolchain; with `install`, or after a yes on the terminal, installs Debian's.
pub(crate) fn find(install: bool) -> anyhow::Result<Toolchain> {
    let cargo = std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from);
    let rustc = std::env::var_os("RUSTC").map_or_else(|| "rustc".into(), PathBuf::from);
    if has_std(&rustc) {
        return Ok(Toolchain { version: version(&rustc)?, cargo, rustc, builds_std: false });
    }
    if !has_debian() {
        install_debian(install)?;
    }
    let rustc = PathBuf::from("/usr/bin/rustc");
    Ok(Toolchain { version: version(&rustc)?, cargo: "/usr/bin/cargo".into(), rustc, builds_std: true })
}

impl Toolchain {
    /// Returns the command that builds `packages` of `workspace` into `target`.
    pub(crate) fn build(&self, workspace: &Path, target: &Path, packages: &[&str]) -> Command {
        let mut command = Command::new(&self.cargo);
        command.current_dir(workspace).args(["build", "--release", "--locked", "--target", TARGET]);
        for package in packages {
            command.args(["--package", package]);
        }
        // `cargo xtask` runs under a cargo that told its children about itself.
        for name in
            ["RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH", "RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"]
        {
            if self.builds_std || name.starts_with("RUSTF") || name.starts_with("RUSTC") {
                command.env_remove(name);
            }
        }
        command
            .env("RUSTC", &self.rustc)
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags(workspace).join("\u{1f}"));
        if self.builds_std {
            command
                .args(["-Zbuild-std=std,panic_abort", "-Zbuild-std-features=optimize_for_size"])
                .env("RUSTC_BOOTSTRAP", "1")
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "wasm-ld-19")
                .env("PATH", path_with_usr_bin_first());
        }
        command
    }

    /// Returns the flags for the compiler: vector instructions, and no path of this machine in the result.
    fn flags(&self, workspace: &Path) -> Vec<String> {
        let mut flags = vec!["-Ctarget-feature=+simd128".to_owned()];
        let mut remap =
            |from: &Path, to: &str| flags.push(format!("--remap-path-prefix={}={to}", from.display()));
        remap(workspace, "/policies");
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        if let Some(home) = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))) {
            remap(&home, "/cargo");
        }
        if let Ok(sysroot) = output(Command::new(&self.rustc).args(["--print", "sysroot"])) {
            // Debian's source lies behind links; both names may show up.
            let source = Path::new(&sysroot).join("lib/rustlib/src/rust");
            remap(&source, "/rust");
            if let Ok(source) = source.join("library").canonicalize() {
                remap(&source, "/rust/library");
            }
        }
        if self.builds_std {
            // A panic's text cannot be seen from outside a guest: it would be a fifth of the component for nothing.
            flags.extend(["-Zunstable-options".to_owned(), "-Cpanic=immediate-abort".to_owned()]);
        }
        flags
    }
}

fn has_std(rustc: &Path) -> bool {
    let folder = output(Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]));
    folder.is_ok_and(|folder| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()))
}

fn has_debian() -> bool {
    DEBIAN_FILES.iter().all(|file| Path::new(file).exists())
}

fn install_debian(install: bool) -> anyhow::Result<()> {
    let packages = DEBIAN_PACKAGES.join(" ");
    let advice = format!(
        "no Rust toolchain here can build for {TARGET}: run `rustup target add {TARGET}`, or on Debian \
         `apt-get install --no-install-recommends {packages}`"
    );
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|id| id == "0");
    ensure!(is_root && Path::new("/usr/bin/apt-get").exists(), "{advice}");
    if !install {
        ensure!(std::io::stdin().is_terminal(), "{advice}, or let `cargo xtask policies --install` do it");
        report(&format!("{advice}\ninstall {packages} now? [y/N]"));
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        if !answer.trim().eq_ignore_ascii_case("y") {
            bail!("{advice}");
        }
    }
    run_command(Command::new("apt-get").arg("update"))?;
    let arguments = ["install", "--yes", "--no-install-recommends"];
    run_command(Command::new("apt-get").args(arguments).args(DEBIAN_PACKAGES))?;
    ensure!(has_debian(), "apt-get installed {packages}, but {} are not all there", DEBIAN_FILES.join(", "));
    Ok(())
}

fn path_with_usr_bin_first() -> OsString {
    let mut path = OsString::from("/usr/bin");
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    path
}

fn version(rustc: &Path) -> anyhow::Result<String> {
    output(Command::new(rustc).arg("--version"))
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let output =
        command.output().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    ensure!(output.status.success(), "{} ended with {}", command.get_program().display(), output.status);
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}
