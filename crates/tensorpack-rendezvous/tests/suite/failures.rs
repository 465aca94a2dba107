//! The first failure reaches every rank.

use crate::run::{LONG, coordinator, join_all, on_ranks, options};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_rendezvous::{NextStep, Rendezvous};
use tensorpack_tensor::ErrorKind;
use tensorpack_testing::assert_mentions;

#[test]
fn every_rank_learns_the_first_failure_and_all_waits_end() {
    on_ranks(8, |rank| {
        rank.begin_step(5).unwrap();
        rank.barrier("begun", LONG).unwrap();
        let started = Instant::now();
        let error = match rank.rank() {
            3 => rank.fail("conv0/W at model.rs:7", "the gradient is not finite", LONG).to_error(),
            even if even % 2 == 0 => rank.get("never", LONG).unwrap_err(),
            _ => rank.barrier("never", LONG).unwrap_err(),
        };
        assert!(started.elapsed() < Duration::from_secs(10));
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert_mentions(&error, &["rank 3 on ", "step 5", "conv0/W at model.rs:7", "not finite"]);
        // Everything after it fails with the same error.
        for error in [
            rank.check().unwrap_err(),
            rank.begin_step(6).unwrap_err(),
            rank.put("k", b"v").unwrap_err(),
            rank.try_get("k").unwrap_err(),
            rank.barrier("b", LONG).unwrap_err(),
            rank.request_stop().unwrap_err(),
        ] {
            assert_eq!(
                (error.kind(), error.message()),
                (ErrorKind::Peer, rank.failure().unwrap().to_string().as_str())
            );
        }
        // A second failure changes nothing.
        assert_eq!(rank.fail("elsewhere", "later", LONG).rank, 3);
        // The report about a failed run still works, as long as rank 0 is there.
        let started = Instant::now();
        let peers = rank.peers(LONG);
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        assert!(rank.rank() != 0 || peers.unwrap().len() == 8);
    });
}

#[test]
fn of_many_failures_all_ranks_see_the_same() {
    let seen = on_ranks(8, |rank| {
        let first = rank.fail("here", &format!("failure of {}", rank.rank()), LONG);
        assert_eq!(first.message, format!("failure of {}", first.rank));
        first.rank
    });
    assert!(seen.iter().all(|rank| *rank == seen[0]), "{seen:?}");
}

/// A failure without a place names what the rank was doing.
#[test]
fn a_failure_names_the_activity_if_nothing_else() {
    on_ranks(2, |rank| {
        rank.set_activity("reading batches");
        let error = match rank.rank() {
            0 => rank.get("never", LONG).unwrap_err(),
            _ => rank.fail("", "the file is gone", LONG).to_error(),
        };
        assert_mentions(&error, &["rank 1 on ", "reading batches", "the file is gone"]);
    });
}

/// The answers to heartbeats tell every rank what rank 0 is doing.
#[test]
fn the_status_of_the_coordinator_is_known_without_asking() {
    on_ranks(2, |rank| {
        if rank.rank() == 0 {
            rank.begin_step(4).unwrap();
            rank.set_activity("saving");
        }
        let started = Instant::now();
        while rank.coordinator_status().activity != "saving" {
            assert!(started.elapsed() < LONG);
            thread::sleep(Duration::from_millis(5));
        }
        assert_mentions(rank.coordinator_status(), &["rank 0 on ", "step 4", "saving", "last heard"]);
        rank.barrier("seen", LONG).unwrap();
    });
}

#[test]
fn a_rank_that_is_dropped_without_leaving_has_failed() {
    on_ranks(3, |rank| {
        rank.begin_step(2).unwrap();
        rank.set_activity("forward");
        while rank.rank() == 1 && rank.peers(LONG).unwrap()[1].step != Some(2) {
            thread::sleep(Duration::from_millis(10));
        }
        rank.barrier("begun", LONG).unwrap();
        if rank.rank() == 1 {
            return;
        }
        let error = rank.barrier("never", LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert_mentions(error, &["rank 1 on ", "step 2", "forward", "lost"]);
        let failure = rank.fail("here", "because of rank 1", LONG);
        assert_eq!(failure.rank, 1);
    });
}

#[test]
fn the_end_of_rank_0_is_known_to_all() {
    on_ranks(3, |rank| {
        rank.begin_step(9).unwrap();
        while rank.rank() == 0 && rank.peers(LONG).unwrap()[0].step != Some(9) {
            thread::sleep(Duration::from_millis(10));
        }
        rank.barrier("begun", LONG).unwrap();
        // Heartbeats are answered with the progress of rank 0.
        thread::sleep(Duration::from_millis(300));
        if rank.rank() == 0 {
            return;
        }
        let error = rank.get("never", LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert_mentions(error, &["rank 0 on ", "step 9", "lost"]);
        // The coordinator may still answer while it is dropped; then nothing waits for it.
        let started = Instant::now();
        while let Ok(peers) = rank.peers(LONG) {
            assert_eq!(peers.len(), 3);
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        assert_eq!(rank.peers(LONG).unwrap_err().kind(), ErrorKind::Peer);
    });
}

#[test]
fn a_slow_rank_is_not_a_dead_one() {
    let options = options().peer_timeout(Duration::from_secs(2));
    let ranks = join_all(coordinator(2, &options).0, 2, &options);
    let work = |rank: Rendezvous| {
        thread::spawn(move || {
            assert_eq!(rank.begin_step(0).unwrap(), NextStep::Run);
            rank.set_activity("a long step");
            thread::sleep(Duration::from_secs(3));
            rank.barrier("end", LONG).unwrap();
            let peers = rank.peers(LONG).unwrap();
            assert!(peers.iter().all(|peer| peer.unchanged > peer.silent), "{peers:?}");
            rank.leave(LONG).unwrap();
        })
    };
    ranks.into_iter().map(work).collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}
