//! Mean and variance in one pass.

use super::composed;
use super::reduce::{check_axes, groups, reduced_shape, resolve_axes};
use crate::graph::{Autocast, GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, ReduceKind, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{Error, Result};

/// Mean and population variance over `axes`, which are kept with size 1.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Moments {
    axes: Vec<usize>,
    /// Whether to reject moments of a single value.
    #[serde(default)]
    several: bool,
}
crate::exported!(Moments, 1..=1);

impl OpDef for Moments {
    fn name(&self) -> &str {
        "Moments"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let x = &inputs[0];
        super::float_input(x)?;
        check_axes(&x.shape, &self.axes)?;
        if self.axes.iter().any(|&a| x.shape[a].known() == Some(0)) {
            return Err(Error::shape(format!("{} is empty along the reduced axes", x.shape)));
        }
        let count: Option<usize> = self.axes.iter().map(|&a| x.shape[a].known()).product();
        if self.several && count == Some(1) {
            return Err(Error::shape(format!(
                "there is only one value per channel in {}: normalizing it by its own statistics gives 0",
                x.shape
            ))
            .note(
                "train with a larger batch, or normalize by running statistics (`BatchNorm::use_running`)",
            ));
        }
        let y = Spec { dtype: x.dtype, shape: reduced_shape(&x.shape, &self.axes, true) };
        Ok(vec![y.clone(), y])
    }

    fn autocast(&self, _i: usize) -> Autocast {
        Autocast::Wide
    }

    fn output_count(&self) -> usize {
        2
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let (x, mean) = (cx.input(0), cx.output(0));
        let n = x.count_per(mean);
        let by_mean = cx.output_grad(0).map(|g| g / &n);
        let by_variance = cx.output_grad(1).map(|g| (x - mean) * (g * 2.0 / &n));
        let dx = match (by_mean, by_variance) {
            (Some(m), Some(v)) => v + m,
            (Some(m), None) => m.broadcast_like(x),
            (None, Some(v)) => v,
            (None, None) => return Ok(vec![None]),
        };
        Ok(vec![Some(dx)])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        let reduced: Vec<bool> = (0..x.sizes.len()).map(|i| self.axes.contains(&i)).collect();
        let (sizes, to) = (x.sizes.clone(), cx.output_sizes(0));
        let both = cx.reduce(ReduceKind::Moments, x.dtype, &sizes, &reduced, &[&x], |_, r| r[0]);
        Ok(both.iter().map(|v| cx.reshape(v, &to)).collect())
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let x = cx.input(0);
        let (mut means, mut variances) = (Vec::new(), Vec::new());
        for group in groups(x.sizes(), &self.axes) {
            let n = group.len() as f64;
            let mean = cx.sum(group.iter().map(|i| x.float(i))) / n;
            means.push(Scalar::Float(mean));
            variances.push(Scalar::Float(cx.sum(group.iter().map(|i| (x.float(i) - mean).powi(2))) / n));
        }
        let array = |values: &[Scalar]| Array::from_values(x.dtype(), cx.output_sizes(0), values);
        Ok(vec![array(&means), array(&variances)])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        let mean = cx.reduce("ReduceMean", &x, &self.axes, true)?;
        let difference = cx.elementwise("Sub", &[&x, &mean], &[], x.dtype())?;
        let square = cx.elementwise("Mul", &[&difference, &difference], &[], x.dtype())?;
        let variance = cx.reduce("ReduceMean", &square, &self.axes, true)?;
        Ok(vec![mean, variance])
    }
}

impl Tensor {
    /// Returns the mean and population variance over `axes` (empty: all), which are kept with size
    /// 1.
    #[track_caller]
    pub fn moments(&self, axes: &[isize]) -> (Tensor, Tensor) {
        self.moments_of(axes, false)
    }

    /// Computes [`Tensor::moments`]; with `several`, a single value per result is an error.
    #[track_caller]
    pub(crate) fn moments_of(&self, axes: &[isize], several: bool) -> (Tensor, Tensor) {
        if self.is_poison() {
            return (self.clone(), self.clone());
        }
        match resolve_axes(self, axes) {
            Ok(axes) => {
                let both = Tensor::apply(Moments { axes, several }, &[self]);
                (both[0].clone(), both[1].clone())
            }
            Err(e) => {
                let poison = self.fail("Moments", e);
                (poison.clone(), poison)
            }
        }
    }

    /// Returns the population variance over `axes` (empty: all), which are removed: the mean
    /// squared deviation from the mean.
    #[track_caller]
    pub fn variance_axes(&self, axes: &[isize]) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match resolve_axes(self, axes) {
            Ok(axes) => composed(self, "Variance", Location::caller(), || {
                let kept = Tensor::apply(Moments { axes: axes.clone(), several: false }, &[self]).pop();
                let variance = kept.unwrap_or_else(|| Tensor::poison(self.graph()));
                axes.iter().rev().fold(variance, |t, &a| t.squeeze(a as isize))
            }),
            Err(e) => self.fail("Variance", e),
        }
    }

    /// Returns the standard deviation, the square root of [`Tensor::variance_axes`]. Where all
    /// values are equal its gradient is 0.
    #[track_caller]
    pub fn std_axes(&self, axes: &[isize]) -> Tensor {
        composed(self, "Std", Location::caller(), || {
            let variance = self.variance_axes(axes);
            // The derivative of the square root at 0 is infinite. The inner `select` keeps the
            // gradient of the branch that is not taken finite.
            let none = variance.equal(0.0);
            none.select(&variance.zero(), &none.select(&variance.one(), &variance).sqrt())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        reduction("Moments", Twice, Any, false, |x, axes| {
            let (mean, variance) = x.moments(axes);
            vec![mean, variance]
        })
        .empty("x.moments([0]).0", "[0, 3]", "error: [0, 3] is empty along the reduced axes", |x| x[0]
            .moments(&[0])
            .0)
        .empty("x.moments([1]).1", "[0, 3]", "empty [0, 1]", |x| x[0].moments(&[1]).1),
        reduction("Variance", Twice, Any, false, |x, axes| vec![x.exp().variance_axes(axes)]).empty(
            "x.variance_axes([0])",
            "[0, 3]",
            "error: [0, 3] is empty along the reduced axes",
            |x| x[0].variance_axes(&[0])
        ),
        reduction("Std", Twice, Apart, false, |x, axes| {
            // For a single element it is zero, where the square root has no derivative.
            let more = x.graph().stack(&[x.square(), x.exp() + 3.0], 0);
            let axes: Vec<isize> = axes.iter().map(|&a| if a < 0 { a } else { a + 1 }).chain([0]).collect();
            vec![more.std_axes(&axes)]
        }),
        case("Batch normalization", Twice, |draw| {
            let rank = draw.between(2, 4);
            let sizes = draw.solid(rank);
            let channels = [sizes[rank - 1]];
            let inputs = vec![
                Input::floats(draw, sizes, Any),
                Input::floats(draw, channels, Positive),
                Input::floats(draw, channels, Any),
            ];
            Trial::new(inputs, move |x| {
                let axes: Vec<isize> = (0..rank as isize - 1).collect();
                let (mean, variance) = x[0].moments(&axes);
                vec![(&x[0] - mean) * (variance + 0.1).rsqrt() * &x[1] + &x[2]]
            })
        }),
    ];
}
