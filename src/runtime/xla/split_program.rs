//! Runs that are not one program: each tower runs a part by itself, and a joint program on the device
//! of the first tower does the rest.
//!
//! Towers whose programs differ, such as towers with batches of different sizes, cannot be one SPMD
//! program. Each runs a program of its own up to the sums over towers, and passes the summands on. The
//! joint program adds them up, in the order of [`SumTree`], and computes everything that depends on the
//! sums. It also learns whether each tower's part succeeded, so that either all variables are updated
//! or none.
//!
//! Runs of forks are split, too: the part that reads a snapshot of the variables runs at any time, and
//! the joint program during the fork's turn with the variables.

use super::fixed_sums::inline_fixed_sums;
use super::spmd::{Part, SpmdProgram};
use crate::distributed::SumTree;
use crate::kir::{
    Binary, BufferId, BufferKind, Class, ExprBuilder, Kernel, KernelNode, MapBody, Program, Reg, Update, View,
};
use crate::runtime::Lowered;
use std::collections::HashMap;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The programs of a run that is split.
pub(super) struct SplitProgram {
    /// What each tower computes by itself.
    pub(super) towers: Vec<SpmdProgram>,
    /// What depends on the sums, or on the current variables.
    pub(super) joint: SpmdProgram,
    /// For each value that is passed to the joint program, the tower and the index among those that
    /// it passes on.
    pub(super) passed: Vec<(usize, usize)>,
    /// For each fetched value, its program (the joint one comes after the towers) and its index among
    /// the fetches of that program.
    pub(super) fetches: Vec<(usize, usize)>,
}

/// Splits the programs of towers at the sums over them. The joint program alone reads variables that
/// `is_divided` over the devices: each device has a shard of them, and it runs on all.
///
/// Returns an error if a sum depends on another sum, or on a divided variable: the towers would have
/// to wait for each other in the middle of their programs.
pub(super) fn split_at_sums(lowered: &Lowered, is_divided: &dyn Fn(usize) -> bool) -> Result<SplitProgram> {
    let programs = inline_fixed_sums(lowered.programs());
    let after = |program: &Program| buffers_after_sums(program, is_divided);
    let summed = programs.iter().map(after).collect::<Result<Vec<_>>>()?;
    Ok(split(lowered, &programs, &summed))
}

/// Splits the program of a fork where it starts to read the current variables.
///
/// Returns an error if it has several towers.
pub(super) fn split_at_variables(lowered: &Lowered) -> Result<SplitProgram> {
    let [program] = lowered.programs() else {
        let why = format!("a fork runs one tower on XLA, not {}", lowered.programs().len());
        return Err(Error::new(ErrorKind::Unsupported, why)
            .note("run several towers in the session itself, not in its fork"));
    };
    Ok(split(lowered, lowered.programs(), &[live_buffers(program)]))
}

/// Splits the programs of towers. `after` tells for each buffer of each tower whether the joint program
/// computes it.
fn split(lowered: &Lowered, programs: &[Program], after: &[Vec<bool>]) -> SplitProgram {
    let mut split = Split::new(programs, lowered.feeds().len(), after);
    split.sums();
    for tower in 0..programs.len() {
        split.kernels(tower);
    }
    let mut fetches = Vec::new();
    for &(tower, at) in lowered.fetches() {
        let (program, at) = split.fetch(tower, at);
        fetches.push((program, at));
    }
    split.finish(fetches)
}

/// Returns, for each buffer of a tower, whether it depends on the current variables.
fn live_buffers(program: &Program) -> Vec<bool> {
    let mut live: Vec<bool> =
        program.buffers.iter().map(|b| matches!(b.kind, BufferKind::Variable(_))).collect();
    for node in &program.kernels {
        if node.kernel.reads().iter().any(|v| live[v.buffer.0 as usize]) {
            node.outputs.iter().for_each(|b| live[b.0 as usize] = true);
        }
    }
    live
}

