//! Modules: pretrained parts of models, created outside the tower function and called inside it.

#[path = "../torch/file_writer.rs"]
#[allow(dead_code)]
mod file_writer;

use file_writer::{Item, Storage, View, archive};
use std::path::{Path, PathBuf};
use tensorpack::ErrorKind;
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::graph::{MODEL_VARIABLES, TRAINABLE_VARIABLES};
use tensorpack::io::{SaverRestore, WeightMap, dump_model_variables};
use tensorpack::predict::{Module, OfflinePredictor, OnnxOptions, PredictConfig};
use tensorpack::prelude::*;
use tensorpack::tower::{Mode, TowerFunc};
use tensorpack_testing::assert_mentions;

/// A net with reusable features.
fn net() -> TowerFunc {
    let inputs = vec![TensorSpec::f32("image", [None, Some(6), Some(6), Some(2)])];
    let build = |t: &TowerContext, inputs: &[Tensor]| {
        let x = Conv2d::new(4, 3).no_bias().apply(t, "conv0", &inputs[0]);
        let x = BatchNorm::new().relu().apply(t, "bn0", &x);
        let x = Conv2d::new(3, 3).relu().apply(t, "conv1", &x);
        let features = x.global_average_pool().named("features");
        vec![features.square().sum().named("energy")]
    };
    TowerFunc::new(inputs, build).unwrap()
}

/// Returns the net with its weights, and the exported file.
fn exported(dir: &Path, outputs: &[&str]) -> (OfflinePredictor, PathBuf) {
    let session = SessionOptions { seed: 7, ..SessionOptions::default() };
    let config = PredictConfig::from_tower(net(), outputs.iter().copied()).session(session);
    let predictor = OfflinePredictor::new(config).unwrap();
    // Running statistics as after training.
    let statistics = HostTensor::new([4], vec![0.1f32, -0.2, 0.3, 0.0]).unwrap();
    predictor.session().write("bn0/mean/EMA", &statistics).unwrap();
    let path = dir.join("features.safetensors");
    predictor.export(&path).unwrap();
    (predictor, path)
}

fn images(n: usize) -> HostTensor {
    HostTensor::new([n, 6, 6, 2], (0..n * 72).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<f32>>()).unwrap()
}

fn image(graph: &Graph, name: &str) -> Tensor {
    graph.placeholder(&TensorSpec::f32(name, [None, Some(6), Some(6), Some(2)]))
}

fn names(graph: &Graph, key: &str) -> Vec<String> {
    let ids = graph.collection(key).variables;
    ids.iter().map(|&id| graph.variable_handle(id).name().to_string()).collect()
}

/// Returns the first error of building on a module and an image.
fn error_of(build: impl FnOnce(&TowerContext, &Tensor)) -> Error {
    let graph = Graph::new();
    let x = image(&graph, "image");
    build(&TowerContext::training(&graph), &x);
    graph.first_error().unwrap_err()
}

#[test]
fn a_module_computes_the_same_as_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let (predictor, path) = exported(dir.path(), &["features", "energy"]);
    let module = Module::load(path).unwrap();
    assert_eq!(module.inputs(), [TensorSpec::f32("image", [None, Some(6), Some(6), Some(2)])]);
    assert_eq!(module.outputs().collect::<Vec<_>>(), ["features", "energy"]);
    let graph = Graph::new();
    let x = image(&graph, "x");
    let outputs = module.apply_all(&TowerContext::training(&graph), "backbone", &[&x]);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let there = session.run(&[&outputs[0], &outputs[1]], &[("x", &images(3))]).unwrap();
    assert_eq!(there, predictor.predict(&[&images(3)]).unwrap());
}

#[test]
fn towers_share_a_module() {
    let dir = tempfile::tempdir().unwrap();
    let module = Module::load(exported(dir.path(), &["features"]).1).unwrap();
    let signature = vec![TensorSpec::f32("image", [None, Some(6), Some(6), Some(2)])];
    let mut tower = TowerFunc::new(signature, move |t, inputs| {
        let x = module.apply(t, "backbone", &inputs[0]);
        vec![Linear::new(2).apply(t, "fc", &x).square().mean().named("cost")]
    })
    .unwrap();
    let graph = Graph::new();
    for i in 0..2 {
        let x = image(&graph, &format!("image{i}"));
        tower.train(&TowerContext::new(&graph, Mode::Training, i, 2), &[x]).unwrap();
    }
    tower.infer(&graph, "validation").unwrap();
    let mine = ["conv0/W", "bn0/gamma", "bn0/beta", "conv1/W", "conv1/b"].map(|n| format!("backbone/{n}"));
    assert_eq!(names(&graph, TRAINABLE_VARIABLES)[..5], mine);
    // Inference needs non-trainable variables, too.
    let statistics = ["backbone/bn0/mean/EMA", "backbone/bn0/variance/EMA"];
    let all = names(&graph, MODEL_VARIABLES);
    assert!(statistics.iter().all(|n| all.iter().any(|have| have == n)), "{all:?}");
    assert_eq!(all.len(), 5 + 2 + 2);
}

