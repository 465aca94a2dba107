//! Files of lines that a resumed run continues.

use super::append_file::AppendFile;
use crate::io::failed;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Opens a file of lines. A resumed run truncates it to `length`; a new run creates it.
pub(super) fn open(path: &Path, length: Option<u64>) -> Result<AppendFile> {
    if length.is_none() {
        move_aside(path)?;
    }
    let open = || {
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let there = file.metadata()?.len();
        let length = length.unwrap_or(0);
        let whole = if there >= length { length } else { whole_lines(&mut file)? };
        if there < length {
            log::warn!("{} has lost {} bytes since the checkpoint", path.display(), length - whole);
        }
        AppendFile::new(path, file, whole)
    };
    open().map_err(failed("open", path))
}

/// Returns the length of the complete lines of a file in bytes.
fn whole_lines(file: &mut File) -> std::io::Result<u64> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text.iter().rposition(|&b| b == b'\n').map_or(0, |at| at as u64 + 1))
}

/// Renames a file of an older run to the first unused of `stats.jsonl.1`, `stats.jsonl.2` and so
/// on.
pub(crate) fn move_aside(path: &Path) -> Result<()> {
    // If this is unknown, opening the file would truncate the statistics of the older run.
    if !path.try_exists().map_err(failed("read", path))? {
        return Ok(());
    }
    let numbered = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    let Some(aside) = (1..=u32::MAX).map(numbered).find(|p| p.try_exists().is_ok_and(|there| !there)) else {
        return Err(Error::new(ErrorKind::Io, format!("cannot move {} aside", path.display())));
    };
    log::info!("moving {} of an older run to {}", path.display(), aside.display());
    fs::rename(path, &aside).map_err(failed("move aside", path))
}
