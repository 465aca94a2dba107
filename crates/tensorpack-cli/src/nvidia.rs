//! Detects NVIDIA's driver and chooses the plugin for it.

use std::fs;

/// The oldest driver (major version) that runs CUDA 13.
const CUDA_13_DRIVER: u32 = 580;

/// The version of the loaded driver, if any.
pub(crate) fn driver() -> Option<String> {
    version(&fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The name of the plugin for a driver; names both where no driver is loaded.
pub(crate) fn plugin_for(driver: Option<&str>) -> &'static str {
    match driver.and_then(|version| version.split('.').next()?.parse::<u32>().ok()) {
        Some(major) if major < CUDA_13_DRIVER => "cuda12",
        Some(_) => "cuda13",
        None => "cuda13 (or cuda12, for older drivers)",
    }
}

/// The first word that consists of numbers separated by dots.
fn version(text: &str) -> Option<String> {
    let is_version = |word: &&str| {
        word.contains('.') && word.split('.').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    text.split_whitespace().find(is_version).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_parsed_from_the_kernel_text() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)";
        assert_eq!(version(closed).as_deref(), Some("535.104.05"));
        assert_eq!(version(open).as_deref(), Some("580.95.05"));
        assert_eq!(version("nothing of the kind."), None);
        assert_eq!(plugin_for(Some("535.104.05")), "cuda12");
        assert_eq!(plugin_for(Some("580.95.05")), "cuda13");
        assert!(plugin_for(None).contains("or cuda12"));
    }
}
