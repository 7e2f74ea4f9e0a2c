//! `/healthz`, `/readyz` and `/metrics`: the names are there, and the counts move with what happens.

use std::collections::BTreeMap;

use serde_json::json;

use crate::support::*;

/// A scrape: each line's name with its labels, and its value.
struct Scrape {
    text: String,
    values: BTreeMap<String, f64>,
}

impl Scrape {
    async fn take(host: &Api) -> Self {
        let answer = host.get("/metrics").await;
        assert_eq!(answer.status, 200);
        let kind = answer.headers["content-type"].to_str().unwrap();
        assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
        assert!(answer.text.ends_with("# EOF\n"), "{}", answer.text);
        let line = |line: &str| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
        };
        let values = answer.text.lines().filter(|line| !line.starts_with('#')).map(line).collect();
        Self { text: answer.text, values }
    }

    /// The sum of the lines of a name whose labels have all of these.
    #[track_caller]
    fn get(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let mut found = None;
        for (line, value) in &self.values {
            let (of, rest) = line.split_once('{').unwrap_or((line, ""));
            let has = |(label, value): &(&str, &str)| rest.contains(&format!("{label}=\"{value}\""));
            if of == name && labels.iter().all(has) {
                *found.get_or_insert(0.0) += value;
            }
        }
        found.unwrap_or_else(|| panic!("there is no {name} {labels:?} in\n{}", self.text))
    }
}

#[test]
fn a_host_that_listens_is_well_and_ready() {
    run(async {
        let host = Host::start().await;
        assert_eq!(host.get("/healthz").await.ok(), json!({ "status": "ok" }));
        assert_eq!(host.get("/readyz").await.ok(), json!({ "status": "ready" }));
        host.stop().await;
    });
}

#[test]
fn without_a_canary_nobody_has_a_share() {
    run(async {
        let host = Host::start().await;
        let share = async || {
            let scrape = Scrape::take(&host).await;
            let is_share = |name: &&String| name.starts_with("fulcrum_policy_canary_share");
            scrape.values.keys().filter(is_share).cloned().collect::<Vec<_>>()
        };
        assert_eq!(share().await, [""; 0]);
        let canary = json!({ "canary": { "policy": "weighted", "share": 0.5 } });
        host.put("/admin/bindings", &canary).await.ok();
        assert_eq!(share().await, ["fulcrum_policy_canary_share{policy=\"weighted\"}"]);
        host.put("/admin/bindings", &json!({ "canary": null })).await.ok();
        assert_eq!(share().await, [""; 0]);
        host.stop().await;
    });
}

