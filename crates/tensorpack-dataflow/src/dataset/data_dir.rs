//! Where data sets are kept.

use std::path::PathBuf;
use tensorpack_tensor::{Result, user_data_dir};

/// The folder of all data sets: `$TENSORPACK_DATASET`, or `tensorpack` in the folder where the platform keeps data of a
/// user's programs.
#[doc(alias = "folder")]
#[doc(alias = "get_dataset_path")]
pub fn data_dir() -> Result<PathBuf> {
    user_data_dir("TENSORPACK_DATASET")
}
