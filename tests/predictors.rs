//! What a trained model is taken from, and what goes with it: averaged weights, tags, parts of
//! checkpoints, metadata, predictors during training, copies of variables, batches of many callers.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use tensorpack::ErrorKind;
use tensorpack::callback::{GraphCx, RunOp, TrainCx};
use tensorpack::dataflow::FromList;
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::io::{Checkpoint, CheckpointStore, RunLock, SaverRestore, SessionInit};
use tensorpack::predict::{AsyncPredictor, OnlinePredictor, OnnxOptions};
use tensorpack::prelude::*;
use tensorpack::train::Trained;
use tensorpack_testing::assert_mentions;

/// Fits a line; with `average`, keeps averages of its weights.
#[derive(Clone, Copy)]
struct Fit {
    average: bool,
}

impl ModelDesc for Fit {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)]), TensorSpec::f32("y", [None, Some(1)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let fitted = Linear::new(1).apply(t, "fc", &inputs[0]).named("fitted");
        (fitted - &inputs[1]).square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        match self.average {
            true => Ema::new(Sgd::new(0.05), 0.9).boxed(),
            false => Sgd::new(0.05).boxed(),
        }
    }
}

fn batches(n: usize) -> FromList {
    let batch = |b: usize| {
        let x: Vec<f32> = (0..12).map(|i| ((b * 12 + i).pow(2) as f32 * 0.37).sin()).collect();
        let y: Vec<f32> = x.chunks(3).map(|r| r[0] - 2.0 * r[1] + 0.5 * r[2]).collect();
        vec![HostTensor::new([4, 3], x).unwrap(), HostTensor::new([4, 1], y).unwrap()]
    };
    FromList::new((0..n).map(batch).collect())
}

fn train(average: bool, dir: &Path) -> Trained {
    let config = TrainConfig::new(Fit { average }, batches(4)).callback(ModelSaver::new());
    launch_train_with_config(config.logdir(dir).max_epoch(2), SimpleTrainer::new()).unwrap()
}

fn from_run(init: SaverRestore) -> Result<OfflinePredictor> {
    let config = PredictConfig::new(Fit { average: false }, ["fitted"])?.inputs(["x"]);
    OfflinePredictor::new(config.session_init(init))
}

#[test]
fn averages_replace_weights_in_predictors_and_exports() {
    let dir = tempfile::tempdir().unwrap();
    let trained = train(true, dir.path());
    assert_eq!(trained.logdir(), Some(dir.path()));
    let [weights, averages] = ["fc/W", "EMA/fc/W"].map(|name| trained.session.read(name).unwrap());
    assert_ne!(weights, averages);
    let plain = from_run(SaverRestore::new(dir.path())).unwrap();
    let averaged = from_run(SaverRestore::new(dir.path()).on_ema()).unwrap();
    let online = trained.on_ema().unwrap().get_predictor(&["x"], &["fitted"]).unwrap();
    let read = |p: &OfflinePredictor| p.session().read("fc/W").unwrap();
    assert_eq!([read(&plain), read(&averaged), read(&online)], [weights, averages.clone(), averages]);
    let path = dir.path().join("line.safetensors");
    averaged.export(&path).unwrap();
    let x = HostTensor::new([1, 3], vec![1.0f32, 2.0, 3.0]).unwrap();
    let exported = ExportedModel::load(&path).unwrap().predict(&[&x]).unwrap();
    assert_eq!(exported, online.predict(&[&x]).unwrap());
    assert_ne!(exported, plain.predict(&[&x]).unwrap());
}

#[test]
fn missing_averages_are_an_error_that_names_ema() {
    let dir = tempfile::tempdir().unwrap();
    let trained = train(false, dir.path());
    let e = from_run(SaverRestore::new(dir.path()).on_ema()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Name);
    assert_mentions(&e, &["moving average", "Ema::new", "step-"]);
    let e = trained.on_ema().err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Graph);
    assert_mentions(&e, &["moving average", "Ema::new"]);
}

/// A session with the variables `encoder/W` and `decoder/W`.
fn two_parts(value: f32) -> Session {
    let graph = Graph::new();
    let t = TowerContext::inference(&graph);
    for scope in ["encoder", "decoder"] {
        t.scope(scope, |t| t.variable(VariableSpec::new("W", [2]).init(Init::Constant(f64::from(value)))));
    }
    Session::new(graph.freeze().unwrap()).unwrap()
}

