//! Which events a group takes: the filter dialects of CloudEvents Subscriptions 1.0 that need no language.
//!
//! Invariants: a filter is bounded in depth and size; an attribute that an event does not have matches nothing; an
//! event that is not a JSON object has no attributes.
//!
//! Source: CloudEvents Subscriptions API, section 3.2.4.

use serde_json::{Map, Value, json};

use super::Error;

/// Deepest nesting of filters.
const DEPTH_MAX: usize = 8;
/// Most filters and attributes of one group, nested ones too.
const NODES_MAX: usize = 256;
/// Longest value of an attribute in a filter, in bytes.
const VALUE_BYTES_MAX: usize = 1024;

/// A list of filters, all of which must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters(pub Vec<Filter>);

/// One filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Each attribute has exactly this value.
    Exact(Vec<(String, String)>),
    /// Each attribute begins with this value.
    Prefix(Vec<(String, String)>),
    /// Each attribute ends with this value.
    Suffix(Vec<(String, String)>),
    /// All of these match.
    All(Vec<Filter>),
    /// At least one of these matches.
    Any(Vec<Filter>),
    /// This one does not match.
    Not(Box<Filter>),
}

impl Filters {
    /// Reads a JSON array of filters; `null` and an empty array take every event.
    ///
    /// Errors with [`Error::Invalid`] that says what is wrong.
    pub fn parse(value: &Value) -> Result<Self, Error> {
        let filters = match value {
            Value::Null => return Ok(Self::default()),
            Value::Array(filters) => filters,
            _ => return Err(invalid("an array of filters")),
        };
        let mut nodes = 0;
        Ok(Self(read_all(filters, 1, &mut nodes)?))
    }

    /// Writes them as [`parse`](Self::parse) reads them.
    #[must_use]
    pub fn to_json(&self) -> Value {
        Value::Array(self.0.iter().map(Filter::to_json).collect())
    }

    /// Tells whether an event passes: every filter matches.
    #[must_use]
    pub fn matches(&self, event: &Map<String, Value>) -> bool {
        self.0.iter().all(|filter| filter.matches(event))
    }

    /// Tells whether they let everything through.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Filter {
    fn matches(&self, event: &Map<String, Value>) -> bool {
        let each = |attributes: &[(String, String)], holds: fn(&str, &str) -> bool| {
            attributes
                .iter()
                .all(|(name, wanted)| text(event, name).is_some_and(|found| holds(&found, wanted)))
        };
        match self {
            Self::Exact(attributes) => each(attributes, |found, wanted| found == wanted),
            Self::Prefix(attributes) => each(attributes, |found, wanted| found.starts_with(wanted)),
            Self::Suffix(attributes) => each(attributes, |found, wanted| found.ends_with(wanted)),
            Self::All(filters) => filters.iter().all(|filter| filter.matches(event)),
            Self::Any(filters) => filters.iter().any(|filter| filter.matches(event)),
            Self::Not(filter) => !filter.matches(event),
        }
    }

    fn to_json(&self) -> Value {
        let object = |attributes: &[(String, String)]| {
            let pairs = attributes.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
            Value::Object(pairs.collect())
        };
        let array = |filters: &[Self]| Value::Array(filters.iter().map(Self::to_json).collect());
        match self {
            Self::Exact(attributes) => json!({ "exact": object(attributes) }),
            Self::Prefix(attributes) => json!({ "prefix": object(attributes) }),
            Self::Suffix(attributes) => json!({ "suffix": object(attributes) }),
            Self::All(filters) => json!({ "all": array(filters) }),
            Self::Any(filters) => json!({ "any": array(filters) }),
            Self::Not(filter) => json!({ "not": filter.to_json() }),
        }
    }
}

fn read_all(filters: &[Value], depth: usize, nodes: &mut usize) -> Result<Vec<Filter>, Error> {
    filters.iter().map(|filter| read(filter, depth, nodes)).collect()
}

fn read(filter: &Value, depth: usize, nodes: &mut usize) -> Result<Filter, Error> {
    if depth > DEPTH_MAX {
        return Err(invalid("filters at most 8 deep"));
    }
    count(nodes)?;
    let Value::Object(filter) = filter else { return Err(invalid("objects with one dialect each")) };
    let mut dialects = filter.iter();
    let (Some((dialect, body)), None) = (dialects.next(), dialects.next()) else {
        return Err(invalid("objects with one dialect each"));
    };
    match (dialect.as_str(), body) {
        ("exact", Value::Object(attributes)) => Ok(Filter::Exact(read_attributes(attributes, nodes)?)),
        ("prefix", Value::Object(attributes)) => Ok(Filter::Prefix(read_attributes(attributes, nodes)?)),
        ("suffix", Value::Object(attributes)) => Ok(Filter::Suffix(read_attributes(attributes, nodes)?)),
        ("exact" | "prefix" | "suffix", _) => {
            Err(invalid("exact, prefix and suffix with an object of texts"))
        }
        ("all" | "any", Value::Array(filters)) if !filters.is_empty() => {
            let filters = read_all(filters, depth + 1, nodes)?;
            Ok(if dialect == "all" { Filter::All(filters) } else { Filter::Any(filters) })
        }
        ("all" | "any", _) => Err(invalid("all and any with an array of filters that is not empty")),
        ("not", filter) => Ok(Filter::Not(Box::new(read(filter, depth + 1, nodes)?))),
        _ => Err(invalid("filters of the dialects exact, prefix, suffix, all, any and not")),
    }
}

