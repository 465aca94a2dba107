//! Where all randomness comes from.

use tensorpack_tensor::CounterRng;

/// The seed of a dataflow. An adaptor that draws random numbers opens its input with another, so that no two draw the
/// same; one that draws none passes on its own, so that putting it in or leaving it out changes no number elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// The seed of a whole pipeline.
    pub fn new(seed: u64) -> Seed {
        Seed(seed)
    }

    /// The seed of a part called `name`.
    #[doc(alias = "of")]
    #[doc(alias = "fold_in")]
    #[must_use]
    pub fn derive(self, name: &str) -> Seed {
        let [low, high, ..] = CounterRng::new(self.0, name).words(0, 0);
        Seed(u64::from(high) << 32 | u64::from(low))
    }

    /// Random numbers for one sample: the same ones whenever and wherever it is made.
    #[doc(alias = "draws")]
    pub fn rng(self, epoch: u64, index: u64) -> SampleRng {
        SampleRng { rng: self.generator(epoch), sample: index, next: 0 }
    }

    /// The generator of all samples of a pass: a draw is a sample.
    pub(crate) fn generator(self, epoch: u64) -> CounterRng {
        let [low, high, ..] = CounterRng::new(self.0, "epoch").words(epoch, 0);
        CounterRng::new(u64::from(high) << 32 | u64::from(low), "sample")
    }
}

/// Random numbers, one after the other.
#[doc(alias = "Draws")]
#[derive(Clone, Debug)]
pub struct SampleRng {
    rng: CounterRng,
    sample: u64,
    next: u64,
}

impl SampleRng {
    /// Uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        self.next += 1;
        self.rng.uniform(self.sample, self.next - 1)
    }

    /// Uniform in `[low, high)`.
    #[doc(alias = "between")]
    pub fn uniform_range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Normal with mean 0 and standard deviation 1.
    pub fn normal(&mut self) -> f64 {
        self.next += 1;
        self.rng.normal(self.sample, self.next - 1)
    }

    /// One of `0..n`, each as likely; 0 if there is none.
    #[doc(alias = "randint")]
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half of a product of 128 bits: its bias is below n / 2^64.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// 64 random bits.
    #[doc(alias = "word")]
    pub fn next_u64(&mut self) -> u64 {
        let [low, high, ..] = self.rng.words(self.sample, self.next);
        self.next += 1;
        u64::from(high) << 32 | u64::from(low)
    }

    /// True with this probability.
    #[doc(alias = "chance")]
    pub fn bernoulli(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }
}
