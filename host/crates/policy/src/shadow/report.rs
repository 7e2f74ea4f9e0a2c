//! What a shadow shows: the counts of each target, times, and examples of divergence with their reasons.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::Scope;

/// Whether a shadow goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It compares.
    Running,
    /// The candidate kept failing, so it ended itself.
    Failed,
    /// It was ended.
    Ended,
}

/// A shadow without what it found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Name of the policy.
    pub name: String,
    /// Lower-case hex sha256 of the candidate's component.
    pub digest: String,
    /// The candidate's configuration.
    pub config: Value,
    /// Whether the version is (still) the candidate of that name, or in use while there is no candidate.
    pub is_current: bool,
    /// Whether it goes on.
    pub state: State,
    /// When it began, in milliseconds since 1970.
    pub since_ms: u64,
    /// What it answers.
    pub scope: Scope,
}

/// What a shadow found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the policy.
    pub name: String,
    /// Lower-case hex sha256 of the candidate's component.
    pub digest: String,
    /// The candidate's configuration.
    pub config: Value,
    /// Whether the version is (still) the candidate of that name, or in use while there is no candidate. If not, the
    /// report is one of a former candidate.
    pub is_current: bool,
    /// Whether it goes on.
    pub state: State,
    /// Why it ended itself, or that its version was promoted.
    pub reason: Option<String>,
    /// When it began, in milliseconds since 1970.
    pub since_ms: u64,
    /// What it answers.
    pub scope: Scope,
    /// Decisions and plans that wait for it.
    pub waiting: usize,
    /// The scoring role, if it answers that.
    pub scoring: Option<ScoringReport>,
    /// The claiming role by group, the first 64 groups it met.
    pub groups: BTreeMap<String, GroupReport>,
    /// All other groups together.
    pub other_groups: Option<GroupReport>,
}

/// Counts of one target. `compared` is `same` and `different` together; what failed, was dropped or was up to the very
/// version is in none of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Compared {
    /// Both answered.
    pub compared: u64,
    /// They agree.
    pub same: u64,
    /// They do not.
    pub different: u64,
    /// The candidate gave no usable answer, by outcome; `refused` is a configuration of a group it does not take.
    pub failed: BTreeMap<&'static str, u64>,
    /// The last such answer, as `outcome: text`.
    pub last_failure: Option<String>,
    /// Not compared: the shadow did not keep up, or ended first.
    pub dropped: u64,
    /// Not compared: the decision was up to this very version.
    pub itself: u64,
    /// Time of one answer.
    pub time: Sides<Percentiles>,
    /// The live versions it was compared with, the latest last; older ones are added up by name with an empty digest.
    pub versions: Vec<Version>,
}

/// The same of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sides<T> {
    /// Of the live version.
    pub live: T,
    /// Of the candidate.
    pub candidate: T,
}

/// Times in microseconds, exact to a sixteenth; `None` without any. Those of the live version are spans of the clock,
/// those of the candidate processor time where the system tells: its thread has to wait for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Percentiles {
    /// Half of them take no longer.
    pub p50_us: Option<f64>,
    /// 99 of 100 take no longer.
    pub p99_us: Option<f64>,
}

/// What was compared with one live version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// Name of the policy that decided; `fallback` is the host itself.
    pub policy: String,
    /// Its digest, empty for the fallback.
    pub digest: String,
    /// Its configuration, a group's own included.
    pub config: Value,
    /// They agree.
    pub same: u64,
    /// They do not.
    pub different: u64,
    /// The candidate gave no usable answer.
    pub failed: u64,
}

/// The scoring role.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScoringReport {
    /// Counts and times.
    #[serde(flatten)]
    pub counts: Compared,
    /// Requests that would go elsewhere: the first 8, then each time their number doubled.
    pub examples: Vec<ScoringExample>,
}

/// A request that would go elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScoringExample {
    /// Which of the differences it was, from 1.
    pub number: u64,
    /// What was asked.
    pub request: Asked,
    /// What was decided.
    pub live: ScoringSide,
    /// What the candidate would have decided.
    pub candidate: ScoringSide,
}

/// What was asked, by instance ids.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// The client's name.
    pub client_id: String,
    /// Instances not to choose.
    pub avoid: Vec<String>,
    /// Sessions the client had, by instance.
    pub sessions: BTreeMap<String, u32>,
    /// The client's traffic towards the hosts, in bytes per second.
    pub inflow: f64,
    /// The other direction.
    pub outflow: f64,
    /// Time of the decision, in milliseconds since 1970.
    pub now_ms: u64,
    /// Chance of the decision, decimal.
    pub seed: String,
}

/// One side of an example.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoringSide {
    /// Name of the policy that decided; `fallback` is the host itself.
    pub policy: String,
    /// Its digest, empty for the fallback.
    pub digest: String,
    /// The instance it chose.
    pub instance_id: String,
    /// What it says that costs; infinite ones are `null` in JSON.
    pub score: f64,
    /// What it says both choices cost and why: its own first, then the other one's. Empty if it does not say.
    pub explained: Vec<Explained>,
    /// Why there is no explanation.
    pub unexplained: Option<String>,
}

/// What one instance costs and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    /// The instance.
    pub instance_id: String,
    /// What it costs.
    pub score: f64,
    /// Named terms.
    pub parts: BTreeMap<String, f64>,
}

/// The claiming role for one group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupReport {
    /// Counts and times; a cycle counts as the same if every partition would have the same owner.
    #[serde(flatten)]
    pub counts: Compared,
    /// Owned partitions whose owner the plans change or take away, all cycles that were compared.
    pub moves: Sides<u64>,
    /// How the group would stand after the last cycle that was compared.
    pub after: Sides<After>,
    /// Cycles that would end otherwise: the first 8, then each time their number doubled.
    pub examples: Vec<ClaimExample>,
}

/// How a group stands after a plan, hand-overs done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct After {
    /// Most partitions of a member less the fewest.
    pub spread: u64,
    /// Partitions without an owner.
    pub free: u64,
}

/// A cycle that would end otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimExample {
    /// Which of the differences it was, from 1.
    pub number: u64,
    /// Name of the group.
    pub group: String,
    /// Why the cycle ran.
    pub reason: String,
    /// Time of the cycle, in milliseconds since 1970.
    pub now_ms: u64,
    /// Chance of the cycle, decimal.
    pub seed: String,
    /// Members of the group.
    pub members: usize,
    /// Partitions of the group.
    pub partitions: usize,
    /// What was planned.
    pub live: PlanSide,
    /// What the candidate would have planned.
    pub candidate: PlanSide,
    /// Partitions with different owners, by place in the cycle, the first 16.
    pub elsewhere: Vec<Elsewhere>,
    /// How many there are together.
    pub elsewhere_count: usize,
}

/// One side of an example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanSide {
    /// Name of the policy that planned; `fallback` is the host itself.
    pub policy: String,
    /// Its digest, empty for the fallback.
    pub digest: String,
    /// Owned partitions whose owner it changes or takes away.
    pub moves: u64,
    /// How the group stands after it.
    #[serde(flatten)]
    pub after: After,
}

/// A partition that would have another owner; `None` is nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Elsewhere {
    /// Topic of the partition.
    pub topic: String,
    /// Its number in the topic.
    pub partition: u32,
    /// Who owned it.
    pub owner: Option<String>,
    /// Who owns it by the live plan.
    pub live: Option<String>,
    /// Why, in the live policy's words; `None` if that plan does not name it.
    pub live_reason: Option<String>,
    /// Who would own it.
    pub candidate: Option<String>,
    /// Why, in the candidate's words.
    pub candidate_reason: Option<String>,
}
