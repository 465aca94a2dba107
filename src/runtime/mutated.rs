//! Tests that validation suffices: a valid program with one to three random mutations is either
//! rejected or runs within its buffers. Under AddressSanitizer this finds every missing check; without it,
//! those whose absence panics or crashes.

use super::binding::Request;
use super::cpu::{self, CpuOptions};
use super::lowering::{Lowered, Source};
use super::snapshot::Reading;
use super::{Feed, RunInfo};
use crate::autodiff::gradients;
use crate::graph::{Fetch, Frozen, Graph, Tensor};
use crate::kir::{
    BufferId, BufferKind, ContractKind, Conv2d, Expr, Kernel, Program, ReduceKind, Reg, Signature, Step, View,
};
use crate::op_cases::{Case, Draw, Gradient, Input, all_cases};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tensorpack_kernels::Isa;
use tensorpack_tensor::{CounterRng, DType, HostTensor, Result};

/// A sequence of random choices.
struct Choices {
    rng: CounterRng,
    next: u64,
}

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        (self.rng.uniform(0, self.next) * n as f64) as usize
    }

    /// Returns a value other than `n`, often close to it.
    fn number(&mut self, n: usize) -> usize {
        let near = [n.wrapping_sub(1), n.wrapping_add(1), n.wrapping_mul(2), n / 2, 0, 1, 2, 3, 7];
        let far = [1 << 20, 1 << 31, 1 << 40, 1 << 60, usize::MAX];
        match self.below(4) {
            0 => far[self.below(far.len())],
            _ => near[self.below(near.len())],
        }
    }

    fn change(&mut self, n: &mut usize) {
        *n = self.number(*n);
    }

    fn change_one(&mut self, numbers: Vec<&mut usize>) {
        let at = self.below(numbers.len().max(1));
        if let Some(n) = numbers.into_iter().nth(at) {
            self.change(n);
        }
    }

    fn change_signed(&mut self, n: &mut isize) {
        *n = match self.below(3) {
            0 => n.wrapping_neg(),
            _ => self.number(n.unsigned_abs()) as isize,
        };
    }

    fn dtype(&mut self) -> DType {
        DType::ALL[self.below(DType::ALL.len())]
    }

    fn view(&mut self, view: &mut View, buffers: usize) {
        let dim = self.below(view.sizes.len().max(1));
        match self.below(7) {
            0 => self.change(&mut view.offset),
            1 => view.sizes.get_mut(dim).into_iter().for_each(|n| self.change(n)),
            2 => view.strides.get_mut(dim).into_iter().for_each(|n| self.change_signed(n)),
            3 => view.buffer = BufferId(self.below(buffers + 1) as u32),
            4 => view.dtype = self.dtype(),
            5 => drop(view.strides.pop()),
            _ => view.sizes.push(2),
        }
    }

    fn expr(&mut self, expr: &mut Expr) {
        let steps = expr.steps.len();
        let reg = Reg(self.below(steps + 2) as u16);
        if self.below(4) == 0 {
            match self.below(3) {
                0 => expr.outputs.push(reg),
                1 => drop(expr.outputs.pop()),
                _ => expr.outputs.iter_mut().for_each(|r| *r = reg),
            }
            return;
        }
        let at = self.below(steps.max(1));
        match expr.steps.get_mut(at) {
            Some(Step::Operand { index, .. }) => *index = self.below(5) as u16,
            Some(Step::Index { axis, .. }) => *axis = self.below(5) as u16,
            Some(Step::Unary(_, r) | Step::Binary(_, r, _) | Step::Select(r, ..) | Step::Cast(_, r)) => {
                *r = reg
            }
            Some(Step::Const(..)) | None => {}
        }
    }

    fn conv(&mut self, c: &mut Conv2d) {
        let Conv2d { batch, in_size, in_channels, out_channels, kernel, stride, dilation, pad_low, out_size } =
            c;
        let mut all = vec![batch, in_channels, out_channels];
        for pair in [in_size, kernel, stride, dilation, pad_low, out_size] {
            all.extend(pair.iter_mut());
        }
        self.change_one(all);
    }

    /// Changes the attributes of a kernel, not its operands.
    fn kernel(&mut self, kernel: &mut Kernel) {
        match kernel {
            Kernel::Map(body) if self.below(2) == 0 => self.change_one(body.sizes.iter_mut().collect()),
            Kernel::Map(body) => self.expr(&mut body.expr),
            Kernel::Reduce { body, reduced, kinds } => match self.below(4) {
                0 => self.change_one(body.sizes.iter_mut().collect()),
                1 => self.expr(&mut body.expr),
                2 => reduced.iter_mut().for_each(|r| *r = self.below(2) == 0),
                _ => kinds.iter_mut().for_each(|k| *k = ReduceKind::Moments),
            },
            Kernel::Contract { kind, .. } => match kind {
                ContractKind::MatMul(p) => match self.below(6) {
                    0 => p.lhs_transposed ^= true,
                    1 => p.rhs_transposed ^= true,
                    2 => p.lhs_shared ^= true,
                    3 => p.rhs_shared ^= true,
                    _ => self.change_one(vec![&mut p.batch, &mut p.m, &mut p.n, &mut p.k]),
                },
                ContractKind::Conv2d(c)
                | ContractKind::Conv2dInputGrad(c)
                | ContractKind::Conv2dFilterGrad(c)
                | ContractKind::Depthwise(c)
                | ContractKind::DepthwiseInputGrad(c)
                | ContractKind::DepthwiseFilterGrad(c) => self.conv(c),
            },
            Kernel::Pool { pool, .. } if self.below(8) > 0 => {
                let mut all = vec![&mut pool.batch, &mut pool.channels];
                let pairs = [&mut pool.in_size, &mut pool.window, &mut pool.stride];
                all.extend(pairs.into_iter().chain([&mut pool.pad_low, &mut pool.out_size]).flatten());
                self.change_one(all);
            }
            Kernel::Pool { inputs, .. } => drop(inputs.pop()),
            Kernel::Pad { low, high, interior, .. } => {
                self.change_one(low.iter_mut().chain(high).chain(interior).collect());
            }
            Kernel::Concat { axis, parts } => match self.below(2) {
                0 => self.change(axis),
                _ => drop(parts.pop()),
            },
            Kernel::Gather { gather: g, .. } => match self.below(5) {
                0 => g.shared ^= true,
                _ => self.change_one(vec![&mut g.batch, &mut g.rows, &mut g.width, &mut g.count]),
            },
            Kernel::Cumsum { cumsum: c, .. } => self.change_one(vec![&mut c.outer, &mut c.len, &mut c.inner]),
            Kernel::Argsort { argsort: a, .. } => self.change_one(vec![&mut a.rows, &mut a.len, &mut a.take]),
            Kernel::Nms { nms, .. } => self.change_one(vec![&mut nms.rows, &mut nms.len]),
            Kernel::Attention { attention: a, inputs, .. } => match self.below(8) {
                0 => drop(inputs.pop()),
                1 => a.mask ^= true,
                2 => a.bias ^= true,
                3 => a.causal ^= true,
                4 => {
                    let rate = [0.0, 0.5, 1.0, f64::NAN][self.below(4)];
                    a.dropout = a.dropout.xor(Some(crate::kir::FloatBits::new(rate)));
                }
                _ => self.change_one(vec![
                    &mut a.batch,
                    &mut a.heads,
                    &mut a.kv_heads,
                    &mut a.queries,
                    &mut a.keys,
                    &mut a.width,
                    &mut a.value_width,
                ]),
            },
            Kernel::Random { first, .. } => self.change(first),
            Kernel::ReduceScatter { shards, .. }
            | Kernel::Shard { shards, .. }
            | Kernel::AllGather { shards, .. } => self.change(&mut shards.count),
            // The number of inputs of a custom kernel is not checked by validation.
            Kernel::Copy(_) | Kernel::AllReduce { .. } | Kernel::Custom { .. } => {}
        }
    }

    /// Changes one thing in a program.
    fn program(&mut self, program: &mut Program) {
        let (kernels, buffers) = (program.kernels.len(), program.buffers.len());
        let at = self.below(kernels.max(1));
        let buffer = BufferId(self.below(buffers + 1) as u32);
        match (self.below(10), program.kernels.get_mut(at)) {
            (0..=3, Some(node)) => self.kernel(&mut node.kernel),
            (4 | 5, Some(node)) => {
                let mut views = node.kernel.reads_mut();
                let which = self.below(views.len().max(1));
                views.drain(..).nth(which).into_iter().for_each(|v| self.view(v, buffers));
            }
            (6, Some(node)) => match self.below(3) {
                0 => drop(node.outputs.pop()),
                1 => node.outputs.push(buffer),
                _ => node.outputs.iter_mut().for_each(|b| *b = buffer),
            },
            (7, Some(_)) => match self.below(3) {
                0 => drop(program.kernels.remove(at)),
                1 => program.kernels.push(program.kernels[at].clone()),
                _ => program.kernels.swap(0, at),
            },
            (8, _) if buffers > 0 => {
                let b = &mut program.buffers[self.below(buffers)];
                match self.below(3) {
                    0 => b.dtype = self.dtype(),
                    1 => b.kind = BufferKind::Feed(self.below(3)),
                    _ => self.change_one(b.sizes.iter_mut().collect()),
                }
            }
            _ => {
                let which = self.below(program.fetches.len().max(1));
                program.fetches.get_mut(which).into_iter().for_each(|v| self.view(v, buffers));
            }
        }
    }
}

