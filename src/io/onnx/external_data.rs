//! Files of ONNX models, and the files of tensors beside them.

use crate::io::failed;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};
use tensorpack_dataflow::format::open_regular_file;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The maximum size of a model, which is that of a protocol buffer.
const MAX_MODEL: u64 = 1 << 31;

/// Reads the bytes of a model.
pub(super) fn read_model(path: &Path) -> Result<Vec<u8>> {
    let (mut file, meta) = open_regular_file(path).map_err(failed("read", path))?;
    if meta.len() > MAX_MODEL {
        let why = format!("the file has {} bytes, but an ONNX model has at most {MAX_MODEL}", meta.len());
        return Err(Error::new(ErrorKind::Io, why));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.by_ref().take(MAX_MODEL).read_to_end(&mut bytes).map_err(failed("read", path))?;
    Ok(bytes)
}

/// Reads `length` bytes at `offset` of a file beside the model. A name that leaves the folder of the
/// model is an error: models are not trusted.
pub(super) fn read(model: &Path, file: &str, offset: u64, length: Option<u64>) -> Result<Vec<u8>> {
    let refused = |why: &str| Err(Error::new(ErrorKind::Io, format!("its file {file:?} {why}")));
    let parts: Vec<Component<'_>> = Path::new(file).components().collect();
    if parts.is_empty() || !parts.iter().all(|part| matches!(part, Component::Normal(_))) {
        return refused("is not in the folder of the model");
    }
    let folder = model.parent().unwrap_or(Path::new(""));
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let path = folder.join(file);
    let resolve = |path: &Path| path.canonicalize().map_err(failed("read", path));
    if !resolve(&path)?.starts_with(resolve(folder)?) {
        return refused("is a link that leaves the folder of the model");
    }
    let (mut opened, meta) = open_regular_file(&path).map_err(failed("read", &path))?;
    let rest = meta.len().checked_sub(offset);
    let Some(length) = rest.map(|rest| length.unwrap_or(rest)).filter(|&n| n <= rest.unwrap_or(0)) else {
        return refused(&format!("has {} bytes, which is too short", meta.len()));
    };
    opened.seek(SeekFrom::Start(offset)).map_err(failed("read", &path))?;
    let mut bytes = Vec::with_capacity(length as usize);
    opened.take(length).read_to_end(&mut bytes).map_err(failed("read", &path))?;
    Ok(bytes)
}
