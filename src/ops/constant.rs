//! Constants.

use crate::graph::{Exported, Graph, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{self, ExportCx};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tensorpack_tensor::{DType, Error, HostTensor, Result};

/// A tensor that is the same in every run.
#[derive(Debug)]
struct Constant(HostTensor);
crate::exported!(Constant, 0..=0, Constant::save, Constant::load);

// Compare bits, so that NaN equals itself and 0 differs from -0.
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

/// The largest number of elements written among the attributes; larger constants become tensors of
/// the file.
const WRITTEN_OUT: usize = 16;

/// The serialized form of a small constant.
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
            // JSON has no NaN, and f64 cannot hold every i64.
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

    fn evaluate(&self, _: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(vec![Array::from_host(&self.0)])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<onnx::Value>> {
        Ok(vec![cx.constant(self.0.clone())])
    }
}

impl Graph {
    /// Adds a constant to the graph.
    #[track_caller]
    pub fn constant(&self, value: HostTensor) -> Tensor {
        self.add_op(Arc::new(Constant(value)), &[]).swap_remove(0)
    }
}

impl Tensor {
    /// Returns a tensor of this one's shape and element type whose elements are all `value`. A value that
    /// an integer type cannot hold exactly, or that overflows a float type, is an error.
    ///
    /// Operators and comparisons take plain numbers instead: `x + 1.0`, `x.greater(0.0)`.
    #[track_caller]
    pub fn full_like(&self, value: f64) -> Tensor {
        self.constant_like(value).broadcast_like(self)
    }

    /// Returns a tensor of this one's shape and element type whose elements are all 0.
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        self.full_like(0.0)
    }

    /// Returns a tensor of this one's shape and element type whose elements are all 1.
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        self.full_like(1.0)
    }

    /// Returns a scalar constant of this tensor's element type. A value that an integer type cannot
    /// hold exactly, or that overflows a float type, is an error.
    #[track_caller]
    pub(crate) fn constant_like(&self, value: f64) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let (dtype, limit) = (self.dtype(), 2f64.powi(63));
        let fits = match dtype {
            DType::I32 => f64::from(value as i32) == value,
            DType::U8 => f64::from(value as u8) == value,
            DType::Bool => value == 0.0 || value == 1.0,
            DType::I64 => value.trunc() == value && (-limit..limit).contains(&value),
            _ => true,
        };
        if !fits {
            let why = format!("{value} cannot be represented in {dtype}");
            return self.fail("Constant", Error::dtype(why).note("cast to f32 first"));
        }
        let scalar = HostTensor::from_f64(dtype, [], &[value]).expect("one value fills a scalar");
        if value.is_finite() && scalar.to_scalar().is_ok_and(f64::is_infinite) {
            let why = format!("{value:e} overflows {dtype}");
            return self.fail("Constant", Error::dtype(why).note("an infinity is written as f64::INFINITY"));
        }
        self.graph().constant(scalar)
    }

    /// Returns the scalar 0 of this tensor's element type.
    #[track_caller]
    pub(crate) fn zero(&self) -> Tensor {
        self.constant_like(0.0)
    }

    /// Returns the scalar 1 of this tensor's element type.
    #[track_caller]
    pub(crate) fn one(&self) -> Tensor {
        self.constant_like(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        case("Constant", Twice, |draw| {
            let rank = draw.below(3);
            let sizes = draw.sizes(rank);
            Trial::new(vec![Input::floats(draw, sizes, Any)], |x| vec![(&x[0] * 3.0 - 1.0).square() + 0.25])
        })
        .empty("constant(empty)", "[1]", "empty [0, 3]", |x| x[0]
            .graph()
            .constant(HostTensor::zeros(DType::F32, [0, 3]).unwrap())),
        case("FullLike", Twice, |draw| {
            let rank = draw.below(4);
            let sizes = draw.sizes(rank);
            Trial::new(vec![Input::floats(draw, sizes, Any)], |x| {
                let x = &x[0];
                vec![x.zeros_like(), x.ones_like().sum_axes(&[]) * x, (x.full_like(-2.5) * x).sin()]
            })
        }),
    ];
}
