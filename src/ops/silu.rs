//! SiLU, a smooth variant of ReLU (Elfwing et al., 2017).

use super::composed;
use crate::graph::Tensor;
use std::panic::Location;

impl Tensor {
    /// Returns `x * sigmoid(x)`.
    #[track_caller]
    #[doc(alias = "swish")]
    pub fn silu(&self) -> Tensor {
        composed(self, "Silu", Location::caller(), || self * self.sigmoid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![unary("Silu", Twice, Any, Tensor::silu)];
}
