//! The values everything in tensorpack is made of: element types, shapes with unknown dims, tensors in host
//! memory, the counter-based random generator, and the one error type.
//!
//! This crate is the bottom of the workspace: it names no other part of it.

mod dim;
mod dtype;
mod error;
mod host_tensor;
mod rng;
mod shape;
mod site;
mod user_data_dir;

pub use dim::{Dim, Symbol};
pub use dtype::{DType, Element};
pub use error::{Error, ErrorKind, Result};
pub use half::bf16;
pub use host_tensor::HostTensor;
pub use rng::{CounterRng, hash_name};
pub use shape::{Shape, element_count};
pub use site::Site;
pub use user_data_dir::user_data_dir;
