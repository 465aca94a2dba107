//! A rank dies, stops or fails: the others get an error within their deadline.

use crate::launch::{CASE, Installation, Run, init, report};
use std::env;
use std::process::{self, Command};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_mpi::{Buffer, World};
use tensorpack_rendezvous::{Coordinator, Options, PeerStatus, Rendezvous, Token};
use tensorpack_tensor::{Error, ErrorKind, Result};
use tensorpack_testing::assert_mentions;

const RANKS: usize = 3;
/// The rank that fails. Not 0, which is special to some launchers.
const VICTIM: usize = 1;
const DEADLINE: Duration = Duration::from_secs(3);

/// Runs three ranks, and checks what the survivors report.
#[track_caller]
fn survivors_report(installation: &Installation, case: &str, terms: &[&str]) -> Run {
    let mut run = installation.start(RANKS, "faults", case);
    for rank in (0..RANKS).filter(|rank| *rank != VICTIM) {
        let text = run.wait_for_report(rank);
        let (seconds, error) = text.split_once(' ').unwrap();
        let seconds: f64 = seconds.parse().unwrap();
        assert!(seconds < DEADLINE.as_secs_f64() + 2.0, "{:?}: rank {rank}: {text}", installation.library);
        assert_mentions(error, terms);
    }
    run
}

pub(crate) fn killed(installation: &Installation) {
    let terms = ["rank ", " of 3", "all-to-all", "not finalized"];
    let mut run = survivors_report(installation, "KILL", &terms);
    // A launcher that returns success for a run with a dead rank would end a job as if it were done.
    assert_eq!(run.wait(), Some(false), "{:?}: {}", installation.library, run.output());
}

pub(crate) fn stopped(installation: &Installation) {
    let terms = ["Deadline", "rank ", " of 3", "all-to-all", "not finalized"];
    let mut run = survivors_report(installation, "STOP", &terms);
    // Nor must it wait for the stopped rank.
    assert_eq!(run.wait(), Some(false), "{:?}: {}", installation.library, run.output());
}

pub(crate) fn known_failure(installation: &Installation) {
    survivors_report(installation, "known", &["Peer", "rank 1 is gone", "not finalized"]);
}

pub(crate) fn named(installation: &Installation) {
    let terms = ["Peer", "rank 1 on ", "step 20", "exchanging gradients", "lost", "not finalized"];
    survivors_report(installation, "named", &terms);
}

/// The error is MPI's own, with its text; no rank waits for the deadline of 100 s.
pub(crate) fn mismatch(installation: &Installation) {
    survivors_report(installation, "mismatch", &["Engine", "broadcast", "MPI says: ", "not finalized"]);
}

pub(crate) fn finalize(installation: &Installation) {
    survivors_report(installation, "finalize", &["Deadline", "MPI_Finalize", "barrier"]);
}

/// Ends this process without exit handlers, which may wait for MPI.
fn die() -> ! {
    let _ = Command::new("kill").args(["-KILL", &process::id().to_string()]).status();
    thread::sleep(Duration::from_secs(60));
    process::abort()
}

pub(crate) fn run() {
    let world = init();
    let (rank, case) = (world.rank(), env::var(CASE).unwrap());
    for _ in 0..20 {
        exchange(&world, DEADLINE, &|| Ok(())).unwrap();
    }
    let joined = (case == "named").then(|| join(&world));
    if rank == VICTIM {
        fail(&case, &world);
    }
    let started = Instant::now();
    let error = match &case[..] {
        "finalize" => {
            let error = world.finalize(DEADLINE).unwrap_err();
            report(rank, &format!("{:.3} {:?}: {error}", started.elapsed().as_secs_f64(), error.kind()));
            die()
        }
        "known" => {
            let known = || match started.elapsed() > Duration::from_millis(300) {
                true => Err(Error::new(ErrorKind::Peer, "rank 1 is gone")),
                false => Ok(()),
            };
            exchange(&world, Duration::from_secs(100), &known).unwrap_err()
        }
        // The victim sends more than the others have room for.
        "mismatch" => broadcast(&world, 10).unwrap_err(),
        "named" => {
            let check = || joined.as_ref().map_or(Ok(()), Rendezvous::check);
            exchange(&world, Duration::from_secs(100), &check).unwrap_err()
        }
        _ => loop {
            if let Err(e) = exchange(&world, DEADLINE, &|| Ok(())) {
                break e;
            }
        },
    };
    let seconds = started.elapsed().as_secs_f64();
    // Nothing more is sent.
    assert!(!world.is_healthy());
    assert_eq!(world.barrier().err().unwrap().kind(), ErrorKind::Engine);
    let end = world.finalize(DEADLINE).unwrap_err();
    report(rank, &format!("{seconds:.3} {:?}: {error}; {end}", error.kind()));
    die()
}

/// Joins the control plane as a trainer does: rank 0 serves it, and hands its address and a token to
/// the others over MPI. Returns when the coordinator knows the progress of all.
fn join(world: &World) -> Rendezvous {
    let options = Options::new().heartbeat(Duration::from_millis(50));
    let (rank, size) = (world.rank() as u32, world.size() as u32);
    let token = Token::random();
    let own = (rank == 0).then(|| Coordinator::start("127.0.0.1:0", size, &token, &options).unwrap());
    let mut buffer = Buffer::zeroed(128);
    if let Some(coordinator) = &own {
        let text = format!("{} {}", coordinator.address(), token.as_str());
        buffer[..text.len()].copy_from_slice(text.as_bytes());
    }
    let request = world.broadcast(0, buffer).unwrap();
    let received = request.wait(Instant::now() + Duration::from_secs(30), &|| Ok(())).unwrap().receive;
    let text = String::from_utf8(received.to_vec()).unwrap();
    let (address, secret) = text.trim_end_matches('\0').split_once(' ').unwrap();
    let joined = match own {
        Some(coordinator) => Rendezvous::join_own(coordinator, size, &token, &options).unwrap(),
        None => Rendezvous::join(address, rank, size, &Token::new(secret).unwrap(), &options).unwrap(),
    };
    joined.begin_step(20).unwrap();
    joined.set_activity("exchanging gradients");
    let told = |peer: &PeerStatus| peer.step == Some(20) && peer.activity == "exchanging gradients";
    while !joined.peers(DEADLINE).unwrap().iter().all(told) {
        thread::sleep(Duration::from_millis(5));
    }
    joined.barrier("all told", DEADLINE).unwrap();
    joined
}

/// The victim's end.
fn fail(case: &str, world: &World) -> ! {
    match case {
        "mismatch" => drop(broadcast(world, 1000)),
        "KILL" | "named" => die(),
        "STOP" => {
            let _ = Command::new("kill").args(["-STOP", &process::id().to_string()]).status();
        }
        _ => {}
    }
    // Alive, but not taking part.
    thread::sleep(Duration::from_secs(20));
    die()
}

fn broadcast(world: &World, len: usize) -> Result<()> {
    let request = world.broadcast(VICTIM, Buffer::zeroed(len))?;
    request.wait(Instant::now() + Duration::from_secs(100), &|| Ok(())).map(drop)
}

fn exchange(world: &World, timeout: Duration, progress: &dyn Fn() -> Result<()>) -> Result<()> {
    let len = 100_000 * world.size();
    let request = world.all_to_all(Buffer::zeroed(len), Buffer::zeroed(len))?;
    request.wait(Instant::now() + timeout, progress).map(drop)
}
