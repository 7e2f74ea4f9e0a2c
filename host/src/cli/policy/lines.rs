//! What commands that change policies of a running host print: a few lines about a policy, then what serves now.

use std::collections::BTreeMap;
use std::time::Duration;

use fulcrum_core::time::Clock as _;
use fulcrum_policy::seat;
use serde_json::Value;

use crate::cli::client::Client;
use crate::clock::RealClock;
use crate::words;

/// Most groups named in one line.
const GROUPS_MAX: usize = 8;

/// Says what became of a push.
pub(super) fn pushed(status: &Value, is_candidate: bool) -> String {
    let name = text(status, "/name");
    if !is_candidate {
        let trial = promotion(status).filter(|_| text(status, "/promotion/state") == "running");
        let trial = trial.map_or_else(String::new, |line| format!("the trial of {name} goes on: {line}\n"));
        return in_use(status) + &trial;
    }
    let candidate = status.get("candidate").unwrap_or(&Value::Null);
    format!("{name}: {} waits as the candidate{}\n", version(candidate), taken_back(candidate))
}

/// Says that a candidate was taken back, if it was.
pub(super) fn taken_back(candidate: &Value) -> String {
    match (text(candidate, "/takenBack/reason"), candidate.pointer("/takenBack/at").and_then(Value::as_u64)) {
        (_, None) => String::new(),
        (reason, Some(at)) => format!("; it was taken back {}: {reason}", ago(at)),
    }
}

/// Says which version is in use, and for what.
pub(super) fn in_use(status: &Value) -> String {
    let name = text(status, "/name");
    let bound = texts(status, "/bound").join(", ");
    match (text(status, "/digest"), bound.as_str()) {
        ("", _) if text(status, "/state") == "removed" => format!(
            "{name}: no version is in use; `fulcrum policy rollback {name}` brings the last one back\n"
        ),
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
        label(promotion),
        number("/failed"),
        number("/budget/failuresMax"),
        number("/asked"),
        number("/budget/decisions"),
    );
    let reason = text(promotion, "/reason");
    if !reason.is_empty() {
        line.push_str(&format!(" ({reason})"));
    }
    let problem = text(promotion, "/from/problem");
    if !problem.is_empty() {
        line.push_str(&format!(" (the way back: {problem})"));
    }
    Some(line)
}

/// Says what a canary does or did, if there is one.
pub(super) fn canary(status: &Value) -> Option<String> {
    let canary = status.get("canary").filter(|canary| !canary.is_null())?;
    let number = |key: &str| canary.get(key).and_then(Value::as_u64).unwrap_or_default();
    let version = label(canary);
    match text(canary, "/reason") {
        "" => {
            let share = canary.get("share").and_then(Value::as_f64).unwrap_or_default();
            let (failed, asked) = (number("failed"), number("asked"));
            Some(format!(
                "canary: {version} decides for a share of {share}, {failed} of {asked} decisions failed"
            ))
        }
        reason => Some(format!("canary: {version} was taken out: {reason}")),
    }
}

/// Asks a host what serves now.
pub(super) fn serves(client: &Client) -> anyhow::Result<String> {
    Ok(serving(&client.get("/admin/policies")?))
}

/// Says what serves now, as [`serves`] does, if anything bound cannot serve what it is bound to.
pub(super) fn stands_in(overview: &Value) -> Option<String> {
    let policies = overview.get("policies").and_then(Value::as_array);
    let is_in_use = |name: &str| {
        let mut named = policies.into_iter().flatten().filter(|policy| text(policy, "/name") == name);
        named.any(|policy| !text(policy, "/digest").is_empty())
    };
    let groups = overview.pointer("/bindings/groups").and_then(Value::as_object);
    let mut planners = groups
        .into_iter()
        .flatten()
        .filter_map(|(_, name)| name.as_str())
        .chain([text(overview, "/bindings/claiming")]);
    let is_as_bound =
        text(overview, "/scoring/policy") == text(overview, "/bindings/scoring") && planners.all(is_in_use);
    (!is_as_bound).then(|| serving(overview))
}

