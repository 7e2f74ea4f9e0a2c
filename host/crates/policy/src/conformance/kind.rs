//! Kinds of mistakes: their names, what is wrong with each, and how to mend it.

use fulcrum_core::{claiming, scoring};

use super::Fault;
use crate::failure::Failure;

/// A kind of mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fixes say it")]
pub enum Kind {
    RowOutOfRange,
    NotChoosable,
    NotANumber,
    Explanation,
    ExplainsOtherwise,
    HiddenState,
    Law,
    ClaimOutOfRange,
    ClaimedTwice,
    NotSubscribed,
    Moving,
    OverBudget,
    Trap,
    Limit,
    Slow,
    /// No failure: nothing waits for an explanation.
    SlowExplanation,
    /// No failure: the host replaces such an instance in time.
    Memory,
    /// No failure: the group is served, but never comes to rest.
    Unsettled,
}

impl Kind {
    /// Says whether a policy with it does not conform; else it is something to know.
    #[must_use]
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::SlowExplanation | Self::Memory | Self::Unsettled)
    }

    /// Returns its stable name.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::RowOutOfRange => "row_out_of_range",
            Self::NotChoosable => "not_choosable",
            Self::NotANumber => "not_a_number",
            Self::Explanation => "explanation",
            Self::ExplainsOtherwise => "explains_otherwise",
            Self::HiddenState => "hidden_state",
            Self::Law => "law",
            Self::ClaimOutOfRange => "claim_out_of_range",
            Self::ClaimedTwice => "claimed_twice",
            Self::NotSubscribed => "not_subscribed",
            Self::Moving => "moving",
            Self::OverBudget => "over_budget",
            Self::Trap => "trap",
            Self::Limit => "limit",
            Self::Slow => "slow",
            Self::SlowExplanation => "slow_explanation",
            Self::Memory => "memory",
            Self::Unsettled => "unsettled",
        }
    }

    /// Returns how it is mended.
    #[must_use]
    pub fn fix(self) -> &'static str {
        match self {
            Self::RowOutOfRange => {
                "answer an index into the present roster, 0-based; forget rows of earlier rosters in `roster`"
            }
            Self::NotChoosable => {
                "pass over rows with the bits 2 (draining) or 4 (dead) and those in `avoid`, also where no other row is \
                 left at first sight: the host asks only when one may be chosen"
            }
            Self::NotANumber => {
                "look for 0 divided by 0, infinity minus infinity, 0 times infinity and roots of negative numbers; numbers \
                 of a row of unknown load are 0, and sums of legal numbers may be infinite"
            }
            Self::Explanation => {
                "explain every row that may be chosen exactly once, with at most 32 terms of at most 64 bytes each"
            }
            Self::ExplainsOtherwise => {
                "compute the score in one function that both `recommend` and `explain` call, with the operations in the \
                 same order"
            }
            Self::HiddenState => {
                "keep nothing between two calls but the configuration, the roster and the loads: no counters, generators, \
                 caches or smoothed values; `roster` and `refresh` replace all that was there; break ties by row or by \
                 `seed`, not by the order of a hash map"
            }
            Self::Law => {
                "add one to `pending` for each time a row stands in `committed`, in `recommend` and in `explain`, before \
                 anything is decided, and compute scores from the counts, not from a running sum"
            }
            Self::ClaimOutOfRange => {
                "name partitions and members by their index in this cycle, keep `partition`, `member` and `reason` of one \
                 length, and give each `reason` an entry in `reasons` (at most 256 of 256 bytes)"
            }
            Self::ClaimedTwice => {
                "name each partition at most once in a plan, in claims and releases together: collect the changes by partition"
            }
            Self::NotSubscribed => {
                "give a partition only to members whose `topics` have its topic; where there is none, leave it free"
            }
            Self::Moving => {
                "leave partitions alone while `moving` is 1 and count them for their `owner`; release only what is owned"
            }
            Self::OverBudget => {
                "count claims on owned partitions and releases together, stop at `movement-budget`, and ask for the next \
                 cycle with `next-cycle-ms`; claims on free partitions do not count"
            }
            Self::Trap => {
                "handle this input: an index out of range, a division by zero, an overflow, an unwrapped error and any \
                 exception that is not the contract's `error` end the instance"
            }
            Self::Limit => {
                "free what a call allocated before it returns, and bound recursion and answers; what the limits are is in \
                 docs/OPERATING.md"
            }
            Self::Slow => {
                "do in `roster` and `refresh` what does not depend on the request, avoid loops within loops, and build with \
                 optimisation; or run it only on hosts that are small enough (`--rows-max`) or allow more time; or this \
                 machine was busy, or this is a debug build of fulcrum: run the case again with `--only`"
            }
            Self::SlowExplanation => {
                "nothing need be done if such a host explains little: an explanation that is late is replaced by the host's own"
            }
            Self::Memory => {
                "free what calls allocate; an instance above three quarters of its memory is replaced every 1000 calls"
            }
            Self::Unsettled => {
                "plan no move unless it makes the group better, so that a settled group stays as it is"
            }
        }
    }
}

impl Fault {
    /// Makes one of a call that failed.
    pub(super) fn failed(call: &str, failure: &Failure) -> Self {
        let kind = match failure {
            Failure::Timeout { .. } => Kind::Slow,
            Failure::Limit(_) | Failure::NoRoom(_) => Kind::Limit,
            // An answer that cannot be lifted, or an error, which is counted before it comes here.
            Failure::Trap(_) | Failure::Illegal(_) | Failure::Declared(_) => Kind::Trap,
        };
        let more = if kind == Kind::Slow { ", many times the one in service" } else { "" };
        Self::new(kind, format!("`{call}` {failure}{more}"))
    }

    pub(super) fn scoring(illegal: &scoring::Illegal) -> Self {
        use scoring::Illegal;
        let kind = match illegal {
            Illegal::RowOutOfRange { .. } => Kind::RowOutOfRange,
            Illegal::NotANumber { .. } => Kind::NotANumber,
            Illegal::Dead { .. } | Illegal::Draining { .. } | Illegal::Excluded { .. } => Kind::NotChoosable,
            Illegal::Twice { .. } | Illegal::TooLarge { .. } => Kind::Explanation,
        };
        Self::new(kind, illegal.to_string())
    }

    pub(super) fn claiming(illegal: &claiming::Illegal) -> Self {
        use claiming::Illegal;
        let kind = match illegal {
            Illegal::Ragged { .. }
            | Illegal::TooLarge { .. }
            | Illegal::PartitionOutOfRange { .. }
            | Illegal::MemberOutOfRange { .. }
            | Illegal::ReasonOutOfRange { .. } => Kind::ClaimOutOfRange,
            Illegal::Twice { .. } => Kind::ClaimedTwice,
            Illegal::NotSubscribed { .. } => Kind::NotSubscribed,
            Illegal::Moving { .. } | Illegal::NotOwned { .. } => Kind::Moving,
            Illegal::OverBudget { .. } => Kind::OverBudget,
        };
        Self::new(kind, illegal.to_string())
    }
}
