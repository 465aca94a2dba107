//! The Python packages that contain plugins and MPI: versions that were tested, with checksums.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::env::consts;
use tensorpack::{Error, ErrorKind, Result};
use tensorpack_pjrt::{PACKAGED_PLUGINS, PackagedPlugin};

/// A plugin that can be installed: the wheel that contains it and those of the libraries it needs.
#[derive(Debug)]
pub(crate) struct Package {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// For each architecture, a requirements file of pip: the plugin's wheel, then those of the
    /// vendor's libraries.
    requirements: &'static [(&'static str, &'static str)],
    pub(crate) contents: Contents,
    /// The software that must already be installed.
    pub(crate) needs: Option<&'static str>,
}

/// What a package contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// A PJRT plugin, as a Python package.
    PjrtPlugin,
    /// MPI: a library and its launcher.
    Mpi,
}

/// A line of a requirements file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wheel {
    /// The package's name for pip.
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    pub(crate) sha256: &'static str,
    pub(crate) bytes: u64,
}

/// The files that `generate_requirements.py` wrote for a plugin.
macro_rules! requirements {
    ($name:literal) => {
        &[
            ("x86_64", include_str!(concat!("../requirements/", $name, "-x86_64.txt"))),
            ("aarch64", include_str!(concat!("../requirements/", $name, "-aarch64.txt"))),
        ]
    };
}

static PACKAGES: [Package; 4] = [
    Package { name: "cpu", requirements: requirements!("cpu"), contents: Contents::PjrtPlugin, needs: None },
    Package {
        name: "cuda13",
        requirements: requirements!("cuda13"),
        contents: Contents::PjrtPlugin,
        needs: Some("NVIDIA's driver, version 580 or later"),
    },
    Package {
        name: "cuda12",
        requirements: requirements!("cuda12"),
        contents: Contents::PjrtPlugin,
        needs: Some("NVIDIA's driver, version 525 or later"),
    },
    Package { name: "mpi", requirements: requirements!("mpi"), contents: Contents::Mpi, needs: None },
];

/// Parses the name of a package on the command line.
pub(crate) fn parser() -> impl TypedValueParser<Value = &'static Package> {
    let packages = PACKAGES.iter().map(|package| PossibleValue::new(package.name));
    // Their names are understood, so that the error can tell where to get them.
    let others = other_plugins().map(|plugin| PossibleValue::new(plugin.name).hide(true));
    PossibleValuesParser::new(packages.chain(others))
        .try_map(|name| named(&name).ok_or_else(|| not_ours(&name)))
}

/// The plugins that are used if they are present, but not installed.
pub(crate) fn other_plugins() -> impl Iterator<Item = &'static PackagedPlugin> {
    PACKAGED_PLUGINS.iter().filter(|plugin| !plugin.installable)
}

/// The message about a plugin that cannot be installed.
fn not_ours(name: &str) -> String {
    let hint = other_plugins().find(|plugin| plugin.name == name).map(PackagedPlugin::pip_hint);
    hint.unwrap_or_else(|| "there is no such plugin".into())
}

/// Looks a package up by its name on the command line.
pub(crate) fn named(name: &str) -> Option<&'static Package> {
    PACKAGES.iter().find(|package| package.name == name)
}

impl Package {
    /// The requirements file for this machine.
    pub(crate) fn requirements(&self) -> Result<&'static str> {
        let of_this = |(machine, _): &&(&str, _)| consts::OS == "linux" && *machine == consts::ARCH;
        self.requirements.iter().find(of_this).map(|(_, text)| *text).ok_or_else(|| {
            let machines: Vec<_> = self.requirements.iter().map(|(machine, _)| *machine).collect();
            let (what, where_) = (self.name, machines.join(" and "));
            let why = format!(
                "the plugin {what} is built for Linux on {where_}, not for {} on {}",
                consts::OS,
                consts::ARCH
            );
            Error::new(ErrorKind::Unsupported, why)
        })
    }

    /// The wheels for this machine; the first one contains the plugin.
    pub(crate) fn wheels(&self) -> Result<Vec<Wheel>> {
        Ok(self.requirements()?.lines().filter_map(Wheel::parse).collect())
    }
}

impl Wheel {
    /// Parses `NAME==VERSION --hash=sha256:HASH # BYTES`. Returns `None` for a comment.
    fn parse(line: &'static str) -> Option<Wheel> {
        let mut words = line.split(' ');
        let (package, version) = words.next()?.split_once("==")?;
        let sha256 = words.next()?.strip_prefix("--hash=sha256:")?;
        let bytes = words.next().filter(|word| *word == "#").and(words.next())?.parse().ok()?;
        Some(Wheel { package, version, sha256, bytes })
    }

    /// The requirement with its version.
    pub(crate) fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }

    /// The package's name in the names of files.
    pub(crate) fn file_stem(&self) -> String {
        format!("{}-{}", self.package.replace('-', "_"), self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_that_are_not_installed_are_named_with_their_package() {
        assert!(not_ours("tpu").contains("pip install libtpu"));
        assert!(not_ours("rocm7").contains("pip install jax-rocm7-pjrt"));
        for plugin in PACKAGED_PLUGINS {
            assert_eq!(named(plugin.name).is_some(), plugin.installable, "{}", plugin.name);
        }
    }

    #[test]
    fn every_line_of_every_file_is_a_pinned_wheel() {
        for (package, (machine, text)) in
            PACKAGES.iter().flat_map(|package| package.requirements.iter().map(move |file| (package, file)))
        {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let wheels: Vec<Wheel> =
                lines.map(|line| Wheel::parse(line).unwrap_or_else(|| panic!("{machine}: {line}"))).collect();
            let expected = match package.contents {
                Contents::PjrtPlugin => "-pjrt",
                Contents::Mpi => "mpich",
            };
            assert!(wheels[0].package.ends_with(expected), "{} {machine}", package.name);
            let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
            assert!(wheels.iter().all(|wheel| is_hash(wheel.sha256) && wheel.bytes > 0));
        }
    }
}
