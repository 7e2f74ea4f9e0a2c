//! The coordinator: who can be chosen, who asked, and what was decided.
//!
//! [`Balancer`] keeps the instances and their loads and asks the scoring policy; [`Sessions`] keeps sessions and the
//! agents that serve them; [`Meter`] measures traffic. None of them reads a clock or draws a random number by itself:
//! time and chance are arguments or come from what `new` was given. Each has one lock that is held briefly and never
//! across anything that waits; no method of one takes the lock of another, but for [`Turns`], the turns of those sessions,
//! which asks them without holding its own.

pub mod agents;
pub mod balancer;
mod client;
mod deadlines;
pub mod error;
pub mod events;
pub mod groups;
pub mod kinds;
pub mod membership;
pub mod meter;
pub mod pulls;
pub mod rates;
mod recent;
pub mod requests;
pub mod retention;
pub mod sessions;
pub mod turns;
mod valid;

pub use balancer::{Ack, Ask, Balancer, Candidate, Explained, Grounds, Pick, Recommended, Settings};
pub use error::Error;
pub use events::Events;
pub use groups::Groups;
pub use kinds::Kinds;
pub use membership::{Counts, InstanceView, Report};
pub use meter::{Meter, Traffic};
pub use pulls::Pulls;
pub use rates::Rates;
pub use requests::Requests;
pub use retention::Retention;
pub use sessions::{Opened, SessionView, Sessions};
pub use turns::Turns;
