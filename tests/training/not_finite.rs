//! Non-finite costs never update variables.

use crate::models::{Line, line};
use tensorpack::ErrorKind;
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::prelude::*;
use tensorpack::train::{NanPolicy, Trained};

/// Returns batches of the line; those with the numbers in `bad` overflow f32 when squared.
fn broken(n: usize, bad: &'static [u64]) -> impl DataFlow {
    let number = FromFn::new(n as u64, |i| Ok(vec![HostTensor::scalar(i as f32)]));
    line(n).zip(number).map(|mut sample| {
        let i = sample.pop().expect("a number").to_scalar()? as u64;
        if bad.contains(&i) {
            sample[0].as_mut_slice::<f32>()?[5] = 1e30;
        }
        Ok(sample)
    })
}

fn train(bad: &'static [u64], policy: NanPolicy) -> Result<Trained> {
    let config = TrainConfig::new(Line, broken(8, bad)).no_logdir().nan_policy(policy).max_epoch(1);
    launch_train_with_config(config, SimpleTrainer::new())
}

#[test]
fn training_stops_and_names_the_tensor_and_the_step() {
    for result in [
        train(&[4], NanPolicy::Stop),
        // The default.
        launch_train_with_config(
            TrainConfig::new(Line, broken(8, &[4])).no_logdir().max_epoch(1),
            SimpleTrainer::new(),
        ),
    ] {
        let e = result.err().expect("an error");
        assert_eq!(e.kind(), ErrorKind::NotFinite);
        assert!(e.message().starts_with("step 5: "), "{e}");
        assert!(e.message().contains("Square"), "{e}");
        assert!(e.site().is_some_and(|s| s.file.ends_with("models.rs")), "{e}");
    }
}

/// [`Line`] with a learning rate that is far too high.
struct Diverges;

impl ModelDesc for Diverges {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Line.build_graph(t, inputs)
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(300.0).boxed()
    }
}

#[test]
fn a_cost_that_grew_suggests_a_smaller_learning_rate() {
    let config = TrainConfig::new(Diverges, line(8)).no_logdir().max_epoch(99);
    let e = launch_train_with_config(config, SimpleTrainer::new()).err().expect("an error");
    assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
    assert!(e.to_string().contains("learning rate") && e.to_string().contains("the cost grew from"), "{e}");
    // A single bad batch gives no such hint.
    let e = train(&[4], NanPolicy::Stop).err().expect("an error");
    assert!(!e.to_string().contains("learning rate"), "{e}");
}

/// Skipping a step is equivalent to leaving out its batch.
#[test]
fn skipped_steps_change_nothing_and_are_counted() {
    let skipped = train(&[1, 2, 5], NanPolicy::Skip(2)).unwrap();
    let good = line(8).zip(FromFn::new(8, |i| Ok(vec![HostTensor::scalar(i as f32)])));
    let good = good.filter(|sample| Ok(![1.0, 2.0, 5.0].contains(&sample[2].to_scalar()?))).select([0, 1]);
    let config = TrainConfig::new(Line, good).no_logdir().steps_per_epoch(5).max_epoch(1);
    let without = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    for name in ["fc/W", "fc/b"] {
        assert_eq!(skipped.session.read(name).unwrap(), without.session.read(name).unwrap());
    }
    // Skipped steps count, and draw their own random numbers.
    assert_eq!(skipped.session.run_index().unwrap(), 8);
}

#[test]
fn too_many_in_a_row_end_training() {
    assert!(train(&[1, 2, 4, 5], NanPolicy::Skip(2)).is_ok());
    let e = train(&[1, 3, 4, 5], NanPolicy::Skip(2)).err().expect("an error");
    assert_eq!(e.kind(), ErrorKind::NotFinite);
    assert!(e.message().starts_with("step 6: "), "{e}");
    assert!(train(&[3], NanPolicy::Skip(0)).is_err());
}

/// The checkpoint stores the number of skipped steps, in total and in a row.
#[test]
fn skipped_steps_are_saved() {
    let dir = tempfile::tempdir().unwrap();
    let config = |epochs: u64| {
        TrainConfig::new(Line, broken(8, &[1, 2, 3]))
            .callback(ModelSaver::new())
            .nan_policy(NanPolicy::Skip(2))
            .logdir(dir.path())
            .steps_per_epoch(3)
            .max_epoch(epochs)
    };
    launch_train_with_config(config(1), SimpleTrainer::new()).unwrap();
    let state = std::fs::read_to_string(dir.path().join("checkpoints/step-0000000003/state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    assert_eq!(state["skipped_steps"], 2, "{state}");
    let e = launch_train_with_config(config(2), SimpleTrainer::new()).err().expect("an error");
    assert!(e.message().starts_with("step 4: "), "{e}");
}
