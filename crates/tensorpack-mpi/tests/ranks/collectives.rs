//! Every collective, with sizes that are odd, empty and large.

use crate::launch::{CASE, Installation, ROLE, Run, init, report};
use std::env;
use std::time::{Duration, Instant};
use tensorpack_mpi::{Abi, Buffer, Completed, Library, Request, World};
use tensorpack_tensor::ErrorKind;
use tensorpack_testing::assert_mentions;

const LENGTHS: [usize; 7] = [0, 1, 3, 64, 1001, 65_537, 1 << 20];

pub(crate) fn move_the_right_bytes(installation: &Installation) {
    for size in 1..=4 {
        let mut run = installation.start(size, "collectives", &size.to_string());
        let success = run.wait();
        for rank in 0..size {
            let text = run.report(rank);
            let expected = format!("rank {rank} of {size}");
            assert_eq!(text.as_deref(), Some(&*expected), "{:?}: {}", installation.library, run.output());
        }
        assert_eq!(success, Some(true), "{:?}: {}", installation.library, run.output());
    }
}

/// The MPI of one library under the launcher of another: each process would be alone.
pub(crate) fn other_launcher() {
    let (mpich, open) = (Installation::all(Abi::Mpich), Installation::all(Abi::OpenMpi));
    if let (Some(mpich), Some(open)) = (mpich.first(), open.first()) {
        let mut command = open.mpiexec.command(2, &[], &[], env::current_exe().unwrap()).unwrap();
        command.args(["--exact", "rank_process", "--nocapture"]);
        command.env(ROLE, "alone").env("TENSORPACK_MPI", &mpich.library.path);
        let mut run = Run::with_reports(command);
        run.wait();
        let text = run.report(0).unwrap_or_else(|| run.output());
        assert_mentions(text, &["Unsupported", "1 ranks", "started 2", "OMPI_COMM_WORLD_SIZE"]);
    }
}

pub(crate) fn run_alone() {
    let error = World::init(Library::find().unwrap(), Duration::from_secs(60)).err().unwrap();
    report(0, &format!("{:?}: {error}", error.kind()));
}

fn wait(request: Request<'_>) -> Completed {
    request.wait(Instant::now() + Duration::from_secs(60), &|| Ok(())).unwrap()
}

/// The byte that rank `from` sends to rank `to` at `i`.
fn byte(from: usize, to: usize, i: usize) -> u8 {
    (from * 31 + to * 7 + i * 3 + i / 251) as u8
}

fn block(from: usize, to: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| byte(from, to, i)).collect()
}

pub(crate) fn run() {
    let world = init();
    let (rank, size) = (world.rank(), world.size());
    assert_eq!(env::var(CASE).unwrap(), size.to_string());
    assert!(!world.library().version().is_empty());
    wait(world.barrier().unwrap());
    for len in LENGTHS {
        broadcast(&world, len);
        all_gather(&world, len);
        all_to_all(&world, len);
    }
    many_in_flight(&world);
    bad_arguments(&world);
    // MPI is initialized once.
    let again = World::init(Library::find().unwrap(), Duration::from_secs(1)).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::Argument);
    // From another thread, as the trainer does it.
    let world = std::thread::spawn(move || {
        wait(world.barrier().unwrap());
        world
    });
    world.join().unwrap().finalize(Duration::from_secs(60)).unwrap();
    report(rank, &format!("rank {rank} of {size}"));
}

fn broadcast(world: &World, len: usize) {
    for root in 0..world.size() {
        let buffer = match world.rank() == root {
            true => Buffer::from(&block(root, 0, len)[..]),
            false => Buffer::zeroed(len),
        };
        assert!(*wait(world.broadcast(root, buffer).unwrap()).receive == block(root, 0, len)[..]);
    }
}

