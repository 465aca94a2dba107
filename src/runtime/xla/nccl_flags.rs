//! XLA's flags for collectives between processes.
//!
//! A collective that waits for a process that is gone ends only if NCCL runs it asynchronously, on
//! communicators that do not block: then it can be aborted. XLA reads both flags from the environment,
//! not from the options of a compilation, because communicators belong to the client.

use std::ffi::{OsStr, OsString};

const VARIABLE: &str = "XLA_FLAGS";

/// The flags with the values that collectives need to be aborted.
const ABORTABLE: [(&str, &str); 2] =
    [("xla_gpu_nccl_async_execution", "true"), ("xla_gpu_nccl_blocking_communicators", "false")];

/// Makes the collectives of the plugin that is opened next abortable, unless the user set these
/// flags. Has no effect on a plugin that is open.
pub(super) fn set_abortable() {
    if let Some(flags) = with_defaults(std::env::var_os(VARIABLE).as_deref()) {
        // SAFETY: no other thread may read the environment by other means than `std::env`, which
        // locks it. The only one that could is a C library. This is called before the plugin is
        // opened, while no session uses the group: the communication thread is idle, so MPI runs
        // nothing, and all other threads of this library, those of the control plane, of the data and
        // of the thread teams, call no C code that reads the environment. A program that does so in
        // threads of its own sets XLA_FLAGS itself, and then nothing is written.
        unsafe { std::env::set_var(VARIABLE, flags) };
    }
}

/// Returns the flags of the user with those that are missing, or `None` if there are none missing. A
/// value that is not Unicode, or the name of a file with flags, stays as it is.
fn with_defaults(given: Option<&OsStr>) -> Option<OsString> {
    let given = given.unwrap_or_default().to_str()?.trim();
    // XLA takes a value that begins with another character for the name of a file.
    if !given.is_empty() && !given.starts_with('-') {
        return None;
    }
    let is_set = |name: &str| {
        given.split_whitespace().any(|flag| flag.trim_start_matches('-').split('=').next() == Some(name))
    };
    let missing: Vec<String> = ABORTABLE
        .iter()
        .filter(|(name, _)| !is_set(name))
        .map(|(name, value)| format!("--{name}={value}"))
        .collect();
    let all =
        std::iter::once(given).filter(|given| !given.is_empty()).chain(missing.iter().map(String::as_str));
    (!missing.is_empty()).then(|| all.collect::<Vec<_>>().join(" ").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "--xla_gpu_nccl_async_execution=true --xla_gpu_nccl_blocking_communicators=false";

    fn flags(given: Option<&str>) -> Option<String> {
        with_defaults(given.map(OsStr::new)).map(|flags| flags.into_string().unwrap())
    }

    #[test]
    fn flags_that_are_missing_are_appended() {
        assert_eq!(flags(None).as_deref(), Some(BOTH));
        assert_eq!(flags(Some("  ")).as_deref(), Some(BOTH));
        let given = "--xla_dump_to=/tmp/x --xla_gpu_nccl_async_execution_not=1";
        assert_eq!(flags(Some(given)), Some(format!("{given} {BOTH}")));
    }

    #[test]
    fn flags_of_the_user_are_kept() {
        let given = "--xla_gpu_nccl_blocking_communicators=true";
        assert_eq!(flags(Some(given)), Some(format!("{given} --xla_gpu_nccl_async_execution=true")));
        // Without a value, and with one dash.
        assert_eq!(
            flags(Some("-xla_gpu_nccl_async_execution --xla_gpu_nccl_blocking_communicators=1")),
            None
        );
        assert_eq!(flags(Some(BOTH)), None);
        assert_eq!(flags(Some("/etc/xla_flags")), None);
    }
}
