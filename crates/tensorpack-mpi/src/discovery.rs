//! Searches for MPI libraries: in `TENSORPACK_MPI`, in the folder of `tensorpack plugin install`,
//! in the system.

use crate::abi::{Abi, FILE_NAMES};
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, ErrorKind, Result, user_data_dir};

/// The environment variable with the file of an MPI library, or the folder of an installation.
pub(crate) const VARIABLE: &str = "TENSORPACK_MPI";
/// The environment variable with the folder that `tensorpack plugin install` installs into.
const CACHE: &str = "TENSORPACK_CACHE";
/// The path of the library in the folder of the wheel.
#[doc(hidden)]
pub const PACKAGED_LIBRARY: &str = "lib/libmpi_abi.so.1";

/// An MPI library that was found, but not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundMpi {
    /// Its file.
    pub path: PathBuf,
    /// Its binary interface.
    pub abi: Abi,
    /// Where it was found.
    pub source: MpiSource,
}

/// Where an MPI library was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MpiSource {
    /// In the environment variable `TENSORPACK_MPI`.
    Variable,
    /// In the folder of `tensorpack plugin install`.
    Installed,
    /// In a library folder of the system or of `LD_LIBRARY_PATH`.
    System,
}

impl fmt::Display for MpiSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MpiSource::Variable => write!(f, "named by {VARIABLE}"),
            MpiSource::Installed => f.write_str("installed by tensorpack"),
            MpiSource::System => f.write_str("in the system"),
        }
    }
}

/// The launcher that started this process, as far as it matters for the choice of a library: an MPI
/// under another MPI's launcher sees one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    OpenMpi,
    Mpich,
}

impl Family {
    fn of_launcher(variable: impl Fn(&str) -> bool) -> Option<Family> {
        if variable("OMPI_COMM_WORLD_SIZE") {
            Some(Family::OpenMpi)
        } else if variable("PMI_SIZE") {
            Some(Family::Mpich)
        } else {
            None
        }
    }

    /// Whether a library works under this launcher. A library with the standard interface may be
    /// either, except that the wheel is MPICH.
    fn serves(self, found: &FoundMpi) -> bool {
        match (self, found.abi) {
            (Family::OpenMpi, Abi::OpenMpi) | (Family::Mpich, Abi::Mpich) => true,
            (Family::OpenMpi, Abi::Standard) => found.source != MpiSource::Installed,
            (Family::Mpich, Abi::Standard) => true,
            _ => false,
        }
    }
}

/// Finds all MPI libraries: that of `TENSORPACK_MPI`, that installed by tensorpack, those of the
/// system. This only looks at files.
///
/// Returns an error if `TENSORPACK_MPI` names none.
pub fn find_libraries() -> Result<Vec<FoundMpi>> {
    let mut found = Vec::new();
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        found.push(named_library(Path::new(&path))?);
    }
    if let Ok(home) = mpi_folder() {
        let path = home.join(PACKAGED_LIBRARY);
        if path.is_file() {
            found.push(FoundMpi { path, abi: Abi::Standard, source: MpiSource::Installed });
        }
    }
    let folders = library_folders();
    for (name, abi) in FILE_NAMES {
        if let Some(path) = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()) {
            found.push(FoundMpi { path, abi, source: MpiSource::System });
        }
    }
    Ok(found)
}

/// Finds the MPI library to use: the first of [`find_libraries`] that works with the launcher of
/// this process, if it has one. `TENSORPACK_MPI` is used in any case.
pub fn find_library() -> Result<FoundMpi> {
    let family = Family::of_launcher(|name| env::var_os(name).is_some());
    choose(find_libraries()?, family)
}

fn choose(found: Vec<FoundMpi>, family: Option<Family>) -> Result<FoundMpi> {
    let serves = |found: &FoundMpi| {
        found.source == MpiSource::Variable || family.is_none_or(|family| family.serves(found))
    };
    let others: Vec<String> = found.iter().map(|found| found.path.display().to_string()).collect();
    found.into_iter().find(serves).ok_or_else(|| missing(family, &others))
}

fn missing(family: Option<Family>, others: &[String]) -> Error {
    let kind = ErrorKind::Unsupported;
    let error = match family {
        None => Error::new(kind, "there is no MPI library on this machine"),
        Some(family) => {
            let launcher = match family {
                Family::OpenMpi => "Open MPI's mpiexec",
                Family::Mpich => "the mpiexec of MPICH or Intel MPI",
            };
            let why = format!("there is no MPI library for {launcher}, which started this process");
            let error = Error::new(kind, why);
            match others {
                [] => error,
                others => error.note(format!("libraries for other launchers: {}", others.join(", "))),
            }
        }
    };
    let error = match family {
        Some(Family::OpenMpi) => error,
        _ => error.note("install one with: tensorpack plugin install mpi"),
    };
    error.note(format!("or set the environment variable {VARIABLE} to the file of a library"))
}

/// The folder that `tensorpack plugin install mpi` installs into.
pub fn mpi_folder() -> Result<PathBuf> {
    Ok(user_data_dir(CACHE)?.join("plugins/mpi"))
}

