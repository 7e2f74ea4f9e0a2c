//! The rule on small groups, and what it promises on random ones.

use fulcrum_guest::Member;
use fulcrum_guest::claiming::Reason;
use fulcrum_guest::seeded::Seeded;

use super::*;

/// A group of one topic.
#[derive(Clone)]
struct Group {
    members: Vec<Member>,
    places: Vec<String>,
    place: Vec<u32>,
    owner: Vec<i32>,
    moving: Vec<u8>,
    weight: Vec<f64>,
    budget: Option<u32>,
}

impl Group {
    /// Members by (zone, capacity), partitions by (place, weight, owner).
    fn of(members: &[(&str, f64)], partitions: &[(&str, f64, i32)]) -> Self {
        let member = |(row, &(zone, capacity)): (usize, &(&str, f64))| Member {
            id: format!("m{row}"),
            zone: zone.to_owned(),
            labels: Vec::new(),
            capacity,
            since_ms: 0,
            topics: vec![0],
        };
        let mut places = vec![String::new()];
        let mut place = Vec::new();
        for (name, _, _) in partitions {
            let known = places.iter().position(|place| place == name);
            place.push(known.unwrap_or(places.len()) as u32);
            if known.is_none() {
                places.push((*name).to_owned());
            }
        }
        Self {
            members: members.iter().enumerate().map(member).collect(),
            places,
            place,
            owner: partitions.iter().map(|partition| partition.2).collect(),
            moving: vec![0; partitions.len()],
            weight: partitions.iter().map(|partition| partition.1).collect(),
            budget: None,
        }
    }

    fn plan(&self, config: &str) -> Changes {
        let count = self.owner.len();
        let cycle = Cycle {
            group: "g",
            members: &self.members,
            topics: &["t".to_owned()],
            places: &self.places,
            topic: &vec![0; count],
            number: &(0..count as u32).collect::<Vec<_>>(),
            place: &self.place,
            owner: &self.owner,
            moving: &self.moving,
            weight: &self.weight,
            held_ms: &vec![0; count],
            movement_budget: self.budget,
            reason: Reason::Manual,
            now_ms: 0,
            seed: 0,
        };
        ZoneWeightAware::configure(config).and_then(|policy| policy.plan(&cycle)).expect("a good cycle")
    }

    fn apply(&mut self, changes: &Changes) {
        for (&partition, &member) in changes.partition.iter().zip(&changes.member) {
            self.owner[partition as usize] = member as i32;
        }
    }
}

#[test]
fn zones_weights_and_capacities_count() {
    type Members = [(&'static str, f64)];
    type Partitions = [(&'static str, f64, i32)];
    let check = |members: &Members, partitions: &Partitions, expected: &[i32]| {
        let mut group = Group::of(members, partitions);
        let changes = group.plan("{}");
        group.apply(&changes);
        assert_eq!(group.owner, expected, "{members:?} {partitions:?}");
        assert_eq!(changes.next_cycle_ms, None);
    };
    let two = &[("z1", 1.0), ("z2", 1.0)];
    // Each in its own zone.
    check(two, &[("z2", 1.0, -1), ("z1", 1.0, -1), ("z2", 1.0, -1), ("z1", 1.0, -1)], &[1, 0, 1, 0]);
    // A zone that is too full gives to the other, but not for a small difference.
    check(two, &[("z1", 1.0, -1), ("z1", 1.0, -1), ("z1", 1.0, -1)], &[0, 0, 1]);
    check(two, &[("z1", 1.0, 0), ("z1", 1.0, 0)], &[0, 0]);
    // Without places only weights count: the heavy one alone.
    check(two, &[("", 3.0, -1), ("", 1.0, -1), ("", 1.0, -1), ("", 1.0, -1)], &[0, 1, 1, 1]);
    // Twice the capacity takes twice as much.
    check(&[("", 2.0), ("", 1.0)], &[("", 1.0, -1), ("", 1.0, -1), ("", 1.0, -1)], &[0, 0, 1]);
    // A joining member gets its share of what is near it.
    check(two, &[("z1", 1.0, 0), ("z2", 1.0, 0), ("z1", 1.0, 0), ("z2", 1.0, 0)], &[0, 1, 0, 1]);
    check(&[], &[("z1", 1.0, -1)], &[-1]);
    check(two, &[("", 0.0, -1), ("", 0.0, -1)], &[0, 1]);
}

#[test]
fn a_hand_over_is_left_alone_and_a_budget_is_kept() {
    let mut group = Group::of(&[("", 1.0), ("", 1.0)], &[("", 1.0, 0); 6]);
    group.moving[0] = 1;
    group.budget = Some(1);
    let changes = group.plan("{}");
    assert_eq!((&*changes.partition, &*changes.member), (&[1][..], &[1][..]));
    assert_eq!(changes.next_cycle_ms, Some(FAST_INTERVAL_MS));
    group.budget = Some(0);
    assert_eq!(group.plan("{}"), Changes::default());
}

#[test]
fn random_groups_settle_and_stay() {
    for seed in 0..300 {
        let mut chance = Seeded::new(seed);
        let zones = ["", "z1", "z2", "z3"];
        let members: Vec<_> = (0..=chance.below(8))
            .map(|_| (zones[chance.below(4) as usize], [0.5, 1.0, 4.0][chance.below(3) as usize]))
            .collect();
        let partitions: Vec<_> = (0..chance.below(40))
            .map(|_| {
                let owner = chance.below(members.len() as u32 + 1) as i32 - 1;
                (zones[chance.below(4) as usize], [0.0, 1.0, 7.5, 1e300][chance.below(4) as usize], owner)
            })
            .collect();
        let mut group = Group::of(&members, &partitions);
        group.budget = [None, Some(2)][chance.below(2) as usize];
        let settled = (0..200).position(|_| {
            let changes = group.plan("{}");
            let owned = changes.partition.iter().filter(|&&partition| group.owner[partition as usize] >= 0);
            assert!(group.budget.is_none_or(|budget| owned.count() <= budget as usize), "seed {seed}");
            group.apply(&changes);
            changes.partition.is_empty()
        });
        assert!(settled.is_some(), "seed {seed} does not settle: {members:?} {partitions:?}");
        assert!(group.owner.iter().all(|&owner| owner >= 0), "seed {seed}: nothing is left free");
    }
}
