//! The shell of the claiming role.

use std::cell::RefCell;
use std::thread::LocalKey;

use crate::claiming::Reason;
use crate::{Claiming, Cycle, Error, Member};

pub use bindings::exports::fulcrum::policy::{claiming, lifecycle};
pub use fulcrum_guest_claiming_bindings as bindings;

type State<P> = LocalKey<RefCell<Option<P>>>;

/// Answers `lifecycle.describe`.
pub fn describe<P: Claiming>() -> lifecycle::Description {
    let description = P::describe();
    lifecycle::Description {
        name: description.name.into(),
        version: description.version.into(),
        summary: description.summary.into(),
        config_schema: description.config_schema.into(),
    }
}

/// Answers `lifecycle.configure`.
pub fn configure<P: Claiming>(state: &'static State<P>, config: &str) -> Result<(), lifecycle::Error> {
    let policy = P::configure(config)?;
    state.with_borrow_mut(|kept| *kept = Some(policy));
    Ok(())
}

/// Answers `claiming.plan`.
pub fn plan<P: Claiming>(
    state: &'static State<P>,
    cycle: claiming::Cycle,
) -> Result<claiming::Changes, lifecycle::Error> {
    let members: Vec<Member> = cycle
        .members
        .into_iter()
        .map(|member| Member {
            id: member.id,
            zone: member.zone,
            labels: member.labels,
            capacity: member.capacity,
            since_ms: member.since_ms,
            topics: member.topics,
        })
        .collect();
    let plain = Cycle {
        group: &cycle.group,
        members: &members,
        topics: &cycle.topics,
        places: &cycle.places,
        topic: &cycle.topic,
        number: &cycle.number,
        place: &cycle.place,
        owner: &cycle.owner,
        moving: &cycle.moving,
        weight: &cycle.weight,
        held_ms: &cycle.held_ms,
        movement_budget: cycle.movement_budget,
        reason: reason(cycle.reason),
        now_ms: cycle.now_ms,
        seed: cycle.seed,
    };
    let changes = state.with_borrow(|kept| match kept {
        Some(policy) => policy.plan(&plain).map_err(lifecycle::Error::from),
        None => Err(lifecycle::Error::Failed("the policy was not configured".into())),
    })?;
    Ok(claiming::Changes {
        partition: changes.partition,
        member: changes.member,
        reason: changes.reason,
        reasons: changes.reasons.into_iter().map(std::borrow::Cow::into_owned).collect(),
        releases: changes.releases,
        next_cycle_ms: changes.next_cycle_ms,
    })
}

fn reason(reason: claiming::Reason) -> Reason {
    match reason {
        claiming::Reason::Join => Reason::Join,
        claiming::Reason::Leave => Reason::Leave,
        claiming::Reason::Expired => Reason::Expired,
        claiming::Reason::Disconnected => Reason::Disconnected,
        claiming::Reason::Subscription => Reason::Subscription,
        claiming::Reason::Partitions => Reason::Partitions,
        claiming::Reason::Policy => Reason::Policy,
        claiming::Reason::Config => Reason::Config,
        claiming::Reason::Interval => Reason::Interval,
        claiming::Reason::Fast => Reason::Fast,
        claiming::Reason::Manual => Reason::Manual,
    }
}

impl From<Error> for lifecycle::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidConfig(text) => Self::InvalidConfig(text),
            Error::InvalidInput(text) => Self::InvalidInput(text),
            Error::NoCandidate => Self::NoCandidate,
            Error::Unsupported => Self::Unsupported,
            Error::Failed(text) => Self::Failed(text),
        }
    }
}
