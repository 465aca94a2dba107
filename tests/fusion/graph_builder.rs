//! Builds random graphs from a list of choices.

use super::barrier::barrier;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use tensorpack::graph::{Graph, Tensor};
use tensorpack::ops::{Conv2dOptions, Layout, Padding, PoolOptions};
use tensorpack::tensor::CounterRng;
use tensorpack::{DType, HostTensor};

/// Random choices, consumed one by one. They are zero once the list is exhausted, so that fewer and
/// smaller numbers make simpler graphs when proptest shrinks them.
pub(crate) struct Choices<'a>(pub(crate) std::slice::Iter<'a, u32>);

impl Choices<'_> {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0.next().map_or(0, |&c| c as usize % n)
    }

    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    pub(crate) fn permutation(&mut self, rank: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..rank).collect();
        (1..rank).for_each(|i| order.swap(i, i - self.below(i + 1)));
        order
    }
}

/// A random graph under construction.
pub(crate) struct GraphBuilder {
    graph: Graph,
    dtype: DType,
    /// Whether a barrier after every operation prevents fusion.
    unfused: bool,
    pub(crate) all: Vec<Tensor>,
    /// For each tensor, whether an operation reads it.
    used: Vec<bool>,
}

pub(crate) fn sizes(t: &Tensor) -> Vec<usize> {
    t.shape().known().expect("all sizes of these graphs are known")
}

impl GraphBuilder {
    pub(crate) fn new(graph: &Graph, dtype: DType, inputs: Vec<Tensor>, unfused: bool) -> GraphBuilder {
        GraphBuilder { graph: graph.clone(), dtype, unfused, used: vec![false; inputs.len()], all: inputs }
    }

    /// Returns a random tensor, preferably a recent one.
    pub(crate) fn any(&mut self, c: &mut Choices<'_>) -> Tensor {
        let n = self.all.len();
        let back = if c.below(2) == 0 { c.below(n.min(3)) } else { c.below(n) };
        self.used[n - 1 - back] = true;
        self.all[n - 1 - back].clone()
    }

    /// Tries a few random tensors and returns the first that broadcasts with `x`.
    pub(crate) fn broadcastable(&mut self, x: &Tensor, c: &mut Choices<'_>) -> Option<Tensor> {
        (0..4).map(|_| self.any(c)).find(|t| x.shape().broadcast(t.shape()).is_ok())
    }

    /// Returns the tensors that no operation reads.
    pub(crate) fn outputs(&self) -> Vec<Tensor> {
        self.all.iter().zip(&self.used).filter(|(_, used)| !**used).map(|(t, _)| t.clone()).collect()
    }

