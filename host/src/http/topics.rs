//! Topics: making, growing, describing, listing, deleting.

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, put};
use fulcrum_coordinator::events::{Described, KeptPatch, Refused, TopicPatch};
use fulcrum_coordinator::groups::check_name;
use fulcrum_core::NAME_BYTES_MAX;
use fulcrum_store::{Partition, Topic};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Result;
use super::error::Error;
use super::extract::Json;
use super::instances::{Fields, invalid, parameter};
use crate::app::Services;

pub(crate) fn routes() -> Router<Services> {
    Router::new().route("/topics", get(all)).route("/topics/{topic}", put(make).get(show).delete(delete))
}

/// Largest relative weight of a partition.
const WEIGHT_MAX: f64 = 1e6;

impl From<Refused> for Error {
    fn from(error: Refused) -> Self {
        match error {
            Refused::OrderedReaders { .. } => {
                Self::new(StatusCode::CONFLICT, "fifo_topic", error.to_string())
            }
            Refused::Store(error) => error.into(),
        }
    }
}

type Name = std::result::Result<Path<String>, PathRejection>;

#[derive(Serialize)]
struct TopicBody {
    topic: String,
    partitions: u32,
}

impl From<Topic> for TopicBody {
    fn from(topic: Topic) -> Self {
        Self { topic: topic.name, partitions: topic.partition_count }
    }
}

