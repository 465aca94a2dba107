//! The loops of reductions: folding tiles into running states, merging states, and turning them into results.
//!
//! A state is one or two planes of 8-byte numbers, one column each per result: floats are kept in f64 whatever their
//! own type, so only a tile's worth of additions is ever done in f32.

use crate::Isa;
use crate::element::{To, with_class};
use crate::expr::Class;
use crate::number::Number;
use crate::per_isa::per_isa;
use crate::reduce::ReduceKind;
use crate::steps::{self, Value};
use std::slice::{from_raw_parts, from_raw_parts_mut};
use tensorpack_tensor::DType;

/// Independent sums in a row's reduction: enough to keep wide vector units busy.
const LANES: usize = 64;

/// The width below which several rows of columns are folded side by side.
pub(crate) const WIDE: usize = 128;

/// The states of some neighbouring results: planes `pitch` numbers apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    pub(crate) at: *mut u64,
    pub(crate) pitch: usize,
    pub(crate) width: usize,
}

impl State {
    /// # Safety
    /// The plane must be there, hold numbers of the type and be used by nobody else meanwhile.
    #[inline(always)]
    unsafe fn plane<'a, T>(self, plane: usize) -> &'a mut [T] {
        const { assert!(size_of::<T>() == 8) };
        // SAFETY: passed on from the caller.
        unsafe { from_raw_parts_mut(self.at.add(plane * self.pitch).cast(), self.width) }
    }
}

/// What a class's running results are kept in, and what its moments are computed in.
pub(crate) trait Summand: Number + To<Self> + To<Self::Wide> + To<Self::Real> {
    /// The type of running results.
    type Wide: Number + To<Self::Wide>;
    /// The type of deviations from a mean.
    type Real: Number;
    /// The nearest number of the type in which deviations are taken.
    fn real(x: f64) -> Self::Real;
}

impl Summand for f32 {
    type Wide = f64;
    type Real = f32;
    #[inline(always)]
    fn real(x: f64) -> f32 {
        x as f32
    }
}

impl Summand for f64 {
    type Wide = f64;
    type Real = f64;
    #[inline(always)]
    fn real(x: f64) -> f64 {
        x
    }
}

impl Summand for i64 {
    type Wide = i64;
    type Real = f64;
    #[inline(always)]
    fn real(x: f64) -> f64 {
        x
    }
}

/// Makes states those of reductions over nothing.
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
    // SAFETY: passed on from the caller; positions and moments start at a zero of all zero bits.
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

per_isa! {
    /// Folds `rows` rows of `state.width` columns into the states of the columns. `seen` rows were folded before;
    /// `temp` is working memory for three times the width, at least [`WIDE`], in numbers of 8 bytes.
    ///
    /// # Safety
    /// The data, of the class, must be readable, the state and working memory writable, and all apart.
    pub(crate) unsafe fn fold_columns(kind: ReduceKind, class: Class, data: *const u8, rows: usize, seen: usize,
        state: State, temp: *mut u64) = fold_columns_body
}

#[inline(always)]
unsafe fn fold_columns_body<const FAST: bool>(
    kind: ReduceKind,
    class: Class,
    data: *const u8,
    rows: usize,
    seen: usize,
    state: State,
    temp: *mut u64,
) {
    // SAFETY: passed on from the caller.
    with_class!(class, T => unsafe { columns_of::<T>(kind, data, rows, seen, state, temp) });
}

