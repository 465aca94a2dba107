//! An opened MPI library.

use crate::abi::Abi;
use crate::calls::{self, Calls};
use crate::discovery::{FoundMpi, MpiSource, find_library};
use std::ffi::{c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// An MPI library, opened but not initialized. It is never unloaded.
pub struct Library {
    path: PathBuf,
    abi: Abi,
    version: String,
    pub(crate) calls: Box<dyn Calls>,
}

impl Library {
    /// Opens the library that [`find_library`] finds.
    pub fn find() -> Result<Library> {
        Library::open(&find_library()?)
    }

    /// Opens a library that was found.
    pub fn open(found: &FoundMpi) -> Result<Library> {
        let within = |e: Error| {
            let e = e.within(format!("{} ({})", found.path.display(), found.source));
            match found.source {
                MpiSource::System => e.note("set TENSORPACK_MPI to another MPI library to use that one"),
                _ => e,
            }
        };
        let library = open(&found.path, found.abi.needs_global_symbols()).map_err(within)?;
        // SAFETY: the file's name says that it has this interface, and that its symbols have the
        // types of MPI's; for Open MPI the names of its variables confirm it.
        let calls = unsafe { calls::load(&library, found.abi) }.map_err(within)?;
        // Threads of MPI run its code as long as the process does.
        std::mem::forget(library);
        let version = version(&*calls).map_err(within)?;
        Ok(Library { path: found.path.clone(), abi: found.abi, version, calls })
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its binary interface.
    pub fn abi(&self) -> Abi {
        self.abi
    }

    /// What the library calls itself: the first line of `MPI_Get_library_version`.
    #[doc(alias = "MPI_Get_library_version")]
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.version, self.abi, self.path.display())
    }
}

/// Opens a shared library.
#[cfg(unix)]
fn open(path: &Path, global: bool) -> Result<libloading::Library> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
    let flags = RTLD_NOW | if global { RTLD_GLOBAL } else { RTLD_LOCAL };
    // SAFETY: runs the initializers of an MPI library, which the user chose or installed.
    let library = unsafe { Library::open(Some(path), flags) };
    library.map(Into::into).map_err(|e| Error::new(ErrorKind::Io, format!("cannot be opened: {e}")))
}

#[cfg(not(unix))]
fn open(_: &Path, _: bool) -> Result<libloading::Library> {
    Err(Error::new(ErrorKind::Unsupported, "MPI is supported on Unix only"))
}

/// A text that MPI writes into memory of the caller. `MPI_MAX_LIBRARY_VERSION_STRING` and
/// `MPI_MAX_ERROR_STRING` are at most 8192 in all interfaces.
pub(crate) fn text(write: impl FnOnce(*mut c_char, &mut c_int) -> c_int) -> (c_int, String) {
    let (mut bytes, mut length) = (vec![0u8; 8192 + 1], 0);
    let code = write(bytes.as_mut_ptr().cast(), &mut length);
    let bytes = &bytes[..usize::try_from(length).unwrap_or(0).min(8192)];
    (code, String::from_utf8_lossy(bytes).trim_matches(['\0', '\n', ' ']).to_owned())
}

fn version(calls: &dyn Calls) -> Result<String> {
    // SAFETY: may be called at any time, and the memory is as long as the standard asks.
    let (code, text) = text(|text, length| unsafe { calls.library_version(text, length) });
    if code != 0 {
        let why = format!("MPI_Get_library_version fails with code {code}");
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    let words = text.lines().next().unwrap_or_default().split_whitespace();
    Ok(words.collect::<Vec<_>>().join(" ").trim_end_matches(',').to_owned())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use tensorpack_testing::assert_mentions;

    #[test]
    fn a_file_that_is_no_mpi_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libmpi.so.12");
        fs::write(&path, "not a library").unwrap();
        for abi in [Abi::Standard, Abi::OpenMpi, Abi::Mpich] {
            let error = Library::open(&FoundMpi { path: path.clone(), abi, source: MpiSource::System })
                .err()
                .unwrap();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert_mentions(error, &["libmpi.so.12", "in the system", "TENSORPACK_MPI"]);
        }
    }

    /// A library without MPI's functions, which is part of every system.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_without_mpi_is_an_error_that_names_a_function() {
        for abi in [Abi::Standard, Abi::OpenMpi, Abi::Mpich] {
            let path = PathBuf::from("libc.so.6");
            let error = Library::open(&FoundMpi { path, abi, source: MpiSource::Variable }).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let expected =
                if abi == Abi::OpenMpi { "ompi_mpi_comm_world" } else { "MPI_Get_library_version" };
            assert_mentions(error, &["libc.so.6", expected]);
        }
    }
}
