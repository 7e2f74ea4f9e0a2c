//! A bounded map that forgets what was not used lately, without ever scanning.

use std::collections::HashMap;
use std::sync::Arc;

/// Entries that had to go.
pub(crate) type Forgotten<V> = HashMap<Arc<str>, V>;

/// Two generations: what is used moves to the young one; when that is half the bound, the old one is dropped and
/// the young one becomes old. So a use is O(1), an entry used within the last half bound of distinct names is kept,
/// and there are never more than the bound.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    young: HashMap<Arc<str>, V>,
    old: HashMap<Arc<str>, V>,
    half: usize,
}

impl<V> Recent<V> {
    /// Makes an empty map for at most `max` entries (at least 2).
    pub(crate) fn new(max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (max / 2).max(1) }
    }

    /// Looks without counting as a use.
    pub(crate) fn get(&self, name: &str) -> Option<&V> {
        self.young.get(name).or_else(|| self.old.get(name))
    }

    /// Returns the entry of `name`, made by `make` if there is none, and what had to be forgotten for it; drop that
    /// outside of locks.
    pub(crate) fn enter(&mut self, name: &str, make: impl FnOnce() -> V) -> (&mut V, Option<Forgotten<V>>) {
        let mut dropped = None;
        if !self.young.contains_key(name) {
            let (name, value) = self.old.remove_entry(name).unwrap_or_else(|| (Arc::from(name), make()));
            if self.young.len() >= self.half {
                let young = std::mem::take(&mut self.young);
                dropped = Some(std::mem::replace(&mut self.old, young));
            }
            self.young.insert(name, value);
        }
        (self.young.get_mut(name).expect("found or inserted above"), dropped)
    }

    /// Returns how many entries there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let mut recent = Recent::new(100);
        for n in 0..10_000 {
            *recent.enter(&format!("n{n}"), || 0).0 += 1;
            *recent.enter("kept", || 0).0 += 1;
            assert!(recent.len() <= 100, "{}", recent.len());
        }
        assert_eq!(recent.get("kept"), Some(&10_000));
        assert_eq!(recent.get("n9999"), Some(&1));
        assert_eq!(recent.get("n1"), None);
    }
}
