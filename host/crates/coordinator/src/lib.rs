//! The coordinator: who can be chosen, who asked, and what was decided.
//!
//! [`Balancer`] keeps the instances and their loads and asks the scoring policy; [`Sessions`] keeps sessions and the
//! agents that serve them; [`Meter`] measures traffic. None of them reads a clock or draws a random number by itself:
//! time and chance are arguments or come from what `new` was given. Each has one lock that is held briefly and never
//! across anything that waits; no method of one takes the lock of another.

pub mod agents;
pub mod balancer;
mod client;
mod deadlines;
pub mod error;
pub mod events;
pub mod groups;
pub mod membership;
pub mod meter;
mod recent;
pub mod sessions;
mod valid;

pub use balancer::{Ack, Ask, Balancer, Candidate, Pick, Recommended, Settings};
pub use error::Error;
pub use events::Events;
pub use groups::Groups;
pub use membership::{Counts, InstanceView, Report};
pub use meter::{Meter, Traffic};
pub use sessions::{Opened, SessionView, Sessions};