fn first(session: &Session, name: &str) -> f64 {
    session.read(name).unwrap().to_f64_vec()[0]
}

fn save(store: &mut CheckpointStore, step: u64, tags: &[&str]) {
    let state = serde_json::Map::new();
    let checkpoint = Checkpoint::capture(&two_parts(step as f32), step, state, |_| true).unwrap();
    store.save(&checkpoint, tags).unwrap();
}

#[test]
fn checkpoints_are_found_by_tag_and_by_pointer_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = CheckpointStore::open(&RunLock::acquire(dir.path()).unwrap()).unwrap();
    save(&mut store, 1, &["min-validation_cost", "max-tower0/a b"]);
    save(&mut store, 2, &[]);
    let checkpoints = dir.path().join("checkpoints");
    let loaded = |init: SaverRestore| {
        let session = two_parts(0.0);
        init.init(&session).map(|()| first(&session, "encoder/W"))
    };
    assert_eq!(loaded(SaverRestore::new(dir.path())).unwrap(), 2.0);
    for path in [dir.path(), &checkpoints] {
        for tag in ["min-validation_cost", "max-tower0/a b"] {
            assert_eq!(loaded(SaverRestore::new(path).tag(tag)).unwrap(), 1.0, "{tag}");
        }
    }
    assert_eq!(loaded(SaverRestore::new(checkpoints.join("min-validation_cost"))).unwrap(), 1.0);
    assert_eq!(loaded(SaverRestore::new(checkpoints.join("latest"))).unwrap(), 2.0);
    let e = loaded(SaverRestore::new(dir.path()).tag("min-validation_costs")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Name);
    assert_mentions(&e, &["min-validation_costs", "min-validation_cost", "checkpoints"]);
    // A tag never leaves the directory of checkpoints.
    assert!(loaded(SaverRestore::new(dir.path()).tag("../checkpoints/latest")).is_err());
}

#[test]
fn only_a_part_of_a_checkpoint_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = CheckpointStore::open(&RunLock::acquire(dir.path()).unwrap()).unwrap();
    save(&mut store, 7, &[]);
    let session = two_parts(0.0);
    SaverRestore::new(dir.path()).only(["encoder/.*"]).init(&session).unwrap();
    assert_eq!([first(&session, "encoder/W"), first(&session, "decoder/W")], [7.0, 0.0]);
    // A graph that has only this part loads it, too; without `only` the rest is unexpected.
    let graph = Graph::new();
    let t = TowerContext::inference(&graph);
    t.scope("encoder", |t| t.variable(VariableSpec::new("W", [2]).init(Init::zeros())));
    let part = Session::new(graph.freeze().unwrap()).unwrap();
    let e = SaverRestore::new(dir.path()).init(&part).unwrap_err();
    assert_mentions(&e, &["unexpected", "decoder/W"]);
    SaverRestore::new(dir.path()).only(["encoder/.*"]).init(&part).unwrap();
    assert_eq!(first(&part, "encoder/W"), 7.0);
    let misspelled = SaverRestore::new(dir.path()).only(["encodr/.*"]);
    let line = line!() - 1;
    let e = misspelled.init(&session).unwrap_err();
    assert_eq!((e.kind(), e.site().map(|s| s.line)), (ErrorKind::Name, Some(line)));
    assert_mentions(&e, &["encodr/.*"]);
}

