//! An augmentor from a user's function.

use super::{Augmentor, Transform};
use crate::SampleRng;
use std::fmt;
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

type ImageFunction = Arc<dyn Fn(HostTensor) -> Result<HostTensor> + Send + Sync>;
type CoordsFunction = Arc<dyn Fn([f64; 2]) -> [f64; 2] + Send + Sync>;

/// Applies a function to images.
#[derive(Clone)]
pub struct MapImage {
    image: ImageFunction,
    coords: Option<CoordsFunction>,
}

impl MapImage {
    /// Applies `function` to every image.
    pub fn new(function: impl Fn(HostTensor) -> Result<HostTensor> + Send + Sync + 'static) -> MapImage {
        MapImage { image: Arc::new(function), coords: None }
    }

    /// Applies `function` to every point. Without it, augmenting coordinates is an error.
    #[must_use]
    pub fn coords(self, function: impl Fn([f64; 2]) -> [f64; 2] + Send + Sync + 'static) -> MapImage {
        MapImage { coords: Some(Arc::new(function)), ..self }
    }
}

impl Augmentor for MapImage {
    fn transform(&self, _: &HostTensor, _: &mut SampleRng) -> Result<Box<dyn Transform>> {
        Ok(Box::new(self.clone()))
    }
}

impl Transform for MapImage {
    fn apply_image(&self, image: HostTensor) -> Result<HostTensor> {
        (self.image)(image).map_err(|e| e.within("MapImage"))
    }

    fn apply_coords(&self, coords: &mut [[f64; 2]]) -> Result<()> {
        let Some(function) = &self.coords else {
            let why = "MapImage: no function for coordinates; set one with MapImage::coords";
            return Err(Error::new(ErrorKind::Unsupported, why));
        };
        coords.iter_mut().for_each(|p| *p = function(*p));
        Ok(())
    }
}

impl fmt::Debug for MapImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MapImage")
    }
}
