//! Queues dealt one by one, topic by topic: RocketMQ's `AllocateMessageQueueAveragelyByCircle`.
//!
//! Members in the order of their ids, queues in that of broker (place) and number. What a member owns does not depend
//! on what it owned before, so a change of members moves much; `sticky` moves little.

use fulcrum_guest::claiming::allocate;
use fulcrum_guest::config::Fields;
use fulcrum_guest::{Changes, Claiming, Cycle, Description, Error};

/// The policy.
#[derive(Debug)]
pub struct AverageByCircle;

impl Claiming for AverageByCircle {
    fn describe() -> Description {
        Description {
            name: "average-by-circle",
            version: env!("CARGO_PKG_VERSION"),
            summary: "RocketMQ's averagely by circle: each topic's partitions dealt one by one to its subscribers.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        Fields::parse(config)?.finish()?;
        Ok(Self)
    }

    fn plan(&self, cycle: &Cycle<'_>) -> Result<Changes, Error> {
        cycle.check()?;
        let target =
            allocate::by_topic(cycle, |topic| allocate::by_circle(topic.members.len(), topic.queues.len()));
        Ok(allocate::towards(cycle, &target, "its place in the circle"))
    }
}
