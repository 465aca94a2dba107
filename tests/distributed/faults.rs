//! A rank fails, in any way and at any place of a run. Every other rank ends within its deadline
//! with an error that names the rank, the last checkpoint is whole, and the same command resumes
//! the run to the bits of an undisturbed one.

use crate::fault::MESSAGE;
use crate::launch::{Installation, Outcome, Turn, last_checkpoint, undisturbed};
use crate::program::Report;
use crate::sample::{is_complete, sample, seed};
use crate::task::{Fault, Kind, Net, Place, Task};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const RANKS: usize = 3;
const DEADLINE: Duration = Duration::from_secs(2);
/// The time that a rank has after its deadline: to name the rank that failed, and to exit.
const GRACE: Duration = Duration::from_secs(2);

/// What a complaint about a rank that takes too long says.
const LATE: &str = "ended late, after";

const KINDS: [Kind; 5] = [Kind::Kill, Kind::Stop, Kind::Panic, Kind::Error, Kind::Hang];
const PLACES: [Place; 13] = [
    Place::Build,
    Place::BeforeTrain,
    Place::BeforeEpoch,
    Place::Data,
    Place::BeforeStep,
    Place::Forward,
    Place::Backward,
    Place::Update,
    Place::AfterStep,
    Place::Validation,
    Place::EpochEnd,
    Place::Save,
    Place::AfterTrain,
];

/// Returns every fault at every place: in rank 0, which writes checkpoints and runs the
/// coordinator, and in another.
fn all() -> Vec<Fault> {
    let mut all = Vec::new();
    for place in PLACES {
        // In the second of three epochs, after two checkpoints.
        let step = match place {
            Place::Build | Place::BeforeTrain | Place::AfterTrain => 0,
            _ => 7,
        };
        for kind in KINDS {
            for rank in [0, 1] {
                // Only the disk of rank 0 can fail to save.
                if (kind, place, rank) != (Kind::Error, Place::Save, 1) {
                    all.push(Fault { kind, place, rank, step });
                }
            }
        }
    }
    all
}

/// Returns what is wrong with the end of a rank that did not fail itself, if anything.
fn complaint(fault: &Fault, report: &Report, ended: Duration) -> Option<String> {
    if ended > DEADLINE + GRACE {
        return Some(format!("{LATE} {:.1} s", ended.as_secs_f64()));
    }
    if !["Peer", "Deadline"].contains(&&report.kind[..]) {
        return Some(format!("the error is of kind {}", report.kind));
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let name = format!("rank {} on {}, ", fault.rank, host.trim());
    let begun = !matches!(fault.place, Place::Build | Place::BeforeTrain);
    let activity = activity(fault.place);
    if !report.text.split(&name).skip(1).any(|rest| names_place(rest, begun, activity)) {
        return Some(format!("\"{name}STEP, {activity}\" missing in the error"));
    }
    let mut terms: Vec<String> = Vec::new();
    match fault.kind {
        // A full disk has a message of its own.
        Kind::Error if fault.place == Place::Save => terms.push("checkpoint".into()),
        Kind::Error => terms.push(MESSAGE.into()),
        // In the program itself, nobody catches it.
        Kind::Panic if fault.place != Place::AfterRun => terms.push(MESSAGE.into()),
        _ => {}
    }
    let missing: Vec<String> = terms.into_iter().filter(|term| !report.text.contains(term)).collect();
    (!missing.is_empty()).then(|| format!("{missing:?} missing in the error"))
}

/// Returns what the error calls a place.
fn activity(place: Place) -> &'static str {
    match place {
        Place::Start | Place::Build => "joined",
        Place::BeforeTrain => "callbacks before training",
        Place::BeforeEpoch => "callbacks before an epoch",
        Place::Data
        | Place::BeforeStep
        | Place::Forward
        | Place::Backward
        | Place::Update
        | Place::AfterStep => "computing",
        Place::Validation | Place::EpochEnd => "callbacks at the end of an epoch",
        Place::Save => "saving",
        Place::AfterTrain => "callbacks after training",
        Place::AfterRun => "finished",
    }
}

/// Returns whether a text begins with a step, if one had begun, and with what a rank was doing.
fn names_place(text: &str, begun: bool, activity: &str) -> bool {
    let text = match text.strip_prefix("step ") {
        Some(rest) => rest.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(", "),
        None => (!begun).then_some(text),
    };
    text.is_some_and(|place| place.starts_with(activity))
}

/// Runs into a fault. Returns how long the last of the other ranks took to end, or what is wrong.
fn run(installation: &Installation, task: &Task, fault: &Fault) -> Result<Duration, String> {
    let mut run = installation.start(RANKS, task);
    let others: Vec<usize> = (0..RANKS).filter(|rank| *rank != fault.rank).collect();
    let statuses = run.statuses(others.iter().copied());
    let begun = run.fault_time().ok_or_else(|| format!("no fault; {}", run.output()))?;
    let mut longest = Duration::ZERO;
    for (&rank, status) in others.iter().zip(statuses) {
        let report = run.report(rank).ok_or_else(|| format!("rank {rank}: {status}; {}", run.output()))?;
        let (_, ended) = run.status(rank).expect("it has ended");
        let ended = Duration::from_nanos(ended.saturating_sub(begun) as u64);
        if let Some(why) = complaint(fault, &report, ended) {
            return Err(format!("rank {rank} {why}: {}: {}", report.kind, report.text));
        }
        longest = longest.max(ended);
    }
    Ok(longest)
}

