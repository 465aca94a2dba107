//! Searches for plugins: in environment variables, in the folder of `tensorpack plugin install`, in
//! Python's packages.

use crate::Plugin;
use std::env;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result, user_data_dir};

/// The environment variable with the file of a plugin for all platforms.
const PLUGIN_FILE: &str = "TENSORPACK_PJRT_PLUGIN";
/// The environment variable with files by platform, which JAX reads, too: `cpu:FILE,cuda:FILE`.
const PLUGIN_FILES: &str = "PJRT_NAMES_AND_LIBRARY_PATHS";
/// The environment variable with the folder that `tensorpack plugin install` installs into.
const CACHE: &str = "TENSORPACK_CACHE";

/// A plugin that is part of a Python package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackagedPlugin {
    /// The name for `tensorpack plugin install`.
    pub name: &'static str,
    /// The platform: `cpu`, `cuda`, `rocm`, `tpu`.
    pub platform: &'static str,
    /// The Python package that contains it.
    pub package: &'static str,
    /// The path of the plugin below `site-packages`.
    pub file: &'static str,
    /// Whether `tensorpack plugin install` installs it. Others are only opened, and untested.
    pub installable: bool,
}

/// The plugins that are searched for. Of two for one platform the newer comes first.
pub const PACKAGED_PLUGINS: [PackagedPlugin; 5] = [
    PackagedPlugin {
        name: "cpu",
        platform: "cpu",
        package: "xla-cpu-pjrt",
        file: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        installable: true,
    },
    PackagedPlugin {
        name: "cuda13",
        platform: "cuda",
        package: "jax-cuda13-pjrt",
        file: "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
        installable: true,
    },
    PackagedPlugin {
        name: "cuda12",
        platform: "cuda",
        package: "jax-cuda12-pjrt",
        file: "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
        installable: true,
    },
    PackagedPlugin {
        name: "rocm7",
        platform: "rocm",
        package: "jax-rocm7-pjrt",
        file: "jax_plugins/xla_rocm7/xla_rocm_plugin.so",
        installable: false,
    },
    PackagedPlugin {
        name: "tpu",
        platform: "tpu",
        package: "libtpu",
        file: "libtpu/libtpu.so",
        installable: false,
    },
];

impl PackagedPlugin {
    /// Returns how to get a plugin that `tensorpack plugin install` does not install.
    pub fn pip_hint(&self) -> String {
        let PackagedPlugin { platform, package, .. } = self;
        format!("the plugin for {platform} is part of a Python package: pip install {package} (untested)")
    }
}

/// A plugin that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPlugin {
    /// The platform: `cpu`, `cuda`. `None` for a plugin that is used for all platforms.
    pub platform: Option<String>,
    /// The plugin's file.
    pub path: PathBuf,
    /// Where it was found.
    #[doc(alias = "place")]
    pub source: PluginSource,
}

/// Where a plugin was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "Place")]
#[non_exhaustive]
pub enum PluginSource {
    /// In an environment variable.
    Variable(&'static str),
    /// In the folder of `tensorpack plugin install`.
    Installed,
    /// In the active virtual environment.
    VirtualEnv,
    /// In the packages of the `python3` on the path.
    Python,
}

impl fmt::Display for PluginSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PluginSource::Variable(name) => write!(f, "named by {name}"),
            PluginSource::Installed => f.write_str("installed by tensorpack"),
            PluginSource::VirtualEnv => f.write_str("in the virtual environment"),
            PluginSource::Python => f.write_str("in Python's packages"),
        }
    }
}

/// The folder of `tensorpack plugin install`, with a folder for each plugin: `plugins` in
/// `$TENSORPACK_CACHE`, which defaults to `tensorpack` in the platform's folder for user data.
pub fn plugin_folder() -> Result<PathBuf> {
    Ok(user_data_dir(CACHE)?.join("plugins"))
}

