//! Merges towers that run the same program on different inputs into one SPMD program.

use super::collectives;
use super::replicas::Replicas;
use crate::graph::VariableInfo;
use crate::kir::{BufferId, BufferKind, Kernel, KernelNode, Origin, Program, Shards, View};
use crate::runtime::Lowered;
use crate::runtime::shard_updates::{shard_updates, uses_shards};
use std::collections::HashMap;
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// One program for several towers, with the inputs that differ between them.
#[derive(Clone, Debug)]
pub(super) struct SpmdProgram {
    /// The program of the first tower. What only the first tower does (updates, summaries) is done
    /// by all, with equal results.
    pub(super) program: Program,
    /// For each fetched value, its tower and its index among the fetches of the program.
    pub(super) fetches: Vec<(usize, usize)>,
    /// The towers of this process.
    pub(super) towers: Vec<PerTower>,
    /// The replicas of all processes; `None` if all are towers of this one, in their order.
    pub(super) replicas: Option<Replicas>,
    /// Which part of a run it is.
    pub(super) part: Part,
}

/// The part of a run that a program computes.
#[derive(Clone, Debug, Default)]
pub(super) enum Part {
    /// All of it.
    #[default]
    Whole,
    /// What a tower of a run that is split computes by itself. It passes these values on to the joint
    /// program, and whether it succeeded.
    Tower { passes: Vec<View> },
    /// What follows from the values that the towers pass on: the feeds from `first_passed` on.
    Joint { towers: usize, first_passed: usize },
}

/// The inputs of a tower that differ from those of the first.
#[derive(Clone, Debug, Default)]
pub(super) struct PerTower {
    /// Maps each feed of the first tower to the feed of this one.
    pub(super) feeds: HashMap<usize, usize>,
    /// The offset of this tower's elements in each random stream.
    pub(super) random_offsets: HashMap<String, usize>,
    /// Maps each result of the first tower to the operation of this one that computes it.
    pub(super) origins: HashMap<BufferId, Origin>,
}

impl PerTower {
    /// Returns the feed of this tower for a feed of the first.
    pub(super) fn feed(&self, first: usize) -> usize {
        self.feeds.get(&first).copied().unwrap_or(first)
    }
}

impl SpmdProgram {
    /// Returns the program of one tower.
    pub(super) fn single(program: &Program, fetches: Vec<(usize, usize)>) -> SpmdProgram {
        let own = PerTower { random_offsets: random_offsets(program), ..PerTower::default() };
        let (towers, replicas, part) = (vec![own], None, Part::Whole);
        SpmdProgram { program: program.clone(), fetches, towers, replicas, part }
    }

    /// Returns the program with towers on all processes of `replicas`.
    pub(super) fn on_all_processes(self, replicas: Replicas) -> SpmdProgram {
        SpmdProgram { replicas: Some(replicas), ..self }
    }

    /// Divides the updates over the towers. A program that uses variables that are divided runs on the
    /// devices of all of them.
    pub(super) fn shard_updates(mut self, variables: &[VariableInfo], shards: Shards) -> SpmdProgram {
        if self.towers.len() < shards.count {
            if !uses_shards(&self.program, variables, shards) {
                return self;
            }
            let first = self.towers[0].clone();
            self.towers.resize(shards.count, first);
        }
        let varying = collectives::varying(&self);
        shard_updates(std::slice::from_mut(&mut self.program), variables, shards, &varying);
        self
    }

    /// Returns the number of replicas: the towers of all processes.
    pub(super) fn replica_count(&self) -> usize {
        self.replicas.as_ref().map_or(self.towers.len(), |replicas| replicas.devices.len())
    }

    /// Returns the replica of the run's first tower.
    pub(super) fn first_replica(&self) -> usize {
        self.replicas.as_ref().map_or(0, |replicas| replicas.first)
    }

    /// Returns whether a feed may differ between towers. If each process has one tower, every feed
    /// may.
    pub(super) fn differs(&self, feed: usize) -> bool {
        self.towers.iter().any(|own| own.feed(feed) != feed)
            || self.towers.len() == 1 && self.replica_count() > 1
    }
}

/// Merges all towers of a run into one program. Returns an error that names the first difference
/// if their programs are not the same.
pub(super) fn merge_towers(lowered: &Lowered) -> Result<SpmdProgram> {
    let first = &lowered.programs()[0];
    let mut spmd = SpmdProgram::single(first, Vec::new());
    if first.kernels.iter().any(|n| matches!(n.kernel, Kernel::Custom { .. })) {
        // Custom kernels are compared by identity, so towers that have them differ. The module
        // writer rejects them with an error of its own.
        return Ok(spmd);
    }
    let results = results(first);
    let mut maps = vec![None];
    for (tower, program) in lowered.programs().iter().enumerate().skip(1) {
        let (own, buffers) = same_program(first, &results, program, tower)?;
        spmd.towers.push(own);
        maps.push(Some(buffers));
    }
    for &(tower, at) in lowered.fetches() {
        let view = &lowered.programs()[tower].fetches[at];
        let view = match &maps[tower] {
            None => view.clone(),
            Some(buffers) => View { buffer: buffers[&view.buffer], ..view.clone() },
        };
        let index = spmd.program.fetches.iter().position(|v| *v == view).unwrap_or_else(|| {
            spmd.program.fetches.push(view);
            spmd.program.fetches.len() - 1
        });
        spmd.fetches.push((tower, index));
    }
    Ok(spmd)
}

