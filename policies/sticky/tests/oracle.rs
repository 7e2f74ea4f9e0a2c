//! The optimum, computed another way, over thousands of random groups. A failure prints the seed of its group.
//!
//! `FULCRUM_ORACLE_SEED` sets where the seeds start, `FULCRUM_ORACLE_GROUPS` how many groups are tried.

#![allow(clippy::print_stderr, reason = "a run says which seeds it tried")]

use fulcrum_guest::seeded::Seeded;
use fulcrum_guest::testing::claiming::{Group, member, plan, settle};
use sticky::logic::Sticky;

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let start = read("FULCRUM_ORACLE_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.expect("after 1970").as_secs() << 20
    });
    eprintln!("seeds from {start}");
    (0..read("FULCRUM_ORACLE_GROUPS").unwrap_or(count)).map(move |at| start + at)
}

/// Partitions that stay with their owner.
fn kept(before: &Group, after: &Group) -> u32 {
    before.owner.iter().zip(&after.owner).filter(|(before, after)| **before >= 0 && before == after).count()
        as u32
}

#[test]
fn equal_subscriptions_move_exactly_the_closed_form_optimum() {
    for seed in seeds(5000) {
        let mut seeded = Seeded::new(seed);
        let members = 1 + seeded.below(30) as usize;
        let partitions = seeded.below(300) as usize;
        let mut group = Group::cold(members, partitions);
        let free = seeded.below(4);
        let skew = 1 + seeded.below(members as u32);
        for owner in &mut group.owner {
            if seeded.below(4) >= free {
                let among = if seeded.below(2) == 0 { skew } else { members as u32 };
                *owner = seeded.below(among) as i32;
            }
        }
        let before = group.clone();
        group.apply(&plan::<Sticky>("{}", &group));
        let loads = group.loads();
        let (least, most) = (loads.iter().min().expect("members"), loads.iter().max().expect("members"));
        assert!(most - least <= 1, "seed {seed}: {loads:?}");
        assert!(group.owner.iter().all(|&owner| owner >= 0), "seed {seed}: all are owned");

        let (floor, spare) = (partitions / members, partitions % members);
        let counts = before.loads();
        let above = counts.iter().filter(|&&count| count as usize > floor).count();
        let optimum: usize =
            counts.iter().map(|&count| floor.min(count as usize)).sum::<usize>() + spare.min(above);
        assert_eq!(kept(&before, &group) as usize, optimum, "seed {seed}: {counts:?}");
    }
}

#[test]
fn kafka_19677_a_join_moves_no_spare_partition() {
    for (members, partitions) in [(99, 1000), (999, 10_000), (999, 100_000), (9, 100), (3, 10)] {
        let mut group = Group::cold(members, partitions);
        settle::<Sticky>("{}", &mut group, 1);
        // Every member in turn may be the newcomer's neighbour.
        for id in ["a", "m00001x", "z"] {
            let mut group = group.clone();
            group.join(member(id, &[0]));
            let settled = settle::<Sticky>("{}", &mut group, 1);
            assert_eq!(settled.moves as usize, partitions / (members + 1), "{members}x{partitions}, {id}");
        }
    }
}

