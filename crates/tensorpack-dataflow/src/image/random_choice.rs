//! Augmentors that choose among others.

use super::{Augmentor, Identity, Transform, TransformList};
use crate::SampleRng;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Applies an augmentor with some probability.
#[doc(alias = "RandomApplyAug")]
pub struct RandomApply {
    augmentor: Box<dyn Augmentor>,
    probability: f64,
}

impl RandomApply {
    /// Applies `augmentor` with this probability.
    pub fn new(augmentor: impl Augmentor + 'static, probability: f64) -> RandomApply {
        RandomApply { augmentor: Box::new(augmentor), probability }
    }
}

impl Augmentor for RandomApply {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        match rng.bernoulli(self.probability) {
            true => self.augmentor.transform(image, rng),
            false => Ok(Box::new(Identity)),
        }
    }
}

/// Applies one of several augmentors.
#[derive(Default)]
#[doc(alias = "RandomChooseAug")]
pub struct RandomChoose {
    choices: Vec<(Box<dyn Augmentor>, f64)>,
}

impl RandomChoose {
    /// Creates an empty choice.
    pub fn new() -> RandomChoose {
        RandomChoose::default()
    }

    /// Adds an augmentor with weight 1.
    #[must_use]
    pub fn or(self, augmentor: impl Augmentor + 'static) -> RandomChoose {
        self.or_with_weight(augmentor, 1.0)
    }

    /// Adds an augmentor whose probability is its share of the total weight.
    #[must_use]
    pub fn or_with_weight(mut self, augmentor: impl Augmentor + 'static, weight: f64) -> RandomChoose {
        self.choices.push((Box::new(augmentor), weight));
        self
    }
}

impl Augmentor for RandomChoose {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let total: f64 = self.choices.iter().map(|(_, weight)| weight).sum();
        let mut left = rng.uniform() * total;
        let chosen = self.choices.iter().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        match chosen {
            Some((augmentor, _)) => augmentor.transform(image, rng),
            None => Err(Error::argument("RandomChoose: no augmentor has a weight above 0")),
        }
    }
}

/// Applies augmentors in random order. All transforms are drawn for the original image, so none may
/// change its size.
#[derive(Default)]
#[doc(alias = "RandomOrderAug")]
pub struct RandomOrder {
    augmentors: Vec<Box<dyn Augmentor>>,
}

impl RandomOrder {
    /// Creates an empty list.
    pub fn new() -> RandomOrder {
        RandomOrder::default()
    }

    /// Adds an augmentor.
    #[must_use]
    pub fn with(mut self, augmentor: impl Augmentor + 'static) -> RandomOrder {
        self.augmentors.push(Box::new(augmentor));
        self
    }
}

impl Augmentor for RandomOrder {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        let transforms: Result<Vec<_>> = self.augmentors.iter().map(|a| a.transform(image, rng)).collect();
        let mut transforms = transforms?;
        for i in (1..transforms.len()).rev() {
            transforms.swap(i, rng.below(i as u64 + 1) as usize);
        }
        Ok(Box::new(TransformList(transforms)))
    }
}
