//! The identity augmentor.

use super::{Augmentor, Transform};
use crate::SampleRng;
use tensorpack_tensor::{HostTensor, Result};

/// Leaves images unchanged.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "NoOpTransform")]
pub struct Identity;

impl Augmentor for Identity {
    fn transform(&self, _: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        Ok(Box::new(Identity))
    }
}

impl Transform for Identity {
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor> {
        Ok(image)
    }

    fn apply_coords(&self, _: &mut [[f64; 2]]) -> Result<()> {
        Ok(())
    }
}
