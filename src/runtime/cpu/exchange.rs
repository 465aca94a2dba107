//! The all-reduces of a program over several processes.
//!
//! Each is split in two, as in XLA: a *start* hands the summand over as soon as it is there, and a
//! *done* waits for the sum, as late as possible. Between the two the communication thread exchanges
//! it while the towers go on with the backward pass. Several all-reduces whose sums may be late
//! share a bucket. Which do depends on the graph alone, and buckets are sent in the order of the
//! graph, so all processes agree on them without asking.

use super::all_reduce::Communicator;
use super::pipeline::Compilation;
use super::placement;
use crate::distributed::{AllGather, Bucket, ProcessGroup, WAITING};
use crate::kir::{BufferId, Kernel, KernelNode, Program, Shards, View};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// A bucket has at most this many bytes, or an eighth of all, so that the first is on its way early.
const MAX_BUCKET: usize = 25 << 20;
/// But an eighth of little is not worth a message of its own.
const MIN_BUCKET: usize = 256 << 10;

/// An all-reduce in a list of kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    key: String,
    dtype: DType,
    len: usize,
    deferred: bool,
    /// Set if each process needs its shard of the sum alone.
    shards: Option<Shards>,
    /// The dtype in which it is sent.
    wire: DType,
}

/// Where the start and the done of an all-reduce are among the kernels of a tower: each before the
/// kernel of this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// The index of the all-reduce itself.
    pub(super) kernel: usize,
    pub(super) start: usize,
    /// `None` if this tower does not use the sum.
    pub(super) done: Option<usize>,
}

/// The all-reduces of a program over several processes.
#[derive(Debug)]
pub(super) struct Exchange {
    group: Arc<ProcessGroup>,
    deadline: Duration,
    members: Vec<Member>,
    /// The all-gathers, in the order of kernels.
    gathers: Vec<AllGather>,
}

/// A tensor in a bucket.
#[derive(Debug)]
struct Member {
    bucket: Arc<Bucket>,
    /// The position of its elements in the bucket; of each of its shards in the share of a rank.
    first: usize,
    len: usize,
    shards: Option<Shards>,
    /// The number of elements of the bucket that each rank gets.
    share: usize,
    /// Whether the bucket is complete with it.
    last: bool,
}

impl Member {
    /// Returns the number of elements that this process gets.
    fn received(&self) -> usize {
        received(self.len, self.shards)
    }

    /// Divides a range of the elements into pieces that are contiguous in the bucket. Calls `piece`
    /// with the position of each, and with its first element.
    fn pieces(&self, range: &Range<usize>, mut piece: impl FnMut(Range<usize>, usize)) {
        let Some(shards) = self.shards else {
            return piece(self.first + range.start..self.first + range.end, range.start);
        };
        for rank in 0..shards.count {
            let start = shards.start(self.len, rank);
            let (from, to) = (range.start.max(start), range.end.min(start + shards.len(self.len)));
            if from < to {
                let at = rank * self.share + self.first + (from - start);
                piece(at..at + (to - from), from);
            }
        }
    }
}

/// Returns the number of elements of a sum that this process gets.
fn received(len: usize, shards: Option<Shards>) -> usize {
    shards.map_or(len, |shards| shards.len(len))
}

fn is_all_gather(node: &&KernelNode) -> bool {
    matches!(node.kernel, Kernel::AllGather { .. })
}

/// Prepares the all-gathers of a tower, in order.
fn all_gathers(program: &Program) -> Vec<AllGather> {
    let gather = |node: &KernelNode| match &node.kernel {
        Kernel::AllGather { shards, .. } => {
            let outputs = node.outputs.iter().map(|&b| program.buffer(b));
            let tensors: Vec<_> = outputs.map(|b| (b.dtype.size(), b.len())).collect();
            Some(AllGather::new(&tensors, *shards))
        }
        _ => None,
    };
    program.kernels.iter().filter_map(gather).collect()
}

impl Found {
    fn new(key: &str, input: &View, deferred: bool, wire: Option<DType>, shards: Option<Shards>) -> Found {
        let (key, dtype) = (key.to_owned(), input.dtype);
        // Only f32 is shortened.
        let wire = wire.filter(|_| dtype == DType::F32).unwrap_or(dtype);
        Found { key, dtype, len: input.len(), deferred, shards, wire }
    }
}

fn find(kernels: &[KernelNode], overlap: bool) -> Vec<(usize, Found)> {
    let found = kernels.iter().enumerate().filter_map(|(i, node)| match &node.kernel {
        Kernel::AllReduce { key, input, deferred, wire } => {
            Some((i, Found::new(key, input, *deferred && overlap, *wire, None)))
        }
        Kernel::ReduceScatter { key, input, wire, shards } => {
            Some((i, Found::new(key, input, overlap, *wire, Some(*shards))))
        }
        _ => None,
    });
    found.collect()
}

