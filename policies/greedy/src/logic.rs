//! Each member takes its whole fair share at once.
//!
//! The strategy of that name of the Azure Event Hubs processors, with what the design note proposed on top: claim
//! percent (credits), a cap on claims per cycle, and two intervals. Decided for all members in one place, so that it
//! ends at the best balance with the fewest moves, and a cold start steals nothing (`policies/DIFFERENCES.md`). What
//! is aimed at is [`even`]; how much of it one cycle does is
//! [`pace`](fulcrum_guest::claiming::pace).

use fulcrum_guest::claiming::even::{self, Order};
use fulcrum_guest::claiming::pace::Pace;
use fulcrum_guest::config::Fields;
use fulcrum_guest::{Changes, Claiming, Cycle, Description, Error};

/// The policy.
#[derive(Debug)]
pub struct Greedy {
    pace: Pace,
}

impl Claiming for Greedy {
    fn describe() -> Description {
        Description {
            name: "greedy",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Each member takes its whole fair share in one cycle (settable), free ones first, until loads differ by at most one; nothing moves that need not.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let pace = Pace::take(&mut fields, &Pace { claim_percent: 100, ..Pace::default() })?;
        fields.finish()?;
        Ok(Self { pace })
    }

    fn plan(&self, cycle: &Cycle<'_>) -> Result<Changes, Error> {
        let plan = even::rebalance(cycle, Order::MostLoaded)?;
        let credits = self.pace.credits(&plan);
        Ok(self.pace.carry_out(cycle, plan, Some(credits)))
    }
}
