//! Predicts the time of a training step on p ranks; `docs/scaling.md` explains the model.

use tensorpack::distributed::Network;

/// Up to this many bytes, MPICH gathers in log2(p) rounds if p is a power of two. Beyond, or if it
/// is not, it does in p - 1 rounds, a ring.
const RING_FROM: f64 = 512.0 * 1024.0;

/// A training step on one rank, without communication. Times are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// Until the backward pass begins.
    pub(crate) forward: f64,
    /// The backward pass.
    pub(crate) backward: f64,
    /// The rest: updates of variables.
    pub(crate) rest: f64,
    /// The time until the next batch is there.
    pub(crate) input: f64,
    /// The bytes of each bucket, in the order in which they are sent. They become ready at equal
    /// distances in the backward pass, the last one with its end.
    pub(crate) buckets: Vec<f64>,
    /// The standard deviation of the time of a step on one rank.
    pub(crate) deviation: f64,
}

/// How ranks are connected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Topology {
    /// Between nodes, for each rank that leaves its node.
    pub(crate) network: Link,
    /// Ranks of one node, and the network among them.
    pub(crate) node: Option<(usize, Link)>,
    pub(crate) algorithm: Algorithm,
}

/// The latency in seconds, and the bytes per second in each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Link {
    pub(crate) latency: f64,
    pub(crate) bandwidth: f64,
}

impl From<Network> for Link {
    fn from(network: Network) -> Link {
        Link { latency: network.latency.as_secs_f64(), bandwidth: network.bandwidth }
    }
}

/// How a bucket is summed, which decides how often its latency counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Algorithm {
    /// Ours over MPI: an exchange of all with all, and a gather.
    Exchange,
    /// A ring: 2(p - 1) rounds.
    Ring,
    /// Two binary trees, as NCCL's between nodes: 2 log2(p) rounds.
    Tree,
}

/// A prediction, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prediction {
    pub(crate) step: f64,
    /// The time of all exchanges, one after the other.
    pub(crate) transfer: f64,
    /// The part of it that computing does not hide.
    pub(crate) exposed: f64,
}

/// Predicts a step on `ranks` ranks.
pub(crate) fn predict(step: &Step, topology: &Topology, ranks: usize) -> Prediction {
    let computed = step.forward + step.backward;
    let (mut free, mut transfer) = (0.0_f64, 0.0);
    for (i, bytes) in step.buckets.iter().enumerate() {
        let ready = step.forward + step.backward * (i + 1) as f64 / step.buckets.len() as f64;
        let cost = bucket_cost(*bytes, topology, ranks);
        free = free.max(ready) + cost;
        transfer += cost;
    }
    let exposed = (free - computed).max(0.0) + agreement_cost(topology, ranks);
    let alone = computed + exposed + step.rest;
    Prediction { step: alone.max(step.input) + straggler(step.deviation, ranks), transfer, exposed }
}

/// Returns how long it takes to sum up a bucket over all ranks.
pub(crate) fn bucket_cost(bytes: f64, topology: &Topology, ranks: usize) -> f64 {
    let flat = |ranks: usize, bytes: f64, link: Link| {
        if ranks < 2 {
            return 0.0;
        }
        let p = ranks as f64;
        let rounds = match topology.algorithm {
            Algorithm::Ring => 2.0 * (p - 1.0),
            Algorithm::Tree => 2.0 * rounds_of_pairs(ranks),
            // Both send all they have, and add up everything.
            Algorithm::Exchange if ranks == 2 => 1.0,
            Algorithm::Exchange => 1.0 + gather_rounds(ranks, bytes),
        };
        rounds * link.latency + 2.0 * bytes * (p - 1.0) / (p * link.bandwidth)
    };
    match topology.node {
        // Reduce-scatter in the node, sums over the nodes of each rank's part, gather in the node.
        Some((each, inside)) if ranks > each => {
            let nodes = ranks.div_ceil(each);
            flat(each, bytes, inside) + flat(nodes, bytes / each as f64, topology.network)
        }
        Some((_, inside)) => flat(ranks, bytes, inside),
        None => flat(ranks, bytes, topology.network),
    }
}

/// Returns log2 of the number of ranks, rounded up.
fn rounds_of_pairs(ranks: usize) -> f64 {
    f64::from(ranks.next_power_of_two().ilog2())
}

