//! Names of deliveries.
//!
//! Invariants: the id of a delivery says which reader made it, and readers have other numbers in every life of the
//! host, so an id of a former life names nothing; its nonce cannot be guessed.

/// What a delivery id says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id {
    /// Number of the reader.
    pub(super) reader: u64,
    pub(super) partition: u32,
    pub(super) position: u64,
    /// Nonce of the lease.
    pub(super) nonce: u64,
}

impl Id {
    /// Reads an id; `None` for anything but what [`Display`](std::fmt::Display) wrote.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let id = Self {
            reader: parts.next()?.parse().ok()?,
            partition: parts.next()?.parse().ok()?,
            position: parts.next()?.parse().ok()?,
            nonce: u64::from_str_radix(parts.next()?, 16).ok()?,
        };
        // One delivery has one name: no signs, no zeros in front.
        (id.to_string() == text).then_some(id)
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { reader, partition, position, nonce } = self;
        write!(f, "{reader}-{partition}-{position}-{nonce:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_is_read() {
        let id = Id { reader: u64::MAX, partition: 7, position: 12, nonce: 0xabc };
        assert_eq!(Id::parse(&id.to_string()), Some(id));
        for wrong in [
            "",
            "-",
            "1-2-3",
            "1-2-3-0000000000000004-",
            "1-2-3-4",
            "1-2-3-000000000000000G",
            "1-2-3-000000000000000A",
            "01-2-3-0000000000000004",
            "+1-2-3-0000000000000004",
            "1--2-3-0000000000000004",
            "18446744073709551616-2-3-0000000000000004",
            "1-4294967296-3-0000000000000004",
        ] {
            assert_eq!(Id::parse(wrong), None, "{wrong:?}");
        }
    }
}
