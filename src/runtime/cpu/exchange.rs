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
use crate::distributed::{Bucket, ProcessGroup};
use crate::kir::{BufferId, Kernel, KernelNode};
use std::collections::HashMap;
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
}

/// A tensor in a bucket.
#[derive(Debug)]
struct Member {
    bucket: Arc<Bucket>,
    first: usize,
    len: usize,
    /// Whether the bucket is complete with it.
    last: bool,
}

fn find(kernels: &[KernelNode], overlap: bool) -> Vec<(usize, Found)> {
    let found = kernels.iter().enumerate().filter_map(|(i, node)| match &node.kernel {
        Kernel::AllReduce { key, input, deferred, wire } => {
            let (key, dtype, deferred) = (key.clone(), input.dtype, *deferred && overlap);
            // Only f32 is shortened.
            let wire = wire.filter(|_| dtype == DType::F32).unwrap_or(dtype);
            Some((i, Found { key, dtype, len: input.len(), deferred, wire }))
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

/// Assigns all-reduces to buckets: the index of each one's bucket.
fn buckets(found: &[Found]) -> Vec<usize> {
    let bytes = |f: &Found| f.len * f.wire.size();
    let total: usize = found.iter().filter(|f| f.deferred).map(bytes).sum();
    let limit = (total / 8).clamp(MIN_BUCKET, MAX_BUCKET);
    let (mut assigned, mut bucket, mut size) = (Vec::new(), 0, 0);
    for (i, f) in found.iter().enumerate() {
        let joins = i > 0 && {
            let before = &found[i - 1];
            let alike = (before.dtype, before.wire) == (f.dtype, f.wire);
            before.deferred && f.deferred && alike && size + bytes(f) <= limit
        };
        if i > 0 && !joins {
            bucket += 1;
            size = 0;
        }
        size += bytes(f);
        assigned.push(bucket);
    }
    assigned
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
        if found.is_empty() || group.size() == 1 {
            return Ok(None);
        }
        let assigned = buckets(&found);
        let splits: Vec<Vec<Split>> = towers.iter().map(|c| split(c, overlap)).collect();
        splits.iter().try_for_each(|splits| check(splits, &found, &assigned))?;
        let mut members: Vec<Member> = Vec::new();
        let last = assigned.last().copied().unwrap_or(0);
        for bucket in 0..=last {
            let of_bucket: Vec<&Found> =
                found.iter().zip(&assigned).filter(|(_, b)| **b == bucket).map(|(f, _)| f).collect();
            let elements = of_bucket.iter().map(|f| f.len).sum();
            let name = match of_bucket.len() {
                1 => format!("waiting for the sum of {}", of_bucket[0].key),
                n => format!("waiting for the sums of {} and {} more", of_bucket[0].key, n - 1),
            };
            let (dtype, wire) = (of_bucket[0].dtype, of_bucket[0].wire);
            let shared = Arc::new(Bucket::new(name, dtype, wire, elements, group, towers.len()));
            let mut first = 0;
            for (i, f) in of_bucket.iter().enumerate() {
                let last = i + 1 == of_bucket.len();
                members.push(Member { bucket: shared.clone(), first, len: f.len, last });
                first += f.len;
            }
        }
        Ok(Some((Exchange { group: group.clone(), deadline, members }, splits)))
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
        let Member { bucket, first, len, last } = &self.members[index];
        let fill = |share: std::ops::Range<usize>, summand: &dyn Fn(usize) -> *const u8| {
            // SAFETY: every tower contributes `len` elements, as the caller promises, and fills its
            // own share; a bucket is sent only after all shares are filled.
            unsafe { bucket.fill(first + share.start..first + share.end, share.start, summand) };
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
        let Member { bucket, first, len, .. } = &self.members[index];
        // SAFETY: the caller's promise.
        unsafe { bucket.receive(&self.group, *first, *len, output, self.deadline) }
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
