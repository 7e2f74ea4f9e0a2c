//! Numbers, names, counts and spans as people read them in a sentence.
//!
//! Invariants: every text here is one line without control characters, and its length is bounded whatever comes in:
//! names and reasons are those of policies and members.

use std::fmt;
use std::time::Duration;

use fulcrum_core::claiming::Reason;

/// Most characters shown of a name.
const NAME_CHARS_MAX: usize = 40;
/// Most characters shown of what a policy or a failure says.
const TEXT_CHARS_MAX: usize = 160;
/// Numbers of this size or more have no place for their decimals.
const EXPONENT_FROM: f64 = 1e6;
/// What is smaller is left over from rounding.
const NOISE: f64 = 1e-9;

/// Writes a number with at most four significant digits.
pub(crate) fn number(value: f64) -> String {
    if value.is_nan() {
        return "not a number".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "infinity" } else { "-infinity" }.to_owned();
    }
    if value.abs() < NOISE {
        return "0".to_owned();
    }
    let rounded = format!("{value:.3e}");
    let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    if !(1e-3..EXPONENT_FROM).contains(&value.abs()) {
        return format!("{}e{exponent}", trimmed(mantissa));
    }
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let decimals = usize::try_from(3 - exponent).unwrap_or(0);
    let value: f64 = rounded.parse().unwrap_or(value);
    trimmed(&format!("{value:.decimals$}")).to_owned()
}

/// Takes the zeros behind the decimal point away.
fn trimmed(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

/// Writes a name: as it is if it is one plain word, else cut, escaped and in quotes, so that it cannot be taken for a
/// part of the sentence.
pub(crate) fn name(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./:@".contains(letter);
    let is_word = text.chars().all(is_plain)
        && text.chars().any(char::is_alphanumeric)
        && text.chars().count() <= NAME_CHARS_MAX;
    if is_word { text.to_owned() } else { format!("\"{}\"", cut(text, NAME_CHARS_MAX)) }
}

/// Writes what somebody said, in quotes.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", cut(text, TEXT_CHARS_MAX))
}

/// Writes what somebody said without quotes.
pub(crate) fn said(text: &str) -> String {
    cut(text, TEXT_CHARS_MAX)
}

/// Writes the first `max` characters on one line, with escapes for what is not printable and for quotes.
pub(crate) fn cut(text: &str, max: usize) -> String {
    let mut out = String::new();
    let mut letters = text.chars();
    for letter in letters.by_ref().take(max) {
        match letter {
            '\'' => out.push(letter),
            _ => out.extend(letter.escape_debug()),
        }
    }
    if letters.next().is_some() {
        out.push('…');
    }
    out
}

/// Writes how many there are of something whose plural ends in `s`.
pub(crate) fn count(count: impl Copy + fmt::Display + PartialEq + From<u8>, what: &str) -> String {
    if count == 1.into() { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Writes a list: `a`, `a and b`, `a, b and c`.
pub(crate) fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [only] => only.clone(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

/// Writes how long ago something was, in its two leading digits at least.
pub(crate) fn ago(span: Duration) -> String {
    let (millis, secs) = (span.as_millis(), span.as_secs());
    match secs {
        0 => format!("{millis} ms ago"),
        1..120 => format!("{secs} s ago"),
        120..7200 => format!("{} min ago", secs / 60),
        7200..172_800 => format!("{} h ago", secs / 3600),
        _ => format!("{} days ago", secs / 86_400),
    }
}

/// Writes why a cycle ran.
pub(crate) fn because(reason: Reason) -> &'static str {
    match reason {
        Reason::Join => "because a member joined",
        Reason::Leave => "because a member left",
        Reason::Expired => "because a member was silent for too long",
        Reason::Disconnected => "because the connection of a member ended",
        Reason::Subscription => "because a member subscribed to other topics",
        Reason::Partitions => "because the partitions of a topic changed",
        Reason::Policy => "because the policy changed",
        Reason::Config => "because the configuration changed",
        Reason::Interval => "because it was time for one",
        Reason::Fast => "because the plan before wanted one soon",
        Reason::Manual => "because somebody asked for it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1e-17, "0"),
            (-3e-12, "0"),
            (455.0, "455"),
            (0.1 + 0.2, "0.3"),
            (254.512_345, "254.5"),
            (-254.56, "-254.6"),
            (0.001_234_56, "0.001235"),
            (0.000_5, "5e-4"),
            (999.96, "1000"),
            (12_345.6, "12350"),
            (100_000.0, "100000"),
            (1_234_567.0, "1.235e6"),
            (1e15, "1e15"),
            (f64::MAX, "1.798e308"),
            (f64::MIN_POSITIVE, "0"),
            (f64::INFINITY, "infinity"),
            (f64::NEG_INFINITY, "-infinity"),
            (f64::NAN, "not a number"),
        ] {
            assert_eq!(number(value), expected, "{value:e}");
        }
    }

    #[test]
    fn names_are_one_word_or_quoted() {
        let long = "x".repeat(41);
        let cut = format!("\"{}…\"", "x".repeat(40));
        for (text, expected) in [
            ("cpu", "cpu"),
            ("10.0.0.1:9000", "10.0.0.1:9000"),
            ("größe", "größe"),
            ("", "\"\""),
            ("...", "\"...\""),
            ("a b", "\"a b\""),
            ("400. Next is z", "\"400. Next is z\""),
            ("a\"b", "\"a\\\"b\""),
            ("a\nb\u{1b}[2J", "\"a\\nb\\u{1b}[2J\""),
            ("\u{202e}cpu", "\"\\u{202e}cpu\""),
            (&long, &cut),
        ] {
            assert_eq!(name(text), expected, "{text:?}");
        }
        assert_eq!(quoted("it's free"), "\"it's free\"");
        assert_eq!(said(&"é".repeat(200)).chars().count(), 161);
    }

    #[test]
    fn spans_counts_and_lists_are_short() {
        for (secs, expected) in [
            (0.25, "250 ms ago"),
            (1.9, "1 s ago"),
            (119.0, "119 s ago"),
            (120.0, "2 min ago"),
            (7200.0, "2 h ago"),
            (200_000.0, "2 days ago"),
        ] {
            assert_eq!(ago(Duration::from_secs_f64(secs)), expected);
        }
        assert_eq!((count(1, "partition"), count(0, "row")), ("1 partition".to_owned(), "0 rows".to_owned()));
        let items = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(
            [list(&items[..0]), list(&items[..1]), list(&items[..2]), list(&items)],
            ["", "a", "a and b", "a, b and c"]
        );
    }

    #[test]
    fn every_reason_has_words() {
        let words: std::collections::BTreeSet<_> =
            Reason::WORDS.iter().map(|(reason, _)| because(*reason)).collect();
        assert_eq!(words.len(), Reason::WORDS.len());
    }
}
