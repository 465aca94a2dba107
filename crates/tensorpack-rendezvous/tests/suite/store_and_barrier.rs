//! The key-value store and barriers.

use crate::run::{LONG, on_ranks};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_rendezvous::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use tensorpack_tensor::ErrorKind;
use tensorpack_testing::assert_mentions;

#[test]
fn every_rank_reads_what_every_rank_wrote() {
    for size in [1, 2, 8] {
        let sums = on_ranks(size, move |rank| {
            let value = |rank: u32| vec![rank as u8; 1000 * rank as usize];
            rank.put(&format!("from/{}", rank.rank()), &value(rank.rank())).unwrap();
            for other in 0..size {
                assert_eq!(rank.get(&format!("from/{other}"), LONG).unwrap(), value(other));
            }
            assert_eq!(rank.hosts().len(), size as usize);
            assert_eq!(rank.local_rank(), rank.rank());
            rank.leave(LONG).unwrap();
            1
        });
        assert_eq!(sums.len(), size as usize);
    }
}

/// What PJRT's callbacks rely on.
#[test]
fn a_key_is_written_once_and_a_missing_one_is_not_found() {
    let outcomes = on_ranks(3, |rank| {
        assert_eq!(rank.try_get("never").unwrap(), None);
        let first = match rank.put("id", &[rank.rank() as u8, 0, 255]) {
            Ok(()) => true,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Name);
                assert_mentions(e, &["\"id\""]);
                false
            }
        };
        rank.barrier("written", LONG).unwrap();
        let value = rank.try_get("id").unwrap().unwrap();
        assert_eq!(value[1..], [0, 255]);
        rank.leave(LONG).unwrap();
        (first, value[0])
    });
    assert_eq!(outcomes.iter().filter(|(first, _)| *first).count(), 1);
    assert!(outcomes.iter().all(|(_, value)| *value == outcomes[0].1));
}

#[test]
fn several_threads_of_a_rank_wait_at_a_time() {
    on_ranks(2, |rank| {
        let rank = Arc::new(rank);
        let get = |i: u32| {
            let rank = rank.clone();
            thread::spawn(move || rank.get(&format!("key{i}"), LONG).unwrap())
        };
        let threads: Vec<_> = (0..10).map(get).collect();
        if rank.rank() == 1 {
            (0..10u8).rev().for_each(|i| rank.put(&format!("key{i}"), &[i]).unwrap());
        }
        let values: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(values, (0..10u8).map(|i| vec![i]).collect::<Vec<_>>());
        Arc::into_inner(rank).unwrap().leave(LONG).unwrap();
    });
}

#[test]
fn a_wait_for_a_missing_key_ends_in_time() {
    on_ranks(1, |rank| {
        for timeout in [Duration::ZERO, Duration::from_millis(150)] {
            let started = Instant::now();
            let error = rank.get("nothing", timeout).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Deadline);
            assert_mentions(error, &["nothing"]);
            assert!(started.elapsed() >= timeout && started.elapsed() < timeout + Duration::from_secs(5));
        }
        // A timeout beyond what clocks can hold.
        rank.put("something", b"1").unwrap();
        assert_eq!(rank.get("something", Duration::MAX).unwrap(), b"1");
        rank.leave(LONG).unwrap();
    });
}

#[test]
fn keys_and_values_are_bounded() {
    on_ranks(1, |rank| {
        let key = "k".repeat(MAX_KEY_BYTES);
        let value = vec![7; MAX_VALUE_BYTES];
        rank.put(&key, &value).unwrap();
        assert!(rank.get(&key, LONG).unwrap() == value);
        for (key, value) in
            [(&*format!("{key}k"), &value[..1]), ("", b"1"), ("long", &[&value[..], &[1]].concat())]
        {
            let error = rank.put(key, value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
        }
        assert_eq!(rank.get("", LONG).unwrap_err().kind(), ErrorKind::Argument);
        rank.leave(LONG).unwrap();
    });
}

#[test]
fn a_barrier_holds_every_rank_until_the_last() {
    static ARRIVED: AtomicU32 = AtomicU32::new(0);
    on_ranks(8, |rank| {
        for round in 1..=20 {
            ARRIVED.fetch_add(1, Ordering::SeqCst);
            rank.barrier("round", LONG).unwrap();
            assert!(ARRIVED.load(Ordering::SeqCst) >= 8 * round);
        }
        rank.leave(LONG).unwrap();
    });
}

#[test]
fn an_incomplete_barrier_names_who_is_missing_and_what_it_does() {
    on_ranks(4, |rank| {
        rank.begin_step(17).unwrap();
        rank.set_activity("reading samples");
        // The progress reaches the coordinator with a heartbeat.
        let reached = |peers: Vec<tensorpack_rendezvous::PeerStatus>| peers[2].step == Some(17);
        while rank.rank() == 0 && !reached(rank.peers(LONG).unwrap()) {
            thread::sleep(Duration::from_millis(10));
        }
        rank.barrier("all know", LONG).unwrap();
        if rank.rank() != 2 {
            let error = rank.barrier("commit", Duration::from_millis(300)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Deadline);
            if rank.rank() == 0 {
                assert_mentions(&error, &["\"commit\"", "rank 2 on ", "step 17", "reading samples"]);
            }
        }
        rank.barrier("after", LONG).unwrap();
        rank.leave(LONG).unwrap();
    });
}

#[test]
fn a_barrier_with_a_rank_that_left_is_an_error() {
    on_ranks(2, |rank| {
        if rank.rank() == 1 {
            return rank.leave(LONG).unwrap();
        }
        let error = rank.barrier("b", LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert_mentions(error, &["rank 1", "left"]);
        assert_eq!(rank.failure(), None);
        rank.leave(LONG).unwrap();
    });
}
