//! What the admin API, the CLI and the metrics show about policies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::failure::Outcome;
use crate::reload::life::Gone;
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
    /// There is a file that is still to be proven, and no good version of that name.
    Proving,
    /// There is a file, but it was refused and no good version of that name exists.
    Refused,
    /// There is nothing but a candidate.
    Candidate,
    /// It was removed; versions to return to are kept.
    Removed,
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

/// A version that waits for its promotion.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// Lower-case hex sha256 of its component.
    pub digest: String,
    /// Version it says it has.
    pub version: String,
    /// Its configuration.
    pub config: serde_json::Value,
    /// When it was pushed, or taken out of service; milliseconds since 1970.
    pub at: u64,
    /// What keeps it from being used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// That it served already and was taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_back: Option<TakenBack>,
}

/// That the host took a version back by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenBack {
    /// How it failed.
    pub reason: String,
    /// When, in milliseconds since 1970.
    pub at: u64,
}

/// What made a version come into use, or leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// A promotion.
    Promoted,
    /// A push straight into use.
    Pushed,
    /// A file in the policies folder.
    Dropped,
    /// Its file was removed.
    Removed,
    /// A rollback by hand.
    RolledBack,
    /// The host took it back: it failed on trial.
    TakenBack,
    /// The host took back what had replaced it.
    Returned,
    /// It kept failing.
    Quarantined,
}

/// Why a version is not in use any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Left {
    /// What made it leave: the way its successor came, where there is one.
    pub by: Way,
    /// More about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When, in milliseconds since 1970.
    pub at: u64,
}

/// A version that can be returned to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// Lower-case hex sha256 of its component.
    pub digest: String,
    /// Version it says it has; empty if a former release kept it.
    pub version: String,
    /// Its configuration.
    pub config: serde_json::Value,
    /// Whether the component is the one compiled into the host.
    pub embedded: bool,
    /// Whether it is in use.
    pub in_use: bool,
    /// When it came into use last, in milliseconds since 1970; `None` if that is not known.
    pub at: Option<u64>,
    /// How it came into use last, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub came_by: Option<Way>,
    /// Why it is not in use any more, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<Left>,
}

/// How a promotion stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PromotionState {
    /// The version serves, on trial.
    Running,
    /// It has stood the trial.
    Passed,
    /// The host took it back, because it failed.
    Returned,
    /// Somebody took it back.
    RolledBack,
    /// Something else came into use before the end.
    Superseded,
}

impl PromotionState {
    /// Returns the word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Passed => "passed",
            Self::Returned => "returned",
            Self::RolledBack => "rolled-back",
            Self::Superseded => "superseded",
        }
    }
}

/// How much a version on trial may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Allowance {
    /// Most failures among its first `decisions`.
    pub failures_max: u32,
    /// Decisions or plans after which the trial is over.
    pub decisions: u32,
}

/// What served before a promotion.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Former {
    /// Digest of the component the name had; `None` if the version is the same or there was no file.
    pub digest: Option<String>,
    /// Its configuration, if there was a file.
    pub config: Option<serde_json::Value>,
    /// What was bound otherwise.
    pub bindings: Rebind,
    /// What of it has no version in use now, and what becomes of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The last promotion of a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Promotion {
    /// How it stands.
    pub state: PromotionState,
    /// Digest of the version that was promoted.
    pub digest: String,
    /// Its configuration.
    pub config: serde_json::Value,
    /// What it may fail.
    pub budget: Allowance,
    /// Decisions and plans it was asked for, while on trial.
    pub asked: u32,
    /// How many of them failed.
    pub failed: u32,
    /// What is returned to.
    pub from: Former,
    /// Why it ended, unless it stood the trial.
    pub reason: Option<String>,
    /// When it began, or ended; milliseconds since 1970.
    pub at: u64,
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
    pub decisions: BTreeMap<&'static str, u64>,
    /// Claim plans per outcome since the host started, all versions of this name.
    pub plans: BTreeMap<&'static str, u64>,
    /// A version that waits for its promotion.
    pub candidate: Option<Candidate>,
    /// Versions that can be returned to, the latest in use first.
    pub versions: Vec<Kept>,
    /// The last promotion.
    pub promotion: Option<Promotion>,
    /// Share of the clients that the canary of this name decides for.
    pub canary: Option<CanaryStatus>,
}

/// How a canary is doing.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CanaryStatus {
    /// Share of the clients it decides for, 0.0 once it was taken out.
    pub share: f64,
    /// Digest of its component.
    pub digest: String,
    /// Its configuration.
    pub config: serde_json::Value,
    /// Decisions it was asked for since its budget began anew.
    pub asked: u32,
    /// How many of them failed.
    pub failed: u32,
    /// Why it was taken out.
    pub reason: Option<String>,
}

/// A second version that decides for a share of the clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// Name of the policy: its candidate decides if there is one, else the version in use.
    pub policy: String,
    /// Share of the clients, above 0.0 and at most 1.0.
    pub share: f64,
}

