//! Synchronous data-parallel trainers. The total batch size is the input's batch size times the
//! number of towers.

use super::TrainConfig;
use super::data_parallel::{Devices, Updates, Weights, averaged_step};
use super::single_cost::{Configured, Setup, Strategy};
use crate::graph::Op;
use crate::runtime::Device;
use tensorpack_tensor::Result;

/// Defines a trainer that averages the gradients of its towers and updates once.
macro_rules! sync_trainer {
    ($(#[$doc:meta])* $name:ident, $updates:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            devices: Devices,
            weights: Weights,
        }

        impl $name {
            /// Uses this many towers, each on a thread team of this process. The teams share its
            /// cores.
            pub fn new(towers: usize) -> $name {
                $name { devices: Devices::teams(towers), weights: Weights::Equal }
            }

            /// Uses one tower on each of these devices.
            pub fn on(devices: impl IntoIterator<Item = Device>) -> $name {
                $name { devices: Devices::new(devices), weights: Weights::Equal }
            }

            /// Weights towers by the number of examples in their batches (the first dimension of
            /// the first input that is not a scalar), so that batches of different sizes train like
            /// one large batch. A tower without examples has weight 0; its cost must still be
            /// defined, which a mean over no examples is not. By default all towers have equal
            /// weight, and a step takes the mean of the towers' means.
            #[must_use]
            pub fn weighted_by_batch(self) -> $name {
                $name { weights: Weights::Examples, ..self }
            }

            /// Combines a trainer of this many towers with a configuration:
            /// `SyncMultiGpuTrainer::from_config(config, 4).train()`.
            pub fn from_config(config: TrainConfig, towers: usize) -> Configured {
                Configured { config, trainer: $name::new(towers).into() }
            }
        }

        impl Strategy for $name {
            fn build(&self, setup: &mut Setup<'_>) -> Result<Op> {
                averaged_step(setup, &self.devices, self.weights, $updates, None)
            }

            fn towers(&self) -> usize {
                self.devices.count()
            }

            fn device(&self) -> Option<Device> {
                self.devices.of_session()
            }
        }
    };
}

sync_trainer! {
    /// Synchronous training in which each device updates its shard of the variables, and has only
    /// its shard of the optimizer's state: with Adam on four devices, a quarter of both moments. The
    /// updated shards are then gathered. Variables of fewer than 256 elements are not divided.
    ///
    /// Thread teams of one process share memory, and with it one copy of everything. There the
    /// threads of all teams update the variables together, where
    /// [`SyncMultiGpuTrainerReplicated`] leaves that to the first tower. Results are bit-identical
    /// to it.
    #[doc(alias = "SyncMultiGPUTrainerParameterServer")]
    #[doc(alias = "ZeRO")]
    SyncMultiGpuTrainerParameterServer, Updates::Sharded
}

sync_trainer! {
    /// Synchronous training with a copy of all variables on every device. Gradients are averaged
    /// over all devices, and each device updates its copy. Thread teams of one process share
    /// memory, so they share one copy.
    #[doc(alias = "SyncMultiGPUTrainerReplicated")]
    SyncMultiGpuTrainerReplicated, Updates::Replicated
}

/// The default synchronous trainer: divided updates.
#[doc(alias = "SyncMultiGPUTrainer")]
pub type SyncMultiGpuTrainer = SyncMultiGpuTrainerParameterServer;
