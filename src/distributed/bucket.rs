//! Buckets: tensors that are summed over all ranks in one exchange.

use super::process_group::{COMPUTING, ProcessGroup, Waiting};
use super::sum_tree::{SumTree, subtrees};
use bytemuck::Pod;
use half::bf16;
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
    /// The dtype in which elements are sent: `dtype`, or bf16 for f32.
    wire: DType,
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
    fn new(dtype: DType, wire: DType, elements: usize, rank: usize, ranks: usize, towers: usize) -> Layout {
        let groups = |rank: usize| subtrees(rank * towers..(rank + 1) * towers, ranks * towers);
        let tree = SumTree::of_subtrees((0..ranks).flat_map(groups));
        let summands: Vec<usize> = (0..ranks).map(|rank| groups(rank).len()).collect();
        let share = |rank: usize| elements * rank / ranks..elements * (rank + 1) / ranks;
        let shares = (0..ranks).map(share).collect();
        let mut layout = Layout { dtype, wire, elements, rank, shares, scatters: false, summands, tree };
        let bytes = layout.wire_bytes(elements);
        let all = layout.tree.summands();
        if bytes.saturating_mul(all) <= SMALL || all == 2 {
            // Every rank adds up everything. With two summands that takes no more traffic.
            layout.shares = vec![0..elements; ranks];
        }
        layout
    }

    /// The layout of a bucket of which each rank gets the sums of one of `ranks` equal shares.
    fn scattering(
        dtype: DType,
        wire: DType,
        elements: usize,
        rank: usize,
        ranks: usize,
        towers: usize,
    ) -> Layout {
        let share = |rank: usize| elements / ranks * rank..elements / ranks * (rank + 1);
        let shares = (0..ranks).map(share).collect();
        Layout { shares, scatters: true, ..Layout::new(dtype, wire, elements, rank, ranks, towers) }
    }

    /// Returns whether each rank adds up all elements.
    fn every_rank_adds_all(&self) -> bool {
        !self.scatters && self.shares.iter().all(|share| share.len() == self.elements)
    }

    fn bytes(&self, elements: usize) -> usize {
        elements * self.dtype.size()
    }

    /// Returns the bytes of elements on their way.
    fn wire_bytes(&self, elements: usize) -> usize {
        elements * self.wire.size()
    }

    /// Returns whether elements are rounded before they are sent.
    fn rounds(&self) -> bool {
        self.wire != self.dtype
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
    /// The sums of this rank's share, as they are sent.
    share: Buffer,
    /// All sums as they are received, if they are rounded.
    gathered: Buffer,
    /// All sums; none if each rank needs its own share alone.
    sums: Buffer,
}

impl Buffers {
    fn new(layout: &Layout) -> Buffers {
        let own = layout.shares[layout.rank].len();
        let all: usize = layout.summands.iter().sum();
        let bytes = |elements| Buffer::zeroed(layout.wire_bytes(elements));
        let in_parts = !layout.every_rank_adds_all();
        Buffers {
            send: bytes(layout.summands[layout.rank] * layout.elements),
            receive: bytes(all * own),
            share: match (in_parts, layout.scatters) {
                (false, _) => bytes(0),
                (true, false) => bytes(own),
                (true, true) => Buffer::zeroed(layout.bytes(own)),
            },
            gathered: bytes(if in_parts && !layout.scatters && layout.rounds() {
                layout.elements
            } else {
                0
            }),
            sums: Buffer::zeroed(layout.bytes(if layout.scatters { 0 } else { layout.elements })),
        }
    }

    /// Returns where the sums that this rank needs are.
    fn result(&mut self, layout: &Layout) -> *mut u8 {
        if layout.scatters { self.share.as_mut_ptr() } else { self.sums.as_mut_ptr() }
    }

