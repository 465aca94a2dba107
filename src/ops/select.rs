//! A choice between two tensors, element by element.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{Class, LowerCx, View};
use tensorpack_tensor::{DType, Error, Result};

/// The second where the first is true, else the third.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Select;

impl OpDef for Select {
    fn name(&self) -> &str {
        "Select"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [condition, a, b] = inputs else { return Err(Error::argument("takes three tensors")) };
        if condition.dtype != DType::Bool || a.dtype != b.dtype {
            return Err(Error::dtype(format!(
                "takes a bool condition and two tensors of one type, not {}, {} and {}",
                condition.dtype, a.dtype, b.dtype
            )));
        }
        let shape = condition.shape.broadcast(&a.shape)?.broadcast(&b.shape)?;
        Ok(vec![Spec { dtype: a.dtype, shape }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let (condition, dy) = (cx.input(0), cx.dy());
        let (a, b) = (cx.input(1), cx.input(2));
        Ok(vec![
            None,
            cx.needs(1).then(|| condition.select(dy, &dy.zero()).sum_like(a)),
            cx.needs(2).then(|| condition.select(&dy.zero(), dy).sum_like(b)),
        ])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (c, a, b) = (cx.input(0), cx.input(1), cx.input(2));
        let class = Class::of(a.dtype);
        Ok(vec![cx.map(&[&c, &a, &b], |e, r| {
            let condition = e.cast(class, r[0]);
            e.select(condition, r[1], r[2])
        })])
    }
}

impl Tensor {
    /// `a` where this is true, else `b`, all three broadcast together.
    #[track_caller]
    pub fn select(&self, a: &Tensor, b: &Tensor) -> Tensor {
        Tensor::apply_one(Select, &[self, a, b])
    }
}
