//! A member of a consumer group over HTTP: joins, pulls what it owns, checkpoints, hands over, comes back.
//!
//! [`Member`] is the whole of it; [`wire`] has the bodies and [`Host`] the single calls, for those who want less.
//!
//! Invariants:
//! - a partition has one batch in hand at a time, and the next one is pulled only after its checkpoint is stored;
//! - a partition that is revoked is released after the batch in hand is done and checkpointed, never before;
//! - a member that has not reached its host for its time to live stops reading by itself.

mod host;
mod member;
mod puller;
mod watch;
pub mod wire;

pub use host::{Error, Host, Refusal};
pub use member::{Member, Options};
pub use puller::{Batch, Failed};
