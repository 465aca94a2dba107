//! Where plugins are found: named in the environment, in our own folder, among Python's packages.

use crate::Plugin;
use std::env;
use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use tensorpack_tensor::{Error, ErrorKind, Result, user_data_dir};

/// Names a plugin's file, to be used whatever platform is asked for.
const ONE: &str = "TENSORPACK_PJRT_PLUGIN";
/// Names files by platform, as other programs understand it, too: `cpu:FILE,cuda:FILE`.
const MANY: &str = "PJRT_NAMES_AND_LIBRARY_PATHS";
/// Names the folder below which our own command puts plugins.
const CACHE: &str = "TENSORPACK_CACHE";

/// A plugin that a Python package carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackagedPlugin {
    /// What `tensorpack plugin install` calls it.
    pub name: &'static str,
    /// The platform it is for.
    pub platform: &'static str,
    /// Where it is in a folder of packages.
    pub file: &'static str,
}

/// All of them; of two for one platform the newer comes first.
pub const PACKAGED_PLUGINS: [PackagedPlugin; 4] = [
    PackagedPlugin { name: "cpu", platform: "cpu", file: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so" },
    PackagedPlugin { name: "cuda13", platform: "cuda", file: "jax_plugins/xla_cuda13/xla_cuda_plugin.so" },
    PackagedPlugin { name: "cuda12", platform: "cuda", file: "jax_plugins/xla_cuda12/xla_cuda_plugin.so" },
    PackagedPlugin { name: "tpu", platform: "tpu", file: "libtpu/libtpu.so" },
];

/// A plugin that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPlugin {
    /// The platform it is for: `cpu`, `cuda`. None for the one that is to be used for all.
    pub platform: Option<String>,
    /// Its file.
    pub path: PathBuf,
    /// How it was found.
    pub place: Place,
}

/// How a plugin was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// An environment variable names it.
    Variable(&'static str),
    /// In the folder of `tensorpack plugin install`.
    Installed,
    /// In the virtual environment that is active.
    VirtualEnv,
    /// Among the packages of the `python3` on the path.
    Python,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Variable(name) => write!(f, "named by {name}"),
            Place::Installed => f.write_str("installed by tensorpack"),
            Place::VirtualEnv => f.write_str("in the virtual environment"),
            Place::Python => f.write_str("among Python's packages"),
        }
    }
}

/// The folder in which `tensorpack plugin install` puts plugins, each in one of its own: `plugins` in `$TENSORPACK_CACHE`,
/// or in `tensorpack` where the platform keeps data of a user's programs.
pub fn plugin_folder() -> Result<PathBuf> {
    Ok(user_data_dir(CACHE)?.join("plugins"))
}

/// All plugins there are; of those for one platform, the first is used.
pub fn find_plugins() -> Vec<FoundPlugin> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let mut found = Vec::new();
    if let Some(path) = variable(ONE) {
        found.push(FoundPlugin { platform: None, path: path.into(), place: Place::Variable(ONE) });
    }
    if let Some(pairs) = variable(MANY) {
        found.extend(pairs_of(&pairs.to_string_lossy()));
    }
    if let Ok(folder) = plugin_folder() {
        let installed =
            |plugin: PackagedPlugin| in_folder(&folder.join(plugin.name), plugin, Place::Installed);
        found.extend(PACKAGED_PLUGINS.into_iter().filter_map(installed));
    }
    let environment = variable("VIRTUAL_ENV").map(|folder| environment_packages(Path::new(&folder)));
    let environment = environment.unwrap_or_default();
    for (folders, place) in [(&environment[..], Place::VirtualEnv), (python_packages(), Place::Python)] {
        let every = folders.iter().flat_map(|folder| PACKAGED_PLUGINS.map(|plugin| (folder, plugin)));
        found.extend(every.filter_map(|(folder, plugin)| in_folder(folder, plugin, place)));
    }
    // Python's packages are most often those of the virtual environment.
    let mut seen = Vec::new();
    found.retain(|plugin| {
        let new = !seen.contains(&plugin.path);
        seen.push(plugin.path.clone());
        new
    });
    found
}

/// The plugin for a platform, such as `cpu` or `cuda`: the file.
pub fn find_plugin(platform: &str) -> Result<PathBuf> {
    let serves = |plugin: &FoundPlugin| plugin.platform.as_deref().is_none_or(|name| name == platform);
    match find_plugins().into_iter().find(serves) {
        Some(plugin) if plugin.path.is_file() => Ok(plugin.path),
        Some(FoundPlugin { path, place, .. }) => {
            let why = format!("the plugin {}, {place}, is not there", path.display());
            Err(Error::new(ErrorKind::Io, why))
        }
        None => Err(missing(platform)),
    }
}

