//! JSON of strangers: what clients send, files in the folder, schemas of guests, lines of a journal.
//!
//! `serde_json` gives one key a meaning of its own when it reads a [`Value`]: the text beside
//! `$serde_json::private::RawValue` is parsed in place of the object, by a new parser with a new limit of depth. Texts
//! within texts then overflow the stack. It cannot be switched off: the feature `raw_value` is on for everybody once
//! anybody in the build asks for it.
//!
//! Invariant: no value read here has that key at any depth, so a value that is written and read again is safe, too.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

const RESERVED: &str = "$serde_json::private::RawValue";

/// Any JSON without the reserved key, which is an error of data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plain(pub Value);

/// A JSON object without the reserved key; anything else is an error of data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlainMap(pub Map<String, Value>);

/// Reads a field as [`Plain`] does: for `#[serde(deserialize_with)]`.
pub fn plain<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Plain::deserialize(deserializer).map(|Plain(value)| value)
}

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

impl<'de> Deserialize<'de> for PlainMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Object)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Plain;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Plain, E> {
        Ok(Plain(Value::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Plain, E> {
        Ok(Plain(Value::Bool(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Plain, E> {
        Ok(Plain(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Plain, A::Error> {
        let mut values = Vec::new();
        while let Some(Plain(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Plain(Value::Array(values)))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Plain, A::Error> {
        Object.visit_map(fields).map(|PlainMap(map)| Plain(Value::Object(map)))
    }
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = PlainMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<PlainMap, A::Error> {
        let mut map = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if key == RESERVED {
                return Err(A::Error::custom(format_args!(
                    "the key `{RESERVED}` is reserved: use another name"
                )));
            }
            let Plain(value) = fields.next_value()?;
            map.insert(key, value);
        }
        Ok(PlainMap(map))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Texts within texts, each the value of the reserved key, as small as they can be written.
    fn nested(depth: usize) -> String {
        let mut text = "null".to_owned();
        for _ in 0..depth {
            // Twice escaped is longer than escaped with a number, which does not grow.
            let inner = text.replace('\\', "\\u005c").replace('"', "\\u0022");
            text = format!(r#"{{"{RESERVED}":"{inner}"}}"#);
        }
        text
    }

    #[test]
    fn the_reserved_key_is_refused_wherever_it_is() {
        let refused = [
            nested(1),
            nested(60),
            format!(r#"{{"{RESERVED}":1}}"#),
            format!(r#"{{"a":[{{"b":1,"{RESERVED}":"{{}}"}}]}}"#),
            r#"{"a":{"\u0024serde_json::private::RawValue":"1"}}"#.to_owned(),
        ];
        for text in refused {
            let error = serde_json::from_str::<Plain>(&text).expect_err(&text);
            assert!(error.is_data() && error.to_string().contains("is reserved"), "{error}");
            assert!(serde_json::from_str::<PlainMap>(&text).is_err(), "{text}");
        }
        // As a text it is like any other.
        let text = json!({ "a": RESERVED, "b": nested(3) });
        assert_eq!(serde_json::from_str::<Plain>(&text.to_string()).expect("harmless"), Plain(text));
    }

    #[test]
    fn depth_is_bounded() {
        let text = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(serde_json::from_str::<Plain>(&text).is_err());
    }

    #[test]
    fn only_an_object_is_a_map() {
        for text in ["[]", "1", "null", "\"a\"", "{", ""] {
            assert!(serde_json::from_str::<PlainMap>(text).is_err(), "{text}");
        }
        assert_eq!(serde_json::from_str::<PlainMap>("{}").expect("an object"), PlainMap::default());
    }

    proptest! {
        #[test]
        fn everything_else_reads_as_serde_json_reads_it(value in values()) {
            let text = value.to_string();
            let expected: Value = serde_json::from_str(&text).expect("it was just written");
            prop_assert_eq!(serde_json::from_str::<Plain>(&text).expect("valid").0, expected);
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".{0,4}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }
}
