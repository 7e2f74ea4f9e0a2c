//! Ownership: committing a plan, and the two-phase move between members.

use super::{Group, Handover, Moving, Place, Step};
use crate::Timestamp;
use crate::claiming::{Plan, Reason};
use crate::group::Snapshot;

impl Group {
    /// Commits a verified plan. `None` if the group changed since the snapshot was taken: plan again.
    pub fn commit(&mut self, snapshot: &Snapshot, plan: &Plan, now: Timestamp) -> Option<Step> {
        if self.revision != snapshot.revision {
            return None;
        }
        let mut step = Step::default();
        for claim in &plan.claims {
            let place = &snapshot.places[claim.partition];
            let to = &snapshot.members[claim.member];
            self.claim(place, Some(to), &claim.reason, now, &mut step);
        }
        for &released in &plan.releases {
            self.claim(&snapshot.places[released], None, "released by the policy", now, &mut step);
        }
        self.bump(&step);
        Some(step)
    }

    /// Gives a partition to a member, or to nobody: at once if it is free, else by a hand-over.
    fn claim(&mut self, place: &Place, to: Option<&String>, reason: &str, now: Timestamp, step: &mut Step) {
        let revision = self.revision + 1;
        let deadline = now.after(self.settings.handover_deadline);
        let is_cooperative = self.settings.handover == Handover::Cooperative;
        let Some(partition) = self.partitions.get_mut(place) else { return };
        if partition.owner.as_ref() == to {
            return;
        }
        reason.clone_into(&mut partition.reason);
        step.partitions.insert(place.clone());
        step.told.extend(partition.owner.clone());
        step.told.extend(to.cloned());
        if partition.owner.is_some() && is_cooperative {
            partition.moving = Some(Moving { to: to.cloned(), revision, deadline });
        } else {
            self.give(place, to.cloned(), now);
        }
    }

    /// A member gave a partition up: in a hand-over it goes on to the new owner, else it is free.
    pub(super) fn released(&mut self, id: &str, place: &Place, epoch: u64, now: Timestamp, step: &mut Step) {
        let Some(partition) = self.partitions.get(place) else { return };
        if partition.owner.as_deref() != Some(id) || partition.epoch != epoch {
            return;
        }
        self.finish(place, now, step);
    }

    /// Ends what is on its way with a partition, or frees it if nothing is.
    fn finish(&mut self, place: &Place, now: Timestamp, step: &mut Step) {
        let Some(partition) = self.partitions.get(place) else { return };
        let to = partition.moving.as_ref().and_then(|moving| moving.to.clone());
        step.told.extend(partition.owner.clone());
        step.told.extend(to.clone());
        step.partitions.insert(place.clone());
        if to.is_none() {
            step.cycle = step.cycle.or(Some(Reason::Leave));
        }
        self.give(place, to, now);
    }

    /// Makes somebody the owner, in a new epoch. An epoch is used up only by an owner: a free partition keeps its
    /// last one, which nobody can present any more.
    fn give(&mut self, place: &Place, to: Option<String>, now: Timestamp) {
        let Some(partition) = self.partitions.get_mut(place) else { return };
        partition.moving = None;
        partition.since = now;
        partition.epoch += u64::from(to.is_some());
        partition.owner = to;
    }

    /// Takes away what should have been released by now.
    pub(super) fn take_overdue(&mut self, now: Timestamp) -> Step {
        let mut step = Step::default();
        let is_overdue = |moving: &Moving| moving.deadline <= now;
        for place in self.places_where(|at| at.moving.as_ref().is_some_and(is_overdue)) {
            self.finish(&place, now, &mut step);
        }
        self.bump(&step);
        step
    }

    /// A member that was to get something is gone: the owner keeps it.
    pub(super) fn cancel_moves_to(&mut self, id: &str, step: &mut Step) {
        let goes_there =
            |at: &super::Partition| at.moving.as_ref().is_some_and(|moving| moving.to.as_deref() == Some(id));
        for place in self.places_where(goes_there) {
            let partition = self.partitions.get_mut(&place).expect("listed");
            partition.moving = None;
            step.told.extend(partition.owner.clone());
            step.partitions.insert(place);
        }
    }

    /// A member that was to give something up is gone: the new owner has it at once.
    pub(super) fn finish_moves_from(&mut self, id: &str, now: Timestamp, step: &mut Step) {
        for place in self.places_where(|at| at.owner.as_deref() == Some(id) && at.moving.is_some()) {
            self.finish(&place, now, step);
        }
    }

    /// Frees everything a member has.
    pub(super) fn free_all(&mut self, id: &str, step: &mut Step) {
        for place in self.places_where(|at| at.owner.as_deref() == Some(id)) {
            let partition = self.partitions.get_mut(&place).expect("listed");
            partition.owner = None;
            step.partitions.insert(place);
        }
    }

    /// Gives everything a member has to its new session, in new epochs.
    pub(super) fn fence(&mut self, id: &str, now: Timestamp, step: &mut Step) {
        self.finish_moves_from(id, now, step);
        for place in self.places_where(|at| at.owner.as_deref() == Some(id)) {
            self.give(&place, Some(id.to_owned()), now);
            step.partitions.insert(place);
        }
    }

    /// Takes away what a member no longer subscribes to: it cannot have it, and nobody moves it there.
    pub(super) fn drop_unsubscribed(&mut self, id: &str, now: Timestamp, step: &mut Step) {
        let topics = self.members.get(id).map(|member| member.topics.clone()).unwrap_or_default();
        let is_foreign = |topic: &String| topics.binary_search(topic).is_err();
        let incoming: Vec<_> = self
            .partitions
            .iter()
            .filter(|(place, at)| {
                is_foreign(&place.topic)
                    && at.moving.as_ref().is_some_and(|moving| moving.to.as_deref() == Some(id))
            })
            .map(|(place, _)| place.clone())
            .collect();
        for place in incoming {
            let partition = self.partitions.get_mut(&place).expect("listed");
            partition.moving = None;
            step.told.extend(partition.owner.clone());
            step.partitions.insert(place);
        }
        let owned: Vec<_> = self
            .partitions
            .iter()
            .filter(|(place, at)| is_foreign(&place.topic) && at.owner.as_deref() == Some(id))
            .map(|(place, _)| place.clone())
            .collect();
        for place in owned {
            if self.partitions[&place].moving.is_none() {
                self.claim(&place, None, "no longer subscribed", now, step);
            }
        }
    }

    fn places_where(&self, is_it: impl Fn(&super::Partition) -> bool) -> Vec<Place> {
        self.partitions.iter().filter(|(_, at)| is_it(at)).map(|(place, _)| place.clone()).collect()
    }
}
