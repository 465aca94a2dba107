//! Shrinks failing programs.

use crate::compare::{Failure, check, check_bits, expect, quietly};
use crate::optimizers::Training;
use crate::program::{Class, Elements, Node, Port, Program, Source, Towers};
use crate::run::{Engine, run};
use std::time::{Duration, Instant};
use tensorpack::prelude::*;

/// Returns the failure of a program on an engine, if it is fit and fails.
pub(crate) fn fails(program: &Program, engine: Engine) -> Option<Failure> {
    check(program, engine, &expect(program).ok()?).err()
}

/// Returns the failure of a program whose bits depend on the number of threads.
pub(crate) fn bits_differ(program: &Program, engine: Engine) -> Option<Failure> {
    let found = |engine| quietly(|| run(program, engine, None)).ok()?.ok();
    check_bits(engine, &found(engine)?, &found(engine.with_one_thread()?)?, "with one thread").err()
}

/// Returns the failure of a program whose bits depend on whether blocks are computed again.
pub(crate) fn recomputed_bits_differ(program: &Program, engine: Engine) -> Option<Failure> {
    let found = |program: &Program| quietly(|| run(program, engine, None)).ok()?.ok();
    let scopes = Program { recompute: false, ..program.clone() };
    check_bits(engine, &found(program)?, &found(&scopes)?, "without recompute blocks").err()
}

/// Returns the smallest program found within `time` that still fails on the engine, with its
/// failure.
pub(crate) fn shrink(
    program: &Program,
    failure: Failure,
    time: Duration,
    fails: &dyn Fn(&Program) -> Option<Failure>,
) -> (Program, Failure) {
    let begun = Instant::now();
    let (mut best, mut failed) = (program.clone(), failure);
    best.prune();
    'again: loop {
        for candidate in candidates(&best) {
            if begun.elapsed() > time {
                return (best, failed);
            }
            // An error must not turn into a wrong value on the way, nor the reverse.
            if let Some(failure) = fails(&candidate).filter(|f| f.raised == failed.raised) {
                (best, failed) = (candidate, failure);
                continue 'again;
            }
        }
        return (best, failed);
    }
}

/// Returns programs that are simpler in one respect, those that simplify most first.
pub(crate) fn candidates(program: &Program) -> Vec<Program> {
    let mut list = Vec::new();
    let mut simpler = |change: &dyn Fn(&mut Program)| {
        let mut next = program.clone();
        change(&mut next);
        next.prune();
        list.push(next);
    };
    // Towers and types.
    if program.towers.count > 1 {
        simpler(&|p| p.towers = Towers { count: 1, last_batch: None });
    }
    if program.towers.count > 2 {
        simpler(&|p| p.towers.count = 2);
    }
    if program.towers.last_batch.is_some() {
        simpler(&|p| p.towers.last_batch = None);
    }
    if program.autocast {
        simpler(&|p| p.autocast = false);
    }
    if program.narrow.is_some() {
        simpler(&|p| p.narrow = None);
    }
    for i in 0..program.blocks.len() {
        simpler(&|p| p.blocks.retain(|block| *block != program.blocks[i]));
    }
    // Fetches.
    if program.steps > 0 {
        simpler(&|p| p.steps = 0);
    }
    if program.second {
        simpler(&|p| p.second = false);
    }
    if program.gradients {
        simpler(&|p| (p.gradients, p.second) = (false, false));
    }
    for fetches in halves(&program.fetches) {
        simpler(&|p| p.fetches = fetches.clone());
    }
    for cost in halves(&program.cost) {
        simpler(&|p| p.cost = cost.clone());
    }
    if program.steps > 1 {
        simpler(&|p| p.steps = 1);
        simpler(&|p| p.steps -= 1);
    }
    // A node replaced by its operand or by an input.
    for at in (0..program.nodes.len()).rev() {
        let Source::Row { inputs, .. } = &program.nodes[at].source else { continue };
        for &input in inputs {
            simpler(&|p| replace(p, at, input));
        }
        if let Some(cut) = cut(program, at) {
            simpler(&|p| *p = cut.clone());
        }
    }
    // Training settings.
    let plain = Training::plain();
    if program.steps > 0 {
        for i in 0..program.training.wrappers.len() {
            simpler(&|p| drop(p.training.wrappers.remove(i)));
        }
        if program.training.rule.0.name != plain.rule.0.name {
            simpler(&|p| p.training.rule = plain.rule.clone());
        }
        if program.training.rate.0.name != plain.rate.0.name {
            simpler(&|p| p.training.rate = plain.rate.clone());
        }
    }
    if program.regularized {
        simpler(&|p| p.regularized = false);
    }
    if program.float == DType::F64 {
        simpler(&|p| p.float = DType::F32);
    }
    if !program.together {
        simpler(&|p| p.together = true);
    }
    // Sizes.
    for at in 0..program.nodes.len() {
        match &program.nodes[at].source {
            Source::Input { sizes, known, .. } => {
                if known.contains(&false) {
                    simpler(&|p| {
                        if let Source::Input { known, .. } = &mut p.nodes[at].source {
                            known.fill(true);
                        }
                    });
                }
                for (axis, &n) in sizes.iter().enumerate() {
                    for to in smaller(n) {
                        simpler(&|p| all_sizes(p, n, to, at, axis));
                        simpler(&|p| resize(p, at, axis, to));
                    }
                }
            }
            Source::Variable { sizes, .. } => {
                for (axis, &n) in sizes.iter().enumerate() {
                    for to in smaller(n) {
                        simpler(&|p| resize(p, at, axis, to));
                    }
                }
            }
            Source::Row { .. } => {}
        }
    }
    list
}