    /// Exchanges the partial sums and adds them up.
    fn exchange(self, layout: &Layout, world: &World, wait: Waiting<'_>) -> Result<Buffers> {
        let Buffers { send, receive, mut share, gathered, mut sums } = self;
        let own = layout.shares[layout.rank].len();
        let received: Vec<usize> = layout.summands.iter().map(|n| layout.wire_bytes(n * own)).collect();
        if layout.every_rank_adds_all() {
            let done = wait.for_request(world.all_gather_v(send, receive, &received)?)?;
            add(layout, &done.receive, &mut sums, layout.dtype);
            return Ok(Buffers { send: done.send, receive: done.receive, share, gathered, sums });
        }
        let summands = layout.summands[layout.rank];
        let sent: Vec<usize> = layout.shares.iter().map(|s| layout.wire_bytes(summands * s.len())).collect();
        let done = wait.for_request(world.all_to_all_v(send, &sent, receive, &received)?)?;
        let (send, receive) = (done.send, done.receive);
        if layout.scatters {
            add(layout, &receive, &mut share, layout.dtype);
            return Ok(Buffers { send, receive, share, gathered, sums });
        }
        add(layout, &receive, &mut share, layout.wire);
        let shares: Vec<usize> = layout.shares.iter().map(|s| layout.wire_bytes(s.len())).collect();
        if layout.rounds() {
            let all = wait.for_request(world.all_gather_v(share, gathered, &shares)?)?;
            widen(&all.receive, &mut sums);
            return Ok(Buffers { send, receive, share: all.send, gathered: all.receive, sums });
        }
        let all = wait.for_request(world.all_gather_v(share, sums, &shares)?)?;
        Ok(Buffers { send, receive, share: all.send, gathered, sums: all.receive })
    }
}

/// Adds up the partial sums of this rank's share, and stores the sums in `dtype`.
fn add(layout: &Layout, summands: &Buffer, sums: &mut Buffer, dtype: DType) {
    match (layout.dtype, layout.wire, dtype) {
        (DType::F64, ..) => add_elements(layout, summands, sums, |x: f64| x, |sum: f64| sum),
        (_, DType::Bf16, DType::Bf16) => add_elements(layout, summands, sums, bf16::to_f32, bf16::from_f32),
        (_, DType::Bf16, _) => add_elements(layout, summands, sums, bf16::to_f32, |sum| sum),
        _ => add_elements(layout, summands, sums, |x: f32| x, |sum: f32| sum),
    }
}

/// Widens sums that were sent as bf16.
fn widen(gathered: &Buffer, sums: &mut Buffer) {
    let (gathered, sums): (&[bf16], &mut [f32]) =
        (bytemuck::cast_slice(gathered), bytemuck::cast_slice_mut(sums));
    store(gathered, sums, &|x| x.to_f32());
}

/// Widens summands of type `S`, adds them up as `T`, and stores the sums as `R`.
fn add_elements<S: Pod, T: Pod + Default + Add<Output = T>, R: Pod>(
    layout: &Layout,
    summands: &Buffer,
    sums: &mut Buffer,
    widen: impl Fn(S) -> T,
    round: impl Fn(T) -> R,
) {
    let (summands, sums): (&[S], &mut [R]) = (bytemuck::cast_slice(summands), bytemuck::cast_slice_mut(sums));
    let own = sums.len();
    // SAFETY: `Buffers::new` made room for `own` elements of every summand.
    unsafe {
        layout.tree.sum(
            own,
            |i| summands[i * own..(i + 1) * own].as_ptr(),
            widen,
            |at, tile| store(tile, &mut sums[at..at + tile.len()], &round),
        );
    }
}