#[test]
fn metadata_goes_into_exported_files() {
    let dir = tempfile::tempdir().unwrap();
    let predictor =
        || OfflinePredictor::new(PredictConfig::new(Fit { average: false }, ["fitted"]).unwrap()).unwrap();
    let described = predictor().with_metadata("license", "CC-BY-4.0").unwrap();
    let described = described.with_json_metadata("labels", &["cat", "dog"]).unwrap();
    let [path, onnx] = ["line.safetensors", "line.onnx"].map(|name| dir.path().join(name));
    described.export(&path).unwrap();
    let model = ExportedModel::load(&path).unwrap();
    let check = |model: &ExportedModel| {
        assert_eq!(model.metadata()["license"], "CC-BY-4.0");
        assert_eq!(model.json_metadata::<Vec<String>>("labels").unwrap(), ["cat", "dog"]);
        assert_eq!(model.metadata().len(), 2, "{:?}", model.metadata());
    };
    check(&model);
    // It is kept on the way to ONNX, where an option replaces it.
    model.export_onnx(&onnx, &OnnxOptions::default()).unwrap();
    check(&ExportedModel::load(&onnx).unwrap());
    model.export_onnx(&onnx, &OnnxOptions::default().metadata("license", "MIT")).unwrap();
    assert_eq!(ExportedModel::load(&onnx).unwrap().metadata()["license"], "MIT");
    let e = model.json_metadata::<u32>("labels").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data);
    let e = model.json_metadata::<u32>("lables").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Name);
    assert_mentions(&e, &["lables", "labels"]);
    for key in ["", "tensorpack.model"] {
        let e = predictor().with_metadata(key, "{}").err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Argument);
    }
}

/// Predicts one example after every epoch, and reads the weights it must have been predicted with.
struct Watch {
    predictor: Option<OnlinePredictor>,
    seen: Arc<Mutex<Vec<(f64, f64)>>>,
}

fn example() -> HostTensor {
    HostTensor::new([1, 3], vec![1.0f32, 0.0, 0.0]).unwrap()
}

impl Callback for Watch {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        if self.predictor.is_none() {
            self.predictor = Some(g.predictor(&["x"], &["fitted"])?);
        }
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let predictor = self.predictor.as_ref().unwrap();
        let y = predictor.predict(cx.session(), &[&example()])?[0].to_f64_vec()[0];
        let right = first(cx.session(), "fc/W") + first(cx.session(), "fc/b");
        self.seen.lock().unwrap().push((y, right));
        let e = predictor.predict(cx.session(), &[]).unwrap_err();
        assert_mentions(&e, &["x", file!()]);
        Ok(())
    }
}

#[test]
fn predictors_use_the_current_weights_during_training() {
    let model = Fit { average: false };
    let cost = move |t: &TowerContext, inputs: &[Tensor]| model.build_graph(t, inputs);
    let input = FeedInput::new(batches(4)).boxed();
    let mut trainer =
        SimpleTrainer::new().setup_graph(model.inputs(), input, cost, move |t| model.optimizer(t)).unwrap();
    let seen = Arc::<Mutex<Vec<_>>>::default();
    // One predictor of the trainer, and two of callbacks.
    let predictor = Some(trainer.get_predictor(&["x"], &["fitted"]).unwrap());
    trainer.register_callback(Watch { predictor, seen: seen.clone() });
    for _ in 0..2 {
        trainer.register_callback(Watch { predictor: None, seen: seen.clone() });
    }
    let e = trainer.get_predictor(&["x"], &["fited"]).err().unwrap();
    assert_mentions(&e, &["fited", "fitted"]);
    let e = trainer.get_predictor(&["z"], &["fitted"]).err().unwrap();
    assert_mentions(&e, &["\"z\"", "x"]);
    trainer.train(RunConfig::new().no_logdir().max_epoch(3)).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 9);
    assert!(seen.iter().all(|(y, right)| (y - right).abs() < 1e-6), "{seen:?}");
    assert!(seen[0].0 != seen[3].0 && seen[3].0 != seen[6].0, "the weights change: {seen:?}");
    assert!(seen[0] == seen[1] && seen[1] == seen[2], "{seen:?}");
}

/// A net in a scope, with batch norm: it has variables that are not trained.
fn net(t: &TowerContext, scope: &str, width: usize, x: &Tensor) -> Tensor {
    t.scope(scope, |t| BatchNorm::new().apply(t, "bn", &Linear::new(width).apply(t, "fc", x)))
}

