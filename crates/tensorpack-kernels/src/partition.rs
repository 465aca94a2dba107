//! Cutting a length into nearly equal parts: tiles of rows, chunks of work, slices of a sum.

use std::ops::Range;

/// Part `index` of `len` cut into `parts` whose lengths differ by one at most.
pub(crate) fn part(len: usize, parts: usize, index: usize) -> Range<usize> {
    let (each, longer) = (len / parts, len % parts);
    let start = each * index + index.min(longer);
    start..start + each + usize::from(index < longer)
}

/// The fewest nearly equal parts of `len` of which none is longer than `longest`; one empty part if `len` is 0.
#[cfg(target_arch = "x86_64")]
pub(crate) fn parts(len: usize, longest: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = len.div_ceil(longest.max(1)).max(1);
    (0..parts).map(move |index| part(len, parts, index))
}
