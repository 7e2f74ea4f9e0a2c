//! How a call into a policy can fail: five outcomes with five names, and the want of room, which is nobody's failure.

use std::fmt;

/// Why a policy gave no usable answer. The host decides by itself then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The call ran past its deadline and was interrupted.
    #[error("missed its deadline of {deadline_ms} ms")]
    Timeout {
        /// The deadline, in milliseconds.
        deadline_ms: u64,
    },
    /// The guest crashed: unreachable code, out-of-bounds access, division by zero.
    #[error("crashed: {0}")]
    Trap(String),
    /// The guest wanted more than its limits allow: memory, stack, result size.
    #[error("hit a limit: {0}")]
    Limit(String),
    /// The answer breaks the contract: a row that may not be chosen, a NaN, a partition given twice.
    #[error("gave an illegal answer: {0}")]
    Illegal(String),
    /// The policy itself returned an error.
    #[error("returned an error: {0}")]
    Declared(Declared),
    /// The host had no room for another instance, so nothing was asked: try again.
    #[error("found no room for another instance: {0}")]
    NoRoom(String),
}

/// An error a policy returned, as the contract's `error` variant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the cases are explained in wit/policy.wit")]
pub enum Declared {
    InvalidConfig(String),
    InvalidInput(String),
    NoCandidate,
    Unsupported,
    Failed(String),
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidConfig(text) => write!(f, "invalid configuration: {text}"),
            Self::InvalidInput(text) => write!(f, "invalid input: {text}"),
            Self::NoCandidate => f.write_str("no candidate"),
            Self::Unsupported => f.write_str("unsupported"),
            Self::Failed(text) => f.write_str(text),
        }
    }
}

impl Failure {
    /// Returns the outcome this failure counts as.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Timeout { .. } => Outcome::Timeout,
            Self::Trap(_) => Outcome::Trap,
            Self::Limit(_) => Outcome::Limit,
            Self::Illegal(_) => Outcome::Illegal,
            Self::Declared(_) => Outcome::Declared,
            Self::NoRoom(_) => Outcome::Open,
        }
    }
}

/// How one decision went, as metrics and the admin API name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the failure of the same name")]
pub enum Outcome {
    /// The policy decided.
    Ok,
    Timeout,
    Trap,
    Limit,
    Illegal,
    Declared,
    /// The policy was not asked: its breaker is open, or there was no room for an instance.
    Open,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 7] =
        [Self::Ok, Self::Timeout, Self::Trap, Self::Limit, Self::Illegal, Self::Declared, Self::Open];

    /// Returns the outcome's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Timeout => "timeout",
            Self::Trap => "trap",
            Self::Limit => "limit",
            Self::Illegal => "illegal",
            Self::Declared => "error",
            Self::Open => "open",
        }
    }
}
