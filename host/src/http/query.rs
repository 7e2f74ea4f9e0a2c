//! Reading parameters of a query string that was split into pairs; the last one of a name counts.

use std::time::Duration;

use super::Result;
use super::instances::invalid_query;

/// How many items of a list one gets that does not say.
const MAX_DEFAULT: u32 = 100;
/// Longest wait of a poll, and how long one waits that does not say, in milliseconds.
const WAIT_MS_MAX: u64 = 60_000;
const WAIT_MS_DEFAULT: u64 = 1000;

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

/// Returns `max`, how many items a caller wants: 1 to `most`.
pub(super) fn max(query: &[(String, String)], most: u32) -> Result<u32> {
    let max = whole(query, "max")?.unwrap_or(MAX_DEFAULT.into());
    let max = u32::try_from(max).ok().filter(|max| (1..=most).contains(max));
    max.ok_or_else(|| invalid_query("max", &format!("1 to {most}")))
}

/// Returns `timeoutMs`, how long a poll waits.
pub(super) fn wait(query: &[(String, String)]) -> Result<Duration> {
    let wait_ms = whole(query, "timeoutMs")?.unwrap_or(WAIT_MS_DEFAULT);
    if wait_ms > WAIT_MS_MAX {
        return Err(invalid_query("timeoutMs", "0 to 60000"));
    }
    Ok(Duration::from_millis(wait_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_bounded() {
        let check = |name: &str, value: &str, expected: Option<(u32, u64)>| {
            let query = [(name.to_owned(), value.to_owned())];
            let found = max(&query, 1000).ok().zip(wait(&query).ok().map(fulcrum_core::time::millis));
            assert_eq!(found, expected, "{name}={value}");
        };
        check("other", "x", Some((100, 1000)));
        check("max", "", Some((100, 1000)));
        check("max", "1", Some((1, 1000)));
        check("max", "1000", Some((1000, 1000)));
        check("timeoutMs", "0", Some((100, 0)));
        check("timeoutMs", "60000", Some((100, 60_000)));
        for (name, value) in [
            ("max", "0"),
            ("max", "1001"),
            ("max", "-1"),
            ("max", "99999999999999999999999"),
            ("timeoutMs", "60001"),
            ("timeoutMs", "1.5"),
        ] {
            check(name, value, None);
        }
    }
}
