//! Synchronous data-parallel training on several processes, on one machine or many.

use super::TrainConfig;
use super::data_parallel::{Devices, Updates, Weights, averaged_step};
use super::single_cost::{Configured, Setup, Strategy};
use crate::distributed::{GroupOptions, ProcessGroup};
use crate::graph::Op;
use crate::input::InputSource;
use crate::logger;
use crate::runtime::Device;
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{DType, Error, Result};

/// Defines a trainer whose towers are divided over several processes.
macro_rules! distributed_trainer {
    ($(#[$doc:meta])* $name:ident, $updates:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            devices: Devices,
            weights: Weights,
            options: GroupOptions,
            group: OnceCell<Arc<ProcessGroup>>,
        }

        impl $name {
            /// Uses this many towers in every process, each on a thread team. The teams share its cores.
            pub fn new(towers: usize) -> $name {
                $name::with(Devices::teams(towers))
            }

            /// Uses one tower on each of these devices, in every process. On GPUs (`xla:cuda`) NCCL sums up
            /// the gradients, and MPI is not needed if the launcher names the coordinator, as torchrun, Slurm
            /// and `TENSORPACK_COORDINATOR` do. Other XLA devices have no sums between processes.
            pub fn on(devices: impl IntoIterator<Item = Device>) -> $name {
                $name::with(Devices::new(devices))
            }

            fn with(devices: Devices) -> $name {
                let (options, group) = Default::default();
                $name { devices, weights: Weights::Equal, options, group }
            }

            /// Weights towers by the number of examples in their batches: see
            /// [`SyncMultiGpuTrainerReplicated::weighted_by_batch`](super::SyncMultiGpuTrainerReplicated::weighted_by_batch).
            #[must_use]
            pub fn weighted_by_batch(self) -> $name {
                $name { weights: Weights::Examples, ..self }
            }

            /// Sets the time after which a process that is silent has failed. Defaults to 10 s. A process
            /// that dies is noticed at once; this is for one that hangs, or whose machine is gone.
            #[must_use]
            pub fn peer_timeout(self, timeout: Duration) -> $name {
                let options = GroupOptions { peer_timeout: timeout, ..self.options };
                $name { options, ..self }
            }

            /// Sends gradients in this dtype, bf16, which halves the traffic of f32. Each process rounds
            /// the sum over its towers once before it sends it; the processes add up in f32, in the same
            /// order, and share the sums rounded to `dtype`, unless each needs its shard alone. All have
            /// the same bits, but results depend on how the towers are divided over processes. Only for
            /// thread teams (`cpu:N`). By default gradients are sent as they are.
            #[doc(alias = "Compression")]
            #[must_use]
            pub fn wire_dtype(self, dtype: DType) -> $name {
                let options = GroupOptions { wire_dtype: Some(dtype), ..self.options };
                $name { options, ..self }
            }

            /// Combines a trainer of this many towers in every process with a configuration.
            pub fn from_config(config: TrainConfig, towers: usize) -> Configured {
                Configured { config, trainer: $name::new(towers).into() }
            }

            /// Joins the other processes, once. Building the graph does so, too; call it before to know the
            /// rank.
            pub fn join(&self) -> Result<&Arc<ProcessGroup>> {
                if let Some(group) = self.group.get() {
                    return Ok(group);
                }
                let mpi = self.devices.need_mpi();
                let group = ProcessGroup::join(&GroupOptions { mpi, ..self.options.clone() })?;
                logger::set_rank(group.rank());
                log::info!("{group}");
                Ok(self.group.get_or_init(|| group))
            }
        }

        impl Strategy for $name {
            fn build(&self, setup: &mut Setup<'_>) -> Result<Op> {
                let group = self.join()?;
                averaged_step(setup, &self.devices, self.weights, $updates, Some(group))
                    .inspect_err(|e| group.fail(e))
            }

            fn towers(&self) -> usize {
                self.devices.count()
            }

            fn process_group(&self) -> Option<Arc<ProcessGroup>> {
                self.group.get().cloned()
            }

            fn device(&self) -> Option<Device> {
                self.devices.of_session()
            }

            fn check_input(&self, input: &dyn InputSource) -> Result<()> {
                match input.in_graph() {
                    true => {
                        Err(Error::argument("several processes cannot share an input that is computed in the graph")
                            .note("train on a dataflow"))
                    }
                    false => Ok(()),
                }
            }
        }
    };
}

distributed_trainer! {
    /// Synchronous training on several processes, each with the same number of towers and with a copy
    /// of all variables. Gradients are averaged over all towers of all processes.
    ///
    /// A launcher starts the processes: `tensorpack launch -n 4 -- PROGRAM`, `mpirun`, `srun`. The total
    /// batch size is the input's batch size times the number of all towers. Results depend on the number
    /// of towers, not on the number of processes they are divided over: four processes with one tower
    /// are bit-identical to one with four, and a run can be resumed with another number of processes
    /// that divides the towers.
    ///
    /// Rank 0 writes checkpoints and statistics; the others read nothing but the data.
    /// Callbacks run on all ranks, except those that print or write files
    /// ([`Callback::chief_only`](crate::callback::Callback::chief_only)).
    #[doc(alias = "HorovodTrainer")]
    DistributedTrainerReplicated, Updates::Replicated
}

distributed_trainer! {
    /// Like [`DistributedTrainerReplicated`], but each process updates its shard of the variables and
    /// keeps only its shard of the optimizer's state: with Adam in four processes, a quarter of both
    /// moments. Gradients are summed where they are needed, and the updated shards are gathered, which
    /// is as much traffic as summing up all gradients everywhere. Results are bit-identical.
    ///
    /// Checkpoints contain everything, and are those of [`DistributedTrainerReplicated`]: a run can
    /// be resumed with either, and with another number of processes. Optimizer state cannot be read
    /// with [`Session::read`](crate::runtime::Session::read) while several processes train.
    /// Variables of fewer than 256 elements are not divided.
    #[doc(alias = "ZeRO")]
    #[doc(alias = "ZeroRedundancyOptimizer")]
    DistributedTrainerParameterServer, Updates::Sharded
}
