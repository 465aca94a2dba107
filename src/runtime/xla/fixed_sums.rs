//! Sums over unlike towers that every tower can compute by itself, because the summands of all towers
//! depend on constants and variables alone. Such a sum is the number of examples in all batches, by
//! which towers with batches of different sizes are weighted.

use super::split_program::sum_of_towers;
use crate::kir::{BufferId, BufferKind, Kernel, KernelNode, Program, View};
use std::collections::HashMap;

/// Returns the programs of all towers, in which those sums are computed from the summands of all
/// towers instead of by an all-reduce. Lowering has checked that all towers have the same sums, in the
/// same order.
pub(super) fn inline_fixed_sums(programs: &[Program]) -> Vec<Program> {
    let fixed = find_fixed_sums(programs);
    if !fixed.contains(&true) {
        return programs.to_vec();
    }
    (0..programs.len()).map(|tower| Inliner::new(programs, &fixed, tower).run()).collect()
}

/// Returns the summand and the result of each sum of a tower, in order.
fn summands(program: &Program) -> Vec<(&View, BufferId)> {
    fn sum(node: &KernelNode) -> Option<(&View, BufferId)> {
        match &node.kernel {
            Kernel::AllReduce { input, .. } => Some((input, node.outputs[0])),
            _ => None,
        }
    }
    program.kernels.iter().filter_map(sum).collect()
}

/// Returns, for each sum, whether its summands are fixed in all towers.
fn find_fixed_sums(programs: &[Program]) -> Vec<bool> {
    let summands: Vec<_> = programs.iter().map(summands).collect();
    let mut fixed_sums = Vec::new();
    for i in 0..summands[0].len() {
        // A summand depends on earlier sums only.
        let is_fixed = |(program, summands): (&Program, &Vec<(&View, BufferId)>)| {
            fixed_buffers(program, &fixed_sums)[summands[i].0.buffer.0 as usize]
        };
        let fixed = programs.iter().zip(&summands).all(is_fixed);
        fixed_sums.push(fixed);
    }
    fixed_sums
}

/// Returns, for each buffer, whether it depends on constants and variables alone. Sums that are not in
/// `fixed_sums` are not fixed.
fn fixed_buffers(program: &Program, fixed_sums: &[bool]) -> Vec<bool> {
    let is_fixed = |kind: &BufferKind| matches!(kind, BufferKind::Constant(_) | BufferKind::Variable(_));
    let mut fixed: Vec<bool> = program.buffers.iter().map(|b| is_fixed(&b.kind)).collect();
    let mut sums = fixed_sums.iter().copied();
    for node in &program.kernels {
        let result = match &node.kernel {
            Kernel::AllReduce { .. } => sums.next().unwrap_or(false),
            kernel => kernel.is_pure() && kernel.reads().iter().all(|v| fixed[v.buffer.0 as usize]),
        };
        node.outputs.iter().for_each(|b| fixed[b.0 as usize] = result);
    }
    fixed
}

/// Rewrites the program of one tower.
struct Inliner<'a> {
    programs: &'a [Program],
    fixed_sums: &'a [bool],
    tower: usize,
    program: Program,
    /// For each tower, the buffers of this program that stand for its buffers.
    buffers: Vec<HashMap<BufferId, BufferId>>,
}

impl<'a> Inliner<'a> {
    fn new(programs: &'a [Program], fixed_sums: &'a [bool], tower: usize) -> Inliner<'a> {
        let program = Program { kernels: Vec::new(), ..programs[tower].clone() };
        Inliner { programs, fixed_sums, tower, program, buffers: vec![HashMap::new(); programs.len()] }
    }

    fn run(mut self) -> Program {
        let programs = self.programs;
        let all: Vec<Vec<(&View, BufferId)>> = programs.iter().map(summands).collect();
        let mut next = 0;
        for node in &programs[self.tower].kernels {
            let mut node = node.clone();
            if matches!(node.kernel, Kernel::AllReduce { .. }) {
                if self.fixed_sums[next] {
                    let operand = |(tower, all): (usize, &Vec<(&View, BufferId)>)| {
                        let (view, sum) = all[next];
                        // Later summands of that tower may read the sum.
                        self.buffers[tower].insert(sum, node.outputs[0]);
                        View { buffer: self.import(tower, view.buffer), ..view.clone() }
                    };
                    let operands = all.iter().enumerate().map(operand).collect();
                    node.kernel = sum_of_towers(operands);
                }
                next += 1;
            }
            self.program.kernels.push(node);
        }
        self.program
    }

    /// Returns the buffer of this program for a fixed buffer of a tower, with the kernels that compute
    /// it.
    fn import(&mut self, tower: usize, id: BufferId) -> BufferId {
        if tower == self.tower {
            return id;
        }
        if let Some(&known) = self.buffers[tower].get(&id) {
            return known;
        }
        let programs = self.programs;
        let buffer = programs[tower].buffer(id);
        let made = match &buffer.kind {
            BufferKind::Variable(v) => {
                let same = |kind: &BufferKind| matches!(kind, BufferKind::Variable(w) if w == v);
                self.program.buffers.iter().position(|b| same(&b.kind)).map(|i| BufferId(i as u32))
            }
            _ => None,
        };
        let made =
            made.unwrap_or_else(|| self.program.add_buffer(buffer.dtype, &buffer.sizes, buffer.kind.clone()));
        self.buffers[tower].insert(id, made);
        let maker = programs[tower].kernels.iter().find(|node| node.outputs.contains(&id));
        if let Some(maker) = maker {
            let mut node = maker.clone();
            for view in node.kernel.reads_mut() {
                view.buffer = self.import(tower, view.buffer);
            }
            for output in &mut node.outputs {
                let buffer = programs[tower].buffer(*output);
                let known = self.buffers[tower].get(output).copied();
                let made = known.unwrap_or_else(|| {
                    self.program.add_buffer(buffer.dtype, &buffer.sizes, BufferKind::Temp)
                });
                self.buffers[tower].insert(*output, made);
                *output = made;
            }
            self.program.kernels.push(node);
        }
        made
    }
}
