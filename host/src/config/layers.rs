//! Laying defaults, file, environment and flags over each other.

use std::fmt;
use std::path::Path;

use super::{Config, Raw, SETTINGS, rules};

/// Where settings come from, lowest first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layers<'a> {
    /// Path (for messages) and text of the file.
    pub file: Option<(&'a Path, &'a str)>,
    /// The environment; only `FULCRUM_*` is looked at.
    pub environment: &'a [(String, String)],
    /// Flags as (key, value), for example (`policy.poll_ms`, `500`).
    pub flags: &'a [(String, String)],
}

/// Which layer a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Origin {
    Default,
    File,
    Environment,
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Environment => "environment",
            Self::Flag => "flag",
        })
    }
}

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// Where each comes from; as many as there are settings, in their order.
    pub(crate) origins: Vec<Origin>,
    /// Things worth telling that are no problem.
    pub warnings: Vec<String>,
}

/// Everything that is wrong with a configuration, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the configuration has {} problem{}",
            self.0.len(),
            if self.0.len() == 1 { "" } else { "s" }
        )?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}

/// Variables that start like settings but belong to the command line.
const OTHER_VARIABLES: [&str; 2] = ["FULCRUM_CONFIG", "FULCRUM_HOST"];

/// Lays the layers over each other and checks the whole.
///
/// Errors with every problem there is. A variable `FULCRUM_*` that is no setting is only a warning: container
/// platforms set such variables by themselves for a service named fulcrum.
pub fn load(layers: Layers<'_>) -> Result<Loaded, Problems> {
    let mut loading = Loading {
        config: Config::default(),
        origins: vec![Origin::Default; SETTINGS.len()],
        problems: Vec::new(),
    };
    let mut warnings = Vec::new();
    if let Some((path, text)) = layers.file {
        loading.file(path, text);
    }
    for (variable, value) in layers.environment {
        if !variable.starts_with("FULCRUM_") || OTHER_VARIABLES.contains(&variable.as_str()) {
            continue;
        }
        match SETTINGS.iter().position(|setting| setting.variable() == *variable) {
            Some(at) => loading.set(at, Origin::Environment, &Raw::Text(value), variable),
            None => warnings.push(format!("{variable} is not a setting and is ignored")),
        }
    }
    for (key, value) in layers.flags {
        match SETTINGS.iter().position(|setting| setting.key() == *key) {
            Some(at) => loading.set(at, Origin::Flag, &Raw::Text(value), &shown_flag(key)),
            None => loading.problems.push(unknown(key, "--set")),
        }
    }
    for (key, message) in rules::broken(&loading.config) {
        let origin = SETTINGS.iter().position(|setting| setting.key() == key).map(|at| loading.origins[at]);
        let origin = origin.unwrap_or(Origin::Default);
        loading.problems.push(format!("{key} ({origin}): {message}"));
    }
    if loading.problems.is_empty() {
        Ok(Loaded { config: loading.config, origins: loading.origins, warnings })
    } else {
        Err(Problems(loading.problems))
    }
}

struct Loading {
    config: Config,
    origins: Vec<Origin>,
    problems: Vec<String>,
}

impl Loading {
    fn set(&mut self, at: usize, origin: Origin, raw: &Raw<'_>, shown: &str) {
        match (SETTINGS[at].set)(&mut self.config, raw) {
            Ok(()) => self.origins[at] = origin,
            Err(message) => self.problems.push(format!("{shown} ({origin}): {message}")),
        }
    }

    fn file(&mut self, path: &Path, text: &str) {
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                // Else with the line it is about.
                let is_secret = fulcrum_policy::trust::holds_private_key(text);
                let message = if is_secret { error.message().to_owned() } else { error.to_string() };
                self.problems.push(format!("{} is not TOML: {}", path.display(), message.trim_end()));
                return;
            }
        };
        for (key, value) in &table {
            let is_table = SETTINGS.iter().any(|setting| setting.table == key);
            match value {
                toml::Value::Table(inner) if is_table => {
                    for (name, value) in inner {
                        self.entry(path, &format!("{key}.{name}"), value);
                    }
                }
                value => self.entry(path, key, value),
            }
        }
    }

    fn entry(&mut self, path: &Path, key: &str, value: &toml::Value) {
        match SETTINGS.iter().position(|setting| setting.key() == key) {
            Some(at) => self.set(at, Origin::File, &Raw::Toml(value), key),
            None => self.problems.push(unknown(key, &path.display().to_string())),
        }
    }
}

/// Says that a key is unknown, and which one it may have meant.
fn unknown(key: &str, place: &str) -> String {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().replace('-', "_");
    let meant = SETTINGS
        .iter()
        .map(|setting| setting.key())
        .filter(|known| last(known) == last(key) || distance(known, key) <= 2)
        .min_by_key(|known| distance(known, key));
    match meant {
        Some(known) => format!("{key} ({place}): unknown setting, did you mean {known}?"),
        None => format!("{key} ({place}): unknown setting, `fulcrum config print` lists all"),
    }
}

/// Counts the insertions, deletions and replacements between two texts (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, right) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

