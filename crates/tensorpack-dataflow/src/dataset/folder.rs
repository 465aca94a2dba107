//! Where data sets are kept.

use std::env;
use std::path::PathBuf;
use tensorpack_tensor::{Error, Result};

/// The folder of all data sets: `$TENSORPACK_DATASET`, or `tensorpack` in the folder where the platform keeps data of a
/// user's programs.
#[doc(alias = "get_dataset_path")]
pub fn folder() -> Result<PathBuf> {
    let var = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    choose(var).ok_or_else(|| {
        Error::argument("there is no home folder to keep data sets in")
            .note("name a folder in the environment variable TENSORPACK_DATASET")
    })
}

fn choose(var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if let Some(folder) = var("TENSORPACK_DATASET") {
        return Some(folder);
    }
    let data = if cfg!(windows) {
        var("LOCALAPPDATA").or_else(|| var("APPDATA"))
    } else if cfg!(target_os = "macos") {
        var("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        // A relative path here is to be ignored, says the standard of these folders.
        let xdg = var("XDG_DATA_HOME").filter(|path| path.is_absolute());
        xdg.or_else(|| var("HOME").map(|home| home.join(".local/share")))
    };
    data.map(|data| data.join("tensorpack"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_comes_first() {
        let set = |name: &str| Some(PathBuf::from(format!("/{name}")));
        assert_eq!(choose(set).unwrap(), PathBuf::from("/TENSORPACK_DATASET"));
        assert_eq!(choose(|_| None), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn then_the_folders_of_the_platform() {
        let home = |name: &str| (name == "HOME").then(|| "/home/me".into());
        assert_eq!(choose(home).unwrap(), PathBuf::from("/home/me/.local/share/tensorpack"));
        let xdg = |name: &str| match name {
            "XDG_DATA_HOME" => Some("/data".into()),
            other => home(other),
        };
        assert_eq!(choose(xdg).unwrap(), PathBuf::from("/data/tensorpack"));
    }
}
