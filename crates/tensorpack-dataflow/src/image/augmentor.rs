//! The [`Augmentor`] and [`Transform`] traits.

use crate::SampleRng;
use std::fmt::Debug;
use tensorpack_tensor::{HostTensor, Result};

/// Draws random image transforms.
#[doc(alias = "ImageAugmentor")]
pub trait Augmentor: Send + Sync {
    /// Draws a transform for an image like this one. Apply it to everything that belongs to the
    /// image.
    #[doc(alias = "get_transform")]
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>>;

    /// Augments an image and returns the transform that was applied.
    fn augment(&self, image: HostTensor, rng: &mut SampleRng) -> Result<(HostTensor, Box<dyn Transform>)> {
        let transform = self.transform(&image, rng)?;
        Ok((transform.apply_image(image)?, transform))
    }
}

/// A deterministic image transform.
pub trait Transform: Debug + Send + Sync {
    /// Transforms an image, in place if possible and the image is not shared.
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor>;

    /// Moves points `[x, y]` together with the pixels they lie on.
    ///
    /// Coordinates are relative to the corner of the image: pixel 0 spans 0 to 1, and its center is
    /// 0.5.
    fn apply_coords(&self, coords: &mut [[f64; 2]]) -> Result<()>;
}

impl<A: Augmentor + ?Sized> Augmentor for Box<A> {
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>> {
        (**self).transform(image, rng)
    }

    fn augment(&self, image: HostTensor, rng: &mut SampleRng) -> Result<(HostTensor, Box<dyn Transform>)> {
        (**self).augment(image, rng)
    }
}
