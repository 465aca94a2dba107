//! The loops of each kind of step over one tile, for each instruction set. A value is either a
//! vector, with one element per element of the tile, or a scalar that stands for all of them; steps
//! with only scalar operands run once.

use crate::expr::{Binary, Class, Unary};
use crate::scalar::Number;
use crate::scalar::element::{To, convert, with_class, with_dtype};
use crate::simd::per_isa::per_isa;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use tensorpack_tensor::DType;

/// The location of a step's result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    /// The elements, of the class's type.
    pub(crate) ptr: *const u8,
    /// Whether one element stands for all.
    pub(crate) scalar: bool,
}

/// `dst[i] = f(a[i])`.
///
/// # Safety
/// `n` elements at each pointer; `dst` must not overlap `a`.
#[inline(always)]
unsafe fn each1<A: Copy, D>(n: usize, a: *const u8, dst: *mut u8, f: impl Fn(A) -> D) {
    // SAFETY: the caller guarantees n elements at each.
    let (a, dst) = unsafe { (from_raw_parts(a.cast::<A>(), n), from_raw_parts_mut(dst.cast::<D>(), n)) };
    for (d, &a) in dst.iter_mut().zip(a) {
        *d = f(a);
    }
}

/// Computes `dst[i] = f(a[i])` where `a[i]` is too large for the fast sine and cosine. That is
/// rare: a tile without such an element costs one comparison per element.
///
/// # Safety
/// `n` elements at each pointer; `dst` must not overlap `a`.
#[inline(always)]
unsafe fn each_far<T: Number, const FAST: bool>(n: usize, a: *const u8, dst: *mut u8, f: impl Fn(T) -> T) {
    if !FAST {
        return;
    }
    // SAFETY: the caller guarantees n elements at each.
    let (a, dst) = unsafe { (from_raw_parts(a.cast::<T>(), n), from_raw_parts_mut(dst.cast::<T>(), n)) };
    if !a.iter().fold(false, |any, x| any | x.is_far()) {
        return;
    }
    for (d, &a) in dst.iter_mut().zip(a).filter(|(_, a)| a.is_far()) {
        *d = f(a);
    }
}

/// `dst[i] = f(a[i], b[i])`, where either operand may be a scalar.
///
/// # Safety
/// `n` elements at each pointer (one at scalars), `dst` must not overlap the others.
#[inline(always)]
unsafe fn each2<A: Copy, B: Copy, D>(n: usize, a: Value, b: Value, dst: *mut u8, f: impl Fn(A, B) -> D) {
    // SAFETY: the caller guarantees n elements at `dst`.
    let dst = unsafe { from_raw_parts_mut(dst.cast::<D>(), n) };
    let (ap, bp) = (a.ptr.cast::<A>(), b.ptr.cast::<B>());
    if a.scalar {
        // SAFETY: a scalar has one element, and b, which is no scalar then unless n is 1, has n.
        let (a, b) = unsafe { (*ap, from_raw_parts(bp, n)) };
        for (d, &b) in dst.iter_mut().zip(b) {
            *d = f(a, b);
        }
    } else if b.scalar {
        // SAFETY: as above, the other way round.
        let (a, b) = unsafe { (from_raw_parts(ap, n), *bp) };
        for (d, &a) in dst.iter_mut().zip(a) {
            *d = f(a, b);
        }
    } else {
        // SAFETY: both have n elements.
        let (a, b) = unsafe { (from_raw_parts(ap, n), from_raw_parts(bp, n)) };
        for ((d, &a), &b) in dst.iter_mut().zip(a).zip(b) {
            *d = f(a, b);
        }
    }
}

per_isa! {
    /// Runs a unary step over `n` elements of `class`.
    ///
    /// # Safety
    /// `n` elements of the class at each pointer; `dst` must not overlap `a`.
    pub(crate) unsafe fn unary(op: Unary, class: Class, n: usize, a: *const u8, dst: *mut u8) = unary_body
}

#[inline(always)]
unsafe fn unary_body<const FAST: bool>(op: Unary, class: Class, n: usize, a: *const u8, dst: *mut u8) {
    // SAFETY: guaranteed by the caller.
    with_class!(class, T => unsafe { unary_of::<T, FAST>(op, n, a, dst) });
}

