//! Optimizers on random small variables, compared with the published formulas in plain f64 loops.
//!
//! Small adjacent variables in a slab are the difficult case for updates fused into one pass: the
//! shape of a variable of one element does not distinguish it from a scalar, and the padding is
//! larger than the variables. Each case draws one to six variables of 0 to 20 elements, the sources
//! of their gradients and which of them are shared, an update rule, a learning rate, and wrappers
//! of the rule.
//!
//! `TENSORPACK_TEST_CASES` sets the number of cases. Every run draws the same cases.

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::f64::consts::PI;
use tensorpack::graph::{FLUSH_OPS, Fetch, Graph, Init, Tensor, TensorSpec, Variable, VariableSpec};
use tensorpack::optim::gradproc::{
    FilterGradient, GlobalNormClip, MapGradient, Processed, ScaleGradient, SummaryGradient, ValueClip,
};
use tensorpack::optim::{
    Accumulate, Adagrad, Adam, AdamW, Ema, Gradient, Lamb, Momentum, Optimizer, ParamGroups, PostProcess,
    Rate, RmsProp, Schedule, Sgd, apply_gradients, minimize,
};
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{IntoFetch, Session, SessionOptions};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor};

const STEPS: usize = 4;

/// A sequence of choices. It continues with zeros when it runs out, so that shorter sequences of
/// smaller numbers make simpler cases.
struct Choices<'a>(std::slice::Iter<'a, u32>);

impl Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.0.next().map_or(0, |&c| c as usize % n)
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// The source of a variable's gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// A feed.
    Fed,
    /// `2 feed + w`, which fusion may compute inside the update.
    Affine,
    /// The sum of a feed over its first dimension: a temporary.
    Summed,
    /// The same in every step.
    Constant,
    /// The sum of a whole feed, broadcast: a temporary of one element.
    Broadcast,
    /// A part of one temporary, from this element on.
    Slice(usize),
    /// The gradient of an earlier variable with the same number of elements, possibly reshaped.
    SameAs(usize),
}

#[derive(Clone, Debug)]
struct Var {
    sizes: Vec<usize>,
    source: Source,
    /// The size of a variable created before it in the same slab and never updated.
    gap: Option<usize>,
}

impl Var {
    fn len(&self) -> usize {
        self.sizes.iter().product()
    }
}

#[derive(Clone, Debug)]
enum Rule {
    Sgd,
    Momentum { momentum: f64, nesterov: bool },
    RmsProp { alpha: f64, epsilon: f64, momentum: f64, centered: bool },
    Adagrad { first: f64, epsilon: f64 },
    Adam { betas: [f64; 2], epsilon: f64 },
    AdamW { betas: [f64; 2], epsilon: f64, decay: f64 },
    Lamb { betas: [f64; 2], epsilon: f64, decay: f64 },
}

#[derive(Clone, Debug)]
enum LearningRate {
    Fixed(f64),
    Fed,
    Variable(f64),
    Piecewise(f64, u64, f64),
    Exponential(f64, f64, u64),
    Staircase(f64, f64, u64),
    Polynomial(f64, f64, u64, f64),
    Cosine(f64, f64, u64),
    WarmUp(f64, u64),
}

#[derive(Clone, Debug)]
enum Processor {
    Scale(Vec<usize>, f64),
    ValueClip(f64),
    GlobalNormClip(f64),
    /// Multiplies the gradients of these variables by 3.
    Map(Vec<usize>),
    Keep(Vec<usize>),
    /// Summarizes these variables. All are non-empty, because the mean square of no elements is
    /// undefined.
    Summary(Vec<usize>),
}

#[derive(Clone, Debug)]
enum Wrapper {
    /// Sets a learning-rate factor and a weight decay for these variables.
    Group(Vec<usize>, Option<f64>, Option<f64>),
    Process(Vec<Processor>),
    Accumulate(usize),
    /// Clips variables with an even index to this limit after the update.
    Limit(f64),
    Ema(f64, bool),
}

/// A test case.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    threads: usize,
    isa: Isa,
    vars: Vec<Var>,
    /// Whether the gradients are those of a cost that combines the variables, instead of the
    /// sources.
    by_cost: bool,
    rule: Rule,
    rate: LearningRate,
    /// The wrappers, outermost first.
    wrappers: Vec<Wrapper>,
    /// The variables whose gradients are fetched with the step.
    fetched: Vec<usize>,
    seed: u64,
}

