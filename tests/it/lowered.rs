//! A group of the guests' own tests as a cycle of the host; the bench of plans uses it too.

use fulcrum_core::claiming::{self as host, Reason};
use fulcrum_guest::testing::claiming::Group;

/// Returns the same cycle, which runs for `reason`: guests and host have types of their own for it.
pub(crate) fn lowered(group: &Group, reason: Reason) -> host::Cycle {
    let member = |member: &fulcrum_guest::Member| host::Member {
        id: member.id.clone(),
        zone: member.zone.clone(),
        labels: member.labels.clone(),
        capacity: member.capacity,
        since_ms: member.since_ms,
        topics: member.topics.clone(),
    };
    let cycle = group.cycle();
    host::Cycle {
        group: cycle.group.to_owned(),
        members: cycle.members.iter().map(member).collect(),
        topics: cycle.topics.to_vec(),
        places: cycle.places.to_vec(),
        topic: cycle.topic.to_vec(),
        number: cycle.number.to_vec(),
        place: cycle.place.to_vec(),
        owner: cycle.owner.to_vec(),
        moving: cycle.moving.to_vec(),
        weight: cycle.weight.to_vec(),
        held_ms: cycle.held_ms.to_vec(),
        movement_budget: cycle.movement_budget,
        reason,
        now_ms: cycle.now_ms,
        seed: cycle.seed,
    }
}
