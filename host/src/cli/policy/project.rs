//! A policy project: a folder that `policy new` made and `policy build` builds.
//!
//! Invariant: a project says what it is in `fulcrum-policy.toml`, and how it is built in `build.sh`, which writes
//! `build/NAME.wasm`. Nothing else about it is assumed.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use serde::Deserialize;

/// The file that says what a project is.
pub(super) const MARKER: &str = "fulcrum-policy.toml";

/// A language with a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Language {
    /// Rust, with the helper crate fulcrum-guest
    Rust,
    /// JavaScript, by componentize-qjs (QuickJS)
    #[value(alias = "js")]
    Javascript,
    /// Python, by componentize-py
    Python,
    /// Go
    Go,
    /// C, by any clang for WASI
    C,
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rust => "rust",
            Self::Javascript => "javascript",
            Self::Python => "python",
            Self::Go => "go",
            Self::C => "c",
        })
    }
}

/// The question a project's policy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    /// Which instance should the next session go to?
    Scoring,
    /// Which member should own which partition?
    Claiming,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scoring => "scoring",
            Self::Claiming => "claiming",
        })
    }
}

/// What a project says about itself.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Project {
    /// The policy's name, by the rule of [`check_name`].
    pub(super) name: String,
    /// What it is written in; `None` is another language, whose tools its build.sh finds by itself.
    pub(super) language: Option<Language>,
    /// The question its policy answers; for people.
    #[allow(dead_code, reason = "read so that the file is checked as a whole")]
    pub(super) role: Role,
}

impl Project {
    /// Reads what the project in `folder` says about itself.
    ///
    /// Errors if there is none, or if the file says something else.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(MARKER);
        let text = fs::read_to_string(&path).with_context(|| {
            let shown = path.display();
            format!("cannot read {shown}; `fulcrum policy new NAME --lang LANGUAGE` makes a project")
        })?;
        let project: Self = toml::from_str(&text)
            .with_context(|| format!("{} does not say what to build", path.display()))?;
        check_name(&project.name)?;
        Ok(project)
    }

    /// Returns where the project's build puts the component, from the project's folder.
    pub(super) fn output(&self) -> PathBuf {
        Path::new("build").join(&self.name).with_added_extension("wasm")
    }
}

/// Refuses a name that a policy cannot have in `describe` and in every language's tools.
pub(super) fn check_name(name: &str) -> anyhow::Result<()> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_good = (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(is_word);
    ensure!(
        is_good,
        "a policy's name is 1 to 64 of a-z, 0-9 and -, beginning with a letter, for example near-first; this is \
         {name:?}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_a_policy_may_have() {
        let check = |name: &str, expected: bool| {
            assert_eq!(check_name(name).is_ok(), expected, "{name:?}");
            if expected {
                assert!(fulcrum_policy::manager::is_policy_name(name), "a host takes {name:?}");
            }
        };
        for good in ["a", "near-first", "v2", &"x".repeat(64)] {
            check(good, true);
        }
        for bad in ["", "-a", "2a", "Near", "a_b", "a.b", "../a", "ä", "a b", &"x".repeat(65)] {
            check(bad, false);
        }
    }

    #[test]
    fn a_project_is_read_whole() {
        let read = |text: &str| {
            let folder = tempfile::tempdir().expect("a folder");
            fs::write(folder.path().join(MARKER), text).expect("a file");
            Project::read(folder.path()).map_err(|error| format!("{error:#}"))
        };
        let good = "name = \"a\"\nlanguage = \"go\"\nrole = \"claiming\"\n";
        let project = |language| Project { name: "a".to_owned(), language, role: Role::Claiming };
        assert_eq!(read(good), Ok(project(Some(Language::Go))));
        assert_eq!(read("name = \"a\"\nrole = \"claiming\"\n"), Ok(project(None)));
        for (text, words) in [
            ("", "missing field `name`"),
            ("name = \"a\"\nlanguage = \"cobol\"\nrole = \"scoring\"\n", "unknown variant `cobol`"),
            ("name = \"../a\"\nlanguage = \"c\"\nrole = \"scoring\"\n", "beginning with a letter"),
            ("name = \"a\"\nlanguage = \"c\"\nrole = \"scoring\"\nx = 1\n", "unknown field `x`"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
        let nothing = Project::read(Path::new("no such folder")).expect_err("there is none");
        assert!(format!("{nothing:#}").contains("fulcrum policy new"), "{nothing:#}");
    }
}
