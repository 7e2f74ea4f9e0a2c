//! The Event Hubs processors against our policies, natively; the host's tests ask the components the same.

use balanced::logic::Balanced;
use conformance::{Native, eventhubs};
use fulcrum_guest::testing::claiming::{Group, settle};
use greedy::logic::Greedy;

#[test]
fn python_decisions_are_the_same_but_for_the_listed_differences() {
    eventhubs::python_decisions(&mut Native);
}

#[test]
fn javascript_decisions_are_the_same_but_for_the_listed_differences() {
    eventhubs::javascript_decisions(&mut Native);
}

#[test]
fn facts_of_the_upstream_tests_hold() {
    eventhubs::upstream_facts(&mut Native);
}

#[test]
fn trajectories_end_alike_with_no_more_steals() {
    eventhubs::trajectories(&mut Native);
}

#[test]
fn a_cold_start_steals_nothing_and_a_wave_moves_the_surplus_only() {
    for config in ["{}", r#"{"claimPercent":25}"#, r#"{"maxClaimsPerCycle":1}"#] {
        for (members, partitions, wave) in
            [(4, 32, 24), (16, 31, 29), (10, 32, 28), (8, 12, 10), (40, 32, 31)]
        {
            let mut cold = Group::cold(members, partitions);
            assert_eq!(settle::<Balanced>(config, &mut cold, 100).moves, 0);
            let mut cold = Group::cold(members, partitions);
            assert_eq!(settle::<Greedy>(config, &mut cold, 100).moves, 0);
            for greedy in [false, true] {
                let mut group = Group::cold(members, partitions);
                group.owner = vec![0; partitions];
                let settled = if greedy {
                    settle::<Greedy>(config, &mut group, 100)
                } else {
                    settle::<Balanced>(config, &mut group, 100)
                };
                assert_eq!(settled.moves, wave, "{members}x{partitions}");
                let loads = group.loads();
                let spread = loads.iter().max().expect("members") - loads.iter().min().expect("members");
                assert!(spread <= 1, "{loads:?}");
                if config == "{}" {
                    let cycles = if greedy { 1 } else { (partitions / members).max(1) as u32 };
                    assert!(settled.cycles == cycles || settled.cycles == cycles + 1, "{settled:?}");
                }
            }
        }
    }
}