/// The best sum of squared loads, and the most partitions kept among flows that have it: successive cheapest paths
/// from an empty assignment, one partition at a time, on the plain graph of partitions and members.
///
/// Costs are pairs (sum of squares, partitions that do not stay) in one number.
fn optimum(group: &Group) -> (i64, i64) {
    const SQUARE: i64 = 1 << 20;
    let members = group.members.len();
    let movable: Vec<usize> = (0..group.owner.len())
        .filter(|&partition| {
            group.moving[partition] == 0 && (0..members).any(|row| group.may_own(row, partition))
        })
        .collect();
    let mut load = vec![0_i64; members];
    for (partition, &owner) in group.owner.iter().enumerate() {
        if group.moving[partition] != 0 && owner >= 0 {
            load[owner as usize] += 1;
        }
    }
    let fixed: i64 = load.iter().map(|load| load * load).sum();
    let stays = |partition: usize, row: usize| -i64::from(group.owner[partition] == row as i32);
    let mut holder: Vec<Option<usize>> = vec![None; movable.len()];
    let mut total = 0;
    for new in 0..movable.len() {
        // Bellman-Ford over members: cost of freeing a place at each, from the new partition on.
        let mut cost = vec![i64::MAX; members];
        let mut via: Vec<Option<(usize, usize)>> = vec![None; members];
        for (row, cost) in cost.iter_mut().enumerate() {
            if group.may_own(row, movable[new]) {
                *cost = stays(movable[new], row);
            }
        }
        loop {
            let mut changed = false;
            for (at, &held) in holder.iter().enumerate() {
                let Some(held) = held else { continue };
                if cost[held] == i64::MAX {
                    continue;
                }
                for row in 0..members {
                    if row == held || !group.may_own(row, movable[at]) {
                        continue;
                    }
                    let next = cost[held] - stays(movable[at], held) + stays(movable[at], row);
                    if next < cost[row] {
                        cost[row] = next;
                        via[row] = Some((at, held));
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let price = |row: usize| cost[row].saturating_add(SQUARE * (2 * load[row] + 1));
        let end = (0..members).filter(|&row| cost[row] != i64::MAX).min_by_key(|&row| price(row));
        let mut row = end.expect("somebody subscribes");
        total += price(row);
        load[row] += 1;
        while let Some((at, from)) = via[row] {
            holder[at] = Some(row);
            row = from;
        }
        holder[new] = Some(row);
    }
    let kept = (-total).rem_euclid(SQUARE);
    (fixed + (total + kept) / SQUARE, kept)
}

fn squares(group: &Group) -> i64 {
    group.loads().iter().map(|&load| i64::from(load) * i64::from(load)).sum()
}

#[test]
fn different_subscriptions_are_the_flow_optimum() {
    let (mut groups, mut optimal) = (0, (0, 0));
    for seed in seeds(4000) {
        let mut group = Group::random(seed, 9, 14);
        group.movement_budget = None;
        let before = group.clone();
        let config = r#"{"weights":"ignore","capacities":"ignore"}"#;
        let changes = plan::<Sticky>(config, &group);
        group.apply(&changes);
        if group.members.is_empty() {
            continue;
        }
        groups += 1;
        let (best, most) = optimum(&before);
        // The least sum of squares is the lexicographic best load vector.
        assert_eq!(squares(&group), best, "seed {seed}: {:?} became {:?}", before.loads(), group.loads());
        let untouched = |group: &Group| group.moving.iter().filter(|&&moving| moving != 0).count() as u32;
        let kept = i64::from(kept(&before, &group) - untouched(&before));
        optimal = (optimal.0 + kept, optimal.1 + most);
        assert!(kept as f64 >= 0.995 * most as f64, "seed {seed}: {kept} kept, {most} could be");
        assert_eq!(changes.next_cycle_ms, None);
        assert!(
            (0..group.owner.len()).all(|partition| {
                let may = (0..group.members.len()).any(|row| group.may_own(row, partition));
                group.moving[partition] != 0 || (group.owner[partition] >= 0) == may
            }),
            "seed {seed}: what can be owned is owned"
        );
    }
    eprintln!("{groups} groups: kept {} of {}", optimal.0, optimal.1);
    assert_eq!(optimal.0, optimal.1, "the flow is exact");
}

#[test]
fn the_load_vector_is_the_lexicographic_best_by_maximum_flow() {
    for seed in seeds(1000) {
        let mut group = Group::random(seed, 7, 10);
        (group.movement_budget, group.moving) = (None, vec![0; group.owner.len()]);
        group.apply(&plan::<Sticky>(r#"{"weights":"ignore","capacities":"ignore"}"#, &group));
        if group.members.is_empty() {
            continue;
        }
        let mut loads = group.loads();
        loads.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(loads, lexicographic(&group), "seed {seed}");
    }
}

/// The lexicographic best loads in descending order, by maximum flows: first the least possible largest load, then
/// the fewest members that have it, and so on with those members' loads fixed.
fn lexicographic(group: &Group) -> Vec<u32> {
    let members = group.members.len();
    let partitions: Vec<usize> = (0..group.owner.len())
        .filter(|&partition| (0..members).any(|row| group.may_own(row, partition)))
        .collect();
    let fits = |cap: &[u32]| {
        let mut holder: Vec<Vec<usize>> = vec![Vec::new(); members];
        fn place(
            group: &Group,
            cap: &[u32],
            holder: &mut [Vec<usize>],
            seen: &mut [bool],
            partition: usize,
        ) -> bool {
            for row in 0..holder.len() {
                if seen[row] || !group.may_own(row, partition) {
                    continue;
                }
                seen[row] = true;
                if holder[row].len() < cap[row] as usize {
                    holder[row].push(partition);
                    return true;
                }
                for at in 0..holder[row].len() {
                    if place(group, cap, holder, seen, holder[row][at]) {
                        holder[row][at] = partition;
                        return true;
                    }
                }
            }
            false
        }
        partitions
            .iter()
            .all(|&partition| place(group, cap, &mut holder, &mut vec![false; members], partition))
    };
    // Which members must have the largest load is a matter of a matroid, so taking it from them one by one works.
    let mut cap = vec![partitions.len() as u32; members];
    let mut decided = vec![false; members];
    while !decided.iter().all(|&decided| decided) {
        let undecided: Vec<usize> = (0..members).filter(|&row| !decided[row]).collect();
        let mut level = undecided.iter().map(|&row| cap[row]).max().expect("one is left");
        let capped = |level: u32, cap: &[u32]| {
            let mut cap = cap.to_vec();
            for &row in &undecided {
                cap[row] = cap[row].min(level);
            }
            cap
        };
        while level > 0 && fits(&capped(level - 1, &cap)) {
            level -= 1;
        }
        cap = capped(level, &cap);
        for &row in &undecided {
            if level == 0 {
                decided[row] = true;
                continue;
            }
            cap[row] = level - 1;
            if !fits(&cap) {
                cap[row] = level;
                decided[row] = true;
            }
        }
    }
    cap.sort_unstable_by(|a, b| b.cmp(a));
    cap
}

#[test]
fn a_budget_changes_when_but_not_how_much() {
    for seed in seeds(1500) {
        let mut group = Group::random(seed, 9, 14);
        let config = r#"{"weights":"ignore","capacities":"ignore"}"#;
        group.movement_budget = None;
        let (mut whole, mut parts) = (group.clone(), group);
        let at_once = settle::<Sticky>(config, &mut whole, 1);
        let budget = 1 + (seed % 4) as u32;
        parts.movement_budget = Some(budget);
        let soon = plan::<Sticky>(config, &parts).next_cycle_ms;
        assert_eq!(soon.is_some(), at_once.moves > budget, "seed {seed}");
        let step_by_step = settle::<Sticky>(config, &mut parts, 1000);
        assert_eq!(step_by_step.moves, at_once.moves, "seed {seed}: budget {budget}");
        assert!(step_by_step.cycles <= at_once.moves.div_ceil(budget).max(1), "seed {seed}");
        assert_eq!(squares(&parts), squares(&whole), "seed {seed}");
    }
}

#[test]
fn with_weights_and_capacities_the_bound_holds() {
    for seed in seeds(3000) {
        let mut group = Group::random(seed, 9, 20);
        group.movement_budget = None;
        let cycle = group.cycle();
        let (by_weight, by_capacity) = (!cycle.equal_weights(), !cycle.equal_capacities());
        if !by_weight && !by_capacity {
            continue;
        }
        let tolerance = if by_weight { 0.1 } else { 0.0 };
        let weights =
            if by_weight { sticky::weighted::weights(&cycle) } else { vec![1.0; group.owner.len()] };
        group.apply(&plan::<Sticky>("{}", &group));
        let capacity = |row: usize| if by_capacity { group.members[row].capacity } else { 1.0 };
        let mut load = vec![0.0; group.members.len()];
        for (partition, &owner) in group.owner.iter().enumerate() {
            if owner >= 0 {
                load[owner as usize] += weights[partition] / capacity(owner as usize);
            }
        }
        for (partition, &owner) in group.owner.iter().enumerate() {
            if owner < 0 || group.moving[partition] != 0 {
                continue;
            }
            for to in (0..group.members.len()).filter(|&to| to != owner as usize) {
                if group.may_own(to, partition) {
                    let bound = (1.0 + tolerance) * (load[to] + weights[partition] / capacity(to));
                    assert!(load[owner as usize] <= bound * (1.0 + 1e-9), "seed {seed}: {load:?}");
                }
            }
        }
        // And it stays so: a second plan has nothing to do.
        assert_eq!(plan::<Sticky>("{}", &group).partition, [0; 0], "seed {seed}");
    }
}