fn draw(choices: &[u32]) -> Case {
    let c = &mut Choices(choices.iter());
    let shapes: [&[usize]; 14] =
        [&[1], &[], &[1, 1], &[2], &[3], &[0], &[7], &[16], &[17], &[20], &[2, 3], &[4, 5], &[1, 3], &[3, 1]];
    let count = 1 + c.below(6);
    let mut vars: Vec<Var> = Vec::new();
    for k in 0..count {
        // Draw small variables more often.
        let sizes = if c.coin() { c.pick(&shapes[..3]) } else { c.pick(&shapes) }.to_vec();
        let mut var = Var { sizes, source: Source::Summed, gap: None };
        if c.below(6) == 5 {
            var.gap = Some(c.pick(&[1, 0, 5]));
        }
        let same: Vec<usize> = (0..k).filter(|&j| vars[j].len() == var.len()).collect();
        var.source = match c.below(8) {
            0 | 1 => Source::Summed,
            2 => Source::Fed,
            3 => Source::Affine,
            4 => Source::Constant,
            5 => Source::Broadcast,
            6 => Source::Slice(c.below(8)),
            _ if !same.is_empty() => Source::SameAs(c.pick(&same)),
            _ => Source::Summed,
        };
        vars.push(var);
    }
    let betas = c.pick(&[[0.9, 0.999], [0.5, 0.5], [0.0, 0.9]]);
    let (epsilon, decay) = (c.pick(&[1e-2, 1e-3]), c.pick(&[0.0, 0.1]));
    let rule = match c.below(8) {
        0 => Rule::Adam { betas, epsilon },
        1 => Rule::Sgd,
        2 => Rule::Momentum { momentum: 0.9, nesterov: c.coin() },
        3 | 4 => Rule::RmsProp { alpha: 0.8, epsilon, momentum: c.pick(&[0.0, 0.5]), centered: c.coin() },
        5 => Rule::Adagrad { first: c.pick(&[0.0, 0.1]), epsilon },
        6 => Rule::AdamW { betas, epsilon, decay },
        _ => Rule::Lamb { betas, epsilon, decay },
    };
    let rate = match c.below(10) {
        0 | 1 => LearningRate::Fixed(0.1),
        2 => LearningRate::Fed,
        3 => LearningRate::Variable(0.05),
        4 => LearningRate::Piecewise(0.1, 2, 0.01),
        5 => LearningRate::Exponential(0.1, 0.5, 3),
        6 => LearningRate::Staircase(0.1, 0.5, 2),
        7 => LearningRate::Polynomial(0.1, 0.01, 3, 2.0),
        8 => LearningRate::Cosine(0.1, 0.0, 3),
        _ => LearningRate::WarmUp(0.1, 3),
    };
    let mut wrappers = Vec::new();
    // The variables that outer processors keep. The patterns of inner ones must match some of them.
    let mut left: Vec<usize> = (0..count).collect();
    for _ in 0..c.below(4) {
        let mut some = |left: &[usize]| {
            let chosen: Vec<usize> = left.iter().copied().filter(|_| c.coin()).collect();
            if chosen.is_empty() { left.to_vec() } else { chosen }
        };
        wrappers.push(match some(&left) {
            names if c.below(6) == 0 => {
                Wrapper::Group(names, c.coin().then_some(0.5), c.coin().then_some(0.1))
            }
            names => match c.below(9) {
                0 => Wrapper::Process(vec![Processor::GlobalNormClip(0.5)]),
                1 => Wrapper::Process(vec![Processor::ValueClip(0.5), Processor::Map(names)]),
                2 => {
                    let full: Vec<usize> = names.iter().copied().filter(|&k| vars[k].len() > 0).collect();
                    let mut all = vec![Processor::Scale(names, 0.25)];
                    all.extend((!full.is_empty()).then_some(Processor::Summary(full)));
                    Wrapper::Process(all)
                }
                3 => {
                    left.clone_from(&names);
                    Wrapper::Process(vec![Processor::Keep(names)])
                }
                4 | 5 => Wrapper::Accumulate(1 + c.below(3)),
                6 => Wrapper::Limit(0.4),
                _ if wrappers.iter().any(|a| matches!(a, Wrapper::Ema(..))) => Wrapper::Limit(0.3),
                _ => Wrapper::Ema(c.pick(&[0.9, 0.5, 0.0]), c.coin()),
            },
        });
    }
    let fetched = (0..count).filter(|_| c.below(8) == 7).collect();
    Case {
        dtype: c.pick(&[DType::F64, DType::F32]),
        threads: 1 + c.below(2),
        isa: c.pick(&[Isa::detect(), Isa::Plain]),
        vars,
        by_cost: c.below(3) == 0,
        rule,
        rate,
        wrappers,
        fetched,
        seed: c.below(1 << 30) as u64,
    }
}

