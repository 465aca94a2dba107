//! Feeds the files of `fuzz/corpus` and thousands of mutations to every parser. None may panic or
//! allocate more than the input can account for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tensorpack_dataflow::Seed;
use tensorpack_testing::PeakAllocator;

#[path = "../fuzz/mutate.rs"]
mod mutate;
#[path = "../fuzz/targets.rs"]
mod targets;

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator::new();

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
    let (read, peak) = ALLOCATOR.measure(|| catch_unwind(AssertUnwindSafe(|| target(bytes))));
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
