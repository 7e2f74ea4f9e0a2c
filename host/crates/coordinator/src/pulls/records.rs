//! Message groups at rest: keys and stored forms. A stored record is neither a wire type nor a domain type.
//!
//! The small records can all be listed; the payload of a parked event or a dead letter is a record of its own, so that
//! a list is small whatever the events are. A payload is written before the record that names it and deleted after
//! it: a crash between leaves a payload nobody refers to, never a record without one.

use std::time::Duration;

use bytes::Bytes;
use fulcrum_core::delivery::{self, Backoff, Reason, Saved};
use fulcrum_core::time::millis;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::reader::{Name, Spec};
use super::{Error, Filters, Kind, Mode};

/// All records of readers start with it.
pub(super) const READERS: &str = "pulls/readers/";
/// All records of subscribers start with it.
pub(super) const SUBSCRIBERS: &str = "pulls/subscribers/";

/// A record of which there is one for each event, with the record of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Parked,
    Dead,
}

impl Kind {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Private => "private",
        }
    }

    fn read(text: &str) -> Option<Self> {
        [Self::Shared, Self::Private].into_iter().find(|kind| kind.text() == text)
    }
}

/// Returns the key of a reader's settings.
pub(super) fn reader_key(name: &Name) -> String {
    format!("{READERS}{}", path(name))
}

/// Returns the reader a key holds the settings of.
pub(super) fn reader_of(key: &str) -> Option<Name> {
    let mut parts = key.strip_prefix(READERS)?.split('/');
    let kind = Kind::read(parts.next()?)?;
    let (group, topic) = (parts.next()?, parts.next()?);
    parts.next().is_none().then(|| Name { topic: topic.into(), kind, group: group.into() })
}

/// Returns what the keys of a reader's subscribers start with.
pub(super) fn subscribers_prefix(name: &Name) -> String {
    format!("{SUBSCRIBERS}{}/", path(name))
}

/// Returns the key of a subscriber.
pub(super) fn subscriber_key(name: &Name, client: &str) -> String {
    format!("{}{client}", subscribers_prefix(name))
}

/// Returns the reader and the client of a subscriber's key.
pub(super) fn subscriber_of(key: &str) -> Option<(Name, String)> {
    let (reader, client) = key.strip_prefix(SUBSCRIBERS)?.rsplit_once('/')?;
    Some((reader_of(&format!("{READERS}{reader}"))?, client.to_owned()))
}

/// Returns what the keys of a reader's windows start with.
pub(super) fn windows_prefix(name: &Name) -> String {
    format!("pulls/windows/{}/", path(name))
}

/// Returns the key of a window.
pub(super) fn window_key(name: &Name, partition: u32) -> String {
    format!("{}{partition:06}", windows_prefix(name))
}

/// Returns what the keys of a reader's parked events or dead letters start with.
pub(super) fn events_prefix(name: &Name, of: Of) -> String {
    match of {
        Of::Parked => format!("pulls/parked/{}/", path(name)),
        Of::Dead => format!("pulls/dead/{}/", path(name)),
    }
}

/// Returns what the keys of the payloads belonging to [`events_prefix`] start with.
fn payloads_prefix(name: &Name, of: Of) -> String {
    match of {
        Of::Parked => format!("pulls/parked-events/{}/", path(name)),
        Of::Dead => format!("pulls/dead-events/{}/", path(name)),
    }
}

/// Returns the key of one parked event or dead letter.
pub(super) fn event_key(name: &Name, of: Of, (partition, position): (u32, u64)) -> String {
    format!("{}{}", events_prefix(name, of), tail(partition, position))
}

/// Returns the key of its payload.
pub(super) fn payload_key(name: &Name, of: Of, (partition, position): (u32, u64)) -> String {
    format!("{}{}", payloads_prefix(name, of), tail(partition, position))
}

/// Returns the partition that ends a window's key.
pub(super) fn partition_of(key: &str) -> Option<u32> {
    key.rsplit_once('/')?.1.parse().ok()
}

/// Returns the partition and position that end the key of an event.
pub(super) fn place_of(key: &str) -> Option<(u32, u64)> {
    let (rest, position) = key.rsplit_once('/')?;
    Some((partition_of(rest)?, position.parse().ok()?))
}

