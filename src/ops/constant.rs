//! Values written into the graph.

use crate::graph::{Exported, Graph, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tensorpack_tensor::{DType, HostTensor, Result};

/// A tensor that is the same in every run.
#[derive(Debug)]
struct Constant(HostTensor);
crate::exported!(Constant, 0..=0, Constant::save, Constant::load);

// By bits, so that a NaN equals itself and 0 differs from -0.
impl PartialEq for Constant {
    fn eq(&self, other: &Constant) -> bool {
        let of = |c: &Constant| (c.0.dtype(), c.0.sizes().to_vec());
        of(self) == of(other) && self.0.as_bytes() == other.0.as_bytes()
    }
}
impl Eq for Constant {}
impl Hash for Constant {
    fn hash<H: Hasher>(&self, h: &mut H) {
        (self.0.dtype(), self.0.sizes(), self.0.as_bytes()).hash(h);
    }
}

/// How many numbers are written among the attributes; more are a tensor of the file.
const WRITTEN_OUT: usize = 16;

/// A constant among the attributes.
#[derive(Serialize, Deserialize)]
struct Written {
    dtype: DType,
    sizes: Vec<usize>,
    values: Vec<f64>,
}

impl Written {
    fn tensor(&self) -> Result<HostTensor> {
        HostTensor::from_f64(self.dtype, self.sizes.clone(), &self.values)
    }
}

impl Constant {
    fn save(&self, tensors: &mut Vec<HostTensor>) -> Result<Value> {
        if self.0.len() <= WRITTEN_OUT {
            let (dtype, sizes) = (self.0.dtype(), self.0.sizes().to_vec());
            let written = Written { dtype, sizes, values: self.0.to_f64_vec() };
            // JSON has no NaN, and f64 not every i64.
            let finite = written.values.iter().all(|v| v.is_finite());
            if finite && written.tensor()?.as_bytes() == self.0.as_bytes() {
                return Exported::attributes(&written);
            }
        }
        tensors.push(self.0.clone());
        Ok(Value::Null)
    }

    fn load(value: Value, mut tensors: Vec<HostTensor>) -> Result<Constant> {
        match tensors.pop() {
            Some(tensor) => Ok(Constant(tensor)),
            None => Exported::from_attributes::<Written>(value)?.tensor().map(Constant),
        }
    }
}

impl OpDef for Constant {
    fn name(&self) -> &str {
        "Constant"
    }

    fn infer(&self, _: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(self.0.dtype(), self.0.sizes())])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.constant(self.0.clone())])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let _ = cx;
        Ok(vec![Array::from_host(&self.0)])
    }
}

impl Graph {
    /// A constant.
    #[track_caller]
    pub fn constant(&self, value: HostTensor) -> Tensor {
        self.add_op(Arc::new(Constant(value)), &[]).swap_remove(0)
    }
}

impl Tensor {
    /// A scalar constant of this tensor's element type.
    #[track_caller]
    pub(crate) fn constant_like(&self, value: f64) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let scalar = HostTensor::from_f64(self.dtype(), [], &[value]).expect("one value fills a scalar");
        self.graph().constant(scalar)
    }

    /// The scalar 0 of this tensor's element type.
    #[track_caller]
    pub(crate) fn zero(&self) -> Tensor {
        self.constant_like(0.0)
    }

    /// The scalar 1 of this tensor's element type.
    #[track_caller]
    pub(crate) fn one(&self) -> Tensor {
        self.constant_like(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::*;

    cases![
        case("Constant", Twice, |draw| {
            let rank = draw.below(3);
            let sizes = draw.sizes(rank);
            Trial::new(vec![Input::floats(draw, sizes, Any)], |x| vec![(&x[0] * 3.0 - 1.0).square() + 0.25])
        })
        .empty("constant(empty)", "[1]", "empty [0, 3]", |x| x[0]
            .graph()
            .constant(HostTensor::zeros(DType::F32, [0, 3]).unwrap())),
    ];
}
