//! XLA's plugin for CPUs, for tests.

use tensorpack_pjrt::{Client, OptionValue};
use tensorpack_testing::plugin_for_tests;

/// A client with `n` devices; `None` without a plugin.
pub(crate) fn client(n: i64) -> Option<Client> {
    let plugin = plugin_for_tests("cpu")?;
    Some(Client::new(&plugin, &[("cpu_device_count", OptionValue::Int(n))]).unwrap())
}