/// Returns values between -1 and 1 that are exact in f32 and not near zero.
fn numbers(seed: u64, what: &str, step: usize, n: usize) -> Vec<f64> {
    let rng = CounterRng::new(seed, what);
    let number = |i: usize| {
        let v = ((rng.uniform(step as u64, i as u64) * 64.0).floor() + 0.5) / 32.0 - 1.0;
        if v.abs() < 0.1 { v + 0.25 } else { v }
    };
    (0..n).map(number).collect()
}

/// Returns a pattern that matches the names of these variables.
fn pattern(vars: &[usize]) -> String {
    vars.iter().map(|k| format!("v{k}")).collect::<Vec<_>>().join("|")
}

impl Case {
    fn feed_sizes(&self, k: usize) -> Vec<usize> {
        let var = &self.vars[k];
        match var.source {
            Source::Summed if !self.by_cost => [&[3], &var.sizes[..]].concat(),
            _ => var.sizes.clone(),
        }
    }

    fn feed(&self, k: usize, step: usize) -> Vec<f64> {
        numbers(self.seed, &format!("x{k}"), step, self.feed_sizes(k).iter().product())
    }

    fn common(&self, step: usize) -> Vec<f64> {
        numbers(self.seed, "common", step, 3 * 32)
    }

    fn fed_rate(step: usize) -> f64 {
        [0.125, 0.0625, 0.25, 0.03125][step % 4]
    }

    fn first(&self, k: usize) -> Vec<f64> {
        numbers(self.seed, &format!("first{k}"), 0, self.vars[k].len())
    }

    /// Returns the learning rate of a step by its definition.
    fn rate_at(&self, step: usize) -> f64 {
        let t = step as f64;
        match self.rate {
            LearningRate::Fixed(r) | LearningRate::Variable(r) => r,
            LearningRate::Fed => Case::fed_rate(step),
            LearningRate::Piecewise(first, from, later) => {
                if (step as u64) < from {
                    first
                } else {
                    later
                }
            }
            LearningRate::Exponential(first, factor, every) => first * factor.powf(t / every as f64),
            LearningRate::Staircase(first, factor, every) => {
                first * factor.powi((step as u64 / every) as i32)
            }
            LearningRate::Polynomial(first, last, steps, power) => {
                last + (first - last) * (1.0 - (t / steps as f64).min(1.0)).powf(power)
            }
            LearningRate::Cosine(first, last, steps) => {
                last + (first - last) * (1.0 + (PI * (t / steps as f64).min(1.0)).cos()) / 2.0
            }
            LearningRate::WarmUp(r, steps) => r * ((t + 1.0) / steps as f64).min(1.0),
        }
    }

    /// Returns the gradients of a step by their definition, for the weights before the step.
    fn gradients(&self, step: usize, w: &[Vec<f64>]) -> Vec<Vec<f64>> {
        if self.by_cost {
            return self.cost_gradients(step, w);
        }
        let mut all: Vec<Vec<f64>> = Vec::new();
        for (k, var) in self.vars.iter().enumerate() {
            let (x, n) = (self.feed(k, step), var.len());
            all.push(match var.source {
                Source::Fed => x,
                Source::Affine => x.iter().zip(&w[k]).map(|(x, w)| 2.0 * x + w).collect(),
                Source::Summed => (0..n).map(|i| x[i] + x[n + i] + x[2 * n + i]).collect(),
                Source::Constant => numbers(self.seed, "constant", k, n),
                Source::Broadcast => vec![x.iter().sum(); n],
                Source::Slice(from) => {
                    let common = self.common(step);
                    (from..from + n).map(|i| common[i] + common[32 + i] + common[64 + i]).collect()
                }
                Source::SameAs(j) => all[j].clone(),
            });
        }
        all
    }

    /// Returns the gradients of the sum of `sum(x w) + sum(w^2) / 8` for every variable,
    /// `sum(v w) / 4` for neighbors of the same shape, and
    /// `sum((c + all w of one element)^2) / 16`, which has the same gradient for all variables of one
    /// element.
    fn cost_gradients(&self, step: usize, w: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let single: f64 = w.iter().filter(|w| w.len() == 1).map(|w| w[0]).sum();
        let shared: f64 = self.common(step)[..4].iter().map(|c| (c + single) / 8.0).sum();
        let count = self.vars.len();
        let gradient = |k: usize| -> Vec<f64> {
            let mut g: Vec<f64> = self.feed(k, step).iter().zip(&w[k]).map(|(x, w)| x + w / 4.0).collect();
            let alike = |j: usize| self.vars[j].sizes == self.vars[k].sizes;
            let near = [k.checked_sub(1), Some(k + 1).filter(|&j| j < count)];
            for j in near.into_iter().flatten().filter(|&j| alike(j)) {
                g.iter_mut().zip(&w[j]).for_each(|(g, w)| *g += w / 4.0);
            }
            if g.len() == 1 {
                g[0] += shared;
            }
            g
        };
        (0..count).map(gradient).collect()
    }
}

