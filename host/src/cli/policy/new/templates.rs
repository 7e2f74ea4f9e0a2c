//! The templates, and how a project is made of them.
//!
//! The scoring project of a language is its example under another name; `host/templates` has the rest: the claiming
//! projects, and what names its role. Invariant: every file there and every source of `policies/guest` is in exactly
//! one list here, and the examples are what a project of their name gets; tests compare them with the folders.

use super::super::project::{Language, MARKER, Role};

/// A file: its path from the project's root, and its text with placeholders or the example's name.
type File = (&'static str, &'static str);

/// Each `"path in the project" = folder / "path in it"`.
macro_rules! files {
    ($($path:literal = $folder:ident / $source:literal),+ $(,)?) => {
        &[$(($path, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), folder!($folder), $source)))),+]
    };
}

/// Where a file comes from: what is the same in an example is taken from there.
macro_rules! folder {
    (templates) => {
        "/templates/"
    };
    (examples) => {
        "/../examples/"
    };
}

/// The name of the policy in the examples.
const EXAMPLE: &str = "near-first";

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
    let guest = guest.unwrap_or("vendor/fulcrum-guest");
    let values = [
        ("guest-note", if copied.is_empty() { String::new() } else { COPY_NOTE.to_owned() }),
        // It stands in a TOML basic string, and has no control characters.
        ("guest", guest.replace('\\', "\\\\").replace('"', "\\\"")),
        ("name", name.to_owned()),
        ("snake", name.replace('-', "_")),
        ("language", language.to_string()),
        ("role", role.to_string()),
    ];
    // The build part of the README comes first: it has placeholders too.
    let fill = |text: &str| filled(&text.replace("{{build}}", build).replace(EXAMPLE, "{{name}}"), &values);
    let templates = [COMMON, task, common, own, manifests].concat();
    let mut files: Vec<_> = templates.into_iter().map(|(path, text)| (path, fill(text))).collect();
    // Sources, not templates.
    files.extend(copied.iter().map(|&(path, text)| (path, text.to_owned())));
    files.push(("wit/policy.wit", fulcrum_pack::WIT.to_owned()));
    files.sort_unstable_by_key(|&(path, _)| path);
    files
}

