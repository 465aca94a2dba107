//! Several processes, each with a trainer on its own device. XLA's CPU plugin has no collectives
//! between processes, so most of these tests need a GPU; one is enough, because NCCL takes processes
//! with different `NCCL_HOSTID`s for different hosts.

use crate::{child, device};
use std::env;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack::ErrorKind;
use tensorpack::callback::{Callback, TrainCx};
use tensorpack::dataflow::FromFn;
use tensorpack::distributed::ProcessGroup;
use tensorpack::graph::{Graph, UPDATE_OPS, VariableSpec};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::{DistributedTrainerReplicated, SingleCostTrainer};
use tensorpack_rendezvous::{Coordinator, Options, Rendezvous, Token};
use tensorpack_testing::{Requirement, assert_mentions, plugin_for_tests, skip};

/// What a child process does: `train`, `overflow`, `cpu`, `loop`.
const CHILD: &str = "TENSORPACK_TEST_XLA_PROCESS";
const LONG: Duration = Duration::from_secs(240);
/// A rank that is silent this long has failed.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
const SIZE: usize = 2;
const ROWS: usize = 8;

/// A net with dropout, and with a variable that is updated from the cost of the first tower alone.
struct Net;

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::new("x", DType::F64, [None, Some(5)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let h = Linear::new(7).apply(t, "fc0", &inputs[0]).tanh().dropout(0.25);
        let cost = Linear::new(1).apply(t, "fc1", &h).square().mean() + h.mean();
        // The only part that overflows: tanh is finite for any input.
        let cost = cost + inputs[0].square().mean() * 1e-3;
        let costs = t.variable(VariableSpec::new("costs", []).dtype(DType::F64).non_trainable());
        if t.is_main_training_tower() {
            let update = costs.update(|before| before * 0.5 + cost.stop_gradient());
            t.graph().add_op_to_collection(UPDATE_OPS, &update);
        }
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(0.05).boxed()
    }
}

/// Batches for all towers in turn. Batch `overflows` contains numbers whose squares overflow.
fn batches(overflows: Option<u64>) -> FromFn {
    FromFn::new(u64::MAX / 2, move |index| {
        let rng = CounterRng::new(3, "rows");
        let first = index * (ROWS * 5) as u64;
        let values: Vec<f64> = match overflows == Some(index) {
            true => vec![f64::MAX; ROWS * 5],
            false => (0..(ROWS * 5) as u64).map(|i| rng.normal(0, first + i)).collect(),
        };
        Ok(vec![HostTensor::new([ROWS, 5], values)?])
    })
}

/// Two epochs. Processes share the device, so none may take all of its memory.
fn config(overflows: Option<u64>) -> TrainConfig {
    let options =
        SessionOptions { memory_limit: Some(8 << 30), full_precision: true, ..SessionOptions::default() };
    TrainConfig::new(Net, batches(overflows)).session(options).steps_per_epoch(6).max_epoch(2).no_logdir()
}

fn variables(config: TrainConfig, trainer: impl Into<SingleCostTrainer>) -> Result<Vec<(String, Vec<f64>)>> {
    let trained = launch_train_with_config(config, trainer)?;
    let names = trained.session.graph().variables().iter().map(|v| v.name.clone());
    names.map(|name| Ok((name.clone(), trained.session.read(&name)?.to_f64_vec()))).collect()
}

fn on(device: Device) -> DistributedTrainerReplicated {
    DistributedTrainerReplicated::on([device]).peer_timeout(PEER_TIMEOUT)
}

#[test]
fn several_processes_on_cpus_are_refused() {
    let (token, options) = (Token::random(), Options::new());
    let coordinator = Coordinator::start("127.0.0.1:0", 2, &token, &options).unwrap();
    let address = coordinator.address().to_string();
    let other = {
        let (token, options) = (token.clone(), options.clone());
        thread::spawn(move || Rendezvous::join(&address, 1, 2, &token, &options).unwrap())
    };
    let first = Rendezvous::join_own(coordinator, 2, &token, &options).unwrap();
    let _other = other.join().unwrap();
    let group = ProcessGroup::from_rendezvous(first);
    assert_eq!((group.rank(), group.size()), (0, 2));
    for device in ["xla:cpu:0", "reference", "null"] {
        let (device, process_group) = (device.parse().unwrap(), Some(group.clone()));
        let options = SessionOptions { device, process_group, ..SessionOptions::default() };
        let e = Session::with(Graph::new().freeze().unwrap(), options).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert_mentions(&e, &[device.to_string().trim_end_matches(":0"), "xla:cuda"]);
    }
}

/// Trainers on XLA devices join without MPI.
#[test]
fn trainers_on_cpus_are_refused_in_all_processes() {
    for (rank, process) in start("cpu").iter().enumerate() {
        assert_mentions(process.line(rank, "ended with").1, &["Unsupported", "xla:cpu", "2 processes"]);
    }
}

#[test]
fn a_group_of_one_process_is_an_ordinary_session() {
    let Some(device) = device() else { return };
    let found = variables(config(None), on(device)).unwrap();
    assert_eq!(found, variables(config(None), SyncMultiGpuTrainerReplicated::on([device])).unwrap());
}