#[test]
fn the_variables_of_a_network_are_copied_to_another() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
    let y = net(&t, "online", 2, &x);
    net(&t, "target", 2, &x);
    graph.freeze_variables("target/.*");
    let step = minimize(&y.square().mean(), &Adam::new(0.1)).unwrap();
    let copy = graph.copy_variables("online", "target/");
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let input = HostTensor::new([2, 3], vec![1.0f32, 2.0, 3.0, -1.0, 0.5, 0.0]).unwrap();
    session.run(&[&step], &[("x", &input)]).unwrap();
    session.write("online/bn/mean/EMA", &HostTensor::new([2], vec![5.0f32, 6.0]).unwrap()).unwrap();
    let names = || session.graph().variables().iter().filter_map(|v| v.name.strip_prefix("target/"));
    let equal = |name: &str| {
        let [online, target] = ["online", "target"].map(|scope| session.read(&format!("{scope}/{name}")));
        online.unwrap() == target.unwrap()
    };
    assert!(!equal("fc/W") && !equal("bn/mean/EMA"));
    session.run(&[&copy], &[]).unwrap();
    assert!(names().count() >= 5, "{:?}", names().collect::<Vec<_>>());
    assert!(names().all(equal));
    // As a callback.
    let _ = RunOp::from_op(&copy);
}

#[test]
fn variables_that_cannot_be_copied_are_all_listed() {
    let graph = Graph::new();
    let t = TowerContext::inference(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
    net(&t, "online", 2, &x);
    t.scope("target", |t| Linear::new(4).apply(t, "fc", &x));
    graph.copy_variables("online", "target");
    let line = line!() - 1;
    let e = graph.freeze().err().unwrap();
    assert_eq!((e.kind(), e.site().map(|s| s.line)), (ErrorKind::Name, Some(line)));
    assert_mentions(
        &e,
        &["target/fc/W", "[3, 4]", "[3, 2]", "target/fc/b", "target/bn/gamma", "does not exist"],
    );
    let graph = Graph::new();
    graph.copy_variables("online", "target");
    assert_mentions(graph.freeze().err().unwrap(), &["no variables under", "online"]);
}

/// Doubles its input once it may; records the number of rows of each run.
struct Doubles {
    started: Sender<()>,
    go: Receiver<()>,
    rows: Arc<Mutex<Vec<usize>>>,
}

impl Predictor for Doubles {
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        let _ = self.started.send(());
        let _ = self.go.recv();
        self.rows.lock().unwrap().push(inputs[0].sizes()[0]);
        let doubled: Vec<f64> = inputs[0].to_f64_vec().iter().map(|x| 2.0 * x).collect();
        HostTensor::from_f64(DType::F32, inputs[0].sizes(), &doubled).map(|y| vec![y])
    }
}

#[test]
fn batches_of_many_callers_run_together_and_get_their_own_rows() {
    let ((started, has_started), (on, go)) = (channel(), channel());
    let rows = Arc::<Mutex<Vec<usize>>>::default();
    let predictor = AsyncPredictor::with_queue(Doubles { started, go, rows: rows.clone() }, 8, 6).unwrap();
    // Dropped before the predictor, which would wait for its thread if the test fails.
    let on = on;
    let (sender, outputs) = channel();
    let ask = |id: usize, n: usize| {
        let values: Vec<f32> = (0..2 * n).map(|i| (100 * id + i) as f32).collect();
        let sender = sender.clone();
        let then = move |y: Result<Vec<HostTensor>>| sender.send((id, n, y)).unwrap();
        predictor.predict_batch_then(vec![HostTensor::new([n, 2], values).unwrap()], then)
    };
    // The thread takes the first and waits; the others fill the queue.
    ask(0, 1).unwrap();
    has_started.recv().unwrap();
    for (id, n) in [(1, 20), (2, 3), (3, 0), (4, 4), (5, 2), (6, 1)] {
        ask(id, n).unwrap();
    }
    assert_eq!(ask(7, 1).unwrap_err().kind(), ErrorKind::Deadline);
    drop(on);
    drop(predictor);
    drop(sender);
    let mut answered = 0;
    for (id, n, y) in outputs {
        let y = y.unwrap().remove(0);
        let right: Vec<f64> = (0..2 * n).map(|i| 2.0 * (100 * id + i) as f64).collect();
        assert_eq!((y.sizes(), y.to_f64_vec()), (&[n, 2][..], right), "request {id}");
        answered += 1;
    }
    assert_eq!(answered, 7);
    // 20 rows exceed the limit and run alone; the others run together up to 8 rows.
    assert_eq!(*rows.lock().unwrap(), [1, 20, 7, 3]);
}