/// The gradient of one variable in the formulas.
#[derive(Clone)]
struct Grad {
    var: usize,
    value: Vec<f64>,
    rate: f64,
    decay: Option<f64>,
}

/// The state of the whole optimizer, in f64.
struct Formulas<'a> {
    case: &'a Case,
    /// The weights, after the updates of this step so far.
    w: Vec<Vec<f64>>,
    /// The number of times the rule was applied.
    updates: i32,
    slots: Vec<[Vec<f64>; 3]>,
    /// The number of accumulated steps and the sums, for each accumulation.
    gathered: Vec<(usize, Vec<Grad>)>,
    averages: Vec<Vec<f64>>,
    averaged: i32,
}

impl<'a> Formulas<'a> {
    fn new(case: &'a Case) -> Formulas<'a> {
        let zeros: Vec<Vec<f64>> = case.vars.iter().map(|v| vec![0.0; v.len()]).collect();
        let slots = |v: &Var| {
            let first = if let Rule::Adagrad { first, .. } = case.rule { first } else { 0.0 };
            [vec![first; v.len()], vec![0.0; v.len()], vec![0.0; v.len()]]
        };
        Formulas {
            case,
            w: (0..case.vars.len()).map(|k| case.first(k)).collect(),
            updates: 0,
            slots: case.vars.iter().map(slots).collect(),
            gathered: vec![(0, Vec::new()); case.wrappers.len()],
            averages: zeros,
            averaged: 0,
        }
    }

    fn step(&mut self, step: usize) {
        let start = self.w.clone();
        let gradients = self.case.gradients(step, &start).into_iter().enumerate();
        let gradients = gradients.map(|(var, value)| Grad { var, value, rate: 1.0, decay: None }).collect();
        self.through(0, gradients, step, &start);
    }

    /// Applies the wrapper `level` and everything inside it.
    fn through(&mut self, level: usize, mut gradients: Vec<Grad>, step: usize, start: &[Vec<f64>]) {
        let case = self.case;
        let Some(wrapper) = case.wrappers.get(level) else { return self.rule(gradients, step, start) };
        match wrapper {
            Wrapper::Group(of, factor, decay) => {
                for g in gradients.iter_mut().filter(|g| of.contains(&g.var)) {
                    g.rate *= factor.unwrap_or(1.0);
                    g.decay = decay.or(g.decay);
                }
                self.through(level + 1, gradients, step, start);
            }
            Wrapper::Process(all) => {
                all.iter().for_each(|p| process(p, &mut gradients));
                self.through(level + 1, gradients, step, start);
            }
            Wrapper::Accumulate(n) => {
                let (count, sums) = &mut self.gathered[level];
                if *count == 0 {
                    *sums = gradients;
                } else {
                    for (sum, g) in sums.iter_mut().zip(&gradients) {
                        sum.value.iter_mut().zip(&g.value).for_each(|(s, v)| *s += v);
                    }
                }
                *count += 1;
                if *count == *n {
                    self.apply_accumulated(level, step, start);
                }
            }
            Wrapper::Limit(limit) => {
                let vars: Vec<usize> = gradients.iter().map(|g| g.var).collect();
                self.through(level + 1, gradients, step, start);
                for &k in vars.iter().filter(|k| *k % 2 == 0) {
                    self.w[k].iter_mut().for_each(|w| *w = w.clamp(-limit, *limit));
                }
            }
            Wrapper::Ema(decay, debiased) => {
                let vars: Vec<usize> = gradients.iter().map(|g| g.var).collect();
                self.through(level + 1, gradients, step, start);
                self.averaged += 1;
                for k in vars {
                    let first = self.averaged == 1 && !debiased;
                    for (i, w) in self.w[k].iter().enumerate() {
                        let before = if first { start[k][i] } else { self.averages[k][i] };
                        self.averages[k][i] = decay * before + (1.0 - decay) * w;
                    }
                }
            }
        }
    }

    /// Applies the mean of the gradients that the accumulation `level` holds.
    fn apply_accumulated(&mut self, level: usize, step: usize, start: &[Vec<f64>]) {
        let (count, mut means) = std::mem::take(&mut self.gathered[level]);
        means.iter_mut().for_each(|g| g.value.iter_mut().for_each(|v| *v /= count as f64));
        self.through(level + 1, means, step, start);
    }

    /// Returns the expected moving average.
    fn ema(&self, k: usize, decay: f64, debiased: bool) -> Vec<f64> {
        let share = if debiased && self.averaged > 0 { 1.0 - decay.powi(self.averaged) } else { 1.0 };
        self.averages[k].iter().map(|a| a / share).collect()
    }

    fn rule(&mut self, gradients: Vec<Grad>, step: usize, start: &[Vec<f64>]) {
        self.updates += 1;
        let t = self.updates;
        for Grad { var, value, rate, decay } in gradients {
            let rate = rate * self.case.rate_at(step);
            let (w, old, slots) = (&mut self.w[var], &start[var], &mut self.slots[var]);
            let apart = matches!(self.case.rule, Rule::AdamW { .. } | Rule::Lamb { .. });
            let added = if apart { 0.0 } else { decay.unwrap_or(0.0) };
            let g: Vec<f64> = value.iter().zip(old).map(|(g, w)| g + added * w).collect();
            let n = g.len();
            match self.case.rule {
                Rule::Sgd => (0..n).for_each(|i| w[i] -= rate * g[i]),
                Rule::Momentum { momentum, nesterov } => {
                    for i in 0..n {
                        slots[0][i] = momentum * slots[0][i] + g[i];
                        let v = slots[0][i];
                        w[i] -= rate * if nesterov { g[i] + momentum * v } else { v };
                    }
                }
                Rule::RmsProp { alpha, epsilon, momentum, centered } => {
                    for i in 0..n {
                        slots[0][i] = alpha * slots[0][i] + (1.0 - alpha) * g[i] * g[i];
                        slots[1][i] = alpha * slots[1][i] + (1.0 - alpha) * g[i];
                        let mean = if centered { slots[1][i] } else { 0.0 };
                        let u = g[i] / ((slots[0][i] - mean * mean).max(0.0).sqrt() + epsilon);
                        slots[2][i] = momentum * slots[2][i] + u;
                        w[i] -= rate * slots[2][i];
                    }
                }
                Rule::Adagrad { epsilon, .. } => {
                    for i in 0..n {
                        slots[0][i] += g[i] * g[i];
                        w[i] -= rate * g[i] / (slots[0][i].sqrt() + epsilon);
                    }
                }
                Rule::Adam { betas, epsilon } => {
                    let u = moments(slots, &g, betas, epsilon, t);
                    (0..n).for_each(|i| w[i] -= rate * u[i]);
                }
                Rule::AdamW { betas, epsilon, decay: own } => {
                    let u = moments(slots, &g, betas, epsilon, t);
                    let decay = decay.unwrap_or(own);
                    (0..n).for_each(|i| w[i] = (1.0 - rate * decay) * w[i] - rate * u[i]);
                }
                Rule::Lamb { betas, epsilon, decay: own } => {
                    let decay = decay.unwrap_or(own);
                    let mut u = moments(slots, &g, betas, epsilon, t);
                    u.iter_mut().zip(old).for_each(|(u, w)| *u += decay * w);
                    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
                    let (of_w, of_u) = (norm(old), norm(&u));
                    let trust = if of_w > 0.0 && of_u > 0.0 { of_w / of_u } else { 1.0 };
                    (0..n).for_each(|i| w[i] -= rate * trust * u[i]);
                }
            }
        }
    }
}

/// Returns Adam's update direction, with bias correction.
fn moments(slots: &mut [Vec<f64>; 3], g: &[f64], [b1, b2]: [f64; 2], epsilon: f64, t: i32) -> Vec<f64> {
    let [m, v, _] = slots;
    let mut direction = Vec::new();
    for i in 0..g.len() {
        m[i] = b1 * m[i] + (1.0 - b1) * g[i];
        v[i] = b2 * v[i] + (1.0 - b2) * g[i] * g[i];
        let (mean, square) = (m[i] / (1.0 - b1.powi(t)), v[i] / (1.0 - b2.powi(t)));
        direction.push(mean / (square.sqrt() + epsilon));
    }
    direction
}

fn process(p: &Processor, gradients: &mut Vec<Grad>) {
    let scale = |g: &mut Grad, factor: f64| g.value.iter_mut().for_each(|v| *v *= factor);
    let among = |of: &[usize], g: &Grad| of.contains(&g.var);
    match p {
        Processor::Scale(of, factor) => {
            gradients.iter_mut().filter(|g| among(of, g)).for_each(|g| scale(g, *factor));
        }
        Processor::Map(of) => gradients.iter_mut().filter(|g| among(of, g)).for_each(|g| scale(g, 3.0)),
        Processor::ValueClip(limit) => {
            gradients.iter_mut().for_each(|g| g.value.iter_mut().for_each(|v| *v = v.clamp(-limit, *limit)));
        }
        Processor::GlobalNormClip(limit) => {
            let norm = gradients.iter().flat_map(|g| &g.value).map(|v| v * v).sum::<f64>().sqrt();
            gradients.iter_mut().for_each(|g| scale(g, limit / norm.max(*limit)));
        }
        Processor::Keep(of) => gradients.retain(|g| of.contains(&g.var)),
        Processor::Summary(_) => {}
    }
}

/// A case built as a graph in a session.
struct Built {
    session: Session,
    train: Fetch,
    flush: Vec<Fetch>,
    fetches: Vec<Fetch>,
}

impl Case {
    fn rate(&self, graph: &Graph, t: &TowerContext) -> Rate {
        match self.rate {
            LearningRate::Fixed(r) => r.into(),
            LearningRate::Fed => graph.placeholder(&TensorSpec::new("rate", DType::F64, [])).into(),
            LearningRate::Variable(r) => {
                let spec = VariableSpec::new("rate", []).dtype(self.dtype).init(Init::Constant(r));
                t.variable(spec.non_trainable()).into()
            }
            LearningRate::Piecewise(first, from, later) => Schedule::piecewise(first, [(from, later)]).into(),
            LearningRate::Exponential(first, factor, every) => {
                Schedule::exponential(first, factor, every).into()
            }
            LearningRate::Staircase(first, factor, every) => Schedule::staircase(first, factor, every).into(),
            LearningRate::Polynomial(first, last, steps, power) => {
                Schedule::polynomial(first, last, steps, power).into()
            }
            LearningRate::Cosine(first, last, steps) => Schedule::cosine(first, last, steps).into(),
            LearningRate::WarmUp(r, steps) => Schedule::constant(r).warm_up(steps).into(),
        }
    }

