//! A group as people see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulcrum_coordinator::groups::{CycleReport, MemberView, Moved, PartitionView, Story, View};
use fulcrum_core::Timestamp;
use fulcrum_core::group::Place;
use fulcrum_core::time::millis;
use fulcrum_policy::seat::Identity;
use serde::Serialize;

use super::spec::SpecBody;
use super::why::{self, GroupWhy, PartitionWhy};
use crate::app::Services;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupBody {
    group: String,
    kind: &'static str,
    /// Which policy plans for it now, whatever the last plan was made by.
    policy: String,
    digest: String,
    revision: u64,
    settings: SpecBody,
    members: Vec<MemberBody>,
    partitions: Vec<PartitionBody>,
    lag: u64,
    last_cycle: Option<CycleBody>,
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<GroupWhy>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MemberBody {
    member_id: String,
    live: bool,
    topics: Vec<String>,
    partitions: Vec<PlaceBody>,
    seen_ms_ago: u64,
    disagrees_on: Vec<PlaceBody>,
}

#[derive(Serialize)]
struct PlaceBody {
    topic: String,
    partition: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PartitionBody {
    topic: String,
    partition: u32,
    owner: Option<String>,
    epoch: u64,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    moving_to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<u64>,
    checkpoint: Option<u64>,
    end_offset: Option<u64>,
    lag: Option<u64>,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<PartitionWhy>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CycleBody {
    reason: &'static str,
    policy: String,
    digest: String,
    claims: Vec<ClaimBody>,
    moved: usize,
    took_us: u64,
    problem: Option<String>,
}

#[derive(Serialize)]
struct ClaimBody {
    topic: String,
    partition: u32,
    from: Option<String>,
    to: Option<String>,
    reason: String,
}

/// Looks up where the partitions end; those of a topic that cannot be read are left out.
pub(super) async fn ends(services: &Services, view: &View) -> BTreeMap<Place, u64> {
    let mut topics: Vec<_> = view.partitions.iter().map(|partition| &partition.place.topic).collect();
    // Partitions are ordered by topic.
    topics.dedup();
    let mut ends = BTreeMap::new();
    for topic in topics {
        let bounds = services.log.partitions(topic).await.unwrap_or_default();
        let place = |partition| Place { topic: topic.clone(), partition };
        ends.extend((0..).zip(bounds).map(|(partition, bounds)| (place(partition), bounds.end.0)));
    }
    ends
}

impl GroupBody {
    pub(super) fn new(
        view: View,
        ends: &BTreeMap<Place, u64>,
        bound: String,
        version: &Result<Arc<Identity>, String>,
        explains: bool,
        now: Timestamp,
    ) -> Self {
        let why = explains.then(|| why::group(&view, now));
        let View { group, spec, revision, members, partitions, stories, last_cycle, warnings } = view;
        let mut warnings: Vec<_> = warnings.into_iter().map(|warning| warning.text).collect();
        match version {
            Err(problem) => warnings.push(format!("the policy {bound} cannot be used: {problem}")),
            Ok(version) => {
                let planned = last_cycle.as_ref().and_then(|cycle| cycle.by.as_ref());
                if planned.is_some_and(|planned| planned != version) {
                    warnings.push("the policy or its configuration changed since the last plan".to_owned());
                }
            }
        }
        let is_live: BTreeMap<_, _> = members.iter().map(|member| (member.id.clone(), member.live)).collect();
        let mut held: BTreeMap<String, Vec<PlaceBody>> = BTreeMap::new();
        for partition in &partitions {
            if let Some(owner) = &partition.owner {
                held.entry(owner.clone()).or_default().push(partition.place.clone().into());
            }
        }
        let partitions: Vec<_> = partitions
            .into_iter()
            .zip(&stories)
            .map(|(partition, story)| {
                let end = ends.get(&partition.place).copied();
                let state = state(&partition, &is_live);
                let why = explains.then(|| why::partition(&partition, state, story, now));
                PartitionBody::new(partition, state, story, end, why, now)
            })
            .collect();
        Self {
            settings: SpecBody::new(&group, &spec),
            group,
            kind: "partitions",
            digest: version.as_ref().map(|version| version.digest.clone()).unwrap_or_default(),
            policy: bound,
            revision,
            members: members
                .into_iter()
                .map(|member| {
                    let partitions = held.remove(&member.id).unwrap_or_default();
                    MemberBody::new(member, partitions)
                })
                .collect(),
            lag: partitions.iter().filter_map(|partition| partition.lag).sum(),
            partitions,
            last_cycle: last_cycle.map(CycleBody::from),
            warnings,
            why,
        }
    }
}

impl MemberBody {
    fn new(member: MemberView, partitions: Vec<PlaceBody>) -> Self {
        Self {
            member_id: member.id,
            live: member.live,
            topics: member.topics,
            partitions,
            seen_ms_ago: member.seen_ms_ago,
            disagrees_on: member.disagrees_on.into_iter().map(PlaceBody::from).collect(),
        }
    }
}

/// Returns how a partition stands, in the word of the view.
fn state(partition: &PartitionView, is_live: &BTreeMap<String, bool>) -> &'static str {
    match (&partition.owner, &partition.moving) {
        (None, _) => "free",
        (Some(_), Some(_)) => "moving",
        (Some(owner), None) if is_live.get(owner) == Some(&false) => "kept",
        (Some(_), None) => "owned",
    }
}

/// Says in a few words why nobody owns a partition; empty if it had no owner since this start of the host.
fn why_free(story: &Story) -> String {
    match &story.freed {
        None => String::new(),
        Some(origin) if origin.to.is_none() => origin.words.clone(),
        Some(_) => "its last owner gave it up or is gone".to_owned(),
    }
}

impl PartitionBody {
    fn new(
        partition: PartitionView,
        state: &'static str,
        story: &Story,
        end: Option<u64>,
        why: Option<PartitionWhy>,
        now: Timestamp,
    ) -> Self {
        let deadline = partition.moving.as_ref().map(|moving| millis(moving.deadline.since(now)));
        let reason = match &partition.owner {
            Some(_) => partition.reason,
            // What is stored is why its last owner got it.
            None => why_free(story),
        };
        Self {
            topic: partition.place.topic,
            partition: partition.place.partition,
            owner: partition.owner,
            epoch: partition.epoch,
            state,
            moving_to: partition.moving.and_then(|moving| moving.to),
            deadline_ms: deadline,
            checkpoint: partition.checkpoint,
            end_offset: end,
            // What nobody checkpointed is read from its begin.
            lag: end.map(|end| end.saturating_sub(partition.checkpoint.unwrap_or(0))),
            reason,
            why,
        }
    }
}

impl From<Place> for PlaceBody {
    fn from(place: Place) -> Self {
        Self { topic: place.topic, partition: place.partition }
    }
}

impl From<CycleReport> for CycleBody {
    fn from(cycle: CycleReport) -> Self {
        let claim = |moved: Moved| ClaimBody {
            topic: moved.place.topic,
            partition: moved.place.partition,
            from: moved.from,
            to: moved.to,
            reason: moved.reason,
        };
        let by = cycle.by.as_ref();
        Self {
            reason: cycle.reason.word(),
            policy: by.map_or_else(|| "fallback".to_owned(), |by| by.name.clone()),
            digest: by.map(|by| by.digest.clone()).unwrap_or_default(),
            claims: cycle.claims.into_iter().map(claim).collect(),
            moved: cycle.moved,
            took_us: cycle.took_us,
            problem: cycle.problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use fulcrum_coordinator::groups::Origin;
    use fulcrum_core::claiming::Reason;

    use super::*;

    #[test]
    fn a_partition_nobody_owns_does_not_repeat_why_its_last_owner_got_it() {
        let check = |owner: Option<&str>, story: Story, expected: &str| {
            let partition = PartitionView {
                place: Place { topic: "t".to_owned(), partition: 0 },
                owner: owner.map(str::to_owned),
                epoch: 1,
                moving: None,
                checkpoint: None,
                reason: "free partition".to_owned(),
            };
            let state = state(&partition, &BTreeMap::new());
            let body = PartitionBody::new(partition, state, &story, None, None, Timestamp(0));
            assert_eq!(body.reason, expected);
        };
        let freed = |to: Option<&str>, words: &str| Story {
            freed: Some(Origin {
                reason: Reason::Leave,
                at: Timestamp(0),
                by: None,
                from: Some("a".to_owned()),
                to: to.map(str::to_owned),
                words: words.to_owned(),
            }),
            ..Story::default()
        };
        check(Some("a"), Story::default(), "free partition");
        check(None, Story::default(), "");
        check(None, freed(Some("a"), "free partition"), "its last owner gave it up or is gone");
        check(None, freed(None, "released by the policy"), "released by the policy");
    }
}
