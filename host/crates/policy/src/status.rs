//! What the admin API, the CLI and the metrics show about policies.

use serde::Serialize;

use crate::failure::Outcome;
use crate::tally::Line;

/// Where a policy's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Compiled into the host.
    Embedded,
    /// A file in the policies folder.
    File,
    /// The version that served last, kept by the host: the file in the folder is refused.
    LastGood,
}

/// How a policy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It serves a role.
    Live,
    /// It is loaded and proven, but no role is bound to it.
    Ready,
    /// It is compiled in and has not been needed yet.
    Available,
    /// It serves a role, but its breaker is open: the fallback decides.
    Open,
    /// It kept failing and is not used until its file changes.
    Quarantined,
    /// There is a file, but it was refused and no good version of that name exists.
    Refused,
}

/// Why the newest file of a policy is not in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Stable name of the kind of problem, for example `precompiled`.
    pub code: String,
    /// What is wrong and what to do.
    pub message: String,
    /// Digest of the refused file, empty if it could not be read.
    pub digest: String,
}

/// One policy name.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Name: that of the file without `.wasm`, or of the embedded policy.
    pub name: String,
    /// Whether and how it is used.
    pub state: State,
    /// Where the version in use comes from.
    pub source: Source,
    /// Lower-case hex sha256 of the version in use, empty if there is none.
    pub digest: String,
    /// Version the policy says it has.
    pub version: String,
    /// One sentence the policy says about itself.
    pub summary: String,
    /// Roles its exports offer: `scoring`, `claiming`.
    pub roles: Vec<String>,
    /// Roles bound to it.
    pub bound: Vec<String>,
    /// Effective configuration.
    pub config: serde_json::Value,
    /// Size of the component in bytes.
    pub size_bytes: u64,
    /// Time from noticing this version to having it proven, in milliseconds.
    pub load_ms: u64,
    /// Its last failure in service, as `outcome: text`.
    pub last_failure: Option<String>,
    /// Why the newest file is not in use.
    pub problem: Option<Problem>,
    /// Scoring decisions per outcome since the host started, all versions of this name.
    pub decisions: std::collections::BTreeMap<&'static str, u64>,
    /// Claim plans per outcome since the host started, all versions of this name.
    pub plans: std::collections::BTreeMap<&'static str, u64>,
}

/// Which policy serves what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bindings {
    /// Name of the policy that serves scoring.
    pub scoring: String,
    /// Name of the policy that plans for groups without one of their own.
    pub claiming: String,
    /// Names of the policies that plan for single groups.
    pub groups: std::collections::BTreeMap<String, String>,
}

/// Changes of the bindings; what is `None` or not named stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebind {
    /// The policy that serves scoring.
    pub scoring: Option<String>,
    /// The policy that plans for groups without one of their own.
    pub claiming: Option<String>,
    /// Policies of single groups; `None` removes a group's own one.
    pub groups: std::collections::BTreeMap<String, Option<String>>,
}

/// What one reconcile did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Names whose version or configuration changed.
    pub changed: Vec<String>,
    /// Names whose newest file was refused, with the reason.
    pub refused: Vec<(String, String)>,
    /// Names with a file that is still being written.
    pub waiting: Vec<String>,
    /// Why the folder could not be read; nothing changed then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Counts of what the policies folder brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reloads {
    /// Versions or configurations that came into use or went out of it.
    pub changed: u64,
    /// Files that were refused.
    pub refused: u64,
}

/// Returns a zeroed map of decisions or plans per outcome.
#[must_use]
pub fn no_decisions() -> std::collections::BTreeMap<&'static str, u64> {
    Outcome::ALL.iter().map(|outcome| (outcome.name(), 0)).collect()
}

/// Adds what was counted for one version.
pub(crate) fn count(counts: &mut std::collections::BTreeMap<&'static str, u64>, line: &Line) {
    for (outcome, count) in Outcome::ALL.iter().zip(line.outcomes) {
        *counts.entry(outcome.name()).or_default() += count;
    }
}
