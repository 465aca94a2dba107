//! NumPy's `.npz` files: named tensors.

use super::disk::{Disk, RealDisk, UNFINISHED, failed};
use super::safetensors::Named;
use std::path::Path;
use tensorpack_dataflow::format::npz;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Reads all tensors of a file, sorted by name.
pub fn read(path: impl AsRef<Path>) -> Result<Named> {
    Ok(npz::read(path)?.into_iter().collect())
}

/// Writes a file, replacing an existing one.
pub fn write(path: impl AsRef<Path>, tensors: &[(String, HostTensor)]) -> Result<()> {
    let path = path.as_ref();
    let Some(name) = path.file_name() else {
        return Err(Error::argument(format!("{} is not a file name", path.display())));
    };
    let unfinished = path.with_file_name(format!("{UNFINISHED}{}", name.to_string_lossy()));
    if unfinished.exists() {
        RealDisk.remove(&unfinished).map_err(failed("remove", &unfinished))?;
    }
    npz::write(&unfinished, tensors.iter().map(|(name, t)| (name.as_str(), t)))?;
    RealDisk.rename(&unfinished, path).map_err(failed("write", path))
}
