//! Policies as a host runs them: real components, real folders, one program.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../support/fixture.rs"]
mod fixture;
#[path = "../support/mod.rs"]
mod support;

mod conformance;
mod fuel;
mod guests;
mod lifecycle;
mod orders;
mod planner;
mod proving;
mod refusals;
mod reload;
mod shadow;
mod unfinished;
mod wasi;
mod way_back;
