//! `/metrics`: what the host counted, in the OpenMetrics text format.
//!
//! Nothing is kept here: a scrape reads the counts where they are made. No label holds a session, a client or an
//! instance, so the number of lines stays bounded.

mod events;
mod lifecycle;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use fulcrum_coordinator::groups::{Counts, WarningKind};
use fulcrum_coordinator::pulls;
use fulcrum_coordinator::turns;
use fulcrum_policy::tally::{BUCKET_BOUNDS_NANOS, Line};
use fulcrum_policy::{Outcome, cache, shadow};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::error::Error;
use crate::app::Services;
use crate::journal;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) fn routes() -> Router<Services> {
    Router::new().route("/metrics", get(scrape))
}

async fn scrape(State(services): State<Services>) -> Response {
    let mut registry = Registry::default();
    let groups = services.groups.counts().await.into_iter().map(|(_, counts)| counts).collect();
    let message_groups = services.pulls.counts().await;
    registry.register_collector(Box::new(Scrape { services, groups, message_groups }));
    let mut out = String::new();
    match text::encode(&mut out, &registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], out).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot write the metrics");
            Error::internal().into_response()
        }
    }
}

struct Scrape {
    services: Services,
    groups: Vec<Counts>,
    message_groups: Vec<pulls::Counts>,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let services = &self.services;
        let now = services.clock.now();
        let (scoring, claiming) = (services.balancer.tally(), services.planner.tally());
        decisions(&mut encoder, &[("scoring", scoring.lines()), ("claiming", claiming.lines())])?;
        policies(&mut encoder, services)?;
        lifecycle::encode(&mut encoder, &services.policies)?;
        shadows(&mut encoder, &services.shadows.counts())?;

        let instances = services.balancer.counts();
        let states = [("live", instances.live), ("draining", instances.draining), ("dead", instances.dead)];
        gauges(&mut encoder, "fulcrum_instances", "Instances in the roster by state", "state", &states)?;
        let agents = services.sessions.agent_counts(now);
        let states = [("ready", agents.ready), ("waiting", agents.waiting)];
        gauges(&mut encoder, "fulcrum_agents", "Registered agents by state", "state", &states)?;
        gauge(&mut encoder, "fulcrum_sessions", "Open sessions", services.sessions.count(now).into())?;
        turns(&mut encoder, &services.turns.counts())?;
        counter(
            &mut encoder,
            "fulcrum_heartbeats",
            "Heartbeats taken in from instances, the host's own included",
            services.balancer.heartbeats(),
        )?;

        groups(&mut encoder, &self.groups)?;
        counter(
            &mut encoder,
            "fulcrum_group_policy_changes",
            "Times the policy version that plans for a group became another one, in component or configuration",
            services.groups.version_changes(),
        )?;

        events::encode(&mut encoder, services, &self.message_groups)?;

        let reloads = services.policies.reloads();
        let mut family = encoder.encode_descriptor(
            "fulcrum_reloads",
            "What the policies folder brought, by result",
            None,
            MetricType::Counter,
        )?;
        for (result, count) in [("changed", reloads.changed), ("refused", reloads.refused)] {
            family
                .encode_family(&[("result", result)])?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }

        if let Some(cache) = services.policies.runtime().cache() {
            compile_cache(&mut encoder, cache.counts())?;
        }

        if let Some(journal) = &services.journal {
            self::journal(&mut encoder, &journal.counts())?;
        }

        let (bytes_in, bytes_out) = services.meter.totals();
        let mut family = encoder.encode_descriptor(
            "fulcrum_http_body",
            "Bytes of HTTP bodies",
            Some(&Unit::Bytes),
            MetricType::Counter,
        )?;
        for (direction, bytes) in [("in", bytes_in), ("out", bytes_out)] {
            count(family.encode_family(&[("direction", direction)])?, bytes)?;
        }
        process(&mut encoder)
    }
}

