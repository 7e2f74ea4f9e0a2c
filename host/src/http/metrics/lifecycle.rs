//! Metrics of promotions and canaries.

use std::fmt;

use fulcrum_policy::Manager;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{count, counter};

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, policies: &Manager) -> fmt::Result {
    let ended = policies.ended();
    let help = "Promotions that ended, by how";
    let mut family =
        encoder.encode_descriptor("fulcrum_policy_promotions", help, None, MetricType::Counter)?;
    let results = [
        ("passed", ended.passed),
        ("returned", ended.returned),
        ("rolled_back", ended.rolled_back),
        ("superseded", ended.superseded),
    ];
    for (result, promotions) in results {
        count(family.encode_family(&[("result", result)])?, promotions)?;
    }
    let help = "Canaries that were taken out because they failed";
    counter(encoder, "fulcrum_policy_canaries_returned", help, ended.canaries_returned)?;
    let help = "Pieces of work of the policies' task that crashed";
    counter(encoder, "fulcrum_policy_task_crashes", help, policies.task().crashes)?;
    let help = "Share of the clients that a canary decides for";
    let mut family =
        encoder.encode_descriptor("fulcrum_policy_canary_share", help, None, MetricType::Gauge)?;
    match &policies.bindings().canary {
        None => Ok(()),
        Some(canary) => {
            family.encode_family(&[("policy", canary.policy.as_str())])?.encode_gauge(&canary.share)
        }
    }
}
