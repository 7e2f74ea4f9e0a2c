//! `fulcrum policy shadow`: lets a policy answer along with the live one on a running host, and shows how they differ.

use std::time::Duration;

use clap::Args;
use fulcrum_policy::seat::label;
use serde_json::Value;

use super::scope::Scope;
use crate::cli::client::{Client, escaped};

/// Arguments of `policy shadow`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --scoring, --claiming and --group it answers whatever the policy can answer."
)]
pub(in crate::cli) struct Shadow {
    /// The policy; the version pushed last, else the one in use
    name: String,
    #[command(flatten)]
    client: Client,
    #[command(flatten)]
    scope: Scope,
    /// Begin anew if it runs already
    #[arg(long)]
    restart: bool,
    /// End it and show what it found
    #[arg(long, conflicts_with_all = ["scoring", "claiming", "groups", "restart", "watch"])]
    stop: bool,
    /// Show it again and again, every two seconds, until it ends
    #[arg(long)]
    watch: bool,
    /// Print JSON, as the host answers it
    #[arg(long)]
    json: bool,
}

/// Time between two looks with `--watch`.
const WATCH: Duration = Duration::from_secs(2);

impl Shadow {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let path = format!("/admin/policies/{}/shadow", escaped(&self.name));
        if self.stop {
            return self.show(&self.client.delete(&path)?);
        }
        let running = if !self.restart && self.is_there()? { Some(self.client.get(&path)?) } else { None };
        let mut report = match running {
            Some(report) if is_of_a_former(&report) => self.anew(&path, report)?,
            Some(report) if self.scope.is_given() && !self.scope.is_that_of(&report["scope"]) => {
                anyhow::bail!(
                    "{} has a shadow that answers something else; --restart begins one anew, without its counts",
                    self.name
                )
            }
            Some(report) => report,
            None => self.client.post(&path, &Value::Object(self.scope.body()))?,
        };
        self.show(&report)?;
        while self.watch && text(&report, "/state") == "running" {
            std::thread::sleep(WATCH);
            report = self.client.get(&path)?;
            if is_of_a_former(&report) {
                report = self.anew(&path, report)?;
            }
            self.show(&report)?;
        }
        Ok(())
    }

    /// Begins anew with what is the candidate now, and shows the former one's counts for the last time.
    fn anew(&self, path: &str, former: Value) -> anyhow::Result<Value> {
        let body = match self.scope.is_given() {
            true => Value::Object(self.scope.body()),
            false => former.get("scope").cloned().unwrap_or_default(),
        };
        if !self.json {
            crate::cli::print(&format!("{}\n", words(&former)))?;
        }
        let mut report = self.client.post(path, &body)?;
        let begun = format!(
            "{} is another version than before: its shadow begins anew, the former one's counts end here",
            version(&report)
        );
        crate::cli::warn(&begun);
        if self.json {
            report["former"] = former;
        }
        Ok(report)
    }

    fn is_there(&self) -> anyhow::Result<bool> {
        let all = self.client.get("/admin/shadows")?;
        Ok(list(&all, "/shadows").iter().any(|shadow| text(shadow, "/name") == self.name))
    }

    fn show(&self, report: &Value) -> anyhow::Result<()> {
        if self.json { crate::cli::print_json(report) } else { crate::cli::print(&words(report)) }
    }
}

/// Says whether a report is one of a version that is no longer the candidate.
fn is_of_a_former(report: &Value) -> bool {
    report.get("isCurrent") == Some(&Value::Bool(false))
}

/// Names a version: the start of its digest, and of that of its configuration if it has one.
fn version(of: &Value) -> String {
    let config = of.get("config").map(Value::to_string).unwrap_or_default();
    label(text(of, "/digest"), &config)
}

/// Most examples of one target that are told in words; JSON has all of them.
const EXAMPLES_SHOWN: usize = 3;
/// Most partitions of one example that are told in words.
const PARTITIONS_SHOWN: usize = 4;
/// Most terms of one score that are told in words.
const TERMS_SHOWN: usize = 3;

