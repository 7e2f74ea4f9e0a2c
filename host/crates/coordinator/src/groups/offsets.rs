//! Finding the offsets that a reset sets.

use fulcrum_core::Timestamp;
use fulcrum_core::group::{Place, Refused};
use fulcrum_store::Position;

use super::{Error, Groups};

/// Where a group should go on reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The oldest event there is.
    Earliest,
    /// What comes from now on.
    Latest,
    /// This offset, at most the end of the partition.
    Offset(u64),
    /// The first event that was stored then or later.
    Time(Timestamp),
}

/// Which partitions are reset, and to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Topic; `None` is all topics the group reads.
    pub topic: Option<String>,
    /// Partitions; `None` is all of the topic.
    pub partitions: Option<Vec<u32>>,
    /// Where to.
    pub to: Target,
}

impl Groups {
    /// Finds the offsets, sets them all or none, and raises the epochs; returns them.
    ///
    /// Errors with [`Refused::UnknownPartition`] for one the group does not read.
    pub async fn reset_to(&self, group: &str, reset: Reset) -> Result<Vec<(Place, u64)>, Error> {
        let view = self.view(group).await?;
        let known: Vec<_> = view.partitions.into_iter().map(|partition| partition.place).collect();
        let is_of_topic = |place: &Place| reset.topic.as_ref().is_none_or(|topic| *topic == place.topic);
        let is_wanted = |place: &Place| {
            let numbers = reset.partitions.as_ref();
            is_of_topic(place) && numbers.is_none_or(|numbers| numbers.contains(&place.partition))
        };
        let wanted: Vec<_> = known.into_iter().filter(is_wanted).collect();
        if let Some(topic) = &reset.topic {
            let mut asked = reset.partitions.clone().unwrap_or_else(|| vec![0]).into_iter();
            let is_missing = |number: &u32| !wanted.iter().any(|place| place.partition == *number);
            if let Some(partition) = asked.find(is_missing) {
                return Err(Refused::UnknownPartition { topic: topic.clone(), partition }.into());
            }
        }
        let mut offsets = Vec::new();
        for place in wanted {
            let offset = self.find(&place, reset.to).await?;
            offsets.push((place, offset));
        }
        let set = offsets.iter().map(|(place, offset)| (place.clone(), Some(*offset))).collect();
        self.reset(group, set).await?;
        Ok(offsets)
    }

    async fn find(&self, place: &Place, to: Target) -> Result<u64, Error> {
        let log = &self.parts.log;
        let bounds = log.partition(&place.topic, place.partition).await?;
        let Position(offset) = match to {
            Target::Earliest => bounds.first,
            Target::Latest => bounds.end,
            Target::Offset(offset) if offset <= bounds.end.0 => Position(offset),
            Target::Offset(_) => {
                return Err(Error::Invalid { field: "offset", must: "at most the end of every partition" });
            }
            Target::Time(at) => log.position_at(&place.topic, place.partition, at).await?,
        };
        Ok(offset)
    }
}
