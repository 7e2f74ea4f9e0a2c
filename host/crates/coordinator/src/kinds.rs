//! Which kind a group is of: one whose partitions are owned, or one whose single events are leased.
//!
//! Invariant: a name is a group of one kind at most.

use std::sync::Arc;

use tokio::sync::RwLock;

use crate::{Groups, Pulls};

/// The kinds of named groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Members own partitions: [`Groups`].
    Partitions,
    /// Clients lease single events: [`Pulls`].
    Messages,
}

/// The name is a group of the other kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("group {group:?} is one of {}", match self.kind {
    Kind::Partitions => "partitions: its members join it with POST /groups/{group}/members",
    Kind::Messages => "messages: its clients join it with POST /events/subscribe",
})]
pub struct WrongKind {
    /// The name.
    pub group: String,
    /// What it is.
    pub kind: Kind,
}

/// See the module.
pub struct Kinds {
    groups: Arc<Groups>,
    pulls: Arc<Pulls>,
    /// Written while a group is made or deleted, read while one that is there is used.
    changing: RwLock<()>,
}

impl Kinds {
    /// Watches over the groups of both kinds.
    #[must_use]
    pub fn new(groups: Arc<Groups>, pulls: Arc<Pulls>) -> Self {
        Self { groups, pulls, changing: RwLock::default() }
    }

    /// Returns what a group is, `None` if there is none of that name.
    #[must_use]
    pub fn of(&self, group: &str) -> Option<Kind> {
        if self.groups.contains(group) {
            Some(Kind::Partitions)
        } else if self.pulls.is_group(group) {
            Some(Kind::Messages)
        } else {
            None
        }
    }

    /// Runs what makes a group of this kind unless it is there.
    pub async fn making<T>(
        &self,
        group: &str,
        kind: Kind,
        make: impl Future<Output = T>,
    ) -> Result<T, WrongKind> {
        let using = self.changing.read().await;
        match self.of(group) {
            Some(found) if found == kind => return Ok(make.await),
            Some(kind) => return Err(WrongKind { group: group.to_owned(), kind }),
            None => drop(using),
        }
        let _alone = self.changing.write().await;
        match self.of(group) {
            Some(found) if found != kind => Err(WrongKind { group: group.to_owned(), kind: found }),
            _ => Ok(make.await),
        }
    }

    /// Runs what deletes a group, while none is made.
    pub async fn deleting<T>(&self, delete: impl Future<Output = T>) -> T {
        let _alone = self.changing.write().await;
        delete.await
    }
}
