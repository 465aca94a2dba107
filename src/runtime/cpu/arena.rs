//! Where temporary buffers lie: all lifetimes are known, so all share one block of memory.

/// Something that needs room from step `first` to step `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) bytes: usize,
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Lifetime {
    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// An offset for each, so that none that live at the same time overlap; and the bytes needed in
/// all. What a kernel reads and what it writes live at the same time, so a result overlaps an
/// operand only where `plan` made them one. The largest are placed first, each in the tightest gap
/// that holds it: with few large and many small buffers this comes close to the largest sum of what
/// lives at once. Sums stop at the largest number there is, which no machine has room for.
pub(super) fn place(lifetimes: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lifetimes[i].bytes), lifetimes[i].first));
    let mut offsets = vec![0usize; lifetimes.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let mut busy: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&p| lifetimes[p].meets(&lifetimes[i]))
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
        fn nothing_alive_overlaps(
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
                    prop_assert!(apart || !lives[i].meets(&lives[j]));
                }
            }
        }
    }
}
