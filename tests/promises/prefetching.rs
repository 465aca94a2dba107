//! A queue prefetches: batches are read while a step is blocked.

use crate::line::{Line, batches};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tensorpack::callback::RunCx;
use tensorpack::dataflow::DataFlow;
use tensorpack::input::{FeedInput, QueueInput};
use tensorpack::prelude::*;

/// The number of batches that a dataflow has read.
#[derive(Clone, Default)]
struct Reads(Arc<(Mutex<u64>, Condvar)>);

impl Reads {
    fn dataflow(&self) -> impl DataFlow + use<> {
        let reads = self.clone();
        batches(100, move || {
            *reads.0.0.lock().unwrap() += 1;
            reads.0.1.notify_all();
        })
    }

    /// Waits for `n` reads, at most `limit`. Returns the number of reads.
    fn wait_for(&self, n: u64, limit: Duration) -> u64 {
        let (count, changed) = &*self.0;
        *changed.wait_timeout_while(count.lock().unwrap(), limit, |count| *count < n).unwrap().0
    }
}

/// Blocks every step, after its batch was drawn, until the dataflow has made the number of reads
/// that `wanted` has for the step. Records the number of reads after the wait.
struct BlockSteps {
    reads: Reads,
    wanted: Vec<u64>,
    limit: Duration,
    seen: Arc<Mutex<Vec<u64>>>,
}

impl Callback for BlockSteps {
    fn before_run(&mut self, _: &mut RunCx<'_>) -> Result<()> {
        let mut seen = self.seen.lock().unwrap();
        let now = self.reads.wait_for(self.wanted[seen.len()], self.limit);
        seen.push(now);
        Ok(())
    }
}

/// Trains one epoch whose steps wait for these numbers of reads. Returns the reads of each step.
fn reads_of_blocked_steps(
    wanted: &[u64],
    limit: Duration,
    train: impl FnOnce(Reads, &dyn Fn(TrainConfig) -> TrainConfig),
) -> Vec<u64> {
    let (reads, seen) = (Reads::default(), Arc::<Mutex<Vec<u64>>>::default());
    let steps = wanted.len() as u64;
    train(reads.clone(), &|config: TrainConfig| {
        let hold = BlockSteps { reads: reads.clone(), wanted: wanted.to_vec(), limit, seen: seen.clone() };
        config.callback(hold).steps_per_epoch(steps).max_epoch(1).no_logdir()
    });
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), wanted.len());
    seen
}

/// Ample time for a thread to read; a test waits this long only if it fails.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Long enough for a thread to read more than it should.
const PAUSE: Duration = Duration::from_millis(100);

fn line() -> Line {
    Line(|| Sgd::new(0.1).boxed())
}

#[test]
fn a_queue_prefetches_while_a_step_is_blocked() {
    for capacity in [1, 3, 8] {
        let ahead = capacity as u64;
        // Step k has drawn k + 1 batches; the queue holds `capacity` more.
        let wanted: Vec<u64> = (1..=3).map(|drawn| drawn + ahead).collect();
        let seen = reads_of_blocked_steps(&wanted, TIME_LIMIT, |reads, finish| {
            let input = QueueInput::new(reads.dataflow()).capacity(capacity);
            let config = finish(TrainConfig::with_input(line(), input));
            launch_train_with_config(config, SimpleTrainer::new()).unwrap();
        });
        // The thread may hold one batch that the queue has no room for.
        for (seen, wanted) in seen.iter().zip(&wanted) {
            assert!((*wanted..=wanted + 1).contains(seen), "capacity {capacity}: {seen}, not {wanted}");
        }
    }
}

#[test]
fn a_feed_reads_on_demand() {
    // Waits for reads that must not happen.
    let seen = reads_of_blocked_steps(&[99, 99, 99], PAUSE, |reads, finish| {
        let config = finish(TrainConfig::with_input(line(), FeedInput::new(reads.dataflow())));
        launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    });
    assert_eq!(seen, [1, 2, 3]);
}

/// The trainers differ in how they read a dataflow, which the weights do not show.
#[test]
fn the_queue_input_trainer_prefetches_and_the_simple_trainer_does_not() {
    // The default capacity is 50 batches.
    let queue = reads_of_blocked_steps(&[51, 52], TIME_LIMIT, |reads, finish| {
        let config = finish(TrainConfig::new(line(), reads.dataflow()));
        QueueInputTrainer::from_config(config).train().unwrap();
    });
    assert!((51..=52).contains(&queue[0]) && (52..=53).contains(&queue[1]), "{queue:?}");
    let simple = reads_of_blocked_steps(&[99, 99], PAUSE, |reads, finish| {
        let config = finish(TrainConfig::new(line(), reads.dataflow()));
        SimpleTrainer::from_config(config).train().unwrap();
    });
    assert_eq!(simple, [1, 2]);
}