#[inline(always)]
unsafe fn unary_of<T: Number, const FAST: bool>(op: Unary, n: usize, a: *const u8, dst: *mut u8) {
    macro_rules! each {
        ($x:ident => $e:expr) => {
            // SAFETY: guaranteed by the caller.
            unsafe { each1::<T, T>(n, a, dst, |$x| $e) }
        };
    }
    match op {
        Unary::Neg => each!(x => x.neg()),
        Unary::Abs => each!(x => x.abs()),
        Unary::Sign => each!(x => x.sign()),
        Unary::Exp => each!(x => x.exp::<FAST>()),
        Unary::Expm1 => each!(x => x.expm1::<FAST>()),
        Unary::Log => each!(x => x.log::<FAST>()),
        Unary::Log1p => each!(x => x.log1p::<FAST>()),
        Unary::Sqrt => each!(x => x.sqrt()),
        Unary::Rsqrt => each!(x => T::ONE.div(x.sqrt())),
        Unary::Recip => each!(x => T::ONE.div(x)),
        Unary::Square => each!(x => x.mul(x)),
        Unary::Tanh => each!(x => x.tanh::<FAST>()),
        Unary::Sigmoid => each!(x => x.sigmoid::<FAST>()),
        Unary::Erf => each!(x => x.erf::<FAST>()),
        Unary::Sin => {
            each!(x => x.sin::<FAST>());
            // SAFETY: guaranteed by the caller.
            unsafe { each_far::<T, FAST>(n, a, dst, T::sin_far) }
        }
        Unary::Cos => {
            each!(x => x.cos::<FAST>());
            // SAFETY: guaranteed by the caller.
            unsafe { each_far::<T, FAST>(n, a, dst, T::cos_far) }
        }
        Unary::Floor => each!(x => x.floor()),
        Unary::Round => each!(x => x.round()),
        Unary::Relu => each!(x => x.relu()),
        Unary::Not => each!(x => T::from_bool(!x.is_true())),
        Unary::IsFinite => each!(x => T::from_bool(x.is_finite())),
    }
}

per_isa! {
    /// Runs a binary step over `n` elements of `class`. Not both operands are scalars, unless `n`
    /// is 1.
    ///
    /// # Safety
    /// `n` elements of the class at each pointer (one at scalars), `dst` must not overlap the
    /// others.
    pub(crate) unsafe fn binary(op: Binary, class: Class, n: usize, a: Value, b: Value, dst: *mut u8) = binary_body
}

#[inline(always)]
unsafe fn binary_body<const FAST: bool>(
    op: Binary,
    class: Class,
    n: usize,
    a: Value,
    b: Value,
    dst: *mut u8,
) {
    // SAFETY: guaranteed by the caller.
    with_class!(class, T => unsafe { binary_of::<T>(op, n, a, b, dst) });
}

#[inline(always)]
unsafe fn binary_of<T: Number>(op: Binary, n: usize, a: Value, b: Value, dst: *mut u8) {
    macro_rules! each {
        ($x:ident, $y:ident => $e:expr) => {
            // SAFETY: guaranteed by the caller.
            unsafe { each2::<T, T, T>(n, a, b, dst, |$x, $y| $e) }
        };
    }
    match op {
        Binary::Add => each!(x, y => x.add(y)),
        Binary::Sub => each!(x, y => x.sub(y)),
        Binary::Mul => each!(x, y => x.mul(y)),
        Binary::Div => each!(x, y => x.div(y)),
        Binary::Max => each!(x, y => x.max(y)),
        Binary::Min => each!(x, y => x.min(y)),
        Binary::Pow => each!(x, y => x.pow(y)),
        Binary::Eq => each!(x, y => T::from_bool(x == y)),
        Binary::Ne => each!(x, y => T::from_bool(x != y)),
        Binary::Lt => each!(x, y => T::from_bool(x < y)),
        Binary::Le => each!(x, y => T::from_bool(x <= y)),
        Binary::Gt => each!(x, y => T::from_bool(x > y)),
        Binary::Ge => each!(x, y => T::from_bool(x >= y)),
        Binary::And => each!(x, y => T::from_bool(x.is_true() & y.is_true())),
        Binary::Or => each!(x, y => T::from_bool(x.is_true() | y.is_true())),
    }
}

per_isa! {
    /// `dst = a where cond else b` over `n` elements: the condition has class `test`, the others
    /// `class`.
    ///
    /// # Safety
    /// `n` elements at each pointer (one at scalars), `dst` must not overlap the others.
    pub(crate) unsafe fn select(test: Class, class: Class, n: usize, cond: Value, ab: [Value; 2], dst: *mut u8) = select_body
}

#[inline(always)]
unsafe fn select_body<const FAST: bool>(
    test: Class,
    class: Class,
    n: usize,
    cond: Value,
    ab: [Value; 2],
    dst: *mut u8,
) {
    // SAFETY: guaranteed by the caller.
    with_class!(test, C => with_class!(class, T => unsafe { select_of::<C, T>(n, cond, ab[0], ab[1], dst) }));
}