fn all_gather(world: &World, len: usize) {
    let (rank, size) = (world.rank(), world.size());
    let send = Buffer::from(&block(rank, 0, len)[..]);
    let address = send.as_ptr();
    let done = wait(world.all_gather(send, Buffer::zeroed(size * len)).unwrap());
    let expected: Vec<u8> = (0..size).flat_map(|from| block(from, 0, len)).collect();
    assert!(*done.receive == expected[..]);
    assert_eq!(done.send.as_ptr(), address);
    // Rank i sends i times as much, so rank 0 sends nothing.
    let counts: Vec<usize> = (0..size).map(|from| from * len).collect();
    let send = Buffer::from(&block(rank, 1, counts[rank])[..]);
    let receive = Buffer::zeroed(counts.iter().sum());
    let done = wait(world.all_gather_v(send, receive, &counts).unwrap());
    let expected: Vec<u8> = (0..size).flat_map(|from| block(from, 1, counts[from])).collect();
    assert!(*done.receive == expected[..]);
}

fn all_to_all(world: &World, len: usize) {
    let (rank, size) = (world.rank(), world.size());
    let sent: Vec<u8> = (0..size).flat_map(|to| block(rank, to, len)).collect();
    let done = wait(world.all_to_all(Buffer::from(&sent[..]), Buffer::zeroed(size * len)).unwrap());
    let expected: Vec<u8> = (0..size).flat_map(|from| block(from, rank, len)).collect();
    assert!(*done.receive == expected[..]);
    // Every pair has a length of its own; some are empty.
    let count = |from: usize, to: usize| len * ((from + 2 * to) % 3);
    let send_counts: Vec<usize> = (0..size).map(|to| count(rank, to)).collect();
    let receive_counts: Vec<usize> = (0..size).map(|from| count(from, rank)).collect();
    let sent: Vec<u8> = (0..size).flat_map(|to| block(rank, to, count(rank, to))).collect();
    let receive = Buffer::zeroed(receive_counts.iter().sum());
    let request = world.all_to_all_v(Buffer::from(&sent[..]), &send_counts, receive, &receive_counts);
    let expected: Vec<u8> = (0..size).flat_map(|from| block(from, rank, count(from, rank))).collect();
    assert!(*wait(request.unwrap()).receive == expected[..]);
}

/// Buckets of a training step: several collectives at a time, finished in any order.
fn many_in_flight(world: &World) {
    let size = world.size();
    let start = |i: usize| {
        let send = Buffer::from(&block(world.rank(), i, 5000 + i)[..]);
        world.all_gather(send, Buffer::zeroed(size * (5000 + i))).unwrap()
    };
    let mut requests: Vec<Request<'_>> = (0..10).map(start).collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut done: Vec<Option<Completed>> = (0..10).map(|_| None).collect();
    while done.iter().any(Option::is_none) {
        assert!(Instant::now() < deadline);
        for (request, done) in requests.iter_mut().zip(&mut done).rev().filter(|(_, done)| done.is_none()) {
            assert!(request.take().is_none());
            if request.poll().unwrap() {
                *done = request.take();
                assert!(done.is_some() && request.take().is_none() && request.poll().unwrap());
            }
        }
    }
    for (i, done) in done.into_iter().enumerate() {
        let expected: Vec<u8> = (0..size).flat_map(|from| block(from, i, 5000 + i)).collect();
        assert!(*done.unwrap().receive == expected[..]);
    }
    let taken = requests.pop().unwrap().wait(deadline, &|| Ok(())).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Argument);
}

/// Rejected before MPI sees them, so the world stays healthy.
fn bad_arguments(world: &World) {
    let size = world.size();
    let buffer = Buffer::zeroed;
    for request in [
        world.broadcast(size, buffer(4)),
        world.all_gather(buffer(4), buffer(4 * size + 1)),
        world.all_gather_v(buffer(4), buffer(4 * size), &vec![4; size + 1]),
        world.all_gather_v(buffer(5), buffer(4 * size), &vec![4; size]),
        world.all_gather_v(buffer(4), buffer(4 * size + 1), &vec![4; size]),
        world.all_to_all(buffer(4 * size), buffer(4 * size + 4)),
        world.all_to_all_v(buffer(size), &vec![1; size], buffer(size + 1), &vec![1; size]),
        world.all_to_all_v(buffer(size), &[], buffer(size), &vec![1; size]),
        world.all_to_all_v(buffer(size), &vec![1; size], buffer(2 * size), &vec![2; size]),
    ] {
        assert_eq!(request.err().unwrap().kind(), ErrorKind::Argument);
    }
    assert!(size == 1 || world.all_to_all(buffer(size + 1), buffer(size + 1)).is_err());
    assert!(world.is_healthy());
}
