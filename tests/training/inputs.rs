//! Input sources, and errors of the data.

use crate::models::{Line, line};
use std::path::Path;
use tensorpack::ErrorKind;
use tensorpack::callback::ProcessTensors;
use tensorpack::dataflow::{DataFlow, Flow, FromFn, FromList};
use tensorpack::graph::UPDATE_OPS;
use tensorpack::input::{
    DummyConstantInput, FeedInput, InputSource, QueueInput, RemapInput, TensorInput, batch_queue_input,
};
use tensorpack::predict::AsyncPredictor;
use tensorpack::prelude::*;
use tensorpack::train::Trained;
use tensorpack_testing::assert_mentions;

fn on(input: impl InputSource + 'static) -> TrainConfig {
    TrainConfig::with_input(Line, input).no_logdir().max_epoch(2)
}

fn train(config: TrainConfig) -> Result<Trained> {
    launch_train_with_config(config, SimpleTrainer::new())
}

fn weight(trained: &Trained) -> HostTensor {
    trained.session.read("fc/W").unwrap()
}

#[test]
fn prefetching_does_not_change_results() {
    let feed = weight(&train(on(FeedInput::new(line(3)))).unwrap());
    for ahead in [1, 2, 50] {
        let queue = train(on(QueueInput::new(line(3)).capacity(ahead))).unwrap();
        assert_eq!(weight(&queue), feed, "{ahead} ahead");
    }
}

#[test]
fn a_queue_of_single_examples() {
    let rows: Vec<Vec<HostTensor>> = (0..12)
        .map(|i| {
            let x = vec![i as f32, 1.0, -1.0];
            vec![HostTensor::new([3], x).unwrap(), HostTensor::new([1], vec![1.0f32]).unwrap()]
        })
        .collect();
    let single = || FromList::new(rows.clone());
    let one = train(on(batch_queue_input(single(), 5))).unwrap();
    let other = train(on(FeedInput::new(single().batch(5)))).unwrap();
    assert_eq!(batch_queue_input(single(), 5).size(), Some(2));
    assert_eq!(weight(&one), weight(&other));
}

fn timing(dir: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(dir.join("timing.jsonl")).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn the_queue_size_is_a_timing_statistic() {
    let dir = tempfile::tempdir().unwrap();
    train(on(QueueInput::new(line(40)).capacity(8)).logdir(dir.path())).unwrap();
    let fill: Vec<f64> =
        timing(dir.path()).iter().map(|l| l["QueueInput/queue_size"].as_f64().unwrap()).collect();
    assert_eq!(fill.len(), 2);
    // The thread holds one more while it waits for space.
    assert!(fill.iter().all(|f| (0.0..=9.0).contains(f)), "{fill:?}");
    let stats = std::fs::read_to_string(dir.path().join("stats.jsonl")).unwrap();
    assert!(!stats.contains("queue_size"), "{stats}");
}

/// Trains on batches of 8 MB, and returns how many of them were read ahead after a pause.
fn read_ahead(queue: impl FnOnce(Flow) -> QueueInput) -> usize {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    const ROWS: usize = 500_000;
    let read = Arc::new(AtomicUsize::new(0));
    let count = read.clone();
    let flow = FromFn::new(12, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(vec![HostTensor::zeros(DType::F32, [ROWS, 3])?, HostTensor::zeros(DType::F32, [ROWS, 1])?])
    });
    let ahead = std::rc::Rc::new(std::cell::Cell::new(0));
    let seen = ahead.clone();
    let pause = ProcessTensors::new(["cost"], move |_, _| {
        // Until nothing more is read.
        let mut before = usize::MAX;
        while std::mem::replace(&mut before, read.load(Ordering::SeqCst)) != read.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        seen.set(before - 1);
        Ok(())
    });
    let config = on(queue(flow.into_flow())).callback(pause).max_epoch(1).steps_per_epoch(1);
    train(config).unwrap();
    ahead.get()
}

#[test]
fn a_queue_is_bounded_by_bytes() {
    // Five batches fit; the reader may hold one more.
    let five = read_ahead(|flow| QueueInput::new(flow).max_bytes(40_000_000));
    assert!((4..=6).contains(&five), "{five} batches of 8 MB in 40 MB");
    let two = read_ahead(|flow| QueueInput::new(flow).max_bytes(1));
    assert!((2..=3).contains(&two), "{two} batches with a limit below one batch");
    let one = read_ahead(|flow| QueueInput::new(flow).capacity(1));
    assert!((1..=2).contains(&one), "{one} batches with a capacity of one");
}