    /// Adds an operation whose result is small and has moderate values.
    pub(crate) fn add_op(&mut self, c: &mut Choices<'_>) {
        let x = self.any(c);
        let rank = x.rank();
        let float = self.dtype.is_float();
        let y = match c.below(22) {
            0 => self.unary(&x, c),
            1..=4 => self.binary(&x, c),
            5 => x.transpose(&c.permutation(rank)),
            6 => self.reshape(&x, c),
            7 => self.slice(&x, c),
            8 => {
                let mut some = || (0..rank).map(|_| c.below(2)).collect::<Vec<usize>>();
                let (low, high, interior) = (some(), some(), some());
                x.pad(&low, &high, &interior)
            }
            9 | 10 if rank > 0 => self.reduce(&x, c),
            11 if rank > 0 => {
                let like = self.any(c);
                let kept = x.sum_keep(&[c.below(rank) as isize]);
                if kept.shape().broadcast(like.shape()).is_ok_and(|s| s == *like.shape()) {
                    kept.broadcast_like(&like)
                } else {
                    kept.broadcast_like(&x)
                }
            }
            12 | 13 if float && rank >= 2 => self.matmul(&x, c),
            14 => {
                let condition = x.greater(&self.constant(0.0));
                match self.broadcastable(&x, c) {
                    Some(other) => condition.select(&other, &x),
                    None => condition.select(&x, &self.constant(0.25)),
                }
            }
            15 if float => x
                .cast(c.pick(&[DType::I64, DType::F64, DType::I32, DType::Bf16, DType::F16]))
                .cast(self.dtype),
            15 => x.cast(c.pick(&[DType::I32, DType::F64, DType::U8, DType::Bool])).cast(self.dtype),
            16 if rank > 0 => self.repeat(&x, c),
            17 if rank > 0 && !sizes(&x).contains(&0) => {
                // Indices: fusion must not permute them.
                let indices = x.argmax(c.below(rank) as isize)
                    + x.graph().constant(HostTensor::scalar(c.below(3) as i64));
                indices.one_hot(4, self.dtype)
            }
            18 if rank > 0 => x.reverse(&[c.below(rank) as isize]),
            19 if rank > 0 => {
                let axis = c.below(rank) as isize;
                self.graph.concat(&[&x, &self.unary(&x, c)], axis)
            }
            20 if rank > 0 && float => x.cumsum(c.below(rank) as isize) * self.constant(0.25),
            21 if rank == 4 && float && !sizes(&x).contains(&0) => self.window(&x, c),
            _ => &x + self.constant(1.0),
        };
        let y = if self.unfused { barrier(&y) } else { y };
        // Sizes stay small, so that many graphs can be tried.
        if sizes(&y).iter().product::<usize>() <= 4000 && y.rank() <= 5 {
            self.all.push(y);
            self.used.push(false);
        }
    }

    pub(crate) fn constant(&self, value: f64) -> Tensor {
        self.graph.constant(HostTensor::from_f64(self.dtype, [], &[value]).expect("one value"))
    }

    pub(crate) fn unary(&self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        match c.below(if self.dtype.is_float() { 10 } else { 4 }) {
            0 => -x,
            1 => x.abs(),
            2 => x.relu(),
            3 => x.sign(),
            4 => x.tanh(),
            5 => x.sigmoid(),
            6 => x.sin(),
            7 => (x.square() + self.constant(1.0)).log(),
            8 => (x.square() + self.constant(0.5)).rsqrt(),
            _ => -(x.square() * self.constant(0.25)).exp().reciprocal(),
        }
    }

    fn binary(&mut self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        let other = self.broadcastable(x, c).unwrap_or_else(|| x * self.constant(0.5));
        match c.below(7) {
            0 => x + &other,
            1 => x - &other,
            2 => x * &other,
            3 => x.maximum(&other),
            4 => x.minimum(&other),
            5 => x.less(&other).cast(self.dtype) - &other,
            _ if self.dtype.is_float() => x / (other.square() + self.constant(1.0)),
            // Replace zeros by ones: division by zero is an error.
            _ => x / other.equal(&self.constant(0.0)).select(&self.constant(1.0), &other),
        }
    }

    fn reshape(&self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        let from = sizes(x);
        let cut = c.below(from.len() + 1);
        let part = |s: &[usize]| s.iter().product::<usize>() as isize;
        match c.below(4) {
            0 => x.reshape(&[part(&from)]),
            1 => x.reshape(&[part(&from[..cut]), part(&from[cut..])]),
            2 => x.expand_dims(cut as isize),
            _ => match from.iter().position(|&n| n == 1) {
                Some(one) => x.squeeze(one as isize),
                None => x.reshape(&[part(&from[cut..]), 1, part(&from[..cut])]),
            },
        }
    }

    pub(crate) fn slice(&self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        let from = sizes(x);
        let begin: Vec<usize> = from.iter().map(|&n| c.below(n.max(1)) / 2).collect();
        let end: Vec<Option<usize>> = from
            .iter()
            .zip(&begin)
            .map(|(&n, &b)| if n > b + 1 { Some(n - c.below(2)) } else { None })
            .collect();
        let step: Vec<usize> = from.iter().map(|_| c.pick(&[1, 1, 2])).collect();
        x.strided_slice(&begin, &end, &step)
    }

