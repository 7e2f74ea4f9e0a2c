//! What the host remembers of clients: the instances it recently gave to each of them.
//!
//! Invariants: grants are ordered by time; a client is known exactly as long as one of its grants is; the counts of
//! a client add up to its grants. Every grant is added once and removed once, so the cost per request is constant.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::Timestamp;

/// Most grants remembered for each client the memory has room for, on average; beyond, the oldest are forgotten.
const GRANTS_PER_CLIENT: usize = 10;

/// See the module. Instances are named by their serial number, which is never used twice.
#[derive(Debug)]
pub(crate) struct Clients {
    counts: HashMap<Arc<str>, Vec<(u64, u32)>>,
    grants: VecDeque<Grant>,
    clients_max: usize,
    remember: Duration,
}

#[derive(Debug)]
struct Grant {
    at: Timestamp,
    client: Arc<str>,
    serial: u64,
}

impl Clients {
    pub(crate) fn new(clients_max: usize, remember: Duration) -> Self {
        Self { counts: HashMap::new(), grants: VecDeque::new(), clients_max, remember }
    }

    /// Remembers that `client` was sent to the instance `serial`. An empty client id is nobody.
    pub(crate) fn grant(&mut self, client: &str, serial: u64, now: Timestamp) {
        if client.is_empty() || self.clients_max == 0 {
            return;
        }
        let client = match self.counts.get_key_value(client) {
            Some((known, _)) => known.clone(),
            None => Arc::from(client),
        };
        let counts = self.counts.entry(client.clone()).or_default();
        match counts.binary_search_by_key(&serial, |(serial, _)| *serial) {
            Ok(at) => counts[at].1 = counts[at].1.saturating_add(1),
            Err(at) => counts.insert(at, (serial, 1)),
        }
        self.grants.push_back(Grant { at: now, client, serial });
        let grants_max = self.clients_max.saturating_mul(GRANTS_PER_CLIENT);
        while self.counts.len() > self.clients_max || self.grants.len() > grants_max {
            self.forget_oldest();
        }
    }

    /// Forgets grants older than the time to live.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        while self.grants.front().is_some_and(|grant| now.since(grant.at) > self.remember) {
            self.forget_oldest();
        }
    }

    /// Returns how often `client` was sent to which instance, ordered by serial number.
    pub(crate) fn counts(&self, client: &str) -> &[(u64, u32)] {
        self.counts.get(client).map_or(&[], Vec::as_slice)
    }

    fn forget_oldest(&mut self) {
        let Some(Grant { client, serial, .. }) = self.grants.pop_front() else { return };
        let counts = self.counts.get_mut(&client).expect("a client is known as long as it has a grant");
        let at = counts
            .binary_search_by_key(&serial, |(serial, _)| *serial)
            .expect("a grant is counted as long as it is remembered");
        counts[at].1 -= 1;
        if counts[at].1 == 0 {
            counts.remove(at);
        }
        if counts.is_empty() {
            self.counts.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: u64 = 60_000;

    #[test]
    fn grants_end_after_their_time_to_live() {
        let mut clients = Clients::new(10, Duration::from_secs(300));
        clients.grant("a", 7, Timestamp(0));
        clients.grant("a", 3, Timestamp(MINUTE));
        clients.grant("a", 7, Timestamp(2 * MINUTE));
        clients.grant("", 7, Timestamp(2 * MINUTE));
        let cases: [(u64, &[(u64, u32)]); 4] = [
            (5 * MINUTE, &[(3, 1), (7, 2)]),
            (5 * MINUTE + 1, &[(3, 1), (7, 1)]),
            (7 * MINUTE, &[(7, 1)]),
            (7 * MINUTE + 1, &[]),
        ];
        for (now, expected) in cases {
            clients.expire(Timestamp(now));
            assert_eq!(clients.counts("a"), expected, "after {now} ms");
        }
        assert_eq!((clients.counts.len(), clients.counts("")), (0, &[][..]));
    }

    proptest! {
        #[test]
        fn counts_add_up_and_stay_bounded(steps in prop::collection::vec((0_u8..20, 0_u64..5, 0_u64..100), 1..300)) {
            let mut clients = Clients::new(4, Duration::from_millis(500));
            let mut now = 0;
            for (client, serial, passed) in steps {
                now += passed;
                clients.expire(Timestamp(now));
                clients.grant(&client.to_string(), serial, Timestamp(now));
                let sum: u32 = clients.counts.values().flatten().map(|(_, count)| *count).sum();
                prop_assert_eq!(sum as usize, clients.grants.len());
                prop_assert!(clients.counts.len() <= 4 && clients.grants.len() <= 40);
                prop_assert!(clients.counts(&client.to_string()).iter().any(|(known, _)| *known == serial));
            }
        }
    }
}
