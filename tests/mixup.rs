//! `cifar_resnet --mixup`: the model learns from mixed images, and test images are not mixed.

use super::onnx_examples::cifar_resnet::{MixedResNet, ResNet, unmixed};
use tensorpack::dataflow::image::Mixup;
use tensorpack::dataflow::{DataFlow, FromList};
use tensorpack::prelude::*;

const IMAGES: usize = 16;

/// A batch of images whose brightness is their class, 0 or 1, with some texture.
fn batch() -> Vec<HostTensor> {
    let image = |i: usize| (0..32 * 32 * 3).map(move |p| (i % 2 * 150 + (p * 7 + i * 3) % 40) as u8);
    let images = (0..IMAGES).flat_map(image).collect::<Vec<u8>>();
    let labels = (0..IMAGES).map(|i| (i % 2) as i32).collect::<Vec<i32>>();
    vec![HostTensor::new([IMAGES, 32, 32, 3], images).unwrap(), HostTensor::new([IMAGES], labels).unwrap()]
}

#[test]
fn unmixed_batches_keep_images_and_classes() {
    let batch = batch();
    let found = unmixed(batch.clone()).unwrap();
    assert_eq!(found[0].dtype(), DType::F32);
    assert_eq!(found[0].to_f64_vec(), batch[0].to_f64_vec());
    let rows = found[1].to_f64_vec();
    for (i, row) in rows.chunks(10).enumerate() {
        let class = (0..10).map(|c| f64::from(c == i % 2)).collect::<Vec<_>>();
        assert_eq!(row, class);
    }
}

#[test]
fn a_model_learns_from_mixed_images() {
    let mixup = Mixup::new(1.0, 10);
    let mixed =
        FromList::new(vec![batch()]).repeat_forever().map_random(move |batch, rng| mixup.mix(batch, rng));
    let mean = HostTensor::zeros(DType::F32, [32, 32, 3]).unwrap();
    let model = MixedResNet(ResNet { n: 1, mean, rate: Schedule::constant(0.05) });
    let test = FromList::new(vec![batch()]).map(unmixed);
    let config = TrainConfig::new(model, mixed)
        .callback(InferenceRunner::new(test, [ScalarStats::new("error")]))
        .no_logdir()
        .steps_per_epoch(20)
        .max_epoch(2);
    let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    // The entropy of mixed labels remains: 0.5 on average for pairs of different classes. Without learning
    // the cost is 2.3.
    let cost = trained.monitors.latest("cross_entropy_loss").unwrap();
    assert!(cost < 0.9, "{cost}");
    assert_eq!(trained.monitors.latest("validation_error"), Some(0.0));
}
