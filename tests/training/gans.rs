//! The GAN trainer that the adversarial examples share.

use crate::gan_wgan_gp::gan::{GanModelDesc, GanTrainer, Losses};
use std::path::Path;
use tensorpack::dataflow::FromFn;
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::{TrainArgs, Trained};
use tensorpack_testing::assert_mentions;

/// Examples of a step, over all towers.
const TOTAL: usize = 12;
const Z: usize = 3;

/// Two-dimensional points, and a critic with a gradient penalty. No operation mixes examples.
struct Points {
    batch: usize,
}

impl GanModelDesc for Points {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("point", [None, Some(2)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let z = Random::normal(0.0, 1.0).shape(t.graph(), &[self.batch, Z]);
        let fake = t.scope("gen", |t| Linear::new(2).apply(t, "out", &z));
        let critic = |x: &Tensor| {
            t.auto_reuse(|t| {
                t.scope("discrim", |t| {
                    let x = Linear::new(4).activation(Activation::Tanh).apply(t, "hidden", x);
                    Linear::new(1).apply(t, "out", &x)
                })
            })
        };
        let slope = critic(&fake).sum().gradient(&fake);
        let penalty = (slope.square().sum_axes(&[1]) - 1.0).square().mean();
        Losses::wasserstein(t, &critic(&inputs[0]), &critic(&fake), Some(&penalty))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

/// The same points in the same order for any batch size.
fn points(batch: usize) -> Box<dyn InputSource> {
    let flow = FromFn::new(u64::MAX / 2, move |index| {
        let rng = CounterRng::new(4, "points");
        let first = index * 2 * batch as u64;
        let values = (0..2 * batch as u64).map(|i| rng.normal(0, first + i) as f32 + 2.0).collect();
        Ok(vec![HostTensor::new([batch, 2], values)?])
    });
    FeedInput::new(flow).boxed()
}

/// The command line for this many towers.
fn args_for(towers: usize) -> TrainArgs {
    let devices: Vec<String> = (0..towers).map(|i| format!("cpu:{i}")).collect();
    TrainArgs::parse_options(["--trainer", "sync-replicated", "--devices", &devices.join(",")]).unwrap()
}

fn trainer(towers: usize) -> GanTrainer {
    trainer_with(&args_for(towers))
}

fn trainer_with(args: &TrainArgs) -> GanTrainer {
    let batch = TOTAL / args.towers();
    GanTrainer::new(Points { batch }, points(batch), args).unwrap()
}

#[test]
fn several_devices_need_a_trainer_with_several_towers() {
    let args = TrainArgs::parse_options(["--devices", "cpu:0,cpu:1"]).unwrap();
    let e = GanTrainer::new(Points { batch: 1 }, points(1), &args).err().unwrap();
    assert_eq!(e.kind(), tensorpack::ErrorKind::Argument, "{e}");
    assert_mentions(e, &["--devices", "simple"]);
}

/// An error after all the steps would come too late.
#[test]
fn constant_data_has_no_result_to_check() {
    let args = TrainArgs::parse_options(["--fake", "--assert"]).unwrap();
    let e = GanTrainer::new(Points { batch: 1 }, points(1), &args).err().unwrap();
    assert_mentions(e, &["--assert"]);
}

fn config() -> RunConfig {
    RunConfig::new().no_logdir().steps_per_epoch(10).max_epoch(1)
}

fn weights(trained: &Trained) -> Vec<f64> {
    let names = ["gen/out/W", "gen/out/b", "discrim/hidden/W", "discrim/hidden/b", "discrim/out/W"];
    names.iter().flat_map(|n| trained.session.read(n).unwrap().to_f64_vec()).collect()
}

#[test]
fn several_towers_train_like_one_with_the_total_batch() {
    let one = weights(&trainer(1).train_together(config()).unwrap());
    for towers in [2, 3] {
        let several = weights(&trainer(towers).train_together(config()).unwrap());
        let difference = one.iter().zip(&several).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(difference < 1e-5, "{towers} towers: {one:?} {several:?}");
    }
}

/// The discriminator takes five steps per step of the generator: steps are counted, not runs.
#[test]
fn alternating_training_counts_steps() {
    let start = weights(&trainer(1).train_together(config().max_epoch(0)).unwrap());
    let generator = |weights: &[f64]| weights[..2 * Z + 2].to_vec();
    let four = trainer(1).train_in_turn(config().steps_per_epoch(4), 1, 5).unwrap();
    assert_eq!(generator(&weights(&four)), generator(&start));
    assert_ne!(weights(&four), start);
    assert_eq!(four.session.run_index().unwrap(), 4);
    let ten = trainer(1).train_in_turn(config(), 1, 5).unwrap();
    assert_ne!(generator(&weights(&ten)), generator(&start));
    assert_eq!(ten.session.run_index().unwrap(), 10 + 2);
    let second = trainer(1).train_in_turn(config(), 2, 1).unwrap();
    assert_eq!(second.session.run_index().unwrap(), 10 + 5);
    let e = trainer(1).train_in_turn(config(), 2, 3).err().unwrap();
    assert_mentions(&e, &["periods", "2", "3"]);
}

/// Errors of BEGAN that training does not change: a quarter of the point's mean for fakes.
struct ConstantErrors;

/// The target ratio of the errors, and how fast `k` moves.
const GAMMA: f64 = 0.5;
const RATE: f64 = 0.01;

impl GanModelDesc for ConstantErrors {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("point", [None, Some(2)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let one = |name| t.variable(VariableSpec::new(name, []).init(Init::Constant(1.0)));
        let d = one("discrim/scale");
        let real = inputs[0].mean() * d.value();
        let fake = &real * one("gen/scale").value() * 0.25;
        Losses::boundary_equilibrium(t, [&real, &fake], GAMMA, RATE)
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.0).boxed()
    }
}

/// Trains for this many epochs of 10 steps on points that are all 0.8, or 0.6 and 1.0 with two towers.
fn train_balanced(config: RunConfig, towers: usize, epochs: u64) -> Trained {
    let flow = FromFn::new(u64::MAX / 2, move |index| {
        let value = 0.8 + if towers == 1 { 0.0 } else { 0.4 * (index % 2) as f32 - 0.2 };
        Ok(vec![HostTensor::new([1, 2], vec![value; 2])?])
    });
    let gan = GanTrainer::new(ConstantErrors, FeedInput::new(flow).boxed(), &args_for(towers)).unwrap();
    gan.train_together(config.steps_per_epoch(10).max_epoch(epochs)).unwrap()
}

/// The value of BEGAN's `k`.
fn k_of(trained: &Trained) -> f64 {
    trained.session.read("k").unwrap().to_scalar().unwrap()
}

#[test]
fn the_balance_of_began_follows_the_mean_errors_of_all_towers() {
    // A step adds 0.01 * (0.5 * 0.8 - 0.2).
    let (change, steps) = (RATE * (GAMMA * 0.8 - 0.2), 20.0);
    for towers in [1, 2] {
        let trained = train_balanced(RunConfig::new().no_logdir(), towers, 2);
        assert!((k_of(&trained) - steps * change).abs() < 1e-6, "{towers} towers: {}", k_of(&trained));
        let measure = trained.monitors.latest("measure").unwrap();
        assert!((measure - 1.0).abs() < 1e-5, "{towers} towers: {measure}");
    }
    // It ends at 1.
    assert_eq!(k_of(&train_balanced(RunConfig::new().no_logdir(), 1, 60)), 1.0);
}

#[test]
fn began_resumes_with_its_balance() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let train = |dir: &Path, epochs| {
        train_balanced(RunConfig::new().callback(ModelSaver::new()).logdir(dir), 1, epochs)
    };
    let at_once = train(whole.path(), 3);
    train(parts.path(), 1);
    let resumed = train(parts.path(), 3);
    assert!(k_of(&at_once) > 0.0);
    assert_eq!(k_of(&resumed), k_of(&at_once));
    let stats = |dir: &Path| std::fs::read_to_string(dir.join("stats.jsonl")).unwrap();
    assert!(["\"k\"", "\"measure\""].iter().all(|name| stats(whole.path()).contains(name)));
    assert_eq!(stats(parts.path()), stats(whole.path()));
}

#[test]
fn the_precision_of_the_command_line_is_that_of_the_towers() {
    for precision in [Precision::Bf16, Precision::F16] {
        let gan = trainer_with(&TrainArgs::parse_options(["--precision", precision.name()]).unwrap());
        assert_eq!(gan.graph().precision(), precision);
        gan.train_together(config().precision(precision)).unwrap();
    }
}