/// Tells a report to a person: a table of its targets, then examples.
fn words(report: &Value) -> String {
    let mut out = format!("{} {}: {}", text(report, "/name"), version(report), text(report, "/state"));
    if let Some(reason) = report.pointer("/reason").and_then(Value::as_str) {
        out.push_str(&format!(", {reason}"));
    }
    if is_of_a_former(report) {
        out.push_str("; a former version, no longer the candidate or in use");
    }
    let waiting = count(report, "/waiting");
    if waiting > 0 {
        out.push_str(&format!("; {waiting} wait to be compared"));
    }
    out.push('\n');
    let head = [
        "TARGET",
        "COMPARED",
        "SAME",
        "DIFFERENT",
        "FAILED",
        "DROPPED",
        "LIVE P50/P99",
        "CANDIDATE",
        "MOVES",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut notes = String::new();
    for (name, target) in targets(report) {
        let failed: u64 = target
            .pointer("/failed")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(_, count)| count.as_u64())
            .sum();
        let time = |side: &str| {
            let micros = |share: &str| {
                let value = target.pointer(&format!("/time/{side}/{share}")).and_then(Value::as_f64);
                value.map_or("-".to_owned(), span)
            };
            format!("{}/{}", micros("p50Us"), micros("p99Us"))
        };
        let moves = target
            .pointer("/moves")
            .map(|moves| format!("{} -> {}", count(moves, "/live"), count(moves, "/candidate")));
        let counts = ["/compared", "/same", "/different"].map(|key| count(target, key).to_string());
        let mut row = vec![name.clone()];
        row.extend(counts);
        row.extend([failed.to_string(), count(target, "/dropped").to_string()]);
        row.extend([time("live"), time("candidate"), moves.unwrap_or_default()]);
        rows.push(row);
        notes.push_str(&against(&name, target));
        let examples = list(target, "/examples");
        for example in examples.iter().take(EXAMPLES_SHOWN) {
            notes.push_str(&if example.get("request").is_some() {
                scoring_words(example)
            } else {
                claiming_words(example)
            });
        }
        if examples.len() > EXAMPLES_SHOWN {
            let more = examples.len() - EXAMPLES_SHOWN;
            notes.push_str(&format!("  and {more} more with --json\n"));
        }
    }
    // Groups become targets with their first cycle.
    let has_groups = rows.iter().skip(1).any(|row| row.first().is_some_and(|name| name != "scoring"));
    if !has_groups && report.pointer("/scope/claiming").and_then(Value::as_bool) == Some(true) {
        notes.push_str(match text(report, "/state") {
            "running" => "\nclaiming: nothing to compare yet; it is asked at the next cycle of a group\n",
            _ => "\nclaiming: nothing was compared, no group had a cycle\n",
        });
    }
    if rows.len() > 1 {
        out.push('\n');
        out.push_str(&crate::cli::table(&rows));
    }
    out.push_str(&notes);
    out
}

fn targets(report: &Value) -> Vec<(String, &Value)> {
    let scoring = report.get("scoring").filter(|scoring| !scoring.is_null());
    let groups = report.get("groups").and_then(Value::as_object).into_iter().flatten();
    let others = report.get("otherGroups").filter(|others| !others.is_null());
    scoring
        .map(|scoring| ("scoring".to_owned(), scoring))
        .into_iter()
        .chain(groups.map(|(name, group)| (format!("group {name}"), group)))
        .chain(others.map(|others| ("other groups".to_owned(), others)))
        .collect()
}

/// Says what a target was compared with and how it failed last.
fn against(name: &str, target: &Value) -> String {
    let versions = list(target, "/versions");
    let mut out = match versions.is_empty() {
        true => format!("\n{name}: nothing to compare yet\n"),
        false => format!("\n{name}: compared with\n"),
    };
    for live in versions {
        // The fallback has no version.
        let digest =
            if text(live, "/digest").is_empty() { String::new() } else { format!(" {}", version(live)) };
        let counts =
            ["same", "different", "failed"].map(|key| format!("{} {key}", count(live, &format!("/{key}"))));
        let config =
            live.get("config").filter(|config| config.as_object().is_some_and(|all| !all.is_empty()));
        let config = config.map(|config| format!(", {config}")).unwrap_or_default();
        out.push_str(&format!("  {}{digest}: {}{config}\n", text(live, "/policy"), counts.join(", ")));
    }
    let itself = count(target, "/itself");
    if itself > 0 {
        out.push_str(&format!("  not compared: {itself} that were up to this very version\n"));
    }
    if let Some(failure) = target.get("lastFailure").and_then(Value::as_str) {
        out.push_str(&format!("  last failure of the candidate: {failure}\n"));
    }
    out
}

