//! Whether an update can overflow, told from bounds of what it reads before it writes anything.
//!
//! The kernels that make gradients find their extremes while they are in cache. From those and from bounds of the
//! variables, interval arithmetic bounds all that an update computes. Where that proves it finite, as it does for all but
//! numbers near overflow, nothing is computed twice, and the bounds of what it wrote are those of the variables in the next
//! step. They grow, since they assume the worst of every step; where they prove nothing any more, the variables are looked
//! at. What cannot be proven then runs on trial: it computes its next values aside, and those are checked.

use super::interval::{Bound, Interval, evaluate};
use crate::kir::{Class, Expr};
use crate::runtime::executor::Feed;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack_kernels::{Extremes, Isa};
use tensorpack_tensor::DType;

/// Feeds of more elements are not looked at for a proof.
const SMALL_FEED: usize = 1024;

/// The extremes of a tensor, found piece by piece by several threads.
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

    /// Adds those of a piece. Most pieces change nothing, so that threads rarely write here.
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

/// Bounds of elements of `dtype` with these extremes: exact if there is but one element.
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

/// Bounds of whatever a type can hold, if that is finite.
pub(super) fn any_of(dtype: DType) -> Bound {
    match dtype {
        DType::Bool => Some(Interval::new(0.0, 1.0)),
        DType::U8 => Some(Interval::new(0.0, 255.0)),
        DType::I32 => Some(Interval::new(f64::from(i32::MIN), f64::from(i32::MAX))),
        DType::I64 => Some(Interval::new(i64::MIN as f64, i64::MAX as f64)),
        DType::F32 | DType::F64 | DType::Bf16 => None,
    }
}

/// What is known of the value of a variable.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Value {
    pub(super) bound: Bound,
    /// Whether the bound is that of a proof, and not of the elements as they are.
    pub(super) proven: bool,
}

/// What bounds an operand of an update.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// What the run measured of one of its results; and whether that has one element.
    Result { slot: usize, single: bool },
    /// What is known of a variable.
    Variable(usize),
    /// What is fed.
    Feed(usize),
    /// What never changes.
    Always(Bound),
}

/// All that a proof for one pass over variables takes.
#[derive(Debug)]
pub(super) struct Proof {
    pub(super) expr: Expr,
    pub(super) sizes: Vec<usize>,
    /// By operand, its type and what bounds it: one source for each variable that the pass runs over.
    pub(super) operands: Vec<(DType, Vec<Source>)>,
    pub(super) outputs: Vec<Output>,
}

/// An output of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    pub(super) dtype: DType,
    /// Whether it must be finite.
    pub(super) finite: bool,
}

/// What is known when a proof is tried.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) results: &'a [Measured],
    pub(super) variables: &'a [Value],
    pub(super) feeds: &'a [Feed<'a>],
    pub(super) isa: Isa,
}

/// Room for a proof, kept so that no run allocates.
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
    /// Whether all outputs that must be finite are sure to be. Bounds of all of them go to `next`.
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
                // SAFETY: the bytes are the tensor's elements, which are of the type that the program was made for.
                let of = unsafe {
                    tensorpack_kernels::extremes(known.isa, fed.dtype(), fed.as_bytes().as_ptr(), fed.len())
                };
                bound(of, dtype, fed.len() == 1)
            }
            Source::Always(bound) => bound,
        }
    }
}
