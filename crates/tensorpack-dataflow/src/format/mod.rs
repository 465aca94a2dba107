//! File formats: readers with random access, and writers.
//!
//! A reader locates its samples when it opens a file and is a [`RandomAccess`] source from then on.
//! Files are not trusted: sizes are checked against the length of the file before memory is
//! allocated, and corrupt data is an error that names the file and the offset. `save` and `load` of
//! [`tfrecord`], [`npz`], [`tar`] and `lmdb` store the samples of any dataflow.
//!
//! ```
//! use tensorpack_dataflow::format::tfrecord;
//! use tensorpack_dataflow::tensor::HostTensor;
//! use tensorpack_dataflow::{FromList, RandomAccess};
//!
//! # let folder = tempfile::tempdir()?;
//! let path = folder.path().join("squares.tfrecord");
//! let squares = FromList::new((0..100i32).map(|i| vec![HostTensor::scalar(i * i)]).collect());
//! tfrecord::save(&squares, &path)?;
//! assert_eq!(tfrecord::load(&path)?.get(7)?, [HostTensor::scalar(49)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod regular_file;
mod byte_source;
mod endian;
mod check_index;
mod atomic_file;
mod rows;
mod tar_archive;
#[cfg(test)]
mod round_trip;
mod zip_archive;
pub mod serialized;
pub mod gzip;
pub mod cifar;
pub mod idx;
pub mod imagenet;
pub mod image_folder;
pub mod lines;
#[cfg(feature = "lmdb")]
pub mod lmdb;
pub mod npy;
pub mod npz;
pub mod tar;
pub mod tfrecord;

use crate::RandomAccess;
pub use byte_source::{ByteSource, ByteSourceReader};
#[doc(hidden)]
pub use regular_file::open_regular_file;
#[cfg(test)]
use round_trip::{assert_round_trip, test_samples};
pub use rows::Rows;
pub(crate) use tar_archive::Tar;
#[doc(hidden)]
pub use zip_archive::{StoredEntry, ZipEntry, for_each_entry as for_each_zip_entry};
