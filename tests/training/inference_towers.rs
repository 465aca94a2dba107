//! Inference on several towers: every example counts once, for any number of towers and any
//! batches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tensorpack::callback::{BinaryClassificationStats, GraphCx, Inferencer, SanityValidation, TrainCx};
use tensorpack::dataflow::{DataFlow, FromList, Seed, State};
use tensorpack::graph::Fetch;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::{TowerFunc, TowerHandle};
use tensorpack::train::{SingleCostTrainer, StepCx, Trainer};
use tensorpack_testing::assert_mentions;

/// A binary classifier on embedding rows, with all tensors that inferencers read. Batch norm
/// differs in inference.
#[derive(Clone)]
struct Classes;

const ROWS: usize = 50;

impl ModelDesc for Classes {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::i32("row", [None]), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = Embedding::new(ROWS, 6).apply(t, "table", &inputs[0]);
        let x = BatchNorm::new().relu().apply(t, "bn", &x);
        let logits = Linear::new(2).apply(t, "fc", &x);
        let chosen = logits.argmax(-1).cast(DType::I32).named("chosen");
        chosen.not_equal(&inputs[1]).cast(DType::F32).named("incorrect_vector");
        logits.sparse_softmax_cross_entropy(&inputs[1]).mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Ema::new(Adam::new(0.01), 0.9).boxed()
    }
}

/// Batches of these sizes, with distinct rows.
fn batches(sizes: &[usize]) -> FromList {
    let rng = CounterRng::new(4, "labels");
    let mut row = 0;
    let batch = |&n: &usize| {
        let rows: Vec<i32> = (row..row + n as i32).collect();
        row += n as i32;
        let labels = rows.iter().map(|&r| i32::from(rng.uniform(0, r as u64) < 0.5)).collect();
        vec![HostTensor::new([n], rows).unwrap(), HostTensor::new([n], labels).unwrap()]
    };
    FromList::new(sizes.iter().map(batch).collect())
}

/// The samples of a dataflow.
fn open(flow: &FromList) -> Vec<Vec<HostTensor>> {
    let mut reader = flow.open(Seed::new(0), &State::start()).unwrap();
    std::iter::from_fn(|| reader.read().unwrap()).collect()
}

/// Records the rows of every batch.
#[derive(Clone, Default)]
struct Rows(Arc<Mutex<Vec<i32>>>);

impl Inferencer for Rows {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        Ok(vec![tower.get_tensor("row")?])
    }
    fn start(&mut self) {
        self.0.lock().unwrap().clear();
    }
    fn batch(&mut self, values: &[HostTensor], examples: usize) -> Result<()> {
        assert_eq!(values[0].len(), examples);
        self.0.lock().unwrap().extend(values[0].as_slice::<i32>()?);
        Ok(())
    }
    fn finish(&mut self) -> Vec<(String, f64)> {
        Vec::new()
    }
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A runner with all inferencers and `towers` towers.
fn runner(sizes: &[usize], towers: usize, rows: &Rows) -> InferenceRunner {
    InferenceRunner::new(batches(sizes), [ScalarStats::new("cost")])
        .with(ClassificationError::default())
        .with(BinaryClassificationStats::new("chosen", "label"))
        .with(rows.clone())
        .towers(towers)
}

const STATISTICS: [&str; 4] =
    ["validation_cost", "validation_error", "validation_precision", "validation_recall"];

fn config() -> TrainConfig {
    TrainConfig::new(Classes, batches(&[8, 8, 8])).steps_per_epoch(3).max_epoch(2).no_logdir()
}

/// Returns the bits of the statistics after two epochs, and the rows in the order of the batches.
fn found(
    runner: impl Callback + 'static,
    rows: &Rows,
    trainer: impl Into<SingleCostTrainer>,
) -> Result<([u64; 4], Vec<i32>)> {
    let trained = launch_train_with_config(config().callback(runner), trainer)?;
    let bits = STATISTICS.map(|name| trained.monitors.latest(name).unwrap().to_bits());
    Ok((bits, rows.0.lock().unwrap().clone()))
}