#[test]
fn frozen_variables_do_not_change() {
    let dir = tempfile::tempdir().unwrap();
    let (before, path) = exported(dir.path(), &["features"]);
    let module = Module::load(path).unwrap().freeze("conv0/.*");
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let x = module.apply(t, "backbone", &image(&graph, "x"));
    let cost = Linear::new(2).apply(t, "fc", &x).square().mean();
    let train = minimize(&cost, &Momentum::new(0.1, 0.9)).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    for _ in 0..3 {
        session.run(&[&train], &[("x", &images(4))]).unwrap();
    }
    let moved = |name: &str| {
        session.read(&format!("backbone/{name}")).unwrap() != before.session().read(name).unwrap()
    };
    for (name, should_move) in [
        ("conv0/W", false),
        ("bn0/mean/EMA", false),
        ("bn0/gamma", true),
        ("conv1/W", true),
        ("conv1/b", true),
    ] {
        assert_eq!(moved(name), should_move, "{name}");
    }
}

#[test]
fn invalid_calls_of_a_module_are_errors_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let (_, path) = exported(dir.path(), &["features"]);
    let module = || Module::load(&path).unwrap();
    let e = error_of(|t, x| drop(module().apply(t, "backbone", &x.global_average_pool())));
    assert_eq!((e.kind(), e.site().unwrap().line), (ErrorKind::Shape, line!() - 1));
    assert_mentions(&e, &["input image", "f32[?, 6, 6, 2]"]);
    let e = error_of(|t, x| drop(module().apply_all(t, "backbone", &[x, x])));
    assert!(e.message().contains("takes 1 inputs (image), but 2 were given"), "{e}");
    let e = error_of(|t, x| drop(module().freeze("conv9/.*").apply(t, "backbone", x)));
    assert!(e.message().contains("\"conv9/.*\" matches no variable"), "{e}");
    // Rule 3 of tower functions: names are unique.
    let e = error_of(|t, x| {
        module().apply(t, "backbone", x);
        module().apply(t, "backbone", x);
    });
    assert!(e.message().contains("backbone/conv0/W already exists"), "{e}");

    let (_, both) = exported(dir.path(), &["features", "energy"]);
    let e = error_of(|t, x| drop(Module::load(both).unwrap().apply(t, "backbone", x)));
    assert!(e.message().contains("has 2 outputs"), "{e}");
}

#[test]
fn a_file_without_a_model_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (predictor, _) = exported(dir.path(), &["features"]);
    let path = dir.path().join("weights.safetensors");
    dump_model_variables(predictor.session(), &path).unwrap();
    let e = Module::load(&path).unwrap_err();
    assert!(e.to_string().contains("no model"), "{e}");
    assert!(Module::load(dir.path().join("nothing.safetensors")).is_err());
}

/// The net as an ONNX file.
fn exported_onnx(dir: &Path) -> (OfflinePredictor, PathBuf) {
    let (predictor, _) = exported(dir, &["features"]);
    let path = dir.join("features.onnx");
    predictor.export_onnx(&path, &OnnxOptions::default()).unwrap();
    (predictor, path)
}

/// A model whose features are those of a module, trained on two towers with a fixed target.
struct FineTuned(Module);

impl FineTuned {
    fn signature() -> Vec<TensorSpec> {
        vec![
            TensorSpec::f32("image", [None, Some(6), Some(6), Some(2)]),
            TensorSpec::f32("target", [None, Some(2)]),
        ]
    }
}

/// The cost of a linear layer on features.
fn cost(t: &TowerContext, features: &Tensor, target: &Tensor) -> Tensor {
    let cost = Linear::new(2).apply(t, "fc", features).squared_error(target).mean().named("cost");
    t.moving_summary(&[&cost]);
    cost
}

/// Images with their targets.
fn examples() -> impl DataFlow + 'static {
    FromFn::new(8, |i| {
        let image: Vec<f32> = (0..72).map(|k| ((i * 72 + k) as f32 * 0.7).sin()).collect();
        Ok(vec![HostTensor::new([6, 6, 2], image)?, HostTensor::new([2], vec![i as f32 % 2.0, 1.0])?])
    })
}

impl ModelDesc for FineTuned {
    fn inputs(&self) -> Vec<TensorSpec> {
        FineTuned::signature()
    }
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = self.0.apply(t, "backbone", &inputs[0]);
        cost(t, &x, &inputs[1])
    }
    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Momentum::new(0.05, 0.9).boxed()
    }
}

#[test]
fn an_onnx_model_is_fine_tuned_on_two_towers() {
    let dir = tempfile::tempdir().unwrap();
    let (before, path) = exported_onnx(dir.path());
    let model = FineTuned(Module::load(path).unwrap().freeze("conv0/W"));
    let config = TrainConfig::new(model, examples().batch(4)).steps_per_epoch(20).max_epoch(5);
    let trained = launch_train_with_config(config, SyncMultiGpuTrainer::new(2)).unwrap();
    let cost = trained.monitors.history("cost");
    let ((_, first), (_, last)) = (cost.first().unwrap(), cost.last().unwrap());
    assert!(*last < 0.5 * first, "the cost went from {first} to {last}");
    let value = |name: &str| trained.session.read(name).unwrap();
    let start = |name: &str| before.session().read(name).unwrap();
    assert_eq!(value("backbone/conv0/W"), start("conv0/W"));
    assert_eq!(value("backbone/bn0/mean/EMA"), start("bn0/mean/EMA"));
    assert_ne!(value("backbone/conv1/W"), start("conv1/W"));
}

