//! Fusion changes no result: random graphs give the same whether their ends alone are fetched, so that all between
//! may be fused, or everything in them, so that nothing is. Half of the graphs of floats hold gradients too.
//!
//! `TENSORPACK_TEST_CASES` sets how many graphs are tried; what is drawn is the same in every run.

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Fetch, Graph, Init, Tensor, TensorSpec, VariableSpec};
use tensorpack::ops::{Padding, PoolOptions};
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{IntoFetch, Session, SessionOptions};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor};

/// Choices, taken one after the other; zeros when they run out, so that fewer and smaller ones make simpler graphs.
struct Choices<'a>(std::slice::Iter<'a, u32>);

impl Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.0.next().map_or(0, |&c| c as usize % n)
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn order(&mut self, rank: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..rank).collect();
        (1..rank).for_each(|i| order.swap(i, i - self.below(i + 1)));
        order
    }
}

/// A graph as it grows.
struct Growing {
    graph: Graph,
    dtype: DType,
    all: Vec<Tensor>,
    /// Whether each of them was read.
    used: Vec<bool>,
}

fn sizes(t: &Tensor) -> Vec<usize> {
    t.shape().known().expect("all sizes of these graphs are known")
}

impl Growing {
    fn new(graph: &Graph, dtype: DType, inputs: Vec<Tensor>) -> Growing {
        Growing { graph: graph.clone(), dtype, used: vec![false; inputs.len()], all: inputs }
    }

    /// Any tensor made so far, the latest most likely.
    fn any(&mut self, c: &mut Choices<'_>) -> Tensor {
        let n = self.all.len();
        let back = if c.below(2) == 0 { c.below(n.min(3)) } else { c.below(n) };
        self.used[n - 1 - back] = true;
        self.all[n - 1 - back].clone()
    }

    /// Any tensor that fits `x`, if one of a few does.
    fn fitting(&mut self, x: &Tensor, c: &mut Choices<'_>) -> Option<Tensor> {
        (0..4).map(|_| self.any(c)).find(|t| x.shape().broadcast(t.shape()).is_ok())
    }

    /// What nothing reads.
    fn ends(&self) -> Vec<Tensor> {
        self.all.iter().zip(&self.used).filter(|(_, used)| !**used).map(|(t, _)| t.clone()).collect()
    }

    /// One more operation on what is there; its result is small and tame.
    fn grow(&mut self, c: &mut Choices<'_>) {
        let x = self.any(c);
        let rank = x.rank();
        let float = self.dtype.is_float();
        let y = match c.below(18) {
            0 => self.one(&x, c),
            1..=4 => self.two(&x, c),
            5 => x.transpose(&c.order(rank)),
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
            12 | 13 if float && rank >= 2 => self.product(&x, c),
            14 => {
                let condition = x.greater(&self.constant(0.0));
                match self.fitting(&x, c) {
                    Some(other) => condition.select(&other, &x),
                    None => condition.select(&x, &self.constant(0.25)),
                }
            }
            15 if float => x.cast(c.of(&[DType::I64, DType::F64, DType::I32, DType::Bf16])).cast(self.dtype),
            15 => x.cast(c.of(&[DType::I32, DType::F64, DType::U8, DType::Bool])).cast(self.dtype),
            16 if rank > 0 => self.repeat(&x, c),
            17 if rank > 0 && !sizes(&x).contains(&0) => {
                // Numbers by place, which whoever reads them must not mix up.
                let places = x.argmax(c.below(rank) as isize)
                    + x.graph().constant(HostTensor::scalar(c.below(3) as i64));
                places.one_hot(4, self.dtype)
            }
            _ => &x + self.constant(1.0),
        };
        // Sizes stay small, so that many graphs can be tried.
        if sizes(&y).iter().product::<usize>() <= 4000 && y.rank() <= 5 {
            self.all.push(y);
            self.used.push(false);
        }
    }

    fn constant(&self, value: f64) -> Tensor {
        self.graph.constant(HostTensor::from_f64(self.dtype, [], &[value]).expect("one value"))
    }

