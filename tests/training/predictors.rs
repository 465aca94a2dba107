//! Predictors: the trained model, rebuilt for inference.

use crate::models::{Line, line};
use std::time::{Duration, Instant};
use tensorpack::ErrorKind;
use tensorpack::dataflow::{DataFlow, FromList};
use tensorpack::io::SaverRestore;
use tensorpack::predict::AsyncPredictor;
use tensorpack::prelude::*;
use tensorpack_testing::assert_mentions;

#[test]
fn a_predictor_of_the_trained_model_and_one_of_its_checkpoint_agree() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig::new(Line, line(8)).callback(ModelSaver::new()).logdir(dir.path()).max_epoch(40);
    let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let online = trained.get_predictor(&["x"], &["fc/Add"]).unwrap();
    let x = HostTensor::new([2, 3], vec![1.0f32, 0.0, 0.0, 0.0, 1.0, 0.0]).unwrap();
    let y = online.predict(&[&x]).unwrap().remove(0);
    let (a, b) = (y.to_f64_vec()[0], y.to_f64_vec()[1]);
    // The line is x0 - 2 x1 + x2 / 2.
    assert!((a - 1.0).abs() < 0.1 && (b + 2.0).abs() < 0.1, "{y:?}");
    let config = PredictConfig::new(Line, ["fc/Add"]).unwrap().inputs(["x"]);
    let offline = OfflinePredictor::new(config.session_init(SaverRestore::new(dir.path()))).unwrap();
    assert_eq!(offline.predict(&[&x]).unwrap()[0], y);
}

#[test]
fn the_names_of_a_predictor_are_checked() {
    let e = OfflinePredictor::new(PredictConfig::new(Line, ["nothing"]).unwrap()).err().unwrap();
    assert_mentions(&e, &["\"nothing\""]);
    let none: [&str; 0] = [];
    assert!(OfflinePredictor::new(PredictConfig::new(Line, none).unwrap()).is_err());
    let p = OfflinePredictor::new(PredictConfig::new(Line, ["cost"]).unwrap()).unwrap();
    assert!(p.predict(&[]).unwrap_err().message().contains("takes 2 inputs (x, y)"));
}

#[test]
fn single_examples_from_many_threads_get_their_own_answers() {
    let config = || PredictConfig::new(Line, ["fc/Add"]).unwrap().inputs(["x"]);
    let (alone, together) =
        (OfflinePredictor::new(config()).unwrap(), OfflinePredictor::new(config()).unwrap());
    let together = AsyncPredictor::new(together, 8).unwrap();
    let ask = |thread: usize| {
        let example =
            |i: usize| (0..3).map(|k| ((thread * 100 + i * 3 + k) as f32).sin()).collect::<Vec<f32>>();
        let one = |i| together.predict(vec![HostTensor::new([3], example(i)).unwrap()]).unwrap();
        let pending: Vec<_> = (0..40).map(one).collect();
        pending.into_iter().enumerate().map(|(i, p)| (example(i), p.wait().unwrap())).collect::<Vec<_>>()
    };
    let answers: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|t| s.spawn(move || ask(t))).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(answers.len(), 160);
    for (x, y) in answers {
        let wanted = alone.predict(&[&HostTensor::new([1, 3], x).unwrap()]).unwrap().remove(0).to_f64_vec();
        assert_eq!(y[0].sizes(), [1]);
        assert!((y[0].to_f64_vec()[0] - wanted[0]).abs() < 1e-5, "{y:?} for {wanted:?}");
    }
}

/// Blocks every batch until it is released, and records its size.
struct Slow {
    go: std::sync::mpsc::Receiver<()>,
    sizes: std::sync::Arc<std::sync::Mutex<Vec<usize>>>,
}

impl Predictor for Slow {
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        let _ = self.go.recv();
        self.sizes.lock().unwrap().push(inputs[0].sizes()[0]);
        match inputs[0].to_f64_vec().contains(&-1.0) {
            true => Err(Error::argument("no negative numbers")),
            false => Ok(vec![inputs[0].clone()]),
        }
    }
}