fn scoring_words(example: &Value) -> String {
    let side = |side: &str| {
        let pick = text(example, &format!("/{side}/instanceId"));
        let score = number(example.pointer(&format!("/{side}/score")));
        format!("{pick} at {score}")
    };
    let client = match text(example, "/request/clientId") {
        "" => "a client without a name".to_owned(),
        client => format!("client {client:?}"),
    };
    let mut out = format!(
        "  difference {}, {client}: live chose {}, the candidate {}\n",
        count(example, "/number"),
        side("live"),
        side("candidate")
    );
    for (key, who) in [("live", "live"), ("candidate", "candidate")] {
        let explained = list(example, &format!("/{key}/explained"));
        if let Some(problem) = example.pointer(&format!("/{key}/unexplained")).and_then(Value::as_str) {
            out.push_str(&format!("    {who}: {problem}\n"));
        } else if !explained.is_empty() {
            let rows: Vec<_> = explained.iter().map(explained_words).collect();
            out.push_str(&format!("    {who}: {}\n", rows.join("; ")));
        }
    }
    out
}

/// Says what a row costs, its largest terms first.
fn explained_words(row: &Value) -> String {
    let parts = row.get("parts").and_then(Value::as_object).into_iter().flatten();
    let mut parts: Vec<_> = parts.map(|(name, value)| (name, value.as_f64())).collect();
    let size = |value: Option<f64>| value.map_or(f64::INFINITY, f64::abs);
    parts.sort_by(|a, b| size(b.1).total_cmp(&size(a.1)));
    let named: Vec<_> = parts
        .iter()
        .take(TERMS_SHOWN)
        .map(|(name, value)| format!("{name} {}", value.map_or("infinite".to_owned(), short)))
        .collect();
    let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    format!("{} costs {}{named}", text(row, "/instanceId"), number(row.get("score")))
}