/// A net with PyTorch's padding, of which the first layer is not trained.
struct FromPyTorch;

impl ModelDesc for FromPyTorch {
    fn inputs(&self) -> Vec<TensorSpec> {
        FineTuned::signature()
    }
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let conv = |n: usize| Conv2d::new(n, 3).padding(Padding::Explicit([[1, 1], [1, 1]])).relu();
        let x = t.freeze_variables(|t| conv(4).apply(t, "backbone/0", &inputs[0]));
        let x = conv(3).apply(t, "backbone/1", &x).global_average_pool();
        cost(t, &x, &inputs[1])
    }
    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Momentum::new(0.05, 0.9).boxed()
    }
}

#[test]
fn the_weights_of_a_pytorch_file_are_fine_tuned_on_two_towers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.pth");
    let values = |n: usize| (0..n).map(|i| (i as f32 * 0.9).sin() * 0.4).collect::<Vec<f32>>();
    let storages = [72, 4, 108, 3].map(|n| Storage::f32(&values(n)));
    let view = |storage, sizes, strides| Item::Tensor(View { storage, offset: 0, sizes, strides });
    let state = Item::Dict(vec![
        ("module.conv0.weight", view(0, &[4, 2, 3, 3], &[18, 9, 3, 1])),
        ("module.conv0.bias", view(1, &[4], &[1])),
        ("module.conv1.weight", view(2, &[3, 4, 3, 3], &[36, 9, 3, 1])),
        ("module.conv1.bias", view(3, &[3], &[1])),
    ]);
    std::fs::write(&path, archive(&Item::Dict(vec![("state_dict", state)]), &storages)).unwrap();
    let map = WeightMap::new().strip_prefix("module.").conv("conv{i}", "backbone/{i}").except(["fc/.*"]);
    let config = TrainConfig::new(FromPyTorch, examples().batch(4))
        .session_init(SaverRestore::new(&path).map(map))
        .steps_per_epoch(20)
        .max_epoch(5)
        .no_logdir();
    let trained = launch_train_with_config(config, SyncMultiGpuTrainer::new(2)).unwrap();
    let cost = trained.monitors.history("cost");
    let ((_, first), (_, last)) = (cost.first().unwrap(), cost.last().unwrap());
    assert!(*last < 0.5 * first, "the cost went from {first} to {last}");
    let read = |name: &str| trained.session.read(name).unwrap();
    // [out, in, h, w] became [h, w, in, out].
    let filter = read("backbone/0/W");
    assert_eq!(filter.sizes(), [3, 3, 2, 4]);
    assert_eq!(filter.as_slice::<f32>().unwrap()[1], values(72)[18]);
    assert_eq!(read("backbone/0/b").as_slice::<f32>().unwrap(), values(4));
    assert_ne!(read("backbone/1/b").as_slice::<f32>().unwrap(), values(3));
}

#[test]
fn an_onnx_module_computes_the_same_as_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let (predictor, path) = exported_onnx(dir.path());
    let module = Module::load(path).unwrap();
    assert_eq!(module.inputs(), [TensorSpec::f32("image", [None, Some(6), Some(6), Some(2)])]);
    assert_eq!(module.outputs().collect::<Vec<_>>(), ["features"]);
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let y = module.apply(t, "backbone", &image(&graph, "x"));
    let mut trainable = names(&graph, TRAINABLE_VARIABLES);
    trainable.sort();
    let mine = ["bn0/beta", "bn0/gamma", "conv0/W", "conv1/W", "conv1/b"];
    assert_eq!(trainable, mine.map(|n| format!("backbone/{n}")));
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let found = session.run(&[&y], &[("x", &images(3))]).unwrap().remove(0);
    let wanted = predictor.predict(&[&images(3)]).unwrap().remove(0);
    assert_eq!(found.sizes(), wanted.sizes());
    for (found, wanted) in found.to_f64_vec().iter().zip(wanted.to_f64_vec()) {
        assert!((found - wanted).abs() < 1e-6, "{found}, not {wanted}");
    }
}

#[test]
fn a_misapplied_onnx_module_is_an_error_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let (_, path) = exported_onnx(dir.path());
    let e =
        error_of(|t, x| drop(Module::load(&path).unwrap().apply(t, "backbone", &x.global_average_pool())));
    assert_eq!((e.kind(), e.site().unwrap().line), (ErrorKind::Shape, line!() - 1));
    assert_mentions(&e, &["input image", "f32[?, 6, 6, 2]"]);
    let e = error_of(|t, x| drop(Module::load(&path).unwrap().freeze("conv9/.*").apply(t, "backbone", x)));
    assert!(e.message().contains("\"conv9/.*\" matches no variable"), "{e}");
}