#[test]
fn every_metric_is_there_and_moves() {
    run(async {
        let host = Host::with(|config| config.policy.scoring = "weighted".to_owned()).await;
        for id in ["a", "b", "c", "d"] {
            host.beat(id, 0).await;
        }
        host.post("/instances/b/drain", &json!({})).await.ok();
        for (agent, ready) in [("x", true), ("y", false)] {
            host.post("/agent/register", &json!({ "agentId": agent, "capacity": 9 })).await.ok();
            if ready {
                host.post("/agent/ready", &json!({ "agentId": agent })).await.ok();
            }
        }
        host.recommend("").await;
        let before = Scrape::take(&host).await;
        let ok = [("role", "scoring"), ("policy", "weighted"), ("outcome", "ok")];
        let of = [("role", "scoring"), ("policy", "weighted")];
        assert_eq!(before.get("fulcrum_decisions_total", &ok), 1.0);
        for outcome in ["timeout", "trap", "limit", "illegal", "error", "open"] {
            let labels = [("role", "scoring"), ("policy", "weighted"), ("outcome", outcome)];
            assert_eq!(before.get("fulcrum_decisions_total", &labels), 0.0);
        }
        assert_eq!(before.get("fulcrum_decision_seconds_count", &of), 1.0);
        assert_eq!(before.get("fulcrum_instances", &[("state", "live")]), 3.0);
        assert_eq!(before.get("fulcrum_instances", &[("state", "draining")]), 1.0);
        assert_eq!(before.get("fulcrum_instances", &[("state", "dead")]), 0.0);
        assert_eq!(before.get("fulcrum_agents", &[("state", "ready")]), 1.0);
        assert_eq!(before.get("fulcrum_agents", &[("state", "waiting")]), 1.0);
        assert_eq!(before.get("fulcrum_sessions", &[]), 0.0);
        assert_eq!(before.get("fulcrum_heartbeats_total", &[]), 4.0);
        assert_eq!(before.get("fulcrum_policy", &[("policy", "weighted"), ("state", "live")]), 1.0);
        assert!(before.get("process_cpu_seconds_total", &[]) > 0.0);
        assert!(before.get("process_resident_memory_bytes", &[]) > 1e6);

        for _ in 0..7 {
            host.recommend("").await;
        }
        host.beat("a", 1).await;
        let opened = host.post("/session/open", &json!({ "clientId": "c" })).await.ok();
        host.post("/session/open", &json!({ "clientId": "c" })).await.ok();
        let after = Scrape::take(&host).await;
        let moved = |name: &str, labels: &[(&str, &str)]| after.get(name, labels) - before.get(name, labels);
        assert_eq!(moved("fulcrum_decisions_total", &ok), 7.0);
        assert_eq!(moved("fulcrum_decision_seconds_count", &of), 7.0);
        assert!(moved("fulcrum_decision_seconds_sum", &of) > 0.0);
        assert_eq!(moved("fulcrum_heartbeats_total", &[]), 1.0);
        assert_eq!(after.get("fulcrum_sessions", &[]), 2.0);
        for direction in ["in", "out"] {
            assert!(moved("fulcrum_http_body_bytes_total", &[("direction", direction)]) > 100.0);
        }
        host.post(&format!("/session/close/{}", opened["sessionId"].as_str().unwrap()), &json!({}))
            .await
            .ok();
        assert_eq!(Scrape::take(&host).await.get("fulcrum_sessions", &[]), 1.0);

        // The buckets of a histogram only grow, up to its count.
        let buckets: Vec<_> = after
            .values
            .iter()
            .filter(|(line, _)| {
                line.starts_with("fulcrum_decision_seconds_bucket") && line.contains("policy=\"weighted\"")
            })
            .collect();
        assert!(buckets.len() > 5, "{}", after.text);
        let bound = |line: &str| {
            let text = line.split_once("le=\"").unwrap().1.split_once('"').unwrap().0;
            text.parse::<f64>().unwrap_or_else(|_| panic!("{line}"))
        };
        let mut ordered: Vec<_> = buckets.iter().map(|(line, value)| (bound(line), **value)).collect();
        ordered.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(ordered.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{ordered:?}");
        assert_eq!(
            *ordered.last().unwrap(),
            (f64::INFINITY, after.get("fulcrum_decision_seconds_count", &of))
        );
        host.stop().await;
    });
}

#[test]
fn failures_and_swaps_show_in_the_metrics() {
    run(async {
        let host = Host::with(|config| config.policy.scoring = "mine".to_owned()).await;
        host.beat("a", 0).await;
        let trap = sins().into_iter().find(|sin| sin.name == "trap").unwrap().wasm;
        host.policies().put("mine.wasm", &trap);
        host.until_in_use("mine", &digest(&trap)).await;
        for _ in 0..5 {
            host.recommend(&format!("clientId={TROUBLE}")).await;
        }
        let scrape = Scrape::take(&host).await;
        let decisions = |outcome: &str| {
            scrape.get(
                "fulcrum_decisions_total",
                &[("role", "scoring"), ("policy", "mine"), ("outcome", outcome)],
            )
        };
        assert_eq!((decisions("trap"), decisions("open"), decisions("ok")), (3.0, 2.0, 0.0));
        let state = [("policy", "mine"), ("digest", &digest(&trap)[..12]), ("state", "open")];
        assert_eq!(scrape.get("fulcrum_policy", &state), 1.0);
        host.stop().await;
    });
}

/// Issue 2: "decisions by policy, role and outcome; decision time; reloads; heartbeats; sessions from the start".
#[test]
fn reloads_are_counted() {
    run(async {
        let host = Host::with(|config| config.policy.scoring = "mine".to_owned()).await;
        let count = async || {
            let scrape = Scrape::take(&host).await;
            let is_reload = |(line, _): &(&String, &f64)| {
                line.starts_with("fulcrum_reloads_total") || line.starts_with("fulcrum_policy_reloads_total")
            };
            let lines: Vec<_> = scrape.values.iter().filter(is_reload).collect();
            assert!(!lines.is_empty(), "no metric of reloads in\n{}", scrape.text);
            lines.iter().map(|(_, count)| **count).sum::<f64>()
        };
        let before = count().await;
        host.policies().put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        let good = count().await;
        host.policies().put("mine.wasm", b"nonsense");
        host.until_refused("mine", "not_wasm").await;
        let bad = count().await;
        assert!(before < good && good < bad, "{before}, {good}, {bad}");
        host.stop().await;
    });
}
