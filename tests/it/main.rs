//! System tests: the whole of Fulcrum through HTTP, the command line and real WebAssembly. One file per feature.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and tells what it measured")]

mod support;

mod vectors;
mod parity;
mod recommend;
//mod sessions;
//mod reload;
//mod evil;
//mod swap;
//mod cli;
//mod metrics;
