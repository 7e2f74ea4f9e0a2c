//! Joining, heartbeats, leaving, expiry.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Group, Member, Place, Refused, Step};
use crate::Timestamp;
use crate::claiming::Reason;
use crate::time::millis;

/// A member wants in.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct Join {
    /// Its id.
    pub member: String,
    /// Topics it subscribes to; any order.
    pub topics: Vec<String>,
    /// Failure domain or place.
    pub zone: String,
    /// Labels; any order.
    pub labels: Vec<(String, String)>,
    /// Relative capacity in thousandths.
    pub capacity_milli: u64,
    /// How long it may be silent.
    pub ttl: Option<Duration>,
    /// The session it had, to resume it.
    pub session: Option<String>,
    /// Whether to fence a live member of the same id.
    pub takeover: bool,
}

/// A member is in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Joined {
    /// The session every later call carries.
    pub session: String,
    /// Whether it goes on with a former session.
    pub resumed: bool,
}

/// A member says that it lives, and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Heartbeat {
    /// Rising number; an older one is answered, but changes nothing.
    pub seq: u64,
    /// Last revision whose orders the member has seen.
    pub acked_revision: u64,
    /// What it reads now, with epochs.
    pub owned: Vec<(Place, u64)>,
    /// What it gave up, with epochs.
    pub released: Vec<(Place, u64)>,
}

impl Group {
    /// Takes a member in. `session` is the name of its new life, unguessable and new.
    ///
    /// Errors with [`Refused::Duplicate`] if a live member has the id and the caller neither knows its session nor
    /// wants to take over.
    pub fn join(&mut self, join: Join, session: String, now: Timestamp) -> Result<(Joined, Step), Refused> {
        let mut topics = join.topics;
        topics.sort_unstable();
        topics.dedup();
        let mut labels = join.labels;
        labels.sort_unstable();
        let mut step = Step { members: true, ..Step::default() };
        let id = join.member;
        let known = self.members.get(&id);
        let resumed = known.is_some_and(|member| join.session.as_ref() == Some(&member.session));
        if let Some(member) = known
            && !resumed
            && member.kept_until.is_none()
            && !join.takeover
        {
            let left = self.deadline(member).since(now);
            return Err(Refused::Duplicate { retry_after_ms: millis(left) + 1 });
        }
        let same_topics = known.is_some_and(|member| member.topics == topics);
        let was_live = known.is_some_and(|member| member.kept_until.is_none());
        let joined_at = known.filter(|_| resumed).map_or(now, |member| member.joined_at);
        let (seq, acked_revision) =
            known.filter(|_| resumed).map_or((0, 0), |member| (member.seq, member.acked_revision));
        let session = if resumed { join.session.unwrap_or(session) } else { session };
        let is_known = known.is_some();
        let member = Member {
            session: session.clone(),
            topics,
            zone: join.zone,
            labels,
            capacity_milli: join.capacity_milli,
            ttl: join.ttl,
            joined_at,
            seen_at: now,
            seq,
            acked_revision,
            kept_until: None,
            disagrees_on: BTreeSet::new(),
        };
        self.members.insert(id.clone(), member);
        if is_known && !resumed {
            // A former life may still read: it is fenced by new epochs.
            self.fence(&id, now, &mut step);
        }
        self.drop_unsubscribed(&id, now, &mut step);
        step.cycle = match (was_live, same_topics) {
            (true, true) => None,
            (true, false) => Some(Reason::Subscription),
            (false, _) => Some(Reason::Join),
        };
        step.told.insert(id);
        self.bump(&step);
        Ok((Joined { session, resumed }, step))
    }

    /// Takes a heartbeat in.
    ///
    /// Errors with [`Refused::UnknownMember`] or [`Refused::Fenced`].
    pub fn heartbeat(
        &mut self,
        id: &str,
        session: &str,
        beat: &Heartbeat,
        now: Timestamp,
    ) -> Result<Step, Refused> {
        self.live(id, session)?;
        let revision = self.revision;
        let mut step = Step::default();
        let member = self.members.get_mut(id).expect("live");
        member.seen_at = now;
        if beat.seq < member.seq {
            return Ok(step);
        }
        member.seq = beat.seq;
        // A revision to come cannot have been seen.
        member.acked_revision = member.acked_revision.max(beat.acked_revision.min(revision));
        let acked = member.acked_revision;
        for (place, epoch) in &beat.released {
            self.released(id, place, *epoch, now, &mut step);
        }
        let owned = |place: &Place, epoch: u64| beat.owned.iter().any(|(at, of)| at == place && *of == epoch);
        // Absence is a release only if the member has seen the order to give it up: a lost answer never gives a
        // partition up.
        let silent: Vec<_> = self
            .partitions
            .iter()
            .filter(|(place, partition)| {
                partition.owner.as_deref() == Some(id)
                    && partition.moving.as_ref().is_some_and(|moving| moving.revision <= acked)
                    && !owned(place, partition.epoch)
            })
            .map(|(place, partition)| (place.clone(), partition.epoch))
            .collect();
        for (place, epoch) in silent {
            self.released(id, &place, epoch, now, &mut step);
        }
        let disagrees_on = beat
            .owned
            .iter()
            .filter(|(place, epoch)| {
                !self
                    .partitions
                    .get(place)
                    .is_some_and(|at| at.owner.as_deref() == Some(id) && at.epoch == *epoch)
            })
            .map(|(place, _)| place.clone())
            .collect();
        self.members.get_mut(id).expect("live").disagrees_on = disagrees_on;
        self.bump(&step);
        Ok(step)
    }

