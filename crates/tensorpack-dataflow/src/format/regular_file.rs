//! Opening files that are not trusted.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;

/// Opens a regular file for reading, and returns an error of kind [`io::ErrorKind::InvalidInput`]
/// for anything else.
///
/// The type is checked before the file is opened, because opening a pipe waits for a writer, and
/// again afterwards, because the file may have been replaced. Symbolic links are followed.
#[doc(hidden)]
pub fn open_regular_file(path: &Path) -> io::Result<(File, Metadata)> {
    let check = |meta: Metadata| match meta.is_file() {
        true => Ok(meta),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    };
    check(fs::metadata(path)?)?;
    let file = File::open(path)?;
    let meta = check(file.metadata()?)?;
    Ok((file, meta))
}