fn missing(platform: &str) -> Error {
    let why = format!("there is no XLA plugin for {platform} on this machine");
    let names: Vec<_> = PACKAGED_PLUGINS.iter().filter(|p| p.platform == platform).map(|p| p.name).collect();
    let mut error = Error::new(ErrorKind::Unsupported, why);
    if !names.is_empty() && platform != "tpu" {
        let command = format!("tensorpack plugin install {}", names.join("|"));
        error = error.note(format!("get one with: {command}"));
        error = error.note("(in tensorpack's repository: cargo run --bin tensorpack -- plugin install ..)");
    }
    error.note(format!("or name its file in the environment variable {ONE}"))
}

impl Plugin {
    /// Opens the plugin for a platform, such as `cpu` or `cuda`, wherever it is found.
    pub fn find(platform: &str) -> Result<Arc<Plugin>> {
        Plugin::open(&find_plugin(platform)?)
    }
}

/// The plugin for a test. Where there is none the test is passed over, with a line that says so; but where
/// `TENSORPACK_REQUIRE_PLUGIN` is set, as in CI, it fails.
///
/// # Panics
/// Where a plugin is there but cannot be opened, or where there must be one and is none.
#[doc(hidden)]
pub fn plugin_for_tests(platform: &str) -> Option<Arc<Plugin>> {
    let required = env::var_os("TENSORPACK_REQUIRE_PLUGIN").is_some();
    match find_plugin(platform) {
        Ok(path) => Some(Plugin::open(&path).unwrap_or_else(|e| panic!("{e}"))),
        Err(e) if required => panic!("{e}"),
        Err(e) => {
            // Not `eprintln`, which tests that pass do not show.
            let test = std::thread::current().name().unwrap_or("a test").to_string();
            let _ = writeln!(std::io::stderr(), "{test} is passed over: {}", e.message());
            None
        }
    }
}

/// What a list of `platform:file` says.
fn pairs_of(text: &str) -> Vec<FoundPlugin> {
    let pairs = text.split(',').filter_map(|pair| pair.trim().split_once(':'));
    let found = |(platform, path): (&str, &str)| FoundPlugin {
        platform: Some(platform.to_lowercase()),
        path: path.into(),
        place: Place::Variable(MANY),
    };
    pairs.map(found).collect()
}

fn in_folder(folder: &Path, plugin: PackagedPlugin, place: Place) -> Option<FoundPlugin> {
    let path = folder.join(plugin.file);
    path.is_file().then(|| FoundPlugin { platform: Some(plugin.platform.into()), path, place })
}

/// The folders of packages of a virtual environment: one for each version of Python.
fn environment_packages(environment: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    versions.map(|version| version.path().join("site-packages")).filter(|path| path.is_dir()).collect()
}

/// The folders of packages of the `python3` on the path, in its own words. It is asked once.
fn python_packages() -> &'static [PathBuf] {
    static PACKAGES: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PACKAGES.get_or_init(ask_python)
}

fn ask_python() -> Vec<PathBuf> {
    let ask = "import site, sysconfig
paths = {sysconfig.get_path(p): 0 for p in ('purelib', 'platlib')}
if site.ENABLE_USER_SITE: paths[site.getusersitepackages()] = 0
print('\\n'.join(paths))";
    let mut python = Command::new("python3");
    let told = python.args(["-c", ask]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let told = told.ok().filter(|told| told.status.success()).map(|told| told.stdout).unwrap_or_default();
    String::from_utf8_lossy(&told).lines().map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_platforms_and_files() {
        let found = pairs_of("cpu:/a/b.so, CUDA:/c.so,nonsense");
        let told: Vec<_> = found.iter().map(|f| (f.platform.as_deref().unwrap(), f.path.as_path())).collect();
        assert_eq!(told, [("cpu", Path::new("/a/b.so")), ("cuda", Path::new("/c.so"))]);
        assert!(pairs_of("").is_empty());
    }

    #[test]
    fn packages_of_a_virtual_environment_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let packages = dir.path().join("lib/python3.13/site-packages");
        let [cpu, cuda13, ..] = PACKAGED_PLUGINS;
        let file = packages.join(cpu.file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(environment_packages(dir.path()), std::slice::from_ref(&packages));
        let found = in_folder(&packages, cpu, Place::VirtualEnv).unwrap();
        assert_eq!((found.platform.as_deref(), found.path), (Some("cpu"), file));
        assert_eq!(in_folder(&packages, cuda13, Place::VirtualEnv), None);
        assert!(environment_packages(&dir.path().join("none")).is_empty());
    }

    #[test]
    fn what_is_missing_comes_with_the_command_that_gets_it() {
        let text = missing("cuda").to_string();
        assert!(text.starts_with("there is no XLA plugin for cuda on this machine\n"), "{text}");
        assert!(text.contains("tensorpack plugin install cuda13|cuda12\n"), "{text}");
        assert!(!missing("metal").to_string().contains("install"));
    }
}
