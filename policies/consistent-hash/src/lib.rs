//! The default policy `consistent-hash` as a component; the rule itself is in [`logic`].

pub mod logic;

fulcrum_guest::export_claiming!(logic::ConsistentHash);
