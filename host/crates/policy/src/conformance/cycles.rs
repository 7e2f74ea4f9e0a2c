//! Cases of the claiming role: cycles of groups. The host asks only groups that have members.

use fulcrum_core::claiming::{Cycle, Reason};

use super::{Plan, texts};
use crate::proof::{self, Chance};

/// A cycle, and whether it goes on until the group is settled.
pub(super) struct Case {
    pub(super) cycle: Cycle,
    pub(super) settles: bool,
}

/// All classes of cases.
pub(super) fn classes() -> Vec<Plan<Case>> {
    let class = |name, count, make| Plan { name, count, make };
    vec![
        class("claiming/no-partitions", 4, no_partitions as fn(usize, &mut Chance) -> Case),
        class("claiming/one-member", 8, one_member),
        class("claiming/few-partitions", 16, few_partitions),
        class("claiming/subscriptions", 32, subscriptions),
        class("claiming/moving", 16, moving),
        class("claiming/budget", 24, budget),
        class("claiming/weights", 24, weights),
        class("claiming/places", 12, places),
        class("claiming/hostile-text", 24, hostile_text),
        class("claiming/reasons", Reason::WORDS.len(), reasons),
        class("claiming/settled", 12, settled),
        class("claiming/mixes", 40, mixes),
        class("claiming/until-settled", 24, until_settled),
        class("claiming/thousand-members", 4, large),
    ]
}

fn once(cycle: Cycle) -> Case {
    Case { cycle, settles: false }
}

fn size(chance: &mut Chance) -> (usize, usize) {
    (1 + chance.below(12) as usize, 1 + chance.below(80) as usize)
}

fn all(_: usize, _: u32) -> bool {
    true
}

fn free(_: usize) -> i32 {
    -1
}

/// Makes a group in which everybody reads both topics and each partition is owned by anybody or free.
fn owned(chance: &mut Chance) -> Cycle {
    let (members, partitions) = size(chance);
    let owners: Vec<_> = (0..partitions).map(|_| chance.below(members as u64 + 1) as i32 - 1).collect();
    proof::cycle(members, partitions, all, |at| owners[at])
}

fn no_partitions(at: usize, _: &mut Chance) -> Case {
    once(proof::cycle(1 + at * 3, 0, |member, _| at.is_multiple_of(2) || member == 0, free))
}

fn one_member(at: usize, chance: &mut Chance) -> Case {
    let partitions = 1 + chance.below(50) as usize;
    once(proof::cycle(1, partitions, all, |partition| if partition % 2 < at % 3 { 0 } else { -1 }))
}

fn few_partitions(_: usize, chance: &mut Chance) -> Case {
    let (members, partitions) = (10 + chance.below(50) as usize, 1 + chance.below(9) as usize);
    let owners: Vec<_> = (0..partitions).map(|_| chance.below(members as u64 + 1) as i32 - 1).collect();
    once(proof::cycle(members, partitions, all, |at| owners[at]))
}

/// Members read either topic, both or none; owners need not read what they own any more.
fn subscriptions(_: usize, chance: &mut Chance) -> Case {
    let mut cycle = owned(chance);
    subscribe(&mut cycle, chance);
    once(cycle)
}

fn subscribe(cycle: &mut Cycle, chance: &mut Chance) {
    for member in &mut cycle.members {
        let kind = chance.below(5);
        member.topics.retain(|topic| kind > 1 || u64::from(*topic) == kind);
        if kind == 4 {
            member.topics.clear();
        }
    }
}

fn moving(_: usize, chance: &mut Chance) -> Case {
    let mut cycle = owned(chance);
    hand_over(&mut cycle, chance);
    once(cycle)
}

fn hand_over(cycle: &mut Cycle, chance: &mut Chance) {
    for (moving, owner) in cycle.moving.iter_mut().zip(&cycle.owner) {
        *moving = u8::from(*owner >= 0 && chance.below(3) == 0);
    }
}