/// A topic with all there is to know of it; the lists have one entry per partition, or none at all.
#[derive(Serialize)]
struct DescribedBody {
    topic: String,
    partitions: usize,
    places: Vec<String>,
    weights: Vec<f64>,
    /// The limits in force; null is no limit.
    #[serde(rename = "retentionMs")]
    retention_ms: Option<u64>,
    #[serde(rename = "retentionBytes")]
    retention_bytes: Option<u64>,
    #[serde(rename = "hardLimitBytes")]
    hard_limit_bytes: Option<u64>,
    offsets: Vec<PartitionBody>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PartitionBody {
    partition: u32,
    first_offset: u64,
    end_offset: u64,
    bytes: u64,
}

async fn all(State(services): State<Services>) -> Result<Json<Vec<TopicBody>>> {
    let topics = services.log.topics().await?;
    Ok(Json(topics.into_iter().map(TopicBody::from).collect()))
}

async fn show(State(services): State<Services>, name: Name) -> Result<Json<DescribedBody>> {
    let topic = parameter(name)?;
    let Described { partitions, facts, own } = services.events.describe(&topic).await?;
    let limits = services.retention.limits(own);
    let body = |(partition, found): (u32, Partition)| {
        let (first_offset, end_offset) = (found.first.0, found.end.0);
        PartitionBody { partition, first_offset, end_offset, bytes: found.bytes }
    };
    Ok(Json(DescribedBody {
        topic,
        partitions: partitions.len(),
        places: facts.places,
        weights: facts.weights,
        retention_ms: limits.age_ms,
        retention_bytes: limits.bytes,
        hard_limit_bytes: limits.hard_bytes,
        offsets: (0..).zip(partitions).map(body).collect(),
    }))
}

async fn make(
    State(services): State<Services>,
    name: Name,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<TopicBody>> {
    let name = parameter(name)?;
    check_name("topic", &name)?;
    Ok(Json(services.events.put_topic(&name, patch(&body)?).await?.into()))
}

/// Reads what a topic should become.
fn patch(body: &Map<String, Value>) -> Result<TopicPatch> {
    let must = || invalid("partitions", "a whole number of 1 to 100000");
    let count = Fields(body).whole("partitions")?.ok_or_else(must)?;
    let partition_count = u32::try_from(count).ok().filter(|&count| count > 0).ok_or_else(must)?;
    let place = |value: &Value| {
        let text = value.as_str()?;
        let is_fine = text.len() <= NAME_BYTES_MAX && !text.contains(char::is_control);
        is_fine.then(|| text.to_owned())
    };
    // Every number of JSON is finite.
    let weight = |value: &Value| value.as_f64().filter(|weight| 0.0 < *weight && *weight <= WEIGHT_MAX);
    Ok(TopicPatch {
        partition_count,
        places: list(body, "places", count, "texts of at most 256 bytes without control characters", place)?,
        weights: list(body, "weights", count, "numbers above 0, at most 1e6", weight)?,
        kept: KeptPatch {
            age_ms: limit(body, "retentionMs")?,
            bytes: limit(body, "retentionBytes")?,
            hard_bytes: limit(body, "hardLimitBytes")?,
        },
    })
}

/// Reads a limit: 0 is none, null is that of the host, `None` if it is absent.
fn limit(body: &Map<String, Value>, name: &str) -> Result<Option<Option<u64>>> {
    match body.get(name) {
        None => Ok(None),
        Some(_) => Fields(body).whole(name).map(Some),
    }
}

/// Reads a list with one entry per partition, or an empty one; `None` if it is absent.
fn list<T>(
    body: &Map<String, Value>,
    name: &str,
    count: u64,
    what: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<Vec<T>>> {
    let fields = Fields(body);
    let Some(value) = fields.get(name) else { return Ok(None) };
    let entries = value.as_array().filter(|entries| entries.is_empty() || entries.len() as u64 == count);
    let entries = entries.and_then(|entries| entries.iter().map(read).collect::<Option<Vec<_>>>());
    let must = || invalid(name, &format!("a list of {count} {what}, one per partition, or an empty list"));
    entries.map(Some).ok_or_else(must)
}

async fn delete(State(services): State<Services>, name: Name) -> Result<Json<Value>> {
    let name = parameter(name)?;
    services.events.delete_topic(&name).await?;
    Ok(Json(json!({ "topic": name, "status": "deleted" })))
}

#[cfg(test)]
mod tests {
    use super::super::error::Error;
    use super::*;

    #[test]
    fn bodies_of_topics_are_checked() {
        let check = |body: Value, expected: std::result::Result<TopicPatch, &str>| {
            let found = patch(body.as_object().expect("an object"));
            let found = found.as_ref().map_err(Error::code);
            assert_eq!(found, expected.as_ref().map_err(|code| *code), "{body}");
        };
        let texts = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
        let two = TopicPatch { partition_count: 2, ..TopicPatch::default() };
        check(json!({ "partitions": 2 }), Ok(two.clone()));
        check(json!({ "partitions": 2, "places": null, "weights": null }), Ok(two.clone()));
        let cleared = TopicPatch { places: texts(&[]), weights: Some(Vec::new()), ..two };
        check(json!({ "partitions": 2, "places": [], "weights": [] }), Ok(cleared));
        let full = TopicPatch { places: texts(&["a@b", ""]), weights: Some(vec![1e6, 0.5]), ..two };
        check(json!({ "partitions": 2, "places": ["a@b", ""], "weights": [1_000_000, 0.5] }), Ok(full));
        let kept = |age_ms, bytes, hard_bytes| KeptPatch { age_ms, bytes, hard_bytes };
        for (body, kept) in [
            (json!({ "retentionMs": 5, "retentionBytes": 0 }), kept(Some(Some(5)), Some(Some(0)), None)),
            (json!({ "retentionMs": null, "hardLimitBytes": 7.0 }), kept(Some(None), None, Some(Some(7)))),
        ] {
            let mut body = body;
            body["partitions"] = json!(2);
            check(body, Ok(TopicPatch { kept, ..two.clone() }));
        }
        let longest = TopicPatch { places: texts(&[&"x".repeat(256), ""]), ..two };
        check(json!({ "partitions": 2, "places": ["x".repeat(256), ""] }), Ok(longest));
        for wrong in [
            json!({ "partitions": 2, "places": ["a"] }),
            json!({ "partitions": 2, "places": ["a", "b", "c"] }),
            json!({ "partitions": 2, "places": ["a", 1] }),
            json!({ "partitions": 2, "places": ["a", null] }),
            json!({ "partitions": 2, "places": "ab" }),
            json!({ "partitions": 2, "places": ["a", "b\n"] }),
            json!({ "partitions": 2, "places": ["a", "x".repeat(257)] }),
            json!({ "partitions": 2, "weights": [1] }),
            json!({ "partitions": 2, "weights": [1, 0] }),
            json!({ "partitions": 2, "weights": [1, -1] }),
            json!({ "partitions": 2, "weights": [1, 1_000_001] }),
            json!({ "partitions": 2, "weights": [1, "1"] }),
            json!({ "partitions": 2, "weights": { "0": 1 } }),
            json!({ "partitions": 2, "retentionMs": -1 }),
            json!({ "partitions": 2, "retentionBytes": "1g" }),
            json!({ "partitions": 2, "hardLimitBytes": 1.5 }),
            json!({ "weights": [] }),
        ] {
            check(wrong, Err("invalid_value"));
        }
    }
}