/// Finds all plugins that are named by variables, installed by tensorpack or part of the active
/// virtual environment. Of those for one platform, the first is used.
///
/// This only looks at files. The packages of the `python3` on the path are not part of the result,
/// because Python must be run to find them; [`find_plugin`] does so if there is no other plugin.
pub fn find_plugins() -> Vec<FoundPlugin> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let mut found = Vec::new();
    if let Some(path) = variable(PLUGIN_FILE) {
        found.push(FoundPlugin {
            platform: None,
            path: path.into(),
            source: PluginSource::Variable(PLUGIN_FILE),
        });
    }
    if let Some(pairs) = variable(PLUGIN_FILES) {
        found.extend(parse_pairs(&pairs.to_string_lossy()));
    }
    if let Ok(folder) = plugin_folder() {
        let installed =
            |plugin: PackagedPlugin| in_folder(&folder.join(plugin.name), plugin, PluginSource::Installed);
        found.extend(PACKAGED_PLUGINS.into_iter().filter_map(installed));
    }
    let environment = variable("VIRTUAL_ENV").map(|folder| environment_packages(Path::new(&folder)));
    found.extend(in_folders(&environment.unwrap_or_default(), PluginSource::VirtualEnv));
    found
}

/// Finds the file of the plugin for a platform, such as `cpu` or `cuda`. If there is none
/// elsewhere, runs `python3`, once, to search its packages.
pub fn find_plugin(platform: &str) -> Result<PathBuf> {
    let serves = |plugin: &FoundPlugin| plugin.platform.as_deref().is_none_or(|name| name == platform);
    let in_python = || in_folders(python_packages(), PluginSource::Python).find(serves);
    match find_plugins().into_iter().find(serves).or_else(in_python) {
        Some(plugin) if plugin.path.is_file() => Ok(plugin.path),
        Some(FoundPlugin { path, source, .. }) => {
            let why = format!("the plugin {} ({source}) does not exist", path.display());
            Err(Error::new(ErrorKind::Io, why))
        }
        None => Err(missing(platform)),
    }
}

fn missing(platform: &str) -> Error {
    let why = format!("there is no XLA plugin for {platform} on this machine");
    let mut error = Error::new(ErrorKind::Unsupported, why);
    let packaged = PACKAGED_PLUGINS.iter().filter(|p| p.platform == platform);
    let (installable, others): (Vec<&PackagedPlugin>, Vec<&PackagedPlugin>) =
        packaged.partition(|p| p.installable);
    if !installable.is_empty() {
        let names: Vec<_> = installable.iter().map(|p| p.name).collect();
        let command = format!("tensorpack plugin install {}", names.join("|"));
        error = error.note(format!("install one with: {command}"));
        error = error.note("(in tensorpack's repository: cargo run --bin tensorpack -- plugin install ..)");
    }
    for plugin in others {
        error = error.note(plugin.pip_hint());
    }
    error.note(format!("or set the environment variable {PLUGIN_FILE} to the file of a plugin"))
}

impl Plugin {
    /// Finds and loads the plugin for a platform, such as `cpu` or `cuda`.
    pub fn find(platform: &str) -> Result<Arc<Plugin>> {
        Plugin::open(&find_plugin(platform)?)
    }
}

/// Parses a list of `platform:file`.
fn parse_pairs(text: &str) -> Vec<FoundPlugin> {
    let pairs = text.split(',').filter_map(|pair| pair.trim().split_once(':'));
    let found = |(platform, path): (&str, &str)| FoundPlugin {
        platform: Some(platform.to_lowercase()),
        path: path.into(),
        source: PluginSource::Variable(PLUGIN_FILES),
    };
    pairs.map(found).collect()
}

/// The plugins in folders of Python packages.
fn in_folders(folders: &[PathBuf], source: PluginSource) -> impl Iterator<Item = FoundPlugin> {
    let every = folders.iter().flat_map(|folder| PACKAGED_PLUGINS.map(|plugin| (folder, plugin)));
    every.filter_map(move |(folder, plugin)| in_folder(folder, plugin, source))
}

fn in_folder(folder: &Path, plugin: PackagedPlugin, source: PluginSource) -> Option<FoundPlugin> {
    let path = folder.join(plugin.file);
    path.is_file().then(|| FoundPlugin { platform: Some(plugin.platform.into()), path, source })
}

/// The folders of packages in a virtual environment: one for each version of Python.
fn environment_packages(environment: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    versions.map(|version| version.path().join("site-packages")).filter(|path| path.is_dir()).collect()
}

