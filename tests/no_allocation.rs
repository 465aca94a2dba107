//! After two runs, a training step allocates no memory on any thread, and what it has allocated is what
//! was planned. Checkpoints take one copy of the variables.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::FromFn;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::runtime::{Session, SessionOptions};

#[path = "models/mod.rs"]
mod models;

/// Counts allocations, and the bytes that are allocated.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// What was allocated after the first step of a run.
static FIRST_STEP: AtomicUsize = AtomicUsize::new(0);
/// Held by a test, because the allocations of a concurrent one would be counted, too.
static TURN: Mutex<()> = Mutex::new(());

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    PEAK.fetch_max(ALLOCATED.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
}

// SAFETY: all calls are forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract of this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        ALLOCATED.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of this function.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of this function.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A layer with 1024 x 1024 weights.
struct Wide;

impl ModelDesc for Wide {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(1024)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Linear::new(1024).apply(t, "fc", &inputs[0]).square().mean()
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

/// Saves after every step, or never.
struct Save(bool);

impl Callback for Save {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == 1 {
            // Before, initial values and plans have taken more than a copy.
            let live = ALLOCATED.load(Ordering::SeqCst);
            FIRST_STEP.store(live, Ordering::SeqCst);
            PEAK.store(live, Ordering::SeqCst);
        }
        if self.0 {
            cx.request_save();
        }
        Ok(())
    }
}

/// The peak memory of a run of 6 steps, beyond what it takes after the first.
fn peak(saves: bool) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let data = FromFn::new(6, |_| Ok(vec![HostTensor::new([1, 1024], vec![0.5f32; 1024])?]));
    let options = SessionOptions { threads: Some(1), ..SessionOptions::default() };
    let config = TrainConfig::new(Wide, data).logdir(dir.path()).session(options).callback(Save(saves));
    launch_train_with_config(config.max_epoch(1).quiet(), SimpleTrainer::new()).unwrap();
    PEAK.load(Ordering::SeqCst) - FIRST_STEP.load(Ordering::SeqCst)
}

/// The state is copied once: not a second time for the next save, nor to be encoded.
#[test]
fn checkpoints_take_one_copy_of_the_variables() {
    let _turn = TURN.lock();
    let copies = |saves: bool| peak(saves) as f64 / (4.0 * 1024.0 * 1024.0);
    assert!(copies(false) < 0.2, "{}", copies(false));
    assert!((0.9..1.3).contains(&copies(true)), "{}", copies(true));
}

/// Waits until nothing has been allocated for a while: a small step may end before all threads of the team
/// have started, and a thread that starts allocates.
fn wait_for_threads() {
    let mut before = usize::MAX;
    while before != ALLOCATIONS.load(Ordering::SeqCst) {
        before = ALLOCATIONS.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn steps_after_the_second_allocate_nothing_and_the_first_ones_what_was_planned() {
    let _turn = TURN.lock();
    let made = [("mlp", models::mlp()), ("mnist", models::mnist()), ("resnet", models::small_resnet())];
    for (name, model) in made {
        let batches = [model.batch(8, 0), model.batch(8, 1)];
        let options = SessionOptions { threads: Some(3), ..SessionOptions::default() };
        let frozen = model.graph.freeze().unwrap();
        let free = ALLOCATED.load(Ordering::SeqCst);
        let session = Session::with(frozen, options).unwrap();
        let sizes = batches[0].each_ref().map(|x| (x.dtype(), x.sizes()));
        let feeds = [("image", sizes[0].0, sizes[0].1), ("label", sizes[1].0, sizes[1].1)];
        let planned = session.planned_bytes(&[&model.cost, &model.train], &feeds).unwrap();
        let step = session.prepare(&[&model.cost, &model.train]).unwrap();
        let mut outputs = Vec::new();
        let mut run = |k: usize| {
            let [image, label] = &batches[k % 2];
            session.run_prepared(&step, &[("image", image), ("label", label)], &mut outputs).unwrap();
        };
        (0..2).for_each(&mut run);
        wait_for_threads();
        // The plan itself, the threads and the tables of the session take a few hundred kilobytes.
        let measured = ALLOCATED.load(Ordering::SeqCst) - free;
        let more = measured.checked_sub(planned);
        assert!(
            more.is_some_and(|more| more < 400_000),
            "{name}: {planned} bytes planned, {measured} measured"
        );
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        (2..12).for_each(&mut run);
        let made = ALLOCATIONS.load(Ordering::SeqCst) - before;
        assert_eq!(made, 0, "{name}: {made} allocations in 10 steps");
        let cost = outputs[0].to_scalar().unwrap();
        assert!(cost.is_finite() && cost > 0.0, "{name}: the steps must really have run, cost {cost}");
    }
}
