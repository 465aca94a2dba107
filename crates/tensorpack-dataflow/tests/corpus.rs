//! Feeds the files of `fuzz/corpus` and thousands of mutations to every parser. None may panic or
//! allocate more than the input can account for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack_dataflow::Seed;

#[path = "../fuzz/mutate.rs"]
mod mutate;
#[path = "../fuzz/targets.rs"]
mod targets;

/// An allocator that records peak memory use.
struct PeakAllocator;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded to the system allocator.
unsafe impl GlobalAlloc for PeakAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = LIVE_BYTES.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK_BYTES.fetch_max(now, Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

/// Fixed buffers of the parsers, plus the decompression limit twice, because a growing vector is
/// copied.
const MAX_BYTES: usize = 6 << 20;

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let file = |path: &std::path::PathBuf| (path.display().to_string(), std::fs::read(path).unwrap());
    paths.iter().map(file).collect()
}

fn check_target(name: &str, target: fn(&[u8]), bytes: &[u8]) {
    let before = LIVE_BYTES.load(Ordering::SeqCst);
    PEAK_BYTES.store(before, Ordering::SeqCst);
    let read = catch_unwind(AssertUnwindSafe(|| target(bytes)));
    let peak = PEAK_BYTES.load(Ordering::SeqCst).saturating_sub(before);
    assert!(read.is_ok(), "{name} panics: {}", bytes.escape_ascii());
    assert!(peak <= MAX_BYTES, "{name} takes {peak} bytes of memory: {}", bytes.escape_ascii());
}

// A single test: memory of a concurrent test would be counted too.
#[test]
fn parsers_neither_panic_nor_overallocate() {
    let cases = u64::from(tensorpack_testing::test_cases(1000));
    for (name, target) in targets::TARGETS {
        let files = corpus(name);
        assert!(files.len() >= 5, "the corpus of {name} has {} files", files.len());
        for (path, bytes) in &files {
            check_target(path, target, bytes);
        }
        let seed = Seed::new(0).derive(name);
        for case in 0..cases {
            let mut rng = seed.rng(0, case);
            let one = &files[rng.below(files.len() as u64) as usize].1;
            let other = &files[rng.below(files.len() as u64) as usize].1;
            let mut bytes = one.clone();
            mutate::mutate(&mut rng, &mut bytes, other);
            check_target(name, target, &bytes);
        }
    }
}
