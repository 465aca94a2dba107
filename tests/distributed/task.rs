//! What the processes of a run are told to do, handed to them in a file.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The environment variable with the folder of a run: its task, and what its ranks report.
pub(crate) const FOLDER: &str = "TENSORPACK_TEST_RANKS";

/// A model to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Net {
    /// Two dense layers with dropout and batch norm.
    Dense,
    /// Convolutions, max pooling and dropout.
    Convnet,
    /// Residual blocks with batch norm.
    Resnet,
    /// Two dense layers with many weights, whose gradients are accumulated.
    Wide,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// The process kills itself: SIGKILL.
    Kill,
    /// The process stops itself: SIGSTOP.
    Stop,
    Panic,
    Error,
    /// The thread never returns, while the rest of the process lives.
    Hang,
    /// The thread waits for a second. No fault: a moment in which a test can act.
    Pause,
    /// The values are not finite. Only in the forward pass.
    NotFinite,
}

/// Where it goes wrong, in the order of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Place {
    /// Before the ranks have met.
    Start,
    /// While the graph is built, after the ranks have met.
    Build,
    BeforeTrain,
    BeforeEpoch,
    /// In the dataflow.
    Data,
    BeforeStep,
    Forward,
    /// In the backward pass: some gradients are on their way to the other ranks.
    Backward,
    /// After the exchange of the gradients, before the variables change.
    Update,
    AfterStep,
    /// In the dataflow of the validation.
    Validation,
    EpochEnd,
    /// While a checkpoint is written: on the disk of rank 0, in the callbacks' states elsewhere.
    Save,
    AfterTrain,
    /// After training has returned, while the program goes on.
    AfterRun,
}

/// A fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) place: Place,
    pub(crate) rank: usize,
    /// The first step at which it happens; it happens once.
    pub(crate) step: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}/{}", self.kind, self.place, self.rank)
    }
}

/// What one rank does in another way than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Difference {
    Data,
    BatchSize,
    Seed,
    StepsPerEpoch,
    MaxEpoch,
    Towers,
    Model,
    InitialValues,
    LearningRate,
    WireDtype,
}

/// What a callback does on a single rank. In the middle of an epoch, unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OneSided {
    /// A callback that only rank 0 runs stops training.
    ChiefStops,
    /// A callback that only rank 0 runs saves.
    ChiefSaves,
    /// A callback that only rank 0 runs saves after training.
    ChiefSavesAtTheEnd,
    /// A callback that all ranks run saves in the last one.
    LastSaves,
    /// A callback that all ranks run fetches divided optimizer state in rank 0.
    FirstFetches,
    /// A callback that all ranks run validates in rank 0.
    FirstValidates,
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) net: Net,
    /// The number of towers in each process.
    pub(crate) towers: usize,
    /// Trains with a `SyncMultiGpuTrainer`, in one process.
    pub(crate) alone: bool,
    /// Divides the updates, as the parameter-server trainers do.
    pub(crate) sharded: bool,
    pub(crate) logdir: PathBuf,
    pub(crate) epochs: u64,
    pub(crate) steps_per_epoch: u64,
    /// The longest wait for another rank, and the time after which a silent rank has failed.
    pub(crate) deadline: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) fault: Option<Fault>,
    /// The rank that differs from the others.
    pub(crate) difference: Option<(usize, Difference)>,
    /// Leaves out the operations in which faults happen: custom kernels change how a step runs.
    pub(crate) plain: bool,
    /// Skips steps that are not finite.
    pub(crate) skip: bool,
    /// Trains on data in which one example is not finite. One rank gets it.
    pub(crate) bad_example: bool,
    /// How much longer every step takes.
    pub(crate) slower: Duration,
    /// The batch size of the validation.
    pub(crate) validation_batch: usize,
    /// How long it takes to read an example of the validation.
    pub(crate) slow_validation: Duration,
    /// Sends gradients as bf16.
    pub(crate) bf16: bool,
    pub(crate) one_sided: Option<OneSided>,
    /// The log directory of all ranks but the first, if it is another one.
    pub(crate) other_logdir: Option<PathBuf>,
    /// Computes in f16, with a loss scale that is too large at first.
    pub(crate) f16: bool,
}

impl Task {
    pub(crate) fn new(net: Net, towers: usize, logdir: impl Into<PathBuf>) -> Task {
        Task {
            net,
            towers,
            alone: false,
            sharded: false,
            logdir: logdir.into(),
            epochs: 3,
            steps_per_epoch: 5,
            deadline: Duration::from_secs(60),
            peer_timeout: Duration::from_secs(30),
            fault: None,
            difference: None,
            plain: false,
            skip: false,
            bad_example: false,
            slower: Duration::ZERO,
            validation_batch: 32,
            slow_validation: Duration::ZERO,
            bf16: false,
            one_sided: None,
            other_logdir: None,
            f16: false,
        }
    }

    /// Returns the number of steps of the run.
    pub(crate) fn steps(&self) -> u64 {
        self.epochs * self.steps_per_epoch
    }

    pub(crate) fn write(&self, folder: &Path) {
        fs::write(folder.join("task"), serde_json::to_vec(self).unwrap()).unwrap();
    }

    /// Returns the task of this process, if it is one of a run.
    pub(crate) fn of_this_process() -> Option<(PathBuf, Task)> {
        let folder = PathBuf::from(std::env::var_os(FOLDER)?);
        let task = serde_json::from_slice(&fs::read(folder.join("task")).unwrap()).unwrap();
        Some((folder, task))
    }
}
