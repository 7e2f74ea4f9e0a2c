//! What members are told, and what a policy plans with.

use std::collections::BTreeMap;

use super::{Group, Place};
use crate::Timestamp;
use crate::claiming::{self, Cycle, Reason};
use crate::time::{millis, millis_u32};

/// A member should read this.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// The partition.
    pub place: Place,
    /// The epoch every pull and checkpoint carries.
    pub epoch: u64,
    /// Where it was checkpointed, `None` if never.
    pub checkpoint: Option<u64>,
}

/// A member should give this up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revocation {
    /// The partition.
    pub place: Place,
    /// The epoch it was assigned with.
    pub epoch: u64,
    /// When it is taken away.
    pub deadline: Timestamp,
}

/// All a member is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Orders {
    /// Revision these orders are of.
    pub revision: u64,
    /// What to read.
    pub assignments: Vec<Assignment>,
    /// What to give up.
    pub revocations: Vec<Revocation>,
}

/// What is known of a topic's partitions beside their numbers. A list may be shorter than there are partitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Broker or machine room by partition; empty or missing when unknown.
    pub places: Vec<String>,
    /// Relative weight by partition, finite and above 0; a missing one is 1.0.
    pub weights: Vec<f64>,
}

/// What a plan is made from, with the names behind its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The input of the policy.
    pub cycle: Cycle,
    /// Member ids by row.
    pub members: Vec<String>,
    /// Partitions by index.
    pub places: Vec<Place>,
    /// Revision of the group it was taken at; a plan for another one is not committed.
    pub revision: u64,
}

impl Group {
    /// Returns a member's orders. A revoked partition is in `revocations` only.
    #[must_use]
    pub fn orders(&self, id: &str) -> Orders {
        let mut orders = Orders { revision: self.revision, ..Orders::default() };
        for (place, partition) in &self.partitions {
            if partition.owner.as_deref() != Some(id) {
                continue;
            }
            let (place, epoch) = (place.clone(), partition.epoch);
            match &partition.moving {
                Some(moving) => {
                    orders.revocations.push(Revocation { place, epoch, deadline: moving.deadline });
                }
                None => {
                    let checkpoint = partition.checkpoint;
                    orders.assignments.push(Assignment { place, epoch, checkpoint });
                }
            }
        }
        orders
    }

    /// Takes a snapshot for a cycle: live members, and the partitions of topics that any of them subscribes to, but
    /// for those that wait for a member in grace.
    ///
    /// `facts` is asked once per topic for what is known of its partitions.
    #[must_use]
    pub fn snapshot<'f>(
        &self,
        name: &str,
        reason: Reason,
        now: Timestamp,
        seed: u64,
        facts: impl Fn(&str) -> Option<&'f Facts>,
    ) -> Snapshot {
        let members: Vec<_> = self.members.iter().filter(|(_, member)| member.kept_until.is_none()).collect();
        let mut topics: Vec<&String> = members.iter().flat_map(|(_, member)| &member.topics).collect();
        topics.sort_unstable();
        topics.dedup();
        let topic_index =
            |topic: &String| topics.binary_search(&topic).ok().and_then(|at| u32::try_from(at).ok());
        let facts: Vec<_> = topics.iter().map(|topic| facts(topic)).collect();
        let mut place_indices = BTreeMap::from([("", 0)]);
        let rows: BTreeMap<&str, i32> =
            members.iter().zip(0..).map(|((id, _), row)| (id.as_str(), row)).collect();
        let mut cycle = Cycle {
            group: name.to_owned(),
            members: members
                .iter()
                .map(|(id, member)| claiming::Member {
                    id: (*id).clone(),
                    zone: member.zone.clone(),
                    labels: member.labels.clone(),
                    capacity: member.capacity_milli as f64 / 1000.0,
                    since_ms: millis(now.since(member.joined_at)),
                    topics: member.topics.iter().filter_map(topic_index).collect(),
                })
                .collect(),
            topics: topics.iter().map(|topic| (*topic).clone()).collect(),
            places: vec![String::new()],
            topic: Vec::new(),
            number: Vec::new(),
            place: Vec::new(),
            owner: Vec::new(),
            moving: Vec::new(),
            weight: Vec::new(),
            held_ms: Vec::new(),
            movement_budget: self.settings.movement_budget,
            reason,
            now_ms: now.0,
            seed,
        };
        let mut places = Vec::new();
        for (place, partition) in &self.partitions {
            let Some(topic) = topic_index(&place.topic) else { continue };
            let is_kept = partition.owner.as_ref().is_some_and(|owner| !rows.contains_key(owner.as_str()));
            if is_kept {
                continue;
            }
            // A policy sees the target; what is only being given up has none.
            let target = match &partition.moving {
                Some(moving) => moving.to.as_ref(),
                None => partition.owner.as_ref(),
            };
            cycle.topic.push(topic);
            cycle.number.push(place.partition);
            let number = place.partition as usize;
            let known = facts[topic as usize];
            let at = known.and_then(|known| known.places.get(number)).map_or("", String::as_str);
            let next = u32::try_from(cycle.places.len()).expect("at most one place per partition");
            let at = *place_indices.entry(at).or_insert_with(|| {
                cycle.places.push(at.to_owned());
                next
            });
            cycle.place.push(at);
            cycle.owner.push(target.and_then(|id| rows.get(id.as_str()).copied()).unwrap_or(-1));
            cycle.moving.push(u8::from(partition.moving.is_some()));
            cycle.weight.push(known.and_then(|known| known.weights.get(number)).copied().unwrap_or(1.0));
            let held = if partition.owner.is_some() { millis_u32(now.since(partition.since)) } else { 0 };
            cycle.held_ms.push(held);
            places.push(place.clone());
        }
        let members = members.iter().map(|(id, _)| (*id).clone()).collect();
        Snapshot { cycle, members, places, revision: self.revision }
    }
}
