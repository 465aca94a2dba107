//! After two runs, a training step allocates no memory on any thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack::runtime::{Session, SessionOptions};

#[path = "models/mod.rs"]
mod models;

/// Counts allocations.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of this function.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of this function.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

// A single test, because the allocations of a concurrent test would be counted, too.
#[test]
fn steps_after_the_second_allocate_nothing() {
    let made = [("mlp", models::mlp()), ("mnist", models::mnist()), ("resnet", models::small_resnet())];
    for (name, model) in made {
        let batches = [model.batch(8, 0), model.batch(8, 1)];
        let options = SessionOptions { threads: Some(3), ..SessionOptions::default() };
        let session = Session::with(model.graph.freeze().unwrap(), options).unwrap();
        let step = session.prepare(&[&model.cost, &model.train]).unwrap();
        let mut outputs = Vec::new();
        let mut run = |k: usize| {
            let [image, label] = &batches[k % 2];
            session.run_prepared(&step, &[("image", image), ("label", label)], &mut outputs).unwrap();
        };
        (0..2).for_each(&mut run);
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        (2..12).for_each(&mut run);
        let made = ALLOCATIONS.load(Ordering::SeqCst) - before;
        assert_eq!(made, 0, "{name}: {made} allocations in 10 steps");
        let cost = outputs[0].to_scalar().unwrap();
        assert!(cost.is_finite() && cost > 0.0, "{name}: the steps must really have run, cost {cost}");
    }
}
