//! Every claim policy, native against its prebuilt component, on generated groups: the same plan to the letter, or the
//! same refusal.

use std::sync::{Arc, LazyLock};

use fulcrum_core::claiming::{self as host, Reason};
use fulcrum_guest::testing::claiming::Group;
use fulcrum_guest::{Changes, Claiming, Error};
use fulcrum_policy::failure::{Declared, Failure};
use fulcrum_policy::{Artifact, Limits, Runtime};

use crate::lowered::lowered;
use crate::support::test_seed;

/// Groups tried per policy and configuration.
const GROUPS: u64 = 150;

fn same<P: Claiming>(name: &str, configs: &[&str]) {
    static RUNTIME: LazyLock<Arc<Runtime>> = LazyLock::new(|| {
        // What is compared are answers, not how busy this machine is.
        let limits = Limits { claiming_deadline: std::time::Duration::from_secs(20), ..Limits::default() };
        Runtime::new(limits).expect("the engine starts")
    });
    let artifact =
        Artifact::load(&RUNTIME, fulcrum::embedded::find(name).expect("embedded")).expect("it loads");
    for config in configs {
        let value = serde_json::from_str(config).expect("JSON");
        let loaded = artifact.configured(name, value).expect("a good configuration");
        let mut wasm = loaded.make_claiming().expect("an instance starts");
        let native = P::configure(config).unwrap_or_else(|_| panic!("{name}: {config}"));
        for fresh in [0, test_seed()] {
            for number in 0..GROUPS {
                let seed = fresh.wrapping_add(number);
                let group = Group::random(seed, 8, 12);
                let found = wasm.plan(&lowered(&group, Reason::Manual));
                let expected = native.plan(&group.cycle());
                assert_eq!(found, raised(expected), "{name} with {config}, group of seed {seed}");
            }
        }
    }
}

fn raised(plan: Result<Changes, Error>) -> Result<host::Proposal, Failure> {
    plan.map(|changes| host::Proposal {
        partition: changes.partition,
        member: changes.member,
        reason: changes.reason,
        reasons: changes.reasons.into_iter().map(Into::into).collect(),
        releases: changes.releases,
        next_cycle_ms: changes.next_cycle_ms,
    })
    .map_err(|error| {
        Failure::Declared(match error {
            Error::InvalidConfig(text) => Declared::InvalidConfig(text),
            Error::InvalidInput(text) => Declared::InvalidInput(text),
            Error::NoCandidate => Declared::NoCandidate,
            Error::Unsupported => Declared::Unsupported,
            Error::Failed(text) => Declared::Failed(text),
        })
    })
}

#[test]
fn policies_that_balance_plan_the_same_natively_and_as_components() {
    same::<sticky::logic::Sticky>("sticky", &["{}", r#"{"weights":"ignore","capacities":"ignore"}"#]);
    same::<balanced::logic::Balanced>("balanced", &["{}", r#"{"claimPercent":50}"#]);
    same::<greedy::logic::Greedy>("greedy", &["{}", r#"{"maxClaimsPerCycle":2}"#]);
}

#[test]
fn policies_of_rocketmq_plan_the_same_natively_and_as_components() {
    same::<average::logic::Average>("average", &["{}"]);
    same::<average_by_circle::logic::AverageByCircle>("average-by-circle", &["{}"]);
    let rings = ["{}", r#"{"key":"rocketmq"}"#, r#"{"boundedLoad":1.25}"#];
    same::<consistent_hash::logic::ConsistentHash>("consistent-hash", &rings);
    same::<machine_room_nearby::logic::MachineRoomNearby>("machine-room-nearby", &["{}"]);
}
