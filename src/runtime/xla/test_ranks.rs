//! For tests: the ranks of a run, all in this process.

use crate::distributed::ProcessGroup;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tensorpack_rendezvous::{Coordinator, Options, Rendezvous, Token};

/// Joins `size` ranks. A rank that is dropped without leaving is dead for the others.
pub(super) fn join_all(size: u32) -> Vec<Arc<ProcessGroup>> {
    let token = Token::random();
    // Heartbeats are frequent, but a busy machine makes nobody look dead.
    let options = Options::new().heartbeat(Duration::from_millis(50)).peer_timeout(Duration::from_secs(20));
    let coordinator = Coordinator::start("127.0.0.1:0", size, &token, &options).unwrap();
    let address = coordinator.address().to_string();
    let join = |rank| {
        let (address, token, options) = (address.clone(), token.clone(), options.clone());
        thread::spawn(move || Rendezvous::join(&address, rank, size, &token, &options).unwrap())
    };
    let others: Vec<_> = (1..size).map(join).collect();
    let first = Rendezvous::join_own(coordinator, size, &token, &options).unwrap();
    let others = others.into_iter().map(|thread| thread.join().unwrap());
    std::iter::once(first).chain(others).map(ProcessGroup::from_rendezvous).collect()
}
