//! Topics: making, growing, listing, deleting.

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::routing::{get, put};
use fulcrum_coordinator::groups::check_name;
use fulcrum_store::Topic;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Result;
use super::extract::Json;
use super::instances::{Fields, invalid, parameter};
use crate::app::Services;

pub(crate) fn routes() -> Router<Services> {
    Router::new().route("/topics", get(list)).route("/topics/{topic}", put(make).get(show).delete(delete))
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

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PartitionBody {
    partition: u32,
    first_offset: u64,
    end_offset: u64,
    bytes: u64,
}

async fn list(State(services): State<Services>) -> Result<Json<Vec<TopicBody>>> {
    let topics = services.log.topics().await?;
    Ok(Json(topics.into_iter().map(TopicBody::from).collect()))
}

async fn show(State(services): State<Services>, name: Name) -> Result<Json<Value>> {
    let topic = services.log.topic(&parameter(name)?).await?;
    let mut partitions = Vec::new();
    for partition in 0..topic.partition_count {
        let found = services.log.partition(&topic.name, partition).await?;
        let (first_offset, end_offset) = (found.first.0, found.end.0);
        partitions.push(PartitionBody { partition, first_offset, end_offset, bytes: found.bytes });
    }
    Ok(Json(json!({ "topic": topic.name, "partitions": topic.partition_count, "offsets": partitions })))
}

async fn make(
    State(services): State<Services>,
    name: Name,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<TopicBody>> {
    let name = parameter(name)?;
    check_name("topic", &name)?;
    let must = || invalid("partitions", "a whole number of 1 to 100000");
    let count = Fields(&body).whole("partitions")?.ok_or_else(must)?;
    let count = u32::try_from(count).ok().filter(|&count| count > 0).ok_or_else(must)?;
    Ok(Json(services.events.put_topic(&name, count).await?.into()))
}

async fn delete(State(services): State<Services>, name: Name) -> Result<Json<Value>> {
    let name = parameter(name)?;
    services.events.delete_topic(&name).await?;
    Ok(Json(json!({ "topic": name, "status": "deleted" })))
}