/// Returns where the all-reduces of a tower start and end.
///
/// Starts are in the order of the all-reduces, in every tower and process. An all-reduce that is not
/// deferred is where it was. A deferred one starts after its summand is written and ends before its
/// sum is read.
fn split(compilation: &Compilation, overlap: bool) -> Vec<Split> {
    let kernels = &compilation.program.kernels;
    let mut written: HashMap<BufferId, usize> = HashMap::new();
    let mut first_read: HashMap<BufferId, usize> = HashMap::new();
    for (i, node) in kernels.iter().enumerate() {
        written.extend(node.outputs.iter().map(|&b| (b, i)));
        for v in node.kernel.reads() {
            first_read.entry(v.buffer).or_insert(i);
        }
    }
    let lives = placement::lifetimes(compilation);
    let mut last_start = 0;
    let mut splits = Vec::new();
    for (kernel, found) in find(kernels, overlap) {
        let node = &kernels[kernel];
        let ready = node.kernel.reads().iter().filter_map(|v| written.get(&v.buffer)).max();
        let ready = ready.map_or(0, |&writer| writer + 1);
        last_start = last_start.max(if found.deferred { ready } else { kernel });
        let is_used = |b: &BufferId| lives.get(b).is_some_and(|live| live.last > kernel);
        let needed = node.outputs.iter().find(|b| is_used(b)).map(|b| first_read.get(b));
        let done = match found.deferred {
            true => needed.map(|read| read.copied().unwrap_or(kernels.len())),
            false => Some(kernel),
        };
        splits.push(Split { kernel, start: last_start, done });
    }
    splits
}

/// What the sums of one bucket have in common: dtype, dtype on the wire, and shards.
type BucketKind = (DType, DType, Option<Shards>);

/// Assigns all-reduces to buckets: the index of each one's bucket. Sums and shards of sums that follow
/// each other fill a bucket each. Buckets are numbered in the order in which they are complete.
fn buckets(found: &[Found]) -> Vec<usize> {
    let bytes = |f: &Found| f.len * f.wire.size();
    let total: usize = found.iter().filter(|f| f.deferred).map(bytes).sum();
    let limit = (total / 8).clamp(MIN_BUCKET, MAX_BUCKET);
    // The buckets that are not full yet: what they hold, and how many bytes.
    let mut open: Vec<(usize, BucketKind, usize)> = Vec::new();
    let (mut assigned, mut count) = (Vec::new(), 0);
    for f in found {
        let kind = (f.dtype, f.wire, f.shards);
        if !f.deferred {
            open.clear();
        }
        let fits = |(_, of, size): &&mut (usize, _, usize)| *of == kind && *size + bytes(f) <= limit;
        match open.iter_mut().find(fits) {
            Some((bucket, _, size)) if f.deferred => {
                *size += bytes(f);
                assigned.push(*bucket);
            }
            _ => {
                open.retain(|(_, of, _)| *of != kind);
                if f.deferred {
                    open.push((count, kind, bytes(f)));
                }
                assigned.push(count);
                count += 1;
            }
        }
    }
    let last = |bucket: usize| assigned.iter().rposition(|b| *b == bucket);
    let mut in_order: Vec<usize> = (0..count).collect();
    in_order.sort_by_key(|&bucket| last(bucket));
    let place = |bucket: &usize| in_order.iter().position(|b| b == bucket).unwrap_or(0);
    assigned.iter().map(place).collect()
}

impl Exchange {
    /// Prepares the all-reduces of a program with these towers, and says where they are in each;
    /// `None` if there are none. Without `overlap` each ends where it starts.
    pub(super) fn new(
        towers: &[&Compilation],
        group: &Arc<ProcessGroup>,
        deadline: Duration,
        overlap: bool,
    ) -> Result<Option<(Exchange, Vec<Vec<Split>>)>> {
        let kernels = towers.first().map_or(&[][..], |c| &c.program.kernels[..]);
        let found: Vec<Found> = find(kernels, overlap).into_iter().map(|(_, found)| found).collect();
        // Only the first tower updates variables.
        if let Some(other) = towers.iter().skip(1).find_map(|c| c.program.kernels.iter().find(is_all_gather))
        {
            let why = "only the first tower of a process can read variables that are divided over processes";
            return Err(Error::new(ErrorKind::Unsupported, why)
                .within(&other.origin.name)
                .at(other.origin.site));
        }
        let gathers = towers.first().map_or_else(Vec::new, |c| all_gathers(&c.program));
        if found.is_empty() && gathers.is_empty() || group.size() == 1 {
            return Ok(None);
        }
        let assigned = buckets(&found);
        let splits: Vec<Vec<Split>> = towers.iter().map(|c| split(c, overlap)).collect();
        splits.iter().try_for_each(|splits| check(splits, &found, &assigned))?;
        let mut members: Vec<Member> = Vec::new();
        for (i, f) in found.iter().enumerate() {
            let of_bucket: Vec<usize> = (0..found.len()).filter(|&j| assigned[j] == assigned[i]).collect();
            let received = |j: &usize| received(found[*j].len, found[*j].shards);
            let share = of_bucket.iter().map(received).sum();
            let bucket = match of_bucket[0] {
                first if first < i => members[first].bucket.clone(),
                first => {
                    let key = &found[first].key;
                    let name = match of_bucket.len() {
                        1 => format!("{WAITING} of {key}"),
                        n => format!("{WAITING}s of {key} and {} more", n - 1),
                    };
                    Arc::new(match f.shards {
                        None => Bucket::new(name, f.dtype, f.wire, share, group, towers.len()),
                        Some(_) => {
                            let all = share * group.size();
                            Bucket::scattering(name, f.dtype, f.wire, all, group, towers.len())
                        }
                    })
                }
            };
            let first = of_bucket.iter().take_while(|j| **j < i).map(received).sum();
            let (len, shards, last) = (f.len, f.shards, of_bucket.last() == Some(&i));
            members.push(Member { bucket, first, len, shards, share, last });
        }
        Ok(Some((Exchange { group: group.clone(), deadline, members, gathers }, splits)))
    }

