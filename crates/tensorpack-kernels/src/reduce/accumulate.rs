//! The inner loops of reductions: fold the rows of columns of a tile, or its rows of elements, into
//! accumulators.

use crate::expr::Class;
use crate::reduce::ReduceKind;
use crate::reduce::state::{State, beats, merge_moments};
use crate::scalar::Number;
use crate::scalar::element::{To, with_class};
use crate::simd::per_isa::per_isa;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// Independent accumulators, and columns of a block: enough to keep wide vector units busy.
const LANES: usize = 64;

/// The same for short rows.
const FEW: usize = 8;

/// Maximum width of several narrow rows folded side by side.
pub(crate) const WIDE: usize = 1024;

/// A class with the types of its accumulators and moments.
pub(crate) trait Summand: Number + To<Self::Wide> + To<Self::Real> {
    /// The accumulator type.
    type Wide: Number;
    /// The type of deviations from the mean.
    type Real: Number;
    /// Rounds to the type of deviations.
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

per_isa! {
    /// Folds `rows` rows of `state.width` columns into the accumulators of the columns, after
    /// `seen` earlier rows. `temp` is scratch memory for three times the width, at least [`WIDE`],
    /// in 8-byte words.
    ///
    /// # Safety
    /// The data, of type `class`, must be readable, the state and scratch memory writable, and none
    /// may overlap.
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
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: guaranteed by the caller.
    let data = unsafe { from_raw_parts(data.cast::<T>(), rows * width) };
    // SAFETY: the first plane has the wide type, except for moments, which use it as f64 below.
    let wide = || unsafe { state.plane::<T::Wide>(0) };
    match kind {
        // SAFETY: the scratch memory is separate and large enough, here and below.
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
            // Products overflow f32 easily: they are wide from the start.
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
            // SAFETY: as above; the state of moments is two planes of f64.
            unsafe { column_moments::<T>(data, rows, seen, state, temp) }
        }
    }
}

/// Returns how many rows to fold side by side: enough to fill whole blocks of columns, if there are
/// as many rows.
#[inline(always)]
fn stack(width: usize, rows: usize) -> usize {
    // Enough to make the width a multiple of a block's, or at least as wide as a block.
    let whole = LANES >> width.trailing_zeros().min(LANES.trailing_zeros());
    if whole <= rows && whole * width <= WIDE { whole } else { LANES.div_ceil(width).min(rows) }
}

/// Folds rows as wide as `sums`, and a possible partial row, one block of columns at a time, so
/// that the `K` accumulators of a block's columns stay in registers. `f` also gets the column's
/// element of `side`.
#[inline(always)]
fn fold_blocks<T: Copy, A: Copy, const K: usize>(
    data: &[T],
    mut sums: [&mut [A]; K],
    start: A,
    side: Option<&[A]>,
    f: impl Fn([A; K], A, T) -> [A; K],
) {
    let full = sums[0].len();
    let rows = data.chunks_exact(full);
    let rest = rows.remainder();
    let mut at = 0;
    while at + LANES <= full {
        let mut block = [[start; LANES]; K];
        let aside: [A; LANES] =
            side.map_or([start; LANES], |s| s[at..at + LANES].try_into().expect("a whole block"));
        for row in rows.clone() {
            let row: &[T; LANES] = row[at..at + LANES].try_into().expect("a whole block");
            for l in 0..LANES {
                let next = f(std::array::from_fn(|k| block[k][l]), aside[l], row[l]);
                for k in 0..K {
                    block[k][l] = next[k];
                }
            }
        }
        for k in 0..K {
            sums[k][at..at + LANES].copy_from_slice(&block[k]);
        }
        at += LANES;
    }
    let mut put = |c: usize, before: Option<A>, x: T| {
        let aside = side.map_or(start, |s| s[c]);
        let next = f(std::array::from_fn(|k| before.unwrap_or(sums[k][c])), aside, x);
        for k in 0..K {
            sums[k][c] = next[k];
        }
    };
    for (r, row) in rows.enumerate() {
        for (c, &x) in row.iter().enumerate().skip(at) {
            put(c, (r == 0).then_some(start), x);
        }
    }
    for (c, &x) in rest.iter().enumerate() {
        put(c, None, x);
    }
}