/// Returns the id of a dead letter: unique in its topic, and sorted as its key.
pub(super) fn dead_id(name: &Name, (partition, position): (u32, u64)) -> String {
    format!("{}/{}/{}", name.kind.text(), name.group, tail(partition, position))
}

/// Reads the id of a dead letter of a topic.
pub(super) fn parse_dead_id(topic: &str, id: &str) -> Option<(Name, (u32, u64))> {
    let mut parts = id.split('/');
    let kind = Kind::read(parts.next()?)?;
    let name = Name { topic: topic.into(), kind, group: parts.next()?.into() };
    let place = place_of(id)?;
    (dead_id(&name, place) == id).then_some((name, place))
}

fn path(name: &Name) -> String {
    format!("{}/{}/{}", name.kind.text(), name.group, name.topic)
}

/// Numbers in a fixed width, so that keys sort as they do.
fn tail(partition: u32, position: u64) -> String {
    format!("{partition:06}/{position:020}")
}

/// A reader's settings, which never change, and where it started.
#[derive(Serialize, Deserialize)]
pub(super) struct ReaderRecord {
    /// Which topic of this name; 0 while there is none.
    pub(super) incarnation: u64,
    /// Where the partitions start that have no window yet, from partition 0 on; those beyond start at 0.
    pub(super) starts: Vec<u64>,
    mode: String,
    filters: Value,
    invisible_ms: u64,
    deliveries_max: u32,
    is_fifo: bool,
    backoff: Option<BackoffRecord>,
}

#[derive(Serialize, Deserialize)]
struct BackoffRecord {
    initial_ms: u64,
    max_ms: u64,
    multiplier: u32,
}

impl ReaderRecord {
    pub(super) fn new(spec: &Spec, incarnation: u64, starts: Vec<u64>) -> Self {
        let backoff = match &spec.backoff {
            Backoff::Table => None,
            Backoff::Exponential { initial, max, multiplier } => Some(BackoffRecord {
                initial_ms: millis(*initial),
                max_ms: millis(*max),
                multiplier: *multiplier,
            }),
        };
        let mode = match spec.mode {
            Mode::LoadBalance => "load_balance",
            Mode::Broadcast => "broadcast",
            Mode::Multicast => "multicast",
        };
        Self {
            incarnation,
            starts,
            mode: mode.to_owned(),
            filters: spec.filters.to_json(),
            invisible_ms: millis(spec.invisible),
            deliveries_max: spec.deliveries_max,
            is_fifo: spec.is_fifo,
            backoff,
        }
    }

    /// Errors with [`Error::Invalid`] for filters nobody reads.
    pub(super) fn spec(&self) -> Result<Spec, Error> {
        let backoff = self.backoff.as_ref().map_or(Backoff::Table, |backoff| Backoff::Exponential {
            initial: Duration::from_millis(backoff.initial_ms),
            max: Duration::from_millis(backoff.max_ms),
            multiplier: backoff.multiplier,
        });
        Ok(Spec {
            mode: match self.mode.as_str() {
                "broadcast" => Mode::Broadcast,
                "multicast" => Mode::Multicast,
                _ => Mode::LoadBalance,
            },
            filters: Filters::parse(&self.filters)?,
            invisible: Duration::from_millis(self.invisible_ms),
            deliveries_max: self.deliveries_max,
            is_fifo: self.is_fifo,
            backoff,
        })
    }
}

/// A client's subscription.
#[derive(Serialize, Deserialize)]
pub(super) struct SubscriberRecord {
    pub(super) id: String,
}

/// A window's checkpoint. Numbers are differences, so that a window with many holes stays small.
#[derive(Serialize, Deserialize)]
pub(super) struct WindowRecord {
    /// Which topic of this name the positions belong to.
    pub(super) incarnation: u64,
    floor: u64,
    next: u64,
    /// Alternately how many positions are unsettled, and how many after them are settled, from the floor on.
    settled: Vec<u64>,
    /// Alternately the distance to the position before (0 at first) and its failed deliveries.
    attempts: Vec<u64>,
}

