//! Placement: the memory location of every buffer of a compiled program.
//!
//! Temporaries share one arena. A buffer occupies its part of it from the kernel that writes it to
//! the last one that reads it. A map may write its result in place of an operand that dies there.

use super::arena::{self, Lifetime};
use super::memory::padded;
use super::panels;
use super::pipeline::Compilation;
use super::variables::Variables;
use crate::kir::{BufferId, BufferKind, Kernel, View};
use std::collections::HashMap;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// The memory that an offset counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Base {
    Arena,
    Feed(usize),
    Slab(usize),
    /// The tower's own copy of a slab.
    Snapshot(usize),
    Constant(usize),
}

/// A location in memory: a base and an offset in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Loc {
    pub(super) base: Base,
    pub(super) offset: usize,
}

/// The location of everything that a program reads and writes.
#[derive(Debug)]
pub(super) struct Placement {
    locs: HashMap<BufferId, Loc>,
    /// Buffers that are written in place of another one.
    reuses: HashMap<BufferId, BufferId>,
    /// For each kernel, the offset of the memory that its threads share, if there is any.
    pub(super) shared: Vec<Option<usize>>,
    pub(super) constants: Vec<HostTensor>,
    pub(super) arena_bytes: usize,
    /// The largest number of bytes that live at the same time, a lower bound on the size of any
    /// arena.
    pub(super) live_bytes: usize,
}

impl Placement {
    /// Places all buffers. `shared_bytes` is the memory that the threads of each kernel share,
    /// padded.
    pub(super) fn new(
        compilation: &Compilation,
        variables: &Variables,
        shared_bytes: &[usize],
    ) -> Result<Placement> {
        let commit_time = compilation.program.kernels.len() + 1;
        let packs = Packs::new(compilation);
        let lives = lifetimes(compilation);
        let reuses = reuse_in_place(compilation, &packs, &lives);
        let Items { mut lifetimes, item_of } = items(&packs, &lives, &reuses);
        let shared: Vec<Option<usize>> = shared_bytes
            .iter()
            .enumerate()
            .map(|(i, &bytes)| {
                (bytes > 0).then(|| {
                    lifetimes.push(Lifetime { bytes, first: i, last: i });
                    lifetimes.len() - 1
                })
            })
            .collect();
        let (offsets, arena_bytes) = arena::place(&lifetimes);
        if arena_bytes > isize::MAX as usize {
            let why = "this program needs more memory than can be addressed";
            return Err(Error::new(ErrorKind::Memory, why));
        }
        let live_at = |t: usize| {
            let live = lifetimes.iter().filter(|l| l.first <= t && t <= l.last);
            live.fold(0usize, |n, l| n.saturating_add(l.bytes))
        };
        let live_bytes = (0..=commit_time).map(live_at).max().unwrap_or(0);
        let in_arena = |b: BufferId| {
            let inside = packs.offset(b).unwrap_or(0);
            item_of.get(&b).map(|&item| Loc { base: Base::Arena, offset: offsets[item] + inside })
        };
        let mut constants = Vec::new();
        let mut locs = HashMap::new();
        for (i, buffer) in compilation.program.buffers.iter().enumerate() {
            let id = BufferId(i as u32);
            let loc = match &buffer.kind {
                BufferKind::Feed(n) => Some(Loc { base: Base::Feed(*n), offset: 0 }),
                BufferKind::Variable(v) => Some(variable(variables, *v)),
                BufferKind::Snapshot(v) => {
                    let place = variables.place(*v);
                    Some(Loc { base: Base::Snapshot(place.slab), offset: place.offset })
                }
                BufferKind::Constant(value) => {
                    constants.push(match compilation.panels.contains(&id) {
                        true => panels::packed(value)?,
                        false => value.clone(),
                    });
                    Some(Loc { base: Base::Constant(constants.len() - 1), offset: 0 })
                }
                // A temporary that nothing needs has no memory.
                BufferKind::Temp => in_arena(id),
            };
            locs.extend(loc.map(|loc| (id, loc)));
        }
        let shared = shared.into_iter().map(|item| item.map(|item| offsets[item])).collect();
        Ok(Placement { locs, reuses, shared, constants, arena_bytes, live_bytes })
    }

    /// Returns the location of a buffer.
    pub(super) fn buffer(&self, b: BufferId) -> Loc {
        self.locs[&b]
    }

    /// Returns the location of a view's first element.
    pub(super) fn view(&self, v: &View) -> Loc {
        let loc = self.buffer(v.buffer);
        Loc { offset: loc.offset + v.offset * v.dtype.size(), ..loc }
    }

    /// Returns the buffer whose memory this one reuses.
    pub(super) fn in_place_of(&self, b: BufferId) -> Option<BufferId> {
        self.reuses.get(&b).copied()
    }
}

/// Returns the location of a variable.
pub(super) fn variable(variables: &Variables, index: usize) -> Loc {
    let place = variables.place(index);
    Loc { base: Base::Slab(place.slab), offset: place.offset }
}

/// Buffers packed together with the padding of a slab, so that a fused update reads the
/// gradients of its variables as one array.
#[derive(Default)]
struct Packs {
    /// The pack and the offset of each packed buffer.
    of: HashMap<BufferId, (usize, usize)>,
    bytes: Vec<usize>,
}