#[test]
fn waiting_examples_form_one_batch_and_errors_reach_their_callers() {
    let (on, go) = std::sync::mpsc::channel();
    let sizes = std::sync::Arc::default();
    let slow = AsyncPredictor::new(Slow { go, sizes: std::sync::Arc::clone(&sizes) }, 3).unwrap();
    let ask = |v: f32| slow.predict(vec![HostTensor::scalar(v)]).unwrap();
    // The first example is taken alone or with some that follow; the queue holds the rest.
    let pending: Vec<_> = [1.0, 2.0, -1.0, 3.0, 4.0, 5.0].map(ask).into();
    let other = slow.predict(vec![HostTensor::new([2], vec![6.0f32, 7.0]).unwrap()]).unwrap();
    drop(on);
    let answers: Vec<_> = pending.into_iter().map(|p| p.wait().map(|y| y[0].to_f64_vec()[0])).collect();
    let found: Vec<_> = answers.iter().map(|a| a.as_ref().ok().copied()).collect();
    assert_eq!(found, [Some(1.0), Some(2.0), None, Some(3.0), Some(4.0), Some(5.0)]);
    assert!(answers[2].as_ref().unwrap_err().message().contains("no negative"));
    assert_eq!(other.wait().unwrap()[0].sizes(), [2]);
    drop(slow);
    let sizes = sizes.lock().unwrap();
    assert!(sizes.iter().all(|&n| n <= 3) && sizes.iter().any(|&n| n > 1), "{sizes:?}");
    assert!(
        AsyncPredictor::new(OfflinePredictor::new(PredictConfig::new(Line, ["cost"]).unwrap()).unwrap(), 0)
            .is_err()
    );
}

/// Two outputs of the line.
fn line_config() -> PredictConfig {
    PredictConfig::new(Line, ["fc/Add", "cost"]).unwrap()
}

/// The line, in batches of 4, 4, 4, 4, 2 and 0 examples.
fn ragged() -> FromList {
    let mut batches: Vec<Vec<HostTensor>> = (0..4u64).map(|i| batch(i, 4)).collect();
    batches.extend([batch(4, 2), batch(5, 0)]);
    FromList::new(batches)
}

fn batch(seed: u64, rows: usize) -> Vec<HostTensor> {
    let part = |width: usize| {
        let values = (0..rows * width).map(|i| (seed as f32 + i as f32).sin()).collect::<Vec<f32>>();
        HostTensor::new([rows, width], values).unwrap()
    };
    vec![part(3), part(1)]
}

/// Towers share one set of variables and run one batch each at the same time.
#[test]
fn several_towers_predict_the_same_as_one() {
    let one = OfflinePredictor::new(line_config()).unwrap();
    let batches: Vec<Vec<HostTensor>> = (0..5u64).map(|i| batch(i, 1 + i as usize)).collect();
    let right = one.predict_batches(&batches).unwrap();
    assert_eq!((right.len(), one.towers()), (5, 1));
    for towers in [1, 2, 3, 5, 8] {
        let several = MultiTowerOfflinePredictor::new(line_config(), towers).unwrap();
        assert_eq!(several.towers(), towers);
        assert_eq!(several.predict_batches(&batches).unwrap(), right, "{towers} towers");
        assert_eq!(several.predict(&batches[4].iter().collect::<Vec<_>>()).unwrap(), right[4]);
        assert_eq!(several.predict_batches(&[]).unwrap(), Vec::<Vec<HostTensor>>::new());
        let names = several.session().graph().variables().iter().map(|v| v.name.clone());
        assert_eq!(names.collect::<Vec<_>>(), ["fc/W", "fc/b"], "towers share variables");
    }
    // All towers read a variable that is written once.
    let several = MultiTowerOfflinePredictor::new(line_config(), 3).unwrap();
    several.session().write("fc/b", &HostTensor::new([1], vec![100.0f32]).unwrap()).unwrap();
    let moved = several.predict_batches(&batches).unwrap();
    assert!(moved.iter().all(|outputs| outputs[0].to_f64_vec().iter().all(|y| *y > 50.0)));
}

