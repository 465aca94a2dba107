//! Sequences of augmentors and transforms.

use super::{Augmentor, Transform};
use crate::SampleRng;
use tensorpack_tensor::{HostTensor, Result};

/// A sequence of augmentors. Each one sees the output of the previous one.
///
/// ```
/// use tensorpack_dataflow::Seed;
/// use tensorpack_dataflow::image::{Augmentor, AugmentorList, Brightness, Flip, RandomCrop};
/// use tensorpack_dataflow::tensor::{DType, HostTensor};
///
/// let augmentors = AugmentorList::new()
///     .then(RandomCrop::new(24, 24))
///     .then(Flip::horizontal())
///     .then(Brightness::new(63.0));
/// let image = HostTensor::zeros(DType::U8, [32, 32, 3])?;
/// let (image, transform) = augmentors.augment(image, &mut Seed::new(0).rng(0, 0))?;
/// assert_eq!(image.sizes(), [24, 24, 3]);
///
/// let mut corners = [[12.0, 12.0]];
/// transform.apply_coords(&mut corners)?; // moves the point with its pixel
/// # Ok::<(), tensorpack_dataflow::tensor::Error>(())
/// ```
#[derive(Default)]
pub struct AugmentorList {
    augmentors: Vec<Box<dyn Augmentor>>,
}

impl AugmentorList {
    /// Creates an empty sequence.
    pub fn new() -> AugmentorList {
        AugmentorList::default()
    }

    /// Appends an augmentor.
    #[must_use]
    pub fn then(mut self, augmentor: impl Augmentor + 'static) -> AugmentorList {
        self.augmentors.push(Box::new(augmentor));
        self
    }
}

impl From<Vec<Box<dyn Augmentor>>> for AugmentorList {
    fn from(augmentors: Vec<Box<dyn Augmentor>>) -> AugmentorList {
        AugmentorList { augmentors }
    }
}

impl Augmentor for AugmentorList {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        Ok(self.augment(image.clone(), rng)?.1)
    }

    fn augment(
        &self,
        mut image: HostTensor,
        rng: &mut SampleRng,
    ) -> Result<(HostTensor, Box<dyn Transform>)> {
        let mut done = Vec::with_capacity(self.augmentors.len());
        for augmentor in &self.augmentors {
            let (after, transform) = augmentor.augment(image, rng)?;
            image = after;
            done.push(transform);
        }
        Ok((image, Box::new(TransformList(done))))
    }
}

/// A sequence of transforms.
#[derive(Debug)]
pub struct TransformList(pub Vec<Box<dyn Transform>>);

impl Transform for TransformList {
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor> {
        self.0.iter().try_fold(image, |image, transform| transform.apply_image(image))
    }

    fn apply_coords(&self, coords: &mut [[f64; 2]]) -> Result<()> {
        self.0.iter().try_for_each(|transform| transform.apply_coords(coords))
    }
}
