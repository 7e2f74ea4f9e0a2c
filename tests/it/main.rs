//! System tests: the whole of Fulcrum through HTTP, the command line and real WebAssembly. One file per feature.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and tells what it measured")]

mod evals;
mod lowered;
mod support;

mod authors;
mod cache;
mod claims_parity;
mod cli;
mod crash;
mod drain;
mod eventhubs;
mod eventmesh;
mod events;
mod evil;
mod groups;
mod groups_more;
mod hostile;
mod journal;
mod languages;
mod lifecycle;
mod metrics;
mod parity;
mod places;
mod recommend;
mod reload;
mod retention;
mod rocketmq;
mod sessions;
mod shadow;
mod signed;
mod soak;
mod swap;
mod turns;
mod vectors;
mod wasi;
mod why;
