//! Buckets: tensors that are summed over all ranks in one exchange.

use super::process_group::{COMPUTING, ProcessGroup, Waiting};
use super::sum_tree::{SumTree, subtrees};
use std::ops::{Add, Range};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_mpi::{Buffer, World};
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// Up to this many bytes, every rank sends its summands to all others: one exchange of small
/// messages takes less time than two.
const SMALL: usize = 16 << 10;

/// How long a wait for a bucket may exceed the deadline of the exchange, which reports better.
const GRACE: Duration = Duration::from_secs(5);

/// The elements of a bucket: who sends what to whom.
#[derive(Clone, Debug)]
struct Layout {
    dtype: DType,
    elements: usize,
    rank: usize,
    /// The elements that each rank adds up.
    shares: Vec<Range<usize>>,
    /// Whether each rank needs the sums of its own share alone.
    scatters: bool,
    /// The number of partial sums that each rank contributes; see [`subtrees`].
    summands: Vec<usize>,
    /// The sum over the partial sums of all ranks.
    tree: SumTree,
}

impl Layout {
    fn new(dtype: DType, elements: usize, rank: usize, ranks: usize, towers: usize) -> Layout {
        let groups = |rank: usize| subtrees(rank * towers..(rank + 1) * towers, ranks * towers);
        let tree = SumTree::of_subtrees((0..ranks).flat_map(groups));
        let summands: Vec<usize> = (0..ranks).map(|rank| groups(rank).len()).collect();
        let share = |rank: usize| elements * rank / ranks..elements * (rank + 1) / ranks;
        let shares = (0..ranks).map(share).collect();
        let mut layout = Layout { dtype, elements, rank, shares, scatters: false, summands, tree };
        let bytes = elements * dtype.size();
        let all = layout.tree.summands();
        if bytes.saturating_mul(all) <= SMALL || all == 2 {
            // Every rank adds up everything. With two summands that takes no more traffic.
            layout.shares = vec![0..elements; ranks];
        }
        layout
    }

    /// The layout of a bucket of which each rank gets the sums of one of `ranks` equal shares.
    fn scattering(dtype: DType, elements: usize, rank: usize, ranks: usize, towers: usize) -> Layout {
        let share = |rank: usize| elements / ranks * rank..elements / ranks * (rank + 1);
        let shares = (0..ranks).map(share).collect();
        Layout { shares, scatters: true, ..Layout::new(dtype, elements, rank, ranks, towers) }
    }

    /// Returns whether each rank adds up all elements.
    fn every_rank_adds_all(&self) -> bool {
        !self.scatters && self.shares.iter().all(|share| share.len() == self.elements)
    }

    fn bytes(&self, elements: usize) -> usize {
        elements * self.dtype.size()
    }

    /// Returns the parts of the send buffer for partial sum `summand` of the elements `range`: the
    /// elements, and the index of the first in the buffer.
    fn parts(&self, summand: usize, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
        let summands = self.summands[self.rank];
        let shares = if self.every_rank_adds_all() { &self.shares[..1] } else { &self.shares[..] };
        shares.iter().filter_map(move |share| {
            let part = range.start.max(share.start)..range.end.min(share.end);
            let at =
                summands * share.start + summand * share.len() + (part.start.saturating_sub(share.start));
            (part.start < part.end).then_some((part, at))
        })
    }
}

/// The memory of a bucket, which is reused in every step.
struct Buffers {
    send: Buffer,
    receive: Buffer,
    /// The sums of this rank's share.
    share: Buffer,
    /// All sums; none if each rank needs its own share alone.
    sums: Buffer,
}

impl Buffers {
    fn new(layout: &Layout) -> Buffers {
        let own = layout.shares[layout.rank].len();
        let all: usize = layout.summands.iter().sum();
        let bytes = |elements| Buffer::zeroed(layout.bytes(elements));
        Buffers {
            send: bytes(layout.summands[layout.rank] * layout.elements),
            receive: bytes(all * own),
            share: bytes(if layout.every_rank_adds_all() { 0 } else { own }),
            sums: bytes(if layout.scatters { 0 } else { layout.elements }),
        }
    }

    /// Returns where the sums that this rank needs are.
    fn result(&mut self, layout: &Layout) -> *mut u8 {
        if layout.scatters { self.share.as_mut_ptr() } else { self.sums.as_mut_ptr() }
    }

