//! Random trials are drawn from a list of choices, which proptest shrinks when a trial fails. The
//! first option of every list here is the simplest, so smaller choices give simpler trials.

use tensorpack_tensor::CounterRng;

/// Choices, consumed in order; zeros once they run out.
pub(crate) struct Draw<'a> {
    choices: std::slice::Iter<'a, u32>,
}

impl Draw<'_> {
    pub(crate) fn new(choices: &[u32]) -> Draw<'_> {
        Draw { choices: choices.iter() }
    }

    /// Draws a number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.choices.next().map_or(0, |&c| c as usize % n)
    }

    /// Draws an element of a list.
    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Draws a number between the two, inclusive.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Draws sizes of `rank` dims, among them 0, 1 and sizes that no vector length divides. Tensors
    /// are mostly small, but sometimes large enough for several tiles and threads.
    pub(crate) fn sizes(&mut self, rank: usize) -> Vec<usize> {
        let large = self.below(16) == 15;
        let mut room = if large { 4000 } else { 200 };
        let mut dim = |draw: &mut Self| {
            let n = if large {
                draw.pick(&[1, 2, 7, 67, 130, 1025])
            } else {
                draw.pick(&[1, 2, 3, 5, 4, 7, 0, 19, 67])
            };
            let n = if n > room { 2 } else { n };
            room /= n.max(1);
            n
        };
        (0..rank).map(|_| dim(self)).collect()
    }

    /// Draws sizes, none of them 0.
    pub(crate) fn solid(&mut self, rank: usize) -> Vec<usize> {
        self.sizes(rank).into_iter().map(|n| n.max(1)).collect()
    }

    /// Draws sizes that broadcast to `full`: some leading dims are missing, some others are 1.
    pub(crate) fn broadcasting(&mut self, full: &[usize]) -> Vec<usize> {
        let skipped = if self.below(3) == 2 { self.below(full.len() + 1) } else { 0 };
        full[skipped..].iter().map(|&n| if self.below(4) == 3 { 1 } else { n }).collect()
    }

    /// Draws a permutation of `rank` dims.
    pub(crate) fn order(&mut self, rank: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..rank).collect();
        (1..rank).for_each(|i| order.swap(i, i - self.below(i + 1)));
        order
    }

    /// Draws some of `rank` axes, at least one if there is one, some of them negative.
    pub(crate) fn axes(&mut self, rank: usize) -> Vec<isize> {
        let mut axes: Vec<usize> = (0..rank).filter(|_| self.below(2) == 0).collect();
        if axes.is_empty() && rank > 0 {
            axes.push(self.below(rank));
        }
        axes.into_iter().map(|a| a as isize - if self.below(3) == 2 { rank as isize } else { 0 }).collect()
    }
}

/// The values that elements of an input may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Domain {
    /// Between -2 and 2.
    Any,
    /// Between 0.5 and 2.5.
    Positive,
    /// Between 0.4 and 2 in absolute value: for functions with a pole or a kink at 0.
    AwayFromZero,
    /// Distinct over all inputs, and not 0: for functions with a kink where two elements are equal.
    Apart,
    /// Multiples of 0.5 between -2 and 2: many ties, and many halves to round.
    Halves,
}

impl Domain {
    /// Draws values for `n` elements, after `before` elements of other inputs and out of `total` in
    /// all inputs. All are exact in f32.
    pub(crate) fn values(self, rng: &CounterRng, n: usize, before: usize, total: usize) -> Vec<f64> {
        let uniform = |i: usize| rng.uniform(1, (before + i) as u64);
        let permutation = || {
            let mut ranks: Vec<usize> = (0..total).collect();
            (1..total).for_each(|i| ranks.swap(i, (rng.uniform(2, i as u64) * (i + 1) as f64) as usize));
            ranks
        };
        let ranks = if self == Domain::Apart { permutation() } else { Vec::new() };
        let value = |i: usize| match self {
            Domain::Any => uniform(i) * 4.0 - 2.0,
            Domain::Positive => uniform(i) * 2.0 + 0.5,
            Domain::AwayFromZero => {
                let v = uniform(i) * 3.2 - 1.6;
                v + 0.4 * f64::signum(v)
            }
            Domain::Apart => {
                (ranks[before + i] as f64 - total as f64 / 2.0 + 0.5) * (4.0 / total.max(40) as f64)
            }
            Domain::Halves => (uniform(i) * 9.0).floor() / 2.0 - 2.0,
        };
        (0..n).map(|i| f64::from(value(i) as f32)).collect()
    }
}
