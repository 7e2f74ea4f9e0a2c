//! The claiming role as the coordinator sees it.

use fulcrum_core::claiming::{Cycle, Proposal};

use crate::failure::Failure;

/// One instance of a policy that serves the claiming role. Plans are not verified yet.
pub trait ClaimingPolicy: Send {
    /// Plans one cycle.
    fn plan(&mut self, cycle: &Cycle) -> Result<Proposal, Failure>;
}
