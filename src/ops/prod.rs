//! The gradient of a product: for every element the product of all others, without dividing by
//! zero.

use super::reduce::{check_axes, groups};
use super::{float_input, same_spec};
use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{Binary, Class, ExprBuilder, LowerCx, ReduceKind, Reg, View};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::Result;

/// For every element the product of all others along `axes`.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct OtherProducts {
    axes: Vec<usize>,
}
crate::exported!(OtherProducts, 1..=1);

/// Input 1 times the derivative of [`OtherProducts`] of input 0, the product of all but two
/// elements.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct OtherProductsGrad {
    axes: Vec<usize>,
}
crate::exported!(OtherProductsGrad, 2..=2);

/// Returns whether an element is zero, and the divisor: the element, or 1 if it is zero.
fn divisor(e: &mut ExprBuilder, x: Reg, class: Class) -> [Reg; 2] {
    let (zero, one) = (e.constant(0.0, class), e.constant(1.0, class));
    let is_zero = e.binary(Binary::Eq, x, zero);
    [is_zero, e.select(is_zero, one, x)]
}

/// Reduces an expression of `operands` over `axes`, which are kept with size 1. The result is an
/// intermediate one, so that of bf16 and f16 is f32.
fn reduced(
    cx: &mut LowerCx<'_>,
    kind: ReduceKind,
    axes: &[usize],
    operands: &[&View],
    build: impl FnOnce(&mut ExprBuilder, &[Reg]) -> Reg,
) -> View {
    let sizes = operands[0].sizes.clone();
    let over: Vec<bool> = (0..sizes.len()).map(|i| axes.contains(&i)).collect();
    let kept: Vec<usize> = sizes.iter().zip(&over).map(|(&n, &r)| if r { 1 } else { n }).collect();
    let dtype = operands[0].dtype.widened();
    let views = cx.reduce(kind, dtype, &sizes, &over, operands, build);
    cx.reshape(&views[0], &kept)
}

/// Returns the number of zeros and the product of the other elements.
fn zeros_and_product(cx: &mut LowerCx<'_>, axes: &[usize], x: &View) -> [View; 2] {
    let class = Class::from_dtype(x.dtype);
    // All readers must agree with the count on whether an element is zero.
    cx.materialize(x);
    let zeros = reduced(cx, ReduceKind::Sum, axes, &[x], |e, r| divisor(e, r[0], class)[0]);
    [zeros, reduced(cx, ReduceKind::Prod, axes, &[x], |e, r| divisor(e, r[0], class)[1])]
}

impl OpDef for OtherProducts {
    fn name(&self) -> &str {
        "OtherProducts"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        float_input(&inputs[0])?;
        check_axes(&inputs[0].shape, &self.axes)?;
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let op = OtherProductsGrad { axes: self.axes.clone() };
        Ok(vec![Some(Tensor::apply_one(op, &[cx.input(0), cx.dy()]))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        let class = Class::from_dtype(x.dtype);
        let [zeros, product] = zeros_and_product(cx, &self.axes, &x);
        Ok(vec![cx.map(&[&x, &zeros, &product], |e, r| {
            let &[x, zeros, product] = r else { unreachable!("three operands were given") };
            let (none, one) = (e.constant(0.0, class), e.constant(1.0, class));
            let [is_zero, divisor] = divisor(e, x, class);
            let without_zeros = e.binary(Binary::Div, product, divisor);
            let of_the_zero = e.select(is_zero, product, none);
            let single = e.binary(Binary::Eq, zeros, one);
            let with_zeros = e.select(single, of_the_zero, none);
            let free = e.binary(Binary::Eq, zeros, none);
            e.select(free, without_zeros, with_zeros)
        })])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let x = cx.input(0);
        Ok(vec![products_of_others(x, &self.axes, |i| Dual { value: x.float(i), slope: 0.0 }, |p| p.value)])
    }
}

impl OpDef for OtherProductsGrad {
    fn name(&self) -> &str {
        "OtherProductsGrad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        float_input(&inputs[0])?;
        check_axes(&inputs[0].shape, &self.axes)?;
        same_spec(&inputs[1], &inputs[0])?;
        Ok(vec![inputs[0].clone()])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, g) = (cx.input(0), cx.input(1));
        let class = Class::from_dtype(x.dtype);
        let [zeros, product] = zeros_and_product(cx, &self.axes, &x);
        // The sum of g at zeros, and of g / x elsewhere.
        let at_zeros = reduced(cx, ReduceKind::Sum, &self.axes, &[&x, &g], |e, r| {
            let none = e.constant(0.0, class);
            let [is_zero, _] = divisor(e, r[0], class);
            e.select(is_zero, r[1], none)
        });
        let ratios = reduced(cx, ReduceKind::Sum, &self.axes, &[&x, &g], |e, r| {
            let none = e.constant(0.0, class);
            let [is_zero, divisor] = divisor(e, r[0], class);
            let ratio = e.binary(Binary::Div, r[1], divisor);
            e.select(is_zero, none, ratio)
        });
        Ok(vec![cx.map(&[&x, &g, &zeros, &product, &at_zeros, &ratios], |e, r| {
            let &[x, g, zeros, product, at_zeros, ratios] = r else {
                unreachable!("six operands were given")
            };
            let [none, one, two] = [0.0, 1.0, 2.0].map(|v| e.constant(v, class));
            let [is_zero, divisor] = divisor(e, x, class);
            let others = e.binary(Binary::Div, product, divisor);
            // No zeros: sum the ratios of all other elements.
            let ratio = e.binary(Binary::Div, g, divisor);
            let rest = e.binary(Binary::Sub, ratios, ratio);
            let without_zeros = e.binary(Binary::Mul, others, rest);
            // One zero: its gradient involves all others, and theirs only the zero.
            let of_the_zero = e.binary(Binary::Mul, product, ratios);
            let of_the_rest = e.binary(Binary::Mul, others, at_zeros);
            let with_one = e.select(is_zero, of_the_zero, of_the_rest);
            // Two zeros: only these have a gradient, each from the other.
            let other = e.binary(Binary::Sub, at_zeros, g);
            let of_each = e.binary(Binary::Mul, product, other);
            let with_two = e.select(is_zero, of_each, none);
            let [is_none, is_one, is_two] = [none, one, two].map(|n| e.binary(Binary::Eq, zeros, n));
            let several = e.select(is_two, with_two, none);
            let some = e.select(is_one, with_one, several);
            e.select(is_none, without_zeros, some)
        })])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, g) = (cx.input(0), cx.input(1));
        let dual = |i: &[usize]| Dual { value: x.float(i), slope: g.float(i) };
        Ok(vec![products_of_others(x, &self.axes, dual, |p| p.slope)])
    }
}

