//! Training images.

use tensorpack::dataflow::DataFlow;
use tensorpack::dataflow::dataset::cifar10;
use tensorpack::input::{DummyConstantInput, InputSource, QueueInput};
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// Returns shuffled batches of CIFAR-10 without labels; zeros with `--fake`.
pub(crate) fn data(args: &TrainArgs, batch: usize) -> Result<Box<dyn InputSource>> {
    if args.fake {
        return Ok(DummyConstantInput::new([vec![batch, 32, 32, 3]]).boxed());
    }
    let images = cifar10::train()?.into_flow().map(|mut sample| {
        sample.truncate(1);
        Ok(sample)
    });
    Ok(QueueInput::new(images.shuffle().batch(batch).prefetch(2)).boxed())
}

/// The input signature of such a batch.
pub(crate) fn image_spec() -> TensorSpec {
    TensorSpec::new("image", DType::U8, [None, Some(32), Some(32), Some(3)])
}

/// Converts a batch to the generator's format, from -1 to 1, with uniform noise of the size of a step
/// between two values of a byte.
pub(crate) fn real_images(image: &Tensor) -> Tensor {
    let x = image.cast(DType::F32) / 128.0 - 1.0;
    &x + Random::uniform(0.0, 1.0 / 128.0).like(&x)
}