/// Batch sizes: multiples of the number of towers or not, full or not, some empty.
const CASES: [&[usize]; 6] =
    [&[4, 4, 4, 4, 4, 4], &[4, 4, 4, 4, 4, 4, 1], &[5], &[4, 4, 4, 2], &[4, 4, 4, 0], &[3, 0, 0, 2, 4]];

#[test]
fn every_example_counts_once_on_any_number_of_towers() {
    for sizes in CASES {
        let rows = Rows::default();
        let one = found(runner(sizes, 1, &rows), &rows, SimpleTrainer::new()).unwrap();
        assert_eq!(one.1, (0..sizes.iter().sum::<usize>() as i32).collect::<Vec<_>>(), "{sizes:?}");
        assert!(one.0.iter().all(|bits| f64::from_bits(*bits).is_finite()), "{sizes:?}");
        for towers in [2, 3, 5] {
            let several = found(runner(sizes, towers, &rows), &rows, SimpleTrainer::new()).unwrap();
            assert_eq!(several, one, "{towers} towers, {sizes:?}");
        }
    }
}

/// Random batch sizes, including empty batches.
#[test]
fn batches_of_any_sizes() {
    let rng = CounterRng::new(12, "sizes");
    for case in 0..6 {
        let sizes: Vec<usize> =
            (0..1 + case).map(|i| (rng.uniform(case, i) * 7.0) as usize).chain([1]).collect();
        let towers = 2 + (rng.uniform(100, case) * 6.0) as usize;
        let rows = Rows::default();
        let one = found(runner(&sizes, 1, &rows), &rows, SimpleTrainer::new()).unwrap();
        assert_eq!(one.1.len(), sizes.iter().sum::<usize>());
        let several = found(runner(&sizes, towers, &rows), &rows, SimpleTrainer::new()).unwrap();
        assert_eq!(several, one, "{towers} towers, {sizes:?}");
    }
}

#[test]
fn inference_and_training_towers_are_independent() {
    let (sizes, rows) = ([4, 4, 4, 4, 3], Rows::default());
    let check = |of: &dyn Fn(InferenceRunner) -> Result<([u64; 4], Vec<i32>)>, what: &str| {
        let one = of(runner(&sizes, 1, &rows)).unwrap();
        let three = of(runner(&sizes, 3, &rows)).unwrap();
        assert_eq!(three, one, "{what}");
    };
    check(&|r| found(r, &rows, SyncMultiGpuTrainerReplicated::new(2)), "two training towers");
    check(&|r| found(r, &rows, SyncMultiGpuTrainerParameterServer::new(3)), "three training towers");
    check(&|r| found(r, &rows, NoOpTrainer::new()), "no training");
    check(&|r| found(r.on_ema(), &rows, SimpleTrainer::new()), "averages");
    check(&|r| found(SanityValidation::new(r).batches(2), &rows, SimpleTrainer::new()), "tried before");
}

/// A custom trainer with a tower function.
#[test]
fn any_trainer_with_a_tower_function_can_run_inference() {
    let rows = Rows::default();
    let statistics = |towers: usize| {
        let graph = Graph::new();
        let mut tower =
            TowerFunc::new(Classes.inputs(), |t, inputs| vec![Classes.build_graph(t, inputs)]).unwrap();
        let t = TowerContext::training(&graph);
        let inputs: Vec<Tensor> = Classes.inputs().iter().map(|spec| graph.placeholder(spec)).collect();
        tower.train(&t, &inputs).unwrap();
        let config = RunConfig::new().steps_per_epoch(1).max_epoch(1).no_logdir();
        let config = config.callback(runner(&[4, 4, 3], towers, &rows));
        let nothing = |_: &mut StepCx<'_>| Ok(());
        let trained = Trainer::new(&graph).with_tower_func(tower).train(config, nothing).unwrap();
        STATISTICS.map(|name| trained.monitors.latest(name).unwrap().to_bits())
    };
    assert_eq!(statistics(2), statistics(1));
    let nothing = |_: &mut StepCx<'_>| Ok(());
    let config = RunConfig::new().steps_per_epoch(1).max_epoch(1).no_logdir();
    let config = config.callback(runner(&[4], 2, &rows));
    let e = Trainer::new(&Graph::new()).train(config, nothing).err().unwrap();
    assert_mentions(&e, &["InferenceTower", "tower function"]);
}

