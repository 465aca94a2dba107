//! The compiler passes of the CPU engine: one ordered list.
//!
//! A pass rewrites one tower's program and calls no other pass. Each documents its preconditions
//! where it checks them. Debug builds validate the program after every pass;
//! [`CpuOptions::dump_passes`](super::CpuOptions) dumps it.

use super::commit::{self, Commit};
use super::variables::Variables;
use super::{
    constant_folding, dense_fetches, fuse, panels, pool_grad_hoist, prepack_weights, snapshot, upcast_narrow,
};
use crate::kir::{self, BufferId, Program};
use std::collections::HashSet;
use tensorpack_kernels::{Bf16Isa, Isa};
use tensorpack_tensor::{HostTensor, Result};

/// The purpose of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// A run: everything fused, variables updated at the end.
    Fast,
    /// A run of a fork: like `Fast`, but with all kernels that need the variables themselves at the
    /// end, so that other forks can use the variables until then.
    Apart,
    /// A search for the first result that is not finite: every result is stored, and no variable
    /// changes.
    Inspect,
}

/// A program in the pipeline, with the CPU-only choices that the IR does not express.
pub(super) struct Compilation {
    pub(super) program: Program,
    /// The updates of variables, after `split_commit`.
    pub(super) commit: Commit,
    /// Kernels before this one read no variable, at most a snapshot.
    pub(super) live_from: usize,
    /// Matrices that are stored in panels.
    pub(super) panels: HashSet<BufferId>,
    /// Whether convolutions use the direct algorithm only.
    pub(super) exact_convolutions: bool,
    /// Whether filters that are variables stay packed from run to run (see `packed_filters.rs`).
    pub(super) keeps_filters: bool,
    /// The number of threads that run it.
    pub(super) threads: usize,
    /// The instructions for products of bf16; without them bf16 is computed in f32.
    pub(super) bf16: Option<Bf16Isa>,
}

/// Returns the instructions for bf16 that go with a choice of instruction set.
pub(super) fn bf16_isa(isa: Option<Isa>) -> Option<Bf16Isa> {
    Bf16Isa::detect().filter(|_| isa.is_none_or(|isa| isa == Isa::Avx512))
}

impl Compilation {
    /// Returns the number of elements of a buffer as it is stored.
    pub(super) fn stored_len(&self, b: BufferId) -> usize {
        let buffer = self.program.buffer(b);
        if self.panels.contains(&b) { panels::len(buffer) } else { buffer.len() }
    }

    /// Returns the number of bytes of a buffer as it is stored.
    pub(super) fn stored_bytes(&self, b: BufferId) -> usize {
        self.stored_len(b).saturating_mul(self.program.buffer(b).dtype.size())
    }

    /// Starts with a program as it was lowered.
    pub(super) fn new(
        program: Program,
        exact_convolutions: bool,
        threads: usize,
        bf16: Option<Bf16Isa>,
    ) -> Compilation {
        let (commit, panels) = Default::default();
        let (live_from, keeps_filters) = (0, false);
        Compilation { program, commit, live_from, panels, exact_convolutions, keeps_filters, threads, bf16 }
    }
}

/// The context of a pass.
pub(super) struct PassCx<'a> {
    pub(super) mode: Mode,
    /// Whether convolutions use the direct algorithm only.
    pub(super) full_precision: bool,
    /// The number of threads that run the program.
    pub(super) threads: usize,
    /// The instructions for products of bf16.
    pub(super) bf16: Option<Bf16Isa>,
    pub(super) variables: &'a mut Variables,
    /// Runs a program that reads only constants, and returns its fetches.
    pub(super) evaluate: &'a mut dyn FnMut(Program, &mut Variables) -> Result<Vec<HostTensor>>,
}