fn budget(at: usize, chance: &mut Chance) -> Case {
    let mut cycle = owned(chance);
    if at.is_multiple_of(2) {
        // One has nearly all of them.
        cycle.owner.iter_mut().for_each(|owner| *owner = (*owner).min(0));
    }
    if at % 3 == 1 {
        subscribe(&mut cycle, chance);
    }
    cycle.movement_budget = Some([0, 1, 2, 5][at % 4]);
    once(cycle)
}

fn weights(at: usize, chance: &mut Chance) -> Case {
    let mut cycle = owned(chance);
    weigh(&mut cycle, at, chance);
    once(cycle)
}

fn weigh(cycle: &mut Cycle, at: usize, chance: &mut Chance) {
    const WEIGHTS: [f64; 6] = [0.0, f64::MIN_POSITIVE, 1.0, 2.5, 1e6, f64::MAX];
    for weight in &mut cycle.weight {
        // None at all, then ever more kinds.
        *weight = WEIGHTS[chance.below(1 + at as u64 % 6) as usize];
    }
    for member in &mut cycle.members {
        member.capacity = [1.0, 1.0, 2.0, 1e-300, 1e6][chance.below(1 + at as u64 / 2 % 5) as usize];
    }
}

/// Partitions are in rooms and at brokers; some members are in the same rooms.
fn places(at: usize, chance: &mut Chance) -> Case {
    let mut cycle = owned(chance);
    let names: [&[&str]; 3] =
        [&["", "z1", "z2"], &["", "z1@b1", "z1@b2", "z2@b1"], &["", "b1", "elsewhere@b1"]];
    cycle.places = names[at % 3].iter().map(|&name| name.to_owned()).collect();
    let count = cycle.places.len();
    // Ascending within each topic, as the partitions are ordered.
    let len = cycle.topic.len().div_ceil(2).max(1);
    for (place, number) in cycle.place.iter_mut().zip(&cycle.number) {
        *place = (*number as usize * count / len).min(count - 1) as u32;
    }
    once(cycle)
}

fn hostile_text(_: usize, chance: &mut Chance) -> Case {
    let (members, partitions) = size(chance);
    let names = texts::names(members, chance);
    let owners: Vec<_> = (0..partitions).map(|_| chance.below(names.len() as u64 + 1) as i32 - 1).collect();
    let mut cycle = proof::cycle(names.len(), partitions, all, |at| owners[at]);
    for (member, name) in cycle.members.iter_mut().zip(names) {
        member.id = name;
        member.zone = texts::any(chance);
        member.labels = texts::labels(4, chance);
    }
    let mut topics = texts::names(8, chance);
    topics.push("\u{10ffff}\u{10ffff}".to_owned());
    cycle.topics = topics[topics.len().saturating_sub(2)..].to_vec();
    if cycle.topics.len() < 2 {
        cycle.topics.insert(0, "\u{0}".to_owned());
    }
    cycle.places = vec![String::new(), texts::names(1, chance).remove(0)];
    cycle.group = texts::names(1, chance).remove(0);
    once(cycle)
}

fn reasons(at: usize, chance: &mut Chance) -> Case {
    once(Cycle { reason: Reason::WORDS[at].0, ..owned(chance) })
}

/// Everybody has the same share already: a plan may change that, but must be legal.
fn settled(at: usize, chance: &mut Chance) -> Case {
    let (members, share) = (1 + chance.below(10) as usize, 1 + chance.below(10) as usize);
    let owner = |partition: usize| {
        (if at.is_multiple_of(2) { partition % members } else { partition / share }) as i32
    };
    once(proof::cycle(members, members * share, all, owner))
}

fn mixes(at: usize, chance: &mut Chance) -> Case {
    let mut cycle = owned(chance);
    if chance.below(2) == 0 {
        subscribe(&mut cycle, chance);
    }
    if chance.below(2) == 0 {
        hand_over(&mut cycle, chance);
    }
    if chance.below(2) == 0 {
        weigh(&mut cycle, at, chance);
    }
    if chance.below(2) == 0 {
        cycle.movement_budget = Some(chance.below(20) as u32);
    }
    cycle.reason = Reason::WORDS[at % Reason::WORDS.len()].0;
    cycle.seed = chance.next();
    once(cycle)
}

