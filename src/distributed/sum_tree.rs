//! The order in which the summands of towers are added.
//!
//! It is a binary tree over the indices of all towers of a run: tower 0 with 1, 2 with 3, then the
//! two sums, and so on. Towers in one process and on many ranks add up in this order, so the number
//! of ranks does not change a bit.

use std::ops::{Add, Range};

/// Elements that are added at a time: all partial sums of a tile stay in cache.
const TILE: usize = 512;
/// The largest number of partial sums that wait for others: enough for 2^23 towers, 512 on each of
/// as many ranks as there can be.
const MAX_DEPTH: usize = 24;

/// The additions that sum up towers, or the partial sums of groups of towers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SumTree {
    /// For each summand, the number of additions that follow once it is there. Each adds the two
    /// latest partial sums.
    additions: Vec<usize>,
}

impl SumTree {
    /// The sum over `towers` towers.
    pub(crate) fn new(towers: usize) -> SumTree {
        SumTree::of_subtrees((0..towers).map(|t| t..t + 1))
    }

    /// The sum over the partial sums of groups of towers. The groups are subtrees, as
    /// [`subtrees`] returns them, and all of them together contain every tower once, in order.
    pub(crate) fn of_subtrees(groups: impl IntoIterator<Item = Range<usize>>) -> SumTree {
        let groups: Vec<Range<usize>> = groups.into_iter().collect();
        let total = groups.last().map_or(0, |group| group.end);
        let mut additions = Vec::with_capacity(groups.len());
        plan(0, total.next_power_of_two(), total, &groups, &mut additions);
        SumTree { additions }
    }

    /// Returns the number of summands.
    pub(crate) fn summands(&self) -> usize {
        self.additions.len()
    }

    /// Adds up the summands with `add`. Returns `None` if there is none.
    pub(crate) fn fold<T>(
        &self,
        summands: impl IntoIterator<Item = T>,
        mut add: impl FnMut(T, T) -> T,
    ) -> Option<T> {
        let mut stack: Vec<T> = Vec::new();
        for (summand, &additions) in summands.into_iter().zip(&self.additions) {
            let mut sum = summand;
            for _ in 0..additions {
                sum = match stack.pop() {
                    Some(before) => add(before, sum),
                    None => sum,
                };
            }
            stack.push(sum);
        }
        stack.pop()
    }

    /// Adds up `len` elements of all summands, widened to `T`, and hands the sums, a tile at a time, to
    /// `write` with the index of their first element.
    ///
    /// # Safety
    /// `summand(i)` must be valid for reading `len` elements while this runs, except for the tiles
    /// that were handed to `write`.
    pub(crate) unsafe fn sum<S: Copy, T: Copy + Default + Add<Output = T>>(
        &self,
        len: usize,
        summand: impl Fn(usize) -> *const S,
        widen: impl Fn(S) -> T,
        mut write: impl FnMut(usize, &[T]),
    ) {
        let mut stack = [[T::default(); TILE]; MAX_DEPTH];
        let mut at = 0;
        while at < len {
            let n = TILE.min(len - at);
            let mut depth = 0;
            for (i, &additions) in self.additions.iter().enumerate() {
                // SAFETY: the caller's promise.
                let summand = unsafe { std::slice::from_raw_parts(summand(i).add(at), n) };
                let Some(further) = additions.checked_sub(1) else {
                    stack[depth][..n].iter_mut().zip(summand).for_each(|(a, b)| *a = widen(*b));
                    depth += 1;
                    continue;
                };
                let partial = &mut stack[depth - 1][..n];
                partial.iter_mut().zip(summand).for_each(|(a, b)| *a = *a + widen(*b));
                for _ in 0..further {
                    let (below, top) = stack.split_at_mut(depth - 1);
                    let partial = &mut below[depth - 2][..n];
                    partial.iter_mut().zip(&top[0]).for_each(|(a, b)| *a = *a + *b);
                    depth -= 1;
                }
            }
            write(at, &stack[0][..n]);
            at += n;
        }
    }
}

/// Plans the node that contains the towers from `first` on, `width` or as many as there are. Groups
/// that are in the plan already have an entry in `additions`.
fn plan(first: usize, width: usize, total: usize, groups: &[Range<usize>], additions: &mut Vec<usize>) {
    let towers = first..total.min(first + width);
    if groups.get(additions.len()).is_some_and(|group| *group == towers) {
        additions.push(0);
        return;
    }
    let half = width / 2;
    if half == 0 {
        return;
    }
    plan(first, half, total, groups, additions);
    if first + half < total {
        plan(first + half, half, total, groups, additions);
        if let Some(last) = additions.last_mut() {
            *last += 1;
        }
    }
}

