//! What flows from agents to clients.

/// Bytes a chunk is counted with beyond its texts.
const OVERHEAD_BYTES: usize = 64;

/// A piece of an answer, or a message that belongs to no turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Its place in its turn, from 0; 0 for a message.
    pub seq: u64,
    /// The text, which may be empty.
    pub text: String,
    /// Whether it is the last one of its turn.
    pub done: bool,
    /// Why the turn failed; only with `done`.
    pub error: Option<String>,
    /// Whether it was published by itself, outside of any turn.
    pub is_message: bool,
}

impl Chunk {
    /// Returns the bytes of its texts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len() + self.error.as_ref().map_or(0, String::len)
    }

    /// Returns the bytes it is counted with where memory is bounded.
    pub(super) fn cost(&self) -> usize {
        self.bytes() + OVERHEAD_BYTES
    }
}
