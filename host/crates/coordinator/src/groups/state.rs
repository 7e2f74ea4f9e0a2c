//! One group's state with its schedule: when the next cycle is due and what the last one did.
//!
//! Synchronous and deterministic: time is an argument, storing and telling are the caller's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::claiming::Reason;
use fulcrum_core::group::{Facts, Group, Moving, Orders, Place, Settings, Snapshot, Step};
use fulcrum_core::time::Timestamp;
use fulcrum_core::{group, seed};
use fulcrum_policy::fallback;
use fulcrum_policy::planner::{Planned, Wish};
use fulcrum_policy::seat::Identity;
use serde_json::Value;

use super::story::{Origin, Stories, Story};

/// What a group is set to.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its own policy; `None` is what the bindings say.
    pub policy: Option<String>,
    /// JSON merge patch over the policy's configuration.
    pub config: Value,
    /// How it behaves.
    pub settings: Settings,
    /// Shortest time to the next cycle a plan may ask for.
    pub fast_interval: Duration,
    /// How long joins are gathered before a cycle runs.
    pub gather: Duration,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            policy: None,
            config: Value::Object(serde_json::Map::new()),
            settings: Settings::default(),
            fast_interval: Duration::from_secs(1),
            gather: Duration::from_millis(100),
        }
    }
}

/// Changes of a [`Spec`]; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of Spec and of core's group settings")]
pub struct SpecPatch {
    pub policy: Option<Option<String>>,
    pub config: Option<Value>,
    pub interval: Option<Duration>,
    pub fast_interval: Option<Duration>,
    pub gather: Option<Duration>,
    pub ownership_expiry: Option<Duration>,
    pub handover: Option<group::Handover>,
    pub handover_deadline: Option<Duration>,
    pub movement_budget: Option<Option<u32>>,
    pub grace: Option<Duration>,
    pub start: Option<group::Start>,
}

impl SpecPatch {
    /// Returns the spec with these changes.
    #[must_use]
    pub fn apply(self, mut spec: Spec) -> Spec {
        fn set<T>(target: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *target = value;
            }
        }
        set(&mut spec.policy, self.policy);
        set(&mut spec.config, self.config);
        set(&mut spec.fast_interval, self.fast_interval);
        set(&mut spec.gather, self.gather);
        let settings = &mut spec.settings;
        set(&mut settings.interval, self.interval);
        set(&mut settings.ownership_expiry, self.ownership_expiry);
        set(&mut settings.handover, self.handover);
        set(&mut settings.handover_deadline, self.handover_deadline);
        set(&mut settings.movement_budget, self.movement_budget);
        set(&mut settings.grace, self.grace);
        set(&mut settings.start, self.start);
        spec
    }
}

/// What a member is told, with how long it may be silent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// What to read and what to give up.
    pub orders: Orders,
    /// Its time to live: without a heartbeat for longer it is lost.
    pub ttl: Duration,
}

/// What an operator should know about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What it is about.
    pub kind: WarningKind,
    /// It in words, one line.
    pub text: String,
}

/// What a [`Warning`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WarningKind {
    /// Times that do not fit together.
    Settings,
    /// Live members subscribe to different topics.
    Subscriptions,
    /// A member reports partitions it was not given.
    Ownership,
    /// The policy gave no plan: the fallback planned.
    Policy,
}

impl WarningKind {
    /// Every kind with its name in metrics.
    pub const WORDS: [(Self, &'static str); 4] = [
        (Self::Settings, "settings"),
        (Self::Subscriptions, "subscriptions"),
        (Self::Ownership, "ownership"),
        (Self::Policy, "policy"),
    ];
}

/// How much there is of a group, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Counts {
    pub members_live: usize,
    pub members_kept: usize,
    pub partitions_owned: usize,
    pub partitions_moving: usize,
    pub partitions_free: usize,
    /// Kinds of its present warnings.
    pub warnings: BTreeSet<WarningKind>,
}

/// What one cycle did.
#[derive(Clone, Debug, PartialEq)]
pub struct CycleReport {
    /// Why it ran.
    pub reason: Reason,
    /// When its plan was committed.
    pub at: Timestamp,
    /// Which policy version planned; `None` is the fallback.
    pub by: Option<Arc<Identity>>,
    /// Why the policy gave no plan.
    pub problem: Option<String>,
    /// Partitions that get another owner.
    pub claims: Vec<Moved>,
    /// How many of them had an owner before.
    pub moved: usize,
    /// How many partitions stayed with their owner, or on their way.
    pub kept: usize,
    /// Time the plan took, in microseconds.
    pub took_us: u64,
}

