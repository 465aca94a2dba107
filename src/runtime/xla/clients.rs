//! The PJRT clients of the process: one per platform, because a client claims its devices.

use crate::runtime::{Platform, XLA_CPU_DEVICES};
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_pjrt::{Client, OptionValue, Plugin};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Returns the client of a platform, creating it at the first call.
pub(super) fn client(platform: Platform) -> Result<Arc<Client>> {
    static CLIENTS: Mutex<Vec<(Platform, Arc<Client>)>> = Mutex::new(Vec::new());
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, client)) = clients.iter().find(|(p, _)| *p == platform) {
        return Ok(client.clone());
    }
    let client = Arc::new(open(platform)?);
    clients.push((platform, client.clone()));
    Ok(client)
}

fn open(platform: Platform) -> Result<Client> {
    let plugin = Plugin::find(platform.name())?;
    let options: &[(&str, OptionValue)] = match platform {
        Platform::Cpu => &[("cpu_device_count", OptionValue::Int(XLA_CPU_DEVICES as i64))],
        _ => &[],
    };
    let client = Client::new(&plugin, options)?;
    match client.platform_name()? {
        name if name == platform.name() => Ok(client),
        name => Err(Error::new(ErrorKind::Unsupported, format!("{plugin:?} is a plugin for {name}"))),
    }
}
