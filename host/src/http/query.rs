//! Reading parameters of a query string that was split into pairs; the last one of a name counts.

use super::Result;
use super::instances::invalid_query;

/// Returns a parameter, `None` if it is absent or empty.
pub(super) fn text<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = query.iter().rev().find(|(key, _)| key == name);
    found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
}

/// Returns a parameter that must be there.
pub(super) fn required<'a>(query: &'a [(String, String)], name: &str) -> Result<&'a str> {
    text(query, name).ok_or_else(|| invalid_query(name, "given"))
}

/// Returns a whole number, `None` if it is absent or empty.
pub(super) fn whole(query: &[(String, String)], name: &str) -> Result<Option<u64>> {
    let parse = |value: &str| value.parse().map_err(|_| invalid_query(name, "a whole number, 0 or more"));
    text(query, name).map(parse).transpose()
}
