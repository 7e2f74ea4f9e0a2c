//! What commands that change policies of a running host print: one or two lines about a policy's status.

use serde_json::Value;

/// Says what became of a push.
pub(super) fn pushed(status: &Value, is_candidate: bool) -> String {
    let name = text(status, "/name");
    if is_candidate {
        let candidate = status.get("candidate").unwrap_or(&Value::Null);
        return format!("{name}: {} waits as the candidate\n", version(candidate));
    }
    in_use(status)
}

/// Says which version is in use, and for what.
pub(super) fn in_use(status: &Value) -> String {
    let name = text(status, "/name");
    let bound = texts(status, "/bound").join(", ");
    match (text(status, "/digest"), bound.as_str()) {
        ("", _) => format!("{name}: no version is in use\n"),
        (_, "") => format!("{name}: {} is in use, bound to nothing\n", version(status)),
        (_, bound) => format!("{name}: {} is in use, bound to {bound}\n", version(status)),
    }
}

/// Says how the last promotion stands, if there was one.
pub(super) fn promotion(status: &Value) -> Option<String> {
    let promotion = status.get("promotion").filter(|promotion| !promotion.is_null())?;
    let number = |pointer: &str| promotion.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    let state = text(promotion, "/state");
    let mut line = format!(
        "promotion of {}: {state}, {} of at most {} failures in {} of {} decisions",
        short(text(promotion, "/digest")),
        number("/failed"),
        number("/budget/failuresMax"),
        number("/asked"),
        number("/budget/decisions"),
    );
    let reason = text(promotion, "/reason");
    if !reason.is_empty() {
        line.push_str(&format!(" ({reason})"));
    }
    Some(line)
}

/// Says what a canary does or did, if there is one.
pub(super) fn canary(status: &Value) -> Option<String> {
    let canary = status.get("canary").filter(|canary| !canary.is_null())?;
    let number = |key: &str| canary.get(key).and_then(Value::as_u64).unwrap_or_default();
    let digest = short(text(canary, "/digest"));
    match text(canary, "/reason") {
        "" => {
            let share = canary.get("share").and_then(Value::as_f64).unwrap_or_default();
            let (failed, asked) = (number("failed"), number("asked"));
            Some(format!(
                "canary: {digest} decides for a share of {share}, {failed} of {asked} decisions failed"
            ))
        }
        reason => Some(format!("canary: {digest} was taken out: {reason}")),
    }
}

/// Names a version: start of its digest, and what it says of itself.
pub(super) fn version(of: &Value) -> String {
    let (digest, version) = (short(text(of, "/digest")), text(of, "/version"));
    if version.is_empty() { digest.to_owned() } else { format!("{digest} (version {version})") }
}

pub(super) fn text<'a>(of: &'a Value, pointer: &str) -> &'a str {
    of.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn texts<'a>(of: &'a Value, pointer: &str) -> Vec<&'a str> {
    let all = of.pointer(pointer).and_then(Value::as_array);
    all.into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(super) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}