impl Packs {
    /// Packs the temporaries that fused updates read element by element. Each such buffer is in one
    /// pack only: `commit::fusion_key` lets no other operand of any fused update read it.
    fn new(compilation: &Compilation) -> Packs {
        let program = &compilation.program;
        let mut packs = Packs::default();
        for update in compilation.commit.fused.iter().filter(|u| u.members.len() > 1) {
            let first = &update.members[0];
            for (k, view) in first.body.operands.iter().enumerate() {
                if update.scalar[k] || !program.is_temp(view.buffer) {
                    continue;
                }
                let mut offset = 0;
                for m in &update.members {
                    let b = m.body.operands[k].buffer;
                    packs.of.insert(b, (packs.bytes.len(), offset));
                    offset += padded(program.buffer(b).bytes());
                }
                packs.bytes.push(offset);
            }
        }
        packs
    }

    fn contains(&self, b: BufferId) -> bool {
        self.of.contains_key(&b)
    }

    fn offset(&self, b: BufferId) -> Option<usize> {
        self.of.get(&b).map(|&(_, offset)| offset)
    }
}

/// Returns the first and last use of every temporary that something needs. Fetches are taken after
/// the last kernel, and the commit follows them.
pub(super) fn lifetimes(compilation: &Compilation) -> HashMap<BufferId, Lifetime> {
    let Compilation { program, commit, .. } = compilation;
    let fetch_time = program.kernels.len();
    let commit_time = fetch_time + 1;
    let mut lives: HashMap<BufferId, Lifetime> = HashMap::new();
    let mut touch = |b: BufferId, t: usize| {
        if program.is_temp(b) {
            let bytes = padded(compilation.stored_bytes(b).max(1));
            let live = lives.entry(b).or_insert(Lifetime { bytes, first: t, last: t });
            live.last = live.last.max(t);
        }
    };
    for (t, node) in program.kernels.iter().enumerate() {
        node.outputs.iter().for_each(|&b| touch(b, t));
        node.kernel.reads().iter().for_each(|v| touch(v.buffer, t));
    }
    program.fetches.iter().chain(&program.costs).for_each(|v| touch(v.buffer, fetch_time));
    commit.reads().for_each(|v| touch(v.buffer, commit_time));
    lives
}

/// Finds maps whose result can be written in place of an operand that nothing reads any more.
///
/// Preconditions: the operand is a temporary that dies here, of as many elements of the same size,
/// read whole and in order by one operand of the map (kernels read an element before they write it,
/// but not its neighbors), given to no other result, and in no pack; nor is the result.
fn reuse_in_place(
    compilation: &Compilation,
    packs: &Packs,
    lives: &HashMap<BufferId, Lifetime>,
) -> HashMap<BufferId, BufferId> {
    let program = &compilation.program;
    let mut reuses = HashMap::new();
    let mut given: Vec<BufferId> = Vec::new();
    for (t, node) in program.kernels.iter().enumerate() {
        let Kernel::Map(body) = &node.kernel else { continue };
        for &out in node.outputs.iter().filter(|&&out| !packs.contains(out)) {
            let size = program.buffer(out).dtype.size();
            let fits = |v: &&View| {
                program.is_temp(v.buffer)
                    && lives.get(&v.buffer).is_some_and(|l| l.last == t && l.bytes == lives[&out].bytes)
                    && v.is_whole(&body.sizes)
                    && v.dtype.size() == size
                    && !packs.contains(v.buffer)
                    && !given.contains(&v.buffer)
                    // If it is also read in another way (shifted, say), it must stay until all of
                    // it was read.
                    && body.operands.iter().filter(|o| o.buffer == v.buffer).count() == 1
            };
            if let Some(v) = body.operands.iter().find(fits) {
                given.push(v.buffer);
                reuses.insert(out, v.buffer);
            }
        }
    }
    reuses
}

/// The items of the arena: packs, and groups of buffers that are written in place of each other.
struct Items {
    lifetimes: Vec<Lifetime>,
    item_of: HashMap<BufferId, usize>,
}

fn items(packs: &Packs, lives: &HashMap<BufferId, Lifetime>, reuses: &HashMap<BufferId, BufferId>) -> Items {
    let unused = |bytes: usize| Lifetime { bytes, first: usize::MAX, last: 0 };
    let mut lifetimes: Vec<Lifetime> = packs.bytes.iter().map(|&bytes| unused(bytes)).collect();
    let mut item_of: HashMap<BufferId, usize> = HashMap::new();
    let root = |mut b: BufferId| {
        while let Some(&other) = reuses.get(&b) {
            b = other;
        }
        b
    };
    let mut ids: Vec<BufferId> = lives.keys().copied().collect();
    ids.sort_unstable();
    for &b in &ids {
        let live = lives[&b];
        let item = match packs.of.get(&b) {
            Some(&(pack, _)) => pack,
            None => *item_of.entry(root(b)).or_insert_with(|| {
                lifetimes.push(unused(live.bytes));
                lifetimes.len() - 1
            }),
        };
        lifetimes[item].first = lifetimes[item].first.min(live.first);
        lifetimes[item].last = lifetimes[item].last.max(live.last);
        item_of.insert(b, item);
    }
    lifetimes.iter_mut().filter(|l| l.first == usize::MAX).for_each(|l| l.first = 0);
    Items { lifetimes, item_of }
}