fn shown_flag(key: &str) -> String {
    match key {
        "listen" | "advertise" | "data_dir" | "policies_dir" | "insecure" => {
            format!("--{}", key.replace('_', "-"))
        }
        key => format!("--set {key}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn load_all(
        file: &str,
        environment: &[(&str, &str)],
        flags: &[(&str, &str)],
    ) -> Result<Loaded, Problems> {
        load(Layers {
            file: Some((Path::new("f.toml"), file)),
            environment: &pairs(environment),
            flags: &pairs(flags),
        })
    }

    #[test]
    fn later_layers_win() {
        let check = |file: &str, environment: &[(&str, &str)], flags: &[(&str, &str)], expected, origin| {
            let loaded = load_all(file, environment, flags).expect("it is valid");
            let at =
                SETTINGS.iter().position(|setting| setting.key() == "policy.poll_ms").expect("it exists");
            assert_eq!((loaded.config.policy.poll_ms, loaded.origins[at]), (expected, origin));
        };
        let file = "[policy]\npoll_ms = 100";
        let environment = [("FULCRUM_POLICY_POLL_MS", "200")];
        let flags = [("policy.poll_ms", "300")];
        check("", &[], &[], 2000, Origin::Default);
        check(file, &[], &[], 100, Origin::File);
        check(file, &environment, &[], 200, Origin::Environment);
        check(file, &environment, &flags, 300, Origin::Flag);
        check(file, &[], &flags, 300, Origin::Flag);
    }

    #[test]
    fn no_layer_at_all_is_valid() {
        let loaded = load(Layers::default()).expect("defaults are valid");
        assert_eq!(loaded.config, Config::default());
        assert_eq!(loaded.config.policies_dir(), Path::new("fulcrum-data/policies"));
    }

    #[test]
    fn problems_are_named() {
        let check = |file: &str, environment: &[(&str, &str)], flags: &[(&str, &str)], expected: &str| {
            let problems = load_all(file, environment, flags).expect_err(expected).0;
            assert!(problems.len() == 1 && problems[0].contains(expected), "{expected}: {problems:?}");
        };
        check("listen = 8080", &[], &[], "listen (file): expected a text, found 8080");
        check("listen = \"here\"", &[], &[], "expected IP:PORT");
        check("listen = \"0.0.0.0:80\"", &[], &[], "--insecure");
        check("", &[("FULCRUM_LISTEN", "[::]:80")], &[], "listen (environment): [::]:80 can be reached");
        check("advertise = \"http://lb:80\"", &[], &[], "leave the scheme out");
        check("insecure = \"yes\"", &[], &[], "expected true or false, found \"yes\"");
        check("polcy.poll_ms = 1", &[], &[], "unknown setting");
        check("poll_ms = 1", &[], &[], "did you mean policy.poll_ms?");
        check("[policy]\npol_ms = 1", &[], &[], "did you mean policy.poll_ms?");
        check("policy = 3", &[], &[], "unknown setting");
        check("[listen]\na = 1", &[], &[], "expected a text, found a table");
        check("= 3", &[], &[], "f.toml is not TOML");
        check("[policy]\npoll_ms = 5", &[], &[], "out of range, expected 10 to");
        check("[policy]\npoll_ms = -5", &[], &[], "expected a whole number of 0 or more, found -5");
        check("[policy]\npoll_ms = 1.5", &[], &[], "expected a whole number of 0 or more, found 1.5");
        check("", &[], &[("policy.poll_ms", "2s")], "--set policy.poll_ms (flag): expected a whole number");
        check("", &[], &[("policy.pool", "2s")], "unknown setting");
        check("capacity = nan", &[], &[], "expected a number above 0");
        check("[heartbeat]\nttl_ms = 5000", &[], &[], "must be above heartbeat.interval_ms");
        check("[policy]\nwasi = true", &[], &[], "policy.wasi (file): expected a text, found true");
        check("", &[], &[("policy.wasi", "on")], "expected \"off\" or \"compat\", found \"on\"");
        check("[policy]\ntrusted_keys = 1", &[], &[], "expected a list of texts, found 1");
        let empty = "found nothing; leave the setting out to have none";
        check("", &[("FULCRUM_POLICY_TRUSTED_KEYS", "")], &[], empty);
        check("[policy]\ntrusted_keys = [\"x\"]", &[], &[("policy.trusted_keys", "")], empty);
        let line = "[policy]\ntrusted_keys = fulcrum-private-key-1 AAAA";
        let problems = load_all(line, &[], &[]).expect_err("no TOML").0;
        assert!(problems.len() == 1 && !problems[0].contains("AAAA"), "{problems:?}");
        check("[policy]\ncache_bytes_max = 9", &[], &[], "9 is out of range");
        check("[journal]\nmode = \"on\"", &[], &[], "expected \"off\", \"sampled\" or \"full\"");
        check("[journal]\nsample_every = 0", &[], &[], "0 is out of range");
        check("[journal]\nbytes_max = 9", &[], &[], "9 is out of range");
        check("[log]\nformat = \"xml\"", &[], &[], "expected \"text\" or \"json\"");
        check("[log]\nfilter = \"a=b=c\"", &[], &[], "is not a filter");
    }

    #[test]
    fn problems_are_reported_together() {
        let file =
            "listen = \"0.0.0.0:1\"\nunknown = 1\n[policy]\nmemory_mib = 0\n[heartbeat]\nttl_ms = true";
        let problems = load_all(file, &[("FULCRUM_CAPACITY", "-1")], &[("session.require_agent", "maybe")])
            .expect_err("six");
        assert_eq!(problems.0.len(), 6, "{problems}");
    }

    #[test]
    fn foreign_variables_only_warn() {
        let loaded =
            load_all("", &[("FULCRUM_SERVICE_HOST", "10.0.0.1"), ("PATH", "/bin")], &[]).expect("valid");
        assert_eq!(loaded.warnings, ["FULCRUM_SERVICE_HOST is not a setting and is ignored"]);
    }

    #[test]
    fn an_empty_text_unsets() {
        let loaded = load_all("advertise = \"lb:1\"", &[("FULCRUM_ADVERTISE", "")], &[]).expect("valid");
        assert_eq!(loaded.config.host.advertise, None);
    }
}
