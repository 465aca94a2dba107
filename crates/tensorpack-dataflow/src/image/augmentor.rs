//! What an augmentor is.

use crate::SampleRng;
use std::fmt::Debug;
use tensorpack_tensor::{HostTensor, Result};

/// Changes pictures at random.
#[doc(alias = "ImageAugmentor")]
pub trait Augmentor: Send + Sync {
    /// SampleRng what is to be done to a picture like this one, and to all that belongs to it.
    #[doc(alias = "get_transform")]
    fn transform(&self, image: &HostTensor, rng: &mut SampleRng) -> Result<Box<dyn Transform>>;

    /// Changes a picture, and says what was done.
    fn augment(&self, image: HostTensor, rng: &mut SampleRng) -> Result<(HostTensor, Box<dyn Transform>)> {
        let transform = self.transform(&image, rng)?;
        Ok((transform.apply_image(image)?, transform))
    }
}

/// A change of pictures with nothing random left in it.
pub trait Transform: Debug + Send + Sync {
    /// The picture, changed. One that is not shared is changed in place where that can be done.
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor>;

    /// Moves points `[x, y]` along with the pixels they lie on.
    ///
    /// Coordinates count from the picture's corner: pixel 0 reaches from 0 to 1, and its centre is at 0.5.
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
