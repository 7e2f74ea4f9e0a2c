//! How many instances are alive at the same time, and whose they are: the pool is shared out, so that scoring never finds
//! it full.
//!
//! A place is one instance with as much of the pool as falls to one; an instance with more memories or tables takes several.
//! Invariants: what is taken never adds up to more than there is; plans, shadows and proofs keep to their shares, which
//! leave a quarter of the pool to scoring, its replacements included; a place is given back when its instance is dropped.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Longest wait for a place of a proof: those before it end soon, as a rule.
const PROOF_PATIENCE: Duration = Duration::from_secs(1);
/// Proofs have at least so many places, or all there are: a tool with a small pool of its own does nothing else.
const PROOFS_MIN: u32 = 8;

/// What an instance is for, and which part of the pool it is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Scoring in service, and tools: as many as there are.
    Whole,
    /// Plans for groups: three eighths.
    Plans,
    /// Shadows: three sixteenths, which is three for each of the four there can be.
    Shadows,
    /// Loading and proving: three sixteenths.
    Proofs,
}

impl Share {
    const COUNT: usize = 4;

    /// Returns how many of `total` places it may have.
    fn max(self, total: u32) -> u32 {
        match self {
            Self::Whole => total,
            Self::Plans => (total * 3 / 8).max(1),
            Self::Shadows => (total * 3 / 16).max(1),
            Self::Proofs => (total * 3 / 16).max(PROOFS_MIN.min(total)),
        }
    }

    fn patience(self) -> Duration {
        if self == Self::Proofs { PROOF_PATIENCE } else { Duration::ZERO }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Whole => "all policies",
            Self::Plans => "plans",
            Self::Shadows => "shadows",
            Self::Proofs => "proofs",
        }
    }
}

/// See the module. One per runtime.
pub(crate) struct Places {
    total: u32,
    taken: Mutex<[u32; Share::COUNT]>,
    freed: Condvar,
}

impl Places {
    pub(crate) fn new(total: u32) -> Arc<Self> {
        Arc::new(Self { total, taken: Mutex::default(), freed: Condvar::new() })
    }

    /// Takes some places of a share. A proof waits a moment for them; nobody else waits.
    ///
    /// Errors with what is used up, in words.
    pub(crate) fn take(self: &Arc<Self>, share: Share, count: u32) -> Result<Place, String> {
        let max = share.max(self.total);
        let is_full = |taken: &mut [u32; Share::COUNT]| {
            taken.iter().sum::<u32>() + count > self.total || taken[share as usize] + count > max
        };
        let mut taken = self.taken.lock();
        if is_full(&mut taken) && !share.patience().is_zero() {
            self.freed.wait_while_for(&mut taken, is_full, share.patience());
        }
        if is_full(&mut taken) {
            let (share, total) = (share.name(), self.total);
            return Err(format!("{max} of {total} places are for {share}, and too few are left"));
        }
        taken[share as usize] += count;
        Ok(Place { places: self.clone(), share, count })
    }
}

/// Some places, until it is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    share: Share,
    count: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock()[self.share as usize] -= self.count;
        self.places.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes places one by one until there are none; returns how many there were.
    fn fill(places: &Arc<Places>, share: Share, into: &mut Vec<Place>) -> usize {
        let before = into.len();
        into.extend(std::iter::from_fn(|| places.take(share, 1).ok()));
        into.len() - before
    }

    #[test]
    fn whatever_the_others_do_a_quarter_is_left_to_scoring() {
        let (places, mut taken) = (Places::new(64), Vec::new());
        let counts = [Share::Plans, Share::Shadows, Share::Proofs, Share::Whole]
            .map(|it| fill(&places, it, &mut taken));
        assert_eq!(counts, [24, 12, 12, 16]);
        let refused = places.take(Share::Plans, 1).err().expect("it is full");
        assert_eq!(refused, "24 of 64 places are for plans, and too few are left");
        taken.clear();
        assert_eq!(fill(&places, Share::Whole, &mut taken), 64, "all are given back");
        assert!(places.take(Share::Plans, 1).is_err(), "a share is no more than there is");
    }

    #[test]
    fn a_large_instance_takes_several_places() {
        let places = Places::new(64);
        let four: Vec<_> = (0..4).map(|_| places.take(Share::Plans, 5).expect("there is room")).collect();
        assert!(places.take(Share::Plans, 5).is_err());
        let rest = places.take(Share::Plans, 4).expect("24 in all");
        drop((four, rest));
        assert!(places.take(Share::Plans, 24).is_ok());
    }

    #[test]
    fn a_small_pool_is_for_proofs() {
        let check = |total, expected| {
            assert_eq!(fill(&Places::new(total), Share::Proofs, &mut Vec::new()), expected, "{total}");
        };
        check(4, 4);
        check(8, 8);
        check(32, 8);
    }

    #[test]
    fn a_proof_waits_for_its_turn() {
        let (places, mut taken) = (Places::new(64), Vec::new());
        while taken.len() < 12 {
            taken.extend(places.take(Share::Proofs, 1));
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| places.take(Share::Proofs, 1).is_ok());
            taken.pop();
            assert!(waiting.join().expect("it ends"));
        });
    }
}
