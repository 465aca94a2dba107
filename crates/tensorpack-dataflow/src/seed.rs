//! Seeds and per-sample random numbers.

use tensorpack_tensor::CounterRng;

/// The seed of a dataflow.
///
/// An adaptor that uses random numbers opens its input with a derived seed, so that no two stages
/// use the same stream. An adaptor that does not passes its seed through, so that adding or
/// removing it changes no random number elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// Creates the seed of a pipeline.
    pub fn new(seed: u64) -> Seed {
        Seed(seed)
    }

    /// Derives the seed of the part called `name`.
    #[doc(alias = "of")]
    #[doc(alias = "fold_in")]
    #[must_use]
    pub fn derive(self, name: &str) -> Seed {
        let [low, high, ..] = CounterRng::new(self.0, name).words(0, 0);
        Seed(u64::from(high) << 32 | u64::from(low))
    }

    /// Returns the random number generator of one sample. It yields the same numbers on any thread
    /// and at any time.
    #[doc(alias = "draws")]
    pub fn rng(self, epoch: u64, index: u64) -> SampleRng {
        let stream = |name: &str| self.stream(epoch, name);
        SampleRng {
            uniforms: stream("sample"),
            normals: stream("normal"),
            integers: stream("integer"),
            sample: index,
            next: 0,
        }
    }

    /// Returns the generator of a pass. Its `draw` argument is the sample index.
    pub(crate) fn generator(self, epoch: u64) -> CounterRng {
        self.stream(epoch, "sample")
    }

    fn stream(self, epoch: u64, name: &str) -> CounterRng {
        let [low, high, ..] = CounterRng::new(self.0, "epoch").words(epoch, 0);
        CounterRng::new(u64::from(high) << 32 | u64::from(low), name)
    }
}

/// The random number generator of one sample.
#[doc(alias = "Draws")]
#[derive(Clone, Debug)]
pub struct SampleRng {
    // Each kind of number has a stream of its own: kinds take different numbers of words, so in one
    // stream a number of one kind would share words with an earlier one of another kind.
    uniforms: CounterRng,
    normals: CounterRng,
    integers: CounterRng,
    sample: u64,
    next: u64,
}

impl SampleRng {
    /// Returns a uniform value in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        self.next += 1;
        self.uniforms.uniform(self.sample, self.next - 1)
    }

    /// Returns a uniform value in `[low, high)`.
    #[doc(alias = "between")]
    pub fn uniform_range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Returns a standard normal value.
    pub fn normal(&mut self) -> f64 {
        self.next += 1;
        self.normals.normal(self.sample, self.next - 1)
    }

    /// Returns a uniform integer in `0..n`, or 0 if `n` is 0.
    #[doc(alias = "randint")]
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half of a 128-bit product. The bias is below n / 2^64.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Returns 64 random bits.
    #[doc(alias = "word")]
    pub fn next_u64(&mut self) -> u64 {
        let [low, high, ..] = self.integers.words(self.sample, self.next);
        self.next += 1;
        u64::from(high) << 32 | u64::from(low)
    }

    /// Returns true with the given probability.
    #[doc(alias = "chance")]
    pub fn bernoulli(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The correlation of each of the first eight numbers of one kind with those of the others.
    #[test]
    fn numbers_of_different_kinds_are_independent() {
        const KINDS: [fn(&mut SampleRng) -> f64; 3] = [
            |rng| rng.uniform() - 0.5,
            // The sign of a normal number is independent of each of its two words, its square is not.
            |rng| rng.normal().powi(2) - 1.0,
            |rng| rng.next_u64() as f64 / 2f64.powi(64) - 0.5,
        ];
        let n = 4000;
        for (a, b) in (0..3).flat_map(|a| (0..3).map(move |b| (a, b))) {
            let mut sums = [[[0.0; 3]; 8]; 8];
            for sample in 0..n {
                let mut rng = Seed::new(11).rng(0, sample);
                // First eight numbers of kind `a`, then eight of kind `b`.
                let [xs, ys] = [a, b].map(|kind| [(); 8].map(|()| KINDS[kind](&mut rng)));
                for (row, x) in sums.iter_mut().zip(xs) {
                    for ([xx, yy, xy], y) in row.iter_mut().zip(ys) {
                        (*xx, *yy, *xy) = (*xx + x * x, *yy + y * y, *xy + x * y);
                    }
                }
            }
            for (i, row) in sums.iter().enumerate() {
                for (j, [xx, yy, xy]) in row.iter().enumerate() {
                    let correlation = xy / (xx * yy).sqrt();
                    assert!(
                        correlation.abs() < 0.08,
                        "kinds {a} and {b}, numbers {i} and {j}: {correlation}"
                    );
                }
            }
        }
    }
}
