//! System tests: the whole of Fulcrum through HTTP, the command line and real WebAssembly. One file per feature.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and tells what it measured")]

mod support;

mod claims_parity;
mod cli;
mod evil;
mod groups;
mod groups_more;
mod metrics;
mod parity;
mod recommend;
mod reload;
mod sessions;
mod soak;
mod swap;
mod vectors;
