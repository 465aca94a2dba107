//! Mean and variance in one pass.

use super::composed;
use super::reduce::{check_axes, groups, reduced_shape, resolve_axes};
use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, ReduceKind, View};
use crate::reference::{Array, EvaluateCx, Scalar, sum};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{Error, Result};

/// Mean and population variance over `axes`, which stay with size 1.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Moments {
    axes: Vec<usize>,
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
            return Err(Error::shape(format!("{} is empty along the axes reduced", x.shape)));
        }
        let y = Spec { dtype: x.dtype, shape: reduced_shape(&x.shape, &self.axes, true) };
        Ok(vec![y.clone(), y])
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
            let mean = sum(group.iter().map(|i| x.float(i))) / n;
            means.push(Scalar::Float(mean));
            variances.push(Scalar::Float(sum(group.iter().map(|i| (x.float(i) - mean).powi(2))) / n));
        }
        let array = |values: &[Scalar]| Array::from_values(x.dtype(), cx.output_sizes(0), values);
        Ok(vec![array(&means), array(&variances)])
    }
}

impl Tensor {
    /// Mean and population variance over some axes (none: all), which stay with size 1.
    #[track_caller]
    pub fn moments(&self, axes: &[isize]) -> (Tensor, Tensor) {
        if self.is_poison() {
            return (self.clone(), self.clone());
        }
        match resolve_axes(self, axes) {
            Ok(axes) => {
                let both = Tensor::apply(Moments { axes }, &[self]);
                (both[0].clone(), both[1].clone())
            }
            Err(e) => {
                let poison = self.fail("Moments", e);
                (poison.clone(), poison)
            }
        }
    }

    /// The population variance over some axes (none: all), which vanish: the mean of squared distances from the mean.
    #[track_caller]
    pub fn variance_axes(&self, axes: &[isize]) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match resolve_axes(self, axes) {
            Ok(axes) => composed(self, "Variance", Location::caller(), || {
                let kept = Tensor::apply(Moments { axes: axes.clone() }, &[self]).pop();
                let variance = kept.unwrap_or_else(|| Tensor::poison(self.graph()));
                axes.iter().rev().fold(variance, |t, &a| t.squeeze(a as isize))
            }),
            Err(e) => self.fail("Variance", e),
        }
    }

    /// The square root of [`Tensor::variance_axes`].
    #[track_caller]
    pub fn std_axes(&self, axes: &[isize]) -> Tensor {
        composed(self, "Std", Location::caller(), || self.variance_axes(axes).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::*;

    cases![
        reduction("Moments", Twice, Any, false, |x, axes| {
            let (mean, variance) = x.moments(axes);
            vec![mean, variance]
        })
        .empty("x.moments([0]).0", "[0, 3]", "error: [0, 3] is empty along the axes reduced", |x| x[0]
            .moments(&[0])
            .0)
        .empty("x.moments([1]).1", "[0, 3]", "empty [0, 1]", |x| x[0].moments(&[1]).1),
        reduction("Variance", Twice, Any, false, |x, axes| vec![x.exp().variance_axes(axes)]).empty(
            "x.variance_axes([0])",
            "[0, 3]",
            "error: [0, 3] is empty along the axes reduced",
            |x| x[0].variance_axes(&[0])
        ),
        reduction("Std", Twice, Apart, false, |x, axes| {
            // Of one element alone it is zero, where the root has no slope.
            let more = x.graph().stack(&[x.square(), x.exp() + 3.0], 0);
            let axes: Vec<isize> = axes.iter().map(|&a| if a < 0 { a } else { a + 1 }).chain([0]).collect();
            vec![more.std_axes(&axes)]
        }),
        case("Batch normalisation", Twice, |draw| {
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