/// Returns the largest subtrees of the tree over `total` towers that lie in `towers`, in order. If
/// `towers` is an aligned power of two, it is one subtree.
pub(crate) fn subtrees(towers: Range<usize>, total: usize) -> Vec<Range<usize>> {
    fn find(first: usize, width: usize, total: usize, towers: &Range<usize>, found: &mut Vec<Range<usize>>) {
        let node = first..total.min(first.saturating_add(width));
        if node.is_empty() || node.end <= towers.start || towers.end <= node.start {
            return;
        }
        if towers.start <= node.start && node.end <= towers.end {
            found.push(node);
            return;
        }
        find(first, width / 2, total, towers, found);
        find(first + width / 2, width / 2, total, towers, found);
    }
    let mut found = Vec::new();
    find(0, total.next_power_of_two(), total, &towers, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(tree: &SumTree, summands: &[Vec<f32>]) -> Vec<f32> {
        let mut sums = vec![0.0; summands[0].len()];
        // SAFETY: all summands have the same length.
        unsafe {
            tree.sum(
                sums.len(),
                |i| summands[i].as_ptr(),
                |x: f32| x,
                |at, tile| {
                    sums[at..at + tile.len()].copy_from_slice(tile);
                },
            );
        }
        sums
    }

    /// The tree, by its definition.
    fn reference(summands: &[f32]) -> f32 {
        match summands.len() {
            1 => summands[0],
            n => {
                let (left, right) = summands.split_at(n.next_power_of_two() / 2);
                reference(left) + reference(right)
            }
        }
    }

    /// Numbers whose sum depends on the order.
    fn summand(tower: usize, len: usize) -> Vec<f32> {
        (0..len)
            .map(|i| ((tower * 7919 + i * 104_729) % 1000) as f32 * 1e-3 + 1.0 / (tower + 1) as f32)
            .collect()
    }

    #[test]
    fn towers_are_added_in_pairs() {
        for towers in 1..=33 {
            let summands: Vec<Vec<f32>> = (0..towers).map(|t| summand(t, 1300)).collect();
            let sums = sum(&SumTree::new(towers), &summands);
            for (i, s) in sums.iter().enumerate() {
                let column: Vec<f32> = summands.iter().map(|x| x[i]).collect();
                assert_eq!(s.to_bits(), reference(&column).to_bits(), "{towers} towers, element {i}");
                let folded = SumTree::new(towers).fold(column, |a, b| a + b).unwrap();
                assert_eq!(s.to_bits(), folded.to_bits(), "{towers} towers, element {i}");
            }
        }
    }

    #[test]
    fn any_split_over_ranks_gives_the_same_bits() {
        for towers in 1..=24 {
            let summands: Vec<Vec<f32>> = (0..towers).map(|t| summand(t, 7)).collect();
            let all = sum(&SumTree::new(towers), &summands);
            for each in (1..=towers).filter(|each| towers % each == 0) {
                let groups: Vec<Range<usize>> =
                    (0..towers / each).flat_map(|r| subtrees(r * each..(r + 1) * each, towers)).collect();
                let partial: Vec<Vec<f32>> =
                    groups.iter().map(|g| sum(&SumTree::new(g.len()), &summands[g.clone()])).collect();
                assert_eq!(
                    sum(&SumTree::of_subtrees(groups), &partial),
                    all,
                    "{towers} towers, {each} a rank"
                );
            }
        }
    }

    #[test]
    fn aligned_ranges_are_one_subtree() {
        let found = |towers, total| -> Vec<(usize, usize)> {
            subtrees(towers, total).into_iter().map(|group| (group.start, group.end)).collect()
        };
        assert_eq!(found(4..8, 16), [(4, 8)]);
        assert_eq!(found(0..3, 6), [(0, 2), (2, 3)]);
        assert_eq!(found(3..6, 6), [(3, 4), (4, 6)]);
        assert_eq!(found(4..5, 5), [(4, 5)]);
        assert_eq!(found(0..5, 5), [(0, 5)]);
        assert_eq!(found(2..2, 5), []);
    }
}
