//! Custom gradients.

use crate::graph::{GradCx, OpDef, OpTraits, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

type Backward = dyn Fn(&[Tensor], &Tensor) -> Vec<Option<Tensor>> + Send + Sync;

/// Input 0, with a user-defined gradient with respect to the other inputs.
struct WithGradient(Arc<Backward>);
crate::exported!(WithGradient, 1..=usize::MAX, |_, _| Ok(().into()), |_, _| Ok(WithGradient::read_back()));

impl WithGradient {
    /// Creates the operation when a file is loaded. Files hold no functions: the operation can be
    /// run, but differentiating it is an error.
    fn read_back() -> WithGradient {
        WithGradient(Arc::new(|_, _| Vec::new()))
    }
}

impl fmt::Debug for WithGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithGradient")
    }
}

// A function equals only itself.
impl PartialEq for WithGradient {
    fn eq(&self, other: &WithGradient) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for WithGradient {}
impl Hash for WithGradient {
    fn hash<H: Hasher>(&self, h: &mut H) {
        Arc::as_ptr(&self.0).cast::<u8>().hash(h);
    }
}

impl OpDef for WithGradient {
    fn name(&self) -> &str {
        "WithGradient"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let xs: Vec<Tensor> = (1..cx.input_count()).map(|i| cx.input(i).clone()).collect();
        let grads = (self.0)(&xs, cx.dy());
        if grads.len() != xs.len() {
            return Err(Error::new(
                ErrorKind::Gradient,
                format!("the function returned {} gradients for {} inputs", grads.len(), xs.len()),
            ));
        }
        for (x, g) in xs.iter().zip(&grads) {
            let Some(g) = g.as_ref().filter(|g| !g.is_poison()) else { continue };
            if g.dtype() != x.dtype() || !may_be_equal(x, g) {
                return Err(Error::new(
                    ErrorKind::Gradient,
                    format!(
                        "the function's gradient of {}{} is {}{}",
                        x.dtype(),
                        x.shape(),
                        g.dtype(),
                        g.shape()
                    ),
                ));
            }
        }
        Ok([None].into_iter().chain(grads).collect())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.input(0)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(vec![cx.input(0).clone()])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        Ok(vec![cx.input(0)])
    }

    fn traits(&self) -> OpTraits {
        OpTraits::UNIQUE
    }
}

/// Returns whether two shapes may be equal once all dims are known.
fn may_be_equal(a: &Tensor, b: &Tensor) -> bool {
    let fits = |(a, b): (&tensorpack_tensor::Dim, &tensorpack_tensor::Dim)| {
        a.known().zip(b.known()).is_none_or(|(a, b)| a == b)
    };
    a.rank() == b.rank() && a.shape().iter().zip(b.shape().iter()).all(fits)
}

impl Tensor {
    /// Returns this tensor with a custom gradient: `backward` receives `inputs` and the gradient of
    /// the cost with respect to this tensor, and returns the gradient with respect to each input
    /// (`None`: zero). The operations that computed this tensor are not differentiated; no gradient
    /// flows to tensors that are not in `inputs`.
    ///
    /// ```
    /// # use tensorpack::prelude::*;
    /// # let graph = Graph::new();
    /// # let x = graph.placeholder(&TensorSpec::f32("x", [None]));
    /// // Straight-through estimator: round forward, identity backward.
    /// let y = x.round().with_gradient(&[&x], |_, dy| vec![Some(dy.clone())]);
    /// ```
    #[track_caller]
    #[doc(alias = "custom_gradient")]
    pub fn with_gradient(
        &self,
        inputs: &[&Tensor],
        backward: impl Fn(&[Tensor], &Tensor) -> Vec<Option<Tensor>> + Send + Sync + 'static,
    ) -> Tensor {
        let all: Vec<&Tensor> = [self].into_iter().chain(inputs.iter().copied()).collect();
        Tensor::apply_one(WithGradient(Arc::new(backward)), &all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autodiff::gradients;
    use crate::graph::{Graph, TensorSpec};
    use crate::op_cases::*;
    use crate::runtime::Session;
    use tensorpack_tensor::HostTensor;

    cases![
        // The true gradient, written by hand.
        binary("WithGradient", Twice, [Any, Any], |a, b| {
            let a = a.broadcast_like(&(a + b));
            (a.sin() * b).with_gradient(&[&a, b], |x, dy| {
                let (a, b) = (&x[0], &x[1]);
                vec![Some((dy * b * a.cos()).sum_like(a)), Some((dy * a.sin()).sum_like(b))]
            })
        }),
    ];

    #[test]
    fn custom_gradient_replaces_the_derivative() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(2)]));
        let y = x.round().with_gradient(&[&x], |_, dy| vec![Some(dy * 3.0)]);
        let dx = gradients(&y.square().sum(), &[&x]).unwrap().remove(0).unwrap();
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let at = HostTensor::new([2], vec![1.2f32, -2.6]).unwrap();
        let found = session.run(&[&y, &dx], &[("x", &at)]).unwrap();
        assert_eq!(found[0].as_slice::<f32>().unwrap(), [1.0, -3.0]);
        assert_eq!(found[1].as_slice::<f32>().unwrap(), [6.0, -18.0]);
    }

    #[test]
    fn mismatched_gradients_are_an_error() {
        let message = |backward: fn(&[Tensor], &Tensor) -> Vec<Option<Tensor>>| {
            let graph = Graph::new();
            let x = graph.placeholder(&TensorSpec::f32("x", [Some(2), Some(3)]));
            let y = x.exp().with_gradient(&[&x], backward);
            gradients(&y.sum(), &[&x]).unwrap_err().to_string()
        };
        assert!(message(|_, _| Vec::new()).contains("returned 0 gradients for 1 inputs"));
        let text = message(|_, dy| vec![Some(dy.sum())]);
        assert!(text.contains("gradient of f32[2, 3] is f32[]") && text.contains(file!()), "{text}");
    }
}
