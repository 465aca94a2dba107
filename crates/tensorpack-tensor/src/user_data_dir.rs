//! The directory for downloaded data.

use crate::{Error, Result};
use std::env;
use std::path::PathBuf;

/// Returns the directory named by the environment variable `variable`; defaults to `tensorpack` in
/// the platform's per-user data directory. The result is absolute: programs that run in other
/// directories use it, too.
#[doc(alias = "user_folder")]
pub fn user_data_dir(variable: &str) -> Result<PathBuf> {
    let var = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = data_dir_from(variable, var).ok_or_else(|| {
        Error::argument("cannot determine a directory for data: no home directory is set")
            .note(format!("set the environment variable {variable} to a directory"))
    })?;
    std::path::absolute(&dir).map_err(|e| Error::from(e).within(dir.display()))
}

fn data_dir_from(variable: &str, var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if let Some(folder) = var(variable) {
        return Some(folder);
    }
    let data = if cfg!(windows) {
        var("LOCALAPPDATA").or_else(|| var("APPDATA"))
    } else if cfg!(target_os = "macos") {
        var("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        // The XDG base directory specification says to ignore relative paths.
        let xdg = var("XDG_DATA_HOME").filter(|path| path.is_absolute());
        xdg.or_else(|| var("HOME").map(|home| home.join(".local/share")))
    };
    data.map(|data| data.join("tensorpack"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_variable_wins() {
        let set = |name: &str| Some(PathBuf::from(format!("/{name}")));
        assert_eq!(data_dir_from("TENSORPACK_X", set).unwrap(), PathBuf::from("/TENSORPACK_X"));
        assert_eq!(data_dir_from("TENSORPACK_X", |_| None), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn falls_back_to_the_platform_data_dir() {
        let home = |name: &str| (name == "HOME").then(|| "/home/me".into());
        assert_eq!(
            data_dir_from("TENSORPACK_X", home).unwrap(),
            PathBuf::from("/home/me/.local/share/tensorpack")
        );
        let xdg = |name: &str| match name {
            "XDG_DATA_HOME" => Some("/data".into()),
            other => home(other),
        };
        assert_eq!(data_dir_from("TENSORPACK_X", xdg).unwrap(), PathBuf::from("/data/tensorpack"));
    }
}