    fn optimizer(&self, rate: Rate) -> Box<dyn Optimizer> {
        let rule: Box<dyn Optimizer> = match self.rule {
            Rule::Sgd => Sgd::new(rate).boxed(),
            Rule::Momentum { momentum, nesterov: false } => Momentum::new(rate, momentum).boxed(),
            Rule::Momentum { momentum, nesterov: true } => Momentum::new(rate, momentum).nesterov().boxed(),
            Rule::RmsProp { alpha, epsilon, momentum, centered } => {
                let rule = RmsProp::new(rate).alpha(alpha).epsilon(epsilon).momentum(momentum);
                if centered { rule.centered().boxed() } else { rule.boxed() }
            }
            Rule::Adagrad { first, epsilon } => {
                Adagrad::new(rate).initial_accumulator_value(first).epsilon(epsilon).boxed()
            }
            Rule::Adam { betas: [b1, b2], epsilon } => Adam::new(rate).betas(b1, b2).epsilon(epsilon).boxed(),
            Rule::AdamW { betas: [b1, b2], epsilon, decay } => {
                AdamW::new(rate).betas(b1, b2).epsilon(epsilon).decay(decay).boxed()
            }
            Rule::Lamb { betas: [b1, b2], epsilon, decay } => {
                Lamb::new(rate).betas(b1, b2).epsilon(epsilon).decay(decay).boxed()
            }
        };
        self.wrappers.iter().rev().fold(rule, |inner, wrapper| match wrapper {
            Wrapper::Group(of, factor, decay) => ParamGroups::new(inner)
                .group(&pattern(of), |mut g| {
                    g = factor.map_or(g.clone(), |f| g.clone().rate(f));
                    decay.map_or(g.clone(), |d| g.clone().decay(d))
                })
                .boxed(),
            Wrapper::Process(all) => all
                .iter()
                .fold(Processed::new(inner), |o, p| match p {
                    Processor::Scale(of, factor) => o.process(ScaleGradient::new(&pattern(of), *factor)),
                    Processor::ValueClip(limit) => o.process(ValueClip::new(*limit)),
                    Processor::GlobalNormClip(limit) => o.process(GlobalNormClip::new(*limit)),
                    Processor::Map(of) => o.process(MapGradient::new(&pattern(of), |_, g| Some(g * 3.0))),
                    Processor::Keep(of) => o.process(FilterGradient::keep(&pattern(of))),
                    Processor::Summary(of) => o.process(SummaryGradient::new().matching(&pattern(of))),
                })
                .boxed(),
            Wrapper::Accumulate(n) => Accumulate::new(inner, *n).boxed(),
            Wrapper::Limit(limit) => {
                let limit = *limit;
                let is_even = |v: &Variable| v.name()[1..].parse::<usize>().is_ok_and(|k| k % 2 == 0);
                PostProcess::new(inner, move |v, w| is_even(v).then(|| w.clip(-limit, limit))).boxed()
            }
            Wrapper::Ema(decay, false) => Ema::new(inner, *decay).boxed(),
            Wrapper::Ema(decay, true) => Ema::new(inner, *decay).debiased().boxed(),
        })
    }

