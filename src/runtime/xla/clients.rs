//! The PJRT clients of the process: one per platform, because a client claims its devices.

use crate::runtime::{Interrupt, Platform, XLA_CPU_DEVICES};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tensorpack_pjrt::{Client, OptionValue, Plugin, find_plugin};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Returns the client of a platform, creating it at the first call. That may wait for a driver or
/// for another process, but no longer than `deadline`, and until an interrupt.
pub(super) fn client(platform: Platform, deadline: Duration, interrupt: &Interrupt) -> Result<Arc<Client>> {
    static CLIENTS: Mutex<Vec<(Platform, Arc<Client>)>> = Mutex::new(Vec::new());
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, client)) = clients.iter().find(|(p, _)| *p == platform) {
        return Ok(client.clone());
    }
    let client = Arc::new(open(platform, deadline, interrupt)?);
    clients.push((platform, client.clone()));
    Ok(client)
}

fn open(platform: Platform, deadline: Duration, interrupt: &Interrupt) -> Result<Client> {
    let check = || interrupt.check();
    let plugin = Plugin::open_within(&find_plugin(platform.name())?, deadline, &check)?;
    let options: &[(&str, OptionValue)] = match platform {
        Platform::Cpu => &[("cpu_device_count", OptionValue::Int(XLA_CPU_DEVICES as i64))],
        _ => &[],
    };
    let client = Client::new_within(&plugin, options, deadline, &check)?;
    match client.platform_name()? {
        name if name == platform.name() => Ok(client),
        name => Err(Error::new(ErrorKind::Unsupported, format!("{plugin:?} is a plugin for {name}"))),
    }
}
