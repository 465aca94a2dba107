//! Partitions of a length into nearly equal parts: tiles of rows, chunks of work, slices of a sum.

use std::ops::Range;

/// Returns part `index` of `len` split into `parts` parts whose lengths differ by at most one.
pub(crate) fn part(len: usize, parts: usize, index: usize) -> Range<usize> {
    let (each, longer) = (len / parts, len % parts);
    let start = each * index + index.min(longer);
    start..start + each + usize::from(index < longer)
}

/// Returns the largest number from 1 to `max` that fits, or 1 if none does. `fits` must be
/// monotonic: if a number fits, so do all smaller ones.
pub(crate) fn largest_fitting(max: usize, fits: impl Fn(usize) -> bool) -> usize {
    if fits(max) {
        return max;
    }
    // `low` fits, or is 1; `high` does not fit.
    let (mut low, mut high) = (1, max);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Returns the fewest nearly equal parts of `len` that are no longer than `longest`; one empty part
/// if `len` is 0. Tiles of a few rows are divided like this, so it takes few divisions.
#[cfg(target_arch = "x86_64")]
pub(crate) fn parts(len: usize, longest: usize) -> impl Iterator<Item = Range<usize>> {
    let (parts, each, longer) = if len <= longest.max(1) {
        (1, len, 0)
    } else {
        let parts = len.div_ceil(longest.max(1));
        (parts, len / parts, len % parts)
    };
    let mut start = 0;
    (0..parts).map(move |index| {
        let part = start..start + each + usize::from(index < longer);
        start = part.end;
        part
    })
}
