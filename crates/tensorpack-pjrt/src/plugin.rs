//! Plugins: shared libraries that offer the C API.

use crate::c_api::{self, Args, Function, Head, Of, Plain, Table, zero};
use crate::status;
use libloading::Library;
use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The variable that says how much XLA logs to stderr.
const LOG_LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";

/// An opened plugin. It stays open to the end of the process: plugins start threads and cannot be closed.
pub struct Plugin {
    path: PathBuf,
    table: Table,
}

// SAFETY: the table holds functions that the C API says may be called from any thread, and nothing changes it.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Opens the plugin in a file, or gives back the one that was opened before.
    ///
    /// XLA writes its log to stderr. Unless the environment says otherwise (`TF_CPP_MIN_LOG_LEVEL`), the first call
    /// silences it: what matters comes back as `Err`.
    pub fn open(path: &Path) -> Result<Arc<Plugin>> {
        static OPEN: Mutex<BTreeMap<PathBuf, Arc<Plugin>>> = Mutex::new(BTreeMap::new());
        let file = path.canonicalize().map_err(|e| Error::from(e).within(path.display()))?;
        // Held throughout, so that a plugin is set up once. Nothing is half-done where a thread ended holding it.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = open.get(&file) {
            return Ok(plugin.clone());
        }
        let plugin = Arc::new(Plugin::load(&file)?);
        open.insert(file, plugin.clone());
        Ok(plugin)
    }

    fn load(path: &Path) -> Result<Plugin> {
        type GetApi = unsafe extern "C" fn() -> *const Head;
        if env::var_os(LOG_LEVEL).is_none() {
            // SAFETY: Rust's own reading of the environment waits for this. Only foreign code that reads it at this very
            // moment could be disturbed; the plugin, which reads it, is not loaded yet.
            unsafe { env::set_var(LOG_LEVEL, "3") };
        }
        // SAFETY: loading runs the library's initialisers; whoever names a file as plugin trusts it as their own code.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|e| {
            Error::new(ErrorKind::Io, format!("{} cannot be opened as a plugin: {e}", path.display()))
        })?;
        // SAFETY: a library that exports this name says that it is a PJRT plugin, whose function has this type.
        let head = unsafe { library.get::<GetApi>(b"GetPjrtApi\0").map(|get| get()) };
        let head = head.map_err(|_| {
            let why = "is a library, but no PJRT plugin: it has no function GetPjrtApi";
            Error::argument(format!("{} {why}", path.display()))
        })?;
        // SAFETY: what the function returns lives as long as the library, which is never closed.
        let table = unsafe { read_table(head) }.map_err(|e| e.within(path.display()))?;
        std::mem::forget(library);
        let plugin = Plugin { path: path.to_path_buf(), table };
        // SAFETY: takes no arguments, and is called once, before all others.
        unsafe { plugin.call("plugin_initialize", table.plugin_initialize, ()) }
            .map_err(|e| e.within(format!("{} cannot be set up", path.display())))?;
        Ok(plugin)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The plugin's name: that of its file.
    pub fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The version of the C API that the plugin was built with: major and minor.
    pub fn api_version(&self) -> (i32, i32) {
        (self.table.head.major, self.table.head.minor)
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Calls a function of the table. Returns its arguments, with what it wrote to them.
    ///
    /// # Safety
    /// `rest` must be what the function takes: objects of this plugin that still live, and pointers that are valid for as
    /// long as the function uses them.
    pub(crate) unsafe fn call<T: Plain>(&self, name: &str, function: Function<T>, rest: T) -> Result<T> {
        let Some(function) = function else {
            let (major, minor) = self.api_version();
            let why = format!("the plugin {} (API {major}.{minor}) does not offer {name}", self.name());
            return Err(Error::new(ErrorKind::Unsupported, why));
        };
        let mut args = Args::new(rest);
        // SAFETY: the arguments begin with their size; the rest is the caller's promise.
        let failed = unsafe { function(&mut args) };
        // SAFETY: what the call returned is null or an error that is ours.
        match unsafe { status::take(&self.table, failed) } {
            None => Ok(args.rest),
            Some(error) => Err(error),
        }
    }

    /// Calls a function that asks `object` for one thing.
    ///
    /// # Safety
    /// The object must be this plugin's, and live.
    pub(crate) unsafe fn ask<X: Copy, V: Plain>(
        &self,
        name: &str,
        function: Function<Of<X, V>>,
        object: *mut X,
    ) -> Result<V> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.call(name, function, Of { object, value: zero() }) }?.value)
    }

    /// Frees `object`. There is nobody to tell if that fails.
    ///
    /// # Safety
    /// The object must be this plugin's, and nobody may use it afterwards.
    pub(crate) unsafe fn destroy<X: Copy>(&self, function: Function<Of<X>>, object: *mut X) {
        // SAFETY: the caller's promise.
        let _ = unsafe { self.call("destroy", function, Of { object, value: () }) };
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.api_version();
        write!(f, "{} (API {major}.{minor}, {})", self.name(), self.path.display())
    }
}

