//! Balances partitions by weight and capacity, and keeps each near its members' zone where that costs little.
//!
//! A member's load is the sum of its partitions' weights over its capacity, in units of the mean weight. A partition
//! with a place costs `farCost` more on a member of another zone. Free partitions go, heaviest first, where their cost
//! is lowest; then single partitions move while that lowers their own cost by more than the tolerance.
//!
//! **Every plan comes to an end, and so do plans under a budget.** With weights w, capacities c, sums W and the cost of
//! distance d, the number
//!
//! ```text
//! sum over members  W * W / (2 c)  +  sum over partitions  w * w / (2 c)  +  w * d
//! ```
//!
//! falls with each move by w times what the partition gains (Monderer and Shapley, "Potential Games", 1996: it is a
//! weighted potential). So no partition goes back and forth.
//!
//! Invariant: `plan` is a pure function of the cycle; ties go to the lower partition and the lower member.

use fulcrum_guest::config::Fields;
use fulcrum_guest::{Changes, Claiming, Cycle, Description, Error};

/// A weight counts at least this share of the mean, so that idle partitions are spread as well.
const WEIGHT_MIN: f64 = 0.01;
/// Most looks at all partitions in one plan; what is left is for the next one.
const PASSES_MAX: usize = 8;
/// When a plan was cut short, the next is asked for after this time, in milliseconds.
const FAST_INTERVAL_MS: u32 = 1000;

/// The policy.
#[derive(Debug)]
pub struct ZoneWeightAware {
    far_cost: f64,
    tolerance: f64,
}

impl Claiming for ZoneWeightAware {
    fn describe() -> Description {
        Description {
            name: "zone-weight-aware",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Balances by weight and capacity, and keeps partitions in the zone of their place where that costs \
                      little.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let far_cost = fields.number("farCost", 0.0..=1e6, 1.5)?;
        let tolerance = fields.number("tolerance", 0.001..=1e6, 0.1)?;
        fields.finish()?;
        Ok(Self { far_cost, tolerance })
    }

    fn plan(&self, cycle: &Cycle<'_>) -> Result<Changes, Error> {
        // After it, indexing by a column cannot panic.
        cycle.check()?;
        let mut state = State::new(cycle, self.far_cost);
        state.place();
        let is_done = state.even_out(self.tolerance);
        let mut changes = Changes::default();
        for (partition, &holder) in state.holder.iter().enumerate() {
            let Some(member) = holder.filter(|&member| cycle.owner[partition] != member as i32) else {
                continue;
            };
            let is_near = !state.is_far(partition, member);
            let reason = changes.reason(match (cycle.owner[partition] < 0, is_near) {
                (true, true) => "was free",
                (true, false) => "was free, no room in its zone",
                (false, true) => "costs less there",
                (false, false) => "costs less there, outside its zone",
            });
            changes.claim(partition as u32, member as u32, reason);
        }
        // Without any budget there is no point in coming back for more.
        let is_worth_it = !is_done && cycle.movement_budget != Some(0);
        changes.next_cycle_ms = is_worth_it.then_some(FAST_INTERVAL_MS);
        Ok(changes)
    }
}

/// An assignment under way.
struct State<'a> {
    cycle: &'a Cycle<'a>,
    far_cost: f64,
    /// Per partition: its weight in units of the mean.
    weight: Vec<f64>,
    /// Partitions, heaviest first, of equal weight the lower first.
    order: Vec<usize>,
    /// Per topic: the members that subscribe to it.
    subscribers: Vec<Vec<usize>>,
    /// Per partition: the member that holds it.
    holder: Vec<Option<usize>>,
    /// Per member: the sum of what it holds.
    sum: Vec<f64>,
    budget: u32,
}

