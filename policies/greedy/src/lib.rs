//! The default policy `greedy` as a component; the rule itself is in [`logic`].

pub mod logic;

fulcrum_guest::export_claiming!(logic::Greedy);
