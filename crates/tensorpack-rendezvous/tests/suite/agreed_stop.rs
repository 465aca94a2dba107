//! All ranks run the same last step.

use crate::run::{LONG, on_ranks};
use std::thread;
use std::time::Duration;
use tensorpack_rendezvous::NextStep;
use tensorpack_tensor::CounterRng;

#[test]
fn ranks_of_different_speed_stop_after_the_same_step() {
    for seed in 0..5 {
        let counts = on_ranks(6, move |rank| {
            let rng = CounterRng::new(seed, &format!("rank {}", rank.rank()));
            let mut step = 0;
            while rank.begin_step(step).unwrap() == NextStep::Run {
                thread::sleep(Duration::from_micros((rng.word(0, step) % 2000).into()));
                if step == 20 && rank.rank() % 3 == 2 {
                    rank.request_stop().unwrap();
                }
                step += 1;
            }
            assert_eq!(rank.last_step(), Some(step - 1));
            rank.barrier("saved", LONG).unwrap();
            rank.leave(LONG).unwrap();
            step
        });
        assert!(counts.iter().all(|count| *count == counts[0] && *count > 20), "{counts:?}");
    }
}

#[test]
fn a_run_that_has_not_begun_stops_before_its_first_step() {
    on_ranks(3, |rank| {
        rank.request_stop().unwrap();
        rank.barrier("asked", LONG).unwrap();
        assert_eq!(rank.begin_step(0).unwrap(), NextStep::Stop);
        assert_eq!(rank.last_step(), None);
        rank.leave(LONG).unwrap();
    });
}

#[test]
fn a_rank_that_left_holds_up_no_agreement() {
    on_ranks(2, |rank| {
        if rank.rank() == 1 {
            return rank.leave(LONG).unwrap();
        }
        rank.begin_step(3).unwrap();
        while !rank.peers(LONG).unwrap()[1].left {
            thread::sleep(Duration::from_millis(5));
        }
        rank.request_stop().unwrap();
        let mut step = 4;
        while rank.begin_step(step).unwrap() == NextStep::Run {
            thread::sleep(Duration::from_millis(1));
            step += 1;
        }
        rank.leave(LONG).unwrap();
    });
}
