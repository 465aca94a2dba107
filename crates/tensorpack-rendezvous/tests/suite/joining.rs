//! Joining: missing, doubled and mismatched ranks.

use crate::run::{LONG, coordinator, join_all, options, token};
use std::net::{IpAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_rendezvous::{Coordinator, Launch, LaunchOptions, MAX_RANKS, Rendezvous, Token, bind_address};
use tensorpack_tensor::{Error, ErrorKind};
use tensorpack_testing::assert_mentions;

fn refusal(joined: tensorpack_tensor::Result<Rendezvous>) -> Error {
    joined.err().expect("this rank is refused")
}

#[test]
fn missing_ranks_are_named_to_those_who_wait() {
    let options = options().join_timeout(Duration::from_millis(500));
    let (coordinator, address) = coordinator(4, &options);
    let (theirs, started) = (options.clone(), Instant::now());
    let other =
        thread::spawn(move || refusal(Rendezvous::join(&address.to_string(), 2, 4, &token(), &theirs)));
    let errors = [refusal(Rendezvous::join_own(coordinator, 4, &token(), &options)), other.join().unwrap()];
    assert!(started.elapsed() < Duration::from_secs(10));
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert_mentions(error, &["rank 1", "rank 3", "did not join", "2 of 4"]);
    }
}

#[test]
fn a_rank_waits_for_a_coordinator_that_starts_later() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("localhost:{port}");
    let theirs = address.clone();
    let other = thread::spawn(move || Rendezvous::join(&theirs, 1, 2, &token(), &options()).unwrap());
    thread::sleep(Duration::from_millis(300));
    let coordinator = Coordinator::start(("127.0.0.1", port), 2, &token(), &options()).unwrap();
    let rank = Rendezvous::join_own(coordinator, 2, &token(), &options()).unwrap();
    other.join().unwrap().leave(LONG).unwrap();
    rank.leave(LONG).unwrap();
}

#[test]
fn without_a_coordinator_joining_ends_in_time() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    // One that accepts and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [closed, silent.local_addr().unwrap().to_string(), "no-such-host.invalid:1".into()] {
        let options =
            options().join_timeout(Duration::from_millis(300)).peer_timeout(Duration::from_millis(300));
        let started = Instant::now();
        let error = refusal(Rendezvous::join(&address, 1, 2, &token(), &options));
        assert!(started.elapsed() < Duration::from_secs(8), "{address}: {:?}", started.elapsed());
        assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
        assert_mentions(error, &["rank 1", &address]);
    }
}

#[test]
fn mismatched_ranks_are_refused_by_name() {
    let (coordinator, address) = coordinator(2, &options());
    let address = address.to_string();
    let join = |rank, size, token: &Token| refusal(Rendezvous::join(&address, rank, size, token, &options()));
    let other_size = join(1, 3, &token());
    assert_eq!(other_size.kind(), ErrorKind::Argument);
    assert_mentions(other_size, &["3 ranks", "2"]);
    let no_such_rank = join(2, 2, &token());
    assert_mentions(no_such_rank, &["rank 2 of 2"]);
    // The rank finds that the coordinator has another token, and sends nothing made with its own.
    let other_token = join(1, 2, &Token::random());
    assert_eq!(other_token.kind(), ErrorKind::Argument);
    assert_mentions(other_token, &["token", "TENSORPACK_TOKEN"]);
    let ranks = join_all(coordinator, 2, &options());
    let doubled = join(1, 2, &token());
    assert_eq!(doubled.kind(), ErrorKind::Argument);
    assert_mentions(doubled, &["rank 1 has joined already"]);
    for rank in &ranks {
        rank.check().unwrap();
    }
}

#[test]
fn impossible_coordinators_are_errors() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let start =
        |size| Coordinator::start(taken.local_addr().unwrap(), size, &token(), &options()).err().unwrap();
    assert_eq!(start(1).kind(), ErrorKind::Io);
    assert_eq!(start(0).kind(), ErrorKind::Argument);
    assert_eq!(start(MAX_RANKS + 1).kind(), ErrorKind::Argument);
}

#[test]
fn one_host_listens_on_loopback_and_others_on_the_interface_asked_for() {
    let launch = |variables: &'static [(&str, &str)]| {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        Launch::from_variables(&LaunchOptions::default(), find).unwrap()
    };
    let one = launch(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")]);
    let many = launch(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1")]);
    let bind = |launch: &Launch, ip: Option<&str>, coordinator: &str| {
        let ip: Option<IpAddr> = ip.map(|ip| ip.parse().unwrap());
        bind_address(launch, ip, coordinator, &options()).unwrap().to_string()
    };
    assert_eq!(bind(&one, None, "node7:5"), "127.0.0.1:5");
    assert_eq!(bind(&one, Some("10.0.0.3"), "node7:5"), "10.0.0.3:5");
    assert_eq!(bind(&many, None, "10.0.0.9:5"), "10.0.0.9:5");
    assert_eq!(bind(&many, Some("0.0.0.0"), "10.0.0.9:5"), "0.0.0.0:5");
    assert_eq!(bind(&many, None, "127.0.0.1:5"), "127.0.0.1:5");
    assert!(bind_address(&many, None, "no-such-host.invalid:5", &options()).is_err());
}

#[test]
fn a_launch_without_a_launcher_starts_alone() {
    let launch = Launch::from_variables(&LaunchOptions::default(), |_| None).unwrap();
    let rank = Rendezvous::start(&launch, None, &token(), &options()).unwrap();
    assert_eq!((rank.rank(), rank.size(), rank.local_rank()), (0, 1, 0));
    rank.barrier("alone", LONG).unwrap();
    rank.leave(LONG).unwrap();
    let mpi = |name: &str| match name {
        "PMI_RANK" => Some("0".into()),
        "PMI_SIZE" => Some("2".into()),
        _ => None,
    };
    let launch = Launch::from_variables(&LaunchOptions::default(), mpi).unwrap();
    let error = refusal(Rendezvous::start(&launch, None, &token(), &options()));
    assert_mentions(error, &["coordinator", "TENSORPACK_COORDINATOR"]);
}
