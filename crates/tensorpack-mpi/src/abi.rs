//! The binary interfaces of MPI libraries: what their handles and constants look like.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::path::Path;

/// A binary interface of MPI. Each has a table of functions and constants of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Abi {
    /// The standard interface of MPI 5.0: `libmpi_abi.so`.
    Standard,
    /// Open MPI 4 and 5: `libmpi.so.40`. Handles are addresses of its variables.
    OpenMpi,
    /// MPICH 3 and 4, Intel MPI and others: `libmpi.so.12`. Handles are integers.
    Mpich,
}

/// The file names that are searched for in the system, in this order.
pub(crate) const FILE_NAMES: [(&str, Abi); 5] = [
    ("libmpi_abi.so.1", Abi::Standard),
    ("libmpi_abi.so.0", Abi::Standard),
    ("libmpi.so.40", Abi::OpenMpi),
    ("libmpi.so.12", Abi::Mpich),
    // Debian's name.
    ("libmpich.so.12", Abi::Mpich),
];

impl Abi {
    /// The interface of a library, from its file name after links are resolved.
    pub(crate) fn from_file_name(path: &Path) -> Option<Abi> {
        let of = |path: &Path| {
            let name = path.file_name()?.to_str()?;
            FILE_NAMES.iter().find(|(known, _)| name.starts_with(known)).map(|(_, abi)| *abi)
        };
        of(path).or_else(|| of(&path.canonicalize().ok()?))
    }

    /// Whether the library needs its symbols to be global, for the plugins that it opens itself.
    pub(crate) fn needs_global_symbols(self) -> bool {
        self == Abi::OpenMpi
    }

    /// `MPI_THREAD_SERIALIZED`.
    pub(crate) fn thread_serialized(self) -> c_int {
        match self {
            Abi::Standard => 2048,
            Abi::OpenMpi | Abi::Mpich => 2,
        }
    }

    /// `MPI_STATUS_IGNORE`.
    pub(crate) fn status_ignore(self) -> *mut c_void {
        match self {
            Abi::Standard | Abi::OpenMpi => std::ptr::null_mut(),
            Abi::Mpich => std::ptr::without_provenance_mut(1),
        }
    }
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Abi::Standard => "MPI 5 ABI",
            Abi::OpenMpi => "Open MPI",
            Abi::Mpich => "MPICH",
        })
    }
}

/// The handles that every call needs.
#[derive(Clone, Copy)]
pub(crate) struct Handles<H> {
    /// `MPI_COMM_WORLD`.
    pub(crate) world: H,
    /// `MPI_BYTE`.
    pub(crate) byte: H,
    /// `MPI_ERRORS_RETURN`.
    pub(crate) errors_return: H,
    /// `MPI_REQUEST_NULL`.
    pub(crate) request_null: H,
}

/// The values that the MPI 5.0 standard fixes.
pub(crate) const STANDARD_HANDLES: Handles<usize> =
    Handles { world: 0x101, byte: 0x247, errors_return: 0x143, request_null: 0x180 };

/// The values that all versions of MPICH since 3.0 and the libraries compatible with it share.
pub(crate) const MPICH_HANDLES: Handles<c_int> =
    Handles { world: 0x4400_0000, byte: 0x4c00_010d, errors_return: 0x5400_0001, request_null: 0x2c00_0000 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_told_by_file_names() {
        let abi = |name: &str| Abi::from_file_name(Path::new(name));
        assert_eq!(abi("/a/libmpi_abi.so.1"), Some(Abi::Standard));
        assert_eq!(abi("libmpi.so.40.30.4"), Some(Abi::OpenMpi));
        assert_eq!(abi("libmpi.so.12"), Some(Abi::Mpich));
        assert_eq!(abi("libmpich.so.12.2.2"), Some(Abi::Mpich));
        assert_eq!(abi("libmpi.so"), None);
        assert_eq!(abi("/"), None);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("libmpi.so.40.20.1");
        std::fs::write(&target, "").unwrap();
        let link = dir.path().join("libmpi.so");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(Abi::from_file_name(&link), Some(Abi::OpenMpi));
    }
}
