//! Gathers over the key-value store of the control plane, for processes without MPI.
//!
//! A gather is a sequence of rounds. In each round every rank stores a part of its bytes, rank 0
//! joins the parts, and all ranks read the result. A message to each rank and one from it suffice,
//! and the store never contains more than two rounds, however long the values are.

use std::time::{Duration, Instant};
use tensorpack_rendezvous::Rendezvous;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The bytes of all ranks together in a round. The lengths that are stored with them fit, too: see
/// the limits of `tensorpack-rendezvous`.
const ROUND_BYTES: usize = 8 << 20;

/// The gathers of one rank. Every rank must make the same calls in the same order.
#[derive(Debug, Default)]
pub(super) struct StoreGather {
    /// The number of rounds so far.
    rounds: u64,
}

impl StoreGather {
    /// Returns the number of rounds so far.
    #[cfg(test)]
    pub(super) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Returns the bytes of every rank, in order of ranks.
    pub(super) fn gather(
        &mut self,
        rendezvous: &Rendezvous,
        own: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        let begun = Instant::now();
        let left = || timeout.saturating_sub(begun.elapsed());
        let lengths = self.round(rendezvous, &(own.len() as u64).to_le_bytes(), left())?;
        let lengths = lengths.iter().map(|bytes| Ok(u64::from_le_bytes(to_array(bytes)?) as usize));
        let longest = lengths.collect::<Result<Vec<usize>>>()?.into_iter().max().unwrap_or(0);
        let each = ROUND_BYTES / rendezvous.size() as usize;
        let mut gathered = vec![Vec::new(); rendezvous.size() as usize];
        for first in (0..longest).step_by(each) {
            let part = &own[first.min(own.len())..first.saturating_add(each).min(own.len())];
            let parts = self.round(rendezvous, part, left())?;
            gathered.iter_mut().zip(parts).for_each(|(all, part)| all.extend(part));
        }
        Ok(gathered)
    }

    /// Returns the bytes of rank 0. Those of other ranks are ignored.
    pub(super) fn broadcast(
        &mut self,
        rendezvous: &Rendezvous,
        own: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>> {
        let begun = Instant::now();
        let left = || timeout.saturating_sub(begun.elapsed());
        let is_first = rendezvous.rank() == 0;
        let length = (own.len() as u64).to_le_bytes();
        let lengths = self.round(rendezvous, if is_first { &length } else { &[] }, left())?;
        let length = u64::from_le_bytes(to_array(&lengths[0])?) as usize;
        let mut received = Vec::new();
        for first in (0..length).step_by(ROUND_BYTES) {
            let part = if is_first { &own[first..length.min(first + ROUND_BYTES)] } else { &[] };
            let mut parts = self.round(rendezvous, part, left())?;
            received.append(&mut parts[0]);
        }
        Ok(received)
    }

    /// Returns the bytes of every rank, which together are at most [`ROUND_BYTES`].
    fn round(&mut self, rendezvous: &Rendezvous, own: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let begun = Instant::now();
        let left = || timeout.saturating_sub(begun.elapsed());
        let result = |round: u64| format!("gather/{round}");
        let part = |round: u64, rank: u32| format!("gather/{round}/{rank}");
        let round = self.rounds;
        self.rounds += 1;
        if rendezvous.rank() > 0 {
            rendezvous.put(&part(round, rendezvous.rank()), own)?;
            return split(&rendezvous.get(&result(round), left())?, rendezvous.size() as usize);
        }
        let mut parts = vec![own.to_vec()];
        for rank in 1..rendezvous.size() {
            let key = part(round, rank);
            parts.push(rendezvous.get(&key, left()).map_err(|e| match e.kind() {
                ErrorKind::Deadline => e.note(format!("rank {rank} does not take part in a gather")),
                _ => e,
            })?);
            rendezvous.remove(&key)?;
        }
        rendezvous.put(&result(round), &join(&parts))?;
        // All ranks have stored a part of this round, so they have read the result of the last one.
        if let Some(last) = round.checked_sub(1) {
            rendezvous.remove(&result(last))?;
        }
        Ok(parts)
    }
}

/// Joins parts: their lengths, then their bytes.
fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    let lengths: Vec<u8> = parts.iter().flat_map(|part| (part.len() as u32).to_le_bytes()).collect();
    [lengths, parts.concat()].concat()
}

/// Splits what [`join`] returned for `count` parts.
fn split(joined: &[u8], count: usize) -> Result<Vec<Vec<u8>>> {
    let (lengths, mut rest) = joined.split_at_checked(4 * count).ok_or_else(malformed)?;
    let mut parts = Vec::with_capacity(count);
    for length in lengths.chunks_exact(4) {
        let length = u32::from_le_bytes(to_array(length)?) as usize;
        let (part, others) = rest.split_at_checked(length).ok_or_else(malformed)?;
        parts.push(part.to_vec());
        rest = others;
    }
    if rest.is_empty() { Ok(parts) } else { Err(malformed()) }
}

fn to_array<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| malformed())
}

fn malformed() -> Error {
    Error::new(ErrorKind::Io, "another rank sent malformed bytes in a gather")
        .note("all ranks must make the same calls in the same order")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_joining() {
        for parts in [vec![vec![]], vec![vec![1, 2], vec![], vec![255; 300]]] {
            let joined = join(&parts);
            assert_eq!(split(&joined, parts.len()).unwrap(), parts);
            for len in 0..joined.len() {
                assert_eq!(split(&joined[..len], parts.len()).unwrap_err().kind(), ErrorKind::Io);
            }
            assert!(split(&[&joined[..], &[0]].concat(), parts.len()).is_err());
        }
    }
}