#[inline(always)]
unsafe fn columns_of<T: Summand>(
    kind: ReduceKind,
    data: *const u8,
    rows: usize,
    seen: usize,
    state: State,
    temp: *mut u64,
) {
    let width = state.width;
    // SAFETY: passed on from the caller.
    let data = unsafe { from_raw_parts(data.cast::<T>(), rows * width) };
    // SAFETY: the first plane is of the wide type, but for moments, which take it as f64 below.
    let wide = || unsafe { state.plane::<T::Wide>(0) };
    match kind {
        // SAFETY: the working memory is apart and large enough, here and below.
        ReduceKind::Sum => unsafe {
            stacked::<T>(data, wide(), temp, T::ZERO, |a, b| a.add(b), |a, b| a.add(b))
        },
        ReduceKind::Max => {
            // SAFETY: as above.
            unsafe { stacked::<T>(data, wide(), temp, T::LOWEST, |a, b| a.max(b), |a, b| a.max(b)) }
        }
        ReduceKind::Min => {
            // SAFETY: as above.
            unsafe { stacked::<T>(data, wide(), temp, T::HIGHEST, |a, b| a.min(b), |a, b| a.min(b)) }
        }
        ReduceKind::Prod => {
            // Products leave the range of f32 easily: they are wide from the start.
            for row in data.chunks_exact(width) {
                for (p, &x) in wide().iter_mut().zip(row) {
                    *p = p.mul(x.to());
                }
            }
        }
        ReduceKind::ArgMax | ReduceKind::ArgMin => {
            // SAFETY: the second plane holds positions.
            let (best, at) = (wide(), unsafe { state.plane::<i64>(1) });
            for (r, row) in data.chunks_exact(width).enumerate() {
                let r = (seen + r) as i64;
                for ((best, at), &x) in best.iter_mut().zip(at.iter_mut()).zip(row) {
                    let x: T::Wide = x.to();
                    let wins = beats(kind, x, *best);
                    *best = if wins { x } else { *best };
                    *at = if wins { r } else { *at };
                }
            }
        }
        ReduceKind::Moments => {
            // SAFETY: as above; a moment's state is two planes of f64.
            unsafe { column_moments::<T>(data, rows, seen, state, temp) }
        }
    }
}

/// Whether `x` takes the place of the best so far: only if better, so that the first of equals stays.
#[inline(always)]
fn beats<W: Number>(kind: ReduceKind, x: W, best: W) -> bool {
    let better = if kind == ReduceKind::ArgMax { x > best } else { x < best };
    better | (x.is_nan() & !best.is_nan())
}

/// How many rows are folded side by side.
#[inline(always)]
fn stack(width: usize) -> usize {
    (WIDE / width).max(1)
}

/// Folds rows of columns, several side by side if they are narrow, first in their own type and then into `plane`.
///
/// # Safety
/// `temp` must have room for the stacked width.
#[inline(always)]
unsafe fn stacked<T: Summand>(
    data: &[T],
    plane: &mut [T::Wide],
    temp: *mut u64,
    start: T,
    f: impl Fn(T, T) -> T,
    g: impl Fn(T::Wide, T::Wide) -> T::Wide,
) {
    let width = plane.len();
    if data.len() == width {
        for (p, &x) in plane.iter_mut().zip(data) {
            *p = g(*p, x.to());
        }
        return;
    }
    // SAFETY: passed on from the caller.
    let sums = unsafe { from_raw_parts_mut(temp.cast::<T>(), width * stack(width)) };
    sums.fill(start);
    for row in data.chunks(sums.len()) {
        for (s, &x) in sums.iter_mut().zip(row) {
            *s = f(*s, x);
        }
    }
    for row in sums.chunks_exact(width) {
        for (p, &s) in plane.iter_mut().zip(row) {
            *p = g(*p, s.to());
        }
    }
}

/// Mean and squared deviations of each column of a tile, around its own mean, merged into the state.
///
/// # Safety
/// As for [`fold_columns`].
#[inline(always)]
unsafe fn column_moments<T: Summand>(data: &[T], rows: usize, seen: usize, state: State, temp: *mut u64) {
    let width = state.width;
    let full = width * stack(width);
    // SAFETY: the working memory has room for three of these, and the state is two planes of f64.
    let (sums, squares, shift, mean, m2) = unsafe {
        (
            from_raw_parts_mut(temp.cast::<T::Real>(), full),
            from_raw_parts_mut(temp.add(full).cast::<T::Real>(), full),
            from_raw_parts_mut(temp.add(2 * full).cast::<T::Real>(), full),
            state.plane::<f64>(0),
            state.plane::<f64>(1),
        )
    };
    sums.fill(T::Real::ZERO);
    for row in data.chunks(full) {
        for (s, &x) in sums.iter_mut().zip(row) {
            *s = s.add(x.to());
        }
    }
    let share = 1.0 / rows as f64;
    for c in 0..width {
        let sum: f64 = sums[c..].iter().step_by(width).map(|&s| s.to()).sum();
        shift[c] = T::real(sum * share);
    }
    for c in width..full {
        shift[c] = shift[c - width];
    }
    sums.fill(T::Real::ZERO);
    squares.fill(T::Real::ZERO);
    for row in data.chunks(full) {
        for (((s, q), &m), &x) in sums.iter_mut().zip(squares.iter_mut()).zip(shift.iter()).zip(row) {
            let x: T::Real = x.to();
            let d = x.sub(m);
            *s = s.add(d);
            *q = q.add(d.mul(d));
        }
    }
    for c in 0..width {
        let s: f64 = sums[c..].iter().step_by(width).map(|&s| s.to()).sum();
        let q: f64 = squares[c..].iter().step_by(width).map(|&q| q.to()).sum();
        let shift: f64 = shift[c].to();
        merge_moments(&mut mean[c], &mut m2[c], seen, shift + s * share, q - s * s * share, rows);
    }
}

