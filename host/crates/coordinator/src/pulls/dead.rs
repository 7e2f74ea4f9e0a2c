//! Dead letters: to be looked at, and given back to their groups.

use fulcrum_core::Timestamp;

use super::jobs::{Place, Work};
use super::reader::Command;
use super::{DeadLetter, Error, Kind, POLL_MAX, Pulls, records};

/// Bytes of the events of one page: the one that reaches it is the last.
pub const PAGE_BYTES: usize = 4 << 20;

/// Most dead letters that one call gives back to one group.
const REDRIVE_MAX: usize = 1000;

impl Pulls {
    /// Lists up to `max` dead letters of a topic (at most [`POLL_MAX`], and none after [`PAGE_BYTES`]) that come after the one with the id `after`;
    /// `group` is the name of a shared group.
    ///
    /// Errors with [`Error::Invalid`] for an `after` that is no id of this topic.
    pub async fn dead_letters(
        &self,
        topic: &str,
        group: Option<&str>,
        max: usize,
        after: Option<&str>,
    ) -> Result<Vec<DeadLetter>, Error> {
        self.refuse_if_stopping()?;
        let max = max.min(POLL_MAX);
        let after = match after.map(|id| records::parse_dead_id(topic, id)) {
            Some(None) => return Err(Error::Invalid { field: "after", must: "the id of a dead letter" }),
            after => after.flatten(),
        };
        let (mut letters, mut bytes) = (Vec::new(), 0);
        for handle in self.dead_of(topic, group) {
            let name = &handle.name;
            let is_next = |place: &Place| after.as_ref().is_none_or(|(last, at)| (last, at) < (name, place));
            if after.as_ref().is_some_and(|(last, _)| name < last) {
                continue;
            }
            let work = Work::new(self.parts.clone(), name.clone(), handle.spec.clone());
            for place in work.dead_places().await?.into_iter().filter(is_next) {
                if letters.len() == max || PAGE_BYTES <= bytes {
                    return Ok(letters);
                }
                // It may have been given back meanwhile.
                let Some((dead, event)) = work.dead(place).await? else { continue };
                bytes += event.len();
                letters.push(DeadLetter {
                    id: records::dead_id(name, place),
                    kind: name.kind,
                    group: name.group.to_string(),
                    topic: name.topic.to_string(),
                    partition: place.0,
                    position: place.1,
                    attempts: dead.attempts,
                    reason: dead.reason,
                    at: Timestamp(dead.at),
                    event,
                });
            }
        }
        Ok(letters)
    }

    /// Gives dead letters back to their groups as if they were never delivered: those with `ids`, or all; returns
    /// how many. A group takes at most 1,000 at once, and no more than it can park; call again for the rest. What is
    /// no dead letter of the topic is not counted.
    ///
    /// Errors with [`Error::UnknownGroup`] for a group that does not read the topic.
    pub async fn redrive(
        &self,
        topic: &str,
        group: Option<&str>,
        ids: Option<&[String]>,
    ) -> Result<usize, Error> {
        self.refuse_if_stopping()?;
        let handles = self.dead_of(topic, group);
        if handles.is_empty()
            && let Some(group) = group
        {
            return Err(Error::UnknownGroup { group: group.to_owned(), topic: topic.to_owned() });
        }
        let wanted: Option<Vec<_>> =
            ids.map(|ids| ids.iter().filter_map(|id| records::parse_dead_id(topic, id)).collect());
        let mut count = 0;
        for handle in handles {
            let places: Option<Vec<Place>> = wanted.as_ref().map(|wanted| {
                wanted.iter().filter(|(name, _)| *name == handle.name).map(|(_, place)| *place).collect()
            });
            if places.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            let redrive = |reply| Command::Redrive { places, max: REDRIVE_MAX, reply };
            count += self.ask(&handle.name, redrive).await?;
        }
        Ok(count)
    }

    fn dead_of(&self, topic: &str, group: Option<&str>) -> Vec<std::sync::Arc<super::reader::Handle>> {
        let mut handles = self.registry.lock().all_of(topic);
        let is_it = |name: &super::reader::Name| {
            group.is_none_or(|group| name.kind == Kind::Shared && *name.group == *group)
        };
        handles.retain(|handle| is_it(&handle.name));
        handles
    }
}
