//! Groups at rest: keys and stored forms. A stored record is neither a wire type nor a domain type.
//!
//! One record holds the group and its members, one each partition's owner, epoch, hand-over and checkpoint together,
//! so that a stale owner's write fails by revision on any store.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use fulcrum_core::Timestamp;
use fulcrum_core::group::{Group, Handover, Member, Moving, Partition, Place, Settings, Start};
use fulcrum_core::time::millis;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::state::Spec;

/// All keys of groups start with it.
pub(super) const PREFIX: &str = "groups/";

/// Returns the key of a group's own record.
pub(super) fn group_key(group: &str) -> String {
    format!("{PREFIX}{group}/group")
}

/// Returns the key of a partition's record.
pub(super) fn claim_key(group: &str, place: &Place) -> String {
    format!("{PREFIX}{group}/claims/{}/{}", place.topic, place.partition)
}

/// Returns the group a key belongs to.
pub(super) fn group_of(key: &str) -> Option<String> {
    let (group, _) = key.strip_prefix(PREFIX)?.split_once('/')?;
    Some(group.to_owned())
}

/// Returns the partition a key is the record of; `None` for the group's own record.
pub(super) fn place_of(key: &str) -> Option<Place> {
    let (_, rest) = key.strip_prefix(PREFIX)?.split_once('/')?;
    let (topic, partition) = rest.strip_prefix("claims/")?.rsplit_once('/')?;
    Some(Place { topic: topic.to_owned(), partition: partition.parse().ok()? })
}

#[derive(Serialize, Deserialize)]
pub(super) struct GroupRecord {
    revision: u64,
    policy: Option<String>,
    config: Value,
    interval_ms: u64,
    fast_interval_ms: u64,
    gather_ms: u64,
    ownership_expiry_ms: u64,
    is_steal: bool,
    handover_deadline_ms: u64,
    movement_budget: Option<u32>,
    grace_ms: u64,
    starts_earliest: bool,
    /// Records of earlier hosts have none.
    #[serde(default)]
    epoch_floor: u64,
    members: BTreeMap<String, MemberRecord>,
}

#[derive(Serialize, Deserialize)]
struct MemberRecord {
    session: String,
    topics: Vec<String>,
    zone: String,
    labels: Vec<(String, String)>,
    capacity_milli: u64,
    ttl_ms: Option<u64>,
    is_kept: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ClaimRecord {
    /// Revision of the group when this was written: the group's own record may be older.
    revision: u64,
    epoch: u64,
    owner: Option<String>,
    moving: Option<MovingRecord>,
    reason: String,
    checkpoint: Option<u64>,
    /// Which topic of its name the partition is of. Records of earlier hosts do not tell.
    #[serde(default)]
    incarnation: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct MovingRecord {
    to: Option<String>,
    revision: u64,
}

impl GroupRecord {
    pub(super) fn new(spec: &Spec, group: &Group) -> Self {
        let settings = &spec.settings;
        let member = |(id, member): (&String, &Member)| {
            let record = MemberRecord {
                session: member.session.clone(),
                topics: member.topics.clone(),
                zone: member.zone.clone(),
                labels: member.labels.clone(),
                capacity_milli: member.capacity_milli,
                ttl_ms: member.ttl.map(millis),
                is_kept: member.kept_until.is_some(),
            };
            (id.clone(), record)
        };
        Self {
            revision: group.revision,
            policy: spec.policy.clone(),
            config: spec.config.clone(),
            interval_ms: millis(settings.interval),
            fast_interval_ms: millis(spec.fast_interval),
            gather_ms: millis(spec.gather),
            ownership_expiry_ms: millis(settings.ownership_expiry),
            is_steal: settings.handover == Handover::Steal,
            handover_deadline_ms: millis(settings.handover_deadline),
            movement_budget: settings.movement_budget,
            grace_ms: millis(settings.grace),
            starts_earliest: settings.start == Start::Earliest,
            epoch_floor: group.epoch_floor,
            members: group.members.iter().map(member).collect(),
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn epoch_floor(&self) -> u64 {
        self.epoch_floor
    }

    pub(super) fn spec(&self) -> Spec {
        Spec {
            policy: self.policy.clone(),
            config: self.config.clone(),
            fast_interval: Duration::from_millis(self.fast_interval_ms),
            gather: Duration::from_millis(self.gather_ms),
            settings: Settings {
                interval: Duration::from_millis(self.interval_ms),
                ownership_expiry: Duration::from_millis(self.ownership_expiry_ms),
                handover: if self.is_steal { Handover::Steal } else { Handover::Cooperative },
                handover_deadline: Duration::from_millis(self.handover_deadline_ms),
                movement_budget: self.movement_budget,
                grace: Duration::from_millis(self.grace_ms),
                start: if self.starts_earliest { Start::Earliest } else { Start::Latest },
            },
        }
    }

    pub(super) fn members(self, now: Timestamp) -> BTreeMap<String, Member> {
        let grace = Duration::from_millis(self.grace_ms);
        let member = |(id, record): (String, MemberRecord)| {
            let member = Member {
                session: record.session,
                topics: record.topics,
                zone: record.zone,
                labels: record.labels,
                capacity_milli: record.capacity_milli,
                ttl: record.ttl_ms.map(Duration::from_millis),
                joined_at: now,
                seen_at: now,
                seq: 0,
                acked_revision: 0,
                kept_until: record.is_kept.then(|| now.after(grace)),
                disagrees_on: std::collections::BTreeSet::new(),
            };
            (id, member)
        };
        self.members.into_iter().map(member).collect()
    }
}

impl ClaimRecord {
    pub(super) fn new(partition: &Partition, revision: u64) -> Self {
        let moving = |moving: &Moving| MovingRecord { to: moving.to.clone(), revision: moving.revision };
        Self {
            revision,
            epoch: partition.epoch,
            owner: partition.owner.clone(),
            moving: partition.moving.as_ref().map(moving),
            reason: partition.reason.clone(),
            checkpoint: partition.checkpoint,
            incarnation: partition.incarnation,
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn partition(self, now: Timestamp, deadline: Duration) -> Partition {
        Partition {
            epoch: self.epoch,
            owner: self.owner,
            moving: self.moving.map(|moving| Moving {
                to: moving.to,
                revision: moving.revision,
                deadline: now.after(deadline),
            }),
            since: now,
            reason: self.reason,
            checkpoint: self.checkpoint,
            incarnation: self.incarnation,
        }
    }
}

/// Writes a record.
pub(super) fn encode(record: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(record).expect("records are plain data"))
}