/// Adds the moments of `n` numbers to those of `seen` others (Chan, Golub and LeVeque).
#[inline(always)]
fn merge_moments(mean: &mut f64, m2: &mut f64, seen: usize, mean_b: f64, m2_b: f64, n: usize) {
    let (a, b) = (seen as f64, n as f64);
    let delta = mean_b - *mean;
    *mean += delta * (b / (a + b));
    *m2 += m2_b.max(0.0) + delta * delta * (a * b / (a + b));
}

per_isa! {
    /// Folds `state.width` rows of `len` numbers each into the state of each row; `seen` numbers of each were folded
    /// before.
    ///
    /// # Safety
    /// The data, of the class, must be readable and the state writable.
    pub(crate) unsafe fn fold_rows(kind: ReduceKind, class: Class, data: *const u8, len: usize, seen: usize,
        state: State) = fold_rows_body
}

#[inline(always)]
unsafe fn fold_rows_body<const FAST: bool>(
    kind: ReduceKind,
    class: Class,
    data: *const u8,
    len: usize,
    seen: usize,
    state: State,
) {
    // SAFETY: passed on from the caller.
    with_class!(class, T => unsafe { rows_of::<T>(kind, data, len, seen, state) });
}

#[inline(always)]
unsafe fn rows_of<T: Summand>(kind: ReduceKind, data: *const u8, len: usize, seen: usize, state: State) {
    // SAFETY: passed on from the caller.
    let data = unsafe { from_raw_parts(data.cast::<T>(), len * state.width) };
    let rows = data.chunks_exact(len);
    // SAFETY: the first plane is of the wide type, but for moments, which take it as f64 below.
    let wide = || unsafe { state.plane::<T::Wide>(0) };
    match kind {
        ReduceKind::Sum => {
            for (p, row) in wide().iter_mut().zip(rows) {
                *p = p.add(lanes(row, T::ZERO, T::Wide::ZERO, |a, x| a.add(x), |a, b| a.add(b)));
            }
        }
        ReduceKind::Prod => {
            for (p, row) in wide().iter_mut().zip(rows) {
                let one = T::Wide::ONE;
                *p = p.mul(lanes(row, one, one, |a, x: T| a.mul(x.to()), |a, b| a.mul(b)));
            }
        }
        ReduceKind::Max => {
            for (p, row) in wide().iter_mut().zip(rows) {
                *p = p.max(lanes(row, T::LOWEST, T::Wide::LOWEST, |a, x| a.max(x), |a, b| a.max(b)));
            }
        }
        ReduceKind::Min => {
            for (p, row) in wide().iter_mut().zip(rows) {
                *p = p.min(lanes(row, T::HIGHEST, T::Wide::HIGHEST, |a, x| a.min(x), |a, b| a.min(b)));
            }
        }
        ReduceKind::ArgMax | ReduceKind::ArgMin => {
            // SAFETY: the second plane holds positions.
            let at = unsafe { state.plane::<i64>(1) };
            for ((best, at), row) in wide().iter_mut().zip(at).zip(rows) {
                // First the extreme, many numbers at a time; where it is only if it is news.
                let x = if kind == ReduceKind::ArgMax {
                    lanes(row, T::LOWEST, T::LOWEST, |a, x| a.max(x), |a, b: T| a.max(b))
                } else {
                    lanes(row, T::HIGHEST, T::HIGHEST, |a, x| a.min(x), |a, b: T| a.min(b))
                };
                if beats(kind, x.to(), *best) {
                    let place = row.iter().position(|&y| y == x || (x.is_nan() && y.is_nan()));
                    (*best, *at) = (x.to(), (seen + place.unwrap_or(0)) as i64);
                }
            }
        }
        ReduceKind::Moments => {
            // SAFETY: a moment's state is two planes of f64.
            let (mean, m2) = unsafe { (state.plane::<f64>(0), state.plane::<f64>(1)) };
            let (zero, share) = (T::Real::ZERO, 1.0 / len as f64);
            for ((mean, m2), row) in mean.iter_mut().zip(m2).zip(rows) {
                let sum: f64 = lanes(row, zero, 0.0, |a, x: T| a.add(x.to()), |a, b| a + b);
                let shift = T::real(sum * share);
                let s: f64 = lanes(
                    row,
                    zero,
                    0.0,
                    |a, x: T| {
                        let x: T::Real = x.to();
                        a.add(x.sub(shift))
                    },
                    |a, b| a + b,
                );
                let q: f64 = lanes(
                    row,
                    zero,
                    0.0,
                    |a, x: T| {
                        let x: T::Real = x.to();
                        let d = x.sub(shift);
                        a.add(d.mul(d))
                    },
                    |a, b| a + b,
                );
                let shift: f64 = shift.to();
                merge_moments(mean, m2, seen, shift + s * share, q - s * s * share, len);
            }
        }
    }
}