#[test]
fn constant_inputs_are_checked() {
    let input =
        |sizes: &[&[usize]]| DummyConstantInput::new(sizes.iter().map(|s| s.to_vec()).collect::<Vec<_>>());
    let trained = train(on(input(&[&[4, 3], &[4, 1]])).steps_per_epoch(3)).unwrap();
    assert_eq!(trained.session.run_index().unwrap(), 6);
    let e = train(on(input(&[&[4, 3]])).steps_per_epoch(3)).err().unwrap();
    assert_mentions(&e, &["1 inputs", "model has 2"]);
    let e = train(on(input(&[&[4, 3], &[4, 1]]))).err().unwrap();
    assert!(e.message().contains("steps per epoch is unknown"), "{e}");
}

/// A data set in the graph, with a variable for the position of the next batch.
fn in_graph() -> TensorInput {
    TensorInput::new(|t| {
        let rows = |width: usize, scale: f32| {
            let values = (0..8 * 2 * width).map(|i| (i as f32 * scale).sin()).collect();
            t.graph().constant(HostTensor::new([8, 2, width], values).unwrap())
        };
        let position = t.variable(
            VariableSpec::new("position", []).dtype(DType::I64).init(Init::zeros()).non_trainable(),
        );
        let at = position.value().cast(DType::I32);
        let pick = |data: Tensor| data.gather(&at, 0);
        let inputs = vec![pick(rows(3, 0.7)), pick(rows(1, 0.3))];
        let next = position.update(|p| {
            let next = p + 1.0;
            let wraps = next.equal(&(next.clone() * 0.0 + 8.0)).cast(DType::I64);
            &next - &wraps * 8.0
        });
        t.graph().add_op_to_collection(UPDATE_OPS, &next);
        inputs
    })
    .with_size(8)
}

#[test]
fn graph_inputs_resume_at_their_position() {
    let run = |dir: &Path, epochs: u64| {
        let config = TrainConfig::with_input(Line, in_graph()).callback(ModelSaver::new()).logdir(dir);
        train(config.steps_per_epoch(3).max_epoch(epochs)).unwrap()
    };
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at_once = run(whole.path(), 5);
    let position = |trained: &Trained| trained.session.read("position").unwrap().to_scalar().unwrap();
    assert_eq!(position(&at_once), 7.0);
    assert_eq!(position(&run(parts.path(), 3)), 1.0);
    let resumed = run(parts.path(), 5);
    assert_eq!((position(&resumed), weight(&resumed)), (7.0, weight(&at_once)));
    let stats = |dir: &Path| std::fs::read_to_string(dir.join("stats.jsonl")).unwrap();
    assert_eq!(stats(parts.path()), stats(whole.path()));
}

#[test]
fn graph_inputs_must_match_the_model() {
    let made = |make: fn(&Graph) -> Vec<Tensor>| {
        let input = TensorInput::new(move |t| make(t.graph())).with_size(1);
        train(on(input)).err().unwrap().to_string()
    };
    let e = made(|g| vec![g.constant(HostTensor::zeros(DType::F32, [4, 3]).unwrap())]);
    assert!(e.contains("1 tensors") && e.contains("2 inputs"), "{e}");
    let e = made(|g| {
        let zeros = |dtype, sizes: [usize; 2]| g.constant(HostTensor::zeros(dtype, sizes).unwrap());
        vec![zeros(DType::F32, [4, 3]), zeros(DType::F64, [4, 1])]
    });
    assert_mentions(&e, &["input y", "f32[?, 1]", "f64[4, 1]"]);
    let e = made(|g| {
        let zeros = |dtype, sizes: [usize; 2]| g.constant(HostTensor::zeros(dtype, sizes).unwrap());
        vec![zeros(DType::F32, [4, 2]), zeros(DType::F32, [4, 1])]
    });
    assert_mentions(&e, &["input x", "f32[?, 3]"]);
}

