//! What a group is set to: reading changes of it, and showing it.

use std::time::Duration;

use fulcrum_coordinator::groups::{Spec, SpecPatch};
use fulcrum_core::group::{Handover, Start};
use fulcrum_core::time::millis;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::http::Result;
use crate::http::instances::{Fields, invalid};

/// Longest time a group may be told: a week.
const SPAN_MS_MAX: u64 = 7 * 24 * 3600 * 1000;

/// Reads the changes a body asks for. `null` takes a policy or a movement budget away; elsewhere it is absent.
pub(super) fn read(body: &Map<String, Value>) -> Result<SpecPatch> {
    const KNOWN: [&str; 11] = [
        "policy",
        "config",
        "intervalMs",
        "fastIntervalMs",
        "gatherMs",
        "ownershipExpiryMs",
        "handover",
        "handoverDeadlineMs",
        "movementBudget",
        "graceMs",
        "start",
    ];
    if let Some(unknown) = body.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return Err(invalid(unknown, &format!("one of {}", KNOWN.join(", "))));
    }
    let fields = Fields(body);
    let span = |name: &str, min: u64| -> Result<Option<Duration>> {
        let must = || invalid(name, &format!("{min} to {SPAN_MS_MAX} milliseconds"));
        let check =
            |ms: u64| (min..=SPAN_MS_MAX).contains(&ms).then(|| Duration::from_millis(ms)).ok_or_else(must);
        fields.whole(name)?.map(check).transpose()
    };
    let policy = match (body.get("policy"), fields.text("policy")?) {
        (Some(Value::Null), _) => Some(None),
        (_, Some(name)) if name.is_empty() => return Err(invalid("policy", "the name of a policy")),
        (_, name) => name.map(Some),
    };
    let movement_budget = match (body.get("movementBudget"), fields.whole("movementBudget")?) {
        (Some(Value::Null), _) => Some(None),
        (_, budget) => budget.map(|budget| Some(u32::try_from(budget).unwrap_or(u32::MAX))),
    };
    let config = match fields.get("config") {
        Some(config) if !config.is_object() => return Err(invalid("config", "an object")),
        config => config.cloned(),
    };
    let handover = match fields.text("handover")?.as_deref() {
        None => None,
        Some("cooperative") => Some(Handover::Cooperative),
        Some("steal") => Some(Handover::Steal),
        Some(_) => return Err(invalid("handover", "\"cooperative\" or \"steal\"")),
    };
    let start = match fields.text("start")?.as_deref() {
        None => None,
        Some("latest") => Some(Start::Latest),
        Some("earliest") => Some(Start::Earliest),
        Some(_) => return Err(invalid("start", "\"latest\" or \"earliest\"")),
    };
    Ok(SpecPatch {
        policy,
        config,
        interval: span("intervalMs", 10)?,
        fast_interval: span("fastIntervalMs", 10)?,
        gather: span("gatherMs", 0)?,
        ownership_expiry: span("ownershipExpiryMs", 100)?,
        handover,
        handover_deadline: span("handoverDeadlineMs", 1)?,
        movement_budget,
        grace: span("graceMs", 0)?,
        start,
    })
}

/// A group's settings in the words of `PUT /groups/{group}`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SpecBody {
    group: String,
    policy: Option<String>,
    config: Value,
    interval_ms: u64,
    fast_interval_ms: u64,
    gather_ms: u64,
    ownership_expiry_ms: u64,
    handover: &'static str,
    handover_deadline_ms: u64,
    movement_budget: Option<u32>,
    grace_ms: u64,
    start: &'static str,
}

impl SpecBody {
    pub(super) fn new(group: &str, spec: &Spec) -> Self {
        let settings = &spec.settings;
        Self {
            group: group.to_owned(),
            policy: spec.policy.clone(),
            config: spec.config.clone(),
            interval_ms: millis(settings.interval),
            fast_interval_ms: millis(spec.fast_interval),
            gather_ms: millis(spec.gather),
            ownership_expiry_ms: millis(settings.ownership_expiry),
            handover: match settings.handover {
                Handover::Cooperative => "cooperative",
                Handover::Steal => "steal",
            },
            handover_deadline_ms: millis(settings.handover_deadline),
            movement_budget: settings.movement_budget,
            grace_ms: millis(settings.grace),
            start: match settings.start {
                Start::Latest => "latest",
                Start::Earliest => "earliest",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_read_and_shown_alike() {
        let body = json!({"policy": "greedy", "config": {"a": 1}, "intervalMs": 50, "fastIntervalMs": 20, "gatherMs": 0,
            "ownershipExpiryMs": 200, "handover": "steal", "handoverDeadlineMs": 7, "movementBudget": 3, "graceMs": 9,
            "start": "earliest"});
        let patch = read(body.as_object().expect("an object")).expect("valid");
        let spec = patch.apply(Spec::default());
        let mut shown = serde_json::to_value(SpecBody::new("g", &spec)).expect("plain data");
        shown.as_object_mut().expect("an object").remove("group");
        assert_eq!(shown, body);
        let unset = read(
            json!({"policy": null, "movementBudget": null, "graceMs": null}).as_object().expect("an object"),
        );
        let unset = unset.expect("valid").apply(spec);
        assert_eq!((unset.policy, unset.settings.movement_budget), (None, None));
        assert_eq!(unset.settings.grace, Duration::from_millis(9));
    }

    #[test]
    fn wrong_settings_are_refused() {
        for body in [
            json!({"intervalMs": 0}),
            json!({"intervalMs": "5"}),
            json!({"ownershipExpiryMs": 5}),
            json!({"handover": "push"}),
            json!({"start": 3}),
            json!({"policy": ""}),
            json!({"config": [1]}),
            json!({"movementBudget": -1}),
            json!({"intervall": 5}),
        ] {
            assert!(read(body.as_object().expect("an object")).is_err(), "{body}");
        }
    }
}