/// A custom callback that builds a tower and runs it.
#[test]
fn a_callback_can_build_its_own_tower() {
    #[derive(Default)]
    struct Own {
        cost: Option<Fetch>,
        averaged: Option<Fetch>,
    }
    impl Callback for Own {
        fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
            self.cost = Some(Fetch::from(&g.inference_tower("Own")?.get_tensor("cost")?));
            let t = TowerContext::inference(g.graph()).averaged();
            let tower = g.tower_func("Averaged")?.infer_in(&t, "Averaged")?;
            self.averaged = Some(Fetch::from(&tower.get_tensor("cost")?));
            Ok(())
        }
        fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
            let batch = open(&batches(&[5])).remove(0);
            for (name, what) in [("Own", &self.cost), ("Averaged", &self.averaged)] {
                let names = [format!("{name}/row"), format!("{name}/label")];
                let feeds = [(names[0].as_str(), &batch[0]), (names[1].as_str(), &batch[1])];
                let what = what.as_ref().unwrap();
                let cost = cx.session().run(&[what], &feeds)?[0].to_scalar()?;
                cx.put_scalar(name, cost);
            }
            Ok(())
        }
    }
    let five = |name: &str| InferenceRunner::new(batches(&[5]), [ScalarStats::new("cost").prefix(name)]);
    let config = config()
        .callback(five("plain"))
        .callback(five("averaged").tower_name("Ema").on_ema())
        .callback(Own::default());
    let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let found = |name: &str| trained.monitors.latest(name).unwrap();
    assert_eq!((found("Own"), found("Averaged")), (found("plain_cost"), found("averaged_cost")));
    assert_ne!(found("Own"), found("Averaged"));
}

