//! Class numbers as indicator vectors.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{Binary, Class, LowerCx, View};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Dim, Error, Result};

/// A new last dim in which the place named by the input is 1 and all else 0.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct OneHot {
    classes: usize,
    dtype: DType,
}
crate::exported!(OneHot, 1..=1);

impl OpDef for OneHot {
    fn name(&self) -> &str {
        "OneHot"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        if !inputs[0].dtype.is_int() {
            return Err(Error::dtype(format!("takes integer classes, not {}", inputs[0].dtype)));
        }
        let dims = inputs[0].shape.iter().copied().chain([Dim::Known(self.classes)]);
        Ok(vec![Spec { dtype: self.dtype, shape: dims.collect::<Vec<_>>().into() }])
    }

    fn grad(&self, _: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (labels, out) = (cx.input(0), cx.output_sizes(0));
        let mut column = out.clone();
        column[out.len() - 1] = 1;
        let labels = cx.reshape(&labels, &column);
        Ok(vec![cx.map(&[&labels], |e, r| {
            let place = e.index(out.len() - 1, Class::I64);
            let hit = e.binary(Binary::Eq, r[0], place);
            e.cast(Class::of(self.dtype), hit)
        })])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(cx.output(|i| {
            let (class, at) = i.split_last().expect("the classes are a dim");
            Scalar::Int(i64::from(cx.input(0).int(at) == *class as i64))
        }))
    }
}

impl Tensor {
    /// Integers as vectors of `classes` numbers of type `dtype`: 1 at the place they name, 0 elsewhere (and nowhere
    /// 1 if the place lies outside).
    #[track_caller]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Tensor {
        Tensor::apply_one(OneHot { classes, dtype }, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::*;

    cases![
        case("OneHot", Never("of integers"), |draw| {
            let (rank, classes) = (draw.below(3), draw.below(6));
            let sizes = draw.sizes(rank);
            // Classes past the end too: those are nowhere 1.
            let dtype = draw.of(&[DType::I32, DType::I64, DType::U8]);
            let labels = Input::new(draw, sizes, Elements::Below(dtype, classes + 2));
            Trial::new(vec![labels], move |x| vec![x[0].one_hot(classes, DType::F32)])
        })
        .empty("x.one_hot(4, F32)", "i32[0]", "empty [0, 4]", |x| x[0].one_hot(4, DType::F32))
        .empty("x.one_hot(0, F32)", "i32[2]", "empty [2, 0]", |x| x[0].one_hot(0, DType::F32)),
    ];
}
