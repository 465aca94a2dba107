//! What the processes of a distributed run do together outside of their steps: they check that they
//! run the same program, agree when to stop, follow the decisions of rank 0, and save one checkpoint.

use super::Trained;
use crate::callback::TrainState;
use crate::distributed::{COMPUTING, ProcessGroup};
use crate::graph::{Frozen, NodeKind, Sharding, VariableInfo, split_tower};
use crate::input::{InputSource, OtherTowers};
use crate::io::Checkpoint;
use crate::runtime::Interrupt;
use serde_json::{Map, Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_rendezvous::{Launch, LaunchOptions, NextStep};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result, Site};

/// The signal with which processes end that did not get one themselves: SIGTERM.
const TERMINATE: i32 = 15;

/// The processes that train together.
pub(super) struct Ranks {
    group: Arc<ProcessGroup>,
    /// Set by the signals of this process.
    signals: Interrupt,
    /// The longest wait for another process.
    deadline: Duration,
    asked_to_stop: bool,
}

impl Ranks {
    pub(super) fn new(group: Arc<ProcessGroup>, signals: &Interrupt, deadline: Duration) -> Ranks {
        Ranks { group, signals: signals.clone(), deadline, asked_to_stop: false }
    }

    fn is_chief(&self) -> bool {
        self.group.rank() == 0
    }

    /// Returns the towers of the other processes, if each has `towers`.
    pub(super) fn other_towers(&self, towers: usize) -> OtherTowers {
        let (rank, size) = (self.group.rank(), self.group.size());
        OtherTowers { before: rank * towers, after: (size - 1 - rank) * towers }
    }

    /// Says what this process does, for the errors of others that wait for it.
    pub(super) fn set_activity(&self, activity: &str) {
        self.group.rendezvous().set_activity(activity);
    }

    /// Notes that a step begins. Returns the signal by which all processes end before it, if they
    /// do: a signal to one of them ends all at the same step.
    pub(super) fn begin_step(&mut self, step: u64) -> Result<Option<i32>> {
        let signal = self.signals.signal();
        if signal.is_some() && !self.asked_to_stop {
            self.asked_to_stop = true;
            self.group.rendezvous().request_stop()?;
        }
        let next = self.group.rendezvous().begin_step(step)?;
        self.set_activity(COMPUTING);
        Ok((next == NextStep::Stop).then(|| signal.unwrap_or(TERMINATE)))
    }

