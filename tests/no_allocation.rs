//! After two runs, a training step allocates no memory on any thread, and what it has allocated is what
//! was planned.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack::runtime::{Session, SessionOptions};

#[path = "models/mod.rs"]
mod models;

/// Counts allocations, and the bytes that are allocated.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        ALLOCATED.fetch_add(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        ALLOCATED.fetch_add(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        ALLOCATED.fetch_add(size, Ordering::SeqCst);
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

// A single test, because the allocations of a concurrent test would be counted, too.
#[test]
fn steps_after_the_second_allocate_nothing_and_the_first_ones_what_was_planned() {
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