impl<'a> State<'a> {
    fn new(cycle: &'a Cycle<'a>, far_cost: f64) -> Self {
        let weight = weights(cycle.weight);
        let mut order: Vec<usize> = (0..cycle.partitions()).collect();
        order.sort_by(|&a, &b| weight[b].total_cmp(&weight[a]).then(a.cmp(&b)));
        let mut subscribers = vec![Vec::new(); cycle.topics.len()];
        for (row, member) in cycle.members.iter().enumerate() {
            for &topic in &member.topics {
                subscribers[topic as usize].push(row);
            }
        }
        let holder: Vec<_> = cycle.owner.iter().map(|&owner| usize::try_from(owner).ok()).collect();
        let mut sum = vec![0.0; cycle.members.len()];
        for (partition, holder) in holder.iter().enumerate() {
            if let Some(member) = *holder {
                sum[member] += weight[partition];
            }
        }
        let budget = cycle.movement_budget.unwrap_or(u32::MAX);
        Self { cycle, far_cost, weight, order, subscribers, holder, sum, budget }
    }

    /// Gives the free partitions out.
    fn place(&mut self) {
        for partition in self.order.clone() {
            if self.holder[partition].is_none()
                && self.cycle.moving[partition] == 0
                && let Some((member, _)) = self.best(partition)
            {
                self.give(partition, member);
            }
        }
    }

    /// Moves partitions until none gains more than the tolerance; says whether it got there.
    fn even_out(&mut self, tolerance: f64) -> bool {
        for _ in 0..PASSES_MAX {
            let mut is_settled = true;
            for partition in self.order.clone() {
                let Some(holder) = self.holder[partition] else { continue };
                if self.cycle.moving[partition] != 0 {
                    continue;
                }
                let Some((member, cost)) = self.best(partition) else { continue };
                let subscribes = self.subscribers[self.cycle.topic[partition] as usize].contains(&holder);
                // An owner that no longer subscribes gives up in any case.
                if subscribes && cost + tolerance >= self.cost(partition, holder) {
                    continue;
                }
                let is_first_move = usize::try_from(self.cycle.owner[partition]) == Ok(holder);
                if is_first_move {
                    if self.budget == 0 {
                        return false;
                    }
                    self.budget -= 1;
                }
                self.give(partition, member);
                is_settled = false;
            }
            if is_settled {
                return true;
            }
        }
        false
    }

    /// Returns the cheapest subscriber other than the holder, and what the partition would cost there.
    fn best(&self, partition: usize) -> Option<(usize, f64)> {
        let subscribers = self.subscribers[self.cycle.topic[partition] as usize].iter().copied();
        subscribers
            .filter(|&member| self.holder[partition] != Some(member))
            .map(|member| {
                let gained = self.weight[partition] / self.cycle.members[member].capacity;
                (member, self.cost(partition, member) + gained)
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns the load of a member as it is, and the distance of a partition from it.
    fn cost(&self, partition: usize, member: usize) -> f64 {
        let far = if self.is_far(partition, member) { self.far_cost } else { 0.0 };
        self.sum[member] / self.cycle.members[member].capacity + far
    }

    /// Says whether a partition has a place and the member is not there.
    fn is_far(&self, partition: usize, member: usize) -> bool {
        let place = &self.cycle.places[self.cycle.place[partition] as usize];
        !place.is_empty() && *place != self.cycle.members[member].zone
    }

    fn give(&mut self, partition: usize, member: usize) {
        if let Some(holder) = self.holder[partition] {
            self.sum[holder] -= self.weight[partition];
        }
        self.sum[member] += self.weight[partition];
        self.holder[partition] = Some(member);
    }
}

/// Returns the weights in units of their mean, each at least [`WEIGHT_MIN`]; all 1.0 if nothing weighs anything.
fn weights(given: &[f64]) -> Vec<f64> {
    let count = given.len() as f64;
    // Divided first: the sum of large weights may not be finite.
    let mean: f64 = given.iter().map(|weight| weight / count).sum();
    let one = |weight: &f64| if mean > 0.0 { (weight / mean).max(WEIGHT_MIN) } else { 1.0 };
    given.iter().map(one).collect()
}

fulcrum_guest::export_claiming!(ZoneWeightAware);

#[cfg(test)]
mod tests;