/// Returns, for each buffer of a tower, whether it depends on a sum over towers or on a divided
/// variable.
fn buffers_after_sums(program: &Program, is_divided: &dyn Fn(usize) -> bool) -> Result<Vec<bool>> {
    let divided = |kind: &BufferKind| matches!(kind, BufferKind::Variable(v) if is_divided(*v));
    let mut summed: Vec<bool> = program.buffers.iter().map(|b| divided(&b.kind)).collect();
    for node in &program.kernels {
        let depends = node.kernel.reads().iter().any(|v| summed[v.buffer.0 as usize]);
        let is_sum = matches!(node.kernel, Kernel::AllReduce { .. });
        if depends && is_sum {
            let why = "a sum over towers with batches of different sizes, or other programs that differ, \
                       cannot depend on another sum, or on optimizer state that devices divide";
            return Err(Error::new(ErrorKind::Unsupported, why)
                .note("XLA runs such towers as separate programs, which meet once, before the update")
                .note("synchronized batch normalization needs batches of equal sizes on XLA")
                .within(&node.origin.name)
                .at(node.origin.site));
        }
        if depends || is_sum {
            node.outputs.iter().for_each(|b| summed[b.0 as usize] = true);
        }
    }
    Ok(summed)
}

/// Returns a kernel that adds up what all towers contribute, in the order of [`SumTree`].
pub(super) fn sum_of_towers(summands: Vec<View>) -> Kernel {
    let (dtype, sizes) = (summands[0].dtype, summands[0].sizes.clone());
    let (class, mut b) = (Class::from_dtype(dtype), ExprBuilder::default());
    let loaded: Vec<Reg> = (0..summands.len()).map(|tower| b.operand(tower, dtype, class)).collect();
    let sum = SumTree::new(summands.len()).fold(loaded, |x, y| b.binary(Binary::Add, x, y));
    let expr = b.finish(&sum.into_iter().collect::<Vec<Reg>>());
    Kernel::Map(MapBody { sizes, operands: summands, expr })
}

struct Split<'a> {
    programs: &'a [Program],
    /// The number of feeds of the run. Further feeds of the joint program are passed on by towers.
    feeds: usize,
    /// For each buffer of each tower, whether the joint program computes it.
    after: &'a [Vec<bool>],
    /// The part of each tower.
    towers: Vec<Program>,
    passes: Vec<Vec<View>>,
    joint: Program,
    /// For each tower, the joint program's buffers for the tower's.
    buffers: Vec<HashMap<BufferId, BufferId>>,
    passed: Vec<(usize, usize)>,
}

