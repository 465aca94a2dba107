//! The training program of a rank.

use crate::fault::{self, FaultyDisk};
use crate::models::{Classifier, training_data, validation_data};
use crate::one_sided;
use crate::task::{Difference, Kind, Place, Task};
use serde::{Deserialize, Serialize};
use std::env;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;
use tensorpack::callback::{RunCx, TrainCx};
use tensorpack::input::QueueInput;
use tensorpack::io::SessionInit;
use tensorpack::prelude::*;
use tensorpack::train::{
    DistributedTrainerParameterServer, DistributedTrainerReplicated, Ended, NanPolicy, Trained,
};

/// Saves when the number of steps is a multiple of this, and at the end of every epoch.
const SAVE_EVERY: u64 = 4;

/// What a rank says at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The kind of the error; `Ok` if there was none.
    pub(crate) kind: String,
    /// The error, or how training ended.
    pub(crate) text: String,
    /// The nanoseconds since 1970.
    pub(crate) time: u128,
}

/// Returns the rank of this process, from its launcher.
pub(crate) fn rank() -> usize {
    let of = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    of("OMPI_COMM_WORLD_RANK").or_else(|| of("PMI_RANK")).unwrap_or(0)
}

/// Writes a file in one step.
fn write_whole(folder: &Path, name: &str, contents: &[u8]) {
    let partial = folder.join(format!(".{name}"));
    fs::write(&partial, contents).unwrap();
    fs::rename(partial, folder.join(name)).unwrap();
}

/// Trains, reports, and ends the process, if it is a rank.
pub(crate) fn run() {
    let Some((folder, task)) = Task::of_this_process() else { return };
    let rank = rank();
    write_whole(&folder, &format!("pid-{rank}"), std::process::id().to_string().as_bytes());
    if let Some(fault) = task.fault.filter(|fault| fault.rank == rank) {
        // Somewhat more than two heartbeats, which come four times in a peer timeout: what rank 0
        // does goes to the coordinator with its own heartbeat and to the others with the answer to
        // theirs. A rank that hangs goes on sending them.
        let delay = if fault.kind == Kind::Hang { Duration::ZERO } else { task.peer_timeout.mul_f64(0.6) };
        fault::set(fault, &folder, delay.min(Duration::from_millis(1500)));
    }
    let difference = task.difference.filter(|(other, _)| *other == rank).map(|(_, difference)| difference);
    let ended = fault::inject(Place::Start).and_then(|()| train(&task, rank, difference));
    let ended = ended.and_then(|trained| fault::inject(Place::AfterRun).map(|()| trained));
    let (kind, text) = match &ended {
        Ok(trained) => ("Ok".to_owned(), format!("{:?}", trained.ended)),
        Err(e) => (format!("{:?}", e.kind()), e.to_string()),
    };
    let is_finished = matches!(&ended, Ok(trained) if trained.ended == Ended::Finished);
    let report = Report { kind, text, time: fault::now() };
    write_whole(&folder, &format!("end-{rank}"), &serde_json::to_vec(&report).unwrap());
    drop(ended);
    std::process::exit(if is_finished { 0 } else { 1 });
}

/// Other initial values than those of the other ranks.
struct OtherValues;

impl SessionInit for OtherValues {
    fn init(&self, session: &Session) -> Result<()> {
        let mut value = session.read("logits/b")?;
        value.as_mut_slice::<f32>()?[0] = 0.5;
        session.write("logits/b", &value)
    }
}