/// Folds rows that lie side by side into the first `width` columns.
#[inline(always)]
fn unstack<A: Copy>(sums: &mut [A], width: usize, f: impl Fn(A, A) -> A) {
    let mut rows = sums.len() / width;
    while rows > 1 {
        let half = rows / 2;
        let (low, high) = sums[..rows * width].split_at_mut(half * width);
        for (a, &b) in low.iter_mut().zip(high.iter()) {
            *a = f(*a, b);
        }
        if rows % 2 == 1 {
            for (a, &b) in low.iter_mut().zip(&high[half * width..]) {
                *a = f(*a, b);
            }
        }
        rows = half;
    }
}

/// Folds rows of columns, several side by side if they are narrow, first in their own type and then
/// into `plane`.
///
/// # Safety
/// `temp` must have room for [`WIDE`] words, or for the width if that is more.
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
    let rows = data.len() / width;
    let full = width * stack(width, rows);
    let sums = if rows == 1 {
        data
    } else {
        // SAFETY: guaranteed by the caller.
        let sums = unsafe { from_raw_parts_mut(temp.cast::<T>(), full) };
        fold_blocks(data, [&mut *sums], start, None, |[s], _, x| [f(s, x)]);
        unstack(sums, width, &f);
        sums
    };
    for (p, &s) in plane.iter_mut().zip(sums) {
        *p = g(*p, s.to());
    }
}

/// Merges the mean of each column of a tile, and the squared deviations from it, into the state.
///
/// # Safety
/// Same as [`fold_columns`].
#[inline(always)]
unsafe fn column_moments<T: Summand>(data: &[T], rows: usize, seen: usize, state: State, temp: *mut u64) {
    let width = state.width;
    let full = width * stack(width, rows);
    // SAFETY: the scratch memory has room for three of these, and the state is two planes of f64.
    let (sums, squares, shift, mean, m2) = unsafe {
        (
            from_raw_parts_mut(temp.cast::<T::Real>(), full),
            from_raw_parts_mut(temp.add(full).cast::<T::Real>(), full),
            from_raw_parts_mut(temp.add(2 * full).cast::<T::Real>(), full),
            state.plane::<f64>(0),
            state.plane::<f64>(1),
        )
    };
    let share = 1.0 / rows as f64;
    fold_blocks(data, [&mut *shift], T::Real::ZERO, None, |[s], _, x| [s.add(x.to())]);
    unstack(shift, width, |a, b| a.add(b));
    for s in &mut shift[..width] {
        let sum: f64 = s.to();
        *s = T::real(sum * share);
    }
    for row in 1..full / width {
        shift.copy_within(..width, row * width);
    }
    let shift = &*shift;
    fold_blocks(data, [&mut *sums, &mut *squares], T::Real::ZERO, Some(shift), |[s, q], mean, x| {
        let x: T::Real = x.to();
        let d = x.sub(mean);
        [s.add(d), q.add(d.mul(d))]
    });
    unstack(sums, width, |a, b| a.add(b));
    unstack(squares, width, |a, b| a.add(b));
    for ((((mean, m2), &s), &q), &shift) in mean.iter_mut().zip(m2).zip(&*sums).zip(&*squares).zip(shift) {
        let (s, q, shift): (f64, f64, f64) = (s.to(), q.to(), shift.to());
        merge_moments(mean, m2, seen, shift + s * share, q - s * s * share, rows);
    }
}

per_isa! {
    /// Folds `state.width` rows of `len` elements into the accumulators of the rows, after `seen`
    /// earlier elements of each.
    ///
    /// # Safety
    /// The data, of type `class`, must be readable and the state writable.
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
    // SAFETY: guaranteed by the caller.
    with_class!(class, T => unsafe { rows_of::<T>(kind, data, len, seen, state) });
}