/// Says what serves now: one line for scoring, one for claims, one for groups with another policy, and the canary.
fn serving(overview: &Value) -> String {
    let policies = overview.get("policies").and_then(Value::as_array);
    let find = |name: &str| policies.into_iter().flatten().find(|policy| text(policy, "/name") == name);
    let planner = |name: &str| match find(name).map(|policy| (text(policy, "/digest"), policy)) {
        None | Some(("", _)) => format!("the fallback ({name} is bound, but has no version in use)"),
        Some((_, policy)) => format!("{name} {}", label(policy)),
    };
    let bound = text(overview, "/bindings/scoring");
    let decides = overview.get("scoring").filter(|decides| !decides.is_null());
    let scoring = match decides.map(|decides| (text(decides, "/policy"), decides)) {
        None => format!("the fallback ({bound} is bound, but is not asked now)"),
        Some((name, decides)) if name == bound => format!("{name} {}", label(decides)),
        Some((name, decides)) => {
            format!("{name} {} ({bound} is bound, but has no version to serve)", label(decides))
        }
    };
    let mut lines = format!("scoring: {scoring}\n");
    let mut groups = BTreeMap::<&str, Vec<&str>>::new();
    for (group, name) in overview.pointer("/bindings/groups").and_then(Value::as_object).into_iter().flatten()
    {
        groups.entry(name.as_str().unwrap_or_default()).or_default().push(group);
    }
    let others = if groups.is_empty() { "" } else { " (all other groups)" };
    lines.push_str(&format!("claiming: {}{others}\n", planner(text(overview, "/bindings/claiming"))));
    for (name, groups) in groups {
        let mut named = groups.iter().take(GROUPS_MAX).copied().collect::<Vec<_>>().join(", ");
        if groups.len() > GROUPS_MAX {
            named.push_str(&format!(" and {} more", groups.len() - GROUPS_MAX));
        }
        lines.push_str(&format!("claiming of {named}: {}\n", planner(name)));
    }
    let share = overview.pointer("/bindings/canary/share").and_then(Value::as_f64);
    if let (Some(share), name) = (share, text(overview, "/bindings/canary/policy")) {
        let canary = find(name).and_then(|policy| policy.get("canary")).unwrap_or(&Value::Null);
        lines.push_str(&format!("canary: {name} {} for a share of {share}\n", label(canary)));
    }
    lines
}

/// Names a version: its label, and what it says of itself.
pub(super) fn version(of: &Value) -> String {
    let (label, version) = (label(of), text(of, "/version"));
    if version.is_empty() { label } else { format!("{label} (version {version})") }
}

/// Names a version shortly; two that differ only in their configuration have two names.
pub(super) fn label(of: &Value) -> String {
    let config = of.get("config").map(Value::to_string).unwrap_or_default();
    match text(of, "/digest") {
        "" => String::new(),
        digest => seat::label(digest, &config),
    }
}

/// Says how long ago something was, by the clock of this machine.
pub(super) fn ago(at_ms: u64) -> String {
    let now = RealClock::start().now().0;
    words::ago(Duration::from_millis(now.saturating_sub(at_ms)))
}

pub(super) fn text<'a>(of: &'a Value, pointer: &str) -> &'a str {
    of.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn texts<'a>(of: &'a Value, pointer: &str) -> Vec<&'a str> {
    let all = of.pointer(pointer).and_then(Value::as_array);
    all.into_iter().flatten().filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_serves_is_said_in_a_few_lines() {
        let policy = |name: &str, digest: &str, config: Value| json!({ "name": name, "digest": digest, "config": config, "canary": null });
        let overview = json!({
            "bindings": { "scoring": "mine", "claiming": "sticky", "groups": {}, "canary": null },
            "scoring": { "policy": "mine", "digest": "aaaaaaaa11", "config": {} },
            "policies": [
                policy("mine", "aaaaaaaa11", json!({})),
                policy("sticky", "bbbbbbbb22", json!({})),
                policy("greedy", "", json!(null)),
            ],
        });
        let check = |change: &[(&str, Value)], expected: &str| {
            let mut overview = overview.clone();
            for (pointer, value) in change {
                *overview.pointer_mut(pointer).expect("it is there") = value.clone();
            }
            assert_eq!(serving(&overview), expected);
            // Only what cannot serve is named with what is bound instead.
            let stands_in = expected.contains(" is bound, but ").then(|| expected.to_owned());
            assert_eq!(super::stands_in(&overview), stands_in);
        };
        check(&[], "scoring: mine aaaaaaaa…\nclaiming: sticky bbbbbbbb…\n");
        check(
            &[("/scoring", json!(null)), ("/bindings/groups", json!({ "a": "greedy", "b": "greedy" }))],
            "scoring: the fallback (mine is bound, but is not asked now)\n\
             claiming: sticky bbbbbbbb… (all other groups)\n\
             claiming of a, b: the fallback (greedy is bound, but has no version in use)\n",
        );
        check(
            &[("/policies/1/digest", json!(""))],
            "scoring: mine aaaaaaaa…\nclaiming: the fallback (sticky is bound, but has no version in use)\n",
        );
        let canary = json!({ "share": 0.5, "policy": "mine" });
        check(
            &[
                ("/bindings/canary", canary),
                ("/policies/0/canary", json!({ "digest": "cccccccc33", "config": {"a": 1} })),
                ("/scoring", json!({ "policy": "p2c", "digest": "dddddddd44", "config": {} })),
            ],
            &format!(
                "scoring: p2c dddddddd… (mine is bound, but has no version to serve)\n\
                 claiming: sticky bbbbbbbb…\ncanary: mine {} for a share of 0.5\n",
                seat::label("cccccccc33", "{\"a\":1}")
            ),
        );
    }
}
