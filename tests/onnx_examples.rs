//! The nets of the examples, compiled from the same files: exported as ONNX, read back and run by
//! onnxruntime, each computes the same.

#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/cam.rs"]
mod cam;
#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/char_lm.rs"]
mod char_lm;
#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/cifar_resnet.rs"]
pub(crate) mod cifar_resnet;
#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/ctc.rs"]
mod ctc;
#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/dorefa.rs"]
mod dorefa;
#[path = "../examples/gan/nets.rs"]
mod gan_nets;
#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/mnist_convnet.rs"]
mod mnist_convnet;
#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/ptb_lstm.rs"]
mod ptb_lstm;
#[path = "../examples/resnet50/net.rs"]
mod resnet50;
#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/seq2seq.rs"]
mod seq2seq;
#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/similarity.rs"]
mod similarity;
#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/spatial_transformer.rs"]
mod spatial_transformer;
#[expect(dead_code, reason = "only the model is used")]
#[path = "../examples/super_resolution.rs"]
mod super_resolution;

use super::onnx_models::{python, relative_error};
use std::path::Path;
use tensorpack::io::write_tensors;
use tensorpack::predict::OnnxOptions;
use tensorpack::prelude::*;
use tensorpack::tower::TowerFunc;
use tensorpack_testing::opted_in;

pub(crate) fn floats(sizes: &[usize]) -> HostTensor {
    let values = (0..sizes.iter().product()).map(|i: usize| (i as f64 * 0.37).sin()).collect::<Vec<_>>();
    HostTensor::from_f64(DType::F32, sizes, &values).unwrap()
}

fn integers(dtype: DType, sizes: &[usize], below: usize) -> HostTensor {
    let values = (0..sizes.iter().product()).map(|i: usize| (i * 7 % below) as f64).collect::<Vec<_>>();
    HostTensor::from_f64(dtype, sizes, &values).unwrap()
}