/// The folders of packages of the `python3` on the path, which is run once.
fn python_packages() -> &'static [PathBuf] {
    static PACKAGES: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PACKAGES.get_or_init(|| run_python("python3".as_ref(), None))
}

/// Runs Python and returns its folders of packages, or none if it fails or hangs. `folder` is the
/// folder to run it in, if not the current one.
fn run_python(program: &Path, folder: Option<&Path>) -> Vec<PathBuf> {
    const SCRIPT: &str = "import site, sysconfig
paths = {sysconfig.get_path(p): 0 for p in ('purelib', 'platlib')}
paths[site.getusersitepackages()] = 0
print('\\n'.join(paths))";
    let mut python = Command::new(program);
    // Isolated (-I): otherwise a `sysconfig.py` in the current folder would be run.
    python.args(["-I", "-c", SCRIPT]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(folder) = folder {
        python.current_dir(folder);
    }
    output_within(python, Duration::from_secs(20)).unwrap_or_default().lines().map(PathBuf::from).collect()
}

/// Runs a command and returns its output. Returns an error if it fails, does not end in time, or
/// writes more than 64 KiB.
fn output_within(mut command: Command, limit: Duration) -> io::Result<String> {
    let mut child = command.spawn()?;
    let started = Instant::now();
    // What fits into the pipe is read after the end. A child that writes more runs into the limit.
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if started.elapsed() > limit => {
                child.kill()?;
                child.wait()?;
                return Err(io::ErrorKind::TimedOut.into());
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut text = String::new();
    let stdout = child.stdout.take().filter(|_| status.success()).ok_or(io::ErrorKind::Other)?;
    stdout.take(1 << 16).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_platforms_and_files() {
        let found = parse_pairs("cpu:/a/b.so, CUDA:/c.so,nonsense");
        let told: Vec<_> = found.iter().map(|f| (f.platform.as_deref().unwrap(), f.path.as_path())).collect();
        assert_eq!(told, [("cpu", Path::new("/a/b.so")), ("cuda", Path::new("/c.so"))]);
        assert!(parse_pairs("").is_empty());
    }

    #[test]
    fn packages_of_a_virtual_environment_are_searched() {
        let dir = tempfile::tempdir().unwrap();
        let packages = dir.path().join("lib/python3.13/site-packages");
        let [cpu, cuda13, ..] = PACKAGED_PLUGINS;
        let file = packages.join(cpu.file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(environment_packages(dir.path()), std::slice::from_ref(&packages));
        let found = in_folder(&packages, cpu, PluginSource::VirtualEnv).unwrap();
        assert_eq!((found.platform.as_deref(), found.path), (Some("cpu"), file));
        assert_eq!(in_folder(&packages, cuda13, PluginSource::VirtualEnv), None);
        assert!(environment_packages(&dir.path().join("none")).is_empty());
    }

    #[test]
    fn a_missing_plugin_is_an_error_with_the_command_that_installs_it() {
        let text = missing("cuda").to_string();
        assert!(missing("cuda").message().contains("XLA plugin for cuda"), "{text}");
        assert!(text.contains("tensorpack plugin install cuda13|cuda12\n"), "{text}");
        for (platform, package) in [("tpu", "libtpu"), ("rocm", "jax-rocm7-pjrt")] {
            let text = missing(platform).to_string();
            assert!(text.contains(&format!("pip install {package}")) && text.contains("untested"), "{text}");
            assert!(!text.contains("plugin install"), "{text}");
        }
        assert!(!missing("metal").to_string().contains("install"));
    }

    #[test]
    fn modules_in_the_current_folder_are_not_run() {
        let dir = tempfile::tempdir().unwrap();
        for module in ["site.py", "sysconfig.py", "usercustomize.py"] {
            fs::write(dir.path().join(module), "open('ran', 'w')\nraise SystemExit").unwrap();
        }
        let found = run_python("python3".as_ref(), Some(dir.path()));
        assert!(!dir.path().join("ran").exists());
        let installed = Command::new("python3").arg("--version").stdout(Stdio::null()).status();
        assert_eq!(installed.is_ok_and(|status| status.success()), !found.is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn a_program_that_hangs_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("60").stdout(Stdio::piped());
        let e = output_within(command, Duration::from_millis(50)).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::TimedOut);
    }
}
