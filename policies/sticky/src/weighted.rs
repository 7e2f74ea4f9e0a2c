//! Balance by weight and capacity.
//!
//! Partitions stay where they are. Free ones go, heaviest first, to the member that is least loaded with them
//! (Graham, "Bounds on multiprocessing timing anomalies", 1969). Then single partitions move from loaded members to
//! idle ones while that relieves the former by more than the tolerance.
//!
//! A member's load is the sum of its partitions' weights over its capacity; a weight counts at least as a hundredth
//! of the mean weight, so that idle partitions are spread as well.
//!
//! **Bound**, for any subscriptions, unless a plan is cut short: for each partition p on a member h and any other
//! member t that may own p,
//!
//! ```text
//! load(h) <= (1 + tolerance) * (load(t) + weight(p) / capacity(t))
//! ```
//!
//! A movement budget ends the plan at the first move that would exceed it. Every single move makes the loads, in
//! descending order, lexicographically smaller, so plans under a budget always come to an end.
//!
//! So with equal subscriptions and capacities no load is above `(1 + tolerance) * (mean + largest weight)`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fulcrum_guest::claiming::even::Rebalance;
use fulcrum_guest::claiming::subscribers::{NONE, Subscribers};
use fulcrum_guest::{Cycle, Error};

/// A weight counts at least this share of the mean weight.
pub const WEIGHT_MIN: f64 = 0.01;
/// Most comparisons that one plan may make: well below half a second. The next plan goes on from there.
const WORK_MAX: u64 = 25_000_000;

/// Finds the way to a balanced assignment. Without `by_weight` each partition weighs 1.0, without `by_capacity` each
/// member has capacity 1.0.
///
/// Errors like [`Cycle::check`].
pub fn rebalance(
    cycle: &Cycle<'_>,
    by_weight: bool,
    by_capacity: bool,
    tolerance: f64,
) -> Result<Rebalance, Error> {
    cycle.check()?;
    let mut out = Rebalance::default();
    if cycle.members.is_empty() {
        return Ok(out);
    }
    let weights = if by_weight { weights(cycle) } else { vec![1.0; cycle.partitions()] };
    let mut state = State::new(cycle, &weights, by_capacity, &mut out.orphans);
    state.place();
    let is_done = state.even_out(tolerance);
    // Without any budget there is no point in coming back for more.
    out.cut_short = !is_done && (cycle.movement_budget != Some(0) || state.work > WORK_MAX);
    out.load = vec![0; cycle.members.len()];
    for (partition, (&owner, &holder)) in cycle.owner.iter().zip(&state.holder).enumerate() {
        if let Some(load) = out.load.get_mut(holder as usize) {
            *load += 1;
        }
        if holder == NONE || owner as u32 == holder {
            continue;
        }
        let list = if owner < 0 {
            &mut out.free
        } else if state.forced[partition] {
            &mut out.forced
        } else {
            &mut out.moves
        };
        list.push(partition as u32, holder);
    }
    Ok(out)
}

/// Returns what each partition counts.
#[must_use]
pub fn weights(cycle: &Cycle<'_>) -> Vec<f64> {
    let count = cycle.partitions() as f64;
    // Divided first: the sum of large weights may not be finite.
    let mean: f64 = cycle.weight.iter().map(|weight| weight / count).sum();
    let least = mean * WEIGHT_MIN;
    if least > 0.0 {
        cycle.weight.iter().map(|weight| weight.max(least) / mean).collect()
    } else {
        vec![1.0; cycle.partitions()]
    }
}

/// Members by sum, the least first; the sum as its bits, with the row.
type Idlest = BinaryHeap<Reverse<(u64, u32)>>;
/// A weight, the partition's index in its owner's list, and the row of the member to take it.
type Candidate = (f64, usize, u32);

struct State<'a> {
    subscribers: Subscribers,
    weights: &'a [f64],
    capacity: Vec<f64>,
    /// Per member: sum of weights.
    sum: Vec<f64>,
    /// Per partition: row of the member that gets it, [`NONE`] if nobody may.
    holder: Vec<u32>,
    class: Vec<u32>,
    forced: Vec<bool>,
    /// Per member: the partitions that it could give up.
    movable: Vec<Vec<u32>>,
    /// Partitions without a holder that get one, heaviest first.
    pool: Vec<u32>,
    /// Per partition: row of the owner, -1 when free.
    owner: &'a [i32],
    /// How many more owned partitions may change owner.
    budget: usize,
    /// Something that must move does not fit into the budget.
    over_budget: bool,
    work: u64,
}