/// Puts values in place of their names in double braces; what stands in a value is left as it is.
fn filled(mut text: &str, values: &[(&str, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    while let Some((before, after)) = text.split_once("{{") {
        out.push_str(before);
        let found = after
            .split_once("}}")
            .and_then(|(name, rest)| Some((values.iter().find(|(known, _)| *known == name)?, rest)));
        text = if let Some(((_, value), rest)) = found {
            out.push_str(value);
            rest
        } else {
            out.push_str("{{");
            after
        };
    }
    out + text
}

/// Says whether a package of a Rust project that is not its own has this name.
pub(super) fn is_our_package(name: &str) -> bool {
    let line = format!("name = \"{name}\"");
    GUEST_MANIFESTS.iter().any(|(_, manifest)| manifest.lines().any(|own| own == line))
}

/// In every project.
const COMMON: &[File] = &[
    (MARKER, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/common/fulcrum-policy.toml"))),
    (".gitignore", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/common/gitignore"))),
    ("test.sh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/common/test.sh"))),
];
/// In every project of the scoring role.
const SCORING: &[File] = files![
    "README.md" = templates / "common/scoring/README.md",
    "test/cases.jsonl" = examples / "rust/test/cases.jsonl",
    "test/config.json" = examples / "rust/test/config.json",
    "test/expected.jsonl" = examples / "rust/test/expected.jsonl",
];
/// In every project of the claiming role.
const CLAIMING: &[File] = files![
    "README.md" = templates / "common/claiming/README.md",
    "test/cases.jsonl" = templates / "common/claiming/cases.jsonl",
    "test/config.json" = templates / "common/claiming/config.json",
    "test/expected.jsonl" = templates / "common/claiming/expected.jsonl",
];

/// In every project in rust.
const RUST: &[File] = files![
    "Cargo.lock" = examples / "rust/Cargo.lock",
    "Cargo.toml" = templates / "rust/Cargo.toml.in",
    "build.sh" = templates / "rust/build.sh",
];
/// The scoring policy in rust.
const RUST_SCORING: &[File] = files![
    "src/lib.rs" = examples / "rust/src/lib.rs",
    "src/schema.json" = examples / "rust/src/schema.json",
];
/// The claiming policy in rust.
const RUST_CLAIMING: &[File] = files!["src/lib.rs" = templates / "rust/claiming/lib.rs",];
/// The build part of the README.
const RUST_BUILD: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/rust/build.md"));

/// In every project in javascript.
const JAVASCRIPT: &[File] = files![
    "build.sh" = templates / "javascript/build.sh",
    "package-lock.json" = examples / "javascript/package-lock.json",
    "package.json" = examples / "javascript/package.json",
];
/// The scoring policy in javascript.
const JAVASCRIPT_SCORING: &[File] = files!["policy.js" = examples / "javascript/policy.js",];
/// The claiming policy in javascript.
const JAVASCRIPT_CLAIMING: &[File] = files!["policy.js" = templates / "javascript/claiming/policy.js",];
/// The build part of the README.
const JAVASCRIPT_BUILD: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/javascript/build.md"));

/// In every project in python.
const PYTHON: &[File] = files![
    "build.sh" = templates / "python/build.sh",
    "requirements.txt" = examples / "python/requirements.txt",
];
/// The scoring policy in python.
const PYTHON_SCORING: &[File] = files!["src/app.py" = examples / "python/src/app.py",];
/// The claiming policy in python.
const PYTHON_CLAIMING: &[File] = files!["src/app.py" = templates / "python/claiming/app.py",];
/// The build part of the README.
const PYTHON_BUILD: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/python/build.md"));

/// In every project in go.
const GO: &[File] = files![
    "build.sh" = templates / "go/build.sh",
    "go.mod" = examples / "go/go.mod",
    "pkg/LICENSE" = examples / "go/pkg/LICENSE",
    "pkg/README.md" = examples / "go/pkg/README.md",
    "pkg/go.mod" = examples / "go/pkg/go.mod",
    "pkg/wit/runtime/empty.s" = examples / "go/pkg/wit/runtime/empty.s",
    "pkg/wit/runtime/runtime.go" = examples / "go/pkg/wit/runtime/runtime.go",
    "pkg/wit/types/option.go" = examples / "go/pkg/wit/types/option.go",
    "pkg/wit/types/result.go" = examples / "go/pkg/wit/types/result.go",
    "pkg/wit/types/tuple.go" = examples / "go/pkg/wit/types/tuple.go",
    "pkg/wit/types/unit.go" = examples / "go/pkg/wit/types/unit.go",
    "requirements.txt" = examples / "go/requirements.txt",
];
/// The scoring policy in go.
const GO_SCORING: &[File] = files![
    "gen/export_fulcrum_policy_lifecycle/shell.go" =
        examples / "go/gen/export_fulcrum_policy_lifecycle/shell.go",
    "gen/export_fulcrum_policy_scoring/shell.go" = examples / "go/gen/export_fulcrum_policy_scoring/shell.go",
    "gen/fulcrum_policy_host/empty.s" = examples / "go/gen/fulcrum_policy_host/empty.s",
    "gen/fulcrum_policy_host/wit_bindings.go" = examples / "go/gen/fulcrum_policy_host/wit_bindings.go",
    "gen/fulcrum_policy_lifecycle/empty.s" = examples / "go/gen/fulcrum_policy_lifecycle/empty.s",
    "gen/fulcrum_policy_lifecycle/wit_bindings.go" =
        examples / "go/gen/fulcrum_policy_lifecycle/wit_bindings.go",
    "gen/fulcrum_policy_scoring/empty.s" = examples / "go/gen/fulcrum_policy_scoring/empty.s",
    "gen/fulcrum_policy_scoring/wit_bindings.go" = examples / "go/gen/fulcrum_policy_scoring/wit_bindings.go",
    "gen/wit_exports.go" = examples / "go/gen/wit_exports.go",
    "rule/rule.go" = examples / "go/rule/rule.go",
];
/// The claiming policy in go.
const GO_CLAIMING: &[File] = files![
    "gen/export_fulcrum_policy_claiming/shell.go" =
        templates / "go/claiming/gen/export_fulcrum_policy_claiming/shell.go",
    "gen/export_fulcrum_policy_lifecycle/shell.go" =
        examples / "go/gen/export_fulcrum_policy_lifecycle/shell.go",
    "gen/fulcrum_policy_claiming/empty.s" = templates / "go/claiming/gen/fulcrum_policy_claiming/empty.s",
    "gen/fulcrum_policy_claiming/wit_bindings.go" =
        templates / "go/claiming/gen/fulcrum_policy_claiming/wit_bindings.go",
    "gen/fulcrum_policy_host/empty.s" = examples / "go/gen/fulcrum_policy_host/empty.s",
    "gen/fulcrum_policy_host/wit_bindings.go" = examples / "go/gen/fulcrum_policy_host/wit_bindings.go",
    "gen/fulcrum_policy_lifecycle/empty.s" = examples / "go/gen/fulcrum_policy_lifecycle/empty.s",
    "gen/fulcrum_policy_lifecycle/wit_bindings.go" =
        examples / "go/gen/fulcrum_policy_lifecycle/wit_bindings.go",
    "gen/wit_exports.go" = templates / "go/claiming/gen/wit_exports.go",
    "rule/rule.go" = templates / "go/claiming/rule/rule.go",
];
/// The build part of the README.
const GO_BUILD: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/go/build.md"));

/// In every project in c.
const C: &[File] =
    files!["build.sh" = templates / "c/build.sh", "requirements.txt" = examples / "c/requirements.txt",];
/// The scoring policy in c.
const C_SCORING: &[File] = files![
    "gen/scoring_policy.c" = examples / "c/gen/scoring_policy.c",
    "gen/scoring_policy.h" = examples / "c/gen/scoring_policy.h",
    "policy.c" = examples / "c/policy.c",
];
/// The claiming policy in c.
const C_CLAIMING: &[File] = files![
    "gen/claiming_policy.c" = templates / "c/claiming/gen/claiming_policy.c",
    "gen/claiming_policy.h" = templates / "c/claiming/gen/claiming_policy.h",
    "policy.c" = templates / "c/claiming/policy.c",
];
/// The build part of the README.
const C_BUILD: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/c/build.md"));

/// The manifests of the copied guest package: those in `policies/guest` belong to a workspace.
const GUEST_MANIFESTS: &[File] = files![
    "vendor/fulcrum-guest/Cargo.toml" = templates / "rust/guest.Cargo.toml.in",
    "vendor/fulcrum-guest/claiming-bindings/Cargo.toml" = templates / "rust/bindings.Cargo.toml.in",
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
