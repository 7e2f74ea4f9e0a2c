//! Rules a configuration must keep as a whole.

use super::Config;

/// Longest time any setting may have: a week.
const SPAN_MS_MAX: u64 = 7 * 24 * 3600 * 1000;
/// Longest age of events: a hundred years.
const KEPT_MS_MAX: u64 = 100 * 365 * 24 * 3600 * 1000;
/// Smallest file that holds more than a few events.
const STORE_BYTES_MIN: u64 = 1024 * 1024;

/// Returns every rule the configuration breaks, as (key, what is wrong and what to do).
pub(super) fn broken(config: &Config) -> Vec<(&'static str, String)> {
    let Config { host, policy, events, limits, group, journal, heartbeat, session, log } = config;
    let mut found = Vec::new();
    let ranges = [
        ("body_bytes_max", host.body_bytes_max, 1024, 1 << 30),
        ("drain_notice_ms", host.drain_notice_ms, 0, 600_000),
        ("drain_ms", host.drain_ms, 0, 600_000),
        ("connections_max", host.connections_max, 10, 1_000_000),
        ("header_timeout_ms", host.header_timeout_ms, 100, 3_600_000),
        ("policy.scoring_deadline_ms", policy.scoring_deadline_ms, 1, 60_000),
        ("policy.claiming_deadline_ms", policy.claiming_deadline_ms, 1, 600_000),
        ("policy.compile_deadline_ms", policy.compile_deadline_ms, 1, 3_600_000),
        ("policy.load_deadline_ms", policy.load_deadline_ms, 1, 600_000),
        ("policy.memory_mib", policy.memory_mib, 1, 4096),
        ("policy.artifact_mib_max", policy.artifact_mib_max, 1, 1024),
        ("policy.cache_bytes_max", policy.cache_bytes_max, 1 << 20, 1 << 40),
        ("policy.keep_versions", policy.keep_versions, 1, 1000),
        ("policy.promote_failures_max", policy.promote_failures_max, 0, 1_000_000_000),
        ("policy.promote_decisions", policy.promote_decisions, 1, 1_000_000_000),
        ("policy.poll_ms", policy.poll_ms, 10, SPAN_MS_MAX),
        ("policy.settle_ms", policy.settle_ms, 1, 60_000),
        ("events.default_partitions", events.default_partitions, 1, fulcrum_store::PARTITIONS_MAX.into()),
        ("events.in_flight_max", events.in_flight_max, 1, 100_000),
        ("events.invisible_ms", events.invisible_ms, 1000, 12 * 3600 * 1000),
        ("events.deliveries_max", events.deliveries_max, 1, 1000),
        ("events.window", events.window, 10, 100_000),
        ("events.private_ttl_ms", events.private_ttl_ms, 1000, SPAN_MS_MAX),
        ("events.requests_max", events.requests_max, 1, 1_000_000),
        ("events.retention_ms", events.retention_ms, 0, KEPT_MS_MAX),
        ("events.retention_interval_ms", events.retention_interval_ms, 10, SPAN_MS_MAX),
        ("group.interval_ms", group.interval_ms, 10, SPAN_MS_MAX),
        ("group.ownership_expiry_ms", group.ownership_expiry_ms, 100, SPAN_MS_MAX),
        ("group.handover_deadline_ms", group.handover_deadline_ms, 1, SPAN_MS_MAX),
        ("group.gather_ms", group.gather_ms, 0, 60_000),
        ("journal.sample_every", journal.sample_every, 1, 1 << 32),
        ("journal.bytes_max", journal.bytes_max, 1 << 20, 1 << 40),
        ("heartbeat.interval_ms", heartbeat.interval_ms, 10, SPAN_MS_MAX),
        ("heartbeat.ttl_ms", heartbeat.ttl_ms, 20, SPAN_MS_MAX),
        ("session.binding_ttl_ms", session.binding_ttl_ms, 1, SPAN_MS_MAX),
        ("session.ttl_ms", session.ttl_ms, 1, SPAN_MS_MAX),
        ("session.turn_timeout_ms", session.turn_timeout_ms, 1, 600_000),
        ("session.chunk_wait_ms", session.chunk_wait_ms, 0, 60_000),
        ("session.chunk_bytes_max", session.chunk_bytes_max, 1024, 1 << 24),
        ("session.replay_chunks", session.replay_chunks, 1, 1 << 20),
        ("session.replay_bytes", session.replay_bytes, 0, 1 << 30),
        ("session.replay_mib_max", session.replay_mib_max, 0, 1 << 20),
    ];
    for (key, value, min, max) in ranges {
        if !(min..=max).contains(&value) {
            found.push((key, format!("{value} is out of range, expected {min} to {max}")));
        }
    }
    let rates = [
        ("limits.topic_events_per_sec", limits.topic_events_per_sec),
        ("limits.topic_bytes_per_sec", limits.topic_bytes_per_sec),
        ("limits.session_turns_per_sec", limits.session_turns_per_sec),
    ];
    for (key, rate) in rates {
        if let Some(rate) = rate.filter(|rate| !(1..=u32::MAX.into()).contains(rate)) {
            let problem = format!("{rate} is out of range, expected 1 to {}, or no value", u32::MAX);
            found.push((key, problem));
        }
    }
    if (1..STORE_BYTES_MIN).contains(&host.store_bytes_max) {
        let problem =
            format!("{} is out of range, expected 0 or at least {STORE_BYTES_MIN}", host.store_bytes_max);
        found.push(("store_bytes_max", problem));
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