fn smaller(n: usize) -> Vec<usize> {
    let mut list: Vec<usize> =
        [1, 2, n / 2, n.saturating_sub(1)].into_iter().filter(|&m| m > 0 && m < n).collect();
    list.dedup();
    list
}

/// Returns a list without its first or second half, and without each element.
fn halves(list: &[Port]) -> Vec<Vec<Port>> {
    let mut all = Vec::new();
    if list.len() > 1 {
        let middle = list.len() / 2;
        all.extend([list[..middle].to_vec(), list[middle..].to_vec()]);
    }
    if list.len() != 2 {
        all.extend((0..list.len()).map(|i| [&list[..i], &list[i + 1..]].concat()));
    }
    all
}

/// Replaces the outputs of a node by `by`.
fn replace(program: &mut Program, at: usize, by: Port) {
    let change = |p: &mut Port| {
        if p.node == at {
            *p = by;
        }
    };
    for node in &mut program.nodes {
        if let Source::Row { inputs, .. } = &mut node.source {
            inputs.iter_mut().for_each(change);
        }
    }
    program.cost.iter_mut().chain(&mut program.fetches).for_each(change);
}

/// Returns the program with an input in place of a node with one output, if its sizes are known
/// from a build.
fn cut(program: &Program, at: usize) -> Option<Program> {
    let node = &program.nodes[at];
    if node.outputs.is_some() {
        return None;
    }
    let spec = crate::build::spec_of(program, at)?;
    let class = Class::of(spec.0);
    let seed = at as u64 + 1000;
    let elements = match class {
        Class::Float | Class::Narrow => Elements::Reals { seed },
        Class::Bool => Elements::Indices { seed, below: 2 },
        Class::Int(_) => Elements::Indices { seed, below: 2 },
    };
    let known = vec![true; spec.1.len()];
    let mut next = program.clone();
    let source = Source::Input { class, sizes: spec.1, known, elements };
    next.nodes[at] = Node { name: format!("x{at}"), source, outputs: None };
    // Names must stay unique.
    let taken = program.nodes.iter().any(|n| n.name == format!("x{at}"));
    if taken {
        next.nodes[at].name = format!("x{at}_");
    }
    next.prune();
    Some(next)
}

/// Sets one size of an input or variable.
fn resize(program: &mut Program, at: usize, axis: usize, to: usize) {
    if let Source::Input { sizes, .. } | Source::Variable { sizes, .. } = &mut program.nodes[at].source {
        sizes[axis] = to;
    }
}

/// Sets one size, and all equal sizes at the same axis: a batch size, or a number of channels.
fn all_sizes(program: &mut Program, from: usize, to: usize, _at: usize, axis: usize) {
    for node in &mut program.nodes {
        if let Source::Input { sizes, .. } = &mut node.source
            && sizes.get(axis) == Some(&from)
        {
            sizes[axis] = to;
        }
    }
}
