//! The number of GPUs that a program can use.

use super::Nvml;
use std::collections::HashSet;

/// Returns the number of NVIDIA GPUs that this process can use: those of the machine, restricted by
/// `CUDA_VISIBLE_DEVICES`. Zero without NVIDIA's driver.
///
/// ```no_run
/// use tensorpack::prelude::*;
/// use tensorpack::runtime::get_num_gpu;
///
/// let trainer = SyncMultiGpuTrainerReplicated::new(get_num_gpu().max(1));
/// ```
pub fn get_num_gpu() -> usize {
    let installed = Nvml::open().and_then(|nvml| nvml.count()).unwrap_or(0) as usize;
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    visible.map_or(installed, |list| count_visible(&list, installed))
}

/// Returns how many of the installed GPUs a `CUDA_VISIBLE_DEVICES` of this value names. As in CUDA,
/// the list ends before the first entry that is not a GPU of the machine, and a list that names one
/// twice names none. An entry that begins with letters is the identifier of a GPU.
fn count_visible(list: &str, installed: usize) -> usize {
    let mut seen = HashSet::new();
    for entry in list.split(',').map(str::trim) {
        let known = match entry.parse::<usize>() {
            Ok(index) => index < installed,
            Err(_) => entry.starts_with("GPU-") || entry.starts_with("MIG-"),
        };
        if !known {
            break;
        }
        if !seen.insert(entry) {
            return 0;
        }
    }
    seen.len().min(installed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_are_counted_as_cuda_does() {
        let cases = [
            ("0,1,2,3", 8, 4),
            ("3, 1", 4, 2),
            ("", 4, 0),
            ("-1", 4, 0),
            ("0,-1,1", 4, 1),
            ("0,9,1", 4, 1),
            ("1,1", 4, 0),
            ("GPU-8932f937,0", 4, 2),
            ("MIG-12,NoDevFiles", 4, 1),
            ("0,1", 0, 0),
        ];
        for (list, installed, expected) in cases {
            assert_eq!(count_visible(list, installed), expected, "{list:?} of {installed}");
        }
    }
}