/// A library by its file, or by the folder of its installation.
fn named_library(path: &Path) -> Result<FoundMpi> {
    let source = MpiSource::Variable;
    if path.is_dir() {
        let folders = [path.join("lib"), path.join("lib64"), path.to_owned()];
        let files =
            FILE_NAMES.iter().flat_map(|(name, abi)| folders.iter().map(move |f| (f.join(name), *abi)));
        let found = files.into_iter().find(|(path, _)| path.is_file());
        return found.map(|(path, abi)| FoundMpi { path, abi, source }).ok_or_else(|| {
            let why = format!("{VARIABLE} is the folder {}, which contains no MPI library", path.display());
            Error::new(ErrorKind::Io, why).note(names())
        });
    }
    if !path.is_file() {
        let why = format!("{VARIABLE} is {}, which does not exist", path.display());
        return Err(Error::new(ErrorKind::Io, why));
    }
    let found = Abi::from_file_name(path).map(|abi| FoundMpi { path: path.to_owned(), abi, source });
    found.ok_or_else(|| {
        let why = format!("{VARIABLE} is {}, whose binary interface is unknown", path.display());
        Error::new(ErrorKind::Unsupported, why).note(names())
    })
}

/// The names of files that are recognized.
fn names() -> String {
    let names: Vec<&str> = FILE_NAMES.iter().map(|(name, _)| *name).collect();
    format!("files of MPI libraries are called {}", names.join(", "))
}

/// The folders of libraries: those of `LD_LIBRARY_PATH`, then the system's usual ones.
fn library_folders() -> Vec<PathBuf> {
    let listed = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&listed).filter(|path| path.is_absolute()).collect();
    let multiarch = format!("{}-linux-gnu", env::consts::ARCH);
    for root in ["/usr/local/lib", "/usr/lib", "/lib", "/usr/local/lib64", "/usr/lib64", "/lib64"] {
        folders.push(Path::new(root).join(&multiarch));
        folders.push(root.into());
    }
    // Fedora and its relatives keep MPI out of the way.
    for name in ["openmpi", "mpich"] {
        folders.push(Path::new("/usr/lib64").join(name).join("lib"));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tensorpack_testing::assert_mentions;

    fn found(path: &str, abi: Abi, source: MpiSource) -> FoundMpi {
        FoundMpi { path: path.into(), abi, source }
    }

    #[test]
    fn the_library_must_fit_the_launcher() {
        let wheel = found("/w/libmpi_abi.so.1", Abi::Standard, MpiSource::Installed);
        let system = found("/s/libmpi_abi.so.1", Abi::Standard, MpiSource::System);
        let open = found("/s/libmpi.so.40", Abi::OpenMpi, MpiSource::System);
        let mpich = found("/s/libmpi.so.12", Abi::Mpich, MpiSource::System);
        let all = vec![wheel.clone(), system.clone(), open.clone(), mpich.clone()];
        assert_eq!(choose(all.clone(), None).unwrap(), wheel);
        assert_eq!(choose(all.clone(), Some(Family::Mpich)).unwrap(), wheel);
        assert_eq!(choose(all.clone(), Some(Family::OpenMpi)).unwrap(), system);
        assert_eq!(choose(vec![wheel.clone(), open.clone()], Some(Family::OpenMpi)).unwrap(), open);
        assert_eq!(choose(vec![open, mpich.clone()], Some(Family::Mpich)).unwrap(), mpich);
        let error = choose(vec![wheel], Some(Family::OpenMpi)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_mentions(&error, &["Open MPI", "/w/libmpi_abi.so.1", "TENSORPACK_MPI"]);
        assert_mentions(choose(Vec::new(), None).unwrap_err(), &["tensorpack plugin install mpi"]);
        let named = found("/n/libmpi.so.12", Abi::Mpich, MpiSource::Variable);
        assert_eq!(choose(vec![named.clone()], Some(Family::OpenMpi)).unwrap(), named);
    }

    #[test]
    fn launchers_are_recognized_by_their_variables() {
        let family = |set: &[&str]| Family::of_launcher(|name| set.contains(&name));
        assert_eq!(family(&["OMPI_COMM_WORLD_SIZE"]), Some(Family::OpenMpi));
        assert_eq!(family(&["PMI_SIZE"]), Some(Family::Mpich));
        assert_eq!(family(&["SLURM_NTASKS"]), None);
    }

    #[test]
    fn a_variable_names_a_file_or_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let error = named_library(dir.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_mentions(error, &["TENSORPACK_MPI", "libmpi_abi.so.1", "libmpi.so.40"]);
        let file = dir.path().join("lib/libmpi.so.12");
        fs::create_dir(dir.path().join("lib")).unwrap();
        fs::write(&file, "").unwrap();
        let expected = FoundMpi { path: file.clone(), abi: Abi::Mpich, source: MpiSource::Variable };
        assert_eq!(named_library(dir.path()).unwrap(), expected);
        assert_eq!(named_library(&file).unwrap(), expected);
        assert_eq!(named_library(&dir.path().join("none.so")).unwrap_err().kind(), ErrorKind::Io);
        let other = dir.path().join("libother.so");
        fs::write(&other, "").unwrap();
        assert_eq!(named_library(&other).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