/// Rounds elements, or copies them.
fn store<T: Copy, R>(from: &[T], to: &mut [R], round: &impl Fn(T) -> R) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = round(*from));
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
    /// Creates a bucket for `elements` elements of `dtype` (f32 or f64), which are sent as `wire`: the
    /// same, or bf16 for f32. Every rank has `towers` towers.
    pub(crate) fn new(
        name: String,
        dtype: DType,
        wire: DType,
        elements: usize,
        group: &ProcessGroup,
        towers: usize,
    ) -> Bucket {
        Bucket::of_rank(name, Layout::new(dtype, wire, elements, group.rank(), group.size(), towers), towers)
    }

    /// Creates a bucket of `elements` elements of which each rank gets the sums of its share: the first
    /// rank of the first elements, and so on. The shares are equal. The sums are not rounded.
    pub(crate) fn scattering(
        name: String,
        dtype: DType,
        wire: DType,
        elements: usize,
        group: &ProcessGroup,
        towers: usize,
    ) -> Bucket {
        let layout = Layout::scattering(dtype, wire, elements, group.rank(), group.size(), towers);
        Bucket::of_rank(name, layout, towers)
    }

    fn of_rank(name: String, layout: Layout, towers: usize) -> Bucket {
        let first = layout.rank * towers;
        let partial = subtrees(first..first + towers, layout.summands.len() * towers)
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
            match (self.layout.dtype, self.layout.wire) {
                (DType::F64, _) => self.fill_elements(range, first, summand, |sum: f64| sum),
                (_, DType::Bf16) => self.fill_elements(range, first, summand, bf16::from_f32),
                _ => self.fill_elements(range, first, summand, |sum: f32| sum),
            }
        }
    }

    /// # Safety
    /// See [`Bucket::fill`]; `T` must be the bucket's type, and `R` the one in which it is sent.
    unsafe fn fill_elements<T: Copy + Default + Add<Output = T>, R>(
        &self,
        range: Range<usize>,
        first: usize,
        summand: &dyn Fn(usize) -> *const u8,
        round: impl Fn(T) -> R,
    ) {
        let send = self.send.load(Ordering::Acquire).cast::<R>();
        for (i, (towers, tree)) in self.partial.iter().enumerate() {
            for (part, at) in self.layout.parts(i, range.clone()) {
                let from = first + (part.start - range.start);
                let of_tower = |k: usize| summand(towers.start + k).cast::<T>().wrapping_add(from);
                // SAFETY: `part` is inside `range`, for which the caller vouches, and `Layout::parts`
                // stays inside the send buffer, which no other thread uses there.
                unsafe {
                    tree.sum(
                        part.len(),
                        of_tower,
                        |x| x,
                        |done, tile| {
                            let to = std::slice::from_raw_parts_mut(send.add(at + done), tile.len());
                            store(tile, to, &round);
                        },
                    );
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
                let layout = Layout::new(DType::F32, DType::F32, elements, rank, ranks, towers);
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

    /// The gradient of a tower: numbers of very different sizes.
    fn gradient(tower: usize, elements: usize) -> Vec<f32> {
        let value = |i: usize| ((tower * 7919 + i * 104_729) % 1009) as f32 * 1e-3 - 0.4;
        (0..elements).map(|i| value(i) * 2f32.powi((i % 40) as i32 - 20)).collect()
    }

    /// Sums up the gradients of all towers as ranks do, with copies in place of MPI. Returns the sums
    /// of each rank.
    fn exchange(wire: DType, elements: usize, ranks: usize, towers: usize) -> Vec<Vec<f32>> {
        let layout = |rank| Layout::new(DType::F32, wire, elements, rank, ranks, towers);
        let mut all: Vec<(Layout, Buffers)> = Vec::new();
        for rank in 0..ranks {
            let bucket = Bucket::of_rank(format!("rank {rank}"), layout(rank), towers);
            let own: Vec<Vec<f32>> = (0..towers).map(|t| gradient(rank * towers + t, elements)).collect();
            // SAFETY: every gradient has as many elements as the bucket, which nobody else uses.
            unsafe { bucket.fill(0..elements, 0, &|tower| own[tower].as_ptr().cast()) };
            let State::Here(buffers) = bucket.state.into_inner().unwrap() else { panic!("not sent") };
            all.push((bucket.layout, buffers));
        }
        // All to all: the parts of each share, one rank after the other.
        for to in 0..ranks {
            let share = all[to].0.shares[to].clone();
            let mut received: Vec<u8> = Vec::new();
            for (layout, buffers) in &all {
                let summands = layout.summands[layout.rank];
                let start = if layout.every_rank_adds_all() { 0 } else { summands * share.start };
                let bytes = layout.wire_bytes(start)..layout.wire_bytes(start + summands * share.len());
                received.extend_from_slice(&buffers.send[bytes]);
            }
            all[to].1.receive.copy_from_slice(&received);
        }
        for (layout, buffers) in &mut all {
            match layout.every_rank_adds_all() {
                true => add(layout, &buffers.receive, &mut buffers.sums, layout.dtype),
                false => add(layout, &buffers.receive, &mut buffers.share, layout.wire),
            }
        }
        let shares: Vec<u8> = all.iter().flat_map(|(_, buffers)| buffers.share.to_vec()).collect();
        let sums = |(layout, mut buffers): (Layout, Buffers)| {
            if !layout.every_rank_adds_all() {
                match layout.rounds() {
                    true => widen(&Buffer::from(&shares[..]), &mut buffers.sums),
                    false => buffers.sums.copy_from_slice(&shares),
                }
            }
            bytemuck::cast_slice(&buffers.sums).to_vec()
        };
        all.into_iter().map(sums).collect()
    }

    /// Ranks, towers of each, and elements: with few elements or two summands every rank adds up all.
    const DIVISIONS: [(usize, usize, usize); 6] =
        [(2, 1, 20_000), (2, 2, 700), (3, 1, 40), (3, 1, 20_000), (4, 2, 30_001), (2, 3, 9_001)];

    #[test]
    fn sums_are_those_of_the_tree_over_all_towers() {
        for (ranks, towers, elements) in DIVISIONS {
            let gradients: Vec<Vec<f32>> =
                (0..ranks * towers).map(|tower| gradient(tower, elements)).collect();
            let mut expected = vec![0.0; elements];
            // SAFETY: all gradients have as many elements.
            unsafe {
                SumTree::new(ranks * towers).sum(
                    elements,
                    |tower| gradients[tower].as_ptr(),
                    |x: f32| x,
                    |at, tile| expected[at..at + tile.len()].copy_from_slice(tile),
                );
            }
            for sums in exchange(DType::F32, elements, ranks, towers) {
                assert!(sums == expected, "{ranks} x {towers}, {elements} elements");
            }
        }
    }

    /// Each rank rounds its partial sum, and the sum is rounded once more if it is sent: half a unit
    /// in the last of 8 bits each.
    #[test]
    fn bf16_sums_are_within_its_rounding_and_the_same_on_all_ranks() {
        let half_unit = 0.5f64.powi(8) * 1.01;
        for (ranks, towers, elements) in DIVISIONS {
            let gradients: Vec<Vec<f32>> =
                (0..ranks * towers).map(|tower| gradient(tower, elements)).collect();
            let all = exchange(DType::Bf16, elements, ranks, towers);
            let (mut rounded, mut largest) = (0, 0.0f64);
            for i in 0..elements {
                let exact: f64 = gradients.iter().map(|g| f64::from(g[i])).sum();
                let partial = gradients.iter().map(|g| f64::from(g[i]).abs()).sum::<f64>();
                let error = (f64::from(all[0][i]) - exact).abs();
                let bound = half_unit * (partial + exact.abs());
                assert!(error <= bound, "{ranks} x {towers}, element {i}: {} instead of {exact}", all[0][i]);
                rounded += usize::from(error > 1e-6 * partial);
                largest = largest.max(error / partial);
            }
            // It does round.
            assert!(
                rounded > elements / 2 && largest > half_unit / 8.0,
                "{rounded} of {elements}, {largest}"
            );
            for sums in &all {
                let bits = |sums: &[f32]| sums.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                assert!(bits(sums) == bits(&all[0]), "{ranks} x {towers}, {elements} elements");
            }
        }
    }
}