#[inline(always)]
unsafe fn select_of<C: Number, T: Number>(n: usize, cond: Value, a: Value, b: Value, dst: *mut u8) {
    if cond.scalar {
        // SAFETY: a scalar has one element.
        let chosen = if unsafe { *cond.ptr.cast::<C>() }.is_true() { a } else { b };
        // SAFETY: the chosen value has n elements, or one to repeat.
        unsafe { copy::<T>(n, chosen, dst.cast()) };
        return;
    }
    // SAFETY: the condition has n elements, and dst too.
    let (cond, dst) =
        unsafe { (from_raw_parts(cond.ptr.cast::<C>(), n), from_raw_parts_mut(dst.cast::<T>(), n)) };
    let (ap, bp) = (a.ptr.cast::<T>(), b.ptr.cast::<T>());
    match (a.scalar, b.scalar) {
        (true, true) => {
            // SAFETY: both have one element.
            let (a, b) = unsafe { (*ap, *bp) };
            for (d, c) in dst.iter_mut().zip(cond) {
                *d = if c.is_true() { a } else { b };
            }
        }
        (true, false) => {
            // SAFETY: a has one element, b has n.
            let (a, b) = unsafe { (*ap, from_raw_parts(bp, n)) };
            for ((d, c), &b) in dst.iter_mut().zip(cond).zip(b) {
                *d = if c.is_true() { a } else { b };
            }
        }
        (false, true) => {
            // SAFETY: a has n elements, b has one.
            let (a, b) = unsafe { (from_raw_parts(ap, n), *bp) };
            for ((d, c), &a) in dst.iter_mut().zip(cond).zip(a) {
                *d = if c.is_true() { a } else { b };
            }
        }
        (false, false) => {
            // SAFETY: both have n elements.
            let (a, b) = unsafe { (from_raw_parts(ap, n), from_raw_parts(bp, n)) };
            for (((d, c), &a), &b) in dst.iter_mut().zip(cond).zip(a).zip(b) {
                *d = if c.is_true() { a } else { b };
            }
        }
    }
}

/// Writes a value's `n` elements to `dst`, repeating a scalar.
///
/// # Safety
/// `n` elements at each pointer (one at a scalar), `dst` must not overlap the value.
#[inline(always)]
pub(crate) unsafe fn copy<T: Number>(n: usize, a: Value, dst: *mut T) {
    // SAFETY: guaranteed by the caller.
    let dst = unsafe { from_raw_parts_mut(dst, n) };
    if a.scalar {
        // SAFETY: a scalar has one element.
        dst.fill(unsafe { *a.ptr.cast() });
    } else {
        // SAFETY: not a scalar, so it has n elements.
        dst.copy_from_slice(unsafe { from_raw_parts(a.ptr.cast(), n) });
    }
}

per_isa! {
    /// Converts `n` elements of class `from` to class `to`.
    ///
    /// # Safety
    /// `n` elements at each pointer; `dst` must not overlap `a`.
    pub(crate) unsafe fn cast(from: Class, to: Class, n: usize, a: *const u8, dst: *mut u8) = cast_body
}

#[inline(always)]
unsafe fn cast_body<const FAST: bool>(from: Class, to: Class, n: usize, a: *const u8, dst: *mut u8) {
    // SAFETY: guaranteed by the caller.
    with_class!(from, A => with_class!(to, D => unsafe { convert::<A, D>(n, a.cast(), 1, dst.cast()) }));
}

per_isa! {
    /// Reads `n` elements of `dtype`, `stride` elements apart, as `class`.
    ///
    /// # Safety
    /// These elements must be readable at the source, `n` elements must be writable at `dst`, and
    /// the two must not overlap.
    pub(crate) unsafe fn load(dtype: DType, class: Class, n: usize, src: *const u8, stride: isize, dst: *mut u8) = load_body
}

#[inline(always)]
unsafe fn load_body<const FAST: bool>(
    dtype: DType,
    class: Class,
    n: usize,
    src: *const u8,
    stride: isize,
    dst: *mut u8,
) {
    // SAFETY: guaranteed by the caller.
    with_dtype!(dtype, S => with_class!(class, D => unsafe { convert::<S, D>(n, src.cast(), stride, dst.cast()) }));
}

per_isa! {
    /// Writes `n` elements of a value of `class` as `dtype`.
    ///
    /// # Safety
    /// `n` elements at `a` (one at a scalar) and `n` writable elements at `dst`, which must not
    /// overlap.
    pub(crate) unsafe fn store(class: Class, dtype: DType, n: usize, a: Value, dst: *mut u8) = store_body
}

#[inline(always)]
unsafe fn store_body<const FAST: bool>(class: Class, dtype: DType, n: usize, a: Value, dst: *mut u8) {
    let stride = if a.scalar { 0 } else { 1 };
    // SAFETY: guaranteed by the caller.
    with_class!(class, S => with_dtype!(dtype, D => unsafe { convert::<S, D>(n, a.ptr.cast(), stride, dst.cast()) }));
}

per_isa! {
    /// Writes `first, first + stride, ...` as `class`.
    ///
    /// # Safety
    /// `n` elements writable at `dst`.
    pub(crate) unsafe fn count(class: Class, n: usize, first: isize, stride: isize, dst: *mut u8) = count_body
}

#[inline(always)]
unsafe fn count_body<const FAST: bool>(class: Class, n: usize, first: isize, stride: isize, dst: *mut u8) {
    with_class!(class, T => {
        // SAFETY: guaranteed by the caller.
        let dst = unsafe { from_raw_parts_mut(dst.cast::<T>(), n) };
        for (i, d) in dst.iter_mut().enumerate() {
            *d = ((first + i as isize * stride) as i64).to();
        }
    });
}
