//! Why partitions belong to whom they belong: what the cycles since this start of the host decided.
//!
//! In memory only. Invariants: two origins per partition at most, and none for a partition the group no longer has; an
//! origin is told only of the partition (and the topic of its name) it was planned for.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulcrum_core::claiming::Reason;
use fulcrum_core::group::{Partition, Place};
use fulcrum_core::time::Timestamp;
use fulcrum_policy::seat::Identity;

/// One decision about one partition.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// Why the cycle ran.
    pub reason: Reason,
    /// When its plan was committed.
    pub at: Timestamp,
    /// Which policy version planned; `None` is the fallback.
    pub by: Option<Arc<Identity>>,
    /// Who had it.
    pub from: Option<String>,
    /// Who was to get it; `None` when it was given up.
    pub to: Option<String>,
    /// Why, in the policy's words.
    pub words: String,
}

/// What is remembered of one partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Story {
    /// Relative weight; 1.0 unless the topic says otherwise.
    pub weight: f64,
    /// How its owner got it; `None` without an owner, and if that was before this start of the host.
    pub owned: Option<Origin>,
    /// Why it is on its way, if a plan said so.
    pub coming: Option<Origin>,
    /// A move that came to nothing, because whoever was to get it is gone.
    pub called_off: Option<Origin>,
    /// The last decision about a partition that nobody owns.
    pub freed: Option<Origin>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Stories(BTreeMap<Place, Known>);

#[derive(Debug)]
struct Known {
    newest: Origin,
    /// How the one got it who still has it while `newest` is under way.
    before: Option<Origin>,
    incarnation: Option<u64>,
}

impl Stories {
    /// Notes what a plan decided about a partition that is as given.
    pub(super) fn planned(&mut self, place: &Place, origin: Origin, partition: &Partition) {
        let incarnation = partition.incarnation;
        let known = self.0.remove(place).filter(|known| known.incarnation == incarnation);
        let before = known.and_then(|known| known.of_owner(origin.from.as_deref()?).cloned());
        self.0.insert(place.clone(), Known { newest: origin, before, incarnation });
    }

    /// Forgets what is no more in the group.
    pub(super) fn keep_only(&mut self, partitions: &BTreeMap<Place, Partition>) {
        self.0.retain(|place, _| partitions.contains_key(place));
    }

    /// Tells what is remembered of a partition that is as given.
    pub(super) fn of(&self, place: &Place, partition: &Partition, weight: f64) -> Story {
        let known = self.0.get(place).filter(|known| known.incarnation == partition.incarnation);
        let mut story = Story { weight, ..Story::default() };
        let Some(known) = known else { return story };
        let newest = &known.newest;
        match (&partition.owner, &partition.moving) {
            (None, _) => story.freed = Some(newest.clone()),
            (Some(owner), moving) => {
                story.owned = known.of_owner(owner).cloned();
                let is_of_owner = newest.from.as_ref() == Some(owner) && newest.to.as_ref() != Some(owner);
                match moving {
                    // It may also be taken from somebody who reads the topic no more, by no plan.
                    Some(moving) if is_of_owner && moving.to == newest.to => {
                        story.coming = Some(newest.clone());
                    }
                    None if is_of_owner && newest.to.is_some() => story.called_off = Some(newest.clone()),
                    _ => {}
                }
            }
        }
        story
    }
}

impl Known {
    fn of_owner(&self, owner: &str) -> Option<&Origin> {
        let gave_it = |origin: &&Origin| origin.to.as_deref() == Some(owner);
        Some(&self.newest).filter(gave_it).or(self.before.as_ref().filter(gave_it))
    }
}

#[cfg(test)]
mod tests {
    use fulcrum_core::group::Moving;

    use super::*;

    fn place() -> Place {
        Place { topic: "t".to_owned(), partition: 0 }
    }

    fn origin(from: &str, to: &str, at: u64) -> Origin {
        let member = |id: &str| (id != "-").then(|| id.to_owned());
        Origin {
            reason: Reason::Join,
            at: Timestamp(at),
            by: None,
            from: member(from),
            to: member(to),
            words: "w".to_owned(),
        }
    }

    fn partition(owner: &str, moving: Option<&str>) -> Partition {
        let member = |id: &str| (id != "-").then(|| id.to_owned());
        let moving = moving.map(|to| Moving { to: member(to), revision: 1, deadline: Timestamp(0) });
        Partition { owner: member(owner), moving, incarnation: Some(1), ..Partition::default() }
    }

    /// Plans as `from>to`, at 1, 2, …; what is found as the times of `owned coming called_off freed`, 0 for none.
    #[track_caller]
    fn check(plans: &[&str], now: &Partition, expected: [u64; 4]) {
        let mut stories = Stories::default();
        for (plan, at) in plans.iter().zip(1..) {
            let (from, to) = plan.split_once('>').expect("two ends");
            stories.planned(&place(), origin(from, to, at), &partition("-", None));
        }
        let story = stories.of(&place(), now, 2.5);
        let at = |origin: Option<Origin>| origin.map_or(0, |origin| origin.at.0);
        let found = [at(story.owned), at(story.coming), at(story.called_off), at(story.freed)];
        assert_eq!((found, story.weight), (expected, 2.5), "{plans:?}");
    }

    #[test]
    fn a_story_follows_the_partition() {
        check(&[], &partition("a", None), [0, 0, 0, 0]);
        check(&["->a"], &partition("a", None), [1, 0, 0, 0]);
        check(&["->a", "a>b"], &partition("a", Some("b")), [1, 2, 0, 0]);
        check(&["->a", "a>b"], &partition("b", None), [2, 0, 0, 0]);
        // b went away before it had it, and the next plan finds another one.
        check(&["->a", "a>b"], &partition("a", None), [1, 0, 2, 0]);
        check(&["->a", "a>b", "a>c"], &partition("a", Some("c")), [1, 3, 0, 0]);
        check(&["->a", "a>b", "b>c"], &partition("b", Some("c")), [2, 3, 0, 0]);
        check(&["->a", "a>-"], &partition("a", Some("-")), [1, 2, 0, 0]);
        check(&["->a", "a>-"], &partition("-", None), [0, 0, 0, 2]);
        check(&["->a"], &partition("-", None), [0, 0, 0, 1]);
        // It is taken away by no plan.
        check(&["->a"], &partition("a", Some("-")), [1, 0, 0, 0]);
        // Taken over from before this start.
        check(&["a>b"], &partition("a", Some("b")), [0, 1, 0, 0]);
        check(&["a>b"], &partition("a", None), [0, 0, 1, 0]);
        check(&["->x"], &partition("a", None), [0, 0, 0, 0]);
        // Another topic of the name.
        check(&["->a"], &Partition { incarnation: Some(2), ..partition("a", None) }, [0, 0, 0, 0]);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut stories = Stories::default();
        stories.planned(&place(), origin("-", "a", 1), &partition("-", None));
        stories.keep_only(&BTreeMap::from([(place(), Partition::default())]));
        assert_eq!(stories.0.len(), 1);
        stories.keep_only(&BTreeMap::new());
        assert_eq!(stories.0.len(), 0);
    }
}