fn read_attributes(
    attributes: &Map<String, Value>,
    nodes: &mut usize,
) -> Result<Vec<(String, String)>, Error> {
    if attributes.is_empty() {
        return Err(invalid("exact, prefix and suffix with at least one attribute"));
    }
    let read = |(name, value): (&String, &Value)| {
        count(nodes)?;
        // `data` is no attribute.
        let is_name = (1..=VALUE_BYTES_MAX).contains(&name.len())
            && name != "data"
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        match value {
            Value::String(text) if is_name && (1..=VALUE_BYTES_MAX).contains(&text.len()) => {
                Ok((name.clone(), text.clone()))
            }
            _ if !is_name => Err(invalid("filters on attributes, whose names consist of a to z and 0 to 9")),
            _ => Err(invalid("filters on texts of 1 to 1024 bytes")),
        }
    };
    attributes.iter().map(read).collect()
}

fn count(nodes: &mut usize) -> Result<(), Error> {
    *nodes += 1;
    if *nodes > NODES_MAX { Err(invalid("at most 256 filters and attributes")) } else { Ok(()) }
}

/// Returns an attribute as CloudEvents writes it as text.
fn text<'a>(event: &'a Map<String, Value>, name: &str) -> Option<std::borrow::Cow<'a, str>> {
    match event.get(name)? {
        Value::String(text) => Some(text.into()),
        Value::Bool(flag) => Some(flag.to_string().into()),
        Value::Number(number) => Some(number.to_string().into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn invalid(must: &'static str) -> Error {
    Error::Invalid { field: "filters", must }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dialects_match_as_specified() {
        let event = json!({"type": "order.made", "source": "/shop/7", "subject": "x", "count": 7, "flag": true,
            "data": {"type": "no attribute"}});
        let check = |filters: Value, expected: bool| {
            let parsed = Filters::parse(&filters).expect("valid");
            assert_eq!(parsed.matches(event.as_object().expect("an object")), expected, "{filters}");
            assert_eq!(Filters::parse(&parsed.to_json()).expect("valid"), parsed);
        };
        check(json!(null), true);
        check(json!([]), true);
        check(json!([{"exact": {"type": "order.made"}}]), true);
        check(json!([{"exact": {"type": "order"}}]), false);
        check(json!([{"exact": {"type": "order.made", "subject": "y"}}]), false);
        check(json!([{"prefix": {"type": "order."}}, {"suffix": {"source": "/7"}}]), true);
        check(json!([{"prefix": {"type": "order."}}, {"suffix": {"source": "/8"}}]), false);
        check(json!([{"suffix": {"missing": "x"}}]), false);
        check(json!([{"not": {"suffix": {"missing": "x"}}}]), true);
        check(json!([{"any": [{"exact": {"type": "a"}}, {"exact": {"subject": "x"}}]}]), true);
        check(json!([{"all": [{"exact": {"type": "a"}}, {"exact": {"subject": "x"}}]}]), false);
        check(json!([{"exact": {"count": "7", "flag": "true"}}]), true);
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let mut deep = json!({"exact": {"type": "a"}});
        for _ in 0..8 {
            deep = json!({ "not": deep });
        }
        let many: Vec<_> = (0..200).map(|_| json!({"exact": {"type": "a"}})).collect();
        for wrong in [
            json!({}),
            json!("x"),
            json!([1]),
            json!([{}]),
            json!([{"exact": {"type": "a"}, "prefix": {"type": "a"}}]),
            json!([{"exact": {}}]),
            json!([{"exact": {"type": 1}}]),
            json!([{"exact": {"type": ""}}]),
            json!([{"exact": {"Type": "a"}}]),
            json!([{"exact": {"data": "a"}}]),
            json!([{"exact": "a"}]),
            json!([{"any": []}]),
            json!([{"all": {}}]),
            json!([{"not": []}]),
            json!([{"sql": "type = 'a'"}]),
            json!([deep]),
            json!(many),
            json!([{"exact": {"type": "a".repeat(1025)}}]),
        ] {
            let refused = Filters::parse(&wrong);
            assert!(matches!(refused, Err(Error::Invalid { field: "filters", .. })), "{wrong}");
        }
    }
}
