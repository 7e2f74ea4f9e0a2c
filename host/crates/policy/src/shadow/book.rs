//! What a shadow counted. Only its thread writes; readers take copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::Counts;
use super::report::{
    After, ClaimExample, Compared, GroupReport, Percentiles, ScoringExample, ScoringReport, Sides, Version,
};
use super::spread::Spread;
use crate::failure::Failure;
use crate::fallback;
use crate::seat::Identity;

/// Groups kept apart; the others are added up.
pub(super) const GROUPS_MAX: usize = 64;
/// Live versions kept apart in one target.
const VERSIONS_MAX: usize = 16;
/// Differences that all become examples; of later ones each whose number is a power of two.
const EXAMPLES_FIRST: u64 = 8;

/// See the module.
#[derive(Default)]
pub(super) struct Book {
    scoring: Target<ScoringExample>,
    groups: BTreeMap<String, Group>,
    others: Option<Group>,
}

/// What is counted for one question.
struct Target<E> {
    same: u64,
    different: u64,
    itself: u64,
    failed: BTreeMap<&'static str, u64>,
    last_failure: Option<String>,
    live: Spread,
    candidate: Spread,
    versions: Vec<(Option<Arc<Identity>>, Version)>,
    examples: Vec<E>,
}

#[derive(Default)]
struct Group {
    target: Target<ClaimExample>,
    moves: Sides<u64>,
    after: Sides<After>,
}

/// How one comparison came out.
pub(super) enum Verdict<E> {
    Same,
    /// With the example, if this one should become one.
    Different(Option<E>),
    Failed(Mishap),
}

/// Why a candidate gave no usable answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    /// The call failed.
    Failure(Failure),
    /// It does not take a group's own configuration, in words.
    Refused(String),
}

impl Mishap {
    fn name(&self) -> &'static str {
        match self {
            Self::Failure(failure) => failure.outcome().name(),
            Self::Refused(_) => "refused",
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Failure(failure) => failure.to_string(),
            Self::Refused(text) => text.clone(),
        }
    }
}

/// How long both took, in nanoseconds.
pub(super) type Times = Sides<u64>;

impl Book {
    /// Returns the number the next scoring difference has, if it should become an example.
    pub(super) fn next_scoring_example(&self) -> Option<u64> {
        self.scoring.next_example()
    }

    /// The same for a group.
    pub(super) fn next_claim_example(&self, group: &str) -> Option<u64> {
        match self.groups.get(group) {
            Some(group) => group.target.next_example(),
            None if self.groups.len() < GROUPS_MAX => Some(1),
            None => self.others.as_ref().map_or(Some(1), |others| others.target.next_example()),
        }
    }

    pub(super) fn scored(
        &mut self,
        by: Option<&Arc<Identity>>,
        verdict: Verdict<ScoringExample>,
        times: Times,
    ) {
        self.scoring.count(by, verdict, times);
    }

    /// `shape` is there if both planned.
    pub(super) fn claimed(
        &mut self,
        group: &str,
        by: Option<&Arc<Identity>>,
        verdict: Verdict<ClaimExample>,
        times: Times,
        shape: Option<(Sides<u64>, Sides<After>)>,
    ) {
        let group = self.group(group);
        group.target.count(by, verdict, times);
        if let Some((moves, after)) = shape {
            group.moves.live += moves.live;
            group.moves.candidate += moves.candidate;
            group.after = after;
        }
    }

    /// Counts a plan that was up to the very version.
    pub(super) fn planned_itself(&mut self, group: &str) {
        self.group(group).target.itself += 1;
    }

    fn group(&mut self, name: &str) -> &mut Group {
        if self.groups.contains_key(name) || self.groups.len() < GROUPS_MAX {
            self.groups.entry(name.to_owned()).or_default()
        } else {
            self.others.get_or_insert_default()
        }
    }

