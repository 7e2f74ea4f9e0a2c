//! Rules a configuration must keep as a whole.

use super::Config;

/// Longest time any setting may have: a week.
const SPAN_MS_MAX: u64 = 7 * 24 * 3600 * 1000;

/// Returns every rule the configuration breaks, as (key, what is wrong and what to do).
pub(super) fn broken(config: &Config) -> Vec<(&'static str, String)> {
    let Config { host, policy, events, group, heartbeat, session, log } = config;
    let mut found = Vec::new();
    let ranges = [
        ("body_bytes_max", host.body_bytes_max, 1024, 1 << 30),
        ("drain_ms", host.drain_ms, 0, 600_000),
        ("policy.scoring_deadline_ms", policy.scoring_deadline_ms, 1, 60_000),
        ("policy.claiming_deadline_ms", policy.claiming_deadline_ms, 1, 600_000),
        ("policy.load_deadline_ms", policy.load_deadline_ms, 1, 600_000),
        ("policy.memory_mib", policy.memory_mib, 1, 4096),
        ("policy.artifact_mib_max", policy.artifact_mib_max, 1, 1024),
        ("policy.poll_ms", policy.poll_ms, 10, SPAN_MS_MAX),
        ("policy.settle_ms", policy.settle_ms, 1, 60_000),
        ("events.default_partitions", events.default_partitions, 1, fulcrum_store::PARTITIONS_MAX.into()),
        ("group.interval_ms", group.interval_ms, 10, SPAN_MS_MAX),
        ("group.ownership_expiry_ms", group.ownership_expiry_ms, 100, SPAN_MS_MAX),
        ("group.handover_deadline_ms", group.handover_deadline_ms, 1, SPAN_MS_MAX),
        ("group.gather_ms", group.gather_ms, 0, 60_000),
        ("heartbeat.interval_ms", heartbeat.interval_ms, 10, SPAN_MS_MAX),
        ("heartbeat.ttl_ms", heartbeat.ttl_ms, 20, SPAN_MS_MAX),
        ("session.binding_ttl_ms", session.binding_ttl_ms, 1, SPAN_MS_MAX),
        ("session.ttl_ms", session.ttl_ms, 1, SPAN_MS_MAX),
    ];
    for (key, value, min, max) in ranges {
        if !(min..=max).contains(&value) {
            found.push((key, format!("{value} is out of range, expected {min} to {max}")));
        }
    }
    if heartbeat.ttl_ms <= heartbeat.interval_ms {
        found.push((
            "heartbeat.ttl_ms",
            format!(
                "{} must be above heartbeat.interval_ms ({}), or every instance is dead between two heartbeats",
                heartbeat.ttl_ms, heartbeat.interval_ms
            ),
        ));
    }
    if !(host.capacity.is_finite() && host.capacity > 0.0) {
        found.push(("capacity", format!("{} is out of range, expected a number above 0", host.capacity)));
    }
    let names = [("instance_id", host.instance_id.as_deref().unwrap_or("-")), ("zone", &host.zone)];
    for (key, name) in names {
        if name.len() > fulcrum_core::NAME_BYTES_MAX || name.chars().any(char::is_control) {
            found.push((
                key,
                format!("expected at most {} bytes, no control characters", fulcrum_core::NAME_BYTES_MAX),
            ));
        }
    }
    if host.instance_id.as_deref() == Some("") {
        found.push(("instance_id", "expected a name, found nothing".to_owned()));
    }
    for (key, name) in [("policy.scoring", &policy.scoring), ("policy.claiming", &policy.claiming)] {
        if name.is_empty() {
            found.push((key, "expected the name of a policy, found nothing".to_owned()));
        }
    }
    if !host.listen.ip().is_loopback() && !host.insecure {
        found.push((
            "listen",
            format!(
                "{} can be reached from other machines, and whoever reaches it can upload a policy, which is running \
                 code; this version has no access tokens. Listen on 127.0.0.1 (behind a proxy that checks who calls), \
                 or pass --insecure (insecure = true) if everyone on that network may do that",
                host.listen
            ),
        ));
    }
    if let Err(error) = log.filter.parse::<tracing_subscriber::EnvFilter>() {
        found.push(("log.filter", format!("{:?} is not a filter: {error}", log.filter)));
    }
    found
}
