//! The laws of plans, for every claim policy and many configurations; and what is particular to some of them.

use average::logic::Average;
use average_by_circle::logic::AverageByCircle;
use balanced::logic::Balanced;
use by_config::logic::ByConfig;
use consistent_hash::logic::{ConsistentHash, caps};
use fulcrum_guest::claiming::even;
use fulcrum_guest::testing::claiming::{Group, defaults_agree, groups, member, plan, settle};
use fulcrum_guest::{Claiming, Error};
use greedy::logic::Greedy;
use machine_room::logic::MachineRoom;
use machine_room_nearby::logic::MachineRoomNearby;
use proptest::prelude::*;
use sticky::logic::Sticky;

const LISTED: &str = r#"{"assignments":{"r0-m0000":[{"topic":"t0","partitions":[0,1,2]},{"topic":"t1","place":"r0@b","partitions":[0]}],
    "r1-m0001":[{"topic":"t0","partitions":[2,3,77]}]}}"#;

/// One plan under the laws, and, with a budget that lets something happen, plans until nothing changes.
fn check<P: Claiming>(config: &str, group: &Group) {
    plan::<P>(config, group);
    let mut group = group.clone();
    group.movement_budget = group.movement_budget.map(|budget| budget.max(1));
    settle::<P>(config, &mut group, 1000);
    let more = plan::<P>(config, &group).next_cycle_ms;
    assert!(more.is_none(), "nothing to do, yet it asks for a cycle after {more:?} ms");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_policy_obeys_and_settles(group in groups()) {
        check::<Sticky>("{}", &group);
        check::<Sticky>(r#"{"weights":"ignore","capacities":"ignore"}"#, &group);
        check::<Balanced>("{}", &group);
        check::<Balanced>(r#"{"claimPercent":30}"#, &group);
        check::<Greedy>("{}", &group);
        check::<Greedy>(r#"{"claimPercent":50,"maxClaimsPerCycle":2}"#, &group);
        check::<Average>("{}", &group);
        check::<AverageByCircle>("{}", &group);
        check::<ConsistentHash>("{}", &group);
        check::<ConsistentHash>(r#"{"key":"rocketmq","virtualNodes":0}"#, &group);
        check::<ConsistentHash>(r#"{"boundedLoad":1.25}"#, &group);
        check::<MachineRoom>("{}", &group);
        check::<MachineRoom>(r#"{"rooms":["r0"],"placeIs":"room"}"#, &group);
        check::<MachineRoomNearby>(r#"{"separator":"@"}"#, &group);
        check::<MachineRoomNearby>(r#"{"inner":"consistent-hash"}"#, &group);
        check::<ByConfig>(LISTED, &group);
    }

    #[test]
    fn credits_hold_and_lead_to_the_same_balance(
        group in groups(), percent in 0_u32..=100, most in prop::option::of(1_u32..5),
    ) {
        let most_text = most.map_or("null".to_owned(), |most| most.to_string());
        let config = format!(r#"{{"claimPercent":{percent},"maxClaimsPerCycle":{most_text}}}"#);
        let target = even::rebalance(&group.cycle(), even::Order::Partition).expect("a good cycle");
        let changes = plan::<Greedy>(&config, &group);
        let mut gains = vec![0; group.members.len()];
        for &member in &changes.member {
            gains[member as usize] += 1;
        }
        for (row, gains) in gains.into_iter().enumerate() {
            let fair = match target.share {
                Some((partitions, members)) => f64::from(partitions) / f64::from(members),
                None => f64::from(target.load[row]),
            };
            // Exact in integers; a hair less here, as 0.3 * 10 is more than 3.
            let credits = (f64::from(percent) * fair / 100.0 - 1e-9).ceil().max(1.0) as u32;
            prop_assert!(gains <= credits.min(most.unwrap_or(u32::MAX)), "{gains} of {credits}");
        }
        let (mut slow, mut fast) = (group.clone(), group);
        (slow.movement_budget, fast.movement_budget) = (None, None);
        let slow_moves = settle::<Greedy>(&config, &mut slow, 1000).moves;
        let fast_moves = settle::<Sticky>(r#"{"weights":"ignore","capacities":"ignore"}"#, &mut fast, 1).moves;
        prop_assert_eq!(slow_moves, fast_moves, "as few moves as at once");
        let sorted = |group: &Group| { let mut loads = group.loads(); loads.sort_unstable(); loads };
        prop_assert_eq!(sorted(&slow), sorted(&fast));
    }
}

#[test]
fn bounded_loads_are_bounded_and_calm() {
    let config = r#"{"boundedLoad":1.25}"#;
    for (members, partitions) in [(10, 100), (100, 1000), (20, 37), (100, 10_000)] {
        let mut group = Group::cold(members, partitions);
        settle::<ConsistentHash>(config, &mut group, 1);
        let (cap, _) = caps(1.25, partitions, members);
        assert!(group.loads().into_iter().all(|load| load <= cap), "{:?}", group.loads());
        let mut left = group.clone();
        left.leave(members / 2);
        let moves = settle::<ConsistentHash>(config, &mut left, 2).moves;
        let (_, kept) = caps(1.25, partitions, members - 1);
        assert!(left.loads().into_iter().all(|load| load <= kept), "{:?}", left.loads());
        let mut joined = group.clone();
        joined.join(member("m00003x", &[0]));
        let join_moves = settle::<ConsistentHash>(config, &mut joined, 2).moves;
        let (_, kept) = caps(1.25, partitions, members + 1);
        assert!(joined.loads().into_iter().all(|load| load <= kept), "{:?}", joined.loads());
        // Without hysteresis a leave moves half as much again, and a tight cap many times as much.
        assert!(moves as usize <= 1 + partitions / members, "{moves}");
        assert!(join_moves as usize <= 3 * (1 + partitions / members), "{join_moves}");
    }
}

#[test]
fn stand_ins_take_over_in_the_order_of_the_list() {
    let config =
        r#"{"assignments":{"b":[{"topic":"t","partitions":[0,1]}],"a":[{"topic":"t","partitions":[1,2]}]}}"#;
    let mut group = Group::of(vec![member("a", &[0]), member("b", &[0])], &[("t", 4)]);
    settle::<ByConfig>(config, &mut group, 1);
    assert_eq!(group.owner, [1, 1, 0, -1]);
    group.leave(1);
    group.owner[3] = 0;
    settle::<ByConfig>(config, &mut group, 1);
    assert_eq!(group.owner, [-1, 0, 0, -1]);
}

#[test]
fn intervals_follow_the_work() {
    let mut group = Group::cold(2, 4);
    let config = r#"{"fastIntervalMs":250,"slowIntervalMs":30000}"#;
    assert_eq!(plan::<Balanced>(config, &group).next_cycle_ms, Some(250));
    assert_eq!(plan::<Greedy>(config, &group).next_cycle_ms, Some(30_000));
    assert_eq!(plan::<Balanced>("{}", &group).next_cycle_ms, Some(1000));
    assert_eq!(settle::<Balanced>(config, &mut group, 2).cycles, 2);
    assert_eq!(plan::<Balanced>("{}", &group).next_cycle_ms, None);
    assert_eq!(plan::<Balanced>(config, &group).next_cycle_ms, Some(30_000));
}

#[test]
fn credits_are_those_of_the_note() {
    // Fair share 6: 1 % to 16 % are one, 17 % two, 50 % three, 100 % six.
    for (percent, cycles) in
        [(0, 6), (1, 6), (16, 6), (17, 3), (33, 3), (34, 2), (50, 2), (67, 2), (84, 1), (100, 1)]
    {
        let mut group = Group::cold(4, 24);
        let config = format!(r#"{{"claimPercent":{percent}}}"#);
        assert_eq!(settle::<Greedy>(&config, &mut group, 6).cycles, cycles, "{percent} %");
    }
    let mut group = Group::cold(4, 24);
    assert_eq!(settle::<Greedy>(r#"{"maxClaimsPerCycle":4}"#, &mut group, 6).cycles, 2);
}

#[test]
fn configurations_are_checked_and_defaults_agree() {
    fn refuses<P: Claiming + std::fmt::Debug>(configs: &[(&str, &str)]) {
        defaults_agree::<P>();
        for (config, field) in
            configs.iter().chain(&[(r#"{"colour":1}"#, "colour "), ("[]", "the configuration ")])
        {
            match P::configure(config) {
                Err(Error::InvalidConfig(text)) => assert!(text.starts_with(field), "{config}: {text}"),
                other => panic!("{config}: {other:?}"),
            }
        }
    }
    let pace = [
        (r#"{"claimPercent":101}"#, "claimPercent "),
        (r#"{"claimPercent":0.5}"#, "claimPercent "),
        (r#"{"maxClaimsPerCycle":0}"#, "maxClaimsPerCycle "),
        (r#"{"slowIntervalMs":"1 s"}"#, "slowIntervalMs "),
    ];
    refuses::<Balanced>(&pace);
    refuses::<Greedy>(&pace);
    refuses::<Average>(&[]);
    refuses::<AverageByCircle>(&[]);
    refuses::<ConsistentHash>(&[
        (r#"{"boundedLoad":1.1}"#, "boundedLoad "),
        (r#"{"virtualNodes":-1}"#, "virtualNodes "),
        (r#"{"key":"md5"}"#, "key "),
    ]);
    refuses::<MachineRoom>(&[(r#"{"rooms":"r"}"#, "rooms "), (r#"{"rooms":[1]}"#, "rooms ")]);
    refuses::<MachineRoomNearby>(&[
        (r#"{"inner":"sticky"}"#, "inner "),
        (r#"{"separator":""}"#, "separator "),
    ]);
    refuses::<ByConfig>(&[
        (r#"{"assignments":[]}"#, "assignments "),
        (r#"{"assignments":{"m":[{"topic":"t"}]}}"#, "assignments "),
        (r#"{"assignments":{"m":[{"topic":"t","partitions":[0.5]}]}}"#, "assignments "),
    ]);
}