/// Returns the offset of the first element in each random stream.
fn random_offsets(program: &Program) -> HashMap<String, usize> {
    let random = program.kernels.iter().filter_map(|n| match &n.kernel {
        Kernel::Random { stream, first, .. } => Some((stream.clone(), *first)),
        _ => None,
    });
    random.collect()
}

/// Returns the kernel without its random offset, which differs between towers.
fn without_offset(kernel: &Kernel) -> Kernel {
    match kernel {
        Kernel::Random { stream, continued, .. } => {
            Kernel::Random { stream: stream.clone(), first: 0, continued: *continued }
        }
        other => other.clone(),
    }
}

/// What determines the results of a kernel: the kernel, with the buffers of the first tower that it
/// reads, and the dtypes and sizes of its outputs.
type Key = (Kernel, Vec<(DType, Vec<usize>)>);

/// Returns the key of a kernel of `program`, whose buffers are mapped to those of the first tower.
fn key(program: &Program, node: &KernelNode, buffers: &HashMap<BufferId, BufferId>) -> Key {
    let mut kernel = without_offset(&node.kernel);
    for view in kernel.reads_mut() {
        // A buffer that the first tower lacks matches nothing.
        view.buffer = buffers.get(&view.buffer).copied().unwrap_or(BufferId(u32::MAX));
    }
    let outputs = node.outputs.iter().map(|&id| program.buffer(id));
    (kernel, outputs.map(|b| (b.dtype, b.sizes.clone())).collect())
}

/// Returns the outputs of the first tower's kernels. Of several kernels with one key, whose results
/// are equal, the first stands for all: towers may compute them in different orders.
fn results(first: &Program) -> HashMap<Key, Vec<BufferId>> {
    let mut buffers = leaves(first, first, &mut PerTower::default()).unwrap_or_default();
    let mut results: HashMap<Key, Vec<BufferId>> = HashMap::new();
    for node in &first.kernels {
        let of = results.entry(key(first, node, &buffers)).or_insert_with(|| node.outputs.clone());
        buffers.extend(node.outputs.iter().copied().zip(of.iter().copied()));
    }
    results
}

/// Returns the inputs of a tower, and a map from its buffers to those of the first tower.
fn same_program(
    first: &Program,
    results: &HashMap<Key, Vec<BufferId>>,
    other: &Program,
    tower: usize,
) -> Result<(PerTower, HashMap<BufferId, BufferId>)> {
    let mismatch = |what: String| {
        Error::new(ErrorKind::Unsupported, format!("tower {tower} differs from the first: {what}"))
            .note("XLA runs towers together only if they compute the same on batches of equal sizes")
    };
    if !other.updates.is_empty() {
        return Err(mismatch("it updates variables of its own".into()));
    }
    let mut own = PerTower { random_offsets: random_offsets(other), ..PerTower::default() };
    let mut buffers = leaves(first, other, &mut own)
        .ok_or_else(|| mismatch("its feeds have other dtypes or sizes".into()))?;
    for node in &other.kernels {
        let counterpart = results.get(&key(other, node, &buffers)).ok_or_else(|| {
            mismatch(format!("{} has no counterpart there", node.origin.name)).at(node.origin.site)
        })?;
        buffers.extend(node.outputs.iter().copied().zip(counterpart.iter().copied()));
        own.origins.extend(counterpart.iter().map(|&buffer| (buffer, node.origin.clone())));
    }
    let wanted = other.fetches.iter().chain(&other.costs);
    match wanted.into_iter().find(|v| !buffers.contains_key(&v.buffer)) {
        None => Ok((own, buffers)),
        Some(_) => Err(mismatch("it fetches a value that the first does not compute".into())),
    }
}

/// Maps the variables, constants and feeds of a program to those of the first. The n-th feed
/// corresponds to the n-th feed of the first.
fn leaves(first: &Program, other: &Program, own: &mut PerTower) -> Option<HashMap<BufferId, BufferId>> {
    let mut feeds = ids(first).filter(|&b| matches!(first.buffer(b).kind, BufferKind::Feed(_)));
    let mut buffers = HashMap::new();
    for id in ids(other) {
        let buffer = other.buffer(id);
        let found = match &buffer.kind {
            BufferKind::Temp => continue,
            BufferKind::Feed(mine) => {
                let found = feeds.next()?;
                let theirs = first.buffer(found);
                if (theirs.dtype, &theirs.sizes) != (buffer.dtype, &buffer.sizes) {
                    return None;
                }
                if let BufferKind::Feed(theirs) = theirs.kind {
                    if first.infinite.contains(&theirs) != other.infinite.contains(mine) {
                        return None;
                    }
                    own.feeds.insert(theirs, *mine);
                }
                Some(found)
            }
            BufferKind::Snapshot(_) => return None,
            BufferKind::Variable(v) => {
                ids(first).find(|&b| matches!(first.buffer(b).kind, BufferKind::Variable(w) if w == *v))
            }
            BufferKind::Constant(value) => ids(first)
                .find(|&b| matches!(&first.buffer(b).kind, BufferKind::Constant(t) if same(t, value))),
        };
        buffers.extend(found.map(|found| (id, found)));
    }
    Some(buffers)
}

fn ids(program: &Program) -> impl Iterator<Item = BufferId> {
    (0..program.buffers.len() as u32).map(BufferId)
}

/// Whether two constants have the same bits.
fn same(a: &tensorpack_tensor::HostTensor, b: &tensorpack_tensor::HostTensor) -> bool {
    (a.dtype(), a.sizes(), a.as_bytes()) == (b.dtype(), b.sizes(), b.as_bytes())
}
