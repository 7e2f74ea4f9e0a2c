//! Table-style rules and properties of `sticky`, driven natively through the trait.

use fulcrum_guest::testing::claiming::{self, Group, member, plan, settle};
use fulcrum_guest::{Claiming, Error};
use proptest::prelude::*;
use sticky::logic::Sticky;

/// Checks what a group with these owners becomes; everybody subscribes to its only topic.
fn check(config: &str, members: usize, owners: &[i32], expected: &[i32]) {
    let mut group = Group::cold(members, owners.len());
    group.owner = owners.to_vec();
    group.apply(&plan::<Sticky>(config, &group));
    assert_eq!(group.owner, expected, "{config}, {members} members, {owners:?}");
}

#[test]
fn keeps_what_it_can() {
    check("{}", 0, &[-1, -1], &[-1, -1]);
    check("{}", 3, &[], &[]);
    check("{}", 1, &[-1, -1], &[0, 0]);
    check("{}", 2, &[0, 0, 1, 1], &[0, 0, 1, 1]);
    check("{}", 2, &[0, 0, 0, 1, 1], &[0, 0, 0, 1, 1]);
    check("{}", 2, &[1, 0, 1, 1, 0], &[1, 0, 1, 1, 0]);
    check("{}", 2, &[0, 0, 0, 0], &[0, 1, 0, 1]);
}

#[test]
fn leaves_partitions_on_their_way_alone() {
    let mut group = Group::cold(2, 4);
    group.owner = vec![0; 4];
    group.moving = vec![1, 1, 1, 0];
    assert_eq!(plan::<Sticky>("{}", &group).partition, [3]);
    group.moving = vec![1; 4];
    assert_eq!(plan::<Sticky>("{}", &group).partition, [0; 0]);
}

#[test]
fn different_subscriptions_are_served_through_others() {
    // a reads t and u, b reads u only: all of u must go to b.
    let mut group = Group::of(vec![member("a", &[0, 1]), member("b", &[1])], &[("t", 4), ("u", 4)]);
    settle::<Sticky>("{}", &mut group, 1);
    assert_eq!(group.owner, [0, 0, 0, 0, 1, 1, 1, 1]);
    // A chain: c can only be served by taking from b, who takes from a.
    let members = vec![member("a", &[0]), member("b", &[0, 1]), member("c", &[1])];
    let mut group = Group::of(members, &[("t", 6), ("u", 3)]);
    group.owner = vec![0, 0, 0, 0, 0, 0, 1, 1, 1];
    let settled = settle::<Sticky>("{}", &mut group, 1);
    assert_eq!(group.loads(), [3, 3, 3], "{:?}", group.owner);
    assert_eq!(settled.moves, 6);
}

#[test]
fn what_may_not_be_owned_is_given_up() {
    let mut group = Group::of(vec![member("a", &[0]), member("b", &[0])], &[("t", 2), ("u", 1)]);
    group.owner = vec![0, 0, 1];
    let changes = plan::<Sticky>("{}", &group);
    assert_eq!((changes.partition.len(), &*changes.releases), (1, &[2][..]));
    group.movement_budget = Some(1);
    let changes = plan::<Sticky>("{}", &group);
    assert_eq!(
        (changes.partition.len(), &*changes.releases, changes.next_cycle_ms),
        (0, &[2][..], Some(1000))
    );
}

