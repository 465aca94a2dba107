//! NVIDIA's driver: whether there is one, and which plugin suits it.

use std::fs;

/// The major version from which a driver serves CUDA 13.
const FOR_CUDA_13: u32 = 580;

/// What the kernel says of the driver, where there is one.
pub(crate) fn driver() -> Option<String> {
    version(&fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The name of the plugin that suits a driver, or the choice where there is none yet.
pub(crate) fn plugin_for(driver: Option<&str>) -> &'static str {
    match driver.and_then(|version| version.split('.').next()?.parse::<u32>().ok()) {
        Some(major) if major < FOR_CUDA_13 => "cuda12",
        Some(_) => "cuda13",
        None => "cuda13 (or cuda12, for older drivers)",
    }
}

/// The first word of the kernel's text that is numbers with dots between.
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
    fn the_version_is_found_in_what_the_kernel_says() {
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
