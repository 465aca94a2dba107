//! The plan of a program: every kernel compiled and every buffer placed before anything runs.
//!
//! `placement` decides where buffers lie, `emit` turns kernels and updates into steps,
//! `finite_checks` says what each step checks, and `describe` writes the plan as text.

use super::compiled_kernel::CompiledKernel;
use super::describe::describe;
use super::emit::Emitter;
use super::exchange::Split;
use super::finite_checks::{Checked, Copied, FiniteChecks};
use super::memory::padded;
use super::overflow::Proof;
use super::packed_filters::PackedFilter;
use super::pipeline::Compilation;
use super::placement::{Loc, Placement};
use super::snapshot;
use super::variables::Variables;
use crate::kir::{BufferKind, Kernel, Origin, View};
use std::sync::Arc;
use tensorpack_kernels::FilterPacking;
use tensorpack_tensor::{DType, HostTensor, Result};

/// One kernel, ready to run.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) kernel: CompiledKernel,
    pub(super) reads: Vec<Loc>,
    pub(super) writes: Vec<Loc>,
    /// Type and number of elements of each output.
    pub(super) outputs: Vec<(DType, usize)>,
    /// The checked elements of each output, in order; may be empty if there are none.
    pub(super) checked: Vec<Vec<Checked>>,
    /// The memory that all threads share while the step runs.
    pub(super) shared: SharedAt,
    pub(super) origin: Arc<Origin>,
    pub(super) bytes: f64,
}

/// Memory that all threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharedAt {
    Nowhere,
    /// At this offset in the arena.
    Arena(usize),
    /// In this one of the plan's packed filters.
    Filter(usize),
}

/// A value that is returned to the caller.
#[derive(Debug)]
pub(super) struct FetchAt {
    pub(super) loc: Loc,
    pub(super) dtype: DType,
    pub(super) sizes: Vec<usize>,
}

/// A program, ready to run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Steps before this one read no variable, at most a snapshot.
    pub(super) live_from: usize,
    /// Steps from here on change variables: first fused updates, then copies.
    pub(super) commit_from: usize,
    /// For each fused update, a proof obligation: what it writes is finite.
    pub(super) proofs: Vec<Proof>,
    /// Variables that are assigned copies.
    pub(super) copied: Vec<Copied>,
    /// Whether a variable that must be finite is assigned a constant that is not.
    pub(super) assigns_infinity: bool,
    /// Number of results whose extremes are recorded.
    pub(super) measured: usize,
    /// Variables of which a snapshot is read.
    pub(super) snapshots: Vec<usize>,
    pub(super) fetches: Vec<FetchAt>,
    pub(super) constants: Vec<HostTensor>,
    pub(super) arena_bytes: usize,
    pub(super) scratch_bytes: usize,
    /// Filters that stay packed from run to run.
    pub(super) filters: Vec<PackedFilter>,
    live_bytes: usize,
    text: String,
}

impl Plan {
    /// Places all buffers of a compiled program and emits its steps. `passes` is the dump of the
    /// pipeline; it is empty if there is none. `splits` are the all-reduces over several processes.
    pub(super) fn new(
        compilation: Compilation,
        variables: &Variables,
        passes: String,
        splits: &[Split],
    ) -> Result<Plan> {
        let program = &compilation.program;
        let nodes = program.kernels.iter();
        let kernels: Vec<CompiledKernel> =
            nodes.map(|node| CompiledKernel::new(&compilation, node)).collect::<Result<_>>()?;
        let keeps = kept_filters(&compilation, &kernels);
        let shared = kernels.iter().zip(&keeps).map(|(k, kept)| match kept {
            Some(_) => 0,
            None => padded(k.shared_bytes()),
        });
        let placement = Placement::new(&compilation, variables, &shared.collect::<Vec<usize>>())?;
        let text = passes + &describe(&compilation, &kernels, &placement);
        let checks = FiniteChecks::new(&compilation);
        let emitter =
            Emitter { compilation: &compilation, variables, placement: &placement, checks: &checks };
        let mut steps = emitter.steps(kernels);
        let mut filters: Vec<PackedFilter> = Vec::new();
        for (step, kept) in steps.iter_mut().zip(keeps) {
            if let Some((view, packing)) = kept {
                let (filter, bytes) = (placement.view(view), step.kernel.shared_bytes());
                let packed = PackedFilter { filter, packing, bytes };
                // Layers may share a filter.
                let at = filters.iter().position(|f| *f == packed).unwrap_or(filters.len());
                if at == filters.len() {
                    filters.push(packed);
                }
                step.shared = SharedAt::Filter(at);
            }
        }
        let (steps, commit_from) = split_all_reduces(steps, program.kernels.len(), splits);
        let fetch = |v| FetchAt { loc: placement.view(v), dtype: v.dtype, sizes: v.sizes.clone() };
        Ok(Plan {
            live_from: compilation.live_from,
            commit_from,
            proofs: checks.proofs(),
            copied: checks.copied(),
            assigns_infinity: checks.assigns_infinity(),
            measured: checks.slot_count(),
            snapshots: snapshot::snapshots(program, &compilation.commit),
            fetches: program.fetches.iter().map(fetch).collect(),
            arena_bytes: placement.arena_bytes,
            live_bytes: placement.live_bytes,
            constants: placement.constants,
            scratch_bytes: steps.iter().map(|s| s.kernel.scratch_bytes()).max().unwrap_or(0),
            filters,
            steps,
            text,
        })
    }

