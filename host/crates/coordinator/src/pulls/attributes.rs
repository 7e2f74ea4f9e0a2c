//! What a reader needs of an event: its attributes without its data.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::events::fnv1a;

/// Reads the attributes of an event as it was published; what is no JSON object has none.
pub(super) fn attributes(event: &[u8]) -> Map<String, Value> {
    serde_json::from_slice::<Attributes>(event).map(|read| read.0).unwrap_or_default()
}

/// Returns the routing key of an event: its message group, else its partition key.
///
/// An empty one is none. What is no text is written as JSON writes it.
#[must_use]
pub fn routing_key(attributes: &Map<String, Value>) -> Option<String> {
    ["messagegroup", "partitionkey"].iter().find_map(|name| match attributes.get(*name)? {
        Value::Null => None,
        Value::String(key) => Some(key.clone()).filter(|key| !key.is_empty()),
        other => Some(other.to_string()),
    })
}

/// Longest key, in bytes, that is kept as it is.
const KEY_BYTES_MAX: usize = 256;

/// Returns what stands for a routing key in memory and in records, whatever its length. Long keys that stand for the
/// same are few, and only wait for one another.
pub(super) fn short_key(key: String) -> String {
    if key.len() <= KEY_BYTES_MAX {
        return key;
    }
    format!("{}:{:016x}", key.len(), fnv1a(key.as_bytes()))
}

struct Attributes(Map<String, Value>);

impl<'de> Deserialize<'de> for Attributes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reading)
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Attributes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attributes, A::Error> {
        let mut attributes = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            // Data may be large, and nothing here looks at it.
            if name == "data" || name == "data_base64" {
                map.next_value::<IgnoredAny>()?;
            } else {
                attributes.insert(name, map.next_value()?);
            }
        }
        Ok(Attributes(attributes))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_keys_are_kept_short() {
        let check = |key: String, is_kept: bool| {
            let short = short_key(key.clone());
            assert_eq!(short == key, is_kept, "{} bytes", key.len());
            assert!(short.len() <= KEY_BYTES_MAX);
        };
        check(String::new(), true);
        check("k".repeat(KEY_BYTES_MAX), true);
        check("k".repeat(KEY_BYTES_MAX + 1), false);
        check("\"".repeat(1 << 20), false);
        assert_ne!(short_key("a".repeat(300)), short_key("b".repeat(300)));
        // Records keep it over versions of the host.
        assert_eq!(short_key("a".repeat(257)), "257:70a8dc6fbe487b8c");
    }

    #[test]
    fn attributes_come_without_data() {
        let event =
            json!({"id": "1", "messagegroup": 7, "data": {"id": "2"}, "data_base64": "x"}).to_string();
        let found = attributes(event.as_bytes());
        assert_eq!(Value::Object(found.clone()), json!({"id": "1", "messagegroup": 7}));
        assert_eq!(routing_key(&found).as_deref(), Some("7"));
        for (event, key) in [
            (r#"{"partitionkey":"p","messagegroup":"m"}"#, Some("m")),
            (r#"{"partitionkey":"p","messagegroup":""}"#, Some("p")),
            (r#"{"partitionkey":null}"#, None),
            ("[]", None),
            ("{", None),
            ("\"x\"", None),
        ] {
            assert_eq!(routing_key(&attributes(event.as_bytes())).as_deref(), key, "{event}");
        }
    }
}