/// A dual number `value + slope e` with `e^2 = 0`: the slope of a product of dual numbers is its
/// derivative.
#[derive(Clone, Copy)]
struct Dual {
    value: f64,
    slope: f64,
}

impl Dual {
    fn times(self, other: Dual) -> Dual {
        let slope = self.slope * other.value + self.value * other.slope;
        Dual { value: self.value * other.value, slope }
    }
}

/// Returns for every element the component `pick` of the product of all others along `axes`.
fn products_of_others(
    x: &Array,
    axes: &[usize],
    factor: impl Fn(&[usize]) -> Dual,
    pick: impl Fn(Dual) -> f64,
) -> Array {
    let mut result = Array::zeros(x.dtype(), x.sizes());
    for group in groups(x.sizes(), axes) {
        // Multiply the prefix products by the suffix products.
        let mut before = Dual { value: 1.0, slope: 0.0 };
        let mut others = Vec::new();
        for i in &group {
            others.push(before);
            before = before.times(factor(i));
        }
        let mut after = Dual { value: 1.0, slope: 0.0 };
        for (i, before) in group.iter().zip(&others).rev() {
            result.set(i, Scalar::Float(pick(before.times(after))));
            after = after.times(factor(i));
        }
    }
    result
}

impl Tensor {
    /// Returns for every element the product of all others along `axes`.
    #[track_caller]
    pub(super) fn other_products(&self, axes: &[usize]) -> Tensor {
        Tensor::apply_one(OtherProducts { axes: axes.to_vec() }, &[self])
    }

    /// Returns the product of all elements.
    #[track_caller]
    pub fn prod(&self) -> Tensor {
        self.prod_axes(&[])
    }

    /// Returns the product over `axes` (empty: all), which are removed. It can be differentiated
    /// twice.
    #[track_caller]
    pub fn prod_axes(&self, axes: &[isize]) -> Tensor {
        self.reduce(ReduceKind::Prod, axes, false)
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        reduction("Prod", Twice, Any, true, |x, axes| {
            // Near 1, so that the product of many elements stays in the range of f32.
            let x = x * 0.01 + 1.0;
            vec![x.prod_axes(axes), x.prod()]
        })
        .empty("x.prod_axes([0])", "[0, 3]", "1 [3]", |x| x[0].prod_axes(&[0]))
        .empty("x.prod()", "[0, 3]", "1 []", |x| x[0].prod()),
        // Zero, one, two and three zeros in a row.
        case("Prod of zeros", Twice, |draw| {
            let sizes = [draw.between(1, 6), draw.between(1, 6)];
            Trial::new(vec![Input::floats(draw, sizes, Halves)], |x| vec![x[0].prod_axes(&[1])])
        }),
    ];
}
