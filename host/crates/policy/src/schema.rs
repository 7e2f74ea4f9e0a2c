//! The JSON Schema a policy describes its configuration with.

use serde_json::Value;

use crate::json::Plain;
use crate::refusal::Refusal;

/// Most problems listed for one configuration.
const PROBLEMS_MAX: usize = 20;

/// A schema that was accepted.
pub(crate) struct Schema(Option<jsonschema::Validator>);

impl Schema {
    /// Accepts any JSON object.
    pub(crate) fn any() -> Self {
        Self(None)
    }

    /// Reads a schema; empty text accepts any object.
    ///
    /// The text comes from a guest: references are followed inside the document only, and only where they cannot go
    /// in circles; patterns are matched in linear time.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        if text.trim().is_empty() {
            return Ok(Self::any());
        }
        let bad = |error: String| Refusal::Schema { error };
        let Plain(schema) = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if !schema.is_object() {
            return Err(bad("it must be a JSON object".to_owned()));
        }
        if let Some(word) = first_reference(&schema) {
            return Err(bad(format!("`{word}` is not supported: write the definition where it is used")));
        }
        jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .with_pattern_options(jsonschema::PatternOptions::regex())
            .build(&schema)
            .map(|validator| Self(Some(validator)))
            .map_err(|error| bad(error.to_string()))
    }

    /// Checks a configuration; a refusal lists every problem with its place.
    pub(crate) fn check(&self, config: &Value) -> Result<(), Refusal> {
        if !config.is_object() {
            return Err(Refusal::Config { problems: vec!["it must be a JSON object".to_owned()] });
        }
        let Some(validator) = &self.0 else { return Ok(()) };
        let problem = |error: jsonschema::ValidationError<'_>| match error.instance_path().as_str() {
            "" => error.to_string(),
            path => format!("{path}: {error}"),
        };
        let problems: Vec<_> = validator.iter_errors(config).take(PROBLEMS_MAX).map(problem).collect();
        if problems.is_empty() { Ok(()) } else { Err(Refusal::Config { problems }) }
    }
}

/// Finds a reference keyword. References could make a validator of a hostile schema run in circles, and no
/// configuration of a policy needs them.
fn first_reference(schema: &Value) -> Option<&'static str> {
    const WORDS: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
    match schema {
        Value::Object(fields) => WORDS
            .into_iter()
            .find(|word| fields.get(*word).is_some_and(Value::is_string))
            .or_else(|| fields.values().find_map(first_reference)),
        Value::Array(items) => items.iter().find_map(first_reference),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Value, config: &Value, expected: Result<(), &str>) {
        let found = Schema::parse(&schema.to_string()).and_then(|schema| schema.check(config));
        match (found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(refusal), Err(text)) => {
                let message = refusal.to_string();
                assert!(message.contains(text), "{message:?} lacks {text:?}");
            }
            (found, expected) => panic!("{schema} with {config}: {found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn configurations_are_checked() {
        let schema = json!({"type": "object", "additionalProperties": false,
            "properties": {"choices": {"type": "integer", "minimum": 1, "maximum": 16}}});
        check(&schema, &json!({}), Ok(()));
        check(&schema, &json!({"choices": 2}), Ok(()));
        check(&schema, &json!({"choices": 0}), Err("/choices: 0 is less than the minimum of 1"));
        check(&schema, &json!({"choises": 2}), Err("'choises' was unexpected"));
        check(&schema, &json!([]), Err("must be a JSON object"));
    }

    #[test]
    fn hostile_schemas_are_refused() {
        check(&json!({"$ref": "#"}), &json!({}), Err("`$ref` is not supported"));
        check(&json!({"allOf": [{"$dynamicRef": "#a"}]}), &json!({}), Err("`$dynamicRef` is not supported"));
        check(&json!({"a": {"$serde_json::private::RawValue": "{}"}}), &json!({}), Err("is reserved"));
        check(
            &json!({"properties": {"a": {"pattern": "(a)\\1"}}}),
            &json!({"a": "aa"}),
            Err("schema is unusable"),
        );
        check(&json!({"type": "nonsense"}), &json!({}), Err("schema is unusable"));
        // A property that is called like a keyword is none.
        check(&json!({"properties": {"$ref": {"type": "string"}}}), &json!({"$ref": "x"}), Ok(()));
    }

    #[test]
    fn an_empty_schema_takes_any_object() {
        let any = Schema::parse(" ").expect("empty is fine");
        assert!(any.check(&json!({"a": [1]})).is_ok());
        assert!(any.check(&json!(1)).is_err());
    }
}
