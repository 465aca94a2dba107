//! `cifar_resnet`: the sizes of its nets, and training with `--mixup`, where test images are not mixed.

use super::onnx_examples::cifar_resnet::{Classifier, MixedClassifier, NETS, Net, alpha, pairs, unmixed};
use super::torch_nets::{check, python};
use tensorpack::dataflow::image::Mixup;
use tensorpack::dataflow::{DataFlow, FromList, Sample, Seed};
use tensorpack::io::WeightMap;
use tensorpack::prelude::*;

const IMAGES: usize = 16;

/// A batch of images whose brightness is their class, 0 or 1, with some texture.
fn batch() -> Sample {
    let image = |i: usize| (0..32 * 32 * 3).map(move |p| (i % 2 * 150 + (p * 7 + i * 3) % 40) as u8);
    let images = (0..IMAGES).flat_map(image).collect::<Vec<u8>>();
    let labels = (0..IMAGES).map(|i| (i % 2) as i32).collect::<Vec<i32>>();
    vec![HostTensor::new([IMAGES, 32, 32, 3], images).unwrap(), HostTensor::new([IMAGES], labels).unwrap()]
}

fn classifier(net: Net) -> Classifier {
    let mean = HostTensor::zeros(DType::F32, [32, 32, 3]).unwrap();
    Classifier { net, mean, rate: Schedule::constant(0.05), weight_decay: 2e-4 }
}

fn predictor(model: impl ModelDesc + 'static) -> OfflinePredictor {
    let config = PredictConfig::new(model, ["logits", "cross_entropy_loss", "error"]).unwrap();
    OfflinePredictor::new(config).unwrap()
}

/// The papers state 0.27, 0.46, 0.85, 1.7 and 11.2 million for all but the first.
#[test]
fn nets_have_their_papers_number_of_parameters() {
    let expected = [
        ("resnet14", 172_506),
        ("resnet20", 269_722),
        ("resnet32", 464_154),
        ("resnet56", 853_018),
        ("resnet110", 1_727_962),
        ("preact_resnet18", 11_172_170),
    ];
    let counts = NETS.map(|(name, net)| {
        let graph = Graph::new();
        let images = graph.placeholder(&TensorSpec::f32("x", [None, Some(32), Some(32), Some(3)]));
        let logits = net.logits(&TowerContext::training(&graph), &images);
        assert_eq!(logits.shape().to_string(), "[?, 10]", "{name}");
        let graph = graph.freeze().unwrap_or_else(|e| panic!("{name}: {e}"));
        let trained = graph.variables().iter().filter(|v| v.trainable);
        (name, trained.map(|v| v.sizes.iter().product::<usize>()).sum::<usize>())
    });
    assert_eq!(counts, expected);
}

#[test]
fn logits_agree_with_pytorch() {
    let dir = tempfile::tempdir().unwrap();
    if !python("make_cifar_resnet.py", &[dir.path()]) {
        return;
    }
    let map = (1..4).fold(WeightMap::new(), |map, stage| {
        let (theirs, ours) = (format!("stages.{}.{{i}}", stage - 1), format!("res{stage}.{{i}}"));
        map.conv(&format!("{theirs}.conv1"), &format!("{ours}/conv1"))
            .conv(&format!("{theirs}.conv2"), &format!("{ours}/conv2"))
            .batch_norm(&format!("{theirs}.bn0.0"), &format!("{ours}/bn0"))
            .batch_norm(&format!("{theirs}.bn1"), &format!("{ours}/bn1"))
    });
    for (name, net) in
        NETS.into_iter().filter(|(name, _)| ["resnet20", "resnet56", "resnet110"].contains(name))
    {
        check(dir.path(), name, |t, x| net.logits(t, x), map.clone().same_names());
    }
}

#[test]
fn unmixed_batches_give_what_the_model_gives() {
    let net = Net::Resnet { n: 1 };
    let (plain, mixed) = (predictor(classifier(net)), predictor(MixedClassifier(classifier(net))));
    let unmixed = unmixed(batch()).unwrap();
    let expected = plain.predict(&batch().iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(mixed.predict(&unmixed.iter().collect::<Vec<_>>()).unwrap(), expected);
}

/// The model, on images and probabilities that [`Mixup::mix`] has mixed.
struct MixedBefore(Classifier);

impl ModelDesc for MixedBefore {
    fn inputs(&self) -> Vec<TensorSpec> {
        let image = [None, Some(32), Some(32), Some(3)];
        vec![TensorSpec::f32("image", image), TensorSpec::f32("label", [None, Some(10)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let logits = self.0.logits(t, &inputs[0]);
        let loss = logits.softmax_cross_entropy(&inputs[1]);
        self.0.cost(t, &logits, &loss, &inputs[1].argmax(-1))
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Model::optimizer(&self.0, t)
    }
}

#[test]
fn the_model_mixes_as_the_data_library_does() {
    let net = Net::Resnet { n: 1 };
    let (ours, before) =
        (predictor(MixedClassifier(classifier(net))), predictor(MixedBefore(classifier(net))));
    let mixup = Mixup::new(1.0, 10);
    for index in 0..4 {
        let rng = || Seed::new(3).rng(0, index);
        let (paired, mixed) =
            (pairs(&mixup, batch(), &mut rng()).unwrap(), mixup.mix(batch(), &mut rng()).unwrap());
        let found = ours.predict(&paired.iter().collect::<Vec<_>>()).unwrap();
        let expected = before.predict(&mixed.iter().collect::<Vec<_>>()).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            let differences = found.to_f64_vec().into_iter().zip(expected.to_f64_vec());
            assert!(differences.clone().all(|(a, b)| (a - b).abs() < 1e-4), "{found:?}, not {expected:?}");
        }
    }
}

#[test]
fn models_learn_from_mixed_images() {
    for net in [Net::Resnet { n: 1 }, Net::PreactResnet18 { width: 0.125 }] {
        let mixup = Mixup::new(1.0, 10);
        let mixed = FromList::new(vec![batch()])
            .repeat_forever()
            .map_random(move |batch, rng| pairs(&mixup, batch, rng));
        let test = FromList::new(vec![batch()]).map(unmixed);
        let config = TrainConfig::new(MixedClassifier(classifier(net)), mixed)
            .callback(InferenceRunner::new(test, [ScalarStats::new("error")]))
            .no_logdir()
            .steps_per_epoch(20)
            .max_epoch(2);
        let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
        // The entropy of mixed labels remains: 0.5 on average for pairs of different classes. Without
        // learning the cost is 2.3.
        let cost = trained.monitors.latest("cross_entropy_loss").unwrap();
        assert!(cost < 0.9, "{net:?}: {cost}");
        assert_eq!(trained.monitors.latest("validation_error"), Some(0.0), "{net:?}");
    }
}

/// Before data is read and an older run is moved.
#[test]
fn a_value_that_mixup_cannot_take_is_an_error_of_the_command_line() {
    assert_eq!(alpha("0.5"), Ok(0.5));
    for wrong in ["0", "-1", "nan", "inf", "", "x"] {
        assert!(alpha(wrong).is_err(), "{wrong}");
    }
}
