//! What is known of a topic: how many partitions it has, the places and weights that operators gave them, and how much
//! of it is kept.
//!
//! Invariants: what was said of a topic that was deleted says nothing of one that is made again under its name; a
//! record fits the store's largest value, whatever the lists.

use bytes::Bytes;
use fulcrum_core::group::Facts;
use fulcrum_store::{
    ClusterStore, Error, EventLog, Expected, Revision, Topic, Update, VALUE_BYTES_MAX, Versioned,
};
use serde::{Deserialize, Serialize};

use super::records;
use crate::retention::Own;

/// The facts of one topic at rest.
#[derive(Serialize, Deserialize)]
struct FactsRecord {
    /// Which topic of this name they are of.
    incarnation: u64,
    places: Vec<String>,
    /// As texts, which come back to the last bit: numbers in JSON do not always.
    weights: Vec<String>,
    /// Records of earlier hosts have none of these.
    #[serde(default)]
    retention_ms: Option<u64>,
    #[serde(default)]
    retention_bytes: Option<u64>,
    #[serde(default)]
    hard_limit_bytes: Option<u64>,
}

/// The facts of a topic with the revision they were read at.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) facts: Facts,
    /// How much of it is kept.
    pub(crate) own: Own,
    /// Of the record, also where it is of a former topic; `None` if there is none.
    revision: Option<Revision>,
}

/// Returns the key of a topic's record.
fn key(topic: &str) -> String {
    format!("topics/{topic}")
}

/// Reads a topic with its facts; `None` if there is no such topic.
pub(super) async fn look(
    log: &dyn EventLog,
    store: &dyn ClusterStore,
    topic: &str,
) -> Result<Option<(Topic, Facts)>, Error> {
    let Some(known) = find(log, topic).await? else { return Ok(None) };
    let found = read(store, topic, Some(known.incarnation)).await?;
    Ok(Some((known, found.facts)))
}

/// Reads a topic; `None` if there is no such topic.
pub(crate) async fn find(log: &dyn EventLog, topic: &str) -> Result<Option<Topic>, Error> {
    match log.topic(topic).await {
        Err(Error::UnknownTopic { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// Reads what was said of the topic of that incarnation; nothing if there is no such topic.
pub(crate) async fn read(
    store: &dyn ClusterStore,
    topic: &str,
    incarnation: Option<u64>,
) -> Result<Found, Error> {
    let key = key(topic);
    let Some(Versioned { revision, value }) = store.get(&key).await? else { return Ok(Found::default()) };
    let (facts, own) = match serde_json::from_slice::<FactsRecord>(&value) {
        Ok(record) if Some(record.incarnation) == incarnation => {
            let own = record.own();
            (record.facts(), own)
        }
        Ok(_) => Default::default(),
        Err(error) => {
            // Without it groups plan as if nothing was known, which beats not to plan at all; and nothing is trimmed.
            tracing::error!(key, %error, "a topic's record cannot be read, its places and weights are unknown");
            (Facts::default(), Own { age_ms: Some(0), bytes: Some(0), hard_bytes: Some(0) })
        }
    };
    Ok(Found { facts, own, revision: Some(revision) })
}

/// Refuses facts whose record the store would not take.
///
/// Errors with [`Error::TooLarge`].
pub(crate) fn check(facts: &Facts) -> Result<(), Error> {
    let longest = Own { age_ms: Some(u64::MAX), bytes: Some(u64::MAX), hard_bytes: Some(u64::MAX) };
    let found = encode(facts, longest, u64::MAX).len();
    if found <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::TooLarge { what: "bytes of all places and weights of a topic", found, limit: VALUE_BYTES_MAX })
}

/// Stores what is said of a topic, in the place of what was found.
pub(crate) async fn write(
    store: &dyn ClusterStore,
    topic: &str,
    incarnation: u64,
    found: &Found,
    facts: &Facts,
    own: Own,
) -> Result<(), Error> {
    let is_empty = *facts == Facts::default() && own == Own::default();
    let update = match (is_empty, found.revision) {
        (true, None) => return Ok(()),
        (true, Some(_)) => Update::Delete,
        (false, _) => Update::Put(encode(facts, own, incarnation)),
    };
    store.compare_and_swap(&key(topic), Expected::from(found.revision), update).await.map(drop)
}

fn encode(facts: &Facts, own: Own, incarnation: u64) -> Bytes {
    let weights = facts.weights.iter().map(|weight| format!("{weight:e}")).collect();
    records::encode(&FactsRecord {
        incarnation,
        places: facts.places.clone(),
        weights,
        retention_ms: own.age_ms,
        retention_bytes: own.bytes,
        hard_limit_bytes: own.hard_bytes,
    })
}

impl FactsRecord {
    fn own(&self) -> Own {
        Own { age_ms: self.retention_ms, bytes: self.retention_bytes, hard_bytes: self.hard_limit_bytes }
    }

    fn facts(self) -> Facts {
        // Only what was checked is stored: anything else would be somebody else's doing.
        let weight =
            |text: &String| text.parse().ok().filter(|weight| 0.0 < *weight && f64::is_finite(*weight));
        let weights = self.weights.iter().map(|text| weight(text).unwrap_or(1.0)).collect();
        Facts { places: self.places, weights }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_facts_to_the_last_bit_and_within_the_limit() {
        let weights = vec![0.1, 1e6, f64::MIN_POSITIVE, 1.0 / 3.0, 123_456.789_012_345_67];
        let places = vec![String::new(), "roomA@broker-1".to_owned(), "\"größe\"".to_owned()];
        let facts = Facts { places, weights };
        let own = Own { age_ms: Some(0), bytes: None, hard_bytes: Some(u64::MAX) };
        let record: FactsRecord =
            serde_json::from_slice(&encode(&facts, own, 7)).expect("it was just written");
        assert_eq!((record.incarnation, record.own(), record.facts()), (7, own, facts));
        let earlier = br#"{"incarnation":3,"places":["a"],"weights":[]}"#;
        let record: FactsRecord = serde_json::from_slice(earlier).expect("earlier hosts wrote this");
        assert_eq!((record.own(), record.facts().places), (Own::default(), vec!["a".to_owned()]));
        let places = |count| Facts { places: vec!["x".repeat(256); count], weights: Vec::new() };
        check(&places(4000)).expect("it fits");
        let refused = check(&places(4100)).expect_err("it does not");
        assert!(matches!(refused, Error::TooLarge { limit: VALUE_BYTES_MAX, .. }), "{refused}");
    }
}
