//! Every parser reads whatever bytes there are without a panic, and takes no more memory than they can account for:
//! the files of `fuzz/corpus`, and thousands of changes to them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack_dataflow::{Draws, Seed};

#[path = "../fuzz/targets.rs"]
mod targets;

/// Knows the most memory that was in use.
struct Peak;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Peak {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        MOST.fetch_max(now, Ordering::SeqCst);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static PEAK: Peak = Peak;

/// A parser's own buffers, and all that a packed file may unpack to, twice while a vector grows.
const ALLOWED: usize = 6 << 20;

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let file = |path: &std::path::PathBuf| (path.display().to_string(), std::fs::read(path).unwrap());
    paths.iter().map(file).collect()
}

fn bear(name: &str, target: fn(&[u8]), bytes: &[u8]) {
    let before = NOW.load(Ordering::SeqCst);
    MOST.store(before, Ordering::SeqCst);
    let read = catch_unwind(AssertUnwindSafe(|| target(bytes)));
    let taken = MOST.load(Ordering::SeqCst).saturating_sub(before);
    assert!(read.is_ok(), "{name} panics: {}", bytes.escape_ascii());
    assert!(taken <= ALLOWED, "{name} takes {taken} bytes of memory: {}", bytes.escape_ascii());
}

/// A few changes at random: bits, bytes, numbers, pieces taken out, doubled or from another file.
fn change(draws: &mut Draws, bytes: &mut Vec<u8>, other: &[u8]) {
    let place = |draws: &mut Draws, n: usize| draws.below(n.max(1) as u64) as usize;
    for _ in 0..1 + draws.below(4) {
        let at = place(draws, bytes.len());
        let end = (at + 1 + place(draws, 16)).min(bytes.len());
        match draws.below(7) {
            _ if bytes.is_empty() => bytes.extend(other),
            0 => bytes[at] ^= 1 << draws.below(8),
            1 => bytes[at] = draws.below(256) as u8,
            2 => bytes[at..end].fill([0, 0x7f, 0x80, 0xff][place(draws, 4)]),
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..end)),
            5 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let from = place(draws, other.len());
                bytes.truncate(at);
                bytes.extend(&other[from.min(other.len())..]);
            }
        }
    }
}

// One test, not two: another one's memory would be counted too.
#[test]
fn no_bytes_make_a_parser_panic_or_take_much_memory() {
    let cases = std::env::var("TENSORPACK_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    for (name, target) in targets::TARGETS {
        let files = corpus(name);
        assert!(files.len() >= 5, "the corpus of {name} has {} files", files.len());
        for (path, bytes) in &files {
            bear(path, target, bytes);
        }
        let seed = Seed::new(0).of(name);
        for case in 0..cases {
            let mut draws = seed.draws(0, case);
            let one = &files[draws.below(files.len() as u64) as usize].1;
            let other = &files[draws.below(files.len() as u64) as usize].1;
            let mut bytes = one.clone();
            change(&mut draws, &mut bytes, other);
            bear(name, target, &bytes);
        }
    }
}
