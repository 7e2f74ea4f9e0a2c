//! The templates, and how a project is made of them.
//!
//! Invariant: every file in `host/templates` and every source of `policies/guest` is in exactly one list here; a test
//! compares them with the folders.

use super::super::project::{Language, MARKER, Role};

/// A file: its path from the project's root, and its text with placeholders.
type File = (&'static str, &'static str);

/// Each `"path in the project" = "path in host/templates"`.
macro_rules! files {
    ($($path:literal = $source:literal),+ $(,)?) => {
        &[$(($path, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/", $source)))),+]
    };
}

/// Each path in `policies/guest`, which is that in the copy.
macro_rules! guest {
    ($($path:literal),+ $(,)?) => {
        &[$((
            concat!("vendor/fulcrum-guest/", $path),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../policies/guest/", $path)),
        )),+]
    };
}

/// A note in the README of a Rust project with a copy of the guest package.
const COPY_NOTE: &str =
    "`vendor/fulcrum-guest` is a copy of Fulcrum's helper crate, which is not on crates.io. ";

/// Returns the files of a project, ordered by path.
///
/// With `guest`, a path, a Rust project uses the package there; else it has a copy of it. The name has been checked.
pub(super) fn project(
    name: &str,
    language: Language,
    role: Role,
    guest: Option<&str>,
) -> Vec<(&'static str, String)> {
    let (common, own, build) = match (language, role) {
        (Language::Rust, Role::Scoring) => (RUST, RUST_SCORING, RUST_BUILD),
        (Language::Rust, Role::Claiming) => (RUST, RUST_CLAIMING, RUST_BUILD),
        (Language::Javascript, Role::Scoring) => (JAVASCRIPT, JAVASCRIPT_SCORING, JAVASCRIPT_BUILD),
        (Language::Javascript, Role::Claiming) => (JAVASCRIPT, JAVASCRIPT_CLAIMING, JAVASCRIPT_BUILD),
        (Language::Python, Role::Scoring) => (PYTHON, PYTHON_SCORING, PYTHON_BUILD),
        (Language::Python, Role::Claiming) => (PYTHON, PYTHON_CLAIMING, PYTHON_BUILD),
        (Language::Go, Role::Scoring) => (GO, GO_SCORING, GO_BUILD),
        (Language::Go, Role::Claiming) => (GO, GO_CLAIMING, GO_BUILD),
        (Language::C, Role::Scoring) => (C, C_SCORING, C_BUILD),
        (Language::C, Role::Claiming) => (C, C_CLAIMING, C_BUILD),
    };
    let task = match role {
        Role::Scoring => SCORING,
        Role::Claiming => CLAIMING,
    };
    let copied = if language == Language::Rust && guest.is_none() { GUEST } else { &[] };
    let manifests = if copied.is_empty() { &[] } else { GUEST_MANIFESTS };
    let fill = |text: &str| {
        // The build part of the README comes first: it has placeholders too.
        text.replace("{{build}}", build)
            .replace("{{guest-note}}", if copied.is_empty() { "" } else { COPY_NOTE })
            .replace("{{guest}}", guest.unwrap_or("vendor/fulcrum-guest"))
            .replace("{{name}}", name)
            .replace("{{snake}}", &name.replace('-', "_"))
            .replace("{{language}}", &language.to_string())
            .replace("{{role}}", &role.to_string())
    };
    let filled = [COMMON, task, common, own, manifests].concat();
    let mut files: Vec<_> = filled.into_iter().map(|(path, text)| (path, fill(text))).collect();
    // Sources, not templates.
    files.extend(copied.iter().map(|&(path, text)| (path, text.to_owned())));
    files.push(("wit/policy.wit", fulcrum_pack::WIT.to_owned()));
    files.sort_unstable_by_key(|&(path, _)| path);
    files
}

/// In every project.
const COMMON: &[File] = &[
    (MARKER, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/common/fulcrum-policy.toml"))),
    (".gitignore", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/common/gitignore"))),
    ("test.sh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/common/test.sh"))),
];
/// In every project of the scoring role.
const SCORING: &[File] = files![
    "README.md" = "common/scoring/README.md",
    "test/cases.jsonl" = "common/scoring/cases.jsonl",
    "test/config.json" = "common/scoring/config.json",
    "test/expected.jsonl" = "common/scoring/expected.jsonl",
];
/// In every project of the claiming role.
const CLAIMING: &[File] = files![
    "README.md" = "common/claiming/README.md",
    "test/cases.jsonl" = "common/claiming/cases.jsonl",
    "test/config.json" = "common/claiming/config.json",
    "test/expected.jsonl" = "common/claiming/expected.jsonl",
];

/// In every project in rust.
const RUST: &[File] = files![
    "Cargo.lock" = "rust/Cargo.lock",
    "Cargo.toml" = "rust/Cargo.toml.in",
    "build.sh" = "rust/build.sh",
];
/// The scoring policy in rust.
const RUST_SCORING: &[File] =
    files!["src/lib.rs" = "rust/scoring/lib.rs", "src/schema.json" = "rust/scoring/schema.json",];
/// The claiming policy in rust.
const RUST_CLAIMING: &[File] = files!["src/lib.rs" = "rust/claiming/lib.rs",];
/// The build part of the README.
const RUST_BUILD: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/rust/build.md"));

/// In every project in javascript.
const JAVASCRIPT: &[File] = files![
    "build.sh" = "javascript/build.sh",
    "package-lock.json" = "javascript/package-lock.json",
    "package.json" = "javascript/package.json",
];
/// The scoring policy in javascript.
const JAVASCRIPT_SCORING: &[File] = files!["policy.js" = "javascript/scoring/policy.js",];
/// The claiming policy in javascript.
const JAVASCRIPT_CLAIMING: &[File] = files!["policy.js" = "javascript/claiming/policy.js",];
/// The build part of the README.
const JAVASCRIPT_BUILD: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/javascript/build.md"));

/// In every project in python.
const PYTHON: &[File] =
    files!["build.sh" = "python/build.sh", "requirements.txt" = "python/requirements.txt",];
/// The scoring policy in python.
const PYTHON_SCORING: &[File] = files!["src/app.py" = "python/scoring/app.py",];
/// The claiming policy in python.
const PYTHON_CLAIMING: &[File] = files!["src/app.py" = "python/claiming/app.py",];
/// The build part of the README.
const PYTHON_BUILD: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/python/build.md"));

/// In every project in go.
const GO: &[File] = files![
    "build.sh" = "go/build.sh",
    "go.mod" = "go/go.mod.in",
    "pkg/LICENSE" = "go/pkg/LICENSE",
    "pkg/README.md" = "go/pkg/README.md",
    "pkg/go.mod" = "go/pkg/go.mod",
    "pkg/wit/runtime/empty.s" = "go/pkg/wit/runtime/empty.s",
    "pkg/wit/runtime/runtime.go" = "go/pkg/wit/runtime/runtime.go",
    "pkg/wit/types/option.go" = "go/pkg/wit/types/option.go",
    "pkg/wit/types/result.go" = "go/pkg/wit/types/result.go",
    "pkg/wit/types/tuple.go" = "go/pkg/wit/types/tuple.go",
    "pkg/wit/types/unit.go" = "go/pkg/wit/types/unit.go",
    "requirements.txt" = "go/requirements.txt",
];
/// The scoring policy in go.
const GO_SCORING: &[File] = files![
    "gen/export_fulcrum_policy_lifecycle/shell.go" =
        "go/scoring/gen/export_fulcrum_policy_lifecycle/shell.go",
    "gen/export_fulcrum_policy_scoring/shell.go" = "go/scoring/gen/export_fulcrum_policy_scoring/shell.go",
    "gen/fulcrum_policy_host/empty.s" = "go/scoring/gen/fulcrum_policy_host/empty.s",
    "gen/fulcrum_policy_host/wit_bindings.go" = "go/scoring/gen/fulcrum_policy_host/wit_bindings.go",
    "gen/fulcrum_policy_lifecycle/empty.s" = "go/scoring/gen/fulcrum_policy_lifecycle/empty.s",
    "gen/fulcrum_policy_lifecycle/wit_bindings.go" =
        "go/scoring/gen/fulcrum_policy_lifecycle/wit_bindings.go",
    "gen/fulcrum_policy_scoring/empty.s" = "go/scoring/gen/fulcrum_policy_scoring/empty.s",
    "gen/fulcrum_policy_scoring/wit_bindings.go" = "go/scoring/gen/fulcrum_policy_scoring/wit_bindings.go",
    "gen/wit_exports.go" = "go/scoring/gen/wit_exports.go",
    "rule/rule.go" = "go/scoring/rule/rule.go",
];
/// The claiming policy in go.
const GO_CLAIMING: &[File] = files![
    "gen/export_fulcrum_policy_claiming/shell.go" = "go/claiming/gen/export_fulcrum_policy_claiming/shell.go",
    "gen/export_fulcrum_policy_lifecycle/shell.go" =
        "go/claiming/gen/export_fulcrum_policy_lifecycle/shell.go",
    "gen/fulcrum_policy_claiming/empty.s" = "go/claiming/gen/fulcrum_policy_claiming/empty.s",
    "gen/fulcrum_policy_claiming/wit_bindings.go" = "go/claiming/gen/fulcrum_policy_claiming/wit_bindings.go",
    "gen/fulcrum_policy_host/empty.s" = "go/claiming/gen/fulcrum_policy_host/empty.s",
    "gen/fulcrum_policy_host/wit_bindings.go" = "go/claiming/gen/fulcrum_policy_host/wit_bindings.go",
    "gen/fulcrum_policy_lifecycle/empty.s" = "go/claiming/gen/fulcrum_policy_lifecycle/empty.s",
    "gen/fulcrum_policy_lifecycle/wit_bindings.go" =
        "go/claiming/gen/fulcrum_policy_lifecycle/wit_bindings.go",
    "gen/wit_exports.go" = "go/claiming/gen/wit_exports.go",
    "rule/rule.go" = "go/claiming/rule/rule.go",
];
/// The build part of the README.
const GO_BUILD: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/go/build.md"));

/// In every project in c.
const C: &[File] = files!["build.sh" = "c/build.sh", "requirements.txt" = "c/requirements.txt",];
/// The scoring policy in c.
const C_SCORING: &[File] = files![
    "gen/scoring_policy.c" = "c/scoring/gen/scoring_policy.c",
    "gen/scoring_policy.h" = "c/scoring/gen/scoring_policy.h",
    "policy.c" = "c/scoring/policy.c",
];
/// The claiming policy in c.
const C_CLAIMING: &[File] = files![
    "gen/claiming_policy.c" = "c/claiming/gen/claiming_policy.c",
    "gen/claiming_policy.h" = "c/claiming/gen/claiming_policy.h",
    "policy.c" = "c/claiming/policy.c",
];
/// The build part of the README.
const C_BUILD: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/c/build.md"));

/// The manifests of the copied guest package: those in `policies/guest` belong to a workspace.
const GUEST_MANIFESTS: &[File] = files![
    "vendor/fulcrum-guest/Cargo.toml" = "rust/guest.Cargo.toml.in",
    "vendor/fulcrum-guest/claiming-bindings/Cargo.toml" = "rust/bindings.Cargo.toml.in",
];
/// Its sources, as they are.
const GUEST: &[File] = guest![
    "claiming-bindings/src/lib.rs",
    "src/claiming.rs",
    "src/claiming/allocate.rs",
    "src/claiming/even.rs",
    "src/claiming/flow.rs",
    "src/claiming/md5.rs",
    "src/claiming/pace.rs",
    "src/claiming/subscribers.rs",
    "src/config.rs",
    "src/cost.rs",
    "src/lib.rs",
    "src/scoring.rs",
    "src/seeded.rs",
    "src/shell.rs",
    "src/shell/claiming.rs",
    "src/testing.rs",
    "src/testing/claiming.rs",
];

#[cfg(test)]
mod tests;
