//! What programs import: `use tensorpack::prelude::*`.

pub use crate::autodiff::gradients;
pub use crate::graph::{Graph, Init, Op, Tensor, TensorSpec, Variable, VariableSpec};
pub use crate::nn::{BatchNorm, Conv2d, Linear};
pub use crate::ops::{Conv2dOptions, CumsumOptions, Padding, PoolOptions, Random};
pub use crate::optim::{Adam, Optimizer, Sgd, minimize};
pub use crate::runtime::{Device, Session, SessionOptions};
pub use crate::tower::TowerContext;
pub use crate::{DType, Error, HostTensor, Result};
