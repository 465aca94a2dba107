//! Measures the network between ranks.

use super::process_group::ProcessGroup;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorpack_mpi::Buffer;
use tensorpack_tensor::{Error, Result};

/// The bytes that a rank sends to all others together, in the two kinds of rounds.
const SIZES: [usize; 2] = [64 << 10, 1 << 20];
/// The rounds of each kind, of which the median counts.
const ROUNDS: usize = 11;

/// What the network between the ranks of a [`ProcessGroup`] can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// The time that an exchange takes before its bytes flow: a message on its way, and what the
    /// operating system and MPI add.
    pub latency: Duration,
    /// The bytes per second that a rank sends while it receives as many.
    pub bandwidth: f64,
}

impl Network {
    /// Fits latency and bandwidth to the times of exchanges in which each rank sends so many bytes.
    fn fit(exchanges: [(usize, Duration); 2]) -> Network {
        let [(few, short), (many, long)] = exchanges;
        let per_byte = long.saturating_sub(short).as_secs_f64() / (many - few) as f64;
        let latency = (short.as_secs_f64() - per_byte * few as f64).max(0.0);
        // Too fast to be measured: one byte in a picosecond.
        Network { latency: Duration::from_secs_f64(latency), bandwidth: 1.0 / per_byte.max(1e-12) }
    }
}

impl ProcessGroup {
    /// Measures the network, as this rank sees it. All ranks must call it at the same time. Returns
    /// an error if there is only one, or without MPI.
    pub fn measure_network(self: &Arc<ProcessGroup>, timeout: Duration) -> Result<Network> {
        if self.size() == 1 {
            return Err(Error::argument("one rank alone has no network"));
        }
        let median = |bytes: usize| -> Result<(usize, Duration)> {
            // The first round opens connections.
            self.exchange_time(bytes, timeout)?;
            let times: Result<Vec<Duration>> =
                (0..ROUNDS).map(|_| self.exchange_time(bytes, timeout)).collect();
            let mut times = times?;
            times.sort();
            Ok((bytes, times[ROUNDS / 2]))
        };
        Ok(Network::fit([median(SIZES[0])?, median(SIZES[1])?]))
    }

    /// Returns how long it takes to send `bytes` bytes in equal parts to all other ranks, and to
    /// receive as many.
    fn exchange_time(self: &Arc<ProcessGroup>, bytes: usize, timeout: Duration) -> Result<Duration> {
        let (rank, size) = (self.rank(), self.size());
        let part = |peer: usize| if peer == rank { 0 } else { bytes / (size - 1) };
        let counts: Vec<usize> = (0..size).map(part).collect();
        let total = counts.iter().sum();
        let (send, receive) = (Buffer::zeroed(total), Buffer::zeroed(total));
        self.run(timeout, move |world, wait| {
            let begun = Instant::now();
            wait.for_request(world.all_to_all_v(send, &counts, receive, &counts)?)?;
            Ok(begun.elapsed())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_and_bandwidth_are_those_of_the_line_through_two_times() {
        let ms = Duration::from_millis;
        let network = Network::fit([(100_000, ms(3)), (1_100_000, ms(13))]);
        assert!((network.latency.as_secs_f64() - 2e-3).abs() < 1e-9, "{network:?}");
        assert!((network.bandwidth - 1e8).abs() < 1.0, "{network:?}");
        // Noise may make more bytes faster.
        let network = Network::fit([(100_000, ms(3)), (1_100_000, ms(2))]);
        assert!(network.bandwidth.is_finite() && network.latency == ms(3), "{network:?}");
    }
}
