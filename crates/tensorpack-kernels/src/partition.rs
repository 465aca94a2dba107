//! Cutting a length into nearly equal parts: tiles of rows, chunks of work, slices of a sum.

use std::ops::Range;

/// Part `index` of `len` cut into `parts` whose lengths differ by one at most.
pub(crate) fn part(len: usize, parts: usize, index: usize) -> Range<usize> {
    let (each, longer) = (len / parts, len % parts);
    let start = each * index + index.min(longer);
    start..start + each + usize::from(index < longer)
}

/// The largest number from 1 to `most` that fits, or 1 if none does. Whatever is less than what fits must fit as well.
pub(crate) fn most(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    if fits(most) {
        return most;
    }
    // `low` fits, or is 1; `high` does not fit.
    let (mut low, mut high) = (1, most);
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

/// The fewest nearly equal parts of `len` of which none is longer than `longest`; one empty part if `len` is 0.
#[cfg(target_arch = "x86_64")]
pub(crate) fn parts(len: usize, longest: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = len.div_ceil(longest.max(1)).max(1);
    (0..parts).map(move |index| part(len, parts, index))
}