impl<'a> State<'a> {
    fn new(cycle: &Cycle<'a>, weights: &'a [f64], by_capacity: bool, orphans: &mut Vec<u32>) -> Self {
        let members = cycle.members.len();
        let subscribers = Subscribers::of(cycle);
        let mut state = Self {
            weights,
            capacity: cycle
                .members
                .iter()
                .map(|member| if by_capacity { member.capacity } else { 1.0 })
                .collect(),
            sum: vec![0.0; members],
            holder: vec![NONE; weights.len()],
            class: vec![NONE; weights.len()],
            forced: vec![false; weights.len()],
            movable: vec![Vec::new(); members],
            pool: Vec::new(),
            owner: cycle.owner,
            budget: cycle.movement_budget.map_or(usize::MAX, |budget| budget as usize),
            over_budget: false,
            subscribers: Subscribers::of(cycle),
            work: 0,
        };
        subscribers.each(cycle, |partition, class, edge| {
            state.class[partition] = class;
            let owner = cycle.owner[partition];
            let holds = if cycle.moving[partition] != 0 {
                owner >= 0
            } else if class == NONE {
                if owner >= 0 {
                    orphans.push(partition as u32);
                }
                false
            } else if edge == NONE {
                let forced = owner >= 0;
                let fits = !forced || state.budget > 0;
                if fits {
                    state.budget -= usize::from(forced);
                    state.forced[partition] = forced;
                    state.pool.push(partition as u32);
                } else {
                    state.over_budget = true;
                }
                !fits
            } else {
                state.movable[owner as usize].push(partition as u32);
                true
            };
            if holds {
                state.holder[partition] = owner as u32;
                state.sum[owner as usize] += weights[partition];
            }
        });
        // Orphans come after those and before all others.
        state.over_budget |= state.budget < orphans.len();
        state.budget = state.budget.saturating_sub(orphans.len());
        state.pool.sort_by(|&a, &b| weights[b as usize].total_cmp(&weights[a as usize]));
        state
    }

    fn give(&mut self, partition: u32, to: u32) {
        self.holder[partition as usize] = to;
        self.sum[to as usize] += self.weights[partition as usize];
        self.movable[to as usize].push(partition);
    }

    /// Gives the pool out.
    fn place(&mut self) {
        // Per class one heap for each capacity: within it the least loaded is best, whatever the partition weighs.
        // The order of sums of 0 or more is that of their bits. Sums only grow here, so an entry may be too low.
        let mut heaps: Vec<Vec<(f64, Idlest)>> = vec![Vec::new(); self.subscribers.classes()];
        for partition in std::mem::take(&mut self.pool) {
            let class = self.class[partition as usize] as usize;
            let heaps = &mut heaps[class];
            if heaps.is_empty() {
                for &row in &self.subscribers.members()[self.subscribers.edges_of(class)] {
                    let capacity = self.capacity[row as usize];
                    let at = heaps.iter().position(|(other, _)| *other == capacity).unwrap_or_else(|| {
                        heaps.push((capacity, BinaryHeap::new()));
                        heaps.len() - 1
                    });
                    heaps[at].1.push(Reverse((self.sum[row as usize].to_bits(), row)));
                }
            }
            let weight = self.weights[partition as usize];
            let mut best = None;
            for (capacity, heap) in heaps.iter_mut() {
                while let Some(mut top) = heap.peek_mut() {
                    let Reverse((bits, row)) = *top;
                    let sum = self.sum[row as usize];
                    if bits == sum.to_bits() {
                        let load = (sum + weight) / *capacity;
                        if best.is_none_or(|(least, other)| (load, row) < (least, other)) {
                            best = Some((load, row));
                        }
                        break;
                    }
                    *top = Reverse((sum.to_bits(), row));
                }
            }
            let (_, row) = best.expect("a class has a member");
            self.give(partition, row);
        }
    }

