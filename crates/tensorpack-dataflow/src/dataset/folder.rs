//! Where data sets are kept.

use std::path::PathBuf;
use tensorpack_tensor::{Result, user_folder};

/// The folder of all data sets: `$TENSORPACK_DATASET`, or `tensorpack` in the folder where the platform keeps data of a
/// user's programs.
#[doc(alias = "get_dataset_path")]
pub fn folder() -> Result<PathBuf> {
    user_folder("TENSORPACK_DATASET")
}
