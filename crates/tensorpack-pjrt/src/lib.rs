//! Compile and run StableHLO on whatever a PJRT plugin offers.
//!
//! A plugin is a shared library, opened at run time: nothing is linked, and no header is needed to build. A [`Client`] of
//! a [`Plugin`] has [`Device`]s; it compiles text to an [`Executable`], which runs on [`Buffer`]s in the devices'
//! memory. Whatever takes time is asynchronous and ends in an [`Event`], and every wait has a deadline. Errors carry XLA's
//! own message.
//!
//! [`Plugin::find`] looks for a plugin where `tensorpack plugin install` and Python put them.
//!
//! All of it may be used from any thread, and nothing need be dropped in order: whatever belongs to a client keeps it.

mod buffer;
mod c_api;
mod client;
mod compile_options;
mod device;
mod discovery;
mod download;
mod dtype;
mod event;
mod executable;
mod exit;
mod option_value;
mod plugin;
mod protobuf;
mod status;

pub use buffer::Buffer;
pub use client::Client;
pub use compile_options::CompileOptions;
pub use device::{Device, DeviceMemory};
#[doc(hidden)]
pub use discovery::plugin_for_tests;
pub use discovery::{FoundPlugin, PACKAGED_PLUGINS, PackagedPlugin, Place};
pub use discovery::{find_plugin, find_plugins, plugin_folder};
pub use download::Download;
pub use event::Event;
pub use executable::{Executable, Execution, PlannedMemory};
pub use option_value::OptionValue;
pub use plugin::Plugin;

/// The documentation's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/xla.md")]
struct Xla;