/// Folds a row in many independent lanes of type `A`, and those into one `W`.
#[inline(always)]
fn lanes<T: Copy, A: Copy + To<W>, W: Copy>(
    row: &[T],
    start: A,
    end: W,
    f: impl Fn(A, T) -> A,
    g: impl Fn(W, W) -> W,
) -> W {
    let blocks = row.chunks_exact(LANES);
    let rest = blocks.remainder();
    let mut result = end;
    if row.len() >= LANES {
        let mut sums = [start; LANES];
        for block in blocks {
            for (s, &x) in sums.iter_mut().zip(block) {
                *s = f(*s, x);
            }
        }
        for s in sums {
            result = g(result, s.to());
        }
    }
    let mut sum = start;
    for &x in rest {
        sum = f(sum, x);
    }
    g(result, sum.to())
}

/// Adds the state of `n` more numbers to that of `seen`, which come before them.
///
/// # Safety
/// The states must be readable and the first writable, and apart.
pub(crate) unsafe fn merge(kind: ReduceKind, class: Class, into: State, seen: usize, from: State, n: usize) {
    if kind == ReduceKind::Moments {
        // SAFETY: a moment's state is two planes of f64.
        let (a, a2, b, b2) = unsafe { (into.plane(0), into.plane(1), from.plane(0), from.plane(1)) };
        for c in 0..into.width {
            merge_moments(&mut a[c], &mut a2[c], seen, b[c], b2[c], n);
        }
        return;
    }
    // SAFETY: passed on from the caller.
    unsafe {
        match class {
            Class::I64 => merge_of::<i64>(kind, into, from),
            _ => merge_of::<f64>(kind, into, from),
        }
    }
}

unsafe fn merge_of<W: Number>(kind: ReduceKind, into: State, from: State) {
    // SAFETY: passed on from the caller, as are the other planes where there are any.
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

/// Writes results from the states of `total` numbers each, from position `at` of the outputs.
///
/// # Safety
/// The state must be that of the kind and class, and the outputs have room.
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
        // SAFETY: passed on from the caller.
        unsafe { steps::store(isa, class, dtype, state.width, value, out.wrapping_add(at * dtype.size())) };
    };
    match kind {
        ReduceKind::ArgMax | ReduceKind::ArgMin => write(1, Class::I64, 0),
        ReduceKind::Moments => {
            // SAFETY: a moment's state is two planes of f64.
            unsafe { state.plane::<f64>(1) }.iter_mut().for_each(|m2| *m2 /= total as f64);
            write(0, wide, 0);
            write(1, wide, 1);
        }
        _ => write(0, wide, 0),
    }
}

/// Writes the results of reductions over nothing to all `len` elements of the outputs.
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
        // SAFETY: passed on from the caller; the value is one number to repeat.
        unsafe { steps::store(isa, class, dtype, len, Value { ptr, scalar: true }, out) };
    }
}
