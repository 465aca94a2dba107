//! NVIDIA's management library (NVML), opened at run time: the utilization and memory of GPUs.

use libloading::Library;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The library, with the functions that are used. It stays open: others in the process may use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nvml {
    count: unsafe extern "C" fn(*mut c_uint) -> c_int,
    handle: unsafe extern "C" fn(c_uint, *mut Device) -> c_int,
    utilization: unsafe extern "C" fn(Device, *mut Utilization) -> c_int,
    memory: unsafe extern "C" fn(Device, *mut Memory) -> c_int,
}

/// What a GPU does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuUse {
    /// The percentage of the last fraction of a second in which a kernel ran.
    pub(crate) percent: u32,
    /// The memory in use, by any process, in bytes.
    pub(crate) used: u64,
    /// All memory in bytes.
    pub(crate) total: u64,
}

/// `nvmlDevice_t`, an opaque pointer.
type Device = *mut c_void;

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// The name of the library, which comes with NVIDIA's driver.
const LIBRARY: &str = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };

impl Nvml {
    /// Opens and initializes the library.
    pub(crate) fn open() -> Result<Nvml> {
        Nvml::open_library(LIBRARY)
    }

    fn open_library(name: &str) -> Result<Nvml> {
        let missing = |e: libloading::Error| {
            Error::new(ErrorKind::Unsupported, format!("{name} is unavailable: {e}"))
                .note("it comes with NVIDIA's driver: without an NVIDIA GPU there is nothing to track")
        };
        // SAFETY: loading NVML runs only its own initializers, which have no requirements.
        let library = unsafe { Library::new(name) }.map_err(missing)?;
        // SAFETY: the types are those of nvml.h. The library is never closed: it is leaked below,
        // and the function pointers, which are copied out of the symbols, stay valid.
        let (init, nvml) = unsafe {
            let init: unsafe extern "C" fn() -> c_int = *library.get(b"nvmlInit_v2\0").map_err(missing)?;
            let nvml = Nvml {
                count: *library.get(b"nvmlDeviceGetCount_v2\0").map_err(missing)?,
                handle: *library.get(b"nvmlDeviceGetHandleByIndex_v2\0").map_err(missing)?,
                utilization: *library.get(b"nvmlDeviceGetUtilizationRates\0").map_err(missing)?,
                memory: *library.get(b"nvmlDeviceGetMemoryInfo\0").map_err(missing)?,
            };
            (init, nvml)
        };
        std::mem::forget(library);
        // SAFETY: `nvmlInit_v2` may be called at any time, and any number of times.
        succeeded("nvmlInit_v2", unsafe { init() })?;
        Ok(nvml)
    }

    /// Returns the number of GPUs of the machine.
    pub(crate) fn count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: the library is initialized, see `open_library`, and `count` is a valid place for
        // the result.
        succeeded("nvmlDeviceGetCount_v2", unsafe { (self.count)(&mut count) })?;
        Ok(count)
    }

    /// Returns what every GPU of the machine does now, in NVML's order. `CUDA_VISIBLE_DEVICES` has
    /// no effect on it.
    pub(crate) fn gpus(&self) -> Result<Vec<GpuUse>> {
        (0..self.count()?).map(|index| self.gpu(index)).collect()
    }

    fn gpu(&self, index: c_uint) -> Result<GpuUse> {
        let mut device = std::ptr::null_mut();
        let (mut utilization, mut memory) = (Utilization::default(), Memory::default());
        // SAFETY: the library is initialized, see `open_library`; `device` is a valid place for the
        // handle.
        succeeded("nvmlDeviceGetHandleByIndex_v2", unsafe { (self.handle)(index, &mut device) })?;
        // SAFETY: the call above succeeded, so `device` is a handle, and the structs have the
        // layout of nvml.h.
        let (used, held) =
            unsafe { ((self.utilization)(device, &mut utilization), (self.memory)(device, &mut memory)) };
        succeeded("nvmlDeviceGetUtilizationRates", used)?;
        succeeded("nvmlDeviceGetMemoryInfo", held)?;
        Ok(GpuUse { percent: utilization.gpu, used: memory.used, total: memory.total })
    }
}

/// Turns a status of NVML into a result.
fn succeeded(call: &str, status: c_int) -> Result<()> {
    match status {
        0 => Ok(()),
        status => Err(Error::new(ErrorKind::Engine, format!("{call} failed with status {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_testing::{Requirement, skip};

    #[test]
    fn a_missing_library_is_an_error_that_names_it() {
        let e = Nvml::open_library("libnvidia-ml-of-no-machine.so").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.message().contains("libnvidia-ml-of-no-machine.so"), "{e}");
    }

    #[test]
    fn gpus_use_some_of_their_memory() {
        // Machines without an NVIDIA GPU have no library, or one that cannot be initialized.
        let gpus = Nvml::open().and_then(|nvml| nvml.gpus()).unwrap_or_default();
        if gpus.is_empty() {
            return skip(Requirement::Devices, "there is no NVIDIA GPU");
        }
        for gpu in gpus {
            assert!(gpu.percent <= 100 && gpu.used <= gpu.total && gpu.total > 1 << 28, "{gpu:?}");
        }
    }
}
