//! The Fulcrum host: a server that asks WebAssembly policies two questions, and its command line.
//!
//! This is the only place where parts are wired: [`app`] builds them from a [`config`], [`http`] shows them to
//! callers, [`cli`] to people. Tests start a host in-process with [`app::App::start`].

pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
mod connections;
pub mod embedded;
pub mod http;
pub mod journal;
mod why;
mod words;
