//! Reports which engines and devices are available, and how to get what is missing.

use crate::nvidia;
use crate::packages::other_plugins;
use std::io::{self, Write};
use std::sync::Arc;
use tensorpack::runtime::{XLA_CPU_DEVICES, engines};
use tensorpack::{Error, Result};
use tensorpack_mpi::find_libraries;
use tensorpack_pjrt::{Client, Device, FoundPlugin, OptionValue, Plugin, find_plugins};
use tensorpack_rendezvous::{Launch, LaunchOptions};

/// Writes the report line by line, so that a plugin that crashes the process is the last one named.
pub(crate) fn report(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "tensorpack {}", env!("CARGO_PKG_VERSION"))?;
    for engine in engines() {
        writeln!(out, "{} engine: {}", engine.name(), engine.description())?;
    }
    writeln!(out, "PJRT plugins for the xla engine:")?;
    let found = find_plugins();
    for plugin in &found {
        writeln!(out, "  {} ({})", plugin.path.display(), plugin.source)?;
        for line in describe_plugin(plugin) {
            writeln!(out, "    {line}")?;
        }
    }
    let (driver, mut missing) = (nvidia::driver(), false);
    writeln!(out, "  NVIDIA driver: {}", driver.as_deref().unwrap_or("none"))?;
    for (platform, name) in [("cpu", "cpu"), ("cuda", nvidia::plugin_for(driver.as_deref()))] {
        if !found.iter().any(|plugin| plugin.platform.as_deref().is_none_or(|found| found == platform)) {
            writeln!(out, "  no plugin for {platform}; to get one: tensorpack plugin install {name}")?;
            missing = true;
        }
    }
    for plugin in other_plugins() {
        if !found.iter().any(|found| found.platform.as_deref().is_none_or(|name| name == plugin.platform)) {
            writeln!(out, "  {}", plugin.pip_hint())?;
        }
    }
    if missing {
        writeln!(out, "  (packages of python3 are not listed here; a session searches them, too)")?;
    }
    report_mpi(out)
}

/// Lists MPI libraries, without opening them: two in one process would clash.
fn report_mpi(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "MPI libraries:")?;
    match find_libraries() {
        Ok(found) if found.is_empty() => {
            writeln!(out, "  none; to get one: tensorpack plugin install mpi")?;
        }
        Ok(found) => {
            for library in &found {
                writeln!(out, "  {} ({}, {})", library.path.display(), library.abi, library.source)?;
            }
        }
        Err(e) => writeln!(out, "  {}", e.message())?,
    }
    match Launch::detect(&LaunchOptions::default()) {
        Ok(launch) => writeln!(out, "  rank {} of {} ({})", launch.rank, launch.size, launch.launcher),
        Err(e) => lines("the launcher's environment is contradictory", &e)
            .iter()
            .try_for_each(|line| writeln!(out, "  {line}")),
    }
}

/// Opens a plugin and describes its API version and devices, one a line.
fn describe_plugin(found: &FoundPlugin) -> Vec<String> {
    let plugin = match Plugin::open(&found.path) {
        Ok(plugin) => plugin,
        Err(e) => return lines("it cannot be opened", &e),
    };
    let (major, minor) = plugin.api_version();
    let mut report = vec![format!("PJRT API version {major}.{minor}")];
    match client(found, &plugin) {
        Ok(client) => {
            let platform = client.platform_name().unwrap_or_default();
            let name =
                |(i, device): (usize, &Device)| format!("xla:{platform}:{i} {}", describe_device(device));
            report.extend(client.devices().iter().enumerate().map(name));
        }
        Err(e) => report.extend(lines("its devices are unavailable", &e)),
    }
    report
}

/// Creates a client with the devices that the engine would have, without preallocating GPU memory.
fn client(found: &FoundPlugin, plugin: &Arc<Plugin>) -> Result<Client> {
    let is_for = |platform: &str| match &found.platform {
        Some(known) => known == platform,
        None => plugin.name().contains(platform),
    };
    match (is_for("cuda"), is_for("cpu")) {
        (true, _) => Client::new(plugin, &[("preallocate", OptionValue::Bool(false))]),
        (_, true) => Client::new(plugin, &[("cpu_device_count", OptionValue::Int(XLA_CPU_DEVICES as i64))]),
        _ => Client::new(plugin, &[]),
    }
}

fn describe_device(device: &Device) -> String {
    let limit = device.memory().ok().and_then(|memory| memory.limit);
    let memory = limit.map(|bytes| format!(", {:.1} GB", gigabytes(bytes)));
    format!("({}{})", device.kind(), memory.unwrap_or_default())
}

fn lines(what: &str, error: &Error) -> Vec<String> {
    let mut lines = vec![format!("{what}:")];
    lines.extend(error.to_string().lines().map(|line| format!("  {line}")));
    lines
}

fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
