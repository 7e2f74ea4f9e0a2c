//! What was used last, within bounds: a journal may name any number of versions and configurations.

use std::borrow::Borrow;
use std::collections::VecDeque;

/// Values by key, at most so many and so many bytes of them; what was not used for longest goes first.
///
/// The last one is kept however large it is. Looking one up compares keys one by one: this is for few.
pub(super) struct Kept<K, V> {
    len_max: usize,
    bytes_max: usize,
    bytes: usize,
    /// The one not used for longest first.
    items: VecDeque<Item<K, V>>,
}

struct Item<K, V> {
    key: K,
    value: V,
    bytes: usize,
}

impl<K: Eq, V> Kept<K, V> {
    pub(super) fn new(len_max: usize, bytes_max: usize) -> Self {
        Self { len_max, bytes_max, bytes: 0, items: VecDeque::new() }
    }

    /// Returns a value, and counts that as its use.
    pub(super) fn get<Q: Eq + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let item = self.remove(key)?;
        self.bytes += item.bytes;
        self.items.push_back(item);
        self.items.back().map(|item| &item.value)
    }

    /// Takes a value out.
    pub(super) fn take<Q: Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove(key).map(|item| item.value)
    }

    /// Puts a value in of about so many bytes, in the place of what had that key.
    pub(super) fn put(&mut self, key: K, value: V, bytes: usize) {
        drop(self.remove(&key));
        while !self.items.is_empty()
            && (self.items.len() >= self.len_max || self.bytes.saturating_add(bytes) > self.bytes_max)
        {
            self.bytes -= self.items.pop_front().map_or(0, |item| item.bytes);
        }
        self.bytes += bytes;
        self.items.push_back(Item { key, value, bytes });
    }

    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.bytes = 0;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    fn remove<Q: Eq + ?Sized>(&mut self, key: &Q) -> Option<Item<K, V>>
    where
        K: Borrow<Q>,
    {
        // What was used last is most often used next.
        let at = self.items.iter().rposition(|item| item.key.borrow() == key)?;
        let item = self.items.remove(at)?;
        self.bytes -= item.bytes;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let mut kept = Kept::<String, u32>::new(3, 100);
        let check = |kept: &mut Kept<String, u32>, expected: &[&str]| {
            let keys: Vec<_> = kept.items.iter().map(|item| item.key.as_str()).collect();
            assert_eq!(keys, expected);
            assert_eq!(kept.bytes, kept.items.iter().map(|item| item.bytes).sum::<usize>());
        };
        for (value, key) in ["a", "b", "c"].into_iter().enumerate() {
            kept.put(key.to_owned(), u32::try_from(value).expect("small"), 10);
        }
        assert_eq!((kept.get("a").copied(), kept.get("x").copied()), (Some(0), None));
        check(&mut kept, &["b", "c", "a"]);
        kept.put("d".to_owned(), 3, 10);
        check(&mut kept, &["c", "a", "d"]);
        // Another value under a key it has, and one that leaves no room for all of the others.
        kept.put("c".to_owned(), 4, 50);
        check(&mut kept, &["a", "d", "c"]);
        kept.put("e".to_owned(), 5, 45);
        check(&mut kept, &["c", "e"]);
        kept.put("f".to_owned(), 6, 1000);
        check(&mut kept, &["f"]);
        assert_eq!((kept.take("f"), kept.take("f"), kept.len()), (Some(6), None, 0));
        kept.put("g".to_owned(), 7, 10);
        kept.clear();
        check(&mut kept, &[]);
    }
}