/// Runs into a fault, and resumes. Tries again if that takes too long, because other programs may
/// keep the machine busy.
fn try_fault(
    installation: &Installation,
    fault: Fault,
    task: &Task,
    whole: &Outcome,
) -> Result<Duration, String> {
    let mut last = Err(String::new());
    for _ in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let task = Task { logdir: dir.path().into(), ..task.clone() };
        let faulty = Task { fault: Some(fault), deadline: DEADLINE, peer_timeout: DEADLINE, ..task.clone() };
        last = run(installation, &faulty, &fault);
        let step = last_checkpoint(dir.path()).map(|checkpoint| checkpoint.global_step);
        assert!(fault.step == 0 || step.is_some_and(|step| step >= 5), "{fault}: {step:?}");
        installation.finish(RANKS, &task);
        Outcome::read(&task).assert_same(whole, &fault.to_string());
        match &last {
            Err(why) if why.contains(LATE) => println!("{fault}: {why}"),
            _ => break,
        }
    }
    last
}

#[test]
fn a_rank_that_fails_ends_all_others_in_time_and_the_run_resumes() {
    let _turn = Turn::Waiting.take();
    let installations = Installation::all();
    if installations.is_empty() {
        return;
    }
    let mut wholes: HashMap<(usize, bool), Outcome> = HashMap::new();
    let mut counts: HashMap<(Place, Kind), usize> = HashMap::new();
    let mut failures = Vec::new();
    for (i, fault) in sample("faults", all(), 6).into_iter().enumerate() {
        let installation = &installations[(i + seed() as usize) % installations.len()];
        // One tower and a plain graph run on another thread than several towers or custom kernels.
        let plain = !matches!(fault.place, Place::Forward | Place::Backward | Place::Update);
        let towers = 1 + i / 2 % 2;
        let task = Task { plain, ..Task::new(Net::Dense, towers, "unused") };
        let whole = wholes.entry((towers, plain)).or_insert_with(|| undisturbed(&task, RANKS * towers));
        let sharded = i / 4 % 2 == 1;
        let task = Task { sharded, ..task };
        let library = installation.library.path.file_name().unwrap_or_default().to_string_lossy();
        let trainer = if sharded { "dist-ps" } else { "dist-replicated" };
        let what = format!("{fault}, {RANKS} x {towers}, {trainer}, {library}");
        match try_fault(installation, fault, &task, whole) {
            Ok(longest) => {
                let seconds = longest.as_secs_f64();
                println!("{what}: all ended after {seconds:.1} s, resumed to the same bits");
                *counts.entry((fault.place, fault.kind)).or_default() += 1;
            }
            Err(why) => failures.push(format!("{what}: {why}")),
        }
    }
    if is_complete() {
        print(&counts);
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// The others wait inside `MPI_Init`, where only the launcher can end them. It does so when the
/// time is over that ranks have after another one has failed.
#[test]
fn a_rank_that_dies_before_the_ranks_have_met_ends_the_run() {
    let _turn = Turn::Waiting.take();
    for kind in [Kind::Kill, Kind::Error] {
        for mut installation in Installation::sample(&format!("start {kind:?}")) {
            installation.mpiexec = installation.mpiexec.grace(Duration::from_secs(2));
            let dir = tempfile::tempdir().unwrap();
            let fault = Some(Fault { kind, place: Place::Start, rank: 1, step: 0 });
            let mut run = installation.start(RANKS, &Task { fault, ..Task::new(Net::Dense, 1, dir.path()) });
            let begun = run.wait_for("the fault", |run| run.fault_time().map(|_| Instant::now()));
            let what = format!("{kind:?}, {}", installation.library.path.display());
            assert!(!run.wait_for_launcher(), "{what}: {}", run.output());
            assert!(begun.elapsed() < Duration::from_secs(8), "{what}: {:?}", begun.elapsed());
            assert!((0..RANKS).all(|rank| !run.is_running(rank)), "{what}: {}", run.output());
        }
    }
}

/// Prints the number of faults by place and kind.
fn print(counts: &HashMap<(Place, Kind), usize>) {
    println!("| place | {} |", KINDS.map(|kind| format!("{kind:?}")).join(" | "));
    println!("|---|{}", "---|".repeat(KINDS.len()));
    for place in PLACES {
        let counts = KINDS.map(|kind| counts.get(&(place, kind)).copied().unwrap_or(0).to_string());
        println!("| {place:?} | {} |", counts.join(" | "));
    }
    println!("{} faults in all", counts.values().sum::<usize>());
}
