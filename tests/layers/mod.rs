//! Tests of layers: values computed by PyTorch in float64, several towers, variables, logs and
//! errors.

mod argscope;
mod bad_input;
mod batch_renorm;
mod batch_norm;
pub(crate) mod narrow;
mod golden;
mod models;
