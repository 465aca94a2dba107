//! Random permutations computed without a table.

use crate::SampleRng;

/// Enough rounds for uniform permutations even of few elements; the tests measure it.
const ROUNDS: usize = 10;

/// A pseudo-random permutation of `0..size` that needs no memory.
///
/// An index is split into two digits of base `b`, with `b * b >= size`, and passed through a
/// Feistel network: each round adds a keyed hash of one digit to the other. Results of `size` or
/// more are fed back until they fall below it (cycle walking), which keeps the map a bijection.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    size: u64,
    base: u64,
    keys: [u64; ROUNDS],
    /// 1 to swap elements 0 and 1 at the end. The network alone produces permutations of one
    /// parity, which is noticeable for small sizes.
    swap: u64,
}

impl Permutation {
    pub(crate) fn new(size: u64, rng: &mut SampleRng) -> Permutation {
        let root = size.isqrt();
        let base = if root * root < size { root + 1 } else { root };
        let key = rng.next_u64();
        let keys = std::array::from_fn(|round| splitmix64(key ^ (round as u64 + 1).wrapping_mul(GOLDEN)));
        let swap = if size < 2 { 0 } else { rng.below(2) };
        Permutation { size, base, keys, swap }
    }

    /// Returns the element at `index`, which must be below the size.
    pub(crate) fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.size);
        let mut at = index;
        loop {
            let (mut high, mut low) = (at / self.base, at % self.base);
            for key in self.keys {
                let shift = scale_to(splitmix64(low.wrapping_mul(GOLDEN) ^ key), self.base);
                let sum = high + shift;
                (high, low) = (low, if sum >= self.base { sum - self.base } else { sum });
            }
            at = high * self.base + low;
            if at < 2 {
                at ^= self.swap;
            }
            if at < self.size {
                return at;
            }
        }
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The SplitMix64 finalizer.
fn splitmix64(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn scale_to(word: u64, n: u64) -> u64 {
    ((u128::from(word) * u128::from(n)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;
    use std::collections::HashMap;

    fn order(size: u64, epoch: u64) -> Vec<u64> {
        let order = Permutation::new(size, &mut Seed::new(3).rng(epoch, 0));
        (0..size).map(|i| order.at(i)).collect()
    }

    #[test]
    fn permutation_is_a_bijection_that_depends_on_the_seed() {
        for size in (0..200).chain([1000, 1023, 1024, 1025, 65_537]) {
            let mut seen = order(size, 0);
            assert!(size < 20 || seen != order(size, 1));
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..size), "{size}");
        }
        let large = Permutation::new(u64::MAX, &mut Seed::new(0).rng(0, 0));
        assert!(large.at(u64::MAX - 1) < u64::MAX);
    }

    /// All permutations of a few elements are equally likely: chi-square stays below its 99.99 %
    /// quantile.
    #[test]
    fn small_permutations_are_uniform() {
        for (size, orders, limit) in [(3, 6.0, 25.7), (4, 24.0, 58.6), (5, 120.0, 184.0)] {
            let mut counts: HashMap<Vec<u64>, f64> = HashMap::new();
            let trials = 200 * orders as u64;
            (0..trials).for_each(|epoch| *counts.entry(order(size, epoch)).or_default() += 1.0);
            let mean = trials as f64 / orders;
            let missing = orders - counts.len() as f64;
            let chi: f64 = counts.values().map(|n| (n - mean).powi(2) / mean).sum::<f64>() + missing * mean;
            assert!(chi < limit, "{chi} for {size}");
        }
    }

    /// The image of an index in a larger range is uniform, and so is its distance to the next one.
    #[test]
    fn positions_and_distances_are_uniform() {
        let (size, bins, trials) = (1000, 20, 10_000);
        let (mut places, mut distances) = (vec![0.0; bins], vec![0.0; bins]);
        for epoch in 0..trials {
            let order = Permutation::new(size, &mut Seed::new(5).rng(epoch, 0));
            let (a, b) = (order.at(417), order.at(418));
            places[(a as usize * bins) / size as usize] += 1.0;
            distances[(((b + size - a) % size) as usize * bins) / size as usize] += 1.0;
        }
        let mean = trials as f64 / bins as f64;
        for counts in [places, distances] {
            let chi: f64 = counts.iter().map(|n: &f64| (n - mean).powi(2) / mean).sum();
            assert!(chi < 50.8, "{chi}"); // one in ten thousand, with 19 degrees of freedom
        }
    }
}
