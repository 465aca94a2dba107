//! Plugins: shared libraries that export PJRT's C API.

use crate::c_api::{PJRT_API_MAJOR, PJRT_Api};
use crate::c_struct::{CStruct, Function};
use crate::deadline::{DEFAULT_DEADLINE, call_within};
use crate::{elf, error};
use libloading::Library;
use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The environment variable that sets how much XLA logs to stderr.
const LOG_LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";
/// The oldest minor version whose table begins with the same functions in the same order.
const OLDEST_MINOR: i32 = 57;

/// A loaded plugin. It stays loaded until the process ends: plugins start threads and cannot be
/// unloaded.
pub struct Plugin {
    path: PathBuf,
    api: PJRT_Api,
}

/// Calls a function of a plugin's table with these fields of its arguments, and returns the
/// arguments with what the function wrote to them: `call!(plugin, PJRT_Buffer_IsDeleted { buffer:
/// raw })?.is_deleted`.
///
/// # Safety
/// As for [`Plugin::call`].
macro_rules! call {
    ($plugin:expr, $function:ident { $($field:ident $(: $value:expr)?),* $(,)? }) => {{
        let plugin: &$crate::Plugin = &$plugin;
        plugin.call(stringify!($function), plugin.api().$function, |_args| {
            $(_args.$field = call!(@value $field $($value)?);)*
        })
    }};
    (@value $field:ident) => { $field };
    (@value $field:ident $value:expr) => { $value };
}
pub(crate) use call;

// SAFETY: the C API allows calls of its functions from any thread, and nothing changes the table.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads the plugin from a file, or returns the one that was loaded from it before.
    ///
    /// XLA logs to stderr. Unless `TF_CPP_MIN_LOG_LEVEL` is set, the first call silences it: errors
    /// are returned.
    ///
    /// A plugin that is not loaded within 300 s is an error; see [`Plugin::open_within`].
    pub fn open(path: &Path) -> Result<Arc<Plugin>> {
        Plugin::open_within(path, DEFAULT_DEADLINE, &|| Ok(()))
    }

    /// Like [`Plugin::open`], with a deadline. After 5 s of waiting, a warning is logged. After the
    /// deadline the wait is an error. `check` is called every 20 ms, and an error that it returns
    /// ends the wait. Later calls return the same error: the thread that loads the plugin cannot be
    /// stopped.
    pub fn open_within(
        path: &Path,
        deadline: Duration,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Arc<Plugin>> {
        // Plugins whose loading was abandoned are errors, all others that cannot be loaded are
        // tried again.
        static OPEN: Mutex<BTreeMap<PathBuf, Result<Arc<Plugin>>>> = Mutex::new(BTreeMap::new());
        let file = path.canonicalize().map_err(|e| Error::from(e).within(path.display()))?;
        if !file.is_file() {
            // The loader would wait for a writer of a pipe.
            return Err(Error::new(ErrorKind::Io, format!("{} is not a regular file", path.display()))
                .note("name the file of a PJRT plugin"));
        }
        // Held while loading, so that a plugin is initialized once. A poisoned lock is fine: the
        // map is always whole.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = open.get(&file) {
            return plugin.clone();
        }
        let what = format!("the plugin {} to load", path.display());
        let to_load = file.clone();
        let plugin = call_within(&what, deadline, check, move || Plugin::load(&to_load).map(Arc::new));
        let abandoned = |e: &Error| matches!(e.kind(), ErrorKind::Deadline | ErrorKind::Interrupted);
        if plugin.as_ref().err().is_none_or(abandoned) {
            open.insert(file, plugin.clone());
        }
        plugin
    }

    fn load(path: &Path) -> Result<Plugin> {
        type GetApi = unsafe extern "C" fn() -> *const PJRT_Api;
        if env::var_os(LOG_LEVEL).is_none() {
            // SAFETY: Rust's own accesses to the environment are synchronized with this one. Only
            // foreign code that reads it at this very moment could be disturbed; the plugin, which
            // reads it, is not loaded yet.
            unsafe { env::set_var(LOG_LEVEL, "3") };
        }
        let not_loaded = |why: &dyn fmt::Display| {
            Error::new(ErrorKind::Io, format!("{} cannot be loaded as a plugin: {why}", path.display()))
        };
        elf::check_complete(path).map_err(|e| not_loaded(&e).note("install or copy the plugin again"))?;
        // SAFETY: loading runs the library's initializers; the caller who names a file as a plugin
        // trusts its code.
        let library = unsafe { Library::new(path) }.map_err(|e| not_loaded(&e))?;
        // SAFETY: a library that exports this name is a PJRT plugin, whose function has this type.
        let table = unsafe { library.get::<GetApi>(b"GetPjrtApi\0").map(|get| get()) };
        let table = table.map_err(|_| {
            let why = "is a library, but not a PJRT plugin: it does not export GetPjrtApi";
            Error::argument(format!("{} {why}", path.display()))
        })?;
        // SAFETY: what the function returns lives as long as the library, which is never unloaded.
        let api = unsafe { read_table(table) }.map_err(|e| e.within(path.display()))?;
        std::mem::forget(library);
        let plugin = Plugin { path: path.to_path_buf(), api };
        // SAFETY: takes no arguments, and is called once, before all others.
        unsafe { call!(plugin, PJRT_Plugin_Initialize {}) }
            .map_err(|e| e.within(format!("{} cannot be initialized", path.display())))?;
        Ok(plugin)
    }

    /// A plugin with these functions, which need not be those of the file.
    #[cfg(test)]
    pub(crate) fn from_table(path: &str, api: PJRT_Api) -> Plugin {
        Plugin { path: path.into(), api }
    }

    /// The plugin's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The plugin's name: that of its file, without the extension.
    pub fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The major and minor version of the C API that the plugin was built with.
    pub fn api_version(&self) -> (i32, i32) {
        let version = &self.api.pjrt_api_version;
        (version.major_version, version.minor_version)
    }

    pub(crate) fn api(&self) -> &PJRT_Api {
        &self.api
    }

    /// Calls a function of the table with the arguments that `fill` completes, and returns them
    /// with what the function wrote to them; see [`call!`].
    ///
    /// # Safety
    /// `fill` must set what the function requires: objects of this plugin that are alive, and
    /// pointers that are valid for as long as the function uses them.
    pub(crate) unsafe fn call<A: CStruct>(
        &self,
        name: &str,
        function: Function<A>,
        fill: impl FnOnce(&mut A),
    ) -> Result<A> {
        let Some(function) = function else {
            let (major, minor) = self.api_version();
            let why = format!("the plugin {} (API {major}.{minor}) does not support {name}", self.name());
            return Err(Error::new(ErrorKind::Unsupported, why));
        };
        let mut args = A::new();
        fill(&mut args);
        // SAFETY: `CStruct::new` set the size; the rest is the caller's promise.
        let failed = unsafe { function(&mut args) };
        // SAFETY: the call returned null or an error that is the caller's to destroy.
        match unsafe { error::take(&self.api, failed) } {
            None => Ok(args),
            Some(error) => Err(error),
        }
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.api_version();
        write!(f, "{} (API {major}.{minor}, {})", self.name(), self.path.display())
    }
}

