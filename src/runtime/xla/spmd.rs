//! Towers that do the same to their own inputs, as one program that all their devices run.

use crate::kir::{BufferId, BufferKind, Kernel, Program, View};
use crate::runtime::Lowered;
use std::collections::HashMap;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A program for some towers, with what each has of its own.
#[derive(Clone, Debug)]
pub(super) struct SpmdProgram {
    /// The first tower's. What it does beside the others (updates, summaries) all do, to equal ends.
    pub(super) program: Program,
    /// For each value the caller gets, which tower has it, and as which of the program's fetches.
    pub(super) fetches: Vec<(usize, usize)>,
    pub(super) towers: Vec<Own>,
}

/// What differs between towers.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    /// What is fed to it in place of what is fed to the first.
    pub(super) feeds: HashMap<usize, usize>,
    /// By stream, the number of its first random element.
    pub(super) firsts: HashMap<String, usize>,
}

impl Own {
    /// The feed that stands for the first tower's.
    pub(super) fn feed(&self, first: usize) -> usize {
        self.feeds.get(&first).copied().unwrap_or(first)
    }
}

impl SpmdProgram {
    /// One tower alone.
    pub(super) fn single(program: &Program, fetches: Vec<(usize, usize)>) -> SpmdProgram {
        let own = Own { feeds: HashMap::new(), firsts: firsts(program) };
        SpmdProgram { program: program.clone(), fetches, towers: vec![own] }
    }

    /// Feeds that towers have each their own of.
    pub(super) fn differs(&self, feed: usize) -> bool {
        self.towers.iter().any(|own| own.feed(feed) != feed)
    }
}

/// All towers of a run as one program, or an error that says where one does what the first does not.
pub(super) fn join(lowered: &Lowered) -> Result<SpmdProgram> {
    let first = &lowered.programs()[0];
    let mut spmd = SpmdProgram::single(first, Vec::new());
    if first.kernels.iter().any(|n| matches!(n.kernel, Kernel::Custom { .. })) {
        // Custom kernels are compared by identity, so towers that have them differ. The module
        // writer rejects them with an error of its own.
        return Ok(spmd);
    }
    let known = positions(first);
    let mut maps = vec![None];
    for (tower, program) in lowered.programs().iter().enumerate().skip(1) {
        let (own, buffers) = same_program(first, &known, program, tower)?;
        spmd.towers.push(own);
        maps.push(Some(buffers));
    }
    for &(tower, at) in lowered.fetches() {
        let view = &lowered.programs()[tower].fetches[at];
        let view = match &maps[tower] {
            None => view.clone(),
            Some(buffers) => View { buffer: buffers[&view.buffer], ..view.clone() },
        };
        let place = spmd.program.fetches.iter().position(|v| *v == view).unwrap_or_else(|| {
            spmd.program.fetches.push(view);
            spmd.program.fetches.len() - 1
        });
        spmd.fetches.push((tower, place));
    }
    Ok(spmd)
}

fn firsts(program: &Program) -> HashMap<String, usize> {
    let random = program.kernels.iter().filter_map(|n| match &n.kernel {
        Kernel::Random { stream, first, .. } => Some((stream.clone(), *first)),
        _ => None,
    });
    random.collect()
}

/// Returns the kernel without its first random element, which differs between towers.
fn without_first(kernel: &Kernel) -> Kernel {
    match kernel {
        Kernel::Random { stream, continued, .. } => {
            Kernel::Random { stream: stream.clone(), first: 0, continued: *continued }
        }
        other => other.clone(),
    }
}

/// Returns the positions of equal kernels; the earlier comes last.
fn positions(program: &Program) -> HashMap<Kernel, Vec<usize>> {
    let mut known: HashMap<Kernel, Vec<usize>> = HashMap::new();
    for (i, node) in program.kernels.iter().enumerate().rev() {
        known.entry(without_first(&node.kernel)).or_default().push(i);
    }
    known
}

/// What a tower has of its own, and where its buffers are in the first tower's program.
fn same_program(
    first: &Program,
    known: &HashMap<Kernel, Vec<usize>>,
    other: &Program,
    tower: usize,
) -> Result<(Own, HashMap<BufferId, BufferId>)> {
    let unlike = |what: String| {
        Error::new(ErrorKind::Unsupported, format!("tower {tower} is not like the first: {what}"))
            .note("towers run together on XLA only where they do the same to batches of the same sizes")
    };
    if !other.updates.is_empty() {
        return Err(unlike("it updates variables of its own".into()));
    }
    let mut known = known.clone();
    let mut own = Own { feeds: HashMap::new(), firsts: firsts(other) };
    let mut buffers = leaves(first, other, &mut own)
        .ok_or_else(|| unlike("what is fed to it has other types or sizes".into()))?;
    for node in &other.kernels {
        let mut kernel = node.kernel.clone();
        for view in kernel.reads_mut() {
            // What the first tower does not have at all has no counterpart.
            view.buffer = buffers.get(&view.buffer).copied().unwrap_or(BufferId(u32::MAX));
        }
        let twin = known.get_mut(&without_first(&kernel)).and_then(Vec::pop).map(|at| &first.kernels[at]);
        let twin = twin.ok_or_else(|| {
            unlike(format!("{} has no counterpart there", node.origin.name)).at(node.origin.site)
        })?;
        buffers.extend(node.outputs.iter().copied().zip(twin.outputs.iter().copied()));
    }
    let wanted = other.fetches.iter().chain(&other.costs);
    match wanted.into_iter().find(|v| !buffers.contains_key(&v.buffer)) {
        None => Ok((own, buffers)),
        Some(_) => Err(unlike("a value is fetched that the first does not have".into())),
    }
}

/// Where the variables, constants and feeds of a program are in the first one. The n-th feed stands for the first's n-th.
fn leaves(first: &Program, other: &Program, own: &mut Own) -> Option<HashMap<BufferId, BufferId>> {
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