/// Returns the graph of a case with its gradients, a request, and values to feed.
fn trial(case: &Case, seed: u64) -> (Arc<Frozen>, Request, Vec<HostTensor>) {
    let rng = CounterRng::new(seed, case.name);
    let choices: Vec<u32> = (0..48).map(|i| rng.word(0, i)).collect();
    let trial = (case.draw)(&mut Draw::new(&choices));
    let graph = Graph::new();
    let place = |(i, x): (usize, &Input)| x.tensor(&graph, &format!("x{i}"), DType::F32);
    let inputs: Vec<Tensor> = trial.inputs.iter().enumerate().map(place).collect();
    let mut outputs = (trial.build)(&inputs);
    if matches!(case.gradient, Gradient::Twice) {
        let xs: Vec<&Tensor> = inputs.iter().filter(|x| x.dtype().is_float()).collect();
        let cost = outputs.iter().map(|y| y.square().sum()).reduce(|a, b| a + b).expect("a case has outputs");
        outputs.extend(gradients(&cost, &xs).expect("a gradient").into_iter().flatten());
    }
    let total = trial.inputs.iter().map(|x| x.len()).sum();
    let mut before = 0;
    let mut fed = Vec::new();
    for x in &trial.inputs {
        fed.push(x.feed(DType::F32, &x.values(&rng, before, total)));
        before += x.len();
    }
    let feeds = fed.iter().enumerate().map(|(i, t)| (format!("x{i}"), t.dtype(), t.sizes().to_vec()));
    let request = Request { feeds: feeds.collect(), fetches: outputs.iter().map(Fetch::from).collect() };
    (Arc::new(graph.freeze().expect("a graph that can be built")), request, fed)
}