/// The components of the dataflow feed the inputs with these names, in this order.
#[test]
fn remap_input_by_name() {
    let swapped = line(3).select([1, 0]);
    let right = weight(&train(on(FeedInput::new(line(3)))).unwrap());
    let remapped = RemapInput::new(FeedInput::new(swapped), ["y", "x"]);
    assert_eq!(weight(&train(on(remapped)).unwrap()), right);
    let e = train(on(RemapInput::new(FeedInput::new(line(3)), ["x", "z"]))).err().unwrap();
    assert_mentions(&e, &["no input", "\"z\""]);
    // An input without a source must be fed.
    let only_x = RemapInput::new(FeedInput::new(line(3).select([0])), ["x"]);
    let e = train(on(only_x)).err().unwrap();
    assert!(e.message().contains("y must be fed"), "{e}");
}

/// A source without prefetching, and one with it.
fn both(flow: impl DataFlow + Clone + 'static) -> [TrainConfig; 2] {
    [on(FeedInput::new(flow.clone())), on(QueueInput::new(flow))]
}

/// Counts the finished steps.
fn counted(config: TrainConfig) -> (TrainConfig, std::rc::Rc<std::cell::Cell<u64>>) {
    let steps = std::rc::Rc::new(std::cell::Cell::new(0));
    let count = steps.clone();
    let counter = ProcessTensors::new(["cost"], move |_, _| {
        count.set(count.get() + 1);
        Ok(())
    });
    (config.callback(counter), steps)
}

#[test]
fn a_data_error_ends_training_and_names_the_sample() {
    let flow: Flow = line(5)
        .zip(FromFn::new(5, |i| match i {
            3 => Err(Error::new(ErrorKind::Data, "the file is damaged")),
            _ => Ok(vec![]),
        }))
        .into_flow();
    let mapped =
        line(5).zip(FromFn::new(5, |i| Ok(vec![HostTensor::scalar(i as f32)]))).map(
            |mut sample| match sample.pop().map(|last| last.to_scalar()) {
                Some(Ok(3.0)) => Err(Error::new(ErrorKind::Data, "the file is damaged")),
                _ => Ok(sample),
            },
        );
    for config in both(flow).into_iter().chain(both(mapped)) {
        let (config, steps) = counted(config);
        let e = train(config).err().expect("an error");
        assert!(e.message().contains("the file is damaged"), "{e}");
        assert!(e.message().contains("sample 3 of epoch 0"), "{e}");
        assert_eq!((e.kind(), steps.get()), (ErrorKind::Data, 3));
    }
}

#[test]
fn a_panic_in_a_map_is_an_error_that_names_the_sample() {
    let flow = line(5).zip(FromFn::new(5, |i| Ok(vec![HostTensor::scalar(i as f32)]))).map(|mut sample| {
        let i = sample.pop().unwrap().to_scalar()?;
        assert!(i < 2.0, "the image cannot be decoded");
        Ok(sample)
    });
    for config in both(flow) {
        let (config, steps) = counted(config);
        let e = train(config).err().expect("an error");
        assert!(
            e.message().contains("sample 2 of epoch 0")
                && e.message().contains("the image cannot be decoded"),
            "{e}"
        );
        assert_eq!((e.kind(), steps.get()), (ErrorKind::Data, 2));
    }
}

#[test]
fn an_error_names_a_sample_that_does_not_match_the_model() {
    type Change = fn(Vec<HostTensor>) -> Result<Vec<HostTensor>>;
    let cases: [(Change, &str); 4] = [
        (|sample| Ok(sample[..1].to_vec()), "it has 1 components, but the model has 2 inputs"),
        (
            |s| Ok(vec![HostTensor::zeros(DType::F64, [4, 3])?, s[1].clone()]),
            "component 0 is f64[4, 3], but input x expects f32[?, 3]",
        ),
        (|s| Ok(vec![s[1].clone(), s[0].clone()]), "component 0 is f32[4, 1], but input x expects f32[?, 3]"),
        (|s| Ok(vec![s[0].clone(), HostTensor::scalar(1.0f32)]), "but input y expects f32[?, 1]"),
    ];
    for (change, why) in cases {
        let flow =
            line(5).zip(FromFn::new(5, |i| Ok(vec![HostTensor::scalar(i as f32)]))).map(move |mut s| {
                let last = s.pop().unwrap().to_scalar()?;
                if last == 4.0 { change(s) } else { Ok(s) }
            });
        for config in both(flow) {
            let e = train(config).err().expect("an error");
            assert!(e.message().contains("sample 4 of epoch 0") && e.message().contains(why), "{e}");
        }
    }
}

