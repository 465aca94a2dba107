//! The value types shared by all tensorpack crates: element types, shapes, host tensors, random
//! numbers and errors.
//!
//! This crate is the bottom of the workspace and depends on no other part of it.
//!
//! ```
//! use tensorpack_tensor::{CounterRng, DType, Error, HostTensor, Shape};
//!
//! // A counter-based generator: element `i` can be computed on its own, on any thread.
//! let rng = CounterRng::new(42, "weights");
//! let values: Vec<f32> = (0..6).map(|i| rng.normal(0, i) as f32).collect();
//! let weights = HostTensor::new([2, 3], values)?;
//! assert_eq!((weights.dtype(), weights.sizes()), (DType::F32, &[2, 3][..]));
//!
//! let shape = Shape::from(&weights.sizes().to_vec()).broadcast(&[4, 1, 3].into())?;
//! assert_eq!(shape.to_string(), "[4, 2, 3]");
//! # Ok::<(), Error>(())
//! ```
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `dtype` | [`DType`], the element types, and [`Element`], their Rust types |
//! | `dim`, `shape` | [`Dim`] and [`Shape`], with sizes that may be unknown until run time |
//! | `extent` | [`check_extent`] and [`AxisWindows`], bounds on products of sizes |
//! | `host_tensor` | [`HostTensor`], a dense tensor in host memory with copy-on-write clones |
//! | `rng` | [`CounterRng`], a counter-based random number generator (Philox) |
//! | `error`, `site` | [`Error`], [`ErrorKind`], and [`Site`], the source line an error points at |
//! | `user_data_dir` | [`user_data_dir()`], where downloads are kept |

mod dim;
mod dtype;
mod error;
mod extent;
mod host_tensor;
mod rng;
mod shape;
mod site;
mod user_data_dir;

pub use dim::{Dim, Symbol};
pub use dtype::{DType, Element};
pub use error::{Error, ErrorKind, Result};
pub use extent::{AxisWindows, MAX_ELEMENTS, check_extent, check_positive};
pub use half::{bf16, f16};
pub use host_tensor::HostTensor;
pub use rng::{CounterRng, hash_name};
pub use shape::{Shape, element_count};
pub use site::Site;
pub use user_data_dir::user_data_dir;