/// One compiler pass.
struct Pass {
    name: &'static str,
    /// The reason for it, in one line.
    why: &'static str,
    applies: fn(&PassCx<'_>) -> bool,
    run: fn(&mut Compilation, &mut PassCx<'_>) -> Result<()>,
}

fn always(_: &PassCx<'_>) -> bool {
    true
}

fn in_runs(cx: &PassCx<'_>) -> bool {
    cx.mode != Mode::Inspect
}

/// All passes, in the order in which they run.
const PASSES: &[Pass] = &[
    Pass {
        name: "upcast_narrow",
        why: "kernels that sum have loops for f32 and f64 only, except for products of bf16 on some CPUs",
        applies: always,
        run: |c, _| {
            upcast_narrow::upcast_narrow(&mut c.program, c.bf16.is_some());
            Ok(())
        },
    },
    Pass {
        name: "prepack_weights",
        why: "weights that many small products read are packed once",
        applies: always,
        run: |c, _| {
            c.panels = prepack_weights::prepack_weights(&mut c.program);
            Ok(())
        },
    },
    Pass {
        name: "constant_folding",
        why: "kernels that read constants only run once, at compile time",
        applies: in_runs,
        run: |c, cx| constant_folding::fold_constants(&mut c.program, cx),
    },
    Pass {
        name: "dense_fetches",
        why: "the caller gets dense tensors",
        applies: always,
        run: |c, _| {
            dense_fetches::dense_fetches(&mut c.program);
            Ok(())
        },
    },
    Pass {
        name: "inline_maps",
        why: "a map read by maps and reductions is computed inside them, if that moves less memory",
        applies: in_runs,
        run: |c, _| {
            fuse::inline_maps(&mut c.program);
            Ok(())
        },
    },
    Pass {
        name: "hoist_pool_grad_masks",
        why: "a mask that depends on max pooling's input costs less before the gradient, where elements are fewer",
        applies: in_runs,
        run: |c, _| {
            pool_grad_hoist::hoist_masks(&mut c.program);
            Ok(())
        },
    },
    Pass {
        name: "hoist_pool_grad_sums",
        why: "a sum of max pooling's gradient costs less before the gradient",
        applies: in_runs,
        run: |c, _| {
            pool_grad_hoist::hoist_sums(&mut c.program);
            Ok(())
        },
    },
    Pass {
        name: "fuse_epilogues",
        why: "a map of a contraction's result runs while the result is in cache",
        applies: in_runs,
        run: |c, _| {
            fuse::fuse_epilogues(&mut c.program);
            Ok(())
        },
    },
    Pass {
        name: "share_reductions",
        why: "reductions over the same iteration space share one pass over memory",
        applies: in_runs,
        run: |c, _| {
            fuse::share_reductions(&mut c.program);
            Ok(())
        },
    },
    Pass {
        name: "split_commit",
        why: "updates of variables wait for the finiteness check, then write in place, one pass per slab",
        applies: in_runs,
        run: |c, cx| {
            c.commit = commit::split(&mut c.program, cx.variables);
            Ok(())
        },
    },
    Pass {
        name: "drop_updates",
        why: "a search for a bad value changes no variable",
        applies: |cx| cx.mode == Mode::Inspect,
        run: |c, _| {
            c.program.updates.clear();
            Ok(())
        },
    },
    Pass {
        name: "split_live",
        why: "a fork holds the variables only for the kernels that need them",
        applies: |cx| cx.mode == Mode::Apart,
        run: |c, _| {
            c.live_from = snapshot::split_live(&mut c.program);
            Ok(())
        },
    },
];

/// Runs all passes on one tower's program. With `dump`, returns the program as text after each.
pub(super) fn run(program: Program, cx: &mut PassCx<'_>, dump: bool) -> Result<(Compilation, String)> {
    let mut compilation = Compilation::new(program, cx.full_precision, cx.threads, cx.bf16);
    let mut text = String::new();
    for pass in PASSES {
        if !(pass.applies)(cx) {
            continue;
        }
        (pass.run)(&mut compilation, cx)?;
        debug_assert!(still_valid(&compilation).is_ok(), "{}: {:?}", pass.name, still_valid(&compilation));
        if dump {
            text += &format!("after {} ({}):\n{}\n", pass.name, pass.why, compilation.program.dump());
        }
    }
    // The kernels trust the program, so an error in a pass must not reach them in any build.
    still_valid(&compilation)
        .map_err(|e| e.note("a compiler pass made an invalid program: please report this as a bug"))?;
    Ok((compilation, text))
}

/// Validates the program after a pass.
fn still_valid(compilation: &Compilation) -> Result<()> {
    let Compilation { program, commit, .. } = compilation;
    if commit.is_empty() {
        return kir::validate(program);
    }
    // The updates have moved to the commit.
    let (updates, kept) = Default::default();
    kir::validate(&Program { updates, kept, ..program.clone() })?;
    commit.reads().try_for_each(|v| kir::validate_view(program, v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_has_a_name_of_its_own_and_a_reason() {
        for (i, pass) in PASSES.iter().enumerate() {
            assert!(
                !pass.why.is_empty() && PASSES[..i].iter().all(|other| other.name != pass.name),
                "{}",
                pass.name
            );
        }
    }
}