/// Exports a net, reads it back, compares them, and leaves the files for `check_models.py`.
pub(crate) fn check(dir: &Path, name: &str, config: PredictConfig, inputs: &[HostTensor]) {
    let predictor = OfflinePredictor::new(config).unwrap_or_else(|e| panic!("{name}: {e}"));
    let path = dir.join(format!("{name}.onnx"));
    predictor.export_onnx(&path, &OnnxOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let read = ExportedModel::load(&path).unwrap_or_else(|e| panic!("{e}"));
    let fed: Vec<&HostTensor> = inputs.iter().collect();
    let (wanted, found) = (predictor.predict(&fed).unwrap(), read.predict(&fed).unwrap());
    for (wanted, found) in wanted.iter().zip(&found) {
        let error = relative_error(found, wanted);
        assert!(error < 1e-5, "{name}: {error:.1e}");
    }
    let inputs = read.inputs().iter().zip(inputs).map(|(spec, x)| (format!("in:{}", spec.name), x.clone()));
    let outputs = read.outputs().zip(wanted).map(|(output, y)| (format!("out:{output}"), y));
    write_tensors(dir.join(format!("{name}.npz")), &inputs.chain(outputs).collect::<Vec<_>>()).unwrap();
}

/// A function of one input, as a model with the output `y`.
fn function(
    sizes: &[Option<usize>],
    build: impl Fn(&TowerContext, &Tensor) -> Tensor + 'static,
) -> PredictConfig {
    let x = TensorSpec::f32("x", sizes);
    let tower = TowerFunc::new(vec![x], move |t, x| vec![build(t, &x[0]).named("y")]).unwrap();
    PredictConfig::from_tower(tower, ["y"])
}

#[test]
fn nets_of_the_examples_survive_a_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mnist = PredictConfig::new(mnist_convnet::Convnet, ["logits"]).unwrap().inputs(["image"]);
    check(dir, "mnist_convnet", mnist, &[floats(&[3, 28, 28])]);

    let mean = HostTensor::zeros(DType::F32, [32, 32, 3]).unwrap();
    let net = cifar_resnet::Net::Resnet { n: 1 };
    let rate = Schedule::staircase(0.1, 0.1, 1000);
    let resnet = cifar_resnet::Classifier { net, mean, rate, weight_decay: 2e-4 };
    let cifar = PredictConfig::new(resnet, ["logits", "error"]).unwrap();
    let batch = [integers(DType::U8, &[2, 32, 32, 3], 256), integers(DType::I32, &[2], 10)];
    check(dir, "cifar_resnet", cifar, &batch);

    let model = char_lm::Model { characters: 30, steps: 10 };
    let text = integers(DType::I32, &[2, char_lm_context(&model)], 30);
    check(dir, "char_lm", PredictConfig::new(model, ["logits"]).unwrap().inputs(["text"]), &[text]);

    let model = ptb_lstm::Model::new(8, 0.5);
    let sizes: Vec<usize> = model.inputs()[0].sizes.iter().map(|n| n.unwrap()).collect();
    let words = [integers(DType::I32, &sizes, 1000), integers(DType::I32, &sizes, 999)];
    check(dir, "ptb_lstm", PredictConfig::new(model, ["cost", "perplexity"]).unwrap(), &words);

    let noise = [None, Some(10)];
    check(dir, "gan_generator", function(&noise, gan_nets::generator), &[floats(&[2, 10])]);
    let image = [None, Some(32), Some(32), Some(1)];
    let judge = |t: &TowerContext, x: &Tensor| {
        gan_nets::discriminator(t, x, |t, name, x| LayerNorm::new().apply(t, name, x))
    };
    check(dir, "gan_discriminator", function(&image, judge), &[floats(&[2, 32, 32, 1])]);
    let image = [None, Some(64), Some(64), Some(3)];
    check(
        dir,
        "resnet50",
        function(&image, |t, x| resnet50::resnet50(t, x, false)),
        &[floats(&[1, 64, 64, 3])],
    );

    // The class is part of the image.
    let image = [None, Some(32), Some(32), Some(11)];
    let norm = |t: &TowerContext, name: &str, x: &Tensor| BatchNorm::new().apply(t, name, x);
    let judge = move |t: &TowerContext, x: &Tensor| gan_nets::discriminator(t, x, norm);
    check(dir, "gan_conditional", function(&image, judge), &[floats(&[2, 32, 32, 11])]);
    let image = [None, Some(32), Some(32), Some(1)];
    let code = move |t: &TowerContext, x: &Tensor| {
        gan_nets::head(t, "code", 10, &gan_nets::discriminator_features(t, x, norm))
    };
    check(dir, "gan_infogan", function(&image, code), &[floats(&[2, 32, 32, 1])]);

    let labels = || integers(DType::I32, &[2], 10);
    let model = spatial_transformer::Classifier { transforms: true, epochs: 1 };
    let outputs = PredictConfig::new(model, ["patch", "cross_entropy_loss", "error"]).unwrap();
    check(dir, "spatial_transformer", outputs, &[floats(&[2, 42, 42]), labels()]);

    for (name, loss, group) in [
        ("similarity_siamese", similarity::Loss::Siamese, 2),
        ("similarity_triplet", similarity::Loss::Triplet, 3),
        ("similarity_center", similarity::Loss::Center, 1),
    ] {
        let model = similarity::Embedding { loss, epochs: 1 };
        let outputs = PredictConfig::new(model, ["embedding", "similarity_loss"]).unwrap();
        let batch = [floats(&[2, group, 28, 28]), integers(DType::I32, &[2, group], 10)];
        // The labels of triplets are in their order.
        match group {
            3 => check(dir, name, outputs.inputs(["image"]), &batch[..1]),
            _ => check(dir, name, outputs, &batch),
        }
    }

    let model = cam::Classifier { epochs: 1 };
    let outputs = PredictConfig::new(model, ["maps", "error"]).unwrap();
    check(dir, "cam", outputs, &[floats(&[2, 64, 64]), labels()]);

    let outputs = PredictConfig::new(super_resolution::Espcn { epochs: 1 }, ["restored", "psnr"]).unwrap();
    check(dir, "super_resolution", outputs, &[integers(DType::U8, &[2, 32, 32, 3], 256)]);

    let outputs = PredictConfig::new(ctc::Reader { epochs: 1 }, ["logits"]).unwrap();
    let steps = HostTensor::new([2], vec![34, 9]).unwrap();
    check(dir, "ctc", outputs.inputs(["image", "steps"]), &[floats(&[2, 28, 136]), steps]);

    let outputs = PredictConfig::new(seq2seq::Dates { epochs: 1 }, ["written", "token_loss", "exact"]);
    let lengths = |a, b| HostTensor::new([2], vec![a, b]).unwrap();
    let (text, date) = (integers(DType::I32, &[2, 28], 30), integers(DType::I32, &[2, 11], 30));
    check(dir, "seq2seq", outputs.unwrap(), &[text, lengths(28, 10), date, lengths(11, 5)]);

    let outputs = PredictConfig::new(dorefa::Convnet, ["logits"]).unwrap().inputs(["image"]);
    check(dir, "dorefa", outputs, &[floats(&[2, 28, 28])]);
    run_in_onnxruntime(dir);
}

/// Compares the files of [`check`] with what onnxruntime computes.
pub(crate) fn run_in_onnxruntime(dir: &Path) {
    if opted_in("TENSORPACK_ONNXRUNTIME") {
        python("TENSORPACK_ONNXRUNTIME", "check_models.py", &[dir]);
    }
}

/// Returns the number of characters that the model reads.
fn char_lm_context(model: &char_lm::Model) -> usize {
    model.inputs()[0].sizes[1].unwrap()
}
