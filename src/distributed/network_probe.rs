//! Measures the network between ranks.

use super::process_group::ProcessGroup;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorpack_mpi::Buffer;
use tensorpack_tensor::{Error, Result};

/// The bytes that a rank sends to all others together, in the two kinds of exchanges.
const SIZES: [usize; 2] = [4 << 10, 256 << 10];
/// Exchanges that follow each other without a pause. A rank alone may begin late, when it has got
/// what others sent; the mean of several in a row is what each takes.
const EXCHANGES: u32 = 8;
/// How often a row is repeated; the median counts.
const ROWS: usize = 5;

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
            // The first row opens connections.
            self.exchange_time(bytes, timeout)?;
            let rows: Result<Vec<Duration>> = (0..ROWS).map(|_| self.exchange_time(bytes, timeout)).collect();
            let mut rows = rows?;
            rows.sort();
            Ok((bytes, rows[ROWS / 2]))
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
        let (mut send, mut receive) = (Buffer::zeroed(total), Buffer::zeroed(total));
        self.run(timeout, move |world, wait| {
            let begun = Instant::now();
            for _ in 0..EXCHANGES {
                let done = wait.for_request(world.all_to_all_v(send, &counts, receive, &counts)?)?;
                (send, receive) = (done.send, done.receive);
            }
            Ok(begun.elapsed() / EXCHANGES)
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
