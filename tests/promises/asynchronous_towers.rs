//! Asynchronous towers do not wait for each other: one computes while another updates.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::graph::{OpDef, Spec};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;

const STEPS: u64 = 5;
/// The first element of the batch whose run blocks.
const BLOCKS: f32 = 100.0;

/// What the runs of both towers have done.
struct Progress {
    /// Whether the run of the marked batch has begun, with its snapshot of the variables.
    blocked: bool,
    /// The runs of other batches that have begun since.
    begun: u64,
}

static PROGRESS: Mutex<Progress> = Mutex::new(Progress { blocked: false, begun: 0 });
static CHANGED: Condvar = Condvar::new();

/// Applies a change once `ready` holds. Returns an error if that takes longer than ten seconds.
fn change_when(ready: impl Fn(&Progress) -> bool, change: impl FnOnce(&mut Progress)) -> Result<()> {
    let limit = Duration::from_secs(10);
    let waited = CHANGED.wait_timeout_while(PROGRESS.lock().unwrap(), limit, |p| !ready(p));
    let (mut progress, waited) = waited.unwrap();
    if waited.timed_out() {
        return Err(Error::argument("the other tower made no progress"));
    }
    change(&mut progress);
    CHANGED.notify_all();
    Ok(())
}

/// A kernel that blocks on the marked batch until the other tower begins its last run of the epoch,
/// which is after all its other updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BlockOnMark;

impl OpDef for BlockOnMark {
    fn name(&self) -> &str {
        "BlockOnMark"
    }
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }
    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(*self)))
    }
}

impl CustomKernel for BlockOnMark {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        outputs[0].copy_from_bytes(inputs[0].as_bytes())?;
        if inputs[0].to_f64_vec()[0] < f64::from(BLOCKS) {
            return change_when(|p| p.blocked, |p| p.begun += 1);
        }
        change_when(|_| true, |p| p.blocked = true)?;
        change_when(|p| p.begun >= STEPS, |_| ())
    }
}

/// Moves `w` by the mean of every batch.
struct Sum;

impl ModelDesc for Sum {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let w = t.variable(VariableSpec::new("w", []).init(Init::zeros()));
        let x = Tensor::apply_one(BlockOnMark, &[&inputs[0]]);
        (w.value() * x).mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(1.0).boxed()
    }
}

/// Returns batches of one element, of which number `blocks` is marked.
fn marked(blocks: u64) -> impl DataFlow {
    FromFn::new(1000, move |i| Ok(vec![HostTensor::new([1], vec![if i == blocks { BLOCKS } else { 1.0 }])?]))
}

/// A tower blocks until the other one has applied all updates but its last. Towers that wait for
/// each other would block forever.
#[test]
fn a_tower_computes_while_another_updates() {
    // The first batch goes to the second tower, the next one to the first tower.
    for (blocks, tower) in [(0, 1), (1, 0)] {
        *PROGRESS.lock().unwrap() = Progress { blocked: false, begun: 0 };
        let config = TrainConfig::new(Sum, marked(blocks)).steps_per_epoch(STEPS).max_epoch(1).no_logdir();
        let trainer = AsyncMultiGpuTrainer::new(2).no_gradient_scaling();
        let trained = launch_train_with_config(config, trainer).unwrap_or_else(|e| panic!("{tower}: {e}"));
        // The blocked tower read its snapshot before the other tower's first update.
        let staleness = |which: &str| trained.monitors.latest(&format!("staleness/{which}")).unwrap();
        let most = staleness("max");
        assert!(most == STEPS as f64 - 1.0 || most == STEPS as f64, "tower {tower}: staleness {most}");
        let mean = staleness("mean");
        assert!(mean >= most / (2 * STEPS) as f64 && mean < most, "tower {tower}: mean staleness {mean}");
        // No update is lost, not even the one that came late.
        let moved = trained.session.read("w").unwrap().to_scalar().unwrap();
        assert_eq!(moved, -(f64::from(BLOCKS) + (2 * STEPS - 1) as f64), "tower {tower}");
    }
}