/// Inference changes nothing in training.
#[test]
fn inference_towers_do_not_affect_training() {
    let weights = |runner: Option<InferenceRunner>| {
        let config = runner.into_iter().fold(config(), TrainConfig::callback);
        let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
        let names = trained.session.graph().variables().iter().map(|v| v.name.clone());
        names.map(|n| (n.clone(), trained.session.read(&n).unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(weights(Some(runner(&[4, 4, 4], 2, &Rows::default()))), weights(None));
}

#[test]
fn an_error_names_its_tower() {
    let rows = Rows::default();
    let fails = |flow: FromList, towers: usize| {
        let runner = InferenceRunner::new(flow, [ScalarStats::new("cost")]).with(rows.clone()).towers(towers);
        let e = launch_train_with_config(config().callback(runner), SimpleTrainer::new()).err().unwrap();
        e.to_string()
    };
    let batch = |rows: [i32; 2], labels: usize| {
        let labels = HostTensor::new([labels], vec![0i32; labels]).unwrap();
        vec![HostTensor::new([2], rows.to_vec()).unwrap(), labels]
    };
    let good = || batch([0, 1], 2);
    // The fourth batch has an invalid row: it is in the second run, on the second tower.
    let list = vec![good(), good(), good(), batch([1, 99], 2), good()];
    let e = fails(FromList::new(list.clone()), 2);
    assert!(e.contains("batches 2 to 3: InferenceTower1/table"), "{e}");
    assert!(e.contains("99") && e.contains(file!()), "{e}");
    let e = fails(FromList::new(list), 1);
    assert!(e.contains("batch 3: InferenceTower/table"), "{e}");
    // One row too few, and one component too few.
    let e = fails(FromList::new(vec![good(), good(), batch([0, 1], 1)]), 3);
    assert!(e.contains("batches 0 to 2: InferenceTower2/"), "{e}");
    let e = fails(FromList::new(vec![good(), good()[..1].to_vec()]), 2);
    assert_mentions(&e, &["batches 0 to 1", "tower 1", "1 components", "has 2"]);
    for nothing in [vec![], vec![vec![HostTensor::new([0], Vec::<i32>::new()).unwrap(); 2]]] {
        let e = fails(FromList::new(nothing), 2);
        assert!(e.contains("the dataflow is empty"), "{e}");
    }
    let carrying = runner(&[4], 2, &rows).with_updates();
    let e = launch_train_with_config(config().callback(carrying), SimpleTrainer::new()).err().unwrap();
    assert!(e.to_string().contains("updates") && e.to_string().contains("one tower"), "{e}");
    let e = fails(FromList::new(vec![good()]), 33);
    assert!(e.contains("InferenceTower: 33 towers have 66 inputs") && e.contains("at most 64"), "{e}");
    let e = fails(FromList::new(vec![good()]), 0);
    assert_mentions(&e, &["InferenceTower", "at least one tower"]);
}

/// Runs on two towers take two batches each: both are read before inferencers see the first.
#[test]
fn a_run_takes_a_batch_for_each_tower() {
    /// The number of batches read whenever an inferencer sees one.
    struct Ahead(Arc<AtomicU64>, Arc<Mutex<Vec<u64>>>);
    impl Inferencer for Ahead {
        fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
            Ok(vec![tower.get_tensor("cost")?])
        }
        fn start(&mut self) {
            self.0.store(0, Ordering::Relaxed);
            self.1.lock().unwrap().clear();
        }
        fn batch(&mut self, _: &[HostTensor], _: usize) -> Result<()> {
            self.1.lock().unwrap().push(self.0.load(Ordering::Relaxed));
            Ok(())
        }
        fn finish(&mut self) -> Vec<(String, f64)> {
            Vec::new()
        }
        fn names(&self) -> Vec<String> {
            Vec::new()
        }
    }
    let (read, seen): (Arc<AtomicU64>, Arc<Mutex<Vec<u64>>>) = Default::default();
    let counter = read.clone();
    let flow = batches(&[2, 2, 2, 2, 2]).map(move |sample| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(sample)
    });
    let runner = InferenceRunner::new(flow, [Ahead(read, seen.clone())]).towers(2);
    launch_train_with_config(config().callback(runner), SimpleTrainer::new()).unwrap();
    assert_eq!(*seen.lock().unwrap(), [2, 2, 4, 4, 5]);
}

/// Two runners with different tower names.
#[test]
fn two_runners_need_two_names() {
    let rows = Rows::default();
    let both = |second: InferenceRunner| {
        let config = config().callback(runner(&[4, 3], 2, &rows)).callback(second);
        launch_train_with_config(config, SimpleTrainer::new())
    };
    let again =
        || InferenceRunner::new(batches(&[4, 3]), [ScalarStats::new("cost").prefix("again")]).towers(3);
    let e = both(again()).err().unwrap();
    assert!(e.message().contains("\"InferenceTower0\" already exists"), "{e}");
    let trained = both(again().tower_name("Again")).unwrap();
    assert_eq!(trained.monitors.latest("again_cost"), trained.monitors.latest("validation_cost"));
}

/// The first three batches on two towers: two, then one.
#[test]
fn sanity_validation_limits_the_number_of_batches() {
    struct Seen(Rows, Arc<Mutex<Vec<i32>>>);
    impl Callback for Seen {
        fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
            if cx.epoch_num == 1 {
                *self.1.lock().unwrap() = self.0.0.lock().unwrap().clone();
            }
            Ok(())
        }
    }
    let (rows, seen) = (Rows::default(), Arc::default());
    let tried = SanityValidation::new(runner(&[2, 2, 2, 2], 2, &rows)).batches(3);
    let config = config().callback(tried).callback(Seen(rows, Arc::clone(&seen)));
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
}
