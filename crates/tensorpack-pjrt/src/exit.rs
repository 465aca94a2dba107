//! How a process ends whose devices do not answer.

/// From here on the process ends without the clean-up of its libraries: XLA's would take away what its threads, which
/// cannot be stopped, are still using. The exit status stays what it is.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn end_without_cleanup() {
    use std::ffi::{c_int, c_void};
    use std::sync::Once;

    unsafe extern "C" {
        fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }

    extern "C" fn end(status: c_int, _: *mut c_void) {
        // SAFETY: may be called at any time; what Rust prints is not kept back, so nothing is lost.
        unsafe { _exit(status) }
    }

    static ONCE: Once = Once::new();
    // What was registered last is called first: before the libraries' own.
    // SAFETY: `end` lives as long as the process, and ignores its argument.
    ONCE.call_once(|| unsafe {
        on_exit(end, std::ptr::null_mut());
    });
}

/// There is no such way on this platform.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn end_without_cleanup() {}