#[test]
fn inputs_without_a_common_batch_dimension_run_alone() {
    let ((started, _), (_, go)) = (channel(), channel());
    let rows = Arc::<Mutex<Vec<usize>>>::default();
    let predictor = AsyncPredictor::new(Doubles { started, go, rows: rows.clone() }, 8).unwrap();
    let (sender, outputs) = channel();
    for _ in 0..3 {
        let sender = sender.clone();
        let uneven = [[2, 1], [3, 1]].map(|sizes| HostTensor::zeros(DType::F32, sizes).unwrap());
        predictor.predict_batch_then(uneven.into(), move |y| sender.send(y).unwrap()).unwrap();
    }
    drop((sender, predictor));
    assert_eq!(outputs.into_iter().map(|y| y.unwrap()[0].sizes()[0]).collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(*rows.lock().unwrap(), [2, 2, 2]);
}

/// A session with a convolution of each algorithm, their outputs, and an update of the first filter.
fn convolutions() -> (Session, Tensor, Op) {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(12), Some(12), Some(24)]));
    let y = Conv2d::new(24, 3).relu().apply(&t, "conv0", &x); // Winograd, for enough images
    let y = Conv2d::new(40, 5).stride(2).apply(&t, "conv1", &y);
    let y = Conv2d::new(7, 1).apply(&t, "conv2", &y);
    let cost = y.square().mean();
    let update = tensorpack::optim::minimize(&cost, &Sgd::new(1.0)).unwrap();
    (Session::new(graph.freeze().unwrap()).unwrap(), y, update)
}

#[test]
fn a_prediction_reads_the_current_filters() {
    let images = |n: usize| {
        let values = (0..n * 12 * 12 * 24).map(|i| (i as f32 * 0.11).sin()).collect();
        HostTensor::new([n, 12, 12, 24], values).unwrap()
    };
    let (session, y, update) = convolutions();
    let predict = |session: &Session, y: &Tensor, n: usize| {
        session.run(&[y], &[("x", &images(n))]).unwrap().swap_remove(0)
    };
    // What a new session computes with the same variables.
    let fresh = |n: usize| {
        let (other, y, _) = convolutions();
        for name in ["conv0", "conv1", "conv2"].iter().flat_map(|s| [format!("{s}/W"), format!("{s}/b")]) {
            other.write(&name, &session.read(&name).unwrap()).unwrap();
        }
        predict(&other, &y, n)
    };
    let first = predict(&session, &y, 5);
    assert_eq!(first, predict(&session, &y, 5));
    assert_eq!(predict(&session, &y, 1), fresh(1));
    // A value that is written, and one that a run writes.
    let filter = session.read("conv1/W").unwrap();
    let negative: Vec<f32> = filter.as_slice::<f32>().unwrap().iter().map(|w| -w).collect();
    session.write("conv1/W", &HostTensor::new(filter.sizes(), negative).unwrap()).unwrap();
    let second = predict(&session, &y, 5);
    assert_ne!(first, second);
    assert_eq!(second, fresh(5));
    session.run(&[&update], &[("x", &images(5))]).unwrap();
    let third = predict(&session, &y, 5);
    assert_ne!(second, third);
    assert_eq!((third, predict(&session, &y, 1)), (fresh(5), fresh(1)));
}

/// Layers that share a filter share its packed form, and a memory limit leaves no room for any.
#[test]
fn packed_filters_are_planned_once() {
    let planned = |times: usize, memory_limit: Option<usize>| {
        let graph = Graph::new();
        let t = TowerContext::inference(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(4), Some(4), Some(64)]));
        let conv = Conv2d::new(64, 3);
        let y = (0..times).fold(x, |x, _| t.auto_reuse(|t| conv.apply(t, "conv", &x)).tanh());
        let options = SessionOptions { memory_limit, ..SessionOptions::default() };
        let session = Session::with(graph.freeze().unwrap(), options).unwrap();
        session.planned_bytes(&[&y], &[("x", DType::F32, &[1, 4, 4, 64])]).unwrap()
    };
    let filter = 9 * 64 * 64 * 4;
    assert!(planned(8, None) < planned(1, None) + filter, "{} and {}", planned(1, None), planned(8, None));
    // With a limit the filter is packed into memory that other kernels use, too.
    let limited = planned(1, Some(usize::MAX / 2));
    assert!(limited <= planned(1, None), "{limited}");
}
