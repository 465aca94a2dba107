//! Plugins for tests.

use crate::{Requirement, skip};
use std::sync::Arc;
use tensorpack_pjrt::{Plugin, find_plugin};

/// Loads the plugin for a platform, such as `cpu`. Skips the test and returns `None` if none is
/// installed.
///
/// # Panics
/// If the plugin cannot be loaded, or if there is none and `TENSORPACK_REQUIRE_PLUGIN` is set.
#[track_caller]
pub fn plugin_for_tests(platform: &str) -> Option<Arc<Plugin>> {
    match find_plugin(platform) {
        Ok(path) => Some(Plugin::open(&path).unwrap_or_else(|e| panic!("{e}"))),
        Err(e) => {
            skip(Requirement::Plugin, e.message());
            None
        }
    }
}
