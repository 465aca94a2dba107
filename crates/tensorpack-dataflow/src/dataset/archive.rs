//! What packages are packed in.

use crate::format::gzip::decompress;
use crate::format::{ByteSource, Tar, Zip};
use std::process::{Command, Stdio};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// No data set here is larger.
const MAX_SIZE: u64 = 1 << 30;

/// The only file that was fetched.
pub(super) fn single_file(fetched: &[ByteSource]) -> Result<ByteSource> {
    match fetched {
        [one] => Ok(one.clone()),
        _ => Err(Error::new(ErrorKind::Io, format!("{} files were fetched, not one", fetched.len()))),
    }
}

/// Each file, unpacked if it is packed with gzip.
pub(super) fn gunzip_all(fetched: &[ByteSource]) -> Result<Vec<Vec<u8>>> {
    fetched.iter().map(|file| decompress(file.clone(), MAX_SIZE)?.read_all()).collect()
}

/// A tar archive, packed or not.
pub(super) fn tar(fetched: &[ByteSource]) -> Result<Tar> {
    Tar::parse(decompress(single_file(fetched)?, MAX_SIZE)?)
}

/// The file called `name` in a zip archive.
pub(super) fn zip_entry(fetched: &[ByteSource], name: &str) -> Result<Vec<u8>> {
    let zip = Zip::parse(single_file(fetched)?)?;
    let entry = zip.entries().iter().find(|entry| entry.name == name);
    let entry = entry.ok_or_else(|| Error::new(ErrorKind::Io, format!("the package has no file {name}")))?;
    zip.read(entry, MAX_SIZE)
}

/// The files of a Debian package. Its own program opens it: where there is `apt-get`, there is `dpkg-deb`.
pub(super) fn deb_contents(fetched: &[ByteSource]) -> Result<Tar> {
    let package = single_file(fetched)?;
    let program = Command::new("dpkg-deb")
        .args(["--fsys-tarfile", package.name()])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::from(e).within("dpkg-deb"))?;
    if !program.status.success() {
        let why = String::from_utf8_lossy(&program.stderr).trim().to_string();
        return Err(Error::new(ErrorKind::Io, format!("dpkg-deb failed: {why}")));
    }
    Tar::parse(ByteSource::from_bytes(package.name(), program.stdout))
}