    /// Returns the bytes of memory that a tower with this many threads needs to run the plan.
    pub(super) fn bytes(&self, threads: usize) -> usize {
        let constants = self.constants.iter().fold(0usize, |n, c| n.saturating_add(c.as_bytes().len()));
        let scratch = padded(self.scratch_bytes).saturating_mul(threads);
        let filters = self.filters.iter().fold(0usize, |n, f| n.saturating_add(padded(f.bytes)));
        self.arena_bytes.saturating_add(scratch).saturating_add(constants).saturating_add(filters)
    }

    /// Returns the largest number of bytes that a fused update writes.
    pub(super) fn trial_bytes(&self) -> usize {
        let bytes = |step: &Step| step.outputs.iter().map(|(d, n)| padded(d.size() * n)).sum();
        let fused = self.commit_from..self.commit_from + self.proofs.len();
        self.steps[fused].iter().map(bytes).max().unwrap_or(0)
    }

    /// Returns whether a run changes any variable.
    pub(super) fn changes_variables(&self) -> bool {
        self.commit_from < self.steps.len()
    }

    /// Returns the plan as text, one line for each step.
    pub(super) fn text(&self) -> String {
        format!("{}arena {} bytes, live at once {} bytes\n", self.text, self.arena_bytes, self.live_bytes)
    }
}

/// Returns, for each kernel whose packed filter is kept, the filter and how it is packed: a variable
/// that this program does not change.
fn kept_filters<'a>(
    compilation: &'a Compilation,
    kernels: &[CompiledKernel],
) -> Vec<Option<(&'a View, FilterPacking)>> {
    let Compilation { program, commit, keeps_filters, .. } = compilation;
    let keeps = *keeps_filters && commit.is_empty() && program.updates.is_empty();
    let nodes = program.kernels.iter().zip(kernels);
    let kept = nodes.map(|(node, kernel)| match &node.kernel {
        Kernel::Contract { rhs, .. } if keeps => {
            let is_variable = matches!(program.buffer(rhs.buffer).kind, BufferKind::Variable(_));
            kernel.packing().filter(|_| is_variable).map(|packing| (rhs, packing))
        }
        _ => None,
    });
    kept.collect()
}

/// Replaces all-reduces by their two halves. Returns the steps, and where the commit begins.
fn split_all_reduces(steps: Vec<Step>, commit_from: usize, splits: &[Split]) -> (Vec<Step>, usize) {
    if splits.is_empty() {
        return (steps, commit_from);
    }
    let halves: Vec<(Step, Step)> =
        splits.iter().enumerate().map(|(index, split)| halves(&steps[split.kernel], index)).collect();
    let (mut starts, mut dones): (Vec<_>, Vec<_>) =
        halves.into_iter().map(|(start, done)| (Some(start), Some(done))).unzip();
    let (mut placed, mut new_commit_from) = (Vec::new(), 0);
    let mut steps = steps.into_iter();
    for i in 0..=commit_from {
        placed.extend(
            splits.iter().zip(&mut starts).filter(|(s, _)| s.start == i).filter_map(|(_, s)| s.take()),
        );
        let done_here = splits.iter().zip(&mut dones).filter(|(s, _)| s.done == Some(i));
        placed.extend(done_here.filter_map(|(_, done)| done.take()));
        new_commit_from = placed.len();
        if i < commit_from {
            let step = steps.next();
            placed.extend(step.filter(|_| !splits.iter().any(|s| s.kernel == i)));
        }
    }
    placed.extend(steps);
    (placed, new_commit_from)
}

/// Returns the two halves of an all-reduce.
fn halves(step: &Step, index: usize) -> (Step, Step) {
    let key = match &step.kernel {
        CompiledKernel::AllReduce { key, .. } => key.clone(),
        other => other.name().to_owned(),
    };
    let start = Step {
        kernel: CompiledKernel::AllReduceStart { index, key },
        reads: step.reads.clone(),
        writes: Vec::new(),
        outputs: Vec::new(),
        checked: Vec::new(),
        shared: SharedAt::Nowhere,
        origin: step.origin.clone(),
        bytes: step.bytes / 2.0,
    };
    let done = Step {
        kernel: CompiledKernel::AllReduceDone { index },
        reads: Vec::new(),
        writes: step.writes.clone(),
        outputs: step.outputs.clone(),
        checked: step.checked.clone(),
        shared: SharedAt::Nowhere,
        origin: step.origin.clone(),
        bytes: step.bytes / 2.0,
    };
    (start, done)
}
