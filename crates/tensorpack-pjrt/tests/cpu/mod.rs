//! XLA's plugin for CPUs, for tests.

use std::path::Path;
use std::sync::Arc;
use tensorpack_pjrt::{Client, OptionValue, Plugin};

pub(crate) fn plugin() -> Option<Arc<Plugin>> {
    let path = std::env::var_os("TENSORPACK_PJRT_PLUGIN")?;
    Some(Plugin::open(Path::new(&path)).unwrap())
}

/// A client with `n` devices.
pub(crate) fn client(n: i64) -> Option<Client> {
    Some(Client::new(&plugin()?, &[("cpu_device_count", OptionValue::Int(n))]).unwrap())
}
