//! The platforms that XLA compiles for.

/// The number of devices of `xla:cpu`. They share one processor and exist for tests.
pub const XLA_CPU_DEVICES: usize = 8;

/// A platform that XLA compiles for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// The processor of this machine, for tests. The CPU engine (`cpu:0`) is faster there.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// AMD GPUs. Untested.
    Rocm,
    /// Google TPUs. Untested.
    Tpu,
}

impl Platform {
    pub(super) const ALL: [Platform; 4] = [Platform::Cpu, Platform::Cuda, Platform::Rocm, Platform::Tpu];

    /// Returns the name, as in `xla:cuda:0`.
    pub fn name(self) -> &'static str {
        match self {
            Platform::Cpu => "cpu",
            Platform::Cuda => "cuda",
            Platform::Rocm => "rocm",
            Platform::Tpu => "tpu",
        }
    }

    pub(super) fn named(name: &str) -> Option<Platform> {
        Platform::ALL.into_iter().find(|p| p.name() == name)
    }
}
