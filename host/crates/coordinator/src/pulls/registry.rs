//! Which readers there are, and who subscribes to them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Kind;
use super::reader::{Handle, Name};

/// A client's subscription to one reader.
pub(super) struct Subscribed {
    pub(super) id: String,
    /// When it was used last, in milliseconds on the monotonic clock of this life of the host.
    pub(super) used: u64,
}

/// See the module. Held briefly, never across anything that waits.
pub(super) struct Registry {
    pub(super) readers: BTreeMap<Name, Arc<Handle>>,
    numbers: HashMap<u64, Arc<Handle>>,
    clients: HashMap<Arc<str>, BTreeMap<Name, Subscribed>>,
    number: u64,
}

impl Registry {
    pub(super) fn new(first_number: u64) -> Self {
        Self {
            readers: BTreeMap::new(),
            numbers: HashMap::new(),
            clients: HashMap::new(),
            number: first_number,
        }
    }

    /// Returns a number that no reader had before.
    pub(super) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub(super) fn insert(&mut self, handle: Arc<Handle>) {
        self.numbers.insert(handle.number, handle.clone());
        if let Some(former) = self.readers.insert(handle.name.clone(), handle) {
            self.numbers.remove(&former.number);
        }
    }

    pub(super) fn by_number(&self, number: u64) -> Option<Arc<Handle>> {
        self.numbers.get(&number).cloned()
    }

    /// Forgets a reader with its subscribers, unless somebody made it anew since it was `known`.
    pub(super) fn remove(&mut self, name: &Name, known: Option<&Arc<Handle>>) {
        let present = self.readers.get(name);
        if present.zip(known).is_some_and(|(present, known)| !Arc::ptr_eq(present, known)) {
            return;
        }
        if let Some(former) = self.readers.remove(name) {
            self.numbers.remove(&former.number);
        }
        if name.kind == Kind::Private {
            // It has no other subscriber.
            self.forget(name, &name.group);
            return;
        }
        self.clients.retain(|_, subscribed| {
            subscribed.remove(name);
            !subscribed.is_empty()
        });
    }

    /// Returns the readers of a topic.
    pub(super) fn all_of(&self, topic: &str) -> Vec<Arc<Handle>> {
        let first = Name { topic: topic.into(), kind: Kind::Shared, group: "".into() };
        let of_topic = self.readers.range(first..).take_while(|(name, _)| *name.topic == *topic);
        of_topic.map(|(_, handle)| handle.clone()).collect()
    }

    /// Returns the readers of a topic that belong to shared groups.
    pub(super) fn shared_of(&self, topic: &str) -> Vec<Arc<Handle>> {
        let mut handles = self.all_of(topic);
        handles.retain(|handle| handle.name.kind == Kind::Shared);
        handles
    }

    /// Returns what a client reads.
    pub(super) fn names_of(&self, client: &str) -> Vec<Name> {
        self.clients.get(client).map(|subscribed| subscribed.keys().cloned().collect()).unwrap_or_default()
    }

    /// Takes note of a subscription, or of the use of one that is known; returns its id.
    pub(super) fn subscribe(&mut self, name: &Name, client: &str, subscribed: Subscribed) -> String {
        let of_client = self.clients.entry(client.into()).or_default();
        let used = subscribed.used;
        let known = of_client.entry(name.clone()).or_insert(subscribed);
        known.used = used;
        known.id.clone()
    }

    /// Takes note of a use of all a client's subscriptions; returns what it reads.
    pub(super) fn use_all(&mut self, client: &str, now_ms: u64) -> Vec<Name> {
        let Some(subscribed) = self.clients.get_mut(client) else { return Vec::new() };
        subscribed.values_mut().for_each(|subscribed| subscribed.used = now_ms);
        subscribed.keys().cloned().collect()
    }

    /// Forgets one subscription.
    pub(super) fn forget(&mut self, name: &Name, client: &str) {
        if let Some(subscribed) = self.clients.get_mut(client) {
            subscribed.remove(name);
            if subscribed.is_empty() {
                self.clients.remove(client);
            }
        }
    }

    /// Returns the subscriptions of which `is_over(kind, last use in ms)` holds, and the private groups that nobody
    /// subscribes to: a crash came between the two.
    pub(super) fn unused(&self, is_over: impl Fn(Kind, u64) -> bool) -> Vec<(Name, Arc<str>)> {
        let mut unused = Vec::new();
        for (client, subscribed) in &self.clients {
            let over = subscribed.iter().filter(|(name, subscribed)| is_over(name.kind, subscribed.used));
            unused.extend(over.map(|(name, _)| (name.clone(), client.clone())));
        }
        let is_orphan = |name: &&Name| {
            name.kind == Kind::Private
                && !self.clients.get(&name.group).is_some_and(|subscribed| subscribed.contains_key(*name))
        };
        let orphans = self.readers.keys().filter(is_orphan);
        unused.extend(orphans.map(|name| (name.clone(), name.group.clone())));
        unused
    }

    /// Tells whether what [`unused`](Self::unused) found still is.
    pub(super) fn is_unused(&self, name: &Name, client: &str, is_over: impl Fn(Kind, u64) -> bool) -> bool {
        match self.clients.get(client).and_then(|subscribed| subscribed.get(name)) {
            Some(subscribed) => is_over(name.kind, subscribed.used),
            None => name.kind == Kind::Private && self.readers.contains_key(name),
        }
    }

    /// Counts the subscribers of every reader that has any.
    pub(super) fn subscriber_counts(&self) -> HashMap<Name, u64> {
        let mut counts = HashMap::new();
        for name in self.clients.values().flat_map(BTreeMap::keys) {
            *counts.entry(name.clone()).or_default() += 1;
        }
        counts
    }
}