    /// Exchanges the partial sums and adds them up.
    fn exchange(self, layout: &Layout, world: &World, wait: Waiting<'_>) -> Result<Buffers> {
        let Buffers { send, receive, mut share, mut sums } = self;
        let own = layout.shares[layout.rank].len();
        let received: Vec<usize> = layout.summands.iter().map(|n| layout.bytes(n * own)).collect();
        if layout.every_rank_adds_all() {
            let done = wait.for_request(world.all_gather_v(send, receive, &received)?)?;
            add(layout, &done.receive, &mut sums);
            return Ok(Buffers { send: done.send, receive: done.receive, share, sums });
        }
        let summands = layout.summands[layout.rank];
        let sent: Vec<usize> = layout.shares.iter().map(|s| layout.bytes(summands * s.len())).collect();
        let done = wait.for_request(world.all_to_all_v(send, &sent, receive, &received)?)?;
        add(layout, &done.receive, &mut share);
        if layout.scatters {
            return Ok(Buffers { send: done.send, receive: done.receive, share, sums });
        }
        let shares: Vec<usize> = layout.shares.iter().map(|s| layout.bytes(s.len())).collect();
        let gathered = wait.for_request(world.all_gather_v(share, sums, &shares)?)?;
        Ok(Buffers { send: done.send, receive: done.receive, share: gathered.send, sums: gathered.receive })
    }
}

/// Adds up the partial sums of this rank's share.
fn add(layout: &Layout, summands: &Buffer, sums: &mut Buffer) {
    match layout.dtype {
        DType::F64 => add_elements::<f64>(layout, summands, sums),
        _ => add_elements::<f32>(layout, summands, sums),
    }
}

fn add_elements<T: bytemuck::Pod + Default + Add<Output = T>>(
    layout: &Layout,
    summands: &Buffer,
    sums: &mut Buffer,
) {
    let (summands, sums): (&[T], &mut [T]) = (bytemuck::cast_slice(summands), bytemuck::cast_slice_mut(sums));
    let own = sums.len();
    // SAFETY: `Buffers::new` made room for `own` elements of every summand.
    unsafe {
        layout.tree.sum(
            own,
            |i| summands[i * own..(i + 1) * own].as_ptr(),
            |at, tile| {
                sums[at..at + tile.len()].copy_from_slice(tile);
            },
        );
    }
}

/// Tensors that are summed over all ranks in one exchange. Towers add their summands, then one of
/// them sends the bucket, and all wait for the sums.
pub(crate) struct Bucket {
    /// What errors call it.
    name: String,
    layout: Layout,
    /// The partial sums of this rank: their towers in this process, and their order.
    partial: Vec<(Range<usize>, SumTree)>,
    /// Where the partial sums are written.
    send: AtomicPtr<u8>,
    /// Where the sums are, once they are there.
    sums: AtomicPtr<u8>,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    /// In this process: to be filled, or with the sums.
    Here(Buffers),
    InFlight,
    Failed(Error),
}

impl Bucket {
    /// Creates a bucket for `elements` elements of `dtype` (f32 or f64). Every rank has `towers`
    /// towers.
    pub(crate) fn new(
        name: String,
        dtype: DType,
        elements: usize,
        group: &ProcessGroup,
        towers: usize,
    ) -> Bucket {
        let layout = Layout::new(dtype, elements, group.rank(), group.size(), towers);
        Bucket::with(name, layout, group, towers)
    }

    /// Creates a bucket of `elements` elements of `dtype` of which each rank gets the sums of its
    /// share: the first rank of the first elements, and so on. The shares are equal.
    pub(crate) fn scattering(
        name: String,
        dtype: DType,
        elements: usize,
        group: &ProcessGroup,
        towers: usize,
    ) -> Bucket {
        let layout = Layout::scattering(dtype, elements, group.rank(), group.size(), towers);
        Bucket::with(name, layout, group, towers)
    }

