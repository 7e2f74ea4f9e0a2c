//! The contract as the host sees it: generated bindings, conversions, and the check that names every difference.

pub(crate) mod shape;
#[allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated from wit/policy.wit; lifting and lowering values is unsafe by nature"
)]
pub(crate) mod v1;

/// The text of the newest contract version.
pub const WIT: &str = include_str!("../../../../../wit/policy.wit");

/// Version of [`WIT`].
pub const VERSION: &str = "1.0.0";
