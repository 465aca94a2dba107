//! Synchronous data-parallel trainers: total batch = batch of the input times towers.

use super::TrainConfig;
use super::data_parallel::{Devices, Weights, averaged_step};
use super::single_cost::{Configured, Setup, Strategy};
use crate::graph::Op;
use crate::runtime::Device;
use tensorpack_tensor::Result;

/// Defines a trainer that averages the gradients of its towers and updates once.
macro_rules! sync_trainer {
    ($(#[$doc:meta])* $name:ident $(says $says:ident)?) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            devices: Devices,
            weights: Weights,
        }

        impl $name {
            /// With this many towers, each on a thread team of this process; the teams share its cores.
            pub fn new(towers: usize) -> $name {
                $name { devices: Devices::teams(towers), weights: Weights::Equal }
            }

            /// With one tower on each of these devices.
            pub fn on(devices: impl IntoIterator<Item = Device>) -> $name {
                $name { devices: Devices::of(devices), weights: Weights::Equal }
            }

            /// With towers that count by how many examples their batches have, the first dim of the first input: so
            /// batches of unlike sizes train as the one large batch of all their examples would. Otherwise all towers
            /// count alike, and a step takes the mean of the towers' means.
            #[must_use]
            pub fn weighted_by_batch(self) -> $name {
                $name { weights: Weights::Examples, ..self }
            }

            /// The trainer of a configuration with this many towers:
            /// `SyncMultiGpuTrainer::from_config(config, 4).train()`.
            pub fn from_config(config: TrainConfig, towers: usize) -> Configured {
                Configured { config, trainer: $name::new(towers).into() }
            }
        }

        impl Strategy for $name {
            fn build(&self, setup: &mut Setup<'_>) -> Result<Op> {
                $(self.devices.$says();)?
                averaged_step(setup, &self.devices, self.weights)
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
    /// One set of variables that all towers share; gradients are averaged where the variables are, and applied once. On
    /// XLA's devices each has a copy, as with [`SyncMultiGpuTrainerReplicated`], which is said.
    #[doc(alias = "SyncMultiGPUTrainerParameterServer")]
    SyncMultiGpuTrainerParameterServer says say_if_replicated
}

sync_trainer! {
    /// Every device has all variables, and gradients are averaged over all of them. Thread teams of one process read the
    /// same memory, so there the copies are one, and the bits are those of [`SyncMultiGpuTrainerParameterServer`].
    #[doc(alias = "SyncMultiGPUTrainerReplicated")]
    SyncMultiGpuTrainerReplicated
}

/// The synchronous trainer people mean when they do not care which: variables in shared memory.
#[doc(alias = "SyncMultiGPUTrainer")]
pub type SyncMultiGpuTrainer = SyncMultiGpuTrainerParameterServer;
