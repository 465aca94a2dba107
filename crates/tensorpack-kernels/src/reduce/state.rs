//! Accumulators of reductions: their initial values, how two of them merge, and how they become
//! outputs.
//!
//! A state is one or two planes of 8-byte values, with one column per result. Floats of any type
//! accumulate in f64, so only the additions within a tile are done in f32.

use crate::Isa;
use crate::elementwise::steps::{self, Value};
use crate::expr::Class;
use crate::reduce::ReduceKind;
use crate::scalar::Number;
use std::slice::from_raw_parts_mut;
use tensorpack_tensor::DType;

/// The states of some neighboring results, in planes `pitch` values apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    pub(crate) at: *mut u64,
    pub(crate) pitch: usize,
    pub(crate) width: usize,
}

impl State {
    /// # Safety
    /// The plane must exist and hold values of type `T`, and nothing else may access it meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn plane<'a, T>(self, plane: usize) -> &'a mut [T] {
        const { assert!(size_of::<T>() == 8) };
        // SAFETY: guaranteed by the caller.
        unsafe { from_raw_parts_mut(self.at.add(plane * self.pitch).cast(), self.width) }
    }
}

/// Initializes states to those of empty reductions.
///
/// # Safety
/// The state's planes must be writable.
pub(crate) unsafe fn clear(kind: ReduceKind, class: Class, state: State) {
    fn first<W: Number>(kind: ReduceKind) -> W {
        match kind {
            ReduceKind::Sum | ReduceKind::Moments => W::ZERO,
            ReduceKind::Prod => W::ONE,
            ReduceKind::Max | ReduceKind::ArgMax => W::LOWEST,
            ReduceKind::Min | ReduceKind::ArgMin => W::HIGHEST,
        }
    }
    // SAFETY: guaranteed by the caller; positions and moments start at zero, which is all zero
    // bits.
    unsafe {
        match class {
            Class::I64 => state.plane::<i64>(0).fill(first(kind)),
            _ => state.plane::<f64>(0).fill(first(kind)),
        }
        if kind.planes() == 2 {
            state.plane::<u64>(1).fill(0);
        }
    }
}

/// Returns whether `x` replaces the best value so far: only if strictly better, so that the first
/// of equal values stays.
#[inline(always)]
pub(crate) fn beats<W: Number>(kind: ReduceKind, x: W, best: W) -> bool {
    let better = if kind == ReduceKind::ArgMax { x > best } else { x < best };
    better | (x.is_nan() & !best.is_nan())
}

/// Merges the moments of `n` values into those of `seen` others (Chan, Golub and LeVeque).
#[inline(always)]
pub(crate) fn merge_moments(mean: &mut f64, m2: &mut f64, seen: usize, mean_b: f64, m2_b: f64, n: usize) {
    let (a, b) = (seen as f64, n as f64);
    let delta = mean_b - *mean;
    *mean += delta * (b / (a + b));
    *m2 += m2_b.max(0.0) + delta * delta * (a * b / (a + b));
}

/// Merges the state of `n` more values into that of the `seen` values before them.
///
/// # Safety
/// The states must be readable and the first writable, and they must not overlap.
pub(crate) unsafe fn merge(kind: ReduceKind, class: Class, into: State, seen: usize, from: State, n: usize) {
    if kind == ReduceKind::Moments {
        // SAFETY: the state of moments is two planes of f64.
        let (a, a2, b, b2) = unsafe { (into.plane(0), into.plane(1), from.plane(0), from.plane(1)) };
        for c in 0..into.width {
            merge_moments(&mut a[c], &mut a2[c], seen, b[c], b2[c], n);
        }
        return;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        match class {
            Class::I64 => merge_of::<i64>(kind, into, from),
            _ => merge_of::<f64>(kind, into, from),
        }
    }
}

unsafe fn merge_of<W: Number>(kind: ReduceKind, into: State, from: State) {
    // SAFETY: guaranteed by the caller, as are the other planes, if any.
    let (a, b) = unsafe { (into.plane::<W>(0), from.plane::<W>(0)) };
    for c in 0..into.width {
        match kind {
            ReduceKind::Sum | ReduceKind::Moments => a[c] = a[c].add(b[c]),
            ReduceKind::Prod => a[c] = a[c].mul(b[c]),
            ReduceKind::Max => a[c] = a[c].max(b[c]),
            ReduceKind::Min => a[c] = a[c].min(b[c]),
            ReduceKind::ArgMax | ReduceKind::ArgMin => {
                if beats(kind, b[c], a[c]) {
                    a[c] = b[c];
                    // SAFETY: these kinds have positions in the second plane.
                    unsafe { into.plane::<i64>(1)[c] = from.plane::<i64>(1)[c] };
                }
            }
        }
    }
}

/// Writes results from the states of `total` values each, from position `at` of the outputs.
///
/// # Safety
/// The state must have this kind and class, and the outputs must have room.
pub(crate) unsafe fn finish(
    isa: Isa,
    kind: ReduceKind,
    class: Class,
    state: State,
    total: usize,
    outputs: &[(*mut u8, DType)],
    at: usize,
) {
    let wide = if class == Class::I64 && kind != ReduceKind::Moments { Class::I64 } else { Class::F64 };
    let write = |plane: usize, class: Class, output: usize| {
        let (out, dtype) = outputs[output];
        let value = Value { ptr: state.at.wrapping_add(plane * state.pitch).cast(), scalar: false };
        // SAFETY: guaranteed by the caller.
        unsafe { steps::store(isa, class, dtype, state.width, value, out.wrapping_add(at * dtype.size())) };
    };
    match kind {
        ReduceKind::ArgMax | ReduceKind::ArgMin => write(1, Class::I64, 0),
        ReduceKind::Moments => {
            // SAFETY: the state of moments is two planes of f64.
            unsafe { state.plane::<f64>(1) }.iter_mut().for_each(|m2| *m2 /= total as f64);
            write(0, wide, 0);
            write(1, wide, 1);
        }
        _ => write(0, wide, 0),
    }
}

/// Writes the results of empty reductions to all `len` elements of the outputs.
///
/// # Safety
/// The outputs must have room.
pub(crate) unsafe fn finish_empty(
    isa: Isa,
    kind: ReduceKind,
    class: Class,
    outputs: &[(*mut u8, DType)],
    len: usize,
) {
    for &(out, dtype) in outputs {
        let (lowest, highest) = match dtype {
            DType::I32 => (i32::MIN.into(), i32::MAX.into()),
            DType::U8 => (0, u8::MAX.into()),
            DType::Bool => (0, 1),
            _ => (i64::MIN, i64::MAX),
        };
        let whole = class == Class::I64 && kind != ReduceKind::Moments;
        let (int, float) = match kind {
            ReduceKind::Sum | ReduceKind::ArgMax | ReduceKind::ArgMin => (0, 0.0),
            ReduceKind::Prod => (1, 1.0),
            ReduceKind::Max => (lowest, f64::NEG_INFINITY),
            ReduceKind::Min => (highest, f64::INFINITY),
            ReduceKind::Moments => (0, f64::NAN),
        };
        let (class, ptr) = if whole {
            (Class::I64, (&raw const int).cast::<u8>())
        } else {
            (Class::F64, (&raw const float).cast())
        };
        // SAFETY: guaranteed by the caller; the value is one element to repeat.
        unsafe { steps::store(isa, class, dtype, len, Value { ptr, scalar: true }, out) };
    }
}
