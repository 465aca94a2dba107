//! A run on two hosts whose network is slow, loses packets, or fails.

use crate::launch::{Installation, Outcome, Run, Turn, last_checkpoint, undisturbed};
use crate::task::{Fault, Kind, Net, Place, Task};
use std::time::Duration;
use tensorpack_mpi::MpiexecKind;
use tensorpack_testing::{Hosts, Link, Requirement, assert_mentions, skip};

const RANKS: usize = 2;
const DEADLINE: Duration = Duration::from_secs(2);

/// Returns two hosts and a launcher for them. Skips the test if there is none.
#[track_caller]
fn two_hosts() -> Option<(Hosts, Installation)> {
    let hosts = match Hosts::new(RANKS) {
        Ok(hosts) => hosts,
        Err(e) => {
            skip(Requirement::Namespaces, &format!("no network namespaces can be created: {e}"));
            return None;
        }
    };
    // Open MPI looks for its daemons' network in other ways.
    let hydra = Installation::all().into_iter().find(|found| found.mpiexec.kind() == MpiexecKind::Hydra);
    if hydra.is_none() {
        skip(Requirement::Mpi, "there is no Hydra");
    }
    hydra.map(|installation| (hosts, installation))
}

/// Starts a rank on each host.
fn start(hosts: &Hosts, installation: &Installation, task: &Task) -> Run {
    let command = installation.mpiexec.command(RANKS, hosts.names(), &[], "/bin/sh").unwrap();
    Run::start(hosts.launch(&command), RANKS, task)
}

fn whole() -> Outcome {
    undisturbed(&Task::new(Net::Dense, RANKS, "unused"), RANKS)
}

#[test]
fn a_slow_network_changes_no_bits() {
    let _turn = Turn::Waiting.take();
    let Some((hosts, installation)) = two_hosts() else { return };
    hosts.set(Link { delay: Duration::from_micros(200), rate: Some(1e9), ..Link::default() });
    let dir = tempfile::tempdir().unwrap();
    let task = Task::new(Net::Dense, 1, dir.path());
    let mut run = start(&hosts, &installation, &task);
    run.assert_finishes();
    assert_mentions(run.output(), &[&format!("rank 0 of 2 on {}", hosts.names()[0])]);
    Outcome::read(&task).assert_same(&whole(), "1 Gbit/s, 0.2 ms");
    let (carried, lost) = hosts.packets();
    // Each step exchanges gradients and agrees on the update, in both directions.
    assert!(carried > 4 * task.steps() && lost == 0, "{carried} packets, {lost} lost");
}

#[test]
fn a_cut_wire_ends_all_ranks_with_an_error_that_names_the_other_host() {
    let _turn = Turn::Waiting.take();
    let Some((hosts, installation)) = two_hosts() else { return };
    let dir = tempfile::tempdir().unwrap();
    let task = Task::new(Net::Dense, 1, dir.path());
    let fault = Fault { kind: Kind::Pause, place: Place::BeforeStep, rank: 1, step: 7 };
    let cut = Task { fault: Some(fault), deadline: DEADLINE, peer_timeout: DEADLINE, ..task.clone() };
    let mut run = start(&hosts, &installation, &cut);
    let begun = run.wait_for("the place", Run::fault_time);
    hosts.set(Link { down: true, ..Link::default() });
    let statuses = run.statuses(0..RANKS);
    assert_eq!(statuses, [1; RANKS], "{}", run.output());
    for rank in 0..RANKS {
        let report = run.report(rank).unwrap();
        assert!(["Peer", "Deadline"].contains(&&report.kind[..]), "rank {rank}: {report:?}");
        let other = 1 - rank;
        let name = format!("rank {other} on {}, step ", hosts.names()[other]);
        assert_mentions(&report.text, &[&name]);
        // The rank that pauses goes on for a second before it waits for the other.
        let ended = Duration::from_nanos((run.status(rank).unwrap().1 - begun) as u64);
        assert!(ended < DEADLINE + Duration::from_secs(3), "rank {rank}: {ended:?}: {}", report.text);
    }
    drop(run);
    assert_eq!(last_checkpoint(dir.path()).unwrap().global_step, 5);
    hosts.set(Link::default());
    start(&hosts, &installation, &task).assert_finishes();
    Outcome::read(&task).assert_same(&whole(), "a cut wire");
}

/// Either TCP copes, or all ranks end with an error; the bits are right in any case.
#[test]
fn lost_packets_change_no_bits() {
    let _turn = Turn::Waiting.take();
    let Some((hosts, installation)) = two_hosts() else { return };
    let dir = tempfile::tempdir().unwrap();
    // Every lost packet costs TCP a fifth of a second or more.
    let task = Task { epochs: 1, ..Task::new(Net::Dense, 1, dir.path()) };
    let fault = Fault { kind: Kind::Pause, place: Place::BeforeTrain, rank: 0, step: 0 };
    let mut run = start(&hosts, &installation, &Task { fault: Some(fault), ..task.clone() });
    run.wait_for("the place", Run::fault_time);
    hosts.set(Link { loss: 0.3, ..Link::default() });
    let statuses = run.statuses(0..RANKS);
    let has_failed = statuses != [0; RANKS];
    for rank in (0..RANKS).filter(|_| has_failed) {
        let report = run.report(rank).unwrap();
        assert!(["Peer", "Deadline"].contains(&&report.kind[..]), "rank {rank}: {report:?}");
    }
    let (carried, lost) = hosts.packets();
    let how = if has_failed { "ended" } else { "finished" };
    println!("the run {how}; {carried} packets arrived, {lost} did not");
    assert!(lost > task.steps(), "{lost} packets were lost");
    drop(run);
    hosts.set(Link::default());
    if has_failed {
        start(&hosts, &installation, &task).assert_finishes();
    }
    Outcome::read(&task).assert_same(&undisturbed(&task, RANKS), "30 % of packets lost");
}