/// Copies a plugin's table. Functions beyond the end of an older plugin's table are `None`.
///
/// # Safety
/// `table` must be null or point to a table of the size in its first field, which includes the
/// version.
unsafe fn read_table(table: *const PJRT_Api) -> Result<PJRT_Api> {
    if table.is_null() {
        return Err(Error::new(ErrorKind::Unsupported, "the plugin exports no table of functions"));
    }
    // SAFETY: not null; size and version are at the beginning of every table. No reference to the
    // whole is made, since the table may be shorter than ours.
    let (size, version) = unsafe { ((*table).struct_size, (*table).pjrt_api_version) };
    check_version(version.major_version, version.minor_version)?;
    let mut api = PJRT_Api::new();
    let size = size.min(size_of::<PJRT_Api>());
    // SAFETY: both have that many bytes; zero, which missing functions stay, is `None`.
    unsafe { std::ptr::copy_nonoverlapping(table.cast::<u8>(), (&raw mut api).cast::<u8>(), size) };
    Ok(api)
}

fn check_version(major: i32, minor: i32) -> Result<()> {
    if major == PJRT_API_MAJOR && minor >= OLDEST_MINOR {
        return Ok(());
    }
    let age = if (major, minor) < (PJRT_API_MAJOR, OLDEST_MINOR) { "too old" } else { "too new" };
    let why = format!("the plugin is {age}: it was built with version {major}.{minor} of the PJRT API");
    let what = format!(
        "use a plugin of version {PJRT_API_MAJOR}.{OLDEST_MINOR} or later with the same major version"
    );
    Err(Error::new(ErrorKind::Unsupported, why).note(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_versions() {
        check_version(0, 57).unwrap();
        check_version(0, 81).unwrap();
        check_version(0, 115).unwrap();
        let old = check_version(0, 56).unwrap_err();
        assert_eq!(old.kind(), ErrorKind::Unsupported);
        assert!(old.message().contains("too old") && old.message().contains("0.56"), "{old}");
        assert!(check_version(1, 0).unwrap_err().message().contains("too new"));
    }

    #[test]
    fn functions_missing_from_an_older_table_are_none() {
        unsafe extern "C" fn any() {}
        // A table that ends after three functions, as an older plugin's might; what follows in
        // memory is not its own.
        let word = size_of::<usize>();
        let mut memory = vec![any as *const () as usize; size_of::<PJRT_Api>() / word];
        let start = std::mem::offset_of!(PJRT_Api, PJRT_Error_Destroy) / word;
        memory[..start].fill(0);
        memory[0] = (start + 3) * word;
        // SAFETY: size and version are there, and the memory is as large as it says.
        let read = |memory: &mut Vec<usize>| unsafe { read_table(memory.as_mut_ptr().cast()) };
        assert!(read(&mut memory).err().unwrap().message().contains("too old"));
        // SAFETY: in bounds, and aligned as a word is.
        unsafe { (*memory.as_mut_ptr().cast::<PJRT_Api>()).pjrt_api_version.minor_version = OLDEST_MINOR };
        let api = read(&mut memory).unwrap();
        assert!(api.PJRT_Error_GetCode.is_some() && api.PJRT_Plugin_Initialize.is_none());
        assert!(api.PJRT_Executable_GetCompiledMemoryStats.is_none());
        let plugin = Plugin { path: "/there/old.so".into(), api };
        // SAFETY: takes no arguments; not called at all.
        let e = unsafe { call!(plugin, PJRT_Plugin_Initialize {}) }.err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(
            e.message().contains("old (API 0.57)") && e.message().contains("PJRT_Plugin_Initialize"),
            "{e}"
        );
    }
}