/// Whether this machine has a GPU and XLA's plugin for it.
#[track_caller]
fn has_gpu() -> bool {
    if !Path::new("/dev/nvidiactl").exists() {
        skip(Requirement::Devices, "there is no NVIDIA GPU");
        return false;
    }
    plugin_for_tests("cuda").is_some()
}

/// Runs in a child process: one rank.
#[test]
fn rank_process() {
    let Some(role) = env::var_os(CHILD) else { return };
    let begun = Instant::now();
    let gpu = on("xla:cuda:0".parse().unwrap());
    let result = match role.to_str() {
        Some("train") => train_and_compare(gpu),
        // In step 4, on the last rank.
        Some("overflow") => variables(config(Some((4 * SIZE - 1) as u64)), gpu).map(|_| "well".into()),
        Some("cpu") => variables(config(None), on("xla:cpu:0".parse().unwrap())).map(|_| "well".into()),
        _ => variables(config(None).max_epoch(1_000_000).callback(PrintSteps), gpu).map(|_| "well".into()),
    };
    match result {
        Ok(text) => println!("\nended {text} after {:.1} s", begun.elapsed().as_secs_f64()),
        Err(e) => println!("\nended with {:?}: {}", e.kind(), e.to_string().replace('\n', " | ")),
    }
}

struct PrintSteps;

impl Callback for PrintSteps {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let step = cx.global_step;
        if step.is_multiple_of(20) {
            println!("\nstep {step}");
        }
        Ok(())
    }
}

/// Trains, and compares all variables with those of one process with as many towers on the CPU
/// engine.
fn train_and_compare(gpu: DistributedTrainerReplicated) -> Result<String> {
    let found = variables(config(None), gpu)?;
    let expected = variables(config(None), SyncMultiGpuTrainerReplicated::new(SIZE))?;
    assert_eq!(found.len(), expected.len());
    for ((name, a), (_, b)) in found.iter().zip(&expected) {
        let norm = b.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-30);
        let off = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt() / norm;
        println!("\n{name}: relative difference {off:.1e}");
        assert!(off <= 1e-9, "{name} differs by {off}");
    }
    Ok("12 steps".into())
}

struct Process {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Process {
    /// Waits for a line that begins with `word`, and prints all lines until then.
    #[track_caller]
    fn line(&self, rank: usize, word: &str) -> (Instant, String) {
        loop {
            let (at, line) = self.lines.recv_timeout(LONG).expect("a rank's line");
            if !line.is_empty() {
                println!("  rank {rank}: {line}");
            }
            if let Some(rest) = line.strip_prefix(word) {
                return (at, rest.trim().to_owned());
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(role: &str) -> Vec<Process> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let token = Token::random();
    let start = |rank: usize| {
        let mut command = child("processes::rank_process");
        command.env(CHILD, role).env("TENSORPACK_RANK", rank.to_string());
        command.env("TENSORPACK_SIZE", SIZE.to_string()).env("TENSORPACK_LOCAL_SIZE", SIZE.to_string());
        command.env("TENSORPACK_COORDINATOR", format!("127.0.0.1:{port}"));
        command.env(Token::VARIABLE, token.as_str());
        command.env("NCCL_HOSTID", format!("h{rank}")).env("NCCL_SOCKET_IFNAME", "lo");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            let lines = stdout.lines().map_while(std::io::Result::ok);
            lines.for_each(|line| drop(send.send((Instant::now(), line))));
        });
        Process { child, lines }
    };
    (0..SIZE).map(start).collect()
}

#[test]
fn two_processes_train_like_one() {
    if !has_gpu() {
        return;
    }
    for (rank, process) in start("train").iter().enumerate() {
        assert_mentions(process.line(rank, "ended").1, &["12 steps"]);
    }
}

#[test]
fn a_value_that_is_not_finite_in_one_process_ends_all() {
    if !has_gpu() {
        return;
    }
    let processes = start("overflow");
    let ended: Vec<String> = (0..SIZE).map(|rank| processes[rank].line(rank, "ended with").1).collect();
    // The rank whose value it is names it.
    assert_mentions(&ended[SIZE - 1], &["NotFinite", "tower1/"]);
    assert!(ended[0].starts_with("NotFinite") || ended[0].starts_with("Peer"), "{}", ended[0]);
}

#[test]
fn a_killed_process_ends_the_others_with_an_error_that_names_it() {
    if !has_gpu() {
        return;
    }
    for killed in [1, 0] {
        let mut processes = start("loop");
        for (rank, process) in processes.iter().enumerate() {
            process.line(rank, "step 40");
        }
        let begun = Instant::now();
        processes[killed].child.kill().unwrap();
        let (at, ended) = processes[1 - killed].line(1 - killed, "ended");
        let took = at.duration_since(begun);
        println!("rank {} ended {:.3} s after rank {killed} was killed", 1 - killed, took.as_secs_f64());
        assert_mentions(&ended, &["with Peer", &format!("rank {killed}")]);
        assert!(took < Duration::from_secs(20), "{took:?}");
        let begun = Instant::now();
        while processes[1 - killed].child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the process does not exit");
            thread::sleep(Duration::from_millis(50));
        }
        println!("it exited {:.3} s later", begun.elapsed().as_secs_f64());
    }
}
