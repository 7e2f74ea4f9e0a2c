//! Paths in commands that are suggested to people.

use std::path::Path;

/// Writes a path as one word of a POSIX shell that is no option.
pub(super) fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let text = if text.starts_with('-') { format!("./{text}") } else { text.into_owned() };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_one_word_each() {
        let check = |path: &str, expected: &str| assert_eq!(quoted(Path::new(path)), expected, "{path:?}");
        check("near-first", "near-first");
        check("/srv/a_b.c/d", "/srv/a_b.c/d");
        check("my policies/x", "'my policies/x'");
        check("it's", "'it'\\''s'");
        check("$HOME", "'$HOME'");
        check("-x", "./-x");
        check("", "''");
    }
}
