//! The directory of downloaded data sets.

use std::path::PathBuf;
use tensorpack_tensor::{Result, user_data_dir};

/// Returns the directory of all data sets: `$TENSORPACK_DATASET`, or `tensorpack` in the platform's
/// per-user data directory.
#[doc(alias = "folder")]
#[doc(alias = "get_dataset_path")]
pub fn data_dir() -> Result<PathBuf> {
    user_data_dir("TENSORPACK_DATASET")
}
