//! Proves that updates do not overflow, before anything is written.
//!
//! Kernels that compute gradients record the extremes of their results while these are in cache.
//! Interval arithmetic over the update's expression turns those and the known bounds of variables
//! into bounds on the next values. If they are finite, the update runs in place, and its bounds
//! become the bounds of the variables for the next step. Such bounds only grow, because they assume
//! the worst case in every step; once they prove nothing, the variables are measured again. An
//! update that still cannot be proven finite first runs on trial: it writes its next values to
//! scratch memory, and those are checked.

use super::interval::{Bound, Interval, evaluate};
use crate::kir::{Class, Expr};
use crate::runtime::executor::Feed;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack_kernels::{Extremes, Isa};
use tensorpack_tensor::DType;

/// Larger feeds are not measured for a proof.
const SMALL_FEED: usize = 1024;

/// The extremes of a tensor, accumulated by several threads.
#[derive(Debug, Default)]
pub(super) struct Measured {
    top: AtomicU64,
    bottom: AtomicU64,
}

impl Measured {
    pub(super) fn reset(&self) {
        self.top.store(0, Ordering::Relaxed);
        self.bottom.store(0, Ordering::Relaxed);
    }

    /// Merges the extremes of one piece. Most pieces change nothing, so threads rarely write.
    pub(super) fn add(&self, piece: Extremes) {
        if piece.top > self.top.load(Ordering::Relaxed) {
            self.top.fetch_max(piece.top, Ordering::Relaxed);
        }
        if piece.bottom > self.bottom.load(Ordering::Relaxed) {
            self.bottom.fetch_max(piece.bottom, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self) -> Extremes {
        Extremes { top: self.top.load(Ordering::Relaxed), bottom: self.bottom.load(Ordering::Relaxed) }
    }
}

/// Returns bounds on elements with these extremes; exact for a single element.
pub(super) fn bound(extremes: Extremes, dtype: DType, single: bool) -> Bound {
    if !extremes.are_finite(dtype) {
        return None;
    }
    let [low, high] = extremes.bounds(dtype);
    Some(match single {
        true if low < 0.0 => Interval::new(low, low),
        true => Interval::new(high, high),
        false => Interval::new(low, high),
    })
}

/// Returns bounds on all values of an integer type; `None` for floats.
pub(super) fn any_of(dtype: DType) -> Bound {
    match dtype {
        DType::Bool => Some(Interval::new(0.0, 1.0)),
        DType::U8 => Some(Interval::new(0.0, 255.0)),
        DType::I32 => Some(Interval::new(f64::from(i32::MIN), f64::from(i32::MAX))),
        DType::I64 => Some(Interval::new(i64::MIN as f64, i64::MAX as f64)),
        DType::F32 | DType::F64 | DType::Bf16 | DType::F16 => None,
    }
}

/// The knowledge about the value of a variable.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Value {
    pub(super) bound: Bound,
    /// Whether the bound comes from a proof rather than from measuring the elements.
    pub(super) proven: bool,
}

/// The source of the bound on an operand of an update.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// The measured extremes of a result of the run, and whether it has one element.
    Result { slot: usize, single: bool },
    /// The known bound of a variable.
    Variable(usize),
    /// A feed.
    Feed(usize),
    /// A bound that never changes.
    Always(Bound),
}

/// A proof obligation: a fused update writes only finite values.
#[derive(Debug)]
pub(super) struct Proof {
    pub(super) expr: Expr,
    pub(super) sizes: Vec<usize>,
    /// The type of each operand and its sources: one for each variable of the update.
    pub(super) operands: Vec<(DType, Vec<Source>)>,
    pub(super) outputs: Vec<Output>,
}

/// An output of a fused update.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    pub(super) dtype: DType,
    /// Whether it must be finite.
    pub(super) finite: bool,
}

/// The known extremes and bounds when a proof is tried.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) results: &'a [Measured],
    pub(super) variables: &'a [Value],
    pub(super) feeds: &'a [Feed<'a>],
    pub(super) isa: Isa,
}

/// Scratch memory of a proof, kept so that no run allocates.
#[derive(Debug, Default)]
pub(super) struct Room {
    operands: Vec<(Bound, DType)>,
    values: Vec<(Bound, Class)>,
}

impl Room {
    pub(super) fn new(proofs: &[Proof]) -> Room {
        let operands = proofs.iter().map(|p| p.operands.len()).max().unwrap_or(0);
        let values = proofs.iter().map(|p| p.expr.steps.len()).max().unwrap_or(0);
        Room { operands: Vec::with_capacity(operands), values: Vec::with_capacity(values) }
    }
}

impl Proof {
    /// Returns whether all outputs that must be finite are. Writes bounds on all outputs to `next`.
    pub(super) fn holds(&self, known: Known<'_>, room: &mut Room, next: &mut [Bound]) -> bool {
        room.operands.clear();
        for (dtype, sources) in &self.operands {
            let mut bounds = sources.iter().map(|s| s.bound(*dtype, known));
            let first = bounds.next().unwrap_or(None);
            let all = bounds.fold(first, |all, next| all.zip(next).map(|(a, b)| a.hull(b)));
            room.operands.push((all, *dtype));
        }
        evaluate(&self.expr, &room.operands, &self.sizes, &mut room.values);
        let mut holds = true;
        for ((reg, output), next) in self.expr.outputs.iter().zip(&self.outputs).zip(next) {
            let (bound, class) = room.values[reg.0 as usize];
            *next = bound.and_then(|x| x.stored(class, output.dtype));
            holds &= next.is_some() || !output.finite;
        }
        holds
    }
}

impl Source {
    pub(super) fn bound(&self, dtype: DType, known: Known<'_>) -> Bound {
        if !dtype.is_float() {
            return any_of(dtype);
        }
        match *self {
            Source::Result { slot, single } => bound(known.results[slot].get(), dtype, single),
            Source::Variable(index) => known.variables[index].bound,
            Source::Feed(i) => {
                let fed = known.feeds[i];
                if fed.len() > SMALL_FEED {
                    return None;
                }
                // SAFETY: `as_bytes` returns the tensor's elements, `fed.len()` of type
                // `fed.dtype()`, and the engine limits `isa` to this CPU's (`Shared::new`).
                let of = unsafe {
                    tensorpack_kernels::extremes(known.isa, fed.dtype(), fed.as_bytes().as_ptr(), fed.len())
                };
                bound(of, dtype, fed.len() == 1)
            }
            Source::Always(bound) => bound,
        }
    }
}