    /// Repeats the second half of one dim twice. The result has as many elements as `x`, so reading
    /// `x` in its place would go unnoticed by size checks.
    fn repeat(&self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        let mut shape = sizes(x);
        let axis = (0..shape.len()).find(|&d| shape[d] >= 2 && shape[d].is_multiple_of(2)).unwrap_or(0);
        let (rank, half) = (shape.len(), shape[axis] / 2);
        let x = if c.below(2) == 0 { self.unary(x, c) } else { x.clone() };
        let from: Vec<usize> = (0..rank).map(|d| if d == axis { shape[d] - half } else { 0 }).collect();
        let part = x.strided_slice(&from, &vec![None; rank], &vec![1; rank]).expand_dims(axis as isize);
        shape.splice(axis..=axis, [2, half]);
        let n: usize = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|i| (i % 5) as f64 - 1.0).collect();
        let weights = HostTensor::from_f64(self.dtype, shape, &values).expect("a value for each");
        part * self.graph.constant(weights)
    }

    fn reduce(&self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        let axis = c.below(x.rank()) as isize;
        let empty = sizes(x)[axis as usize] == 0;
        match c.below(if empty { 2 } else { 6 }) {
            0 => x.sum_axes(&[axis]),
            1 => x.sum_keep(&[axis]),
            2 => x.max_keep(&[axis]),
            3 => x.min_axes(&[axis]),
            4 if self.dtype.is_float() => {
                let (mean, variance) = x.moments(&[axis]);
                (x - mean) * (variance + self.constant(0.5)).rsqrt()
            }
            4 => x.argmax(axis).cast(self.dtype),
            // An index along one dim becomes a position along another, which fusion must keep
            // apart.
            _ => x.argmax(axis).one_hot(3, self.dtype),
        }
    }

    /// Adds a pooling, or a convolution with an epilogue.
    fn window(&self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        let options = PoolOptions {
            window: c.pick(&[[2, 2], [1, 2], [3, 3]]),
            stride: c.pick(&[[1, 1], [2, 2], [1, 2]]),
            padding: Padding::Same,
            layout: c.pick(&[Layout::Nhwc, Layout::Nchw]),
        };
        match c.below(3) {
            0 => x.max_pool_with(options),
            1 => x.average_pool_with(options),
            _ => {
                let filter = vec![2, 2, sizes(x)[3], 3];
                let n: usize = filter.iter().product();
                let values: Vec<f64> = (0..n).map(|i| (i % 7) as f64 / 8.0 - 0.375).collect();
                let filter = HostTensor::from_f64(self.dtype, filter, &values).expect("a value for each");
                let y = x.conv2d(&self.graph.constant(filter), Conv2dOptions::default());
                if c.below(2) == 0 { (&y + self.constant(0.5)).relu() } else { &y * &y }
            }
        }
    }

    fn matmul(&mut self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        let other = self.any(c);
        let (a, b) = (sizes(x), sizes(&other));
        let k = a[a.len() - 1];
        match b.len() {
            2 if b[0] == k => x.matmul(&other),
            2 if b[1] == k => x.matmul(&other.matrix_transpose()),
            _ if c.below(2) == 0 => x.matmul(&x.matrix_transpose()),
            _ => x.matrix_transpose().matmul(x),
        }
    }
}

/// Calls `check` with random lists of choices; `TENSORPACK_TEST_CASES` sets their number.
pub(crate) fn for_random_graphs(name: &str, default: u32, check: impl Fn(&[u32]) -> Result<(), String>) {
    let cases = tensorpack_testing::test_cases(default);
    let rng = CounterRng::new(0, name);
    let seed: Vec<u8> = (0..8).flat_map(|i| rng.word(0, i).to_le_bytes()).collect();
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 600, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let outcome = runner.run(&vec(any::<u32>(), 160), |choices| check(&choices).map_err(TestCaseError::fail));
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, _)) => panic!("{name}: {why}"),
        Err(e) => panic!("{name}: {e}"),
    }
}
