//! The arena: one block of memory for all temporary buffers, whose lifetimes are known at compile
//! time.

/// A buffer that is in use from step `first` to step `last`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) bytes: usize,
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Lifetime {
    fn overlaps(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Returns an offset for each buffer and the size of the arena. Buffers that are live at the same
/// time do not overlap. The operands and results of a kernel are live at the same time, so a
/// result overlaps an operand only where `placement` made them one buffer. The largest buffers are
/// placed first, each in the tightest gap that holds it (best fit): with few large and many small
/// buffers this comes close to the largest number of live bytes. Sums saturate at `usize::MAX`.
pub(super) fn place(lifetimes: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lifetimes[i].bytes), lifetimes[i].first));
    let mut offsets = vec![0usize; lifetimes.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let mut busy: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&p| lifetimes[p].overlaps(&lifetimes[i]))
            .map(|&p| (offsets[p], offsets[p].saturating_add(lifetimes[p].bytes)))
            .collect();
        busy.sort_unstable();
        let mut best: Option<(usize, usize)> = None;
        let mut end = 0;
        for (from, to) in busy {
            let gap = from.saturating_sub(end);
            if from > end && gap >= lifetimes[i].bytes && best.is_none_or(|(g, _)| gap < g) {
                best = Some((gap, end));
            }
            end = end.max(to);
        }
        offsets[i] = best.map_or(end, |(_, at)| at);
        total = total.max(offsets[i].saturating_add(lifetimes[i].bytes));
        placed.push(i);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn live_buffers_do_not_overlap(
            raw in prop::collection::vec((1..50usize, 0..20usize, 0..10usize), 1..40)
        ) {
            let lives: Vec<Lifetime> = raw
                .iter()
                .map(|&(n, first, more)| Lifetime { bytes: n * 64, first, last: first + more })
                .collect();
            let (at, total) = place(&lives);
            for i in 0..lives.len() {
                prop_assert!(at[i] + lives[i].bytes <= total);
                for j in 0..i {
                    let apart = at[i] + lives[i].bytes <= at[j] || at[j] + lives[j].bytes <= at[i];
                    prop_assert!(apart || !lives[i].overlaps(&lives[j]));
                }
            }
        }
    }
}
