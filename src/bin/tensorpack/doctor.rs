//! Says which engines and devices there are, and how to get what is missing.

use crate::nvidia;
use std::sync::Arc;
use std::thread::available_parallelism;
use tensorpack::runtime::{XLA_CPU_DEVICES, available_memory};
use tensorpack::{Error, Result};
use tensorpack_kernels::Isa;
use tensorpack_pjrt::{Client, Device, FoundPlugin, OptionValue, Plugin, find_plugins};

/// Prints all that was found.
pub(crate) fn examine() {
    println!("tensorpack {}", env!("CARGO_PKG_VERSION"));
    println!("cpu engine: {}", machine());
    println!("reference engine: f64, for debugging (device reference)");
    println!("xla engine:");
    let found = find_plugins();
    for plugin in &found {
        println!("  {} ({})", plugin.path.display(), plugin.place);
        for line in about(plugin) {
            println!("    {line}");
        }
    }
    let driver = nvidia::driver();
    println!("  NVIDIA's driver: {}", driver.as_deref().unwrap_or("none"));
    for (platform, name) in [("cpu", "cpu"), ("cuda", nvidia::plugin_for(driver.as_deref()))] {
        if !found.iter().any(|plugin| plugin.platform.as_deref().is_none_or(|found| found == platform)) {
            println!("  no plugin for {platform}; to get one: tensorpack plugin install {name}");
        }
    }
    println!("many machines (MPI): not yet");
}

fn machine() -> String {
    let cores = available_parallelism().map_or(1, usize::from);
    let memory =
        available_memory().map(|bytes| format!(", {:.1} GB of memory to be had", gigabytes(bytes as u64)));
    format!("{cores} cores, {} instructions{}", Isa::detect(), memory.unwrap_or_default())
}

/// What there is to say of a plugin, line by line.
fn about(found: &FoundPlugin) -> Vec<String> {
    let plugin = match Plugin::open(&found.path) {
        Ok(plugin) => plugin,
        Err(e) => return lines("it cannot be used", &e),
    };
    let (major, minor) = plugin.api_version();
    let mut told = vec![format!("version {major}.{minor} of the PJRT API")];
    match client(found, &plugin) {
        Ok(client) => {
            let platform = client.platform_name().unwrap_or_default();
            let name = |(i, device): (usize, &Device)| format!("xla:{platform}:{i} {}", describe(device));
            told.extend(client.devices().iter().enumerate().map(name));
        }
        Err(e) => told.extend(lines("it has no devices", &e)),
    }
    told
}

/// A client with the devices that the engine would have, which takes no more of them than looking at them needs.
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

fn describe(device: &Device) -> String {
    let limit = device.memory().ok().and_then(|memory| memory.limit);
    let memory = limit.map(|bytes| format!(", {:.1} GB", gigabytes(bytes)));
    format!("({}{})", device.kind(), memory.unwrap_or_default())
}

fn lines(what: &str, error: &Error) -> Vec<String> {
    let mut told = vec![format!("{what}:")];
    told.extend(error.to_string().lines().map(|line| format!("  {line}")));
    told
}

fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