    /// Adds everything up; what was dropped is not known here.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = self.scoring.counts();
        self.groups.values().chain(&self.others).for_each(|group| counts.add(group.target.counts()));
        counts
    }

    /// `itself` were up to the very version: the thread of the shadow does not see them.
    pub(super) fn scoring(&self, dropped: u64, itself: u64) -> ScoringReport {
        let counts = Compared { itself, ..self.scoring.show(dropped) };
        ScoringReport { counts, examples: self.scoring.examples.clone() }
    }

    /// Returns the groups kept apart and the sum of the others; a group of which all was dropped is there as well.
    pub(super) fn groups(
        &self,
        dropped: &BTreeMap<String, u64>,
    ) -> (BTreeMap<String, GroupReport>, Option<GroupReport>) {
        let of = |name: &str| dropped.get(name).copied().unwrap_or_default();
        let mut groups: BTreeMap<_, _> =
            self.groups.iter().map(|(name, group)| (name.clone(), group.show(of(name)))).collect();
        let mut others_dropped = 0;
        for (name, dropped) in dropped.iter().filter(|(name, _)| !self.groups.contains_key(*name)) {
            if !name.is_empty() && groups.len() < GROUPS_MAX {
                groups.insert(name.clone(), Group::default().show(*dropped));
            } else {
                others_dropped += dropped;
            }
        }
        let none = Group::default();
        let others = self.others.as_ref().or((others_dropped > 0).then_some(&none));
        let others = others.map(|others| others.show(others_dropped));
        (groups, others)
    }
}

impl Group {
    fn show(&self, dropped: u64) -> GroupReport {
        GroupReport {
            counts: self.target.show(dropped),
            moves: self.moves,
            after: self.after,
            examples: self.target.examples.clone(),
        }
    }
}

impl<E> Default for Target<E> {
    fn default() -> Self {
        Self {
            same: 0,
            different: 0,
            itself: 0,
            failed: BTreeMap::new(),
            last_failure: None,
            live: Spread::default(),
            candidate: Spread::default(),
            versions: Vec::new(),
            examples: Vec::new(),
        }
    }
}

impl<E> Target<E> {
    fn next_example(&self) -> Option<u64> {
        let number = self.different + 1;
        (number <= EXAMPLES_FIRST || number.is_power_of_two()).then_some(number)
    }

    fn count(&mut self, by: Option<&Arc<Identity>>, verdict: Verdict<E>, times: Times) {
        let version = self.version(by);
        match verdict {
            Verdict::Same => {
                version.same += 1;
                self.same += 1;
            }
            Verdict::Different(example) => {
                version.different += 1;
                self.different += 1;
                self.examples.extend(example);
            }
            Verdict::Failed(mishap) => {
                version.failed += 1;
                *self.failed.entry(mishap.name()).or_default() += 1;
                self.last_failure = Some(format!("{}: {}", mishap.name(), mishap.text()));
            }
        }
        self.live.record(times.live);
        self.candidate.record(times.candidate);
    }

    /// Returns the line of a version and makes it the last one.
    fn version(&mut self, by: Option<&Arc<Identity>>) -> &mut Version {
        let is_it = |(identity, _): &(Option<Arc<Identity>>, Version)| match (identity, by) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        };
        if !self.versions.last().is_some_and(is_it) {
            match self.versions.iter().position(is_it) {
                Some(at) => self.versions[at..].rotate_left(1),
                None => {
                    if self.versions.len() >= VERSIONS_MAX {
                        self.fold_oldest();
                    }
                    let line = match by {
                        Some(by) => line(&by.name, &by.digest, &by.config),
                        None => line(fallback::NAME, "", ""),
                    };
                    self.versions.push((by.cloned(), line));
                }
            }
        }
        &mut self.versions.last_mut().expect("pushed above if there was none").1
    }

    /// Adds the oldest version's counts to the line of its name alone, so that totals never shrink.
    fn fold_oldest(&mut self) {
        let is_folded = |identity: &Option<Arc<Identity>>| {
            identity.as_ref().is_none_or(|identity| identity.digest.is_empty())
        };
        let Some(at) = self.versions.iter().position(|(identity, _)| !is_folded(identity)) else { return };
        let (_, oldest) = self.versions.remove(at);
        let is_its_sum = |identity: &Option<Arc<Identity>>| {
            identity.as_ref().is_some_and(|it| it.digest.is_empty() && it.name == oldest.policy)
        };
        if let Some((_, folded)) = self.versions.iter_mut().find(|(identity, _)| is_its_sum(identity)) {
            folded.same += oldest.same;
            folded.different += oldest.different;
            folded.failed += oldest.failed;
        } else {
            let identity = Identity { name: oldest.policy.clone(), ..Identity::default() };
            let version = Version { digest: String::new(), config: Value::Null, ..oldest };
            self.versions.insert(0, (Some(Arc::new(identity)), version));
        }
    }

    fn counts(&self) -> Counts {
        Counts { same: self.same, different: self.different, failed: self.failed.values().sum(), dropped: 0 }
    }

    fn show(&self, dropped: u64) -> Compared {
        let percentiles = |spread: &Spread| {
            let micros = |share| spread.at(share).map(|nanos| nanos as f64 / 1e3);
            Percentiles { p50_us: micros(0.5), p99_us: micros(0.99) }
        };
        Compared {
            compared: self.same + self.different,
            same: self.same,
            different: self.different,
            failed: self.failed.clone(),
            last_failure: self.last_failure.clone(),
            dropped,
            itself: self.itself,
            time: Sides { live: percentiles(&self.live), candidate: percentiles(&self.candidate) },
            versions: self.versions.iter().map(|(_, version)| version.clone()).collect(),
        }
    }
}

