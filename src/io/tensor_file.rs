//! Files of named tensors. The extension determines the format.

use super::checkpoint_store::{latest, pointed_at, tagged};
use super::safetensors::{self, Named};
use super::{Checkpoint, RealDisk, Source, failed, hub_folder, npz, pytorch};
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, HostTensor, Result};

/// Reads the tensors at a path: a checkpoint folder, a log directory (its latest checkpoint) or a
/// tensor file. A `key` selects a dictionary of a PyTorch file.
pub(super) fn open(path: &Path, key: Option<&str>) -> Result<Source> {
    // A file in a checkpoint folder is read with its manifest, which has the checksums.
    for folder in [Some(path), path.parent()].into_iter().flatten() {
        if Checkpoint::is_at(folder)? {
            return Ok(Source::checkpoint(folder, Checkpoint::load(folder)?));
        }
    }
    // The file of a tag, or `latest`.
    if path.is_file()
        && Format::from_path(path).is_err()
        && let Some(folder) = pointed_at(&RealDisk, path)?
    {
        return Ok(Source::checkpoint(&folder, Checkpoint::load(&folder)?));
    }
    if path.is_dir() && hub_folder::weights_file(path)?.is_none() {
        return match latest(&RealDisk, &checkpoints_of(path))? {
            Some((folder, checkpoint)) => Ok(Source::checkpoint(&folder, checkpoint)),
            None => Err(Error::argument(format!("there is no checkpoint in {}", path.display()))),
        };
    }
    Ok(Source::new(path.display(), read(path, key)?))
}

/// Reads the checkpoint with this tag of a log directory.
pub(super) fn open_tagged(path: &Path, tag: &str) -> Result<Source> {
    let folder = tagged(&RealDisk, &checkpoints_of(path), tag)?;
    Ok(Source::checkpoint(&folder, Checkpoint::load(&folder)?))
}

/// Returns the directory of the checkpoints of a log directory, which may be given itself.
fn checkpoints_of(path: &Path) -> PathBuf {
    let checkpoints = path.join("checkpoints");
    if checkpoints.is_dir() { checkpoints } else { path.to_path_buf() }
}

/// Reads all tensors of a file: `.safetensors`, `.npz`, or PyTorch's `.pt`, `.pth` and `.bin`.
///
/// The path may also be that of sharded safetensors (`model.safetensors.index.json`), of a copy of
/// a repository of the Hugging Face hub, or of its folder in the hub's cache
/// (`models--OWNER--NAME`), where the revision `main` is read.
///
/// A `key` selects a dictionary of a PyTorch file; see [`pytorch::read_key`].
pub fn read_tensors(path: impl AsRef<Path>, key: Option<&str>) -> Result<Named> {
    read(path.as_ref(), key)
}

fn read(path: &Path, key: Option<&str>) -> Result<Named> {
    let inside = if path.is_dir() { hub_folder::weights_file(path)? } else { None };
    let path = inside.as_deref().unwrap_or(path);
    // A path that does not exist has no format to complain about.
    std::fs::metadata(path).map_err(failed("read", path))?;
    match (Format::from_path(path)?, key) {
        (Format::Safetensors, None) => safetensors::read(path),
        (Format::Shards, None) => hub_folder::read_shards(path),
        (Format::Npz, None) => npz::read(path),
        (Format::PyTorch, None) => pytorch::read(path),
        (Format::PyTorch, Some(key)) => pytorch::read_key(path, key),
        (_, Some(key)) => {
            let why = format!("{} has no key {key:?}: only PyTorch files have dictionaries", path.display());
            Err(Error::argument(why))
        }
    }
}

/// Writes tensors to a `.safetensors` or `.npz` file, replacing an existing one.
pub fn write_tensors(path: impl AsRef<Path>, tensors: &[(String, HostTensor)]) -> Result<()> {
    write(path.as_ref(), tensors)
}

pub(super) fn write(path: &Path, tensors: &[(String, HostTensor)]) -> Result<()> {
    match Format::from_path(path)? {
        Format::Safetensors => safetensors::write(path, tensors),
        Format::Npz => npz::write(path, tensors),
        Format::PyTorch | Format::Shards => {
            let error = Error::argument(format!("cannot write {}: this format is only read", path.display()));
            Err(error.note("write a .safetensors file, which PyTorch reads with safetensors.torch.load_file"))
        }
    }
}

enum Format {
    Safetensors,
    Shards,
    Npz,
    PyTorch,
}

impl Format {
    fn from_path(path: &Path) -> Result<Format> {
        if path.to_str().is_some_and(|path| path.ends_with(hub_folder::INDEX)) {
            return Ok(Format::Shards);
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("safetensors") => Ok(Format::Safetensors),
            Some("npz") => Ok(Format::Npz),
            Some("pt" | "pth" | "bin") => Ok(Format::PyTorch),
            _ => {
                let why = format!("{} is not a tensor file", path.display());
                Err(Error::argument(why)
                    .note("use a .safetensors, .npz, .pt or .pth file, or a checkpoint folder"))
            }
        }
    }
}
