//! Events and message groups.

use std::collections::BTreeMap;
use std::fmt;

use fulcrum_coordinator::pulls::{Counts, Kind, Totals};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{count, counter, gauge, gauges, signed};
use crate::app::Services;

/// Shared groups and their topics that have a line of their own; the others share one, so that lines stay bounded.
const LAGS_MAX: usize = 100;
/// Stands for the group and the topic of those that share a line.
const OTHERS: &str = "(others)";

/// Writes what was counted; `groups` come ordered by kind, name and topic.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    services: &Services,
    groups: &[Counts],
) -> fmt::Result {
    let published = services.events.published();
    counter(encoder, "fulcrum_events_published", "Events stored by publishing", published)?;
    let retention = services.retention.counts();
    let help = "Positions that were trimmed because of a topic's limits";
    counter(encoder, "fulcrum_events_trimmed", help, retention.trimmed)?;
    let help = "Positions that a hard limit took from consumer groups that had not read them";
    counter(encoder, "fulcrum_events_gap", help, retention.gap)?;
    let help = "Times a topic could not be trimmed";
    counter(encoder, "fulcrum_retention_failures", help, retention.failed)?;
    let waiting = services.requests.waiting() as u64;
    gauge(encoder, "fulcrum_requests_waiting", "Requests that wait for a reply", waiting)?;

    let totals = |of: fn(&Totals) -> u64| groups.iter().map(|counts| of(&counts.totals)).sum::<u64>();
    let what = [
        ("delivered", totals(|of| of.delivered)),
        ("acked", totals(|of| of.acked)),
        ("nacked", totals(|of| of.nacked)),
        ("expired", totals(|of| of.expired)),
        ("dead", totals(|of| of.dead)),
        ("filtered", totals(|of| of.filtered)),
    ];
    let help = "What became of events in the message groups there are: deliveries, acknowledgements, refusals, leases \
                that ran out, dead letters, events that filters kept back";
    let mut family = encoder.encode_descriptor("fulcrum_deliveries", help, None, MetricType::Counter)?;
    for (what, total) in what {
        count(family.encode_family(&[("what", what)])?, total)?;
    }

    let sum =
        |of: fn(&Counts) -> u64| usize::try_from(groups.iter().map(of).sum::<u64>()).unwrap_or(usize::MAX);
    let kinds = [("shared", Kind::Shared), ("private", Kind::Private)];
    let kinds = kinds.map(|(name, kind)| (name, groups.iter().filter(|of| of.kind == kind).count()));
    let help = "Message groups by kind, one per topic they read";
    gauges(encoder, "fulcrum_message_groups", help, "kind", &kinds)?;
    let states = [
        ("ready", sum(|of| of.ready)),
        ("waiting", sum(|of| of.waiting)),
        ("in_flight", sum(|of| of.in_flight)),
        ("parked", sum(|of| of.parked)),
        ("dying", sum(|of| of.dying)),
    ];
    gauges(encoder, "fulcrum_window_events", "Events in the windows of message groups", "state", &states)?;
    let full = sum(|of| of.windows_full) as u64;
    gauge(encoder, "fulcrum_windows_full", "Windows that are full: nothing more is read there", full)?;
    let waiting = sum(|of| of.polls_waiting) as u64;
    gauge(encoder, "fulcrum_polls_waiting", "Polls and streams that wait for an event", waiting)?;

    let help =
        "Positions a shared group has yet to settle on a topic; the first 100 have a line of their own";
    let mut family = encoder.encode_descriptor("fulcrum_message_group_lag", help, None, MetricType::Gauge)?;
    for ((group, topic), lag) in lags(groups) {
        family.encode_family(&[("group", group), ("topic", topic)])?.encode_gauge(&signed(lag))?;
    }
    Ok(())
}

/// Returns the lag of each shared group on each topic, those beyond the bound added up.
fn lags(groups: &[Counts]) -> BTreeMap<(&str, &str), u64> {
    let mut lags = BTreeMap::new();
    for (at, of) in groups.iter().filter(|of| of.kind == Kind::Shared).enumerate() {
        let labels = if at < LAGS_MAX { (&*of.group, &*of.topic) } else { (OTHERS, OTHERS) };
        *lags.entry(labels).or_default() += of.lag;
    }
    lags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lags_have_a_bounded_number_of_lines() {
        let counts = |at: u64| Counts {
            kind: Kind::Shared,
            group: format!("g{at:04}"),
            topic: "t".to_owned(),
            is_fifo: false,
            subscribers: 0,
            polls_waiting: 0,
            ready: 0,
            waiting: 0,
            in_flight: 0,
            parked: 0,
            dying: 0,
            windows_full: 0,
            lag: 1,
            totals: Totals::default(),
        };
        let mut groups: Vec<_> = (0..250).map(counts).collect();
        groups[0].lag = 7;
        groups.push(Counts { kind: Kind::Private, lag: 1000, ..counts(0) });
        let lags = lags(&groups);
        assert_eq!(lags.len(), 101);
        assert_eq!((lags[&("g0000", "t")], lags[&(OTHERS, OTHERS)]), (7, 150));
    }
}