fn until_settled(at: usize, chance: &mut Chance) -> Case {
    let mut cycle = owned(chance);
    if at % 3 == 1 {
        subscribe(&mut cycle, chance);
    }
    if at % 4 == 3 {
        // Weights as they are met, not the ends of what is allowed.
        cycle.weight.iter_mut().for_each(|weight| *weight = 0.5 + chance.below(10) as f64);
    }
    cycle.movement_budget = [None, Some(1), Some(5)][at / 2 % 3];
    Case { cycle, settles: true }
}

/// A thousand members: a cold start, a tenth left, one that has everything, members of different topics.
fn large(at: usize, chance: &mut Chance) -> Case {
    const MEMBERS: usize = 1000;
    const PARTITIONS: usize = 10_000;
    let tenth: Vec<_> = (0..PARTITIONS).map(|_| chance.below(10) == 0).collect();
    let mut cycle = match at {
        0 => proof::cycle(MEMBERS, PARTITIONS, all, free),
        1 => {
            let owner = |at: usize| if tenth[at] { -1 } else { (at % MEMBERS) as i32 };
            proof::cycle(MEMBERS, PARTITIONS, all, owner)
        }
        2 => proof::cycle(MEMBERS, PARTITIONS, all, |_| 0),
        _ => proof::cycle(MEMBERS, PARTITIONS, |member, topic| (member % 3) as u32 != topic, free),
    };
    if at == 2 {
        cycle.movement_budget = Some(100);
    }
    once(cycle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_keep_the_promises_of_the_contract() {
        let mut count = 0;
        for class in classes() {
            for at in 0..class.count {
                let Case { cycle, .. } = (class.make)(at, &mut Chance(at as u64));
                assert_eq!(cycle, (class.make)(at, &mut Chance(at as u64)).cycle);
                count += 1;
                let name = format!("{}/{at}", class.name);
                assert!(!cycle.members.is_empty(), "{name}");
                assert!(cycle.members.is_sorted_by(|a, b| a.id < b.id), "{name}");
                assert!(cycle.topics.is_sorted_by(|a, b| a < b), "{name}");
                assert_eq!(cycle.places.first().map(String::as_str), Some(""), "{name}");
                assert!(!cycle.places[1..].iter().any(String::is_empty), "{name}");
                for member in &cycle.members {
                    assert!((1..=256).contains(&member.id.len()) && member.zone.len() <= 256, "{name}");
                    assert!(member.labels.is_sorted_by(|a, b| a.0 < b.0), "{name}");
                    assert!(member.capacity > 0.0 && member.capacity.is_finite(), "{name}");
                    assert!(member.topics.is_sorted_by(|a, b| a < b), "{name}");
                }
                let len = cycle.owner.len();
                let columns = [
                    cycle.topic.len(),
                    cycle.number.len(),
                    cycle.place.len(),
                    cycle.moving.len(),
                    cycle.weight.len(),
                    cycle.held_ms.len(),
                ];
                assert_eq!(columns, [len; 6], "{name}");
                let order: Vec<_> =
                    (0..len).map(|at| (cycle.topic[at], cycle.place[at], cycle.number[at])).collect();
                assert!(order.is_sorted_by(|a, b| a < b), "{name}");
                for at in 0..len {
                    assert!((-1..cycle.members.len() as i32).contains(&cycle.owner[at]), "{name}");
                    assert!(cycle.moving[at] == 0 || cycle.owner[at] >= 0, "{name}");
                    assert!(cycle.weight[at] >= 0.0 && cycle.weight[at].is_finite(), "{name}");
                    assert!((cycle.place[at] as usize) < cycle.places.len(), "{name}");
                }
            }
        }
        assert!(count > 230, "{count} cases");
    }
}
