//! Contiguous blocks of queues, topic by topic: RocketMQ's `AllocateMessageQueueAveragely`, its default.
//!
//! Members in the order of their ids, queues in that of broker (place) and number. What a member owns does not depend
//! on what it owned before, so a change of members moves much; `sticky` moves little.

use fulcrum_guest::claiming::allocate;
use fulcrum_guest::config::Fields;
use fulcrum_guest::{Changes, Claiming, Cycle, Description, Error};

/// The policy.
#[derive(Debug)]
pub struct Average;

impl Claiming for Average {
    fn describe() -> Description {
        Description {
            name: "average",
            version: env!("CARGO_PKG_VERSION"),
            summary: "RocketMQ's averagely: each topic's partitions in contiguous blocks over its subscribers, the first ones get one more.",
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
            allocate::by_topic(cycle, |topic| allocate::averagely(topic.members.len(), topic.queues.len()));
        Ok(allocate::towards(cycle, &target, "its place in the blocks"))
    }
}
