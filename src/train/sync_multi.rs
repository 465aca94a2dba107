//! Synchronous data-parallel trainers. The total batch size is the input's batch size times the
//! number of towers.

use super::TrainConfig;
use super::data_parallel::{Devices, Weights, averaged_step};
use super::single_cost::{Configured, Setup, Strategy};
use crate::graph::Op;
use crate::runtime::Device;
use tensorpack_tensor::Result;

/// Defines a trainer that averages the gradients of its towers and updates once.
macro_rules! sync_trainer {
    ($(#[$doc:meta])* $name:ident $(logs $log:ident)?) => {
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
                $(self.devices.$log();)?
                averaged_step(setup, &self.devices, self.weights, None)
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
    /// Synchronous training with one set of variables that all towers share. Gradients are averaged
    /// where the variables are, and applied once. XLA devices have a copy each, as with
    /// [`SyncMultiGpuTrainerReplicated`]; the trainer logs this.
    #[doc(alias = "SyncMultiGPUTrainerParameterServer")]
    SyncMultiGpuTrainerParameterServer logs log_if_replicated
}

sync_trainer! {
    /// Synchronous training with a copy of all variables on every device. Gradients are averaged
    /// over all devices. Thread teams of one process share memory, so they share one copy, and
    /// results are bit-identical to [`SyncMultiGpuTrainerParameterServer`].
    #[doc(alias = "SyncMultiGPUTrainerReplicated")]
    SyncMultiGpuTrainerReplicated
}

/// The default synchronous trainer: variables in shared memory.
#[doc(alias = "SyncMultiGPUTrainer")]
pub type SyncMultiGpuTrainer = SyncMultiGpuTrainerParameterServer;
