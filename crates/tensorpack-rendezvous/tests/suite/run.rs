//! Runs a function on several ranks.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tensorpack_rendezvous::{Coordinator, Options, Rendezvous, Token};

/// Longer than anything takes that succeeds.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) fn token() -> Token {
    Token::new("the token of these tests").unwrap()
}

/// Heartbeats are frequent, but a busy machine makes nobody look dead.
pub(crate) fn options() -> Options {
    Options::new()
        .heartbeat(Duration::from_millis(50))
        .peer_timeout(Duration::from_secs(20))
        .join_timeout(Duration::from_secs(20))
}

/// Options whose warnings are collected.
pub(crate) fn collecting() -> (Options, Arc<Mutex<Vec<String>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let log = warnings.clone();
    (options().on_warning(move |text| log.lock().unwrap().push(text.to_owned())), warnings)
}

pub(crate) fn coordinator(size: u32, options: &Options) -> (Coordinator, SocketAddr) {
    let coordinator = Coordinator::start("127.0.0.1:0", size, &token(), options).unwrap();
    let address = coordinator.address();
    (coordinator, address)
}

/// Joins all ranks, each on a thread of its own.
pub(crate) fn join_all(coordinator: Coordinator, size: u32, options: &Options) -> Vec<Rendezvous> {
    let address = coordinator.address().to_string();
    let join = |rank| {
        let (address, options) = (address.clone(), options.clone());
        thread::spawn(move || Rendezvous::join(&address, rank, size, &token(), &options).unwrap())
    };
    let others: Vec<_> = (1..size).map(join).collect();
    let mut ranks = vec![Rendezvous::join_own(coordinator, size, &token(), options).unwrap()];
    ranks.extend(others.into_iter().map(|thread| thread.join().unwrap()));
    ranks
}

/// Runs a function on each of `size` ranks, on a thread of its own. Returns the results.
pub(crate) fn on_ranks<T: Send + 'static>(
    size: u32,
    run: impl Fn(Rendezvous) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let ranks = join_all(coordinator(size, &options()).0, size, &options());
    let run = Arc::new(run);
    let start = |rank| {
        let run = run.clone();
        thread::spawn(move || run(rank))
    };
    let threads: Vec<_> = ranks.into_iter().map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}
