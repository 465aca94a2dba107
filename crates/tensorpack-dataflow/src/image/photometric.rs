//! Transforms that change values but move no pixels.

use super::Transform;
use std::fmt;
use tensorpack_tensor::{HostTensor, Result};

struct Photometric<F> {
    name: &'static str,
    function: F,
}

/// Creates a transform that applies a function to the image and leaves coordinates unchanged.
pub(super) fn photometric<F>(name: &'static str, function: F) -> Result<Box<dyn Transform>>
where
    F: Fn(HostTensor) -> Result<HostTensor> + Send + Sync + 'static,
{
    Ok(Box::new(Photometric { name, function }))
}

impl<F: Fn(HostTensor) -> Result<HostTensor> + Send + Sync> Transform for Photometric<F> {
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor> {
        (self.function)(image).map_err(|e| e.within(self.name))
    }

    fn apply_coords(&self, _: &mut [[f64; 2]]) -> Result<()> {
        Ok(())
    }
}

impl<F> fmt::Debug for Photometric<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
