//! Unpacks a wheel whose programs and libraries are *data*, which `pip install --target` drops: it
//! keeps `bin` and loses `lib`.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};
use tensorpack::{Error, ErrorKind, Result};
use zip::ZipArchive;

/// Unpacks a wheel into `folder`: `NAME.data/data/X` becomes `X`, all else keeps its path.
pub(crate) fn unpack(wheel: &Path, folder: &Path) -> Result<()> {
    let within = |e: Error| e.within(wheel.display());
    let broken = |e: zip::result::ZipError| within(Error::new(ErrorKind::Io, e.to_string()));
    let file = File::open(wheel).map_err(|e| within(e.into()))?;
    let mut archive = ZipArchive::new(file).map_err(broken)?;
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(broken)?;
        let Some(path) = entry.enclosed_name() else {
            let why = format!("{:?} is outside of the folder", entry.name());
            return Err(within(Error::new(ErrorKind::Io, why)));
        };
        let path = folder.join(installed_path(&path));
        if entry.is_dir() {
            continue;
        }
        let mode = entry.unix_mode();
        write(&path, &mut entry, mode).map_err(|e| within(Error::from(e).within(path.display())))?;
    }
    Ok(())
}

fn installed_path(path: &Path) -> PathBuf {
    let parts: Vec<Component<'_>> = path.components().collect();
    match &parts[..] {
        [data, kind, rest @ ..]
            if Path::new(data).extension().is_some_and(|e| e == "data") && kind.as_os_str() == "data" =>
        {
            rest.iter().collect()
        }
        parts => parts.iter().collect(),
    }
}

fn write(path: &Path, contents: &mut impl io::Read, mode: Option<u32>) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file = File::create(path)?;
    io::copy(contents, &mut file)?;
    #[cfg(unix)]
    if mode.is_some_and(|mode| mode & 0o111 != 0) {
        use std::os::unix::fs::PermissionsExt;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
    }
    #[cfg(not(unix))]
    let _ = mode;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    fn wheel(folder: &Path, entries: &[(&str, u32)]) -> PathBuf {
        let path = folder.join("x-1.0-py3-none-any.whl");
        let mut archive = ZipWriter::new(File::create(&path).unwrap());
        for (name, mode) in entries {
            archive.start_file(*name, SimpleFileOptions::default().unix_permissions(*mode)).unwrap();
            archive.write_all(name.as_bytes()).unwrap();
        }
        archive.finish().unwrap();
        path
    }

    #[test]
    fn data_is_unpacked_as_a_prefix() {
        let dir = tempfile::tempdir().unwrap();
        let entries = [
            ("x-1.0.data/data/lib/a.so.1", 0o644),
            ("x-1.0.data/data/bin/run", 0o755),
            ("x-1.0.dist-info/RECORD", 0o644),
        ];
        let target = dir.path().join("target");
        unpack(&wheel(dir.path(), &entries), &target).unwrap();
        for (name, _) in entries {
            let installed = name.trim_start_matches("x-1.0.data/data/");
            assert_eq!(fs::read_to_string(target.join(installed)).unwrap(), name);
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let is_program =
                |name: &str| fs::metadata(target.join(name)).unwrap().permissions().mode() & 0o111 != 0;
            assert!(is_program("bin/run") && !is_program("lib/a.so.1"));
        }
    }

    #[test]
    fn paths_outside_and_broken_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        let error = unpack(&wheel(dir.path(), &[("../outside", 0o644)]), &target).unwrap_err();
        assert!(error.message().contains("outside"), "{error}");
        assert!(!dir.path().join("outside").exists());
        let broken = dir.path().join("broken.whl");
        fs::write(&broken, "words").unwrap();
        assert_eq!(unpack(&broken, &target).unwrap_err().kind(), ErrorKind::Io);
    }
}
