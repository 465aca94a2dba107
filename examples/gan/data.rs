//! Training images.

use super::mnist_convnet;
use tensorpack::dataflow::DataFlow;
use tensorpack::input::{DummyConstantInput, InputSource, QueueInput};
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// Returns shuffled batches of MNIST, or of generated digits if MNIST is unavailable; zeros with
/// `--fake`.
pub(crate) fn data(args: &TrainArgs, batch: usize) -> Result<Box<dyn InputSource>> {
    if args.fake {
        return Ok(DummyConstantInput::new([vec![batch, 28, 28]]).boxed());
    }
    let (train, ..) = mnist_convnet::data()?;
    let images = train.map(|mut sample| {
        sample.truncate(1);
        Ok(sample)
    });
    Ok(QueueInput::new(images.shuffle().batch(batch)).boxed())
}

/// Like [`data`], with the class of each image.
pub(crate) fn labeled_data(args: &TrainArgs, batch: usize) -> Result<Box<dyn InputSource>> {
    if args.fake {
        return Ok(DummyConstantInput::new([vec![batch, 28, 28], vec![batch]]).boxed());
    }
    let (train, ..) = mnist_convnet::data()?;
    Ok(QueueInput::new(train.shuffle().batch(batch)).boxed())
}

/// The input signature of such a batch.
pub(crate) fn image_spec() -> TensorSpec {
    TensorSpec::f32("image", [None, Some(28), Some(28)])
}

/// Converts a batch to the generator's format: padded to `[batch, 32, 32, 1]`, from -1 to 1.
pub(crate) fn real_images(image: &Tensor) -> Tensor {
    image.expand_dims(3).pad(&[0, 2, 2, 0], &[0, 2, 2, 0], &[0; 4]) * 2.0 - 1.0
}