fn gather_rounds(ranks: usize, bytes: f64) -> f64 {
    match ranks.is_power_of_two() && bytes < RING_FROM {
        true => rounds_of_pairs(ranks),
        false => ranks as f64 - 1.0,
    }
}

/// Before they update, the ranks agree that all values are finite: a gather of one byte, or a sum of
/// one element on accelerators.
fn agreement_cost(topology: &Topology, ranks: usize) -> f64 {
    match topology.algorithm {
        Algorithm::Exchange => rounds_of_pairs(ranks) * topology.network.latency,
        _ => bucket_cost(4.0, &Topology { algorithm: Algorithm::Tree, ..*topology }, ranks),
    }
}

/// Returns how much longer than the mean the slowest of `ranks` ranks takes: about what is expected
/// of the largest of normally distributed times.
fn straggler(deviation: f64, ranks: usize) -> f64 {
    deviation * (2.0 * (ranks.max(1) as f64).ln()).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { latency: 1e-3, bandwidth: 1e8 };

    fn flat(algorithm: Algorithm) -> Topology {
        Topology { network: LINK, node: None, algorithm }
    }

    fn step(buckets: Vec<f64>) -> Step {
        Step { forward: 0.010, backward: 0.020, rest: 0.002, input: 0.0, buckets, deviation: 0.0 }
    }

    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} instead of {expected}");
    }

    #[test]
    fn a_rank_alone_communicates_nothing() {
        let alone = predict(&step(vec![1e6; 4]), &flat(Algorithm::Ring), 1);
        assert_eq!((alone.exposed, alone.transfer), (0.0, 0.0));
        assert_near(alone.step, 0.032);
    }

    #[test]
    fn a_bucket_costs_rounds_of_latency_and_its_bytes() {
        let cost = |algorithm, ranks| bucket_cost(1e5, &flat(algorithm), ranks);
        assert_near(cost(Algorithm::Ring, 4), 6e-3 + 1.5e-3);
        assert_near(cost(Algorithm::Tree, 5), 6e-3 + 1.6e-3);
        assert_near(cost(Algorithm::Exchange, 2), 1e-3 + 1e-3);
        assert_near(cost(Algorithm::Exchange, 4), 3e-3 + 1.5e-3);
        assert_near(cost(Algorithm::Exchange, 8), 4e-3 + 1.75e-3);
        // Not a power of two: a ring gathers.
        assert_near(cost(Algorithm::Exchange, 6), 6e-3 + 2e-3 * 5.0 / 6.0);
    }

    #[test]
    fn only_what_the_backward_pass_does_not_hide_is_exposed() {
        // Two buckets of 2 ms are ready after 10 ms and 20 ms of the backward pass: only the last is
        // exposed, and the agreement.
        let hidden = predict(&step(vec![1e5; 2]), &flat(Algorithm::Exchange), 2);
        assert_near(hidden.exposed, 2e-3 + 1e-3);
        assert_near(hidden.transfer, 4e-3);
        assert_near(hidden.step, 0.032 + 3e-3);
        // Two buckets of 21 ms: the second waits for the first.
        let long = predict(&step(vec![2e6; 2]), &flat(Algorithm::Exchange), 2);
        assert_near(long.exposed, 2.0 * 21e-3 - 10e-3 + 1e-3);
    }

    #[test]
    fn a_step_takes_at_least_as_long_as_its_input_and_the_slowest_rank() {
        let slow = Step { input: 0.1, deviation: 1e-3, ..step(vec![1e5]) };
        let predicted = predict(&slow, &flat(Algorithm::Ring), 8);
        assert!(predicted.exposed < 0.05, "{predicted:?}");
        assert_near(predicted.step, 0.1 + 1e-3 * (2.0 * 8f64.ln()).sqrt());
    }

    #[test]
    fn nodes_send_only_a_part_of_each_bucket_over_the_network() {
        let inside = Link { latency: 1e-5, bandwidth: 1e10 };
        let topology = Topology { network: LINK, node: Some((8, inside)), algorithm: Algorithm::Ring };
        let in_node = 14.0 * 1e-5 + 2.0 * 8e6 * 7.0 / (8.0 * 1e10);
        assert_near(bucket_cost(8e6, &topology, 8), in_node);
        assert_near(bucket_cost(8e6, &topology, 16), in_node + 2e-3 + 2.0 * 1e6 / (2.0 * 1e8));
    }
}
