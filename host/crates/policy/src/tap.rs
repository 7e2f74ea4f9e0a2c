//! Watching decisions as they are made: what shadows compare and the journal records.
//!
//! Invariants: whoever watches can neither hold a decision up nor change it; what is handed out holds everything the
//! decision depended on, so that it can be made again alone.

use std::sync::Arc;

use fulcrum_core::claiming::Cycle;
use fulcrum_core::scoring::{Request, ScoringSnapshot};

use crate::failure::Failure;
use crate::planner::{Planned, Wish};
use crate::seat::{Decision, OwnedRequest, ScoringFactory, View};

/// One scoring decision and what it was made from: the loads of `snapshot`, with each row of `committed` counted as
/// given out once more.
#[derive(Clone)]
pub struct Scored {
    /// Roster and loads; decisions in a row share one.
    pub snapshot: Arc<ScoringSnapshot>,
    /// Rows given out since the snapshot, in order, at most [`COMMITTED_MAX`].
    pub committed: Vec<u32>,
    /// What was asked.
    pub request: OwnedRequest,
    /// The policy version it was up to; `None` if there was none in the seat.
    pub asked: Option<Arc<dyn ScoringFactory>>,
    /// Why that version gave no usable answer; `None` also if it was not asked.
    pub failure: Option<Failure>,
    /// What was decided.
    pub decision: Decision,
    /// Time it took, in nanoseconds: telling the policy what it did not know, verification and fallback included.
    pub nanos: u64,
}

/// One claim plan and what it was made from.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Name of the group.
    pub group: String,
    /// What the group wants to be planned by.
    pub wish: Wish,
    /// Its input.
    pub cycle: Cycle,
    /// What was planned.
    pub planned: Planned,
    /// Time it took, in nanoseconds.
    pub nanos: u64,
}

/// Sees decisions. It is called while they are made, so it must return at once: it puts them into a bounded queue, or
/// drops them and counts.
pub trait Observer: Send + Sync {
    /// Says whether it wants the decision that was just made; called once for each.
    fn wants_scored(&self) -> bool;
    /// Takes a decision it wanted.
    fn scored(&self, scored: &Arc<Scored>);
    /// Takes a plan.
    fn claimed(&self, claimed: &Arc<Claimed>);
}

/// Most rows given out after a snapshot until the next decision gets a snapshot of its own. A snapshot costs about as
/// much as this many rows in all decisions that share it.
pub const COMMITTED_MAX: usize = 128;

/// Hands the seat's decisions to observers.
#[derive(Default)]
pub(crate) struct Tap {
    observers: Vec<Arc<dyn Observer>>,
    base: Option<Base>,
}

/// The snapshot that decisions are counted from.
struct Base {
    snapshot: Arc<ScoringSnapshot>,
    loads_revision: u64,
    committed: Vec<u32>,
}

/// How one decision went, beside what is known of it anyway.
pub(crate) struct Made<'a> {
    pub asked: Option<Arc<dyn ScoringFactory>>,
    pub failure: Option<&'a Failure>,
    pub decision: &'a Decision,
    pub nanos: u64,
}

impl Tap {
    pub(crate) fn set(&mut self, observers: Vec<Arc<dyn Observer>>) {
        self.observers = observers;
        self.base = None;
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Hands a decision out, before it is committed.
    pub(crate) fn hand_out(&mut self, view: View<'_>, request: &Request<'_>, made: &Made<'_>) {
        let mut scored = None;
        for at in 0..self.observers.len() {
            if self.observers[at].wants_scored() {
                let scored = scored.get_or_insert_with(|| Arc::new(self.scored(view, request, made)));
                self.observers[at].scored(scored);
            }
        }
    }

    /// Notes that a row was given out.
    pub(crate) fn commit(&mut self, row: u32) {
        if let Some(base) = &mut self.base {
            if base.committed.len() < COMMITTED_MAX {
                base.committed.push(row);
            } else {
                self.base = None;
            }
        }
    }

    fn scored(&mut self, view: View<'_>, request: &Request<'_>, made: &Made<'_>) -> Scored {
        let is_current = |base: &Base| {
            base.loads_revision == view.loads_revision
                && base.snapshot.roster_revision == view.roster_revision
        };
        if !self.base.as_ref().is_some_and(is_current) {
            let snapshot = Arc::new(ScoringSnapshot {
                roster: view.roster.clone(),
                loads: view.loads.clone(),
                roster_revision: view.roster_revision,
            });
            let committed = Vec::with_capacity(COMMITTED_MAX);
            self.base = Some(Base { snapshot, loads_revision: view.loads_revision, committed });
        }
        let base = self.base.as_ref().expect("made above if there was none");
        Scored {
            snapshot: base.snapshot.clone(),
            committed: base.committed.clone(),
            request: request.into(),
            asked: made.asked.clone(),
            failure: made.failure.cloned(),
            decision: made.decision.clone(),
            nanos: made.nanos,
        }
    }
}