#[test]
fn errors_of_predictors_with_several_towers() {
    let e = MultiTowerOfflinePredictor::new(line_config(), 0).err().unwrap();
    assert!(e.message().contains("at least one tower"), "{e}");
    let e = MultiTowerOfflinePredictor::new(line_config().inputs(["z"]), 2).err().unwrap();
    assert!(e.message().contains("no input named \"z\""), "{e}");
    let none: [&str; 0] = [];
    let e = MultiTowerOfflinePredictor::new(PredictConfig::new(Line, none).unwrap(), 2).err().unwrap();
    assert!(e.message().contains("at least one output"), "{e}");
    let two = MultiTowerOfflinePredictor::new(line_config(), 2).unwrap();
    let e = two.predict_batches(&[batch(0, 2), batch(0, 2)[..1].to_vec()]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data);
    assert_mentions(&e, &["tower 1", "1 components"]);
    let wide =
        vec![HostTensor::zeros(DType::F32, [2, 4]).unwrap(), HostTensor::zeros(DType::F32, [2, 1]).unwrap()];
    let e = two.predict_batches(&[batch(0, 2), wide]).unwrap_err();
    assert!(e.message().contains("tower1/x") && e.message().contains("[2, 4]"), "{e}");
}

/// For any predictor, in the order of the data.
#[test]
fn an_entire_dataflow_is_predicted_in_order() {
    let config = || PredictConfig::new(Line, ["fc/Add"]).unwrap().inputs(["x"]);
    let flow = || ragged().select([0]);
    let one = DatasetPredictor::new(OfflinePredictor::new(config()).unwrap(), flow());
    let right = one.all_results().unwrap();
    let rows = right.iter().map(|outputs| outputs[0].sizes()[0]);
    assert_eq!(rows.collect::<Vec<_>>(), [4, 4, 4, 4, 2, 0]);
    for towers in [1, 2, 4, 7] {
        let predictor = MultiTowerOfflinePredictor::new(config(), towers).unwrap();
        let several = DatasetPredictor::new(predictor, flow());
        assert_eq!(several.all_results().unwrap(), right, "{towers} towers");
        // Every pass starts over.
        let first = several.results().unwrap().take(2).collect::<Result<Vec<_>>>().unwrap();
        assert_eq!(first, right[..2]);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("line.safetensors");
    OfflinePredictor::new(config()).unwrap().export(&path).unwrap();
    let exported = DatasetPredictor::new(ExportedModel::load(&path).unwrap(), flow());
    assert_eq!(exported.all_results().unwrap(), right);
}

#[test]
fn an_error_ends_the_predictions_of_a_dataflow() {
    let list = vec![batch(0, 2), batch(1, 2), batch(2, 2), batch(3, 2)[..1].to_vec(), batch(4, 2)];
    let predictor = MultiTowerOfflinePredictor::new(line_config(), 2).unwrap();
    let all = DatasetPredictor::new(predictor, FromList::new(list));
    let results: Vec<_> = all.results().unwrap().collect();
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false]);
    let e = results[2].as_ref().unwrap_err();
    assert_mentions(e, &["batches 2 to 3", "tower 1", "1 components"]);
    assert!(all.all_results().is_err());
}

