//! loom models of the worker threads. Each runs the code of [`WorkerPool`] under every schedule, up
//! to the limit on preemptions in `LOOM_MAX_PREEMPTIONS`. Waits with a timeout never time out in
//! loom, so a lost wake-up is a deadlock, which loom reports.

use super::worker_pool::{PoolOptions, Task, WorkerPool};
use crate::State;
use std::time::Duration;
use tensorpack_tensor::{ErrorKind, HostTensor};

const SAMPLES: u64 = 2;

fn pool(workers: usize, buffer_size: usize, keep_order: bool, bad: Option<u64>) -> WorkerPool {
    let timeout = Duration::from_secs(3600);
    let options = PoolOptions { stage: "model", workers, buffer_size, keep_order, timeout };
    let mut at = State::start();
    let next = move || {
        let State { epoch, index, .. } = at;
        let work = Ok((index < SAMPLES).then_some(index));
        at.advance(&work);
        Task { work, state: at.clone(), epoch, index }
    };
    let work = move |index: u64| {
        if Some(index) == bad {
            // Without the panic hook, which prints.
            std::panic::resume_unwind(Box::new("bad sample"));
        }
        Ok(vec![HostTensor::scalar(index as i64)])
    };
    WorkerPool::start(&options, State::start(), next, work).unwrap()
}

/// Reads a sample and returns its number.
fn number(pool: &mut WorkerPool) -> Option<i64> {
    pool.read().unwrap().map(|sample| sample[0].as_slice::<i64>().unwrap()[0])
}

/// A consumer that waits, a worker that waits for room, and the end: each is woken.
#[test]
fn one_worker_and_one_slot() {
    loom::model(|| {
        let mut pool = pool(1, 1, true, None);
        assert_eq!(number(&mut pool), Some(0));
        assert_eq!(number(&mut pool), Some(1));
        assert_eq!(number(&mut pool), None);
        assert_eq!(pool.state(), State::at(1, 0));
    });
}

/// Every sample arrives once and in order, whichever worker computes it.
#[test]
fn two_workers_keep_the_order() {
    loom::model(|| {
        let mut pool = pool(2, 2, true, None);
        assert_eq!(number(&mut pool), Some(0));
        assert_eq!(number(&mut pool), Some(1));
    });
}

/// Without an order, every sample still arrives once, and the end of the pass comes last.
#[test]
fn two_workers_without_an_order_lose_nothing() {
    let mut model = loom::model::Builder::new();
    // Three reads by three threads have too many schedules with more preemptions.
    model.preemption_bound = Some(2);
    model.check(|| {
        let mut pool = pool(2, 2, false, None);
        let mut found = [number(&mut pool), number(&mut pool)];
        found.sort();
        assert_eq!(found, [Some(0), Some(1)]);
        assert_eq!(number(&mut pool), None);
    });
}

/// A panic in a worker is an error in its place, and the samples after it still arrive.
#[test]
fn a_panic_holds_up_no_one() {
    loom::model(|| {
        let mut pool = pool(2, 2, true, Some(0));
        assert_eq!(pool.read().unwrap_err().kind(), ErrorKind::Data);
        assert_eq!(number(&mut pool), Some(1));
    });
}

/// Dropping a pool ends workers that wait for room and workers that have not begun.
#[test]
fn dropping_a_pool_ends_its_workers() {
    for reads in 0..2 {
        loom::model(move || {
            let mut pool = pool(2, 1, true, None);
            (0..reads).for_each(|_| drop(pool.read().unwrap()));
        });
    }
}
