//! Times of many calls in little memory: buckets of a sixteenth of their value.

/// Bits of a value that tell buckets of one magnitude apart.
const FINE_BITS: u32 = 4;

/// See the module; values are nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Spread {
    /// Grows up to the largest value seen, at most 976 buckets.
    buckets: Vec<u64>,
    count: u64,
}

impl Spread {
    pub(super) fn record(&mut self, nanos: u64) {
        let at = bucket(nanos);
        if self.buckets.len() <= at {
            self.buckets.resize(at + 1, 0);
        }
        self.buckets[at] += 1;
        self.count += 1;
    }

    /// Returns the value below or at which `share` (`0.0..=1.0`) of all lie, a sixteenth too high at most; `None` if
    /// there are none.
    pub(super) fn at(&self, share: f64) -> Option<u64> {
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.buckets
            .iter()
            .position(|count| {
                seen += count;
                seen >= wanted
            })
            .map(upper)
    }
}

fn bucket(nanos: u64) -> usize {
    let fine = 1 << FINE_BITS;
    if nanos < fine {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - FINE_BITS;
    // Below `fine` after the shift only the leading one is left over.
    (u64::from(shift + 1) * fine + ((nanos >> shift) - fine)) as usize
}

/// Returns the largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let (fine, bucket) = (1_u64 << FINE_BITS, bucket as u64);
    if bucket < fine {
        return bucket;
    }
    let shift = (bucket / fine - 1) as u32;
    let above = u128::from(bucket % fine + fine + 1) << shift;
    u64::try_from(above - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_a_bucket_of_a_sixteenth() {
        let edges = (0..64).flat_map(|bit| {
            let power = 1_u64 << bit;
            [power.saturating_sub(1), power, power.saturating_add(1), power.saturating_add(power / 3)]
        });
        for value in edges.chain([u64::MAX, 1_000, 123_456_789]) {
            let at = bucket(value);
            let top = upper(at);
            assert!(top >= value && top - value <= value / 16, "{value}: {top}");
            assert!(at == 0 || upper(at - 1) < value, "{value}");
        }
        assert!(bucket(u64::MAX) < 976);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let check = |values: &[u64], share: f64, expected: Option<u64>| {
            let mut spread = Spread::default();
            values.iter().for_each(|value| spread.record(*value));
            assert_eq!(spread.at(share), expected, "{values:?} at {share}");
        };
        check(&[], 0.5, None);
        check(&[7], 0.99, Some(7));
        check(&[1, 2, 3, 4], 0.5, Some(2));
        check(&[1, 2, 3, 4], 0.99, Some(4));
        check(&[1, 1, 1, 1_000], 0.99, Some(1_023));
    }
}
