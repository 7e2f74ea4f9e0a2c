//! Choice from the seed of a decision: the same seed gives the same choices on every machine.

/// A small deterministic generator over one decision's seed.
///
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (splitmix64). Seeds
/// that differ by one give unrelated streams, as every output passes a full mixing function.
#[derive(Debug, Clone)]
pub struct Seeded(u64);

impl Seeded {
    /// Starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next value, uniform over all of `u64`.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a value uniform over `0..bound`, without bias; 0 if `bound` is 0.
    ///
    /// Source: Lemire, "Fast Random Integer Generation in an Interval", 2019.
    pub const fn below(&mut self, bound: u32) -> u32 {
        if bound == 0 {
            return 0;
        }
        loop {
            let product = (self.next_u64() >> 32) * bound as u64;
            // The lowest 2^32 mod bound of each interval are one too many.
            if product as u32 >= bound.wrapping_neg() % bound {
                return (product >> 32) as u32;
            }
        }
    }

    /// Returns a value in `0.0..1.0` with 53 random bits.
    pub const fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_sequence() {
        let mut seeded = Seeded::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| seeded.next_u64()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn ranges_hold_and_are_even() {
        let mut seeded = Seeded::new(7);
        let mut seen = [0_u32; 3];
        for _ in 0..30_000 {
            seen[seeded.below(3) as usize] += 1;
            let unit = seeded.unit();
            assert!((0.0..1.0).contains(&unit));
        }
        assert!(seen.iter().all(|&count| count.abs_diff(10_000) < 400), "{seen:?}");
        assert_eq!(seeded.below(0), 0);
        assert_eq!(seeded.below(1), 0);
    }
}
