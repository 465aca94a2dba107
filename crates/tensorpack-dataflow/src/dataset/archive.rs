//! What packages are packed in.

use crate::format::gzip::unpack;
use crate::format::{Contents, Tar, Zip};
use std::process::{Command, Stdio};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// No data set here is larger.
const MAX: u64 = 1 << 30;

/// The only file that was fetched.
pub(super) fn only(fetched: &[Contents]) -> Result<Contents> {
    match fetched {
        [one] => Ok(one.clone()),
        _ => Err(Error::new(ErrorKind::Io, format!("{} files were fetched, not one", fetched.len()))),
    }
}

/// Each file, unpacked if it is packed with gzip.
pub(super) fn unpacked(fetched: &[Contents]) -> Result<Vec<Vec<u8>>> {
    fetched.iter().map(|file| unpack(file.clone(), MAX)?.read_all()).collect()
}

/// A tar archive, packed or not.
pub(super) fn tar(fetched: &[Contents]) -> Result<Tar> {
    Tar::parse(unpack(only(fetched)?, MAX)?)
}

/// The file called `name` in a zip archive.
pub(super) fn zipped(fetched: &[Contents], name: &str) -> Result<Vec<u8>> {
    let zip = Zip::parse(only(fetched)?)?;
    let entry = zip.entries().iter().find(|entry| entry.name == name);
    let entry = entry.ok_or_else(|| Error::new(ErrorKind::Io, format!("the package has no file {name}")))?;
    zip.read(entry, MAX)
}

/// The files of a Debian package. Its own program opens it: where there is `apt-get`, there is `dpkg-deb`.
pub(super) fn debian(fetched: &[Contents]) -> Result<Tar> {
    let package = only(fetched)?;
    let program = Command::new("dpkg-deb")
        .args(["--fsys-tarfile", package.name()])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::from(e).within("dpkg-deb"))?;
    if !program.status.success() {
        let why = String::from_utf8_lossy(&program.stderr).trim().to_string();
        return Err(Error::new(ErrorKind::Io, format!("dpkg-deb failed: {why}")));
    }
    Tar::parse(Contents::memory(package.name(), program.stdout))
}