    fn with(name: String, layout: Layout, group: &ProcessGroup, towers: usize) -> Bucket {
        let first = group.rank() * towers;
        let partial = subtrees(first..first + towers, group.size() * towers)
            .into_iter()
            .map(|group| (group.start - first..group.end - first, SumTree::new(group.len())))
            .collect();
        let mut buffers = Buffers::new(&layout);
        Bucket {
            name,
            partial,
            send: AtomicPtr::new(buffers.send.as_mut_ptr()),
            sums: AtomicPtr::new(buffers.result(&layout)),
            layout,
            state: Mutex::new(State::Here(buffers)),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds up the towers of this process and stores the partial sums of the elements `range`, which
    /// are those from `first` on of the summand of each tower.
    ///
    /// # Safety
    /// `summand(tower)` must be valid for reading all elements that are taken from it, of the
    /// bucket's type. No other thread may write these elements of the bucket, and the bucket must
    /// not be in flight.
    pub(crate) unsafe fn fill(
        &self,
        range: Range<usize>,
        first: usize,
        summand: &dyn Fn(usize) -> *const u8,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.layout.dtype {
                DType::F64 => self.fill_elements::<f64>(range, first, summand),
                _ => self.fill_elements::<f32>(range, first, summand),
            }
        }
    }

    /// # Safety
    /// See [`Bucket::fill`]; `T` must be the bucket's type.
    unsafe fn fill_elements<T: Copy + Default + Add<Output = T>>(
        &self,
        range: Range<usize>,
        first: usize,
        summand: &dyn Fn(usize) -> *const u8,
    ) {
        let send = self.send.load(Ordering::Acquire).cast::<T>();
        for (i, (towers, tree)) in self.partial.iter().enumerate() {
            for (part, at) in self.layout.parts(i, range.clone()) {
                let from = first + (part.start - range.start);
                let of_tower = |k: usize| summand(towers.start + k).cast::<T>().wrapping_add(from);
                // SAFETY: `part` is inside `range`, for which the caller vouches, and `Layout::parts`
                // stays inside the send buffer.
                unsafe {
                    tree.sum(part.len(), of_tower, |done, tile| {
                        std::ptr::copy_nonoverlapping(tile.as_ptr(), send.add(at + done), tile.len());
                    });
                }
            }
        }
    }

    /// Sends the bucket, once all its elements are filled.
    pub(crate) fn send(self: &Arc<Bucket>, group: &Arc<ProcessGroup>, deadline: Duration) -> Result<()> {
        let mut state = self.lock();
        let buffers = match std::mem::replace(&mut *state, State::InFlight) {
            State::Here(buffers) => buffers,
            State::Failed(e) => {
                // The other towers get it, too.
                *state = State::Failed(e.clone());
                return Err(e);
            }
            State::InFlight => {
                return Err(Error::new(ErrorKind::Engine, format!("{} is in flight", self.name)));
            }
        };
        drop(state);
        let (bucket, ranks) = (self.clone(), group.clone());
        group.submit(deadline, move |world, wait| {
            let exchange = |world| buffers.exchange(&bucket.layout, world, wait);
            // Before the towers get the error: it must name the rank that they waited for.
            let exchanged = world.and_then(|world| exchange(world).map_err(|e| ranks.explain(e)));
            let failed = exchanged.as_ref().err().cloned();
            bucket.returned(exchanged);
            failed.map_or(Ok(()), Err)
        })
    }

    /// Stores the result of an exchange.
    fn returned(&self, exchanged: Result<Buffers>) {
        let state = match exchanged {
            Ok(mut buffers) => {
                self.send.store(buffers.send.as_mut_ptr(), Ordering::Release);
                self.sums.store(buffers.result(&self.layout), Ordering::Release);
                State::Here(buffers)
            }
            Err(e) => State::Failed(e),
        };
        *self.lock() = state;
        self.changed.notify_all();
    }

    /// Waits for the sums, and copies `len` of them, from element `first` on, to `output`. In a
    /// bucket that scatters, elements are counted in the share of this rank.
    ///
    /// # Safety
    /// `output` must be valid for writing `len` elements of the bucket's type, and the elements must
    /// be in the bucket.
    pub(crate) unsafe fn receive(
        &self,
        group: &ProcessGroup,
        first: usize,
        len: usize,
        output: *mut u8,
        deadline: Duration,
    ) -> Result<()> {
        let begun = Instant::now();
        let mut state = self.lock();
        let waits = matches!(*state, State::InFlight);
        let urgent = waits.then(|| group.urgent());
        if waits {
            group.rendezvous().set_activity(&self.name);
        }
        loop {
            match &*state {
                State::Here(_) => break,
                State::Failed(e) => return Err(e.clone()),
                State::InFlight => {}
            }
            if begun.elapsed() > deadline.saturating_add(GRACE) {
                let why =
                    format!("{} is not complete after {:.0} s", self.name, begun.elapsed().as_secs_f64());
                return Err(Error::new(ErrorKind::Deadline, why));
            }
            let wait = self.changed.wait_timeout(state, GRACE);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        drop(urgent);
        if waits {
            group.add_exposed(begun.elapsed());
            group.rendezvous().set_activity(COMPUTING);
        }
        let (at, bytes) = (self.layout.bytes(first), self.layout.bytes(len));
        let sums = self.sums.load(Ordering::Acquire);
        // SAFETY: the sums stay as they are until the bucket is sent again, which is after all towers
        // have added to it again; the caller vouches for the rest.
        unsafe { std::ptr::copy_nonoverlapping(sums.add(at).cast_const(), output, bytes) };
        Ok(())
    }
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} {}", self.name, self.layout.elements, self.layout.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every partial sum has its own place in the send buffer, and each rank's part is contiguous.
    #[test]
    fn parts_fill_the_send_buffer() {
        for (ranks, towers, elements) in [(2, 1, 5), (4, 1, 20_000), (2, 3, 9_001), (3, 2, 7_000), (3, 1, 2)]
        {
            for rank in 0..ranks {
                let layout = Layout::new(DType::F32, elements, rank, ranks, towers);
                let mut filled = vec![0; layout.summands[rank] * elements];
                for summand in 0..layout.summands[rank] {
                    // In two pieces, as tensors of a bucket are.
                    for range in [0..elements / 3, elements / 3..elements] {
                        for (part, at) in layout.parts(summand, range) {
                            filled[at..at + part.len()].iter_mut().for_each(|n| *n += 1);
                        }
                    }
                }
                assert!(filled.iter().all(|n| *n == 1), "{ranks} x {towers}, {elements} elements");
            }
        }
    }
}
