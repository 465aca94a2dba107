//! All-gather: whole tensors from the shards of all ranks.

use super::process_group::{COMPUTING, ProcessGroup};
use crate::kir::Shards;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_mpi::Buffer;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The most bytes that all ranks together send at a time. More would only take more memory: at any
/// bandwidth, the latency of an exchange is small against its transfer.
const MAX_BYTES: usize = 4 << 20;

/// A tensor that is gathered, in bytes.
#[derive(Clone, Debug)]
struct Tensor {
    /// The bytes of a shard.
    shard: usize,
    /// The part of the whole tensor that each rank contributes, from the start of its shard.
    parts: Vec<Range<usize>>,
}

/// Gathers tensors from the shards of all ranks, in one exchange or several.
pub(crate) struct AllGather {
    tensors: Vec<Tensor>,
    /// What is sent and received at a time; taken while an exchange goes on.
    buffers: Mutex<Option<(Buffer, Buffer)>>,
    /// The bytes that each rank sends at a time.
    chunk: usize,
}

impl AllGather {
    /// Prepares to gather tensors with these sizes of an element and numbers of elements.
    pub(crate) fn new(tensors: &[(usize, usize)], shards: Shards) -> AllGather {
        let of = |&(bytes, elements): &(usize, usize)| {
            let part = |rank| shards.part(elements, rank);
            let in_bytes = |part: Range<usize>| part.start * bytes..part.end * bytes;
            let parts = (0..shards.count).map(|rank| in_bytes(part(rank))).collect();
            Tensor { shard: shards.len(elements) * bytes, parts }
        };
        let tensors: Vec<Tensor> = tensors.iter().map(of).collect();
        let total: usize = tensors.iter().map(|t| t.shard).sum();
        // In equal parts, rounded up.
        let exchanges = total.saturating_mul(shards.count).div_ceil(MAX_BYTES).max(1);
        let chunk = total.div_ceil(exchanges);
        let buffers = (Buffer::zeroed(chunk), Buffer::zeroed(chunk * shards.count));
        AllGather { tensors, buffers: Mutex::new(Some(buffers)), chunk }
    }

    /// Gathers the tensors whose shards are at `inputs`.
    ///
    /// # Safety
    /// `inputs` and `outputs` must be valid for the bytes of the shard of each tensor, and of the
    /// whole tensor.
    pub(crate) unsafe fn run(
        &self,
        group: &Arc<ProcessGroup>,
        inputs: &[*const u8],
        outputs: &[*mut u8],
        timeout: Duration,
    ) -> Result<()> {
        let begun = Instant::now();
        let lost = || Error::new(ErrorKind::Engine, "an earlier all-gather has failed");
        let taken = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (mut send, mut receive) = taken.ok_or_else(lost)?;
        group.rendezvous().set_activity("gathering the updated variables");
        let total: usize = self.tensors.iter().map(|t| t.shard).sum();
        for at in (0..total).step_by(self.chunk.max(1)) {
            let sent = at..(at + self.chunk).min(total);
            self.pieces(&sent, |tensor, bytes, from| {
                // SAFETY: `pieces` stays inside the shard, for which the caller vouches.
                let shard =
                    unsafe { std::slice::from_raw_parts(inputs[tensor].add(bytes.start), bytes.len()) };
                send[from..from + bytes.len()].copy_from_slice(shard);
            });
            (send, receive) = group.exchange_all(send, receive, timeout)?;
            self.pieces(&sent, |tensor, bytes, from| {
                for (rank, part) in self.tensors[tensor].parts.iter().enumerate() {
                    let end = bytes.end.min(part.len());
                    if bytes.start < end {
                        let from = rank * self.chunk + from;
                        let piece = &receive[from..from + (end - bytes.start)];
                        // SAFETY: the part of a rank is inside the tensor, for which the caller
                        // vouches, and `bytes.start..end` inside the part.
                        unsafe {
                            let to = outputs[tensor].add(part.start + bytes.start);
                            std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len());
                        }
                    }
                }
            });
        }
        *self.buffers.lock().unwrap_or_else(PoisonError::into_inner) = Some((send, receive));
        group.rendezvous().set_activity(COMPUTING);
        group.add_exposed(begun.elapsed());
        Ok(())
    }

    /// Divides a range of the concatenated shards of all tensors by tensors. Calls `piece` with the
    /// tensor, the range in its shard, and the position in the chunk.
    fn pieces(&self, range: &Range<usize>, mut piece: impl FnMut(usize, Range<usize>, usize)) {
        let mut first = 0;
        for (i, tensor) in self.tensors.iter().enumerate() {
            let (from, to) = (range.start.max(first), range.end.min(first + tensor.shard));
            if from < to {
                piece(i, from - first..to - first, from - range.start);
            }
            first += tensor.shard;
        }
    }
}

impl std::fmt::Debug for AllGather {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "all-gather of {} tensors", self.tensors.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pieces of all chunks together are all bytes of all shards, once.
    #[test]
    fn chunks_cover_all_tensors() {
        let shards = Shards { count: 3, own: Some(1) };
        let gather = AllGather { chunk: 7, ..AllGather::new(&[(4, 10), (1, 3), (8, 5)], shards) };
        let mut seen: Vec<Vec<u32>> = gather.tensors.iter().map(|t| vec![0; t.shard]).collect();
        let total: usize = gather.tensors.iter().map(|t| t.shard).sum();
        assert_eq!(total, 16 + 1 + 16);
        for at in (0..total).step_by(7) {
            gather.pieces(&(at..(at + 7).min(total)), |tensor, bytes, from| {
                assert!(from + bytes.len() <= 7);
                seen[tensor][bytes].iter_mut().for_each(|n| *n += 1);
            });
        }
        assert!(seen.iter().flatten().all(|n| *n == 1));
        assert_eq!(gather.tensors[0].parts, [0..12, 12..24, 24..40]);
    }
}
