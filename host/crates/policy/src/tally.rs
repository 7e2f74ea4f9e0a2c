//! Counts of decisions by policy version and outcome, with a histogram of their time.

use std::sync::Arc;

use crate::failure::Outcome;
use crate::seat::Identity;

/// Upper bounds of the time buckets in nanoseconds; the last bucket has none.
pub const BUCKET_BOUNDS_NANOS: [u64; 14] = [
    250,
    500,
    1_000,
    2_000,
    4_000,
    8_000,
    16_000,
    64_000,
    250_000,
    1_000_000,
    4_000_000,
    10_000_000,
    20_000_000,
    100_000_000,
];

/// Versions kept apart; older ones are added up under their name with an empty digest.
const LINES_MAX: usize = 32;

/// What was counted for one policy version (`identity` none: the host had no policy at all).
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The version.
    pub identity: Option<Arc<Identity>>,
    /// Decisions per outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// Decisions per time bucket, not cumulative.
    pub buckets: [u64; BUCKET_BOUNDS_NANOS.len() + 1],
    /// Sum of all decision times in nanoseconds.
    pub nanos: u64,
}

impl Line {
    /// Returns the number of decisions.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.outcomes.iter().sum()
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    lines: Vec<Line>,
}

impl Tally {
    /// Returns the lines, most recently used last.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(crate) fn record(&mut self, identity: Option<&Arc<Identity>>, outcome: Outcome, nanos: u64) {
        let line = self.line(identity);
        line.outcomes[outcome as usize] += 1;
        line.buckets[BUCKET_BOUNDS_NANOS.partition_point(|&bound| bound < nanos)] += 1;
        line.nanos = line.nanos.saturating_add(nanos);
    }

    fn line(&mut self, identity: Option<&Arc<Identity>>) -> &mut Line {
        let same = |line: &Line| match (&line.identity, identity) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        };
        if !self.lines.last().is_some_and(same) {
            match self.lines.iter().position(same) {
                Some(at) => self.lines[at..].rotate_left(1),
                None => {
                    if self.lines.len() >= LINES_MAX {
                        self.fold_oldest();
                    }
                    self.lines.push(Line { identity: identity.cloned(), ..Line::default() });
                }
            }
        }
        self.lines.last_mut().expect("pushed above if there was none")
    }

    /// Adds the oldest version's counts to the line of its name alone, so that totals never shrink.
    fn fold_oldest(&mut self) {
        let is_folded =
            |line: &Line| line.identity.as_ref().is_none_or(|identity| identity.digest.is_empty());
        let Some(at) = self.lines.iter().position(|line| !is_folded(line)) else { return };
        let oldest = self.lines.remove(at);
        let name = oldest.identity.as_ref().map(|identity| identity.name.clone()).unwrap_or_default();
        let folded = Arc::new(Identity { name, digest: String::new(), config: String::new() });
        let line = self.line(Some(&folded));
        for (sum, count) in line.outcomes.iter_mut().zip(oldest.outcomes) {
            *sum += count;
        }
        for (sum, count) in line.buckets.iter_mut().zip(oldest.buckets) {
            *sum += count;
        }
        line.nanos = line.nanos.saturating_add(oldest.nanos);
    }
}
