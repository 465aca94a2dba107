//! Applying augmentors to a dataflow.

use super::{Augmentor, Transform};
use crate::{DataFlow, Map, Sample};
use tensorpack_tensor::{Error, HostTensor, Result};

/// Extends dataflows with image augmentation.
///
/// ```
/// use tensorpack_dataflow::image::{AugmentExt, AugmentorList, CenterCrop, Flip};
/// use tensorpack_dataflow::tensor::{DType, HostTensor};
/// use tensorpack_dataflow::{DataFlow, FromList, Seed, State};
///
/// let image = HostTensor::zeros(DType::U8, [32, 40, 3])?;
/// let data = FromList::new(vec![vec![image, HostTensor::scalar(7i32)]]);
/// let augmentors = AugmentorList::new().then(CenterCrop::new(28, 28)).then(Flip::horizontal());
/// let data = data.augment_image(0, augmentors);
/// let sample = data.open(Seed::new(0), &State::start())?.read()?.expect("one sample");
/// assert_eq!(sample[0].sizes(), [28, 28, 3]);
/// # Ok::<(), tensorpack_dataflow::tensor::Error>(())
/// ```
#[doc(alias = "AugmentData")]
pub trait AugmentExt: DataFlow + Sized + 'static {
    /// Augments the image in component `component` of every sample.
    #[doc(alias = "AugmentImageComponent")]
    fn augment_image(self, component: usize, augmentor: impl Augmentor + 'static) -> Map {
        self.augment_images([component], [], augmentor)
    }

    /// Applies one transform to several images of a sample and to coordinates, which are components
    /// `[n, 2]` of x and y.
    ///
    /// The transform is drawn for the first image.
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

/// Moves a component out of a sample, so that it can be modified in place.
fn take(sample: &mut Sample, component: usize) -> Result<HostTensor> {
    let n = sample.len();
    let taken = sample.get_mut(component).map(|tensor| std::mem::replace(tensor, HostTensor::scalar(0u8)));
    taken.ok_or_else(|| {
        Error::argument(format!("component {component} is out of range for a sample of {n} components"))
    })
}

fn move_points(transform: &dyn Transform, points: &HostTensor) -> Result<HostTensor> {
    if !matches!(points.sizes(), [_, 2]) {
        return Err(Error::shape(format!(
            "coordinates must have shape [n, 2] (x and y of each point), not {:?}",
            points.sizes()
        )));
    }
    let values = points.to_f64_vec();
    let mut coords: Vec<[f64; 2]> = values.as_chunks::<2>().0.to_vec();
    transform.apply_coords(&mut coords)?;
    HostTensor::from_f64(points.dtype(), points.sizes(), coords.as_flattened())
}