#[inline(always)]
unsafe fn rows_of<T: Summand>(kind: ReduceKind, data: *const u8, len: usize, seen: usize, state: State) {
    // SAFETY: guaranteed by the caller.
    let data = unsafe { from_raw_parts(data.cast::<T>(), len * state.width) };
    let rows = data.chunks_exact(len);
    // SAFETY: the first plane has the wide type, except for moments, which use it as f64 below.
    let wide = || unsafe { state.plane::<T::Wide>(0) };
    match kind {
        ReduceKind::Sum => {
            for (p, row) in wide().iter_mut().zip(rows) {
                let [sum] = lanes(row, T::ZERO, |[a], x: T| [a.add(x)], |a, b| a.add(b));
                *p = p.add(sum.to());
            }
        }
        ReduceKind::Prod => {
            for (p, row) in wide().iter_mut().zip(rows) {
                let [product] = lanes(row, T::Wide::ONE, |[a], x: T| [a.mul(x.to())], |a, b| a.mul(b));
                *p = p.mul(product);
            }
        }
        ReduceKind::Max => {
            for (p, row) in wide().iter_mut().zip(rows) {
                let [x] = lanes(row, T::LOWEST, |[a], x: T| [a.max(x)], |a, b| a.max(b));
                *p = p.max(x.to());
            }
        }
        ReduceKind::Min => {
            for (p, row) in wide().iter_mut().zip(rows) {
                let [x] = lanes(row, T::HIGHEST, |[a], x: T| [a.min(x)], |a, b| a.min(b));
                *p = p.min(x.to());
            }
        }
        ReduceKind::ArgMax | ReduceKind::ArgMin => {
            // SAFETY: the second plane holds positions.
            let at = unsafe { state.plane::<i64>(1) };
            for ((best, at), row) in wide().iter_mut().zip(at).zip(rows) {
                // First the extreme value, vectorized; search for its position only if it beats the
                // best so far.
                let [x] = if kind == ReduceKind::ArgMax {
                    lanes(row, T::LOWEST, |[a], x: T| [a.max(x)], |a, b| a.max(b))
                } else {
                    lanes(row, T::HIGHEST, |[a], x: T| [a.min(x)], |a, b| a.min(b))
                };
                if beats(kind, x.to(), *best) {
                    let place = row.iter().position(|&y| y == x || (x.is_nan() && y.is_nan()));
                    (*best, *at) = (x.to(), (seen + place.unwrap_or(0)) as i64);
                }
            }
        }
        ReduceKind::Moments => {
            // SAFETY: the state of moments is two planes of f64.
            let (mean, m2) = unsafe { (state.plane::<f64>(0), state.plane::<f64>(1)) };
            let (zero, share) = (T::Real::ZERO, 1.0 / len as f64);
            for ((mean, m2), row) in mean.iter_mut().zip(m2).zip(rows) {
                let [sum] = lanes(row, zero, |[a], x: T| [a.add(x.to())], |a, b| a.add(b));
                let sum: f64 = sum.to();
                let shift = T::real(sum * share);
                let deviate = |[s, q]: [T::Real; 2], x: T| {
                    let x: T::Real = x.to();
                    let d = x.sub(shift);
                    [s.add(d), q.add(d.mul(d))]
                };
                let [s, q] = lanes(row, zero, deviate, |a, b| a.add(b));
                let (s, q, shift): (f64, f64, f64) = (s.to(), q.to(), shift.to());
                merge_moments(mean, m2, seen, shift + s * share, q - s * s * share, len);
            }
        }
    }
}

/// Folds a row into `K` results, with many independent lanes that are combined at the end.
#[inline(always)]
fn lanes<T: Copy, A: Copy, const K: usize>(
    row: &[T],
    start: A,
    f: impl Fn([A; K], T) -> [A; K],
    g: impl Fn(A, A) -> A,
) -> [A; K] {
    let mut result = [start; K];
    let mut rest = row;
    if row.len() >= LANES {
        (result, rest) = folded::<T, A, K, LANES>(row, start, &f, &g);
    }
    if rest.len() >= FEW {
        let (sum, left) = folded::<T, A, K, FEW>(rest, start, &f, &g);
        (result, rest) = (std::array::from_fn(|k| g(result[k], sum[k])), left);
    }
    rest.iter().fold(result, |a, &x| f(a, x))
}

/// Folds the whole blocks of a row, and returns the remainder as well.
#[inline(always)]
fn folded<'a, T: Copy, A: Copy, const K: usize, const N: usize>(
    row: &'a [T],
    start: A,
    f: &impl Fn([A; K], T) -> [A; K],
    g: &impl Fn(A, A) -> A,
) -> ([A; K], &'a [T]) {
    let mut sums = [[start; N]; K];
    let blocks = row.chunks_exact(N);
    let rest = blocks.remainder();
    for block in blocks {
        let block: &[T; N] = block.try_into().expect("a whole block");
        for l in 0..N {
            let next = f(std::array::from_fn(|k| sums[k][l]), block[l]);
            for k in 0..K {
                sums[k][l] = next[k];
            }
        }
    }
    // Combine distant lanes first, so that the first rounds work on whole vectors.
    let mut half = N / 2;
    while half > 0 {
        for sums in &mut sums {
            for l in 0..half {
                sums[l] = g(sums[l], sums[l + half]);
            }
        }
        half /= 2;
    }
    (sums.map(|s| s[0]), rest)
}
