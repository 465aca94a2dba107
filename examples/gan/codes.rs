//! Codes that a generator gets besides the noise: one of ten.

use tensorpack::prelude::*;

/// The number of codes.
pub(crate) const CODES: usize = 10;

/// Appends codes `[batch, 10]` in one-hot form to noise `[batch, n]`.
pub(crate) fn with_code(z: &Tensor, code: &Tensor) -> Tensor {
    z.graph().concat(&[z, code], 1)
}

/// The code of a sample: the codes in turn.
pub(crate) fn sample_code(sample: usize) -> usize {
    sample % CODES
}

/// The codes of this many samples, in one-hot form.
pub(crate) fn sample_codes(graph: &Graph, samples: usize) -> Result<Tensor> {
    let codes = (0..samples).map(|i| sample_code(i) as i32).collect::<Vec<_>>();
    Ok(graph.constant(HostTensor::new([samples], codes)?).one_hot(CODES, DType::F32))
}
