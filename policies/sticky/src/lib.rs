//! The default policy `sticky` as a component; the rule itself is in [`logic`].

pub mod logic;
pub mod weighted;

fulcrum_guest::export_claiming!(logic::Sticky);
