//! Installs a plugin with pip into the folder that is searched for plugins.

use crate::packages::{Contents, Package, Wheel};
use crate::wheel;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tensorpack::dataflow::dataset::{PipCommand, lock_file, pip};
use tensorpack::{Error, ErrorKind, Result};
use tensorpack_mpi::{Abi, FoundMpi, Library, MpiSource, PACKAGED_LIBRARY};
use tensorpack_pjrt::{PACKAGED_PLUGINS, Plugin, plugin_folder};

/// Describes what would be downloaded, and where it would be installed.
pub(crate) fn plan(package: &Package) -> Result<String> {
    let (home, wheels) = (plugin_folder()?.join(package.name), package.wheels()?);
    let mut text = format!("pip would download into {}:\n", home.display());
    let line = |what: &str, bytes: u64| format!("  {what:<40} {:>6.0} MB\n", bytes as f64 / 1e6);
    for wheel in &wheels {
        text += &line(&wheel.requirement(), wheel.bytes);
        text += &format!("    sha256 {}\n", wheel.sha256);
    }
    if wheels.len() > 1 {
        text += &line("total", total_bytes(&wheels));
    }
    if let Some(needs) = package.needs {
        text += &format!("It needs {needs}.\n");
    }
    Ok(text)
}

fn total_bytes(wheels: &[Wheel]) -> u64 {
    wheels.iter().map(|wheel| wheel.bytes).sum()
}

/// Installs the plugin, unless this version is installed already. Says on `out` what was done.
pub(crate) fn install(package: &Package, out: &mut impl Write) -> Result<()> {
    let wheels = package.wheels()?;
    let plugin = wheels.first().expect("every requirements file lists the plugin");
    let folder = plugin_folder()?;
    fs::create_dir_all(&folder).map_err(|e| Error::from(e).within(folder.display()))?;
    let _lock = lock_file(&folder.join(".lock"), "install a plugin")?;
    let home = folder.join(package.name);
    // What was done matters more than the report: a reader may have closed the pipe.
    let mut say = |text: String| drop(writeln!(out, "{text}"));
    if is_installed(package, plugin, &home) {
        say(format!("{} is already installed in {}", plugin.requirement(), home.display()));
    } else {
        download(package, &wheels, &folder, &home)?;
        say(format!("installed {} in {}", plugin.requirement(), home.display()));
    }
    let path = home.join(plugin_file(package));
    match package.contents {
        Contents::PjrtPlugin => {
            let (major, minor) = Plugin::open(&path)?.api_version();
            say(format!(
                "it opens (PJRT API version {major}.{minor}); `tensorpack doctor` lists its devices"
            ));
        }
        Contents::Mpi => {
            let library =
                Library::open(&FoundMpi { path, abi: Abi::Standard, source: MpiSource::Installed })?;
            say(format!(
                "it opens ({}); `tensorpack launch -n 2 -- PROGRAM` starts two ranks",
                library.version()
            ));
        }
    }
    Ok(())
}

/// The path of the plugin or library inside its folder.
fn plugin_file(package: &Package) -> &'static str {
    if package.contents == Contents::Mpi {
        return PACKAGED_LIBRARY;
    }
    let packaged = PACKAGED_PLUGINS.iter().find(|plugin| plugin.name == package.name);
    packaged.expect("every package has an entry in PACKAGED_PLUGINS").file
}

fn is_installed(package: &Package, plugin: &Wheel, home: &Path) -> bool {
    let record = format!("{}.dist-info", plugin.file_stem());
    home.join(record).is_dir() && home.join(plugin_file(package)).is_file()
}