    /// Moves single partitions until the bound holds; says whether it does.
    fn even_out(&mut self, tolerance: f64) -> bool {
        let members = self.sum.len();
        let fair = self.sum.iter().sum::<f64>() / self.capacity.iter().sum::<f64>();
        // Per class the members that may be the best to take a partition; empty until they are looked for.
        let mut targets = vec![Vec::new(); self.subscribers.classes()];
        // What `sum / capacity` is, kept so that looking for the most loaded one divides nothing.
        let mut loads: Vec<f64> = self.sum.iter().zip(&self.capacity).map(|(sum, by)| sum / by).collect();
        loop {
            let mut moved = false;
            let mut done = vec![false; members];
            // By load, the most loaded first, then by row; entries of former loads are passed over.
            let entry = |row: usize, load: f64| (load.to_bits(), Reverse(row));
            let mut order: BinaryHeap<_> = (0..members).map(|row| entry(row, loads[row])).collect();
            targets.iter_mut().for_each(Vec::clear);
            while let Some((bits, Reverse(most))) = order.pop() {
                self.work += 1;
                if done[most] || bits != loads[most].to_bits() {
                    continue;
                }
                match self.best_move(most, fair, tolerance, &mut targets) {
                    Some((at, to)) => {
                        // Only what is with its owner costs anything, and what comes back costs nothing.
                        let partition = self.movable[most][at] as usize;
                        let leaves = self.owner[partition] == most as i32;
                        let returns = self.owner[partition] == to as i32 && !self.forced[partition];
                        if leaves && self.budget == 0 {
                            return false;
                        }
                        self.budget = self.budget - usize::from(leaves) + usize::from(returns);
                        let partition = self.movable[most].swap_remove(at);
                        self.sum[most] = (self.sum[most] - self.weights[partition as usize]).max(0.0);
                        self.give(partition, to);
                        for row in [most, to as usize] {
                            loads[row] = self.sum[row] / self.capacity[row];
                            order.push(entry(row, loads[row]));
                        }
                        targets.iter_mut().for_each(Vec::clear);
                        moved = true;
                    }
                    None => done[most] = true,
                }
                if self.work > WORK_MAX {
                    return false;
                }
            }
            if !moved {
                return !self.over_budget;
            }
            // Exactly what is held, so that rounding does not add up.
            self.sum.fill(0.0);
            for (&holder, weight) in self.holder.iter().zip(self.weights) {
                if let Some(sum) = self.sum.get_mut(holder as usize) {
                    *sum += weight;
                }
            }
            for (row, load) in loads.iter_mut().enumerate() {
                *load = self.sum[row] / self.capacity[row];
            }
        }
    }

    /// Returns which of `from`'s movable partitions to give to whom: the largest that takes neither side past the
    /// fair load, else the smallest that helps.
    fn best_move(
        &mut self,
        from: usize,
        fair: f64,
        tolerance: f64,
        targets: &mut [Vec<u32>],
    ) -> Option<(usize, u32)> {
        let load = |row: usize| self.sum[row] / self.capacity[row];
        let mut fits: Option<Candidate> = None;
        let mut least: Option<Candidate> = None;
        self.work += self.movable[from].len() as u64;
        for (at, &partition) in self.movable[from].iter().enumerate() {
            let class = self.class[partition as usize] as usize;
            if targets[class].is_empty() || targets[class].contains(&(from as u32)) {
                targets[class].clear();
                let members = &self.subscribers.members()[self.subscribers.edges_of(class)];
                self.work += members.len() as u64;
                idlest(members, from, &self.capacity, &self.sum, &mut targets[class]);
            }
            let weight = self.weights[partition as usize];
            let with = |row: u32| (self.sum[row as usize] + weight) / self.capacity[row as usize];
            self.work += targets[class].len() as u64;
            let to = targets[class].iter().copied().min_by(|&a, &b| with(a).total_cmp(&with(b)));
            let Some(to) = to else { continue };
            if load(from) <= (1.0 + tolerance) * with(to) {
                continue;
            }
            let row = to as usize;
            let (above, below) =
                (self.sum[from] - fair * self.capacity[from], fair * self.capacity[row] - self.sum[row]);
            let ideal = if above > 0.0 && below > 0.0 {
                above.min(below)
            } else {
                (load(from) - load(row)) / (1.0 / self.capacity[from] + 1.0 / self.capacity[row])
            };
            if weight <= ideal && fits.is_none_or(|(best, ..)| weight > best) {
                fits = Some((weight, at, to));
            }
            if least.is_none_or(|(best, ..)| weight < best) {
                least = Some((weight, at, to));
            }
        }
        fits.or(least).map(|(_, at, to)| (at, to))
    }
}

/// Finds the least loaded of `members` without `from`, one for each capacity: whatever a partition weighs, the best
/// one to take it is among them.
fn idlest(members: &[u32], from: usize, capacity: &[f64], sum: &[f64], found: &mut Vec<u32>) {
    for &row in members.iter().filter(|&&row| row as usize != from) {
        let alike = |other: &&mut u32| capacity[**other as usize] == capacity[row as usize];
        match found.iter_mut().find(alike) {
            Some(other) if sum[row as usize] < sum[*other as usize] => *other = row,
            Some(_) => {}
            None => found.push(row),
        }
    }
}
