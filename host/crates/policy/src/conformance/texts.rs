//! Texts that look harmless to a host and do harm where they are formatted, parsed, compared or used as a key.

use crate::proof::Chance;

/// All of them are legal as client ids and label values; as ids those that are not empty.
const TEXTS: [&str; 36] = [
    "",
    " ",
    "\u{0}",
    "a\u{0}b",
    "\u{1}\u{1f}\u{7f}",
    "\r\n",
    "\t",
    "'",
    "\"",
    "\\",
    "'; --",
    "\"},{\"",
    "{}",
    "[]",
    "%s%n",
    "%00",
    "../..",
    "<script>",
    "null",
    "undefined",
    "NaN",
    "-0",
    "1e999",
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "\u{202e}abc",
    "\u{feff}",
    "á",
    "a\u{301}",
    "ß",
    "İ",
    "名前",
    "🦀",
    "\u{10ffff}",
];

/// Returns one of them, or one of exactly 256 bytes.
pub(super) fn any(chance: &mut Chance) -> String {
    let long = ["x".repeat(256), "é".repeat(128), "🦀".repeat(64), "\"".repeat(256), "\u{0}".repeat(256)];
    match chance.below(TEXTS.len() as u64 + long.len() as u64) as usize {
        at if at < TEXTS.len() => TEXTS[at].to_owned(),
        at => long[at - TEXTS.len()].clone(),
    }
}

/// Returns up to `count` different ones of at least one byte, ascending.
pub(super) fn names(count: usize, chance: &mut Chance) -> Vec<String> {
    let mut names: Vec<_> = (0..count).map(|_| any(chance)).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        names.push("\u{0}".to_owned());
    }
    names
}

/// Returns labels with such keys and values.
pub(super) fn labels(count: usize, chance: &mut Chance) -> Vec<(String, String)> {
    let mut keys: Vec<_> = (0..count).map(|_| any(chance)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|key| (key, any(chance))).collect()
}
