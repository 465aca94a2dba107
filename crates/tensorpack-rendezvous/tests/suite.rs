//! Ranks as threads of one process.

#[path = "suite/run.rs"]
mod run;
#[path = "suite/store_and_barrier.rs"]
mod store_and_barrier;
#[path = "suite/failures.rs"]
mod failures;
#[path = "suite/joining.rs"]
mod joining;
#[path = "suite/strangers.rs"]
mod strangers;
#[path = "suite/agreed_stop.rs"]
mod agreed_stop;
