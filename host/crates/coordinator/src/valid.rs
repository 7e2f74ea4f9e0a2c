//! The ranges of what others tell us: each checked once, here.

use fulcrum_core::NAME_BYTES_MAX;
use fulcrum_core::scoring::Load;

use crate::error::Error;

/// Most labels an instance, and capabilities an agent, may have.
pub(crate) const LABELS_MAX: usize = 64;
/// What they may have together, in bytes: a policy is told all labels of all instances at once.
pub(crate) const LABELS_BYTES_MAX: usize = 4096;
/// Most sessions one instance may report.
pub(crate) const SESSIONS_MAX: u32 = 1_000_000_000;
/// Highest byte rate one instance may report, in bytes per second.
pub(crate) const RATE_MAX: f64 = 1e15;
/// Highest relative capacity of an instance.
pub(crate) const CAPACITY_MAX: f64 = 1e6;
/// Highest capacity of an agent, in sessions.
pub(crate) const AGENT_CAPACITY_MAX: u32 = 1_000_000;

/// Fails with `field` and what it must be unless `holds`.
pub(crate) fn require(holds: bool, field: &'static str, must: &'static str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Invalid { field, must }) }
}

/// Checks an id: it can stand in a URL path, in a comma-separated list and in a log line.
pub(crate) fn id(field: &'static str, id: &str) -> Result<(), Error> {
    let fits = (1..=NAME_BYTES_MAX).contains(&id.len())
        && !id.chars().any(|c| c.is_control() || c.is_whitespace() || c == ',');
    require(fits, field, "1 to 256 bytes without whitespace, commas or control characters")
}

/// Checks a free text such as a zone, a label or a client id.
pub(crate) fn text(field: &'static str, text: &str) -> Result<(), Error> {
    require(
        text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control),
        field,
        "at most 256 bytes without control characters",
    )
}

/// Checks an address of the shape `host:port`, where an IPv6 host stands in brackets.
pub(crate) fn address(address: &str) -> Result<(), Error> {
    let fits = address.rsplit_once(':').is_some_and(|(host, port)| {
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host_fits = match bracketed {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            }
        };
        let port_fits = (1..=5).contains(&port.len())
            && port.bytes().all(|b| b.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|port| port > 0);
        host_fits && port_fits && address.len() <= NAME_BYTES_MAX
    });
    require(fits, "address", "host:port with a port of 1 to 65535, without a scheme or a path")
}

/// Checks a relative capacity.
pub(crate) fn capacity(capacity: f64) -> Result<(), Error> {
    require(
        capacity > 0.0 && capacity <= CAPACITY_MAX,
        "capacity",
        "a number above 0 and at most 1000000 (1 is a standard instance)",
    )
}

/// Checks labels, orders them by key and refuses a key that stands there twice.
pub(crate) fn labels(labels: &mut [(String, String)]) -> Result<(), Error> {
    let bytes: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
    let fits = labels.len() <= LABELS_MAX && bytes <= LABELS_BYTES_MAX;
    require(fits, "labels", "at most 64 labels with 4096 bytes in all")?;
    for (key, value) in labels.iter() {
        require(!key.is_empty(), "labels", "labels with keys of 1 to 256 bytes")?;
        text("labels", key)?;
        text("labels", value)?;
    }
    labels.sort_unstable();
    require(labels.windows(2).all(|pair| pair[0].0 != pair[1].0), "labels", "labels with each key once")
}

/// Checks a reported load.
pub(crate) fn load(load: &Load) -> Result<(), Error> {
    let rate = |rate: f64| (0.0..=RATE_MAX).contains(&rate);
    require(load.sessions <= SESSIONS_MAX, "activeSessions", "a whole number of 0 to 1000000000")?;
    require(rate(load.inflow), "inflowBytesPerSec", "a number of 0 to 1e15, in bytes per second")?;
    require(rate(load.outflow), "outflowBytesPerSec", "a number of 0 to 1e15, in bytes per second")?;
    require((0.0..=1.0).contains(&load.cpu), "cpuLoad", "a number of 0.0 to 1.0 (share of its cores in use)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_addresses() {
        let long = "x".repeat(257);
        for (text, fits) in [("a", true), ("zone/a:1", true), ("ü", true), (&long[1..], true)] {
            assert_eq!(id("id", text).is_ok(), fits, "{text}");
        }
        for text in ["", "a b", "a,b", "a\nb", "a\u{a0}b", &long] {
            assert!(id("id", text).is_err(), "{text}");
        }
        for text in ["a:1", "10.0.0.1:65535", "[::1]:80", "my-host.example_x:8080"] {
            assert_eq!(address(text), Ok(()), "{text}");
        }
        let bad =
            ["", "a", ":1", "a:", "a:0", "a:65536", "a:+1", "http://a:1", "a:1/", "::1:80", "[x]:1", "a b:1"];
        for text in bad {
            assert!(address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers() {
        for (value, fits) in [
            (0.0, false),
            (-1.0, false),
            (f64::NAN, false),
            (f64::INFINITY, false),
            (1e-9, true),
            (1e6, true),
            (1e7, false),
        ] {
            assert_eq!(capacity(value).is_ok(), fits, "capacity {value}");
        }
        let base = Load { sessions: 0, inflow: 0.0, outflow: 0.0, cpu: 0.0 };
        let cases = [
            (base, Ok(())),
            (Load { cpu: 1.0, inflow: 1e15, sessions: SESSIONS_MAX, ..base }, Ok(())),
            (Load { sessions: SESSIONS_MAX + 1, ..base }, Err("activeSessions")),
            (Load { inflow: -0.1, ..base }, Err("inflowBytesPerSec")),
            (Load { outflow: f64::NAN, ..base }, Err("outflowBytesPerSec")),
            (Load { inflow: f64::INFINITY, ..base }, Err("inflowBytesPerSec")),
            (Load { cpu: 1.0001, ..base }, Err("cpuLoad")),
        ];
        for (value, expected) in cases {
            let found = load(&value).map_err(|error| match error {
                Error::Invalid { field, .. } => field,
                other => panic!("{other}"),
            });
            assert_eq!(found, expected, "{value:?}");
        }
    }

    #[test]
    fn labels_are_ordered_and_unique() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut two = vec![pair("b", "1"), pair("a", "2")];
        assert_eq!(labels(&mut two), Ok(()));
        assert_eq!(two[0].0, "a");
        assert!(labels(&mut [pair("a", "1"), pair("a", "2")]).is_err());
        assert!(labels(&mut [pair("", "1")]).is_err());
        assert!(labels(&mut vec![pair("a", "1"); 65]).is_err());
        let long =
            |len: usize| (0..16).map(|n| pair(&format!("{n:02}"), &"x".repeat(len))).collect::<Vec<_>>();
        assert_eq!(labels(&mut long(254)), Ok(()));
        assert!(labels(&mut long(255)).is_err(), "more than 4096 bytes");
    }
}