/// Downloads the wheels, verifies their checksums, unpacks them aside and renames the result to
/// `home`.
fn download(package: &Package, wheels: &[Wheel], folder: &Path, home: &Path) -> Result<()> {
    let partial = Partial::create(folder.join(format!(".partial-{}", package.name)))?;
    let fetched = partial.folder("wheels")?;
    let requirements = partial.0.join("requirements.txt");
    fs::write(&requirements, package.requirements()?)
        .map_err(|e| Error::from(e).within(requirements.display()))?;
    let name = wheels[0].requirement();
    let (label, bytes) = (format!("downloading {name}"), total_bytes(wheels));
    pip(&label, Some(bytes), PipCommand::Download, &requirements, &fetched)
        .map_err(|e| with_advice(e, package, &name, home))?;
    verify_checksums(wheels, &files_in(&fetched)?)?;
    let site = partial.folder("site")?;
    // Unpacked, libraries take up to four times their size.
    let label = format!("unpacking {name}");
    match package.contents {
        Contents::PjrtPlugin => {
            pip(&label, Some(4 * bytes), PipCommand::Unpack(&fetched), &requirements, &site)?;
        }
        Contents::Mpi => files_in(&fetched)?.iter().try_for_each(|file| wheel::unpack(file, &site))?,
    }
    if !is_installed(package, &wheels[0], &site) {
        let why = format!("{name} does not contain {}", plugin_file(package));
        return Err(Error::new(ErrorKind::Io, why));
    }
    let within = |e: io::Error| Error::from(e).within(home.display());
    if home.exists() {
        fs::rename(home, partial.0.join("old")).map_err(within)?;
    }
    fs::rename(&site, home).map_err(within)
}

/// Adds how to install the package without pip or without a network.
fn with_advice(error: Error, package: &Package, name: &str, home: &Path) -> Error {
    if error.kind() == ErrorKind::Unsupported {
        let why = format!("{name} is downloaded with pip: {}", error.message());
        return Error::new(ErrorKind::Unsupported, why).note("install Python 3 with pip, and try again");
    }
    let mut error = error
        .within(format!("could not download {name}"))
        .note("without a network, download its wheels on a machine that has one, with a requirements file:");
    for line in package.requirements().unwrap_or_default().lines().filter(|line| !line.starts_with('#')) {
        error = error.note(format!("  {line}"));
    }
    let error =
        error.note("  pip download --only-binary=:all: --no-deps --require-hashes -r requirements.txt");
    match package.contents {
        Contents::PjrtPlugin => error
            .note("and install the files here:")
            .note(format!("  pip install --no-index --no-deps --target {} *.whl", home.display())),
        // pip would lose the libraries; see `wheel.rs`.
        Contents::Mpi => error
            .note("and unzip it here; then move the contents of its folder *.data/data to")
            .note(format!("  {}", home.display())),
    }
}

/// Checks that there is exactly one file for each wheel, with the known checksum. pip has checked
/// the same; this does not depend on its version.
fn verify_checksums(wheels: &[Wheel], files: &[PathBuf]) -> Result<()> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut left: Vec<&PathBuf> = files.iter().collect();
    for wheel in wheels {
        let start = format!("{}-", wheel.file_stem());
        let found = left.iter().position(|path| name(path).to_lowercase().starts_with(&start));
        let path = found.map(|i| left.swap_remove(i)).ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("pip downloaded no file of {}", wheel.requirement()))
        })?;
        let sum = sha256(path).map_err(|e| e.within(path.display()))?;
        if sum != wheel.sha256 {
            let why = format!("{} has the wrong checksum: sha256 {sum}", name(path));
            return Err(Error::new(ErrorKind::Io, why).note(format!("expected sha256 {}", wheel.sha256)));
        }
    }
    match left.first() {
        Some(path) => Err(Error::new(ErrorKind::Io, format!("pip downloaded {}, too", name(path)))),
        None => Ok(()),
    }
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
        assert_eq!(plugin_file(packages::named("mpi").unwrap()), PACKAGED_LIBRARY);
        assert!(PACKAGED_PLUGINS.iter().all(|p| !p.installable || packages::named(p.name).is_some()));
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
