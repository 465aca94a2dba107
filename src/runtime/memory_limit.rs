//! The available memory. Checking it before allocations turns a model that does not fit into an
//! error instead of a killed process.

use std::fs;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Returns the bytes that this process may still allocate: the minimum of the free memory of the
/// machine and the limit of its cgroup. Returns `None` if neither is known.
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
    // Version 2 first, then version 1. A value that is not a number, such as "max", is no limit.
    let (limit, used) =
        number("/sys/fs/cgroup/memory.max").zip(number("/sys/fs/cgroup/memory.current")).or_else(|| {
            number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
                .zip(number("/sys/fs/cgroup/memory/memory.usage_in_bytes"))
        })?;
    Some(limit.saturating_sub(used))
}

/// Parses a number of bytes such as `2GB`, `1.5 GiB`, `300MB` or `4096`. Units up to TB are powers of
/// 1000, those up to TiB powers of 1024.
pub fn parse_bytes(text: &str) -> Result<usize> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => Some(1.0),
        "kb" => Some(1e3),
        "mb" => Some(1e6),
        "gb" => Some(1e9),
        "tb" => Some(1e12),
        "kib" => Some(1024.0),
        "mib" => Some(1048576.0),
        "gib" => Some(1073741824.0),
        "tib" => Some(1099511627776.0),
        _ => None,
    };
    match (number.parse::<f64>(), factor) {
        (Ok(number), Some(factor)) if number * factor >= 1.0 && number * factor < 2f64.powi(63) => {
            Ok((number * factor) as usize)
        }
        _ => {
            Err(Error::argument(format!("{text:?} is no number of bytes"))
                .note("write it like 2GB or 512MiB"))
        }
    }
}

/// Returns an error if `what` needs more than `limit` bytes, which defaults to the available
/// memory.
pub(super) fn check(bytes: usize, what: &str, limit: Option<usize>) -> Result<()> {
    let more = if limit.is_some() { "a higher memory limit" } else { "a machine with more memory" };
    match limit.or_else(available_memory) {
        Some(available) if bytes > available => {
            let [needed, available] = human_pair(bytes, available);
            let why = format!("{what} would take {needed}, but {available} are available");
            Err(Error::new(ErrorKind::Memory, why).note(format!("use a smaller batch or model, or {more}")))
        }
        _ => Ok(()),
    }
}

/// Returns a number of bytes as people read it.
pub(super) fn human(bytes: usize) -> String {
    match bytes as f64 {
        b if b >= 1e9 => format!("{:.1} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b => format!("{b} bytes"),
    }
}

/// Returns two different numbers of bytes as people read them, so that they look different.
pub(super) fn human_pair(a: usize, b: usize) -> [String; 2] {
    let rounded = [human(a), human(b)];
    if rounded[0] == rounded[1] { [a, b].map(|bytes| format!("{bytes} bytes")) } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_decimal_and_binary_units() {
        let sizes = ["4096", "2GB", "1.5 MiB", "300mb"].map(|text| parse_bytes(text).unwrap());
        assert_eq!(sizes, [4096, 2_000_000_000, 3 << 19, 300_000_000]);
        for text in ["", "GB", "2 gallons", "-1MB", "0", "1e3", "99999999TB"] {
            assert_eq!(parse_bytes(text).unwrap_err().kind(), ErrorKind::Argument, "{text}");
        }
    }

    #[test]
    fn exceeding_the_limit_is_an_error_with_both_sizes() {
        assert!(check(100, "the arena", Some(100)).is_ok());
        let e = check(3_000_000_000, "the arena", Some(2_500_000)).unwrap_err();
        assert!(e.message().contains("3.0 GB") && e.message().contains("2.5 MB"), "{e}");
        assert_eq!(e.kind(), ErrorKind::Memory);
        assert!(e.to_string().contains("a higher memory limit"), "{e}");
        let e = check(usize::MAX, "the arena", None).map_or_else(|e| e.to_string(), |()| String::new());
        assert!(!e.contains("limit"), "{e}");
        let e = check(2_000_001, "the arena", Some(2_000_000)).unwrap_err();
        assert!(e.message().contains("2000001 bytes") && e.message().contains("2000000 bytes"), "{e}");
    }
}
