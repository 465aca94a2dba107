//! Optimizers: rules that turn gradients into updates of variables. Their state is made of ordinary variables, saved
//! like weights.

mod adam;
mod minimize;
mod optimizer;
mod sgd;

pub use adam::Adam;
pub use minimize::minimize;
pub use optimizer::{Optimizer, Rate};
pub use sgd::Sgd;
