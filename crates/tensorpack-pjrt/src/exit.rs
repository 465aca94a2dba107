//! The end of a process whose devices stopped responding.

/// Makes the process exit without running the exit handlers of its libraries: XLA's would free what
/// its threads, which cannot be stopped, are still using. The exit status stays the same.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn skip_exit_handlers() {
    use std::ffi::{c_int, c_void};
    use std::sync::Once;

    unsafe extern "C" {
        fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }

    extern "C" fn end(status: c_int, _: *mut c_void) {
        // SAFETY: may be called at any time; Rust's stdout was flushed before, so nothing is lost.
        unsafe { _exit(status) }
    }

    static ONCE: Once = Once::new();
    // Handlers run in reverse order of registration: this one before those of the libraries.
    // SAFETY: `end` lives as long as the process and ignores its argument.
    ONCE.call_once(|| unsafe {
        on_exit(end, std::ptr::null_mut());
    });
}

/// Does nothing: this platform has no `on_exit`.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn skip_exit_handlers() {}
