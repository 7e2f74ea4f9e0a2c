//! The default policy `weighted` as a component; the rule itself is in [`logic`].

pub mod logic;

fulcrum_guest::export_scoring!(logic::Weighted);
