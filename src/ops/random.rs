//! Random numbers that are a pure function of the seed, the op's name and the run: see
//! [`CounterRng`](tensorpack_tensor::CounterRng).

use super::composed;
use crate::graph::{GradCx, OpDef, OpTraits, Spec, Tensor, split_tower};
use crate::kir::{LowerCx, View};
use std::panic::Location;
use tensorpack_tensor::{DType, Error, Result};

/// Uniform numbers in `[0, 1)` in the shape of the input.
#[derive(Debug, PartialEq, Eq, Hash)]
struct RandomUniform(DType);

impl OpDef for RandomUniform {
    fn name(&self) -> &str {
        "RandomUniform"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match self.0 {
            DType::F32 | DType::F64 => Ok(vec![Spec { dtype: self.0, shape: inputs[0].shape.clone() }]),
            d => Err(Error::dtype(format!("draws f32 or f64, not {d}"))),
        }
    }

    fn shape_only(&self, _: usize) -> bool {
        true
    }

    fn grad(&self, _: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let stream = split_tower(cx.node_name()).1.to_string();
        Ok(vec![cx.random(&stream)])
    }

    fn traits(&self) -> OpTraits {
        OpTraits::UNIQUE
    }
}

impl Tensor {
    /// Uniform random numbers in `[0, 1)`, of this tensor's shape, new ones in every run.
    #[track_caller]
    pub fn random_uniform_like(&self, dtype: DType) -> Tensor {
        Tensor::apply_one(RandomUniform(dtype), &[self])
    }

    /// Every element zero with probability `rate`, the others divided by `1 - rate`.
    #[track_caller]
    pub fn dropout(&self, rate: f64) -> Tensor {
        if !(0.0..1.0).contains(&rate) {
            return self.fail("Dropout", Error::argument(format!("a rate of {rate} is not in 0..1")));
        }
        composed(self, "Dropout", Location::caller(), || {
            let drawn = self.random_uniform_like(self.dtype());
            let kept = drawn.greater_equal(&self.constant_like(rate));
            kept.select(&(self * (1.0 / (1.0 - rate))), &self.zero())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::*;

    cases![
        unary("RandomUniform", Never("the input is there for its shape"), Any, |x| {
            x.random_uniform_like(DType::F32)
        })
        .empty("x.dropout(0.5)", "[0, 3]", "empty [0, 3]", |x| x[0].dropout(0.5)),
    ];
}
