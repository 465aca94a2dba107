//! ImageNet for examples: augmented training images, center-cropped validation images.

use tensorpack::dataflow::image::{
    Augmentor, AugmentorList, BrightnessScale, CenterCrop, Channels, Contrast, Flip, Interpolation, Lighting,
    RandomOrder, RandomResizedCrop, ResizeShortestEdge, Saturation, decode,
};
use tensorpack::dataflow::{DataFlow, Flow, format::imagenet};
use tensorpack::prelude::*;

/// The side of an image.
pub(crate) const SIDE: usize = 224;

/// Normalizes red, green and blue to mean 0 and standard deviation 1.
pub(crate) fn normalized(images: &Tensor) -> Tensor {
    let x = images.cast(DType::F32) / 255.0;
    let rgb = |values: [f64; 3]| {
        let values = HostTensor::from_f64(DType::F32, [3], &values).expect("three values");
        images.graph().constant(values)
    };
    (x - rgb([0.485, 0.456, 0.406])) / rgb([0.229, 0.224, 0.225])
}

/// Batches of training images with random crops, lighting and colors.
pub(crate) fn training_data(root: &str, batch: usize) -> Result<Flow> {
    let crop = RandomResizedCrop::new(SIDE).interpolation(Interpolation::Cubic);
    // The principal components of ImageNet's colors (Krizhevsky et al., 2012).
    let values = [0.2175, 0.0188, 0.0045].map(|v| 255.0 * v);
    let vectors = [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]];
    let colors = RandomOrder::new()
        .with(BrightnessScale::new(0.6, 1.4))
        .with(Contrast::new(0.6, 1.4).grayscale_mean())
        .with(Saturation::new(0.4))
        .with(Lighting::new(0.1, values, vectors));
    let augmentors = AugmentorList::new().then(colors).then(Flip::horizontal());
    let data = imagenet::train(root)?.shuffle().map_parallel(workers(), move |sample, rng| {
        let image = crop.decode(sample[0].as_slice()?, rng)?;
        Ok(vec![augmentors.augment(image, rng)?.0, sample[1].clone()])
    });
    Ok(data.batch(batch).prefetch(4).into_flow())
}

/// Batches of center-cropped validation images.
pub(crate) fn validation_data(root: &str) -> Result<Flow> {
    let middle = AugmentorList::new()
        .then(ResizeShortestEdge::new(256).interpolation(Interpolation::Cubic))
        .then(CenterCrop::new(SIDE, SIDE));
    let data = imagenet::val(root)?.map_parallel(workers(), move |sample, rng| {
        let image = decode(sample[0].as_slice()?, Channels::Rgb)?;
        Ok(vec![middle.augment(image, rng)?.0, sample[1].clone()])
    });
    Ok(data.batch(64).keep_remainder().prefetch(4).into_flow())
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