impl<'a> Split<'a> {
    fn new(programs: &'a [Program], feeds: usize, after: &'a [Vec<bool>]) -> Split<'a> {
        let part = |(program, after): (&Program, &Vec<bool>)| {
            let own = |b: &BufferId| !after[b.0 as usize];
            let views = |views: &[View]| views.iter().filter(|v| own(&v.buffer)).cloned().collect();
            Program {
                buffers: program.buffers.clone(),
                kernels: program.kernels.iter().filter(|n| n.outputs.iter().all(own)).cloned().collect(),
                costs: views(&program.costs),
                finite: program.finite.iter().copied().filter(own).collect(),
                kept: views(&program.kept),
                materialized: program.materialized.iter().copied().filter(own).collect(),
                recomputed: program.recomputed.clone(),
                infinite: program.infinite.clone(),
                ..Program::default()
            }
        };
        Split {
            towers: programs.iter().zip(after).map(part).collect(),
            passes: vec![Vec::new(); programs.len()],
            joint: Program::default(),
            buffers: vec![HashMap::new(); programs.len()],
            passed: Vec::new(),
            programs,
            feeds,
            after,
        }
    }

    /// Returns the joint program's buffer for a buffer of a tower. A result of the tower's own part is
    /// passed on.
    fn buffer(&mut self, tower: usize, id: BufferId) -> BufferId {
        if let Some(&known) = self.buffers[tower].get(&id) {
            return known;
        }
        let buffer = self.programs[tower].buffer(id);
        let kind = match &buffer.kind {
            BufferKind::Temp | BufferKind::Snapshot(_) => {
                self.passed.push((tower, self.passes[tower].len()));
                self.passes[tower].push(View::dense(id, buffer.dtype, &buffer.sizes));
                BufferKind::Feed(self.feeds + self.passed.len() - 1)
            }
            kind => kind.clone(),
        };
        let same = |other: &BufferKind| match (other, &kind) {
            (BufferKind::Variable(a), BufferKind::Variable(b)) => a == b,
            (BufferKind::Feed(a), BufferKind::Feed(b)) => a == b,
            _ => false,
        };
        let there = self.joint.buffers.iter().position(|b| same(&b.kind)).map(|i| BufferId(i as u32));
        let made = there.unwrap_or_else(|| self.joint.add_buffer(buffer.dtype, &buffer.sizes, kind));
        self.buffers[tower].insert(id, made);
        made
    }

    fn view(&mut self, tower: usize, view: &View) -> View {
        View { buffer: self.buffer(tower, view.buffer), ..view.clone() }
    }

    /// Adds up the summands of all towers. Lowering has checked that these are the same in all towers,
    /// in the same order.
    fn sums(&mut self) {
        let programs = self.programs;
        let sums = |program: &'a Program| {
            let sum = |node: &'a KernelNode| match &node.kernel {
                Kernel::AllReduce { input, .. } => Some((input, node)),
                _ => None,
            };
            program.kernels.iter().filter_map(sum).collect::<Vec<(&View, &KernelNode)>>()
        };
        let sums: Vec<Vec<(&View, &KernelNode)>> = programs.iter().map(sums).collect();
        for i in 0..sums[0].len() {
            let (first, node) = sums[0][i];
            let summands = (0..programs.len()).map(|t| self.view(t, sums[t][i].0)).collect();
            let kernel = sum_of_towers(summands);
            let output = self.joint.add_buffer(first.dtype, &first.sizes, BufferKind::Temp);
            for (tower, sums) in sums.iter().enumerate() {
                self.buffers[tower].insert(sums[i].1.outputs[0], output);
            }
            let origin = node.origin.clone();
            self.joint.kernels.push(KernelNode { kernel, outputs: vec![output], origin });
        }
    }

    /// Moves a tower's further kernels, its updates and checks to the joint program.
    fn kernels(&mut self, tower: usize) {
        let program = &self.programs[tower];
        let depends = |b: &BufferId| self.after[tower][b.0 as usize];
        let after = program.kernels.iter().filter(|n| n.outputs.iter().any(depends));
        for node in after.filter(|n| !matches!(n.kernel, Kernel::AllReduce { .. })) {
            let mut kernel = node.kernel.clone();
            for view in kernel.reads_mut() {
                *view = self.view(tower, view);
            }
            let output = |&id: &BufferId| {
                let buffer = program.buffer(id);
                let made = self.joint.add_buffer(buffer.dtype, &buffer.sizes, BufferKind::Temp);
                self.buffers[tower].insert(id, made);
                made
            };
            let outputs = node.outputs.iter().map(output).collect();
            self.joint.kernels.push(KernelNode { kernel, outputs, origin: node.origin.clone() });
        }
        for u in &program.updates {
            let value = self.view(tower, &u.value);
            self.joint.updates.push(Update { value, ..u.clone() });
        }
        let costs: Vec<View> = program.costs.iter().filter(|v| depends(&v.buffer)).cloned().collect();
        for cost in costs {
            let cost = self.view(tower, &cost);
            self.joint.costs.push(cost);
        }
        let joint = |ids: &[BufferId]| -> Vec<BufferId> {
            ids.iter().filter(|b| depends(b)).map(|b| self.buffers[tower][b]).collect()
        };
        let (finite, materialized) = (joint(&program.finite), joint(&program.materialized));
        for b in finite {
            // Towers share the sums.
            if !self.joint.finite.contains(&b) {
                self.joint.finite.push(b);
            }
        }
        self.joint.materialized.extend(materialized);
        self.joint.infinite.extend(&program.infinite);
    }

    /// Adds a fetch. Returns its program and its index there.
    fn fetch(&mut self, tower: usize, at: usize) -> (usize, usize) {
        let view = &self.programs[tower].fetches[at];
        let origin = self.programs[tower].fetch_origins.get(at).cloned();
        let (index, program, view) = match self.after[tower][view.buffer.0 as usize] {
            true => {
                let view = self.view(tower, view);
                (self.towers.len(), &mut self.joint, view)
            }
            false => (tower, &mut self.towers[tower], view.clone()),
        };
        program.fetches.push(view);
        program.fetch_origins.extend(origin);
        (index, program.fetches.len() - 1)
    }

    fn finish(self, fetches: Vec<(usize, usize)>) -> SplitProgram {
        let tower = |(program, passes): (&Program, Vec<View>)| SpmdProgram {
            part: Part::Tower { passes },
            ..SpmdProgram::single(program, Vec::new())
        };
        let towers = self.towers.iter().zip(self.passes).map(tower).collect();
        let part = Part::Joint { towers: self.towers.len(), first_passed: self.feeds };
        let joint = SpmdProgram { part, ..SpmdProgram::single(&self.joint, Vec::new()) };
        SplitProgram { towers, joint, passed: self.passed, fetches }
    }
}
