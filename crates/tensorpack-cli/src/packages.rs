//! The Python packages that contain plugins: versions that were tested, with their checksums.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::env::consts;
use tensorpack::{Error, ErrorKind, Result};

/// A Python package that contains a plugin, with the libraries it needs beside it.
#[derive(Debug)]
pub(crate) struct Package {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The package's name for pip.
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// One for each architecture.
    wheels: &'static [Wheel],
    /// The vendor's libraries as pip requirements, with the size of the version current at the time
    /// of writing.
    pub(crate) libraries: &'static [(&'static str, u64)],
    /// What the machine must have already.
    pub(crate) needs: Option<&'static str>,
}

/// The file that pip downloads.
#[derive(Debug)]
pub(crate) struct Wheel {
    machine: &'static str,
    pub(crate) bytes: u64,
    pub(crate) sha256: &'static str,
}

static PACKAGES: [Package; 3] = [
    Package {
        name: "cpu",
        package: "xla-cpu-pjrt",
        version: "0.0.1",
        wheels: &[
            Wheel {
                machine: "x86_64",
                bytes: 63_461_052,
                sha256: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
            },
            Wheel {
                machine: "aarch64",
                bytes: 49_514_947,
                sha256: "8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9",
            },
        ],
        libraries: &[],
        needs: None,
    },
    Package {
        name: "cuda13",
        package: "jax-cuda13-pjrt",
        version: "0.11.2",
        wheels: &[
            Wheel {
                machine: "x86_64",
                bytes: 134_162_640,
                sha256: "e5ff589d43064913bb74027682d89639c7ea48f9f81c2bae6fc75117e913f93e",
            },
            Wheel {
                machine: "aarch64",
                bytes: 128_788_047,
                sha256: "63b55e50e5c2583a25e196ba06b034b63d2b2d8ad4c2f17935652c8d3ad2dd2d",
            },
        ],
        libraries: &[
            ("nvidia-cublas>=13.0.0.19,<14", 439_349_182),
            ("nvidia-cuda-cupti>=13.0.48,<14", 13_058_283),
            ("nvidia-cuda-nvcc>=13.0.48,<14", 47_672_022),
            ("nvidia-cuda-nvrtc>=13.0.48,<14", 53_301_733),
            ("nvidia-cuda-runtime>=13.0.48,<14", 2_494_438),
            ("nvidia-cudnn-cu13>=9.12.0.46,<10", 536_771_498),
            ("nvidia-cufft>=12.0.0.15,<13", 161_750_089),
            ("nvidia-cusolver>=12.0.3.29,<13", 246_439_201),
            ("nvidia-cusparse>=12.6.2.49,<13", 170_468_146),
            ("nvidia-nccl-cu13>=2.27.7,<3", 305_100_071),
            ("nvidia-nvjitlink>=13.0.39,<14", 46_642_491),
            ("nvidia-nvshmem-cu13>=3.3.20,<4", 182_092_449),
            ("nvidia-nvvm>=13.0.48,<14", 72_604_627),
        ],
        needs: Some("NVIDIA's driver, version 580 or later"),
    },
    Package {
        name: "cuda12",
        package: "jax-cuda12-pjrt",
        version: "0.11.2",
        wheels: &[
            Wheel {
                machine: "x86_64",
                bytes: 188_235_313,
                sha256: "2133b3afc63307c016ae4980f166b2b3de199759363ead74f7d550eaae953463",
            },
            Wheel {
                machine: "aarch64",
                bytes: 182_867_418,
                sha256: "f36247d40973b20acf3c69dac7c9c720daaa4096a809b3e8fd70292be617cdeb",
            },
        ],
        libraries: &[
            ("nvidia-cublas-cu12>=12.1.3.1,<13", 581_217_458),
            ("nvidia-cuda-cupti-cu12>=12.1.105,<13", 10_814_997),
            ("nvidia-cuda-nvcc-cu12>=12.6.85,<13", 40_546_229),
            ("nvidia-cuda-nvrtc-cu12>=12.1.55,<13", 89_568_129),
            ("nvidia-cuda-runtime-cu12>=12.1.105,<13", 3_493_179),
            ("nvidia-cudnn-cu12>=9.10.2.21,<10", 766_178_381),
            ("nvidia-cufft-cu12>=11.0.2.54,<12", 200_877_592),
            ("nvidia-cusolver-cu12>=11.4.5.107,<12", 338_117_415),
            ("nvidia-cusparse-cu12>=12.1.0.106,<13", 366_465_088),
            ("nvidia-nccl-cu12>=2.18.1,<3", 351_526_311),
            ("nvidia-nvjitlink-cu12>=12.1.105,<13", 39_748_338),
            ("nvidia-nvshmem-cu12>=3.2.5,<4", 280_800_183),
        ],
        needs: Some("NVIDIA's driver, version 525 or later"),
    },
];

/// Parses the name of a package on the command line.
pub(crate) fn parser() -> impl TypedValueParser<Value = &'static Package> {
    let names = PossibleValuesParser::new(PACKAGES.iter().map(|package| package.name));
    names.try_map(|name| named(&name).ok_or("there is no such plugin"))
}

/// Looks a package up by its name on the command line.
pub(crate) fn named(name: &str) -> Option<&'static Package> {
    PACKAGES.iter().find(|package| package.name == name)
}

impl Package {
    /// The requirement that pip is given.
    pub(crate) fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }

    /// The wheel for this machine.
    pub(crate) fn wheel(&self) -> Result<&'static Wheel> {
        let of_this = |wheel: &&Wheel| consts::OS == "linux" && wheel.machine == consts::ARCH;
        self.wheels.iter().find(of_this).ok_or_else(|| {
            let machines: Vec<_> = self.wheels.iter().map(|wheel| wheel.machine).collect();
            let (what, where_) = (self.package, machines.join(" and "));
            let why =
                format!("{what} is built for Linux on {where_}, not for {} on {}", consts::OS, consts::ARCH);
            Error::new(ErrorKind::Unsupported, why)
        })
    }

    /// The approximate size of the whole download.
    pub(crate) fn bytes(&self) -> Result<u64> {
        Ok(self.wheel()?.bytes + self.libraries.iter().map(|(_, bytes)| bytes).sum::<u64>())
    }
}
