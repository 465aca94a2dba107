//! Interval arithmetic: bounds on the results of an expression, given bounds on its operands.

use crate::kir::{Binary, Class, Expr, Reg, Step, Unary};
use tensorpack_tensor::{DType, bf16, f16};

/// A closed interval that contains a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) high: f64,
}

/// The interval of a value that is known to be finite; `None` if nothing is known.
pub(super) type Bound = Option<Interval>;

const TRUTH: Interval = Interval { low: 0.0, high: 1.0 };
/// Integers wrap, so all that is known of one is its type.
const ANY_INTEGER: Interval = Interval { low: i64::MIN as f64, high: i64::MAX as f64 };

impl Interval {
    pub(super) fn new(low: f64, high: f64) -> Interval {
        Interval { low, high }
    }

    pub(super) fn hull(self, other: Interval) -> Interval {
        Interval { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    fn has_zero(self) -> bool {
        self.low <= 0.0 && self.high >= 0.0
    }

    fn from_corners(corners: &[f64]) -> Interval {
        let least = corners.iter().copied().fold(f64::INFINITY, f64::min);
        Interval { low: least, high: corners.iter().copied().fold(f64::NEG_INFINITY, f64::max) }
    }

    /// Returns the interval after a value of `class` is stored as `dtype`; `None` if it could
    /// overflow.
    pub(super) fn stored(self, class: Class, dtype: DType) -> Bound {
        let Some(most) = largest(dtype) else { return Some(ANY_INTEGER) };
        let inside = self.low >= -most && self.high <= most;
        // Storing in a narrower type rounds, but never beyond its largest finite value.
        let exact = Class::from_dtype(dtype) == class && !dtype.is_narrow_float();
        let share = if exact { 0.0 } else { 2f64.powi(-7) };
        let low = (self.low - self.low.abs() * share).max(-most);
        let high = (self.high + self.high.abs() * share).min(most);
        inside.then_some(Interval { low, high })
    }
}

/// Returns the largest finite value of a floating-point type.
fn largest(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F32 => Some(f64::from(f32::MAX)),
        DType::Bf16 => Some(bf16::MAX.to_f64()),
        DType::F16 => Some(f16::MAX.to_f64()),
        DType::F64 => Some(f64::MAX),
        DType::I32 | DType::I64 | DType::U8 | DType::Bool => None,
    }
}

/// The relative rounding error of one operation of a class, and the smallest normal number:
/// anything below it is flushed to zero.
fn rounding(class: Class) -> (f64, f64) {
    match class {
        // Generous: it also covers division and roots by Newton iteration.
        Class::F32 => (2f64.powi(-18), f64::from(f32::MIN_POSITIVE)),
        Class::F64 => (2f64.powi(-45), f64::MIN_POSITIVE),
        Class::I64 => (0.0, 0.0),
    }
}

/// The interval of a result that is not rounded. Subnormal numbers are flushed to zero.
fn exact(x: Interval, class: Class) -> Bound {
    let tiny = rounding(class).1;
    let low = if x.low > 0.0 && x.low < tiny { 0.0 } else { x.low };
    let high = if x.high < 0.0 && x.high > -tiny { 0.0 } else { x.high };
    match class {
        Class::F32 => Interval { low, high }.stored(class, DType::F32),
        Class::F64 => Interval { low, high }.stored(class, DType::F64),
        Class::I64 => Some(x),
    }
}

/// The interval of a result that is rounded.
fn rounded(x: Interval, class: Class) -> Bound {
    let share = rounding(class).0;
    exact(Interval::new(x.low - x.low.abs() * share, x.high + x.high.abs() * share), class)
}

/// Bounds every step of `expr`, given bounds and types of its operands. Writes the bound and class
/// of each step to `values`. `sizes` is the iteration space.
pub(super) fn evaluate(
    expr: &Expr,
    operands: &[(Bound, DType)],
    sizes: &[usize],
    values: &mut Vec<(Bound, Class)>,
) {
    values.clear();
    for step in &expr.steps {
        let at = |r: &Reg| values[r.0 as usize].0;
        let class = match step {
            Step::Operand { class, .. } | Step::Const(_, class) | Step::Index { class, .. } => *class,
            Step::Cast(class, _) => *class,
            Step::Unary(_, r) | Step::Binary(_, r, _) | Step::Select(_, r, _) => values[r.0 as usize].1,
        };
        let value = match step {
            Step::Operand { index, .. } => {
                let (bound, dtype) = operands[*index as usize];
                bound.and_then(|x| converted(x, Class::from_dtype(dtype), class))
            }
            Step::Const(x, _) if x.is_finite() => exact(Interval::new(*x, *x), class),
            Step::Const(..) => None,
            Step::Index { axis, .. } => {
                rounded(Interval::new(0.0, sizes.get(*axis as usize).copied().unwrap_or(0) as f64), class)
            }
            Step::Cast(_, r) => at(r).and_then(|x| converted(x, values[r.0 as usize].1, class)),
            Step::Select(_, a, b) => at(a).zip(at(b)).map(|(a, b)| a.hull(b)),
            Step::Unary(Unary::Not | Unary::IsFinite, _) => Some(TRUTH),
            Step::Binary(
                Binary::Eq
                | Binary::Ne
                | Binary::Lt
                | Binary::Le
                | Binary::Gt
                | Binary::Ge
                | Binary::And
                | Binary::Or,
                ..,
            ) => Some(TRUTH),
            Step::Binary(function @ (Binary::Max | Binary::Min), a, b) => {
                at(a).zip(at(b)).and_then(|(a, b)| binary(*function, a, b, class))
            }
            _ if class == Class::I64 => Some(ANY_INTEGER),
            Step::Unary(function, r) => at(r).and_then(|x| unary(*function, x, class)),
            Step::Binary(Binary::Mul, a, b) if a == b => at(a).and_then(|x| unary(Unary::Square, x, class)),
            Step::Binary(function, a, b) => {
                at(a).zip(at(b)).and_then(|(a, b)| binary(*function, a, b, class))
            }
        };
        values.push((value, class));
    }
}

fn converted(x: Interval, from: Class, to: Class) -> Bound {
    match to {
        Class::I64 if from == Class::I64 => Some(x),
        Class::I64 => Some(ANY_INTEGER),
        _ if from == to => exact(x, to),
        _ => rounded(x, to),
    }
}

fn unary(function: Unary, x: Interval, class: Class) -> Bound {
    let Interval { low, high } = x;
    let symmetric = |most: f64| Some(Interval::new(-most, most));
    let farthest = low.abs().max(high.abs());
    match function {
        Unary::Neg => exact(Interval::new(-high, -low), class),
        Unary::Abs if x.has_zero() => exact(Interval::new(0.0, farthest), class),
        Unary::Abs => exact(Interval::from_corners(&[low.abs(), high.abs()]), class),
        Unary::Sign => symmetric(1.0),
        Unary::Relu => exact(Interval::new(low.max(0.0), high.max(0.0)), class),
        Unary::Square if x.has_zero() => rounded(Interval::new(0.0, farthest * farthest), class),
        Unary::Square => rounded(Interval::from_corners(&[low * low, high * high]), class),
        Unary::Sqrt if low >= 0.0 => rounded(Interval::new(low.sqrt(), high.sqrt()), class),
        Unary::Rsqrt if low > 0.0 => rounded(Interval::new(1.0 / high.sqrt(), 1.0 / low.sqrt()), class),
        Unary::Recip if !x.has_zero() => rounded(Interval::from_corners(&[1.0 / low, 1.0 / high]), class),
        Unary::Exp => rounded(Interval::new(0.0, 2.0 * high.exp()), class),
        // The logarithms of all positive numbers of either class are in between.
        Unary::Log if low > 0.0 => symmetric(800.0),
        Unary::Log1p if low >= 0.0 => symmetric(800.0),
        Unary::Tanh | Unary::Sigmoid | Unary::Erf => symmetric(2.0),
        Unary::Floor | Unary::Round => rounded(Interval::new(low - 1.0, high + 1.0), class),
        _ => None,
    }
}

fn binary(function: Binary, a: Interval, b: Interval, class: Class) -> Bound {
    let corners = |f: fn(f64, f64) -> f64| {
        Interval::from_corners(&[f(a.low, b.low), f(a.low, b.high), f(a.high, b.low), f(a.high, b.high)])
    };
    match function {
        Binary::Add => rounded(Interval::new(a.low + b.low, a.high + b.high), class),
        Binary::Sub => rounded(Interval::new(a.low - b.high, a.high - b.low), class),
        Binary::Mul => rounded(corners(|a, b| a * b), class),
        Binary::Div if !b.has_zero() => rounded(corners(|a, b| a / b), class),
        Binary::Max => Some(Interval::new(a.low.max(b.low), a.high.max(b.high))),
        Binary::Min => Some(Interval::new(a.low.min(b.low), a.high.min(b.high))),
        // Of a base and an exponent that are not negative.
        Binary::Pow if a.low >= 0.0 && b.low >= 0.0 => {
            rounded(Interval::new(0.0, 2.0 * a.high.max(1.0).powf(b.high)), class)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kir::ExprBuilder;

    /// Returns the bounds of the result of `build` for one operand, or two with the same bounds.
    fn bound(low: f64, high: f64, build: impl FnOnce(&mut ExprBuilder, Reg, Reg) -> Reg) -> Bound {
        let mut b = ExprBuilder::default();
        let [x, y] = [0, 1].map(|i| b.operand(i, DType::F32, Class::F32));
        let result = build(&mut b, x, y);
        let expr = b.finish(&[result]);
        let operand = (Some(Interval::new(low, high)), DType::F32);
        let mut values = Vec::new();
        evaluate(&expr, &[operand, operand], &[4], &mut values);
        values[expr.outputs[0].0 as usize].0
    }

    #[test]
    fn squares_that_overflow_are_seen() {
        assert!(bound(-1e18, 1e18, |e, x, _| e.unary(Unary::Square, x)).is_some());
        assert!(bound(-1e20, 1e18, |e, x, _| e.unary(Unary::Square, x)).is_none());
        assert!(bound(-1e20, 1e18, |e, x, y| e.binary(Binary::Mul, x, y)).is_none());
        assert!(bound(-3e38, 3e38, |e, x, y| e.binary(Binary::Add, x, y)).is_none());
        assert!(bound(-3e38, 3e38, |e, x, y| e.binary(Binary::Min, x, y)).is_some());
    }

    #[test]
    fn a_quotient_whose_divisor_may_be_zero_has_no_bound() {
        let quotient = |low, high, epsilon: f64| {
            bound(low, high, |e, x, y| {
                let root = e.unary(Unary::Sqrt, y);
                let epsilon = e.constant(epsilon, Class::F32);
                let divisor = e.binary(Binary::Add, root, epsilon);
                e.binary(Binary::Div, x, divisor)
            })
        };
        assert!(quotient(0.0, 100.0, 1e-8).is_some());
        assert!(quotient(0.0, 1e35, 1e-8).is_none(), "1e35 / 1e-8 overflows");
        assert!(quotient(0.0, 100.0, 0.0).is_none());
        // Subnormal numbers are zero.
        assert!(quotient(0.0, 1e-6, 1e-40).is_none());
        assert!(quotient(-1.0, 100.0, 1e-8).is_none(), "the root of a negative number is NaN");
    }

    /// The results of random expressions on values inside the operands' bounds are inside the
    /// result's bounds.
    #[test]
    fn bounds_hold() {
        let rng = tensorpack_tensor::CounterRng::new(3, "bounds");
        let draw = |i: u64| f64::from(rng.word(0, i)) / f64::from(u32::MAX);
        let functions = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min];
        let mut bounded = 0;
        for case in 0..4000u64 {
            let function = functions[(case % 6) as usize];
            let number = |i: u64| {
                let size = 10f64.powf(draw(case * 16 + i + 1) * 60.0 - 30.0);
                f64::from(((draw(case * 16 + i) - 0.5) * size) as f32)
            };
            let [p, q, r, s] = [0, 2, 4, 6].map(number);
            let (a, b) = (Interval::from_corners(&[p, q]), Interval::from_corners(&[r, s]));
            for i in 8..12 {
                let inside = |x: Interval, t: f64| (x.low + (x.high - x.low) * t).clamp(x.low, x.high) as f32;
                let (x, y) = (inside(a, draw(case * 16 + i)), inside(b, draw(case * 16 + i + 4)));
                let result = match function {
                    Binary::Add => x + y,
                    Binary::Sub => x - y,
                    Binary::Mul => x * y,
                    Binary::Div => x / y,
                    Binary::Max => x.max(y),
                    _ => x.min(y),
                };
                if let Some(bound) = binary(function, a, b, Class::F32) {
                    bounded += 1;
                    let result = f64::from(result);
                    assert!(
                        result >= bound.low && result <= bound.high && result.is_finite(),
                        "{function:?} of {x} and {y} is {result}, outside {bound:?}"
                    );
                }
            }
        }
        assert!(bounded > 4000, "only {bounded} cases were bounded");
    }
}