    fn tensor(&self, sizes: &[usize], values: &[f64]) -> HostTensor {
        HostTensor::from_f64(self.dtype, sizes.to_vec(), values).expect("a value for each element")
    }

    fn build(&self) -> Result<Built, String> {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let input = |name: String, sizes: &[usize]| {
            let sizes: Vec<Option<usize>> = sizes.iter().map(|&n| Some(n)).collect();
            graph.placeholder(&TensorSpec::new(name, self.dtype, sizes))
        };
        let common = input("common".into(), &[3, 32]);
        let mut weights = Vec::new();
        for (k, var) in self.vars.iter().enumerate() {
            if let Some(n) = var.gap {
                let spec = VariableSpec::new(format!("gap{k}"), [n]).dtype(self.dtype);
                t.variable(spec.init(Init::Constant(7.0)).non_trainable().slab("trainable"));
            }
            let spec = VariableSpec::new(format!("v{k}"), var.sizes.clone()).dtype(self.dtype);
            weights.push(t.variable(spec.init(Init::Value(self.tensor(&var.sizes, &self.first(k))))));
        }
        let inputs: Vec<Tensor> =
            (0..self.vars.len()).map(|k| input(format!("x{k}"), &self.feed_sizes(k))).collect();
        let rate = self.rate(&graph, &t);
        let optimizer = self.optimizer(rate);
        let mut fetches = Vec::new();
        let train = if self.by_cost {
            let cost = self.cost(&common, &inputs, &weights);
            if !self.fetched.is_empty() {
                fetches.push(Fetch::from(&cost));
            }
            minimize(&cost, &*optimizer)
        } else {
            let mut gradients: Vec<Gradient> = Vec::new();
            let summed = common.sum_axes(&[0]);
            for ((k, var), (x, w)) in self.vars.iter().enumerate().zip(inputs.iter().zip(&weights)) {
                let sizes: Vec<isize> = var.sizes.iter().map(|&n| n as isize).collect();
                let value = match var.source {
                    Source::Fed => x.clone(),
                    Source::Affine => x * 2.0 + w.value(),
                    Source::Summed => x.sum_axes(&[0]),
                    Source::Constant => {
                        graph.constant(self.tensor(&var.sizes, &numbers(self.seed, "constant", k, var.len())))
                    }
                    Source::Broadcast => x.sum().broadcast_to(&sizes),
                    Source::Slice(from) => {
                        summed.strided_slice(&[from], &[Some(from + var.len())], &[1]).reshape(&sizes)
                    }
                    Source::SameAs(j) => gradients[j].value.reshape(&sizes),
                };
                gradients.push(Gradient::new(w.clone(), value));
            }
            fetches.extend(self.fetched.iter().map(|&k| gradients[k].value.fetch()));
            apply_gradients(&*optimizer, &graph, &gradients)
        };
        let train = train.map_err(|e| e.to_string())?;
        let train = Fetch::from(&graph.group(&[&train, &graph.count_step()]));
        let flush = graph.collection_ops(FLUSH_OPS).iter().map(Fetch::from).collect();
        let options =
            SessionOptions { isa: Some(self.isa), threads: Some(self.threads), ..SessionOptions::default() };
        let frozen = graph.freeze().map_err(|e| e.to_string())?;
        let session = Session::with(frozen, options).map_err(|e| e.to_string())?;
        Ok(Built { session, train, flush, fetches })
    }

