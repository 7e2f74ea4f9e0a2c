//! As even as possible, and among even assignments the one that moves the least.
//!
//! With partitions of one weight and members of one capacity the result is the optimum, see
//! [`even`]: with equal subscriptions everybody has the floor or the ceiling of the
//! mean, and spare partitions stay where they are; with different subscriptions the load vector is the
//! lexicographic best. Otherwise it is balanced by weight and capacity with a bound, see [`weighted`].
//!
//! A movement budget cuts the plan into cycles; the sum of their moves is that of the whole plan, and the next cycle
//! is asked for soon until nothing is left.

use fulcrum_guest::claiming::even::{self, Order};
use fulcrum_guest::claiming::pace::Pace;
use fulcrum_guest::config::Fields;
use fulcrum_guest::{Changes, Claiming, Cycle, Description, Error};

use crate::weighted;

/// The policy.
#[derive(Debug)]
pub struct Sticky {
    weights: bool,
    capacities: bool,
    tolerance: f64,
    pace: Pace,
}

impl Claiming for Sticky {
    fn describe() -> Description {
        Description {
            name: "sticky",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Balances partitions with as few moves as possible, by count, or by weight and capacity where \
                      they differ; spare partitions stay where they are.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let words = [("use", true), ("ignore", false)];
        let weights = fields.choice("weights", &words, true)?;
        let capacities = fields.choice("capacities", &words, true)?;
        let tolerance = fields.number("tolerance", 0.0..=10.0, 0.1)?;
        let defaults = Pace::default();
        let fast_interval_ms =
            fields.integer("fastIntervalMs", 100..=3_600_000, defaults.fast_interval_ms)?;
        fields.finish()?;
        Ok(Self { weights, capacities, tolerance, pace: Pace { fast_interval_ms, ..defaults } })
    }

    fn plan(&self, cycle: &Cycle<'_>) -> Result<Changes, Error> {
        let by_weight = self.weights && !cycle.equal_weights();
        let by_capacity = self.capacities && !cycle.equal_capacities();
        let plan = if by_weight || by_capacity {
            // Equal weights do not change from cycle to cycle: nothing need be tolerated.
            let tolerance = if by_weight { self.tolerance } else { 0.0 };
            weighted::rebalance(cycle, by_weight, by_capacity, tolerance)?
        } else {
            let order = if cycle.movement_budget.is_some() { Order::MostLoaded } else { Order::Partition };
            even::rebalance(cycle, order)?
        };
        Ok(self.pace.carry_out(cycle, plan, None))
    }
}
