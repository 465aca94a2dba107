//! How much memory there is to have: asked before allocating, so that a model that does not fit is an error at once
//! and not a killed process later.

use std::fs;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Bytes this process may still allocate: the smaller of what the machine has free and what its cgroup allows.
/// `None` where neither can be known.
pub fn available_memory() -> Option<usize> {
    [machine_available(), cgroup_available()].into_iter().flatten().min()
}

fn machine_available() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

fn cgroup_available() -> Option<usize> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    // Version 2 first, then version 1; "max" and the like are no numbers, and no limit.
    let (limit, used) =
        number("/sys/fs/cgroup/memory.max").zip(number("/sys/fs/cgroup/memory.current")).or_else(|| {
            number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
                .zip(number("/sys/fs/cgroup/memory/memory.usage_in_bytes"))
        })?;
    Some(limit.saturating_sub(used))
}

/// That `bytes` for `what` can be had within `limit` (or what the machine allows).
pub(super) fn check(bytes: usize, what: &str, limit: Option<usize>) -> Result<()> {
    match limit.or_else(available_memory) {
        Some(available) if bytes > available => Err(Error::new(
            ErrorKind::Memory,
            format!("{what} would take {}, but {} are available", human(bytes), human(available)),
        )
        .note("use a smaller batch or model, or a machine with more memory")),
        _ => Ok(()),
    }
}

fn human(bytes: usize) -> String {
    match bytes as f64 {
        b if b >= 1e9 => format!("{:.1} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b => format!("{b} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_an_error_that_says_how_much() {
        assert!(check(100, "the arena", Some(100)).is_ok());
        let e = check(3_000_000_000, "the arena", Some(2_500_000)).unwrap_err();
        assert_eq!(e.message(), "the arena would take 3.0 GB, but 2.5 MB are available");
        assert_eq!(e.kind(), ErrorKind::Memory);
    }
}