    fn one(&self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
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

    fn two(&mut self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        let other = self.fitting(x, c).unwrap_or_else(|| x * self.constant(0.5));
        match c.below(7) {
            0 => x + &other,
            1 => x - &other,
            2 => x * &other,
            3 => x.maximum(&other),
            4 => x.minimum(&other),
            5 => x.less(&other).cast(self.dtype) - &other,
            _ if self.dtype.is_float() => x / (other.square() + self.constant(1.0)),
            // Ones in place of zeros, which would end the run.
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

    fn slice(&self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        let from = sizes(x);
        let begin: Vec<usize> = from.iter().map(|&n| c.below(n.max(1)) / 2).collect();
        let end: Vec<Option<usize>> = from
            .iter()
            .zip(&begin)
            .map(|(&n, &b)| if n > b + 1 { Some(n - c.below(2)) } else { None })
            .collect();
        let step: Vec<usize> = from.iter().map(|_| c.of(&[1, 1, 2])).collect();
        x.strided_slice(&begin, &end, &step)
    }

    /// The second half of one dim, once for each half: as many elements as there were, but other ones.
    fn repeat(&self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
        let mut shape = sizes(x);
        let axis = (0..shape.len()).find(|&d| shape[d] >= 2 && shape[d].is_multiple_of(2)).unwrap_or(0);
        let (rank, half) = (shape.len(), shape[axis] / 2);
        let x = if c.below(2) == 0 { self.one(x, c) } else { x.clone() };
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
            // A place in the result of an index: its own dim must survive fusion.
            _ => x.argmax(axis).one_hot(3, self.dtype),
        }
    }

    fn product(&mut self, x: &Tensor, c: &mut Choices<'_>) -> Tensor {
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

/// A random graph in a session, and what is fed to it.
struct Drawn {
    session: Session,
    feeds: Vec<(String, HostTensor)>,
    /// Every result of every operation.
    all: Vec<Fetch>,
    /// What nothing in the graph reads.
    ends: Vec<Fetch>,
}

fn draw(choices: &[u32], dtype: DType, isa: Isa) -> Result<Drawn, String> {
    let c = &mut Choices(choices.iter());
    let rng = CounterRng::new(u64::from(choices[0]), "fusion");
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let (mut feeds, mut inputs) = (Vec::new(), Vec::new());
    let base: Vec<usize> = (0..3).map(|_| c.of(&[3, 4, 1, 5, 2, 4, 3, 17, 6, 4, 1, 33, 5, 0])).collect();
    let shapes = [base.clone(), base[1..].to_vec(), base[2..].to_vec(), vec![base[2], base[1]], base.clone()];
    for (i, size) in shapes.iter().enumerate() {
        let n: usize = size.iter().product();
        let value = |k: usize| {
            let v = rng.uniform(i as u64, k as u64) * 4.0 - 2.0;
            if dtype.is_float() { v } else { (v * 3.0).round() }
        };
        let values = HostTensor::from_f64(dtype, size.clone(), &(0..n).map(value).collect::<Vec<_>>());
        let values = values.map_err(|e| e.to_string())?;
        if i == 3 {
            let spec =
                VariableSpec::new("v", size.clone()).dtype(dtype).init(Init::Value(values)).non_trainable();
            inputs.push(t.variable(spec).value().clone());
            continue;
        }
        let spec = TensorSpec::new(format!("x{i}"), dtype, size.iter().map(|&n| Some(n)).collect::<Vec<_>>());
        inputs.push(graph.placeholder(&spec));
        feeds.push((spec.name.clone(), values));
    }
    let mut growing = Growing::new(&graph, dtype, inputs.clone());
    let steps = 6 + c.below(14);
    (0..steps).for_each(|_| growing.grow(c));
    let mut ends = growing.ends();
    if dtype.is_float() && c.below(2) == 1 {
        let cost = ends.iter().map(|t| (t * growing.constant(0.5)).tanh().sum()).reduce(|a, b| a + b);
        let xs: Vec<&Tensor> = inputs.iter().collect();
        let found = cost.map_or(Ok(Vec::new()), |cost| gradients(&cost, &xs)).map_err(|e| e.to_string())?;
        ends.extend(found.into_iter().flatten());
    }
    let ends: Vec<Fetch> = ends.iter().map(IntoFetch::fetch).collect();
    let frozen = graph.freeze().map_err(|e| e.to_string())?;
    let named = |n: &tensorpack::graph::Node| frozen.fetch(&n.name).map_err(|e| e.to_string());
    let all = frozen.nodes().iter().map(named).collect::<Result<Vec<Fetch>, String>>()?;
    let options =
        SessionOptions { isa: Some(isa), threads: Some(1 + c.below(2)), ..SessionOptions::default() };
    let session = Session::with(frozen, options).map_err(|e| e.to_string())?;
    Ok(Drawn { session, feeds, all, ends })
}

impl Drawn {
    fn run(&self, fetches: &[Fetch]) -> Result<Vec<HostTensor>, String> {
        let feeds: Vec<(&str, &HostTensor)> = self.feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
        let what: Vec<&dyn IntoFetch> = fetches.iter().map(|f| f as &dyn IntoFetch).collect();
        self.session.run(&what, &feeds).map_err(|e| format!("{e}\n{}", self.session.graph().to_text()))
    }

    /// That the ends, the last of them alone, and the ends with some of what lies between are as when all is fetched.
    fn check(&self, same: impl Fn(&HostTensor, &HostTensor) -> Result<(), String>) -> Result<(), String> {
        let all = self.run(&self.all)?;
        let some = self.all.iter().step_by(4).chain(&self.ends).cloned().collect();
        let last = self.ends.last().cloned().into_iter().collect();
        for group in [self.ends.clone(), last, some] {
            for (fetch, found) in group.iter().zip(self.run(&group)?) {
                let at = self.all.iter().position(|f| f.name() == fetch.name());
                let right = &all[at.ok_or(format!("{} is no node", fetch.name()))?];
                same(right, &found).map_err(|e| {
                    let names: Vec<&str> = group.iter().map(Fetch::name).collect();
                    let graph = self.session.graph().to_text();
                    format!("{} of the fetches {names:?}: {e}\n{graph}", fetch.name())
                })?;
            }
        }
        Ok(())
    }
}

fn over_graphs(name: &str, check: impl Fn(&[u32]) -> Result<(), String>) {
    let cases = std::env::var("TENSORPACK_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    let rng = CounterRng::new(0, name);
    let seed: Vec<u8> = (0..8).flat_map(|i| rng.word(0, i).to_le_bytes()).collect();
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let outcome = runner.run(&vec(any::<u32>(), 160), |choices| check(&choices).map_err(TestCaseError::fail));
    if let Err(e) = outcome {
        panic!("{name}: {e}");
    }
}

#[test]
fn fused_integers_are_the_same() {
    over_graphs("integers", |choices| {
        draw(choices, DType::I64, Isa::detect())?.check(|right, found| match right == found {
            true => Ok(()),
            false => Err(format!("{found:?} instead of {right:?}")),
        })
    });
}

#[test]
fn fused_floats_are_the_same_within_rounding() {
    over_graphs("floats", |choices| {
        for isa in [Isa::Plain, Isa::detect()] {
            draw(choices, DType::F32, isa)?.check(|right, found| {
                if right.sizes() != found.sizes() {
                    return Err(format!("sizes {:?} instead of {:?}", found.sizes(), right.sizes()));
                }
                let (right, found) = (right.to_f64_vec(), found.to_f64_vec());
                let scale = right.iter().filter(|v| v.is_finite()).fold(1e-30, |m: f64, v| m.max(v.abs()));
                let alike =
                    |a: f64, b: f64| (a - b).abs() <= 1e-5 * scale || a == b || (a.is_nan() && b.is_nan());
                match right.iter().zip(&found).position(|(&a, &b)| !alike(a, b)) {
                    Some(k) => Err(format!("element {k} on {isa} is {} instead of {}", found[k], right[k])),
                    None => Ok(()),
                }
            })?;
        }
        Ok(())
    });
}

/// Masks and sums of pooling's gradient are done before it, unless what is between is wanted, too.
#[test]
fn masks_and_sums_before_pooling_are_the_same() {
    for (window, stride, padding) in [(2, 2, Padding::Valid), (3, 2, Padding::Same), (2, 3, Padding::Valid)] {
        let g = Graph::new();
        let x = g.placeholder(&TensorSpec::f32("x", [Some(2), Some(9), Some(8), Some(5)]));
        let bias = g.placeholder(&TensorSpec::f32("bias", [Some(5)]));
        let h = (&x + &bias).relu();
        let options = PoolOptions { stride: [stride; 2], padding, ..PoolOptions::square(window) };
        let cost = h.max_pool_with(options).tanh().square().sum();
        let found = gradients(&cost, &[&h, &x, &bias]).unwrap();
        let [Some(dh), Some(dx), Some(db)] = &found[..] else { panic!("the cost depends on all") };
        let session = Session::new(g.freeze().unwrap()).unwrap();
        let rng = CounterRng::new(1, "x");
        let numbers: Vec<f32> = (0..720).map(|i| (rng.uniform(0, i) - 0.6) as f32).collect();
        let x = HostTensor::new([2, 9, 8, 5], numbers).unwrap();
        let bias = HostTensor::new([5], vec![0.1f32, -0.1, 0.2, 0.0, -0.2]).unwrap();
        let feeds = [("x", &x), ("bias", &bias)];
        let plan = session.plan_text(&[dx, db], &feeds).unwrap();
        let line = |what: &str| plan.lines().position(|l| l.contains(what)).unwrap();
        assert!(line("Select") < line("max-pool-grad"), "{plan}");
        let moved = session.run(&[dx, db], &feeds).unwrap();
        let apart = session.run(&[dx, db, dh], &feeds).unwrap();
        assert_eq!(moved[0].to_f64_vec(), apart[0].to_f64_vec());
        for (moved, apart) in moved[1].to_f64_vec().into_iter().zip(apart[1].to_f64_vec()) {
            assert!((moved - apart).abs() <= 1e-5 * apart.abs() && apart != 0.0, "{moved} and {apart}");
        }
    }
}
