//! Bodies of `multipart/form-data`, taken apart in memory.
//!
//! Source: RFC 7578, and RFC 2046 section 5.1 for how parts are separated.

use std::ops::Range;

/// Most parts looked at.
const PARTS_MAX: usize = 16;

/// One part: its name, and where in the body its content is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) content: Range<usize>,
}

/// Returns the boundary that a content type names.
pub(super) fn boundary(content_type: &str) -> Option<&str> {
    let mut parameters = content_type.split(';').map(str::trim);
    if !parameters.next()?.eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
    })?;
    (1..=70).contains(&value.len()).then_some(value)
}

/// Takes a body apart; parts in order.
///
/// Errors with what is wrong, in words.
pub(super) fn parts(body: &[u8], boundary: &str) -> Result<Vec<Part>, &'static str> {
    let first = format!("--{boundary}");
    let between = format!("\r\n--{boundary}");
    let start = if body.starts_with(first.as_bytes()) {
        0
    } else {
        find(body, between.as_bytes(), 0).ok_or("the boundary its content type names is not in it")? + 2
    };
    let mut at = start + first.len();
    let mut parts = Vec::new();
    loop {
        match body.get(at..at + 2) {
            Some(b"--") => return Ok(parts),
            Some(b"\r\n") => at += 2,
            _ => return Err("a boundary is followed by something else than the end of its line"),
        }
        if parts.len() == PARTS_MAX {
            return Err("it has too many parts");
        }
        // A part without headers begins with the empty line that ends them.
        let head = if body[at..].starts_with(b"\r\n") {
            at
        } else {
            find(body, b"\r\n\r\n", at).ok_or("the headers of a part do not end")? + 2
        };
        let name = name(&body[at..head]).ok_or("a part has no name")?;
        let content = head + 2;
        let end =
            find(body, between.as_bytes(), content).ok_or("it is cut off: its last boundary is missing")?;
        parts.push(Part { name, content: content..end });
        at = end + between.len();
    }
}

/// Returns the name in the headers of a part.
fn name(headers: &[u8]) -> Option<String> {
    let headers = std::str::from_utf8(headers).ok()?;
    let mut lines = headers.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"))?;
    let mut parameters = value.split(';').map(str::trim);
    if !parameters.next()?.eq_ignore_ascii_case("form-data") {
        return None;
    }
    parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        (name.trim() == "name").then(|| value.trim().trim_matches('"').to_owned())
    })
}

fn find(body: &[u8], wanted: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    // A component is large, and nearly none of its bytes begins a boundary.
    while let Some(next) = body.get(at..)?.iter().position(|byte| *byte == wanted[0]) {
        if body[at + next..].starts_with(wanted) {
            return Some(at + next);
        }
        at += next + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_found() {
        let check =
            |content_type: &str, expected| assert_eq!(boundary(content_type), expected, "{content_type}");
        check("multipart/form-data; boundary=x", Some("x"));
        check("Multipart/Form-Data;charset=utf-8; Boundary=\"a b\"", Some("a b"));
        check("multipart/form-data", None);
        check("multipart/form-data; boundary=", None);
        check("multipart/mixed; boundary=x", None);
        check(&format!("multipart/form-data; boundary={}", "x".repeat(71)), None);
    }

    #[test]
    fn bodies_are_taken_apart() {
        let check = |body: &str, expected: Result<&[(&str, &str)], &str>| {
            let found = parts(body.as_bytes(), "X");
            let found = found.map(|parts| {
                parts.into_iter().map(|part| (part.name, body[part.content].to_owned())).collect::<Vec<_>>()
            });
            match expected {
                Ok(parts) => {
                    let parts = parts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
                    assert_eq!(found, Ok(parts.collect()), "{body:?}");
                }
                Err(word) => {
                    assert!(found.as_ref().is_err_and(|error| error.contains(word)), "{body:?}: {found:?}");
                }
            }
        };
        let head =
            "Content-Disposition: form-data; name=\"a\"; filename=\"b;c\"\r\nContent-Type: x/y\r\n\r\n";
        check(&format!("--X\r\n{head}text\r\n--X--\r\n"), Ok(&[("a", "text")]));
        check(
            &format!("preamble\r\n--X\r\n{head}\r\n--X\r\n{head}\r\n-X\r\n--X--"),
            Ok(&[("a", ""), ("a", "\r\n-X")]),
        );
        check("--X--", Ok(&[]));
        check("", Err("is not in it"));
        check("--Y\r\n", Err("is not in it"));
        check("--X", Err("followed by something else"));
        check("--Xtra\r\n", Err("followed by something else"));
        check("--X\r\n\r\ntext\r\n--X--", Err("no name"));
        check("--X\r\nContent-Disposition: form-data\r\n\r\ntext\r\n--X--", Err("no name"));
        check("--X\r\nContent-Disposition: attachment; name=a\r\n\r\ntext\r\n--X--", Err("no name"));
        check("--X\r\nContent-Dis", Err("do not end"));
        check(&format!("--X\r\n{head}text"), Err("cut off"));
        check(&format!("{}--X--", format!("--X\r\n{head}text\r\n").repeat(17)), Err("too many"));
    }
}
