//! NumPy's `.npz` files: named tensors.

use super::disk::{Disk, RealDisk, failed, parent, unfinished};
use super::safetensors::Named;
use std::fs::File;
use std::path::Path;
use tensorpack_dataflow::format::npz;
use tensorpack_tensor::{HostTensor, Result};

/// Reads all tensors of a file, sorted by name.
pub fn read(path: impl AsRef<Path>) -> Result<Named> {
    Ok(npz::read(path)?.into_iter().collect())
}

/// Writes a file, replacing an existing one.
pub fn write(path: impl AsRef<Path>, tensors: &[(String, HostTensor)]) -> Result<()> {
    let path = path.as_ref();
    let unfinished = unfinished(path)?;
    let finish = || {
        File::open(&unfinished)?.sync_all()?;
        RealDisk.rename(&unfinished, path)?;
        RealDisk.sync_dir(parent(path))
    };
    npz::write(&unfinished, tensors.iter().map(|(name, t)| (name.as_str(), t)))
        .and_then(|()| finish().map_err(failed("write", path)))
        .inspect_err(|_| {
            // The file may not exist; report the first error only.
            let _ = RealDisk.remove(&unfinished);
        })
}