/// One partition that gets another owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Which.
    pub place: Place,
    /// Who had it.
    pub from: Option<String>,
    /// Who gets it; `None` when it was given up.
    pub to: Option<String>,
    /// Why, in the policy's words.
    pub reason: String,
}

/// A group as people see it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of the group view in docs/HTTP.md")]
pub struct View {
    pub group: String,
    pub spec: Spec,
    pub revision: u64,
    pub members: Vec<MemberView>,
    pub partitions: Vec<PartitionView>,
    /// One per partition, same order.
    pub stories: Vec<Story>,
    pub last_cycle: Option<CycleReport>,
    pub warnings: Vec<Warning>,
}

/// One member as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the group view in docs/HTTP.md")]
pub struct MemberView {
    pub id: String,
    pub live: bool,
    pub topics: Vec<String>,
    pub seen_ms_ago: u64,
    pub disagrees_on: Vec<Place>,
}

/// One partition as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the group view in docs/HTTP.md")]
pub struct PartitionView {
    pub place: Place,
    pub owner: Option<String>,
    pub epoch: u64,
    pub moving: Option<Moving>,
    pub checkpoint: Option<u64>,
    pub reason: String,
}

/// See the module.
#[derive(Debug)]
pub struct State {
    /// Its name.
    pub name: String,
    /// Members and ownership.
    pub group: Group,
    /// What it is set to.
    pub spec: Spec,
    /// What the last cycle did.
    pub last_cycle: Option<CycleReport>,
    /// What is known of the partitions of its topics.
    facts: BTreeMap<String, Facts>,
    /// How partitions came to whom they belong.
    stories: Stories,
    /// The newest version that was seen; it stays while its policy cannot be used.
    version: Option<Arc<Identity>>,
    /// Whether anybody looked for a version yet.
    is_version_known: bool,
    /// `version` when the present plan was begun.
    begun_with: Option<Arc<Identity>>,
    version_changes: u64,
    due: Option<(Timestamp, Reason)>,
    boot_seed: u64,
    cycles: u64,
}

impl State {
    /// Makes the state of a group that has no members.
    #[must_use]
    pub fn new(name: &str, spec: Spec, boot_seed: u64) -> Self {
        Self {
            name: name.to_owned(),
            group: Group::new(spec.settings.clone()),
            spec,
            last_cycle: None,
            facts: BTreeMap::new(),
            stories: Stories::default(),
            version: None,
            is_version_known: false,
            begun_with: None,
            version_changes: 0,
            due: None,
            boot_seed,
            cycles: 0,
        }
    }

    /// Changes what the group is set to, and plans with it soon.
    pub fn configure(&mut self, spec: Spec, now: Timestamp) {
        let replans = spec.policy != self.spec.policy || spec.config != self.spec.config;
        self.group.settings = spec.settings.clone();
        self.spec = spec;
        if replans {
            self.want(Reason::Config, now);
        }
        // A shorter interval does not wait for the end of the longer one.
        let next = now.after(self.spec.settings.interval);
        if self.due.is_some_and(|(due, _)| next < due) {
            self.due = Some((next, Reason::Interval));
        }
    }

    /// Returns when the next planned cycle is due and why, to be put back with [`set_due`](Self::set_due).
    #[must_use]
    pub fn due(&self) -> Option<(Timestamp, Reason)> {
        self.due
    }

    /// Forgets what was wanted since: it is a part of something that has a reason of its own.
    pub fn set_due(&mut self, due: Option<(Timestamp, Reason)>) {
        self.due = due;
    }

    /// Notes that a cycle should run, after the gathering time. The earliest wish and its reason win.
    pub fn want(&mut self, reason: Reason, now: Timestamp) {
        let at = match reason {
            Reason::Manual => now,
            _ => now.after(self.spec.gather),
        };
        if self.due.is_none_or(|(due, _)| at < due) {
            self.due = Some((at, reason));
        }
    }

    /// Takes over what a step asks for.
    pub fn follow(&mut self, step: &Step, now: Timestamp) {
        if let Some(reason) = step.cycle {
            self.want(reason, now);
        }
    }

    /// Notes what is known of a topic's partitions; the group plans with it soon if that is something else.
    pub fn facts_are(&mut self, topic: &str, facts: Facts, now: Timestamp) {
        let is_nothing = facts == Facts::default();
        let is_same = match self.facts.get(topic) {
            Some(known) => *known == facts,
            None => is_nothing,
        };
        if is_same {
            return;
        }
        if is_nothing {
            self.facts.remove(topic);
        } else {
            self.facts.insert(topic.to_owned(), facts);
        }
        if self.group.knows(topic) {
            self.want(Reason::Partitions, now);
        }
    }

