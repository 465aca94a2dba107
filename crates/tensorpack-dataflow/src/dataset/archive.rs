//! Extracting downloaded packages.

use super::package_client::run_command;
use crate::format::gzip::{decompress, decompress_within};
use crate::format::{ByteSource, Tar, for_each_zip_entry};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Upper limit on the size of any data set.
pub(super) const MAX_SIZE: u64 = 1 << 30;

/// Returns the single downloaded file.
pub(super) fn single_file(fetched: &[ByteSource]) -> Result<ByteSource> {
    match fetched {
        [one] => Ok(one.clone()),
        _ => Err(Error::new(ErrorKind::Io, format!("expected one downloaded file, got {}", fetched.len()))),
    }
}

/// Reads every file, decompressing gzip.
pub(super) fn gunzip_all(fetched: &[ByteSource]) -> Result<Vec<Vec<u8>>> {
    let mut left = MAX_SIZE;
    fetched.iter().map(|file| decompress_within(file.clone(), &mut left)?.read_all()).collect()
}

/// Opens a tar archive, compressed or not.
pub(super) fn tar(fetched: &[ByteSource]) -> Result<Tar> {
    Tar::parse(decompress(single_file(fetched)?, MAX_SIZE)?)
}

/// Reads the entry `name` of a zip archive.
pub(super) fn zip_entry(fetched: &[ByteSource], name: &str) -> Result<Vec<u8>> {
    let mut found = None;
    for_each_zip_entry(&single_file(fetched)?, |entry| {
        if entry.name() != name {
            return Ok(ControlFlow::Continue(()));
        }
        found = Some(entry.read(MAX_SIZE)?);
        Ok(ControlFlow::Break(()))
    })?;
    found.ok_or_else(|| Error::new(ErrorKind::Io, format!("the package does not contain {name}")))
}

/// Lists the files of a Debian package with `dpkg-deb`, which is installed wherever `apt-get` is.
pub(super) fn deb_contents(fetched: &[ByteSource]) -> Result<Tar> {
    let package = single_file(fetched)?;
    let path = Path::new(package.name());
    let (folder, tar) = (path.parent().unwrap_or(Path::new(".")), path.with_extension("tar"));
    let mut command = Command::new("dpkg-deb");
    command.arg("--fsys-tarfile").arg(path);
    run_command(&format!("unpacking {}", package.name()), None, command, folder, Some(&tar))?;
    Tar::parse(ByteSource::open(tar)?)
}
