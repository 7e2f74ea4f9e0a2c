//! The lists and the folders agree, and so do the templates and the examples made of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;

use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the files in a folder by their path in it, with what they contain. What a build leaves is left out.
fn files_in(folder: &Path) -> BTreeMap<String, String> {
    const LEFT_BY_BUILDS: [&str; 5] = ["build", "target", "node_modules", ".venv", "__pycache__"];
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.expect("it can be listed").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if LEFT_BY_BUILDS.contains(&&*name) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = fs::read_to_string(&path).unwrap_or_else(|_| panic!("{} is text", path.display()));
                let path =
                    path.strip_prefix(folder).expect("it lies there").to_string_lossy().replace('\\', "/");
                files.insert(path, text);
            }
        }
    }
    files
}

#[test]
fn every_template_and_every_guest_source_is_used() {
    let mut used: Vec<&str> = Vec::new();
    for list in [
        COMMON,
        SCORING,
        CLAIMING,
        RUST,
        RUST_SCORING,
        RUST_CLAIMING,
        JAVASCRIPT,
        JAVASCRIPT_SCORING,
        JAVASCRIPT_CLAIMING,
        PYTHON,
        PYTHON_SCORING,
        PYTHON_CLAIMING,
        GO,
        GO_SCORING,
        GO_CLAIMING,
        C,
        C_SCORING,
        C_CLAIMING,
        GUEST_MANIFESTS,
    ] {
        used.extend(list.iter().map(|(_, text)| text));
    }
    used.extend([RUST_BUILD, JAVASCRIPT_BUILD, PYTHON_BUILD, GO_BUILD, C_BUILD]);
    let there = files_in(&root().join("host/templates"));
    for (path, text) in &there {
        assert!(used.contains(&text.as_str()), "no project gets {path}");
    }

    let sources = files_in(&root().join("policies/guest"));
    let sources = sources.into_iter().filter(|(path, _)| path.ends_with(".rs"));
    let sources: BTreeMap<String, String> =
        sources.map(|(path, text)| (format!("vendor/fulcrum-guest/{path}"), text)).collect();
    let copied: BTreeMap<String, String> =
        GUEST.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
    assert_eq!(copied.keys().collect::<Vec<_>>(), sources.keys().collect::<Vec<_>>());
    assert!(copied == sources, "the copy has every source as it is");
}

#[test]
fn the_copied_manifests_ask_for_what_the_guests_are_built_with() {
    let workspace = fs::read_to_string(root().join("policies/Cargo.toml")).expect("it is there");
    let versions = |text: &str| -> Vec<String> {
        let is_dependency =
            |line: &&str| line.starts_with("wit-bindgen = ") || line.starts_with("proptest = ");
        let plain = |line: &str| line.replace(", optional = true", "");
        text.lines().filter(is_dependency).map(plain).collect()
    };
    let asked: Vec<_> = GUEST_MANIFESTS.iter().flat_map(|(_, text)| versions(text)).collect();
    assert_eq!(asked.len(), 3, "{asked:?}");
    let known = versions(&workspace);
    assert!(asked.iter().all(|line| known.contains(line)), "{asked:?} {known:?}");
}

#[test]
fn no_placeholder_is_left() {
    for language in Language::value_variants() {
        for role in Role::value_variants() {
            let files = project("near-first", *language, *role, None);
            for (path, text) in &files {
                for word in ["name", "snake", "language", "role", "build", "guest", "guest-note"] {
                    assert!(!text.contains(&format!("{{{{{word}}}}}")), "{language} {role} {path}: {word}");
                }
            }
            let text =
                |wanted: &str| files.iter().find(|(path, _)| *path == wanted).map(|(_, text)| text.as_str());
            let marker = format!("name = \"near-first\"\nlanguage = \"{language}\"\nrole = \"{role}\"\n");
            assert!(text("fulcrum-policy.toml").expect("always").ends_with(&marker), "{language} {role}");
            assert_eq!(text("wit/policy.wit"), Some(fulcrum_pack::WIT));
            for always in ["README.md", ".gitignore", "build.sh", "test.sh", "test/cases.jsonl"] {
                assert!(text(always).is_some(), "{language} {role} has {always}");
            }
        }
    }
}

#[test]
fn the_examples_are_what_the_templates_make() {
    for language in Language::value_variants() {
        let guest = (*language == Language::Rust).then_some("../../policies/guest");
        let made = project("near-first", *language, Role::Scoring, guest);
        let there = files_in(&root().join("examples").join(language.to_string()));
        let flag = guest.map(|guest| format!(" --guest {guest}")).unwrap_or_default();
        let todo = format!(
            "see what `fulcrum policy new near-first --lang {language} --dir DIR{flag}` makes, and host/templates"
        );
        let paths: Vec<_> = made.iter().map(|(path, _)| *path).collect();
        assert_eq!(there.keys().collect::<Vec<_>>(), paths, "{todo}");
        for (path, text) in made {
            assert!(there[path] == text, "examples/{language}/{path} differs from its template: {todo}");
        }
    }
}

#[test]
fn values_are_put_in_as_they_are() {
    let check = |text: &str, expected: &str| {
        let values = [("a", "{{b}}".to_owned()), ("b", "x".to_owned())];
        assert_eq!(filled(text, &values), expected, "{text:?}");
    };
    check("", "");
    check("{{a}}{{b}} {{c}} {{ {{b}}", "{{b}}x {{c}} {{ x");
    check("{{{b}} }} {{b", "{{{b}} }} {{b");

    let guest = "C:\\a \"b\" {{name}} near-first";
    let made = project("mine", Language::Rust, Role::Scoring, Some(guest));
    let (_, manifest) = made.iter().find(|(path, _)| *path == "Cargo.toml").expect("always");
    let manifest: toml::Table = manifest.parse().expect("TOML");
    assert_eq!(manifest["dependencies"]["fulcrum-guest"]["path"].as_str(), Some(guest));
    assert_eq!(manifest["package"]["name"].as_str(), Some("mine"));
}

#[test]
fn names_of_packages_a_project_depends_on_are_known() {
    for (name, expected) in
        [("fulcrum-guest", true), ("fulcrum-guest-claiming-bindings", true), ("fulcrum", false), ("a", false)]
    {
        assert_eq!(is_our_package(name), expected, "{name}");
    }
}
