//! What waits for one agent: turns to take, and turns it took that it need not answer any more.
//!
//! Invariants: what came first is taken first; an order is taken once; turns are bounded in number and bytes, and so are
//! the notices, whose oldest give way: an agent also learns when it answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    items: BTreeMap<u64, Item>,
    next: u64,
    turns: usize,
    bytes: usize,
    /// Woken once for each item.
    pub(super) arrived: Arc<Notify>,
}

#[derive(Debug)]
pub(super) enum Item {
    Turn { turn: Arc<str>, prompt: String, model: Option<String> },
    Cancelled(Arc<str>),
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Self::Turn { prompt, model, .. } => prompt.len() + model.as_ref().map_or(0, String::len),
            Self::Cancelled(_) => 0,
        }
    }
}

impl Inbox {
    /// Says whether one more turn with so many bytes may wait.
    pub(super) fn has_room(&self, bytes: usize, turns_max: usize, bytes_max: usize) -> bool {
        self.turns == 0 || self.turns < turns_max && self.bytes + bytes <= bytes_max
    }

    /// Puts an item last; returns its place, for [`Self::remove`].
    pub(super) fn push(&mut self, item: Item) -> u64 {
        self.turns += usize::from(matches!(item, Item::Turn { .. }));
        self.bytes += item.bytes();
        let place = self.next;
        self.next += 1;
        self.items.insert(place, item);
        self.arrived.notify_one();
        place
    }

    /// Tells the agent that a turn it took is over.
    pub(super) fn cancel(&mut self, turn: Arc<str>, notices_max: usize) {
        if self.items.len() - self.turns >= notices_max {
            let oldest = self.items.iter().find(|(_, item)| matches!(item, Item::Cancelled(_)));
            let oldest = oldest.map(|(place, _)| *place);
            oldest.map(|place| self.remove(place));
        }
        self.push(Item::Cancelled(turn));
    }

    /// Takes an item out, whatever its place.
    pub(super) fn remove(&mut self, place: u64) -> Option<Item> {
        let item = self.items.remove(&place)?;
        self.turns -= usize::from(matches!(item, Item::Turn { .. }));
        self.bytes -= item.bytes();
        Some(item)
    }

    /// Takes the first item.
    pub(super) fn take(&mut self) -> Option<Item> {
        let place = *self.items.first_key_value()?.0;
        self.remove(place)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns how many turns wait.
    pub(super) fn turns(&self) -> usize {
        self.turns
    }
}