    /// Lets a member go. With `returning` and a grace period its partitions wait for it; else they are free at once.
    ///
    /// Errors with [`Refused::UnknownMember`] or [`Refused::Fenced`].
    pub fn leave(
        &mut self,
        id: &str,
        session: &str,
        returning: bool,
        now: Timestamp,
    ) -> Result<Step, Refused> {
        self.live(id, session)?;
        Ok(self.lose(id, returning, Reason::Leave, now))
    }

    /// Loses a member whose connection closed, as if its time had run out.
    ///
    /// Errors with [`Refused::UnknownMember`] or [`Refused::Fenced`].
    pub fn disconnect(&mut self, id: &str, session: &str, now: Timestamp) -> Result<Step, Refused> {
        self.live(id, session)?;
        Ok(self.lose(id, true, Reason::Disconnected, now))
    }

    /// Loses the members whose time ran out (age above their time to live, strictly), ends grace periods, and takes
    /// partitions away whose hand-over is past its deadline.
    pub fn expire(&mut self, now: Timestamp) -> Step {
        let mut step = Step::default();
        let silent: Vec<_> = self
            .members
            .iter()
            .filter(|(_, member)| member.kept_until.is_none() && self.deadline(member) < now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in silent {
            step.merge(self.lose(&id, true, Reason::Expired, now));
        }
        let over: Vec<_> = self
            .members
            .iter()
            .filter(|(_, member)| member.kept_until.is_some_and(|until| until <= now))
            .map(|(id, _)| id.clone())
            .collect();
        for id in over {
            step.merge(self.forget(&id, Reason::Expired, now));
        }
        step.merge(self.take_overdue(now));
        step
    }

    /// Returns when [`Self::expire`] has something to do next, if nothing happens before.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        let members = self.members.values().map(|member| {
            // An age of exactly the time to live is still alive.
            member.kept_until.unwrap_or_else(|| self.deadline(member).after(Duration::from_millis(1)))
        });
        let moves =
            self.partitions.values().filter_map(|at| at.moving.as_ref().map(|moving| moving.deadline));
        members.chain(moves).min()
    }

    /// Starts all ages anew, after a gap in the coordinator's own view.
    pub fn restart_ages(&mut self, now: Timestamp) {
        let deadline = self.settings.handover_deadline;
        for member in self.members.values_mut() {
            member.seen_at = now;
            if member.kept_until.is_some() {
                member.kept_until = Some(now.after(self.settings.grace));
            }
        }
        for partition in self.partitions.values_mut() {
            partition.since = now;
            if let Some(moving) = &mut partition.moving {
                moving.deadline = now.after(deadline);
            }
        }
    }

    /// Returns a member's time to live.
    #[must_use]
    pub fn ttl(&self, member: &Member) -> Duration {
        member.ttl.unwrap_or(self.settings.ownership_expiry)
    }

    fn deadline(&self, member: &Member) -> Timestamp {
        member.seen_at.after(self.ttl(member))
    }

    fn lose(&mut self, id: &str, may_return: bool, reason: Reason, now: Timestamp) -> Step {
        if !may_return || self.settings.grace.is_zero() {
            return self.forget(id, reason, now);
        }
        let mut step = Step { members: true, ..Step::default() };
        if let Some(member) = self.members.get_mut(id) {
            member.kept_until = Some(now.after(self.settings.grace));
        }
        self.cancel_moves_to(id, &mut step);
        // What it was giving up anyway does not wait for it.
        self.finish_moves_from(id, now, &mut step);
        step.cycle = Some(reason);
        self.bump(&step);
        step
    }

    fn forget(&mut self, id: &str, reason: Reason, now: Timestamp) -> Step {
        let mut step = Step { members: true, cycle: Some(reason), ..Step::default() };
        self.members.remove(id);
        self.cancel_moves_to(id, &mut step);
        self.finish_moves_from(id, now, &mut step);
        self.free_all(id, &mut step);
        self.bump(&step);
        step
    }
}
