//! Policies as WebAssembly guests: the only room that knows wasmtime.
//!
//! Outside are small traits, one per role ([`seat::ScoringPolicy`], [`claim::ClaimingPolicy`]), and verification of
//! every answer; inside are the engine and its limits, the contract's bindings, native fallbacks, the breaker, and
//! reload. A guest is hostile until proven otherwise: it is bounded in time, memory, stack and output, its answers
//! are checked, and a bad file changes no live decision.

pub mod artifact;
pub mod breaker;
pub mod cache;
pub mod claim;
pub mod conformance;
pub mod contract;
pub mod failure;
pub mod fallback;
mod guest;
pub mod journal;
pub mod json;
pub mod limits;
mod places;
pub mod planner;
mod private;
pub mod probation;
pub mod proof;
pub mod refusal;
pub mod reload;
pub mod runtime;
mod schema;
pub mod seat;
pub mod shadow;
pub mod status;
pub mod tally;
pub mod tap;
#[cfg(test)]
mod testing;
pub mod trust;
mod wasi;

pub use artifact::{Artifact, Loaded};
pub use cache::Cache;
pub use contract::shape::Roles;
pub use failure::{Failure, Outcome};
pub use limits::Limits;
pub use planner::Planner;
pub use refusal::Refusal;
pub use reload::life::Gone;
pub use reload::lifecycle;
pub use reload::manager::{self, Manager};
pub use runtime::Runtime;
pub use shadow::Shadows;
pub use trust::TrustedKeys;
