//! XLA's flags for collectives between processes.
//!
//! A collective that waits for a process that is gone ends only if NCCL runs it asynchronously, on
//! communicators that do not block: then it can be aborted. XLA reads both flags from the environment,
//! not from the options of a compilation, because communicators belong to the client.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::Path;

const VARIABLE: &str = "XLA_FLAGS";
/// The bytes of a plugin that are searched at a time.
const CHUNK: usize = 1 << 20;

/// The flags with the values that collectives need to be aborted.
const ABORTABLE: [(&str, &str); 2] =
    [("xla_gpu_nccl_async_execution", "true"), ("xla_gpu_nccl_blocking_communicators", "false")];

/// Makes the collectives of the plugin in this file abortable, unless the user set these flags. Call
/// it before the plugin is opened; XLA reads flags once.
pub(super) fn set_abortable(plugin: &Path) {
    let given = std::env::var_os(VARIABLE);
    // XLA ends the process if it does not know a flag, so a plugin gets those that its file names. A
    // file that cannot be read is the error of the one who opens it.
    let is_known = |name: &str| names(plugin, name.as_bytes()).unwrap_or(false);
    if let Some(flags) = with_defaults(given.as_deref(), &is_known) {
        // SAFETY: no other thread may read the environment by other means than `std::env`, which
        // locks it. The only one that could is a C library. This is called before the plugin is
        // opened, while no session uses the group: the communication thread is idle, so MPI runs
        // nothing, and all other threads of this library, those of the control plane, of the data and
        // of the thread teams, call no C code that reads the environment. A program that does so in
        // threads of its own sets the flags itself, and then nothing is written.
        unsafe { std::env::set_var(VARIABLE, flags) };
    }
}

/// Returns whether a file contains a name.
fn names(file: &Path, name: &[u8]) -> std::io::Result<bool> {
    let mut file = File::open(file)?;
    let mut bytes = vec![0; CHUNK];
    // The end of the previous chunk, in which the name may begin.
    let mut kept = 0;
    loop {
        let read = file.read(&mut bytes[kept..])?;
        let filled = &bytes[..kept + read];
        if filled.windows(name.len()).any(|window| window == name) {
            return Ok(true);
        }
        if read == 0 {
            return Ok(false);
        }
        let end = filled.len();
        kept = end.min(name.len() - 1);
        bytes.copy_within(end - kept..end, 0);
    }
}

/// Returns the flags of the user with those that are missing and known, or `None` if there are none. A
/// value that is not Unicode, or the name of a file with flags, stays as it is.
fn with_defaults(given: Option<&OsStr>, is_known: &dyn Fn(&str) -> bool) -> Option<OsString> {
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
        .filter(|(name, _)| !is_set(name) && is_known(name))
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
        with_defaults(given.map(OsStr::new), &|_| true).map(|flags| flags.into_string().unwrap())
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

    #[test]
    fn a_plugin_gets_only_flags_that_it_knows() {
        let only = |known: &'static str| with_defaults(None, &move |name| name == known);
        assert_eq!(only("xla_gpu_nccl_async_execution").unwrap(), "--xla_gpu_nccl_async_execution=true");
        assert_eq!(only("xla_gpu_other"), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = b"xla_gpu_nccl_async_execution";
        // At the end of a chunk, across two, and not at all.
        for at in [CHUNK - name.len(), CHUNK - 5, 2 * CHUNK - 40] {
            let mut bytes = vec![b'x'; 3 * CHUNK];
            bytes[at..at + name.len()].copy_from_slice(name);
            std::fs::write(file.path(), &bytes).unwrap();
            assert!(names(file.path(), name).unwrap(), "at {at}");
            bytes[at + 3] = b'-';
            std::fs::write(file.path(), &bytes).unwrap();
            assert!(!names(file.path(), name).unwrap(), "at {at}");
        }
        assert!(names(Path::new("/no/such/plugin"), name).is_err());
    }
}