fn train(task: &Task, rank: usize, difference: Option<Difference>) -> Result<Trained> {
    let other = |what: Difference| u64::from(difference == Some(what));
    // Prefetching more would let a rank whose dataflow hangs go on for long.
    let input = QueueInput::new(training_data(difference, task.bad_example)).capacity(2);
    let validation = InferenceRunner::new(validation_data(task), [ScalarStats::new("cost")]);
    let mut config =
        TrainConfig::with_input(Classifier { net: task.net, plain: task.plain, difference }, input)
            .callback(Faults { slower: task.slower })
            .callback(ModelSaver::new())
            .callback(validation)
            .session(SessionOptions { threads: Some(1), ..SessionOptions::default() })
            .deadline(task.deadline)
            .steps_per_epoch(task.steps_per_epoch + other(Difference::StepsPerEpoch))
            .max_epoch(task.epochs + other(Difference::MaxEpoch))
            .seed(3 + other(Difference::Seed))
            .nan_policy(if task.skip { NanPolicy::Skip(3) } else { NanPolicy::Stop })
            .logdir(task.other_logdir.as_ref().filter(|_| rank > 0).unwrap_or(&task.logdir));
    if let Some(what) = task.one_sided {
        config = one_sided::add_callback(config, task, what);
    }
    if difference == Some(Difference::InitialValues) {
        config = config.session_init(OtherValues);
    }
    if task.f16 {
        config = config.precision(Precision::F16).loss_scale(LossScale::new().initial(16_777_216.0));
    }
    if rank == 0 {
        config = config.disk(Box::new(FaultyDisk::default()));
    }
    let towers = task.towers + other(Difference::Towers) as usize;
    match (task.alone, task.sharded) {
        (true, false) => launch_train_with_config(config, SyncMultiGpuTrainerReplicated::new(towers)),
        (true, true) => launch_train_with_config(config, SyncMultiGpuTrainerParameterServer::new(towers)),
        (false, false) => {
            let trainer = DistributedTrainerReplicated::new(towers).peer_timeout(task.peer_timeout);
            let trainer = match task.bf16 || difference == Some(Difference::WireDtype) {
                true => trainer.wire_dtype(DType::Bf16),
                false => trainer,
            };
            launch_train_with_config(config, trainer)
        }
        (false, true) => {
            let trainer = DistributedTrainerParameterServer::new(towers).peer_timeout(task.peer_timeout);
            launch_train_with_config(config, trainer)
        }
    }
}

/// The places of faults in callbacks; saves often.
struct Faults {
    slower: Duration,
}

impl Callback for Faults {
    fn setup_graph(&mut self, _: &mut tensorpack::callback::GraphCx<'_>) -> Result<()> {
        fault::inject(Place::Build)
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        fault::begin_step(cx.global_step);
        fault::inject(Place::BeforeTrain)
    }

    fn before_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        fault::inject(Place::BeforeEpoch)
    }

    fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        fault::begin_step(cx.global_step + 1);
        report_step(cx.global_step + 1);
        thread::sleep(self.slower);
        fault::inject(Place::BeforeStep)
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step.is_multiple_of(SAVE_EVERY) {
            cx.request_save();
        }
        fault::inject(Place::AfterStep)
    }

    fn trigger_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        fault::inject(Place::EpochEnd)
    }

    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let divided = cx.session().read("fc0/W/adam_m").err().map(|e| format!("{:?}", e.kind()));
        report_memory(divided)?;
        fault::inject(Place::AfterTrain)
    }

    fn state(&self) -> serde_json::Value {
        // Rank 0 has its fault on its disk.
        if rank() > 0 {
            let _ = fault::inject(Place::Save);
        }
        serde_json::Value::Null
    }
}

/// Writes the step that begins, for [`Run::last_step`](crate::launch::Run::last_step).
fn report_step(step: u64) {
    if let Some((folder, _)) = Task::of_this_process() {
        write_whole(&folder, &format!("step-{}", rank()), step.to_string().as_bytes());
    }
}

/// Writes the memory of this process, and the kind of the error with which the state of the optimizer
/// is read, for [`Run::memory`](crate::launch::Run::memory).
fn report_memory(divided: Option<String>) -> Result<()> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|e| Error::new(tensorpack::ErrorKind::Io, e.to_string()))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    let report: (Option<u64>, Option<String>) = (resident.and_then(|kb| kb.trim().parse().ok()), divided);
    if let Some((folder, _)) = Task::of_this_process() {
        write_whole(&folder, &format!("memory-{}", rank()), &serde_json::to_vec(&report).unwrap());
    }
    Ok(())
}