/// Compiles and runs a program if it is valid; returns whether it is.
fn run(program: Program, fetches: &[(usize, usize)], fed: &[HostTensor], isa: Isa) -> Result<bool> {
    let signature =
        Signature { feeds: fed.iter().map(|t| (t.dtype(), t.sizes())).collect(), variables: Vec::new() };
    let Ok(lowered) = Lowered::new(vec![program], fetches.to_vec(), Default::default(), &signature) else {
        return Ok(false);
    };
    let options = CpuOptions {
        threads: Some(2),
        isa: Some(isa),
        memory_limit: Some(64 << 20),
        deadline: Duration::from_secs(60),
        profile: false,
        full_precision: false,
        dump_passes: false,
        process_group: None,
    };
    let mut executable = cpu::compile(&options, lowered)?;
    let feeds: Vec<Feed<'_>> = fed.iter().collect();
    executable.run(&RunInfo { seed: 1, draw: 1 }, &feeds, &mut Vec::new())?;
    Ok(true)
}

#[test]
fn mutated_programs_are_rejected_or_run_within_their_buffers() {
    let wanted = std::env::var("TENSORPACK_TEST_OP").unwrap_or_default();
    let attempts = std::env::var("TENSORPACK_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(24u64);
    let mut panics = BTreeSet::new();
    let mut ended: BTreeMap<&str, usize> = BTreeMap::new();
    for case in all_cases().iter().filter(|case| case.name.contains(&wanted)) {
        for attempt in 0..attempts {
            let (graph, request, fed) = trial(case, attempt / 8);
            let source = Source::new(&graph, &request, Reading::InPlace);
            let Ok(lowered) = source.lower() else { continue };
            let mut program = lowered.programs()[0].clone();
            let mut choices = Choices { rng: CounterRng::new(attempt, case.name), next: 0 };
            for _ in 0..=attempt % 3 {
                choices.program(&mut program);
            }
            // Every instruction set gets programs with every number of mutations.
            let isa = if attempt / 3 % 3 == 0 { Isa::Plain } else { Isa::detect() };
            let ran = catch_unwind(AssertUnwindSafe(|| run(program, lowered.fetches(), &fed, isa)));
            *ended
                .entry(match &ran {
                    Ok(Ok(true)) => "ran",
                    Ok(Ok(false)) => "rejected",
                    Ok(Err(_)) => "failed",
                    Err(_) => "panicked",
                })
                .or_default() += 1;
            if ran.is_err() || matches!(&ran, Ok(Err(e)) if e.message().contains("panicked")) {
                panics.insert(format!("{}, attempt {attempt}", case.name));
            }
        }
    }
    assert!(panics.is_empty(), "{panics:#?}");
    // Some mutations must pass validation, and some must be rejected.
    assert!(!wanted.is_empty() || ["ran", "rejected"].iter().all(|k| ended.contains_key(k)), "{ended:?}");
}