    /// Starts all-reduce `index`: adds the summands of all towers of this process to its bucket, and
    /// sends it when it is complete.
    ///
    /// # Safety
    /// As for [`Communicator::all_reduce`], with the length of this all-reduce.
    pub(super) unsafe fn start(
        &self,
        index: usize,
        communicator: &Communicator,
        tower: usize,
        what: &str,
        input: *const u8,
    ) -> Result<()> {
        let member = &self.members[index];
        let Member { bucket, len, last, .. } = member;
        let fill = |share: Range<usize>, summand: &dyn Fn(usize) -> *const u8| {
            member.pieces(&share, |at, first| {
                // SAFETY: every tower contributes `len` elements, as the caller promises, and fills
                // its own share; a bucket is sent only after all shares are filled.
                unsafe { bucket.fill(at, first, summand) };
            });
        };
        // SAFETY: the caller's promise.
        unsafe { communicator.share(tower, what, input, *len, &fill)? };
        if *last && tower == 0 {
            bucket.send(&self.group, self.deadline)?;
        }
        Ok(())
    }

    /// Waits for the sum of all-reduce `index`.
    ///
    /// # Safety
    /// `output` must be valid for writing the elements of this all-reduce.
    pub(super) unsafe fn done(&self, index: usize, output: *mut u8) -> Result<()> {
        let member = &self.members[index];
        let (first, len) = (member.first, member.received());
        // SAFETY: the caller's promise.
        unsafe { member.bucket.receive(&self.group, first, len, output, self.deadline) }
    }

    /// Gathers the tensors of all-gather `index`, whose shards are at `inputs`.
    ///
    /// # Safety
    /// `inputs` and `outputs` must be valid for the bytes of each shard and of each whole tensor.
    pub(super) unsafe fn gather(
        &self,
        index: usize,
        inputs: &[*const u8],
        outputs: &[*mut u8],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.gathers[index].run(&self.group, inputs, outputs, self.deadline) }
    }

    /// Returns whether all processes say `yes`.
    pub(super) fn all_say(&self, yes: bool) -> Result<bool> {
        let answers = self.group.all_gather(&[u8::from(yes)], self.deadline)?;
        Ok(answers.iter().all(|answer| answer == &[1]))
    }
}

/// Checks that no tower waits for a bucket before it has started everything that is sent with or
/// before it.
fn check(splits: &[Split], found: &[Found], assigned: &[usize]) -> Result<()> {
    for (i, split) in splits.iter().enumerate() {
        let Some(done) = split.done else { continue };
        let too_late = (0..splits.len()).find(|&j| assigned[j] <= assigned[i] && splits[j].start > done);
        if let Some(j) = too_late {
            let why =
                format!("the sum of {} is used before that of {} can start", found[i].key, found[j].key);
            return Err(Error::new(ErrorKind::Unsupported, why)
                .note("all processes would wait for each other; train this model in one process"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(len: usize, deferred: bool, scatters: bool) -> Found {
        let shards = scatters.then_some(Shards { count: 2, own: Some(0) });
        Found { key: String::new(), dtype: DType::F32, len, deferred, shards, wire: DType::F32 }
    }

    /// Large and small gradients alternate: weights are scattered, and biases summed up everywhere.
    /// Each kind has its own buckets, and a sum that cannot be late ends them.
    #[test]
    fn sums_and_shards_fill_buckets_of_their_own() {
        let (large, small) = (found(40_000, true, true), found(10, true, false));
        let pairs = |n: usize| (0..n).flat_map(|_| [large.clone(), small.clone()]).collect::<Vec<_>>();
        // One bucket holds 65,536 elements.
        assert_eq!(buckets(&pairs(3)), [0, 3, 1, 3, 2, 3]);
        let small_first = [&[small.clone()][..], &pairs(1), &[found(7, false, false)], &pairs(1)].concat();
        assert_eq!(buckets(&small_first), [1, 0, 1, 2, 3, 4]);
        assert_eq!(buckets(&[]), [0; 0]);
    }
}
