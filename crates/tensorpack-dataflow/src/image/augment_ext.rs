//! Augmentors in a dataflow.

use super::{Augmentor, Transform};
use crate::{DataFlow, Map, Sample};
use tensorpack_tensor::{Error, HostTensor, Result};

/// Augments pictures that are components of samples.
///
/// ```
/// use tensorpack_dataflow::image::{AugmentExt, AugmentorList, CenterCrop, Flip};
/// use tensorpack_dataflow::tensor::{DType, HostTensor};
/// use tensorpack_dataflow::{DataFlow, FromList, Seed, State};
///
/// let image = HostTensor::zeros(DType::U8, [32, 40, 3])?;
/// let data = FromList::new(vec![vec![image, HostTensor::scalar(7i32)]]);
/// let data = data.augment_image(0, AugmentorList::new().then(CenterCrop::new(28, 28)).then(Flip::horizontal()));
/// let sample = data.open(Seed::new(0), &State::start())?.read()?.expect("one sample");
/// assert_eq!(sample[0].sizes(), [28, 28, 3]);
/// # Ok::<(), tensorpack_dataflow::tensor::Error>(())
/// ```
#[doc(alias = "AugmentData")]
pub trait AugmentExt: DataFlow + Sized + 'static {
    /// Augments the picture that is this component of each sample.
    #[doc(alias = "AugmentImageComponent")]
    fn augment_image(self, component: usize, augmentor: impl Augmentor + 'static) -> Map {
        self.augment_images([component], [], augmentor)
    }

    /// Does the same to several pictures of a sample, and to coordinates: components `[n, 2]` of x and y.
    ///
    /// What is done is drawn for the first of the pictures.
    #[doc(alias = "AugmentImageComponents")]
    #[doc(alias = "AugmentImageCoordinates")]
    fn augment_images(
        self,
        images: impl Into<Vec<usize>>,
        coords: impl Into<Vec<usize>>,
        augmentor: impl Augmentor + 'static,
    ) -> Map {
        let (images, coords) = (images.into(), coords.into());
        self.map_random(move |mut sample, rng| {
            let Some((&first, others)) = images.split_first() else { return Ok(sample) };
            let (image, transform) = augmentor.augment(take(&mut sample, first)?, rng)?;
            sample[first] = image;
            for &other in others {
                sample[other] = transform.apply_image(take(&mut sample, other)?)?;
            }
            for &points in &coords {
                sample[points] = move_points(&*transform, &take(&mut sample, points)?)?;
            }
            Ok(sample)
        })
    }
}

impl<D: DataFlow + Sized + 'static> AugmentExt for D {}

/// Takes a component out of a sample, so that it can be changed in place.
fn take(sample: &mut Sample, component: usize) -> Result<HostTensor> {
    let n = sample.len();
    let taken = sample.get_mut(component).map(|tensor| std::mem::replace(tensor, HostTensor::scalar(0u8)));
    taken.ok_or_else(|| Error::argument(format!("a sample of {n} components has none of index {component}")))
}

fn move_points(transform: &dyn Transform, points: &HostTensor) -> Result<HostTensor> {
    if !matches!(points.sizes(), [_, 2]) {
        return Err(Error::shape(format!(
            "coordinates are [n, 2], x and y of each point, not {:?}",
            points.sizes()
        )));
    }
    let values = points.to_f64_vec();
    let mut coords: Vec<[f64; 2]> = values.as_chunks::<2>().0.to_vec();
    transform.apply_coords(&mut coords)?;
    HostTensor::from_f64(points.dtype(), points.sizes(), coords.as_flattened())
}