/// Waiting examples are distributed over the towers of a predictor, and every caller gets its own
/// result.
#[test]
fn single_examples_are_distributed_over_towers() {
    let line = || PredictConfig::new(Line, ["fc/Add"]).unwrap().inputs(["x"]);
    let one = OfflinePredictor::new(line()).unwrap();
    let several = MultiTowerOfflinePredictor::new(line(), 3).unwrap();
    let predictor = AsyncPredictor::new(several, 4).unwrap();
    let example = |i: u64| batch(i, 1)[0].clone();
    let row = |x: &HostTensor| HostTensor::new([3], x.as_slice::<f32>().unwrap().to_vec()).unwrap();
    let pending: Vec<_> = (0..30).map(|i| predictor.predict(vec![row(&example(i))]).unwrap()).collect();
    for (i, answer) in pending.into_iter().enumerate() {
        let right = &one.predict(&[&example(i as u64)]).unwrap()[0];
        let answer = &answer.wait().unwrap()[0];
        assert_eq!(answer.sizes(), [1]);
        let off = (answer.to_f64_vec()[0] - right.to_f64_vec()[0]).abs();
        assert!(off < 1e-5, "example {i} differs by {off}");
    }

    /// Two towers that record their numbers of examples.
    struct Two {
        go: std::sync::mpsc::Receiver<()>,
        shares: std::sync::Arc<std::sync::Mutex<Vec<Vec<usize>>>>,
    }
    impl Predictor for Two {
        fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
            Ok(inputs.iter().copied().cloned().collect())
        }
        fn towers(&self) -> usize {
            2
        }
        fn predict_batches(&self, batches: &[Vec<HostTensor>]) -> Result<Vec<Vec<HostTensor>>> {
            let _ = self.go.recv();
            self.shares.lock().unwrap().push(batches.iter().map(|b| b[0].sizes()[0]).collect());
            Ok(batches.to_vec())
        }
    }
    let (on, go) = std::sync::mpsc::channel();
    let shares = std::sync::Arc::default();
    let two = AsyncPredictor::new(Two { go, shares: std::sync::Arc::clone(&shares) }, 4).unwrap();
    let pending: Vec<_> = (0..20).map(|i| two.predict(vec![HostTensor::scalar(i as f32)]).unwrap()).collect();
    drop(on);
    let answers = pending.into_iter().map(|p| p.wait().unwrap()[0].to_scalar().unwrap());
    assert_eq!(answers.collect::<Vec<_>>(), (0..20).map(f64::from).collect::<Vec<_>>());
    drop(two);
    let shares = shares.lock().unwrap();
    // The first call takes what is queued by then; the next finds at least eight examples, four per
    // tower.
    assert_eq!(shares[1], [4, 4], "{shares:?}");
    assert_eq!(shares.iter().flatten().sum::<usize>(), 20);
    assert!(shares.iter().flatten().all(|&n| n <= 4), "{shares:?}");
}

/// Waits for a stuck predictor end after the deadline: for outputs, for space, and on drop.
#[test]
fn waits_for_a_stuck_predictor_have_a_deadline() {
    let (_never, go) = std::sync::mpsc::channel();
    let slow = Slow { go, sizes: std::sync::Arc::default() };
    let stuck = AsyncPredictor::new(slow, 1).unwrap().deadline(Duration::from_millis(300));
    let start = Instant::now();
    let e = stuck.predict(vec![HostTensor::scalar(1f32)]).unwrap().wait().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Deadline, "{e}");
    assert!(e.message().contains("outputs") && e.message().contains("0.3 s"), "{e}");
    let e = (0..200).find_map(|_| stuck.predict(vec![HostTensor::scalar(1f32)]).err()).expect("a full queue");
    assert_eq!(e.kind(), ErrorKind::Deadline, "{e}");
    assert!(e.message().contains("queue"), "{e}");
    drop(stuck);
    assert!(start.elapsed() > Duration::from_millis(900) && start.elapsed() < Duration::from_secs(20));
}

/// A predictor that takes its time, but not too much for one batch.
struct Steady;

impl Predictor for Steady {
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        std::thread::sleep(Duration::from_millis(150));
        Ok(vec![inputs[0].clone()])
    }
}

#[test]
fn the_deadline_of_a_predictor_counts_from_its_last_batch() {
    let deadline = Duration::from_secs(1);
    let steady = AsyncPredictor::new(Steady, 1).unwrap().deadline(deadline);
    let start = Instant::now();
    let pending: Vec<_> =
        (0..10).map(|i| steady.predict(vec![HostTensor::scalar(i as f32)]).unwrap()).collect();
    // The last one first: it waits for all.
    for (i, pending) in pending.into_iter().enumerate().rev() {
        assert_eq!(pending.wait().unwrap()[0].to_scalar().unwrap(), i as f64);
    }
    assert!(start.elapsed() > deadline);
}