fn claiming_words(example: &Value) -> String {
    let side = |side: &str| {
        let of = |key: &str| count(example, &format!("/{side}/{key}"));
        format!("{} moves, spread {}, {} free", of("moves"), of("spread"), of("free"))
    };
    let mut out = format!(
        "  difference {}, cycle for {}, {} members, {} partitions: live {}; candidate {}\n",
        count(example, "/number"),
        text(example, "/reason"),
        count(example, "/members"),
        count(example, "/partitions"),
        side("live"),
        side("candidate")
    );
    let elsewhere = list(example, "/elsewhere");
    for partition in elsewhere.iter().take(PARTITIONS_SHOWN) {
        let goes = |side: &str| {
            let owner = partition.get(side).and_then(Value::as_str).unwrap_or("nobody");
            let reason = partition.get(format!("{side}Reason")).and_then(Value::as_str);
            reason.map_or(owner.to_owned(), |reason| format!("{owner} ({reason})"))
        };
        out.push_str(&format!(
            "    {}/{}: live to {}, candidate to {}\n",
            text(partition, "/topic"),
            count(partition, "/partition"),
            goes("live"),
            goes("candidate")
        ));
    }
    let shown = elsewhere.len().min(PARTITIONS_SHOWN) as u64;
    let more = count(example, "/elsewhereCount").saturating_sub(shown);
    if more > 0 {
        out.push_str(&format!("    and {more} more partitions\n"));
    }
    out
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn count(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Writes a number that JSON shows as `null` when it is infinite.
fn number(value: Option<&Value>) -> String {
    value.and_then(Value::as_f64).map_or("infinite".to_owned(), short)
}

/// Writes a number with at most three digits behind the point.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Writes microseconds in the unit that suits them.
fn span(micros: f64) -> String {
    match micros {
        micros if micros < 1e3 => format!("{micros:.1}us"),
        micros if micros < 1e6 => format!("{:.1}ms", micros / 1e3),
        micros => format!("{:.1}s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_told_in_words() {
        let side = |id: &str, score: Value, explained: Value| json!({ "instanceId": id, "score": score, "explained": explained });
        let explained = json!([
            { "instanceId": "b", "score": 1.5, "parts": { "load": 0.25, "zone": 1.25 } },
            { "instanceId": "a", "score": null, "parts": {} },
        ]);
        let mut live = side("a", 2.0.into(), json!([]));
        live["unexplained"] = "it does not explain itself".into();
        let report = json!({
            "name": "new", "digest": "0123456789abcdef", "config": {}, "isCurrent": false, "state": "failed",
            "reason": "it kept failing", "waiting": 2,
            "scoring": {
                "compared": 10, "same": 9, "different": 1, "failed": { "trap": 2, "timeout": 1 }, "dropped": 4,
                "lastFailure": "trap: crashed",
                "time": { "live": { "p50Us": 1.0, "p99Us": 2500.0 }, "candidate": { "p50Us": null, "p99Us": null } },
                "itself": 3,
                "versions": [{ "policy": "fallback", "digest": "", "config": null, "same": 1, "different": 0, "failed": 0 },
                    { "policy": "old", "digest": "fedcba9876543210", "config": { "a": 1 }, "same": 8, "different": 1,
                    "failed": 3 }],
                "examples": [{ "number": 1, "request": { "clientId": "c" }, "live": live,
                    "candidate": side("b", 1.5.into(), explained) }],
            },
            "groups": { "g": {
                "compared": 1, "same": 0, "different": 1, "failed": {}, "dropped": 0,
                "time": {}, "versions": [], "moves": { "live": 3, "candidate": 0 },
                "examples": [{ "number": 1, "reason": "join", "members": 2, "partitions": 3,
                    "live": { "moves": 3, "spread": 1, "free": 0 }, "candidate": { "moves": 0, "spread": 2, "free": 1 },
                    "elsewhere": [{ "topic": "t", "partition": 7, "live": "m1", "liveReason": "even",
                        "candidate": null, "candidateReason": null }],
                    "elsewhereCount": 3 }],
            } },
            "otherGroups": null,
        });
        let expected = "\
new 01234567…: failed, it kept failing; a former version, no longer the candidate or in use; 2 wait to be compared

TARGET   COMPARED  SAME  DIFFERENT  FAILED  DROPPED  LIVE P50/P99  CANDIDATE  MOVES
scoring  10        9     1          3       4        1.0us/2.5ms   -/-
group g  1         0     1          0       0        -/-           -/-        3 -> 0

scoring: compared with
  fallback: 1 same, 0 different, 0 failed
  old fedcba98…+015abd7f: 8 same, 1 different, 3 failed, {\"a\":1}
  not compared: 3 that were up to this very version
  last failure of the candidate: trap: crashed
  difference 1, client \"c\": live chose a at 2, the candidate b at 1.5
    live: it does not explain itself
    candidate: b costs 1.5 (zone 1.25, load 0.25); a costs infinite

group g: nothing to compare yet
  difference 1, cycle for join, 2 members, 3 partitions: live 3 moves, spread 1, 0 free; candidate 0 moves, spread 2, 1 free
    t/7: live to m1 (even), candidate to nobody
    and 2 more partitions
";
        assert_eq!(words(&report), expected);
    }

    #[test]
    fn claims_before_the_first_cycle_are_no_empty_table() {
        let check = |state: &str, expected: &str| {
            let report = json!({
                "name": "greedy", "digest": "0123456789abcdef", "config": {}, "isCurrent": true, "state": state,
                "scope": { "scoring": false, "claiming": true, "groups": [] }, "waiting": 0,
                "scoring": null, "groups": {}, "otherGroups": null,
            });
            assert_eq!(words(&report), format!("greedy 01234567…: {state}\n\nclaiming: {expected}\n"));
        };
        check("running", "nothing to compare yet; it is asked at the next cycle of a group");
        check("ended", "nothing was compared, no group had a cycle");
    }
}
