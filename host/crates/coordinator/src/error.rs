//! What the coordinator refuses, with names that callers can rely on.

use std::time::Duration;

/// Why something was refused; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A value is out of its range.
    #[error("{field} must be {must}")]
    Invalid {
        /// Name of the field, as callers write it.
        field: &'static str,
        /// What it must be, with unit and range.
        must: &'static str,
    },
    /// A heartbeat was measured so long ago that its row would be dead on arrival.
    #[error("the heartbeat was measured {age:?} ago, at most {ttl:?} are allowed")]
    TooOld {
        /// Its age.
        age: Duration,
        /// Time to live of a row.
        ttl: Duration,
    },
    /// The roster is full.
    #[error("too many instances, at most {max} are kept")]
    TooManyInstances {
        /// The cap.
        max: usize,
    },
    /// What all instances say of themselves is more than policies can be told.
    #[error("ids, zones and labels of all instances have more than {} MiB; use fewer or shorter labels", max_bytes >> 20)]
    RosterTooLarge {
        /// The cap, in bytes.
        max_bytes: usize,
    },
    /// The id is that of the host itself.
    #[error("instance {id} is this host itself")]
    OwnInstance {
        /// The id.
        id: String,
    },
    /// There is no such instance.
    #[error("instance {id} is not known")]
    UnknownInstance {
        /// The id.
        id: String,
    },
    /// There is no such agent, or it was not heard of for too long.
    #[error("agent {id} is not registered")]
    UnknownAgent {
        /// The id.
        id: String,
    },
    /// The agent table is full.
    #[error("too many agents, at most {max} are kept")]
    TooManyAgents {
        /// The cap.
        max: usize,
    },
    /// No agent is ready, below its capacity and able to serve the model.
    #[error("no agent is ready for this session")]
    NoAgent,
    /// There is no such session, or it was idle for too long.
    #[error("session {id} is not open")]
    UnknownSession {
        /// The id.
        id: String,
    },
    /// The session table is full.
    #[error("too many sessions, at most {max} are kept")]
    TooManySessions {
        /// The cap.
        max: usize,
    },
}

impl Error {
    /// Returns the stable name of the kind of error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid_value",
            Self::TooOld { .. } => "timestamp_too_old",
            Self::TooManyInstances { .. } => "too_many_instances",
            Self::RosterTooLarge { .. } => "roster_too_large",
            Self::OwnInstance { .. } => "own_instance",
            Self::UnknownInstance { .. } => "unknown_instance",
            Self::UnknownAgent { .. } => "unknown_agent",
            Self::TooManyAgents { .. } => "too_many_agents",
            Self::NoAgent => "no_agent",
            Self::UnknownSession { .. } => "unknown_session",
            Self::TooManySessions { .. } => "too_many_sessions",
        }
    }
}