impl WindowRecord {
    pub(super) fn new(saved: &Saved, incarnation: u64) -> Self {
        let mut at = saved.floor;
        let mut settled = Vec::with_capacity(saved.settled.len() * 2);
        for (start, end) in &saved.settled {
            settled.extend([start.saturating_sub(at), end - start]);
            at = *end;
        }
        let mut at = 0;
        let mut attempts = Vec::with_capacity(saved.attempts.len() * 2);
        for (position, failed) in &saved.attempts {
            attempts.extend([position - at, u64::from(*failed)]);
            at = *position;
        }
        Self { incarnation, floor: saved.floor, next: saved.next, settled, attempts }
    }

    pub(super) fn saved(&self) -> Saved {
        let mut at = self.floor;
        let mut settled = Vec::with_capacity(self.settled.len() / 2);
        for pair in self.settled.chunks_exact(2) {
            let start = at.saturating_add(pair[0]);
            at = start.saturating_add(pair[1]);
            settled.push((start, at));
        }
        let mut at: u64 = 0;
        let mut attempts = Vec::with_capacity(self.attempts.len() / 2);
        for pair in self.attempts.chunks_exact(2) {
            at = at.saturating_add(pair[0]);
            attempts.push((at, u32::try_from(pair[1]).unwrap_or(u32::MAX)));
        }
        Saved { floor: self.floor, next: self.next, settled, attempts }
    }
}

/// A parked event without its payload.
#[derive(Serialize, Deserialize)]
pub(super) struct ParkedRecord {
    pub(super) key: Option<String>,
    /// Failed deliveries when this was written.
    pub(super) attempts: u32,
}

/// A dead letter without its payload.
#[derive(Serialize, Deserialize)]
pub(super) struct DeadRecord {
    pub(super) key: Option<String>,
    pub(super) attempts: u32,
    pub(super) reason: String,
    /// Milliseconds since 1970.
    pub(super) at: u64,
}

/// Returns the word for a reason.
pub(super) fn reason(reason: delivery::Reason) -> &'static str {
    match reason {
        Reason::LeaseEnded => "lease_ended",
        Reason::Rejected => "rejected",
        Reason::Restored => "unknown",
        Reason::Retention => "expired",
    }
}

/// Writes a record.
pub(super) fn encode(record: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(record).expect("records are plain data"))
}

/// Reads a record.
///
/// Errors with [`Error::Corrupt`].
pub(super) fn decode<T: serde::de::DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(value)
        .map_err(|error| Error::Corrupt { key: key.to_owned(), error: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_what_they_hold() {
        for kind in [Kind::Shared, Kind::Private] {
            let name = Name { topic: "t".into(), kind, group: "g-1".into() };
            assert_eq!(reader_of(&reader_key(&name)), Some(name.clone()));
            let subscriber = subscriber_key(&name, "c");
            assert_eq!(subscriber_of(&subscriber), Some((name.clone(), "c".to_owned())));
            assert_eq!(partition_of(&window_key(&name, 99_999)), Some(99_999));
            assert_eq!(place_of(&event_key(&name, Of::Parked, (7, u64::MAX))), Some((7, u64::MAX)));
            let id = dead_id(&name, (7, 12));
            assert_eq!(parse_dead_id("t", &id), Some((name, (7, 12))));
        }
        for wrong in ["", "shared/g/7/12", "shared/g", "x/g/000007/00000000000000000012", "shared"] {
            assert_eq!(parse_dead_id("t", wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_window_with_holes_stays_small_and_whole() {
        let base = 4_000_000_000_000;
        let settled = (0..5000).map(|n| (base + 2 * n + 1, base + 2 * n + 2)).collect();
        let attempts = vec![(3, 2), (base, 1), (base + 4, 16)];
        let saved = Saved { floor: base, next: base + 10_000, settled, attempts };
        let record = encode(&WindowRecord::new(&saved, 7));
        assert!(record.len() < 25_000, "{} bytes", record.len());
        let read: WindowRecord = decode("k", &record).expect("readable");
        assert_eq!((read.saved(), read.incarnation), (saved, 7));
    }
}