#[test]
fn capacities_and_weights_shape_the_shares() {
    let mut group = Group::cold(3, 12);
    group.members[2].capacity = 2.0;
    settle::<Sticky>("{}", &mut group, 1);
    assert_eq!(group.loads(), [3, 3, 6]);
    let mut group = Group::cold(3, 12);
    group.members[2].capacity = 2.0;
    settle::<Sticky>(r#"{"capacities":"ignore"}"#, &mut group, 1);
    assert_eq!(group.loads(), [4, 4, 4]);
    let mut group = Group::cold(2, 5);
    group.weight = vec![4.0, 1.0, 1.0, 1.0, 1.0];
    settle::<Sticky>("{}", &mut group, 1);
    assert_eq!(group.owner, [0, 1, 1, 1, 1]);
    group.owner = vec![0, 0, 0, 1, 1];
    assert_eq!(settle::<Sticky>("{}", &mut group, 1).moves, 2);
    // Within the tolerance nothing moves.
    group.weight[0] = 4.4;
    assert_eq!(settle::<Sticky>("{}", &mut group, 1).moves, 0);
}

#[test]
fn under_a_budget_the_most_loaded_is_relieved_first() {
    let mut group = Group::cold(3, 9);
    group.owner = vec![0, 0, 0, 0, 1, 1, 1, 1, 1];
    group.movement_budget = Some(1);
    let changes = plan::<Sticky>("{}", &group);
    assert_eq!((group.owner[changes.partition[0] as usize], &*changes.member), (1, &[2][..]));
    assert_eq!(changes.next_cycle_ms, Some(1000));
    assert_eq!(settle::<Sticky>("{}", &mut group, 3).moves, 3);
    group.movement_budget = Some(0);
    group.owner = vec![0; 9];
    let changes = plan::<Sticky>("{}", &group);
    assert_eq!((changes.partition.len(), changes.next_cycle_ms), (0, None), "frozen on purpose");
}

#[test]
fn neighbours_are_given_up_from_everywhere() {
    let mut group = Group::of(
        (0..10).map(|row| member(&format!("m{row}"), &[0, 1])).collect(),
        &[("t", 100), ("u", 100)],
    );
    settle::<Sticky>("{}", &mut group, 1);
    let row = group.join(member("n", &[0, 1]));
    settle::<Sticky>("{}", &mut group, 1);
    let of_topic = |topic: u32| {
        group
            .owner
            .iter()
            .zip(&group.topic)
            .filter(|&(&owner, &of)| owner == row as i32 && of == topic)
            .count()
    };
    assert!(of_topic(0).abs_diff(of_topic(1)) <= 2, "{} and {}", of_topic(0), of_topic(1));
}

#[test]
fn refuses_what_contradicts_itself() {
    let policy = Sticky::configure("{}").expect("good");
    let bad = |change: fn(&mut Group)| {
        let mut group = Group::cold(2, 3);
        change(&mut group);
        assert!(matches!(policy.plan(&group.cycle()), Err(Error::InvalidInput(_))), "{group:?}");
    };
    bad(|group| group.owner[1] = 2);
    bad(|group| group.owner[1] = -2);
    bad(|group| group.topic[2] = 1);
    bad(|group| group.place[0] = 1);
    bad(|group| group.weight[0] = f64::NAN);
    bad(|group| group.weight[0] = -1.0);
    bad(|group| group.weight[0] = f64::INFINITY);
    bad(|group| group.moving.truncate(2));
    bad(|group| group.members[0].capacity = 0.0);
    bad(|group| group.members[0].topics = vec![1]);
    bad(|group| group.members[0].topics = vec![0, 0]);
}

#[test]
fn refuses_bad_configuration_by_name() {
    for (config, field) in [
        (r#"{"tolerance":-1}"#, "tolerance "),
        (r#"{"weights":"maybe"}"#, "weights "),
        (r#"{"fastIntervalMs":0.5}"#, "fastIntervalMs "),
        (r#"{"choices":2}"#, "choices "),
    ] {
        match Sticky::configure(config) {
            Err(Error::InvalidConfig(text)) => assert!(text.starts_with(field), "{config}: {text}"),
            other => panic!("{config}: {other:?}"),
        }
    }
    claiming::defaults_agree::<Sticky>();
}

proptest! {
    #[test]
    fn holds_the_laws(
        group in claiming::groups(),
        config in prop::sample::select(vec!["{}", r#"{"weights":"ignore"}"#, r#"{"capacities":"ignore","tolerance":0}"#]),
    ) {
        plan::<Sticky>(config, &group);
    }
}