fn line(policy: &str, digest: &str, config: &str) -> Version {
    Version {
        policy: policy.to_owned(),
        digest: digest.to_owned(),
        config: serde_json::from_str(config).unwrap_or_default(),
        same: 0,
        different: 0,
        failed: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str, digest: &str) -> Arc<Identity> {
        Arc::new(Identity { name: name.to_owned(), digest: digest.to_owned(), config: "{}".to_owned() })
    }

    #[test]
    fn the_first_differences_and_then_each_doubling_become_examples() {
        let mut target = Target::<u64>::default();
        for _ in 0..100 {
            let example = target.next_example();
            target.count(None, Verdict::Different(example), Times::default());
            target.count(None, Verdict::Same, Times::default());
        }
        assert_eq!(target.examples, [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64]);
        let shown = target.show(3);
        let counts = (shown.compared, shown.same, shown.different, shown.dropped);
        assert_eq!(counts, (200, 100, 100, 3));
    }

    #[test]
    fn live_versions_are_counted_apart_and_the_oldest_folded() {
        let mut target = Target::<u64>::default();
        for number in 0..40 {
            let by = identity("p", &format!("d{number}"));
            target.count(Some(&by), Verdict::Same, Times::default());
            target.count(Some(&by), Verdict::Different(None), Times::default());
        }
        target.count(None, Verdict::Failed(Mishap::Refused("no".to_owned())), Times::default());
        let shown = target.show(0);
        assert!(shown.versions.len() <= VERSIONS_MAX + 1, "a sum beside the latest");
        let sum = |of: fn(&Version) -> u64| shown.versions.iter().map(of).sum::<u64>();
        assert_eq!((sum(|it| it.same), sum(|it| it.different), sum(|it| it.failed)), (40, 40, 1));
        let [.., before, last] = &shown.versions[..] else { panic!("two at least") };
        assert_eq!((&*before.digest, before.same), ("d39", 1));
        assert_eq!((&*last.policy, &*last.digest, last.failed), ("fallback", "", 1));
        assert_eq!(shown.failed, BTreeMap::from([("refused", 1)]));
        assert_eq!(shown.last_failure.as_deref(), Some("refused: no"));
    }

    #[test]
    fn groups_beyond_the_bound_are_added_up() {
        let mut book = Book::default();
        let shape = (Sides { live: 2, candidate: 1 }, Sides::default());
        for number in 0..70 {
            let group = format!("g{number:02}");
            assert_eq!(book.next_claim_example(&group), Some(1 + number.max(64_u64).abs_diff(64)));
            book.claimed(&group, None, Verdict::Different(None), Times::default(), Some(shape));
        }
        let dropped = BTreeMap::from([("g00".to_owned(), 1), ("g69".to_owned(), 2), (String::new(), 3)]);
        let (groups, others) = book.groups(&dropped);
        let others = others.expect("there are others");
        assert_eq!((groups.len(), groups["g00"].counts.dropped), (GROUPS_MAX, 1));
        assert_eq!((others.counts.different, others.counts.dropped, others.moves.live), (6, 5, 12));
        assert_eq!(book.counts().different, 70);
        // What the version planned itself is nothing that was compared.
        book.planned_itself("g00");
        book.planned_itself("g69");
        let (groups, others) = book.groups(&dropped);
        let itself = |group: &GroupReport| (group.counts.itself, group.counts.compared);
        assert_eq!((itself(&groups["g00"]), others.as_ref().map(itself)), ((1, 1), Some((1, 6))));
        assert_eq!(book.counts().different, 70);
    }
}
