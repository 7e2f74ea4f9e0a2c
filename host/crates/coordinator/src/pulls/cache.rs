//! Payloads of events that were read and not delivered yet.
//!
//! Invariants: it is emptied rather than grown beyond its bound, since everything in it can be read again; one
//! payload always fits.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::jobs::Place;

/// Bytes of the payloads of one reader.
const CACHE_BYTES_MAX: usize = 4 << 20;

#[derive(Default)]
pub(super) struct Cache {
    payloads: BTreeMap<Place, Bytes>,
    bytes: usize,
}

impl Cache {
    pub(super) fn contains(&self, place: Place) -> bool {
        self.payloads.contains_key(&place)
    }

    pub(super) fn insert(&mut self, place: Place, payload: Bytes) {
        self.remove(place);
        if CACHE_BYTES_MAX < self.bytes + payload.len() {
            self.clear();
        }
        self.bytes += payload.len();
        self.payloads.insert(place, payload);
    }

    pub(super) fn remove(&mut self, place: Place) -> Option<Bytes> {
        let payload = self.payloads.remove(&place)?;
        self.bytes -= payload.len();
        Some(payload)
    }

    pub(super) fn clear(&mut self) {
        self.payloads.clear();
        self.bytes = 0;
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.payloads.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_in_bytes() {
        let mut cache = Cache::default();
        let payload = Bytes::from(vec![0; 1 << 20]);
        for position in 0..4 {
            cache.insert((0, position), payload.clone());
        }
        assert_eq!(cache.len(), 4);
        cache.insert((0, 3), payload.clone());
        cache.insert((0, 4), payload.clone());
        assert!(cache.contains((0, 4)) && cache.len() == 1 && cache.bytes == 1 << 20);
        assert_eq!(cache.remove((0, 4)), Some(payload));
        assert_eq!((cache.remove((0, 4)), cache.bytes), (None, 0));
    }
}
