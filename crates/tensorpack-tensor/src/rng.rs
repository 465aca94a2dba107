//! A counter-based random number generator: Philox 4x32-10 (Salmon et al., "Parallel random
//! numbers: as easy as 1, 2, 3", 2011).
//!
//! Random bits are a pure function of a key and a counter, so any element can be generated on its
//! own, in any order, on any thread, and again after a resume.

/// A random number generator indexed by position.
#[derive(Clone, Copy, Debug)]
pub struct CounterRng {
    key: [u32; 2],
}

impl CounterRng {
    /// Creates the generator of the stream `name` under `seed`.
    pub fn new(seed: u64, name: &str) -> CounterRng {
        let k = seed ^ hash_name(name);
        CounterRng { key: [k as u32, (k >> 32) as u32] }
    }

    /// Creates the generator with this key.
    pub fn from_key(key: [u32; 2]) -> CounterRng {
        CounterRng { key }
    }

    /// Returns the four random words at position `counter` of draw `draw`.
    pub fn words(&self, draw: u64, counter: u64) -> [u32; 4] {
        self.lanes::<1>(draw, counter).map(|[w]| w)
    }

    /// Returns the words at `N` consecutive positions: word `w` at position `counter + l` is
    /// `[w][l]`. Computing several at once lets the compiler vectorize.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "the lanes of four arrays go side by side")]
    pub fn lanes<const N: usize>(&self, draw: u64, counter: u64) -> [[u32; N]; 4] {
        const M: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
        const W: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
        // Each word occupies the low half of a u64, so that products need no widening.
        const LOW: u64 = 0xffff_ffff;
        let mut c = [[0u64; N], [0; N], [draw & LOW; N], [draw >> 32; N]];
        for l in 0..N {
            let counter = counter.wrapping_add(l as u64);
            (c[0][l], c[1][l]) = (counter & LOW, counter >> 32);
        }
        let mut k = self.key;
        for _ in 0..10 {
            for l in 0..N {
                let p0 = u64::from(M[0]) * (c[0][l] & LOW);
                let p1 = u64::from(M[1]) * (c[2][l] & LOW);
                c[0][l] = (p1 >> 32) ^ c[1][l] ^ u64::from(k[0]);
                c[2][l] = (p0 >> 32) ^ c[3][l] ^ u64::from(k[1]);
                (c[1][l], c[3][l]) = (p1, p0);
            }
            k = [k[0].wrapping_add(W[0]), k[1].wrapping_add(W[1])];
        }
        c.map(|word| word.map(|w| w as u32))
    }

    /// Returns the random word of element `i` of draw `draw`.
    pub fn word(&self, draw: u64, i: u64) -> u32 {
        self.words(draw, i / 4)[(i % 4) as usize]
    }

    /// Returns a value in `[0, 1)` for element `i` of draw `draw`, with the 24 bits of an f32.
    pub fn uniform(&self, draw: u64, i: u64) -> f64 {
        f64::from(self.word(draw, i) >> 8) * (1.0 / f64::from(1u32 << 24))
    }

    /// Returns a standard normal value (Box-Muller) for element `i` of draw `draw`.
    pub fn normal(&self, draw: u64, i: u64) -> f64 {
        let w = self.words(draw, i / 2);
        let (a, b) = if i.is_multiple_of(2) { (w[0], w[1]) } else { (w[2], w[3]) };
        // The offset keeps the argument of the logarithm above zero.
        let u = (f64::from(a) + 0.5) * 2f64.powi(-32);
        let v = (f64::from(b) + 0.5) * 2f64.powi(-32);
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

/// Hashes a name (FNV-1a and a final mix). The result is stable across platforms and versions.
pub fn hash_name(name: &str) -> u64 {
    let h =
        name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let h = (h ^ (h >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    h ^ (h >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors published with the paper.
    #[test]
    fn matches_the_published_test_vectors() {
        let zero = CounterRng { key: [0, 0] };
        assert_eq!(zero.words(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = CounterRng { key: [u32::MAX; 2] };
        assert_eq!(ones.words(u64::MAX, u64::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn uniform_and_normal_moments() {
        let r = CounterRng::new(7, "moments");
        let n = 100_000;
        let (mut u, mut s, mut q) = (0.0, 0.0, 0.0);
        for i in 0..n {
            u += r.uniform(0, i);
            let z = r.normal(1, i);
            s += z;
            q += z * z;
        }
        let n = n as f64;
        assert!((u / n - 0.5).abs() < 0.005);
        assert!((s / n).abs() < 0.01);
        assert!((q / n - 1.0).abs() < 0.02);
    }

    #[test]
    fn streams_differ() {
        assert_ne!(CounterRng::new(1, "a").word(0, 0), CounterRng::new(1, "b").word(0, 0));
        assert_ne!(CounterRng::new(1, "a").word(0, 0), CounterRng::new(2, "a").word(0, 0));
    }
}