    /// Returns rank 0's last checkpoint, on all ranks, with its folder on rank 0.
    pub(super) fn share_checkpoint(
        &self,
        saved: Option<(PathBuf, Checkpoint)>,
    ) -> Result<Option<(PathBuf, Checkpoint)>> {
        self.group.rendezvous().set_activity("reading the last checkpoint");
        let bytes = match &saved {
            Some((folder, checkpoint)) if self.is_chief() => {
                let name = folder.to_string_lossy().into_owned();
                let name = [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat();
                [name, checkpoint.to_bytes()?].concat()
            }
            _ => Vec::new(),
        };
        let bytes = self.group.broadcast(bytes, self.deadline)?;
        if self.is_chief() || bytes.is_empty() {
            return Ok(saved);
        }
        let malformed = || Error::new(ErrorKind::Io, "rank 0 sent a malformed checkpoint");
        let (len, rest) = bytes.split_at_checked(8).ok_or_else(malformed)?;
        let len = len.try_into().map_or(0, u64::from_le_bytes) as usize;
        let (name, rest) = rest.split_at_checked(len).ok_or_else(malformed)?;
        let folder = PathBuf::from(String::from_utf8_lossy(name).into_owned());
        Ok(Some((folder, Checkpoint::from_bytes(rest)?)))
    }

    /// Checks that all processes run the same program on the same data, with the same settings and
    /// variables. The error names the first difference.
    pub(super) fn check_same(&self, state: &TrainState, input: Option<&dyn InputSource>) -> Result<()> {
        self.group.rendezvous().set_activity("comparing the ranks");
        let own = about(state, input)?;
        let all = self.group.gather_all(own.to_string().as_bytes(), self.deadline)?;
        let parsed =
            |bytes: &Vec<u8>| serde_json::from_slice::<Vec<(String, String)>>(bytes).unwrap_or_default();
        let first = parsed(&all[0]);
        for (rank, other) in all.iter().enumerate().skip(1) {
            let other = parsed(other);
            let different = (0..first.len().max(other.len())).find(|&i| first.get(i) != other.get(i));
            let Some(i) = different else { continue };
            let (what, here) = first.get(i).cloned().unwrap_or_default();
            let there = other.get(i).map_or("nothing", |(_, there)| there);
            let (host, chief) = (&self.group.rendezvous().hosts()[rank], &self.group.rendezvous().hosts()[0]);
            let why = format!(
                "rank {rank} on {host} has another {what} than rank 0 on {chief}: {there} instead of {here}"
            );
            return Err(
                Error::argument(why).note("all ranks must run the same program with the same options")
            );
        }
        Ok(())
    }

    /// Makes all processes do what rank 0 decided in its callbacks, and compares their variables: they
    /// must be equal, and those that are not trained follow rank 0.
    pub(super) fn synchronize(&self, state: &mut TrainState) -> Result<()> {
        self.group.rendezvous().set_activity("comparing the variables");
        self.share_decisions(state)?;
        self.synchronize_variables(state)
    }

    /// Makes all processes save and stop if rank 0 does.
    pub(super) fn share_decisions(&self, state: &mut TrainState) -> Result<()> {
        let tags = state.save_request.as_ref().map(|r| r.tags.iter().map(|(tag, _)| tag.clone()).collect());
        let decided: (Option<Vec<String>>, Option<String>) = (tags, state.stop_reason.clone());
        let decided = self.group.broadcast(json!(decided).to_string().into_bytes(), self.deadline)?;
        if !self.is_chief() {
            let malformed = |_| Error::new(ErrorKind::Io, "rank 0 sent malformed decisions");
            let (tags, stop): (Option<Vec<String>>, Option<String>) =
                serde_json::from_slice(&decided).map_err(malformed)?;
            state.stop_reason = stop;
            let tagged = |tag: String| (tag, Site::caller());
            state.save_request = tags
                .map(|tags| crate::callback::SaveRequest { tags: tags.into_iter().map(tagged).collect() });
        }
        Ok(())
    }

    fn synchronize_variables(&self, state: &TrainState) -> Result<()> {
        let shared: Vec<&VariableInfo> = shared_variables(state.session.graph()).collect();
        let sums = checksums(state, &shared)?;
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let all = self.group.all_gather(&bytes, self.deadline)?;
        for (i, v) in shared.iter().enumerate() {
            let of = |rank: usize| &all[rank][4 * i..4 * i + 4];
            let Some(rank) = (1..all.len()).find(|&rank| of(rank) != of(0)) else { continue };
            if v.trainable {
                let why = format!("the variable {} differs between rank 0 and rank {rank}", v.name);
                return Err(Error::new(ErrorKind::Peer, why).at(v.site).note(
                    "a callback must change variables in the same way on all ranks; see Callback::chief_only",
                ));
            }
            let value = state.session.read(&v.name)?;
            let bytes = self.group.broadcast(value.as_bytes().to_vec(), self.deadline)?;
            if !self.is_chief() {
                let mut value = value;
                value.copy_from_bytes(&bytes)?;
                state.session.write(&v.name, &value)?;
            }
        }
        Ok(())
    }
}

/// The variables that all processes have: all but those that belong to a single tower, or that are
/// divided over processes.
fn shared_variables(graph: &Frozen) -> impl Iterator<Item = &VariableInfo> {
    let in_all =
        |v: &&VariableInfo| v.tower.is_none_or(|tower| tower == 0) && split_tower(&v.name).0.is_empty();
    graph.variables().iter().filter(in_all).filter(|v| v.sharding != Sharding::State)
}

fn checksums(state: &TrainState, variables: &[&VariableInfo]) -> Result<Vec<u32>> {
    let sum = |v: &&VariableInfo| Ok(crc32c::crc32c(state.session.read(&v.name)?.as_bytes()));
    variables.iter().map(sum).collect()
}

/// What must be the same in all processes: names, and values or their checksums.
fn about(state: &TrainState, input: Option<&dyn InputSource>) -> Result<Value> {
    let graph = state.session.graph();
    let shared: Vec<&VariableInfo> = shared_variables(graph).collect();
    let variables = shared.iter().map(|v| format!("{} {}{:?}", v.name, v.dtype, v.sizes));
    let nodes = graph.nodes().iter().map(|n| {
        let outputs: Vec<String> = n.outputs.iter().map(|o| format!("{}{}", o.dtype, o.shape)).collect();
        let attributes = match &n.kind {
            NodeKind::Op(op) => op.identity_hash(),
            _ => 0,
        };
        format!("{} {} {attributes:x} {:?} {outputs:?}", split_tower(&n.name).1, n.kind.name(), n.inputs)
    });
    let checksum = |lines: &mut dyn Iterator<Item = String>| {
        format!("{:08x}", lines.fold(0, |crc, line| crc32c::crc32c_append(crc, line.as_bytes())))
    };
    let mut about = vec![("version".to_string(), env!("CARGO_PKG_VERSION").to_string())];
    for (name, value) in &state.settings {
        about.push((format!("setting {name}"), value.to_string()));
    }
    about.push(("set of variables".into(), checksum(&mut variables.into_iter())));
    about.push(("graph".into(), checksum(&mut nodes.into_iter())));
    let data = match input {
        Some(input) => input.checksum(state.seed)?,
        None => None,
    };
    about.push(("data (first batch)".into(), data.map_or_else(|| "none".into(), |sum| format!("{sum:08x}"))));
    let values = checksums(state, &shared)?;
    for (v, sum) in shared.iter().zip(values) {
        about.push((format!("value of the variable {}", v.name), format!("{sum:08x}")));
    }
    Ok(json!(about))
}

/// Completes a checkpoint on rank 0: adds the variables of towers in other processes, and puts
/// together those that are divided over processes.
pub(super) fn gather_variables(
    group: &Arc<ProcessGroup>,
    state: &TrainState,
    checkpoint: &mut Checkpoint,
) -> Result<()> {
    let deadline = state.session.deadline();
    group.rendezvous().set_activity("saving");
    let step = state.progress.global_step;
    group.barrier_between_steps(&format!("saves or stops after step {step}"), "", Some(step), deadline)?;
    let is_local = |name: &str| !split_tower(name).0.is_empty();
    let own: Vec<(String, HostTensor)> = match group.rank() {
        0 => Vec::new(),
        _ => checkpoint.tensors.iter().filter(|(name, _)| is_local(name)).cloned().collect(),
    };
    let own = Checkpoint {
        global_step: 0,
        tensors: own,
        input_tensors: Vec::new(),
        state: Value::Object(Map::new()),
    };
    for bytes in group.gather_all(&own.to_bytes()?, deadline)?.iter().skip(1) {
        checkpoint.tensors.extend(Checkpoint::from_bytes(bytes)?.tensors);
    }
    // All ranks have the same variables in the same order.
    for v in state.session.graph().variables() {
        let (Some((_, stored)), (_, Some(shards))) = (
            checkpoint.tensors.iter_mut().find(|(name, _)| *name == v.name),
            state.session.read_stored(&v.name)?,
        ) else {
            continue;
        };
        let gathered = group.all_gather(stored.as_bytes(), deadline)?;
        let mut whole = HostTensor::zeros(v.dtype, v.sizes.as_slice())?;
        let (elements, size) = (whole.len(), v.dtype.size());
        let parts = gathered.iter().enumerate();
        let parts = parts.map(|(rank, shard)| &shard[..shards.part(elements, rank).len() * size]);
        whole.copy_from_bytes(&parts.collect::<Vec<_>>().concat())?;
        *stored = whole;
    }
    Ok(())
}

/// Waits until rank 0 has written a checkpoint.
pub(super) fn after_save(group: &Arc<ProcessGroup>, state: &TrainState) -> Result<()> {
    group.barrier(&format!("saved/{}", state.progress.global_step), state.session.deadline())
}

/// Warns if a launcher has started several processes, for a trainer that trains by itself.
pub(super) fn warn_of_launcher() {
    if let Ok(Launch { rank, size, launcher, .. }) = Launch::detect(&LaunchOptions::default())
        && size > 1
    {
        log::warn!(
            "{launcher} started this process as rank {rank} of {size}, but this trainer ignores the other \
             ranks: each trains a model of its own; to train one model, use --trainer dist-replicated"
        );
    }
}

/// Trains, and tells the other processes why this one ends if that panics.
pub(super) fn report_panic(
    group: &Arc<ProcessGroup>,
    train: impl FnOnce() -> Result<Trained>,
) -> Result<Trained> {
    let ended = catch_unwind(AssertUnwindSafe(train));
    ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        let why = format!("panicked: {}", text.unwrap_or_else(|| "no message".into()));
        group.fail(&Error::new(ErrorKind::Engine, why));
        resume_unwind(panic)
    })
}

/// Ends the part of this process in a run: tells the others how it ended, and waits for them if all
/// is well.
pub(super) fn finish(
    group: &Arc<ProcessGroup>,
    ended: Result<Trained>,
    deadline: Duration,
) -> Result<Trained> {
    let leave = |trained| {
        group.rendezvous().set_activity("finished");
        group.leave(deadline)?;
        Ok(trained)
    };
    // Also if another rank fails at the end: this process must not wait for it in MPI.
    ended.and_then(leave).inspect_err(|e| group.fail(e))
}

/// Returns the number of threads of a tower, if this process has `towers` and shares the cores of
/// its host with others.
pub(super) fn threads(group: &ProcessGroup, towers: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // A launcher may have given each process its own cores.
    let shared = if cores < host_cores() { 1 } else { group.local_size() };
    (cores / (shared * towers).max(1)).max(1)
}

/// Returns the number of cores of this host.
fn host_cores() -> usize {
    // SAFETY: takes a constant and returns a number.
    #[cfg(unix)]
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    #[cfg(not(unix))]
    let cores = 0;
    usize::try_from(cores).unwrap_or(1)
}