/// Which policy serves what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bindings {
    /// Name of the policy that serves scoring.
    pub scoring: String,
    /// Name of the policy that plans for groups without one of their own.
    pub claiming: String,
    /// Names of the policies that plan for single groups.
    pub groups: BTreeMap<String, String>,
    /// Who decides for a share of the clients.
    pub canary: Option<Canary>,
}

impl Bindings {
    /// Returns what is bound to a policy: `scoring`, `claiming`, `group:NAME`; the canary is no role.
    #[must_use]
    pub fn roles_of(&self, name: &str) -> Vec<String> {
        let groups = self.groups.iter().filter(|(_, policy)| *policy == name);
        [("scoring", &self.scoring), ("claiming", &self.claiming)]
            .into_iter()
            .filter(|(_, policy)| *policy == name)
            .map(|(role, _)| role.to_owned())
            .chain(groups.map(|(group, _)| format!("group:{group}")))
            .collect()
    }

    /// Returns the present values of what a change would make another one; the canary is left out.
    pub(crate) fn difference(&self, rebind: &Rebind) -> Rebind {
        let other = |now: &String, next: &Option<String>| {
            next.as_ref().filter(|next| *next != now).map(|_| now.clone())
        };
        let groups =
            rebind.groups.iter().filter(|(group, policy)| self.groups.get(*group) != policy.as_ref());
        Rebind {
            scoring: other(&self.scoring, &rebind.scoring),
            claiming: other(&self.claiming, &rebind.claiming),
            groups: groups.map(|(group, _)| (group.clone(), self.groups.get(group).cloned())).collect(),
            canary: None,
        }
    }

    /// Changes what a change names.
    pub(crate) fn apply(&mut self, rebind: &Rebind) {
        if let Some(name) = &rebind.scoring {
            self.scoring.clone_from(name);
        }
        if let Some(name) = &rebind.claiming {
            self.claiming.clone_from(name);
        }
        for (group, name) in &rebind.groups {
            match name {
                Some(name) => drop(self.groups.insert(group.clone(), name.clone())),
                None => drop(self.groups.remove(group)),
            }
        }
        if let Some(canary) = &rebind.canary {
            self.canary.clone_from(canary);
        }
    }
}

/// Changes of the bindings; what is `None` or not named stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rebind {
    /// The policy that serves scoring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scoring: Option<String>,
    /// The policy that plans for groups without one of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claiming: Option<String>,
    /// Policies of single groups; `None` removes a group's own one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, Option<String>>,
    /// Who decides for a share of the clients; `Some(None)` is nobody.
    #[serde(skip)]
    pub canary: Option<Option<Canary>>,
}

impl Rebind {
    /// Returns the policies whose versions in use are bound; a name may come more than once.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &str> {
        let names = self.scoring.iter().chain(&self.claiming).chain(self.groups.values().flatten());
        names.map(String::as_str)
    }

    /// Leaves out what another change names.
    pub(crate) fn forget(&mut self, other: &Self) {
        if other.scoring.is_some() {
            self.scoring = None;
        }
        if other.claiming.is_some() {
            self.claiming = None;
        }
        self.groups.retain(|group, _| !other.groups.contains_key(group));
    }

    /// Says whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
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
    /// Why the folder could not be read, or that the task does not answer; nothing changed then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether it is the task that does not answer.
    #[serde(skip)]
    pub gone: Option<Gone>,
}

impl Report {
    /// Makes that of a look that did not take place.
    pub(crate) fn gone(gone: Gone) -> Self {
        Self { error: Some(gone.to_string()), gone: Some(gone), ..Self::default() }
    }
}

/// Whether the task that decides which versions are in use does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    /// It takes orders and looks at the folder.
    Running,
    /// It is gone for good: what serves goes on serving, but nothing changes any more until the host is restarted.
    Crashed,
    /// The host was told to stop.
    Stopped,
}

/// How that task is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatus {
    /// Whether it runs.
    pub state: TaskState,
    /// Pieces of its work that crashed since the host started; it went on with the next one.
    pub crashes: u64,
    /// When the last one did, in milliseconds since 1970.
    pub last_crash_at: Option<u64>,
    /// Names with a file that is still to be proven.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub proving: Vec<String>,
}

/// How often promotions and canaries ended, by how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Promotions that stood their trial.
    pub passed: u64,
    /// Promotions that the host took back.
    pub returned: u64,
    /// Promotions that were rolled back by hand.
    pub rolled_back: u64,
    /// Promotions that something else overtook.
    pub superseded: u64,
    /// Canaries that were taken out because they failed.
    pub canaries_returned: u64,
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
pub fn no_decisions() -> BTreeMap<&'static str, u64> {
    Outcome::ALL.iter().map(|outcome| (outcome.name(), 0)).collect()
}

/// Adds what was counted for one version.
pub(crate) fn count(counts: &mut BTreeMap<&'static str, u64>, line: &Line) {
    for (outcome, count) in Outcome::ALL.iter().zip(line.outcomes) {
        *counts.entry(outcome.name()).or_default() += count;
    }
}
