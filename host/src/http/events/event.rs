//! One CloudEvent 1.0 in JSON: what is checked, and what the host needs of it.

use axum::body::Bytes;
use axum::http::StatusCode;
use fulcrum_coordinator::pulls::routing_key;
use fulcrum_policy::json::Plain;
use serde_json::Value;

use crate::http::Result;
use crate::http::error::Error;

/// What the host needs of an event.
#[derive(Debug, PartialEq)]
pub(super) struct Event {
    /// Events of one key keep their order.
    pub(super) key: Option<String>,
}

impl Event {
    /// Reads an event and checks it against CloudEvents 1.0, JSON format.
    pub(super) fn read(body: &[u8]) -> Result<Self> {
        let Plain(event) = serde_json::from_slice(body)
            .map_err(|error| Error::new(StatusCode::BAD_REQUEST, "invalid_json", error.to_string()))?;
        let Value::Object(event) = event else { return Err(invalid("an event must be a JSON object")) };
        for name in ["specversion", "id", "source", "type"] {
            match event.get(name) {
                Some(Value::String(text)) if !text.is_empty() => {}
                None | Some(Value::Null) => return Err(invalid(format!("the attribute {name} is missing"))),
                Some(_) => return Err(invalid(format!("{name} must be a text that is not empty"))),
            }
        }
        if event["specversion"] != "1.0" {
            return Err(invalid("specversion must be \"1.0\""));
        }
        let given = |name: &str| event.get(name).is_some_and(|value| !value.is_null());
        if given("data") && given("data_base64") {
            return Err(invalid("an event has either data or data_base64"));
        }
        event.iter().try_for_each(|(name, value)| check_attribute(name, value))?;
        Ok(Self { key: routing_key(&event) })
    }
}

fn check_attribute(name: &str, value: &Value) -> Result<()> {
    match (name, value) {
        ("data", _) | (_, Value::Null) | ("data_base64", Value::String(_)) => return Ok(()),
        ("data_base64", _) => return Err(invalid("data_base64 must be a text")),
        _ => {}
    }
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
        return Err(invalid(format!("the attribute name {name:?} must consist of a to z and 0 to 9")));
    }
    let is_text = matches!(value, Value::String(text) if !text.is_empty());
    match name {
        "datacontenttype" | "dataschema" | "subject" | "time" if !is_text => {
            Err(invalid(format!("{name} must be a text that is not empty")))
        }
        _ if value.is_array() || value.is_object() => {
            Err(invalid(format!("the extension {name} must be a text, a number or a boolean")))
        }
        _ => Ok(()),
    }
}

/// Returns the event as it came, on one line: in JSON a line break can only be white space between tokens.
pub(super) fn one_line(body: &Bytes) -> Bytes {
    let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if body.iter().any(is_break) {
        body.iter().map(|byte| if is_break(byte) { b' ' } else { *byte }).collect()
    } else {
        body.clone()
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "invalid_event", message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_checked_and_keyed() {
        let check = |changes: Value, expected: std::result::Result<Option<&str>, &str>| {
            let mut event =
                json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"a": [1]}});
            for (name, value) in changes.as_object().expect("an object") {
                event[name] = value.clone();
            }
            let found = Event::read(event.to_string().as_bytes());
            let found = found.as_ref().map(|event| event.key.as_deref()).map_err(Error::code);
            assert_eq!(found, expected, "{changes}");
        };
        check(json!({}), Ok(None));
        check(json!({"time": "2026-01-01T00:00:00Z", "subject": "s", "myext1": 7, "flag": true}), Ok(None));
        check(json!({"partitionkey": "p"}), Ok(Some("p")));
        check(json!({"partitionkey": "p", "messagegroup": "m"}), Ok(Some("m")));
        check(json!({"partitionkey": 7}), Ok(Some("7")));
        check(json!({"partitionkey": null, "messagegroup": ""}), Ok(None));
        check(json!({"data": null, "data_base64": "AA=="}), Ok(None));
        for wrong in [
            json!({"specversion": "0.3"}),
            json!({"specversion": 1.0}),
            json!({"id": ""}),
            json!({"id": null}),
            json!({"source": 1}),
            json!({"type": []}),
            json!({"data_base64": "AA=="}),
            json!({"data": null, "data_base64": 1}),
            json!({"myExt": "x"}),
            json!({"ext": {"a": 1}}),
            json!({"subject": ""}),
            json!({"time": 5}),
        ] {
            check(wrong, Err("invalid_event"));
        }
        assert_eq!(Event::read(b"[]").map_err(|error| error.code()), Err("invalid_event"));
        assert_eq!(Event::read(b"{").map_err(|error| error.code()), Err("invalid_json"));
    }

    #[test]
    fn line_breaks_become_blanks() {
        assert_eq!(
            one_line(&Bytes::from_static(b"{\r\n\"a\":\"\\n\"}")),
            Bytes::from_static(b"{  \"a\":\"\\n\"}")
        );
    }
}
