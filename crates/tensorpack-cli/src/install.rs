//! Installs a plugin with pip into the folder that is searched for plugins.

use crate::packages::Package;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tensorpack::dataflow::dataset::pip;
use tensorpack::{Error, ErrorKind, Result};
use tensorpack_pjrt::{PACKAGED_PLUGINS, Plugin, plugin_folder};

/// Describes what would be downloaded, and where it would be installed.
pub(crate) fn plan(package: &Package) -> Result<String> {
    let (home, wheel) = (plugin_folder()?.join(package.name), package.wheel()?);
    let mut text = format!("pip would download into {}:\n", home.display());
    let line = |what: &str, bytes: u64| format!("  {what:<40} {:>6.0} MB\n", bytes as f64 / 1e6);
    text += &line(&package.requirement(), wheel.bytes);
    text += &format!("    sha256 {}\n", wheel.sha256);
    for (library, bytes) in package.libraries {
        text += &line(library, *bytes);
    }
    if !package.libraries.is_empty() {
        text += &line("total, about", package.bytes()?);
    }
    if let Some(needs) = package.needs {
        text += &format!("It needs {needs}.\n");
    }
    Ok(text)
}

/// Installs the plugin, unless this version is installed already.
pub(crate) fn install(package: &Package) -> Result<()> {
    package.wheel()?;
    let folder = plugin_folder()?;
    let within = |e: std::io::Error| Error::from(e).within(folder.display());
    fs::create_dir_all(&folder).map_err(within)?;
    let lock = File::create(folder.join(".lock")).map_err(within)?;
    // On a file system without locks the final rename is still atomic.
    let _lock = lock.lock();
    let home = folder.join(package.name);
    if is_installed(package, &home) {
        say(format_args!("{} is already installed in {}", package.requirement(), home.display()));
    } else {
        download(package, &folder, &home)?;
        say(format_args!("installed {} in {}", package.requirement(), home.display()));
    }
    let plugin = Plugin::open(&home.join(plugin_file(package)))?;
    let (major, minor) = plugin.api_version();
    say(format_args!("it opens (PJRT API version {major}.{minor}); `tensorpack doctor` lists its devices"));
    Ok(())
}

/// Prints a line. The installation does not depend on it: the reader may have closed the pipe.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The path of the plugin inside its folder.
fn plugin_file(package: &Package) -> &'static str {
    let packaged = PACKAGED_PLUGINS.iter().find(|plugin| plugin.name == package.name);
    packaged.expect("every package has an entry in PACKAGED_PLUGINS").file
}

fn is_installed(package: &Package, home: &Path) -> bool {
    let record = format!("{}-{}.dist-info", package.package.replace('-', "_"), package.version);
    home.join(record).is_dir() && home.join(plugin_file(package)).is_file()
}

/// Downloads the package and its libraries, verifies the checksum, unpacks them aside and renames
/// the result to `home`.
fn download(package: &Package, folder: &Path, home: &Path) -> Result<()> {
    let partial = Partial::create(folder.join(format!(".partial-{}", package.name)))?;
    let wheels = partial.folder("wheels")?;
    let requirement = package.requirement();
    let mut wanted = vec!["download", "--only-binary=:all:", &requirement];
    wanted.extend(package.libraries.iter().map(|(library, _)| *library));
    pip(&format!("downloading {requirement}"), Some(package.bytes()?), &wanted, &wheels)
        .map_err(|e| with_advice(e, package, home))?;
    let files = files_in(&wheels)?;
    verify_checksum(package, &files)?;
    let site = partial.folder("site")?;
    let names: Vec<_> = files.iter().map(|path| path.to_string_lossy()).collect();
    let mut unpack = vec!["install", "--no-index", "--no-deps", "--no-compile", "--target", "."];
    unpack.extend(names.iter().map(|name| &**name));
    pip(&format!("unpacking {requirement}"), None, &unpack, &site)?;
    if !is_installed(package, &site) {
        let why = format!("{requirement} does not contain {}", plugin_file(package));
        return Err(Error::new(ErrorKind::Io, why));
    }
    let within = |e: std::io::Error| Error::from(e).within(home.display());
    if home.exists() {
        fs::rename(home, partial.0.join("old")).map_err(within)?;
    }
    fs::rename(&site, home).map_err(within)
}

/// Adds how to install the package without pip or without a network.
fn with_advice(error: Error, package: &Package, home: &Path) -> Error {
    let requirement = package.requirement();
    if error.kind() == ErrorKind::Unsupported {
        let why = format!("{requirement} is downloaded with pip: {}", error.message());
        return Error::new(ErrorKind::Unsupported, why).note("install Python 3 with pip, and try again");
    }
    let mut libraries = String::new();
    for (library, _) in package.libraries {
        libraries += &format!(" \"{library}\"");
    }
    error
        .within(format!("could not download {requirement}"))
        .note("without a network, download it on a machine that has one:")
        .note(format!("  pip download {requirement}{libraries}"))
        .note("and install the files here:")
        .note(format!("  pip install --no-index --no-deps --target {} *.whl", home.display()))
}

/// Checks that the plugin's own wheel has the known checksum.
fn verify_checksum(package: &Package, files: &[PathBuf]) -> Result<()> {
    let start = format!("{}-", package.package.replace('-', "_"));
    let is_it =
        |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start));
    let path = files.iter().find(is_it).ok_or_else(|| {
        Error::new(ErrorKind::Io, format!("pip downloaded no file of {}", package.requirement()))
    })?;
    let sum = sha256(path).map_err(|e| e.within(path.display()))?;
    if sum != package.wheel()?.sha256 {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let why = format!("{name} has the wrong checksum: sha256 {sum}");
        return Err(
            Error::new(ErrorKind::Io, why).note(format!("expected sha256 {}", package.wheel()?.sha256))
        );
    }
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes)? {
            0 => break,
            n => hasher.update(&bytes[..n]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|e| Error::from(e).within(folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect())
}

/// A temporary folder, removed when dropped; one that a killed process left behind is emptied
/// first.
struct Partial(PathBuf);

impl Partial {
    fn create(path: PathBuf) -> Result<Partial> {
        let _ = fs::remove_dir_all(&path);
        Ok(Partial(path))
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir_all(&path).map_err(|e| Error::from(e).within(path.display()))?;
        Ok(path)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages;

    #[test]
    fn every_package_is_in_packaged_plugins_and_back() {
        for name in ["cpu", "cuda12", "cuda13"] {
            let package = packages::named(name).unwrap();
            assert!(plugin_file(package).ends_with(".so"));
        }
        assert!(PACKAGED_PLUGINS.iter().all(|p| p.name == "tpu" || packages::named(p.name).is_some()));
    }

    #[test]
    fn sha256_matches_a_known_digest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        fs::write(&path, "abc").unwrap();
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&path).unwrap(), sum);
    }
}