/// Adds up all versions of a name: digests as labels would grow without bound.
fn decisions(encoder: &mut DescriptorEncoder<'_>, roles: &[(&str, &[Line])]) -> fmt::Result {
    let mut by_name = BTreeMap::<(&str, &str), Line>::new();
    for (role, line) in roles.iter().flat_map(|(role, lines)| lines.iter().map(move |line| (*role, line))) {
        let name = line.identity.as_ref().map_or("none", |identity| &identity.name);
        let sum = by_name.entry((role, name)).or_default();
        sum.outcomes.iter_mut().zip(line.outcomes).for_each(|(sum, count)| *sum += count);
        sum.buckets.iter_mut().zip(line.buckets).for_each(|(sum, count)| *sum += count);
        sum.nanos = sum.nanos.saturating_add(line.nanos);
    }
    let help = "Decisions by the policy asked and how its attempt went; the host decided where it is not ok";
    let mut family = encoder.encode_descriptor("fulcrum_decisions", help, None, MetricType::Counter)?;
    for ((role, name), line) in &by_name {
        for (outcome, decisions) in Outcome::ALL.iter().zip(line.outcomes) {
            let labels = [("role", *role), ("policy", *name), ("outcome", outcome.name())];
            count(family.encode_family(&labels)?, decisions)?;
        }
    }
    let help = "Time of one decision, verification and fallback included";
    let mut family =
        encoder.encode_descriptor("fulcrum_decision", help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for ((role, name), line) in &by_name {
        let bounds = BUCKET_BOUNDS_NANOS.iter().map(|&bound| seconds(bound)).chain([f64::MAX]);
        let buckets: Vec<_> = bounds.zip(line.buckets).collect();
        family.encode_family(&[("role", *role), ("policy", *name)])?.encode_histogram::<NoLabelSet>(
            seconds(line.nanos),
            line.count(),
            &buckets,
            None,
        )?;
    }
    Ok(())
}

/// Adds up all groups: their names as labels would grow without bound.
fn groups(encoder: &mut DescriptorEncoder<'_>, groups: &[Counts]) -> fmt::Result {
    let sum = |of: fn(&Counts) -> usize| groups.iter().map(of).sum::<usize>();
    gauge(encoder, "fulcrum_groups", "Consumer groups", groups.len() as u64)?;
    let states = [("live", sum(|of| of.members_live)), ("kept", sum(|of| of.members_kept))];
    gauges(encoder, "fulcrum_group_members", "Members of groups by state", "state", &states)?;
    let states = [
        ("owned", sum(|of| of.partitions_owned)),
        ("moving", sum(|of| of.partitions_moving)),
        ("free", sum(|of| of.partitions_free)),
    ];
    gauges(encoder, "fulcrum_group_partitions", "Partitions of groups by state", "state", &states)?;
    let warned = |kind| groups.iter().filter(|of| of.warnings.contains(&kind)).count();
    let kinds = WarningKind::WORDS.map(|(kind, word)| (word, warned(kind)));
    gauges(encoder, "fulcrum_group_warnings", "Groups whose view has a warning of this kind", "kind", &kinds)
}

fn turns(encoder: &mut DescriptorEncoder<'_>, counts: &turns::Counts) -> fmt::Result {
    let help = "Turns of sessions that ended, by how";
    let mut family = encoder.encode_descriptor("fulcrum_turns", help, None, MetricType::Counter)?;
    for (outcome, ended) in turns::Outcome::ALL.iter().zip(counts.ended) {
        count(family.encode_family(&[("outcome", outcome.name())])?, ended)?;
    }
    gauge(encoder, "fulcrum_turns_running", "Turns that run", counts.running as u64)?;
    let help = "Turns that run and that no agent took yet";
    gauge(encoder, "fulcrum_turns_waiting", help, counts.waiting as u64)?;
    let help = "Bytes of chunks kept for subscribers of sessions";
    gauge(encoder, "fulcrum_session_replay_bytes", help, counts.replay_bytes as u64)
}

fn policies(encoder: &mut DescriptorEncoder<'_>, services: &Services) -> fmt::Result {
    let help = "Policies the host knows; the one with a role has its state here";
    let mut family = encoder.encode_descriptor("fulcrum_policy", help, None, MetricType::Gauge)?;
    for status in &services.planner.statuses() {
        let state = serde_json::to_value(status.state).unwrap_or_default();
        let labels = [
            ("policy", status.name.as_str()),
            ("digest", status.digest.get(..12).unwrap_or_default()),
            ("state", state.as_str().unwrap_or_default()),
        ];
        family.encode_family(&labels)?.encode_gauge(&1i64)?;
    }
    Ok(())
}

fn shadows(encoder: &mut DescriptorEncoder<'_>, shadows: &[(String, shadow::Counts)]) -> fmt::Result {
    let help = "Live decisions and plans that shadows were to answer as well, by how that came out";
    let mut family = encoder.encode_descriptor("fulcrum_shadow_compared", help, None, MetricType::Counter)?;
    for (name, counts) in shadows {
        let shadow::Counts { same, different, failed, dropped } = *counts;
        let results = [("same", same), ("different", different), ("failed", failed), ("dropped", dropped)];
        for (result, compared) in results {
            let labels = [("policy", name.as_str()), ("result", result)];
            count(family.encode_family(&labels)?, compared)?;
        }
    }
    Ok(())
}

/// Each policy that was loaded counts once.
fn compile_cache(encoder: &mut DescriptorEncoder<'_>, counts: cache::Counts) -> fmt::Result {
    let help = "Policies loaded by what the cache of compiled code had; all but hits were compiled";
    let mut family =
        encoder.encode_descriptor("fulcrum_policy_cache_loads", help, None, MetricType::Counter)?;
    let cache::Counts { hits, misses, refused, .. } = counts;
    for (result, loads) in [("hit", hits), ("miss", misses.saturating_sub(refused)), ("refused", refused)] {
        count(family.encode_family(&[("result", result)])?, loads)?;
    }
    Ok(())
}

fn journal(encoder: &mut DescriptorEncoder<'_>, counts: &journal::Counts) -> fmt::Result {
    let help = "Decisions that were to be recorded, by what became of them";
    let mut family = encoder.encode_descriptor("fulcrum_journal_records", help, None, MetricType::Counter)?;
    for (result, records) in [("written", counts.written), ("dropped", counts.dropped)] {
        count(family.encode_family(&[("result", result)])?, records)?;
    }
    gauge(encoder, "fulcrum_journal_bytes", "Bytes of recorded decisions in the folder", counts.bytes)?;
    let help = "1 while the folder of recorded decisions cannot be written";
    gauge(encoder, "fulcrum_journal_paused", help, counts.is_paused.into())
}

fn process(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if let Ok(time) = cpu_time::ProcessTime::try_now() {
        let used = time.as_duration().as_secs_f64();
        encoder
            .encode_descriptor(
                "process_cpu",
                "Processor time used",
                Some(&Unit::Seconds),
                MetricType::Counter,
            )?
            .encode_counter::<NoLabelSet, _, f64>(&used, None)?;
    }
    match resident_bytes() {
        Some(bytes) => gauge(encoder, "process_resident_memory_bytes", "Resident memory", bytes),
        None => Ok(()),
    }
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    values: &[(&str, usize)],
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for &(of, value) in values {
        family.encode_family(&[(label, of)])?.encode_gauge(&signed(value as u64))?;
    }
    Ok(())
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&signed(value))
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    count(encoder.encode_descriptor(name, help, None, MetricType::Counter)?, value)
}

fn count(mut encoder: MetricEncoder<'_>, value: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

/// Returns the process's resident memory; only Linux tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