/// Copies as much of a plugin's table as it has; functions that it does not have are none.
///
/// # Safety
/// `head` must be null or begin a table of the size that it says.
unsafe fn read_table(head: *const Head) -> Result<Table> {
    if head.is_null() {
        return Err(Error::new(ErrorKind::Unsupported, "the plugin hands out no functions"));
    }
    // SAFETY: not null, and every table begins with a head.
    let Head { struct_size, major, minor, .. } = unsafe { *head };
    check_version(major, minor)?;
    let mut table: Table = zero();
    let size = struct_size.min(size_of::<Table>());
    // SAFETY: both have that many bytes; a table is plain data, of which missing functions stay zero, that is, none.
    unsafe { std::ptr::copy_nonoverlapping(head.cast::<u8>(), (&raw mut table).cast::<u8>(), size) };
    Ok(table)
}

fn check_version(major: i32, minor: i32) -> Result<()> {
    let oldest = c_api::OLDEST_MINOR;
    if major == c_api::MAJOR && minor >= oldest {
        return Ok(());
    }
    let age = if (major, minor) < (c_api::MAJOR, oldest) { "too old" } else { "too new" };
    let why = format!("the plugin is {age}: it has version {major}.{minor} of the PJRT API");
    let what =
        format!("versions {}.{oldest} and later of major version {} will do", c_api::MAJOR, c_api::MAJOR);
    Err(Error::new(ErrorKind::Unsupported, why).note(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_will_do() {
        check_version(0, 57).unwrap();
        check_version(0, 81).unwrap();
        check_version(0, 115).unwrap();
        let old = check_version(0, 56).unwrap_err();
        assert_eq!(old.kind(), ErrorKind::Unsupported);
        assert!(
            old.to_string().starts_with("the plugin is too old: it has version 0.56 of the PJRT API\n"),
            "{old}"
        );
        assert!(check_version(1, 0).unwrap_err().message().starts_with("the plugin is too new"));
    }

    #[test]
    fn what_an_old_table_lacks_is_none() {
        unsafe extern "C" fn any() {}
        // A table that ends after three functions, as an old plugin's might; what follows is not its own.
        let words = size_of::<Table>() / size_of::<usize>();
        let mut memory = vec![any as *const () as usize; words];
        let head_words = size_of::<Head>() / size_of::<usize>();
        memory[..head_words].fill(0);
        memory[0] = (head_words + 3) * size_of::<usize>();
        // SAFETY: it begins with a head, and has the size that it says.
        let at = |memory: &mut Vec<usize>| unsafe { read_table(memory.as_mut_ptr().cast()) };
        assert!(at(&mut memory).err().unwrap().message().contains("too old"));
        // SAFETY: in bounds, and aligned as a word is.
        unsafe { (*memory.as_mut_ptr().cast::<Head>()).minor = 57 };
        let table = at(&mut memory).unwrap();
        assert!(table.error_code.is_some() && table.plugin_initialize.is_none());
        assert!(table.executable_memory_stats.is_none());
        let plugin = Plugin { path: "/there/old.so".into(), table };
        // SAFETY: takes no arguments; not called at all.
        let e = unsafe { plugin.call("plugin_initialize", table.plugin_initialize, ()) }.unwrap_err();
        assert_eq!(e.message(), "the plugin old (API 0.57) does not offer plugin_initialize");
    }
}
