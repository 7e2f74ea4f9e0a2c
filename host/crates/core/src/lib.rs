//! Fulcrum's domain: what a decision sees, what it answers, and what makes an answer legal.
//!
//! Nothing here reads a clock, draws a random number, performs IO or logs: time and chance are arguments, so
//! every function gives the same answer for the same input, for ever.

pub mod claiming;
pub mod delivery;
pub mod group;
pub mod scoring;
pub mod seed;
pub mod time;

pub use scoring::{Instance, Loads, Recommendation, Roster, Score, ScoreParts, ScoringSnapshot};
pub use time::Timestamp;

/// Longest name of anything a client or a policy may name (instance, client, member, zone), in bytes.
pub const NAME_BYTES_MAX: usize = 256;