#[test]
fn an_empty_dataflow_is_an_error() {
    for config in both(FromList::new(vec![])) {
        let e = train(config.steps_per_epoch(1)).err().expect("an error");
        assert!(e.message().contains("no batch"), "{e}");
    }
}

#[test]
fn data_errors_say_how_to_fix_the_data() {
    let single =
        FromFn::new(4, |_| Ok(vec![HostTensor::new([3], vec![1f32; 3])?, HostTensor::new([1], vec![1f32])?]));
    // The same for training, validation and prediction.
    let validate = |flow: Flow| {
        train(on(FeedInput::new(line(2))).callback(InferenceRunner::new(flow, [ScalarStats::new("cost")])))
    };
    let predict = |flow: Flow| {
        let predictor = OfflinePredictor::new(PredictConfig::new(Line, ["cost"])?)?;
        tensorpack::predict::DatasetPredictor::new(predictor, flow).all_results().map(|_| ())
    };
    let errors = |flow: &dyn Fn() -> Flow| {
        let trained = train(on(FeedInput::new(flow())).steps_per_epoch(2)).map(|_| ());
        let others =
            [validate(flow()).map(|_| ()), predict(flow())].map(|result| result.expect_err("an error"));
        for e in &others {
            assert!(e.site().is_some_and(|site| site.file.ends_with("inputs.rs")), "{e}");
        }
        others.into_iter().chain(trained.err())
    };
    // A sample where a batch is expected.
    for e in errors(&|| single.clone().into_flow()) {
        assert!(e.to_string().contains(".batch("), "{e}");
        assert!(e.message().contains("x") && e.message().contains("[3]"), "{e}");
    }
    // The input without a component is named.
    for e in errors(&|| line(4).select([0]).into_flow()) {
        assert!(e.to_string().contains('y'), "{e}");
    }
    // A shape that no batch dimension repairs.
    for e in errors(&|| line(4).select([1, 1]).into_flow()) {
        assert!(!e.to_string().contains(".batch("), "{e}");
    }
}

/// A model whose cost is a vector, by mistake.
struct VectorCost;

impl VectorCost {
    const LINE: u32 = line!() + 8;
}

impl ModelDesc for VectorCost {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        (Linear::new(1).apply(t, "fc", &inputs[0]) - &inputs[1]).square()
    }
    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Line.optimizer(t)
    }
}

#[test]
fn a_vector_cost_points_at_the_line_that_created_it() {
    let e = train(TrainConfig::new(VectorCost, line(2)).no_logdir().max_epoch(1)).err().expect("an error");
    assert_eq!(e.kind(), ErrorKind::Shape, "{e}");
    let site = e.site().expect("a line");
    assert!(site.file.ends_with("inputs.rs") && site.line == VectorCost::LINE, "{e}");
}

#[test]
fn a_wrong_feed_of_a_predictor_points_at_the_call() {
    let predictor = OfflinePredictor::new(PredictConfig::new(Line, ["cost"]).unwrap()).unwrap();
    let x = HostTensor::zeros(DType::F32, [4, 3]).unwrap();
    for y in [HostTensor::zeros(DType::F64, [4, 1]).unwrap(), HostTensor::zeros(DType::F32, [4, 2]).unwrap()]
    {
        let e = predictor.predict(&[&x, &y]).unwrap_err();
        let site = e.site().expect("a line");
        assert!(site.file.ends_with("inputs.rs") && site.line == line!() - 2, "{e}");
        assert!(e.message().contains('y') && e.message().contains("[4, "), "{e}");
    }
    let one = AsyncPredictor::new(predictor, 4).unwrap();
    let pending = one.predict(vec![HostTensor::scalar(1f32), HostTensor::scalar(1f32)]).unwrap();
    let e = pending.wait().unwrap_err();
    let site = e.site().expect("a line");
    assert!(site.file.ends_with("inputs.rs") && site.line == line!() - 3, "{e}");
}
