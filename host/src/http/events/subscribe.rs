//! Subscribing to topics, and ending that.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use fulcrum_coordinator::groups::check_name;
use fulcrum_coordinator::kinds::Kind;
use fulcrum_coordinator::pulls::{DEFAULT_GROUP, Filters, Mode, Subscription};
use fulcrum_core::delivery::Backoff;
use fulcrum_core::group::Start;
use serde_json::{Map, Value, json};

use crate::app::Services;
use crate::http::Result;
use crate::http::extract::Json;
use crate::http::instances::{Fields, invalid};

pub(super) fn routes() -> Router<Services> {
    Router::new().route("/events/subscribe", post(subscribe)).route("/events/unsubscribe", post(unsubscribe))
}

async fn subscribe(
    State(services): State<Services>,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Value>> {
    let mut subscription = read(&body)?;
    if subscription.mode == Mode::LoadBalance {
        subscription.group.get_or_insert_with(|| DEFAULT_GROUP.to_owned());
    }
    let shared = subscription.group.clone();
    let subscribing = services.events.subscribe(subscription);
    let id = match shared {
        Some(group) => services.kinds.making(&group, Kind::Messages, subscribing).await??,
        None => subscribing.await?,
    };
    let instance_url = services.balancer.own_url().unwrap_or_default();
    Ok(Json(json!({ "subscriptionId": id, "instanceUrl": instance_url })))
}

async fn unsubscribe(
    State(services): State<Services>,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Value>> {
    let fields = Fields(&body);
    let client = fields.text("clientId")?.ok_or_else(|| invalid("clientId", "given"))?;
    let topic = fields.text("topic")?;
    let count = services.pulls.unsubscribe(&client, topic.as_deref()).await?;
    Ok(Json(json!({ "removed": count > 0, "count": count })))
}

/// Reads the body of a subscribe call. Shapes are checked here, ranges by the groups; `null` is absent.
fn read(body: &Map<String, Value>) -> Result<Subscription> {
    let fields = Fields(body);
    let given = |name| fields.text(name)?.ok_or_else(|| invalid(name, "given"));
    let mode = match given("mode")?.as_str() {
        "LOAD_BALANCE" => Mode::LoadBalance,
        "BROADCAST" => Mode::Broadcast,
        "MULTICAST" => Mode::Multicast,
        _ => return Err(invalid("mode", "LOAD_BALANCE, BROADCAST or MULTICAST")),
    };
    let topic = given("topic")?;
    check_name("topic", &topic)?;
    let group = fields.text("group")?;
    if let Some(group) = &group {
        check_name("group", group)?;
    }
    let deliveries_max = fields.whole("maxDeliveries")?.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    Ok(Subscription {
        client: given("clientId")?,
        topic,
        mode,
        group,
        filters: fields.get("filters").map(Filters::parse).transpose()?,
        invisible: fields.whole("invisibleMs")?.map(Duration::from_millis),
        deliveries_max,
        fifo: flag(&fields, "fifo")?,
        start: match fields.text("start")?.as_deref() {
            None => None,
            Some("latest") => Some(Start::Latest),
            Some("earliest") => Some(Start::Earliest),
            Some(_) => return Err(invalid("start", "latest or earliest")),
        },
        backoff: fields.get("backoff").map(backoff).transpose()?,
    })
}

fn flag(fields: &Fields<'_>, name: &str) -> Result<Option<bool>> {
    let flag = |value: &Value| value.as_bool().ok_or_else(|| invalid(name, "true or false"));
    fields.get(name).map(flag).transpose()
}

/// Reads `"table"`, or `{"initialMs","maxMs","multiplier"}`.
fn backoff(value: &Value) -> Result<Backoff> {
    let must = || invalid("backoff", "\"table\", or an object of initialMs, maxMs and multiplier");
    match value {
        Value::String(name) if name == "table" => Ok(Backoff::Table),
        Value::Object(body) => {
            let fields = Fields(body);
            let whole = |name| fields.whole(name)?.ok_or_else(must);
            Ok(Backoff::Exponential {
                initial: Duration::from_millis(whole("initialMs")?),
                max: Duration::from_millis(whole("maxMs")?),
                multiplier: u32::try_from(whole("multiplier")?).map_err(|_| must())?,
            })
        }
        _ => Err(must()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_are_read() {
        let check = |body: Value, expected: std::result::Result<Subscription, &str>| {
            let found = read(body.as_object().expect("an object"));
            assert_eq!(found.map_err(|error| error.code()), expected, "{body}");
        };
        let plain = Subscription::new("c", "t", Mode::LoadBalance);
        check(json!({"clientId": "c", "topic": "t", "mode": "LOAD_BALANCE"}), Ok(plain.clone()));
        check(
            json!({"clientId": "c", "topic": "t", "mode": "LOAD_BALANCE", "group": null, "fifo": null}),
            Ok(plain.clone()),
        );
        let full = Subscription {
            group: Some("g".to_owned()),
            invisible: Some(Duration::from_secs(5)),
            deliveries_max: Some(3),
            fifo: Some(true),
            start: Some(Start::Earliest),
            backoff: Some(Backoff::Exponential {
                initial: Duration::from_millis(100),
                max: Duration::from_secs(1),
                multiplier: 2,
            }),
            ..plain
        };
        check(
            json!({"clientId": "c", "topic": "t", "mode": "LOAD_BALANCE", "group": "g", "invisibleMs": 5000,
                "maxDeliveries": 3.0, "fifo": true, "start": "earliest",
                "backoff": {"initialMs": 100, "maxMs": 1000, "multiplier": 2}}),
            Ok(full),
        );
        let multicast = Subscription {
            filters: Some(Filters::parse(&json!([{"exact": {"type": "a"}}])).expect("valid")),
            ..Subscription::new("c", "t", Mode::Multicast)
        };
        let filters = json!([{"exact": {"type": "a"}}]);
        check(json!({"clientId": "c", "topic": "t", "mode": "MULTICAST", "filters": filters}), Ok(multicast));
        for (field, value) in [
            ("clientId", json!(null)),
            ("clientId", json!(1)),
            ("topic", json!("a/b")),
            ("topic", json!("")),
            ("mode", json!("load_balance")),
            ("mode", json!(null)),
            ("group", json!("")),
            ("group", json!(["g"])),
            ("filters", json!([{"sql": "1"}])),
            ("filters", json!("x")),
            ("invisibleMs", json!(-1)),
            ("invisibleMs", json!("5s")),
            ("maxDeliveries", json!(1.5)),
            ("fifo", json!("yes")),
            ("start", json!("now")),
            ("backoff", json!("none")),
            ("backoff", json!({"initialMs": 1})),
            ("backoff", json!({"initialMs": 1, "maxMs": 1, "multiplier": 5_000_000_000_u64})),
        ] {
            let mut body = json!({"clientId": "c", "topic": "t", "mode": "LOAD_BALANCE"});
            body[field] = value;
            check(body, Err("invalid_value"));
        }
    }
}
