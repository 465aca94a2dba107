//! The folder where what is fetched once is kept.

use crate::{Error, Result};
use std::env;
use std::path::PathBuf;

/// The folder that the environment variable `variable` names, or `tensorpack` in the folder where the platform keeps data
/// of a user's programs.
#[doc(alias = "user_folder")]
pub fn user_data_dir(variable: &str) -> Result<PathBuf> {
    let var = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    data_dir_from(variable, var).ok_or_else(|| {
        Error::argument("there is no home folder to keep data in")
            .note(format!("name a folder in the environment variable {variable}"))
    })
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