    /// Returns the cost whose gradients [`Case::cost_gradients`] computes.
    fn cost(&self, common: &Tensor, inputs: &[Tensor], weights: &[Variable]) -> Tensor {
        let own = inputs.iter().zip(weights).map(|(x, w)| (x * w.value()).sum() + w.square().sum() * 0.125);
        let mut terms: Vec<Tensor> = own.collect();
        for (pair, vars) in weights.windows(2).zip(self.vars.windows(2)) {
            if vars[0].sizes == vars[1].sizes {
                terms.push((pair[0].value() * pair[1].value()).sum() * 0.25);
            }
        }
        let row = common.strided_slice(&[0, 0], &[Some(1), Some(4)], &[1, 1]);
        let single = weights.iter().zip(&self.vars).filter(|(_, v)| v.len() == 1).map(|(w, _)| w.value());
        terms.push(single.fold(row, |sum, w| sum + w).square().sum() * 0.0625);
        terms.into_iter().reduce(|a, b| a + b).expect("a term at least")
    }

    fn check(&self) -> Result<(), String> {
        let Built { session, train, flush, fetches } = self.build()?;
        let mut formulas = Formulas::new(self);
        let rate = |step: usize| {
            let fed = matches!(self.rate, LearningRate::Fed);
            fed.then(|| ("rate".to_string(), HostTensor::scalar(Case::fed_rate(step))))
        };
        let run = |what: &[&dyn IntoFetch], feeds: &[(String, HostTensor)]| {
            let feeds: Vec<(&str, &HostTensor)> = feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
            session.run(what, &feeds).map_err(|e| e.to_string())
        };
        for step in 0..STEPS {
            let mut feeds = vec![("common".to_string(), self.tensor(&[3, 32], &self.common(step)))];
            for k in 0..self.vars.len() {
                feeds.push((format!("x{k}"), self.tensor(&self.feed_sizes(k), &self.feed(k, step))));
            }
            feeds.extend(rate(step));
            let mut what: Vec<&dyn IntoFetch> = vec![&train];
            what.extend(fetches.iter().map(|f| f as &dyn IntoFetch));
            run(&what, &feeds).map_err(|e| format!("step {step}: {e}"))?;
            formulas.step(step);
            self.compare(&session, &formulas).map_err(|e| format!("after step {step} {e}"))?;
        }
        // Flush the accumulated gradients. Nested accumulations would be flushed only in part.
        let accumulations =
            self.wrappers.iter().enumerate().filter(|(_, a)| matches!(a, Wrapper::Accumulate(_)));
        if let [(level, _)] = accumulations.collect::<Vec<_>>()[..] {
            for flush in &flush {
                run(&[flush], rate(STEPS).as_slice())?;
            }
            if formulas.gathered[level].0 > 0 {
                let start = formulas.w.clone();
                formulas.apply_accumulated(level, STEPS, &start);
            }
            self.compare(&session, &formulas).map_err(|e| format!("after the flush {e}"))?;
        }
        Ok(())
    }

