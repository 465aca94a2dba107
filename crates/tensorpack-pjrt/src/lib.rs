//! Compiles and runs StableHLO on CPUs, GPUs and TPUs through PJRT, the interface of XLA's
//! compilers.
//!
//! A PJRT plugin is a shared library. It is loaded at run time: nothing is linked, and no header is
//! needed to build. A [`Client`] of a [`Plugin`] has [`Device`]s. It compiles a program to an
//! [`Executable`], which runs on [`Buffer`]s in the memory of the devices:
//!
//! ```no_run
//! use std::time::Duration;
//! use tensorpack_pjrt::{Client, CompileOptions, Plugin};
//! use tensorpack_tensor::HostTensor;
//!
//! # fn main() -> tensorpack_tensor::Result<()> {
//! let plugin = Plugin::find("cpu")?;
//! let client = Client::new(&plugin, &[])?;
//! let module = "module @double {
//!   func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
//!     %y = stablehlo.add %x, %x : tensor<3xf32>
//!     return %y : tensor<3xf32>
//!   }
//! }";
//! let executable = client.compile(module, &CompileOptions::new())?;
//! let x = client.upload(&HostTensor::new([3], vec![1.0f32, 2.0, 3.0])?, &client.devices()[0])?;
//! let execution = executable.execute(&[vec![&x]])?;
//! let y = execution.outputs[0][0].download(Duration::from_secs(10))?;
//! assert_eq!(y, HostTensor::new([3], vec![2.0f32, 4.0, 6.0])?);
//! # Ok(())
//! # }
//! ```
//!
//! Copies and executions are asynchronous. Their completion is an [`Event`], and every wait has a
//! timeout. Errors carry XLA's own message. All types may be used from any thread and dropped in
//! any order: whatever belongs to a client keeps it alive.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `discovery` | [`find_plugins`]: where plugins are searched for |
//! | `plugin` | [`Plugin`]: loading a plugin, checking its version, calling its functions |
//! | `elf` | whether the file of a plugin is complete |
//! | `client` | [`Client`]: devices, compilation, uploads |
//! | `distributed`, `key_value_store` | [`DistributedOptions`], [`KeyValueStore`]: clients of several processes |
//! | `key_value_callbacks` | the functions through which plugins call a store |
//! | `compile_options`, `option_value` | [`CompileOptions`], [`OptionValue`] |
//! | `executable` | [`Executable`], [`Execution`], [`PlannedMemory`] |
//! | `device`, `buffer`, `download`, `event` | [`Device`], [`Buffer`], [`Download`], [`Event`] |
//! | `profiler`, `xspace` | [`Profiler`], [`XSpace`]: what devices execute, and when |
//! | `dtype`, `error` | conversion of element types and errors |
//! | `deadline` | calls of a plugin that may hang |
//! | `exit` | the end of a process whose devices stopped responding |
//! | `c_api`, `c_struct` | the C API, generated from its header; what its structs have in common |
//! | `profiler_c_api` | the C API of the profiler's extension |

mod buffer;
mod c_api;
mod c_struct;
mod client;
mod compile_options;
mod deadline;
mod device;
mod discovery;
mod distributed;
mod download;
mod dtype;
mod elf;
mod error;
mod event;
mod executable;
mod exit;
mod key_value_callbacks;
mod key_value_store;
mod option_value;
mod plugin;
mod profiler;
mod profiler_c_api;
mod xspace;

pub use buffer::Buffer;
pub use client::Client;
pub use compile_options::CompileOptions;
pub use device::{Device, MemoryStats};
#[doc(hidden)]
pub use discovery::{FoundPlugin, PACKAGED_PLUGINS, PackagedPlugin, PluginSource};
pub use discovery::{find_plugin, find_plugins, plugin_folder};
pub use distributed::DistributedOptions;
pub use download::Download;
pub use event::Event;
pub use executable::{Executable, Execution, PlannedMemory};
pub use key_value_store::KeyValueStore;
pub use option_value::OptionValue;
pub use plugin::Plugin;
pub use profiler::Profiler;
pub use xspace::{XEvent, XLine, XPlane, XSpace};

/// Compiles the code of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/xla.md")]
struct Xla;
