//! A small file system, for tests that fill it up.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A file system in memory (tmpfs), unmounted on drop.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a file system of so many megabytes on `dir`, which is created. Only root can.
    pub fn mount(dir: impl Into<PathBuf>, megabytes: u64) -> io::Result<SmallDisk> {
        let dir = dir.into();
        std::fs::create_dir_all(&dir)?;
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let options = CString::new(format!("size={megabytes}m"))?;
        // SAFETY: all pointers are strings that end with a zero byte and outlive the call.
        let done = unsafe {
            libc::mount(c"tmpfs".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast())
        };
        if done == 0 { Ok(SmallDisk(dir)) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // It was mounted there, so the path has no zero byte.
        let Ok(path) = CString::new(self.0.as_os_str().as_bytes()) else { return };
        // SAFETY: the path is a string that ends with a zero byte and outlives the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}
