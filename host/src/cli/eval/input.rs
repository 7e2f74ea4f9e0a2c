//! What both questions share: seeds, labels, checks of names and numbers.

use std::collections::BTreeMap;

use fulcrum_core::NAME_BYTES_MAX;
use serde::{Deserialize, Deserializer};

use super::Trouble;

/// Labels as JSON has them.
pub(super) type Labels = BTreeMap<String, String>;

/// Reads a seed: a number, or a decimal text where JSON numbers are too small.
pub(super) fn seed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "a seed must be a whole number from 0 to 2^64 - 1, as a number or a decimal text"
    )]
    enum Seed {
        Number(u64),
        Text(String),
    }
    match Seed::deserialize(deserializer)? {
        Seed::Number(number) => Ok(number),
        Seed::Text(text) => {
            text.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} is not a seed")))
        }
    }
}

pub(super) fn one() -> f64 {
    1.0
}

/// Makes the trouble of a value that breaks the contract.
pub(super) fn bad(message: impl Into<String>) -> Trouble {
    Trouble::Input("invalid_input", message.into())
}

pub(super) fn check_id(what: &str, id: &str) -> Result<(), Trouble> {
    if id.is_empty() || id.len() > NAME_BYTES_MAX {
        return Err(bad(format!(
            "the id of {what} must have 1 to {NAME_BYTES_MAX} bytes, {id:?} has {}",
            id.len()
        )));
    }
    Ok(())
}

/// Checks a number that must be finite and 0 or more.
pub(super) fn check_amount(what: &str, value: f64) -> Result<(), Trouble> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(bad(format!("{what} must be 0 or more, it is {value}")))
    }
}

/// Checks a number that must be finite and above 0.
pub(super) fn check_capacity(id: &str, value: f64) -> Result<(), Trouble> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(bad(format!("the capacity of {id:?} must be above 0, it is {value}")))
    }
}

/// Returns the labels ordered by key.
pub(super) fn labels(labels: &Labels) -> Vec<(String, String)> {
    labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}
