//! Training in which the update of one step overflows, on any device.

use tensorpack::ErrorKind;
use tensorpack::dataflow::FromFn;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::train::{NanPolicy, SingleCostTrainer, Trained};

/// A model whose cost is always 0 and whose gradient is the input.
struct Fed;

impl ModelDesc for Fed {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [Some(3)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let w = t.variable(VariableSpec::new("w", [3]));
        ((w.value() - w.value().stop_gradient()) * &inputs[0]).sum().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(0.1).boxed()
    }
}

/// A gradient for each tower and step; in step `bad` the last tower has one whose square is too
/// large for f32.
fn gradients(towers: u64, bad: Option<u64>) -> FromFn {
    FromFn::new(8 * towers, move |i| {
        let is_bad = bad.is_some_and(|bad| i == bad * towers + towers - 1);
        let large = if is_bad { 1e25 } else { 0.25 };
        HostTensor::new([3], vec![(i as f32).sin(), large, 1.0]).map(|x| vec![x])
    })
}

/// A model whose cost is infinite if its input is 0.
struct Quotient;

impl ModelDesc for Quotient {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("divisor", [])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let w = t.variable(VariableSpec::new("w", []).init(Init::Constant(1.0)));
        (w.value() / &inputs[0]).named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(0.1).boxed()
    }
}

/// A trainer and device for `Fed`.
pub(crate) struct Setup {
    pub(crate) device: Device,
    pub(crate) towers: u64,
    pub(crate) trainer: fn(usize) -> SingleCostTrainer,
}

impl Setup {
    fn config(&self, bad: Option<u64>) -> TrainConfig {
        TrainConfig::new(Fed, gradients(self.towers, bad))
            .session(SessionOptions { device: self.device, ..SessionOptions::default() })
            .steps_per_epoch(2)
            .max_epoch(4)
    }

    fn train(&self, config: TrainConfig) -> Result<Trained> {
        launch_train_with_config(config, (self.trainer)(self.towers as usize))
    }

    /// Checks that training stops at the step, and that the error names the variable that would
    /// overflow.
    pub(crate) fn stops(&self) {
        let e = self.train(self.config(Some(4)).no_logdir()).err().expect("an error");
        assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
        assert!(e.message().starts_with("step 5: "), "{e}");
        assert!(e.message().contains("the variable w/adam_v "), "{e}");
    }

    /// Checks that the error names the cost of the tower that has the bad batch, and not what another
    /// tower computes from the sum of their gradients.
    pub(crate) fn names_the_tower(&self) {
        for tower in 0..self.towers {
            let bad = self.towers + tower;
            let divisor = move |i| Ok(vec![HostTensor::scalar(if i == bad { 0f32 } else { 1.0 })]);
            let config = TrainConfig::new(Quotient, FromFn::new(4 * self.towers, divisor))
                .session(SessionOptions { device: self.device, ..SessionOptions::default() })
                .max_epoch(1)
                .no_logdir();
            let e = self.train(config).err().expect("an error");
            assert!(e.message().starts_with(&format!("step 2: tower{tower}/cost is not finite")), "{e}");
        }
    }

    /// Checks that a skipped step changes nothing.
    pub(crate) fn skips(&self) {
        let policy = |most| self.config(Some(7)).nan_policy(NanPolicy::Skip(most)).no_logdir();
        assert!(self.train(policy(0)).is_err());
        let skipped = self.train(policy(1)).unwrap();
        // The eighth and last step is the bad one.
        let config = self.config(None).steps_per_epoch(7).max_epoch(1).no_logdir();
        let without = self.train(config).unwrap();
        for v in without.session.graph().variables() {
            let [a, b] = [&skipped, &without].map(|t| t.session.read(&v.name).unwrap());
            assert!(a == b, "{} is {a:?} after a skipped step, {b:?} without it", v.name);
        }
        assert_eq!(skipped.session.run_index().unwrap(), 8);
    }

    /// Checks that the last checkpoint before the step remains, and that training resumes from it
    /// as if nothing had happened.
    pub(crate) fn keeps_the_last_checkpoint(&self) {
        let (broken, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config =
            |bad, dir: &tempfile::TempDir| self.config(bad).callback(ModelSaver::new()).logdir(dir.path());
        self.train(config(Some(5), &broken)).err().expect("an error");
        let resumed = self.train(config(None, &broken)).unwrap();
        let straight = self.train(config(None, &whole)).unwrap();
        for v in straight.session.graph().variables() {
            let [a, b] = [&resumed, &straight].map(|t| t.session.read(&v.name).unwrap());
            assert!(a == b, "{} is {a:?} after a resume, {b:?} without", v.name);
        }
    }
}