    /// Notes which version is bound now, `None` if it cannot be used; the group plans with another one soon.
    pub fn version_is(&mut self, version: Option<Arc<Identity>>, now: Timestamp) {
        if let Some(reason) = self.note(version) {
            self.want(reason, now);
        }
    }

    /// Returns how often the version that plans became another one: component, name or configuration.
    #[must_use]
    pub fn version_changes(&self) -> u64 {
        self.version_changes
    }

    /// Remembers a version, and counts it if another one was there before; returns what is different.
    fn note(&mut self, version: Option<Arc<Identity>>) -> Option<Reason> {
        let was_known = std::mem::replace(&mut self.is_version_known, true);
        let version = version?;
        let changed = match &self.version {
            Some(before) if version.digest != before.digest || version.name != before.name => {
                Some(Reason::Policy)
            }
            Some(before) if version.config != before.config => Some(Reason::Config),
            Some(_) => None,
            // It could not be used until now; at the first look there is nothing to compare with.
            None => was_known.then_some(Reason::Policy),
        };
        self.version_changes += u64::from(changed.is_some());
        self.version = Some(version);
        changed
    }

    /// Returns when something has to be done although nothing happens.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.group.next_expiry().into_iter().chain(self.due.map(|(at, _)| at)).min()
    }

    /// Returns the snapshot of a cycle that is due; the cycle counts as begun.
    pub fn begin_cycle(&mut self, now: Timestamp) -> Option<Snapshot> {
        let (at, reason) = self.due?;
        if now < at {
            return None;
        }
        self.due = None;
        self.cycles += 1;
        let seed = seed::decision(self.boot_seed, self.cycles);
        let snapshot = self.group.snapshot(&self.name, reason, now, seed, |topic| self.facts.get(topic));
        // Without members there is nothing to plan; a join asks again.
        if snapshot.members.is_empty() {
            return None;
        }
        self.begun_with.clone_from(&self.version);
        Some(snapshot)
    }

    /// Returns what the group wants to be planned by.
    #[must_use]
    pub fn wish(&self) -> Wish {
        Wish { policy: self.spec.policy.clone(), config: self.spec.config.clone() }
    }

    /// Commits a plan and schedules the next cycle; a plan for a group that changed meanwhile is made again at once.
    pub fn end_cycle(&mut self, snapshot: &Snapshot, planned: Planned, took_us: u64, now: Timestamp) -> Step {
        let Planned { plan, by, asked, problem, .. } = planned;
        // What was seen since the plan was begun is newer than what planned.
        if self.begun_with == self.version {
            self.note(asked);
        }
        let reason = snapshot.cycle.reason;
        let moved: Vec<_> = self.moves(snapshot, &plan);
        let Some(step) = self.group.commit(snapshot, &plan, now) else {
            self.due = Some((now, reason));
            return Step::default();
        };
        self.remember(&moved, reason, by.as_ref(), now);
        let settings = &self.spec.settings;
        let next = match plan.next_cycle_ms {
            Some(ms) => (Duration::from_millis(ms.into()).max(self.spec.fast_interval), Reason::Fast),
            None => (settings.interval, Reason::Interval),
        };
        let next = if next.0 < settings.interval { next } else { (settings.interval, Reason::Interval) };
        let at = now.after(next.0);
        if self.due.is_none_or(|(due, _)| at < due) {
            self.due = Some((at, next.1));
        }
        // A quiet cycle does not hide what the last change was for, unless that went wrong and this one did not.
        let is_quiet = moved.is_empty() && matches!(reason, Reason::Interval | Reason::Fast);
        let is_over = self.last_cycle.as_ref().is_none_or(|last| last.problem.is_some());
        if !is_quiet || is_over || problem.is_some() {
            let had_owner = moved.iter().filter(|claim| claim.from.is_some()).count();
            let owned = snapshot.cycle.owner.iter().filter(|&&owner| owner >= 0).count();
            self.last_cycle = Some(CycleReport {
                reason,
                at: now,
                by,
                problem,
                claims: moved,
                moved: had_owner,
                kept: owned.saturating_sub(had_owner),
                took_us,
            });
        }
        step
    }

    /// Notes how partitions come to whom a plan gives them.
    fn remember(&mut self, moved: &[Moved], reason: Reason, by: Option<&Arc<Identity>>, now: Timestamp) {
        for Moved { place, from, to, reason: words } in moved {
            let Some(partition) = self.group.partitions.get(place) else { continue };
            let origin = Origin {
                reason,
                at: now,
                by: by.cloned(),
                from: from.clone(),
                to: to.clone(),
                words: words.clone(),
            };
            self.stories.planned(place, origin, partition);
        }
        self.stories.keep_only(&self.group.partitions);
    }

    fn weight(&self, place: &Place) -> f64 {
        let known = self.facts.get(&place.topic);
        known.and_then(|known| known.weights.get(place.partition as usize)).copied().unwrap_or(1.0)
    }

    fn moves(&self, snapshot: &Snapshot, plan: &fulcrum_core::claiming::Plan) -> Vec<Moved> {
        let owner = |place: &Place| self.group.partitions.get(place).and_then(|at| at.owner.clone());
        let claims = plan.claims.iter().map(|claim| {
            let place = snapshot.places[claim.partition].clone();
            let to = Some(snapshot.members[claim.member].clone());
            Moved { from: owner(&place), place, to, reason: claim.reason.clone() }
        });
        let releases = plan.releases.iter().map(|&released| {
            let place = snapshot.places[released].clone();
            Moved { from: owner(&place), place, to: None, reason: "released by the policy".to_owned() }
        });
        claims.chain(releases).collect()
    }

    /// Returns what a member is told now.
    #[must_use]
    pub fn told(&self, member: &str) -> Told {
        let ttl = self.group.members.get(member).map(|found| self.group.ttl(found));
        Told { orders: self.group.orders(member), ttl: ttl.unwrap_or(self.group.settings.ownership_expiry) }
    }

    /// Counts what is there.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for member in self.group.members.values() {
            if member.kept_until.is_some() {
                counts.members_kept += 1;
                continue;
            }
            counts.members_live += 1;
        }
        for partition in self.group.partitions.values() {
            match (&partition.owner, &partition.moving) {
                (None, _) => counts.partitions_free += 1,
                (Some(_), None) => counts.partitions_owned += 1,
                (Some(_), Some(_)) => counts.partitions_moving += 1,
            }
        }
        counts.warnings = self.warnings().into_iter().map(|warning| warning.kind).collect();
        counts
    }

    /// Shows the group.
    #[must_use]
    pub fn view(&self, now: Timestamp) -> View {
        let member = |(id, member): (&String, &group::Member)| MemberView {
            id: id.clone(),
            live: member.kept_until.is_none(),
            topics: member.topics.clone(),
            seen_ms_ago: fulcrum_core::time::millis(now.since(member.seen_at)),
            disagrees_on: member.disagrees_on.iter().cloned().collect(),
        };
        let partition = |(place, at): (&Place, &group::Partition)| PartitionView {
            place: place.clone(),
            owner: at.owner.clone(),
            epoch: at.epoch,
            moving: at.moving.clone(),
            checkpoint: at.checkpoint,
            reason: at.reason.clone(),
        };
        let story = |(place, at): (&Place, &group::Partition)| self.stories.of(place, at, self.weight(place));
        View {
            group: self.name.clone(),
            spec: self.spec.clone(),
            revision: self.group.revision,
            members: self.group.members.iter().map(member).collect(),
            partitions: self.group.partitions.iter().map(partition).collect(),
            stories: self.group.partitions.iter().map(story).collect(),
            last_cycle: self.last_cycle.clone(),
            warnings: self.warnings(),
        }
    }

    /// Returns what an operator should know.
    fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut warn = |kind, text| warnings.push(Warning { kind, text });
        let settings = &self.spec.settings;
        if settings.ownership_expiry < settings.interval * 2 {
            let text =
                "ownershipExpiryMs is below twice the interval: one late heartbeat may move partitions";
            warn(WarningKind::Settings, text.to_owned());
        }
        let mut live = self.group.members.iter().filter(|(_, member)| member.kept_until.is_none());
        if let Some((first, member)) = live.next() {
            let others: Vec<_> =
                live.filter(|(_, other)| other.topics != member.topics).map(|(id, _)| id.as_str()).collect();
            if !others.is_empty() {
                let others = others.join(", ");
                let text = format!("subscriptions differ: {first} and {others} read different topics");
                warn(WarningKind::Subscriptions, text);
            }
        }
        for (id, member) in &self.group.members {
            if !member.disagrees_on.is_empty() {
                let count = member.disagrees_on.len();
                let text = format!("{id} reports {count} partitions that it was not given");
                warn(WarningKind::Ownership, text);
            }
        }
        if let Some(CycleReport { problem: Some(problem), .. }) = &self.last_cycle {
            let text = format!("the policy gave no plan, the {} planned: {problem}", fallback::NAME);
            warn(WarningKind::Policy, text);
        }
        warnings
    }
}