    /// Checks that all variables and their averages match the formulas.
    fn compare(&self, session: &Session, formulas: &Formulas<'_>) -> Result<(), String> {
        let tolerance = if self.dtype == DType::F64 { 1e-9 } else { 3e-4 };
        let same = |name: String, right: &[f64]| {
            let found = session.read(&name).map_err(|e| e.to_string())?.to_f64_vec();
            let far = |(a, b): (&f64, &f64)| (a - b).abs() > tolerance * b.abs().max(1.0) || !a.is_finite();
            match found.len() == right.len() && !found.iter().zip(right).any(far) {
                true => Ok(()),
                false => Err(format!("{name} is {found:?}, not {right:?}")),
            }
        };
        for (k, var) in self.vars.iter().enumerate() {
            same(format!("v{k}"), &formulas.w[k])?;
            if let Some(n) = var.gap {
                same(format!("gap{k}"), &vec![7.0; n])?;
            }
        }
        let average = self.wrappers.iter().position(|a| matches!(a, Wrapper::Ema(..)));
        if let Some(at) = average
            && let Wrapper::Ema(decay, debiased) = self.wrappers[at]
        {
            // With a filter outside of the wrapper, some variables have no average.
            let keeps = |p: &Processor, k: usize| !matches!(p, Processor::Keep(of) if !of.contains(&k));
            let kept = |k: usize| {
                self.wrappers[..at].iter().all(|a| match a {
                    Wrapper::Process(all) => all.iter().all(|p| keeps(p, k)),
                    _ => true,
                })
            };
            for k in (0..self.vars.len()).filter(|&k| kept(k)) {
                same(format!("EMA/v{k}"), &formulas.ema(k, decay, debiased))?;
            }
        }
        Ok(())
    }
}

#[test]
fn small_variables_follow_the_formulas() {
    let name = "tiny variables";
    let cases = tensorpack_testing::test_cases(300);
    let rng = CounterRng::new(0, name);
    let seed: Vec<u8> = (0..8).flat_map(|i| rng.word(0, i).to_le_bytes()).collect();
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let outcome = runner.run(&vec(any::<u32>(), 96), |choices| {
        let case = draw(&choices);
        case.check().map_err(|e| TestCaseError::fail(format!("{e}\n{case:?}")))
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, _)) => panic!("{name}: {why}"),
        Err(e) => panic!("{name}: {e}"),
    }
}
