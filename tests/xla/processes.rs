//! Several processes, each with a session on its own device. XLA's CPU plugin has no collectives
//! between processes, so most of these tests need a GPU; one is enough, because NCCL takes processes
//! with different `NCCL_HOSTID`s for different hosts.

use crate::{child, device};
use std::env;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack::ErrorKind;
use tensorpack::graph::{Graph, VariableSpec};
use tensorpack::prelude::*;
use tensorpack::runtime::{Clock, ProcessGroup, StepProgram};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::Mode;
use tensorpack_rendezvous::{Coordinator, Launch, LaunchOptions, Options, Rendezvous, Token};
use tensorpack_testing::{Requirement, assert_mentions, plugin_for_tests, skip};

/// What a child process does: `train`, `loop`.
const CHILD: &str = "TENSORPACK_TEST_XLA_PROCESS";
const LONG: Duration = Duration::from_secs(240);
/// A rank that is silent this long has failed.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
const ROWS: usize = 8;
const STEPS: u64 = 12;

/// The graph of `local` of `total` towers, which average their gradients, and its step.
fn build(local: usize, total: usize) -> (Graph, Vec<Op>) {
    let graph = Graph::new();
    let mut step = Vec::new();
    for index in 0..local {
        let t = TowerContext::new(&graph, Mode::Training, index, total);
        let x = graph.placeholder(&TensorSpec::new(format!("x{index}"), DType::F64, [None, Some(5)]));
        t.build(|t| {
            let h = Linear::new(7).apply(t, "fc0", &x).tanh().dropout(0.25);
            let cost = Linear::new(1).apply(t, "fc1", &h).square().mean() + h.mean();
            let costs = t.variable(VariableSpec::new("costs", []).dtype(DType::F64).non_trainable());
            let trainable = graph.collection(tensorpack::graph::TRAINABLE_VARIABLES).variables;
            let variables: Vec<Variable> = trainable.iter().map(|&v| graph.variable_handle(v)).collect();
            let values: Vec<&Tensor> = variables.iter().map(Variable::value).collect();
            let gradients = gradients(&cost, &values).unwrap();
            let mean = |(v, g): (Variable, Option<Tensor>)| {
                let g = g.expect("the cost depends on every variable");
                let name = format!("average/{}", v.name());
                Gradient::new(v, t.all_reduce_mean(&name, &g))
            };
            let averaged: Vec<Gradient> = variables.into_iter().zip(gradients).map(mean).collect();
            if t.is_main_training_tower() {
                step.push(apply_gradients(&Adam::new(0.05), &graph, &averaged).unwrap());
                // Differs between towers: all take what the first one computes.
                step.push(costs.update(|before| before * 0.5 + &cost));
            }
        });
    }
    (graph, step)
}

fn batch(step: u64, tower: usize) -> HostTensor {
    let rng = CounterRng::new(3, "rows");
    let first = (step * 64 + tower as u64) * (ROWS * 5) as u64;
    HostTensor::new([ROWS, 5], (0..ROWS as u64 * 5).map(|i| rng.normal(0, first + i)).collect()).unwrap()
}

/// The session of `local` towers, which are the first `local` of a rank's, and its program.
struct Trained {
    session: Session,
    program: StepProgram,
    local: usize,
    first: usize,
}

impl Trained {
    fn new(local: usize, total: usize, first: usize, options: SessionOptions) -> Result<Trained> {
        let (graph, step) = build(local, total);
        let session =
            Session::with(graph.freeze()?, SessionOptions { seed: 5, full_precision: true, ..options })?;
        Ok(Trained { session, program: StepProgram::new(&[&step[0], &step[1]]), local, first })
    }

    fn step(&mut self, step: u64) -> Result<()> {
        let fed = |i: usize| (format!("x{i}"), batch(step, self.first + i));
        let fed: Vec<(String, HostTensor)> = (0..self.local).map(fed).collect();
        let feeds: Vec<(&str, &HostTensor)> = fed.iter().map(|(name, value)| (&name[..], value)).collect();
        self.program.run(&self.session, Clock { global_step: step + 1, last_of_epoch: true }, &feeds)
    }

    fn variables(&self) -> Vec<(String, Vec<f64>)> {
        let names = self.session.graph().variables().iter().map(|v| v.name.clone());
        names.map(|name| (name.clone(), self.session.read(&name).unwrap().to_f64_vec())).collect()
    }
}

/// Joins ranks that all are in this process.
fn join_all(size: u32) -> Vec<Arc<Rendezvous>> {
    let (token, options) = (Token::random(), Options::new());
    let coordinator = Coordinator::start("127.0.0.1:0", size, &token, &options).unwrap();
    let address = coordinator.address().to_string();
    let join = |rank| {
        let (address, token, options) = (address.clone(), token.clone(), options.clone());
        thread::spawn(move || Rendezvous::join(&address, rank, size, &token, &options).unwrap())
    };
    let others: Vec<_> = (1..size).map(join).collect();
    let mut ranks = vec![Arc::new(Rendezvous::join_own(coordinator, size, &token, &options).unwrap())];
    ranks.extend(others.into_iter().map(|thread| Arc::new(thread.join().unwrap())));
    ranks
}

/// Options for a device that the processes share, so none may take all of its memory.
fn on(device: &str, group: &ProcessGroup) -> SessionOptions {
    SessionOptions {
        device: device.parse().unwrap(),
        memory_limit: Some(8 << 30),
        process_group: Some(group.clone()),
        ..Default::default()
    }
}

#[test]
fn several_processes_on_cpus_are_refused() {
    let ranks = join_all(2);
    let group = ProcessGroup::new(ranks[0].clone(), 1);
    assert_eq!((group.rank(), group.size(), group.total_towers()), (0, 2, 2));
    for device in ["xla:cpu:0", "cpu:0", "reference", "null"] {
        let e = Trained::new(1, 2, 0, on(device, &group)).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert_mentions(&e, &[device.strip_suffix(":0").unwrap_or(device), "xla:cuda"]);
    }
    let e = group.leave(Duration::from_millis(50)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument, "the test still holds a reference: {e}");
}

#[test]
fn a_group_of_one_process_is_an_ordinary_session() {
    let Some(device) = device() else { return };
    let group = ProcessGroup::new(join_all(1).remove(0), 1);
    let mut found = Trained::new(1, 1, 0, on(&device.to_string(), &group)).unwrap();
    let mut expected = Trained::new(1, 1, 0, SessionOptions { device, ..Default::default() }).unwrap();
    for step in 0..3 {
        found.step(step).unwrap();
        expected.step(step).unwrap();
    }
    assert_eq!(found.variables(), expected.variables());
    drop(found);
    group.leave(LONG).unwrap();
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
    let result = match role.to_str() {
        Some("train") => train(),
        _ => run_until_it_fails(),
    };
    match result {
        Ok(text) => println!("\nended {text} after {:.1} s", begun.elapsed().as_secs_f64()),
        Err(e) => println!("\nended with {:?}: {}", e.kind(), e.to_string().replace('\n', " | ")),
    }
}

fn join() -> Result<ProcessGroup> {
    let launch = Launch::detect(&LaunchOptions::default())?;
    let options = Options::new()
        .heartbeat(Duration::from_millis(200))
        .peer_timeout(PEER_TIMEOUT)
        .join_timeout(LONG)
        .on_warning(|text| println!("\nwarning {text}"));
    let rendezvous = Rendezvous::start(&launch, None, &Token::from_env()?, &options)?;
    Ok(ProcessGroup::new(Arc::new(rendezvous), 1))
}

/// Trains, and compares all variables with those of one process with as many towers on the CPU
/// engine.
fn train() -> Result<String> {
    let group = join()?;
    let begun = Instant::now();
    let mut trained = Trained::new(1, group.total_towers(), group.rank(), on("xla:cuda:0", &group))?;
    println!("\nopened after {:.2} s", begun.elapsed().as_secs_f64());
    let mut expected =
        Trained::new(group.total_towers(), group.total_towers(), 0, SessionOptions::default())?;
    for step in 0..STEPS {
        let begun = Instant::now();
        trained.step(step)?;
        println!("\nstep {step} in {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
        expected.step(step)?;
    }
    for ((name, a), (_, b)) in trained.variables().iter().zip(expected.variables()) {
        let norm = b.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-30);
        let off = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt() / norm;
        println!("\n{name}: relative difference {off:.1e}");
        assert!(off <= 1e-9, "{name} differs by {off}");
    }
    // Not finite on the last rank alone: all ranks learn it, and no variable changes.
    let before = trained.variables();
    let bad = HostTensor::new([ROWS, 5], vec![f64::MAX; ROWS * 5]).unwrap();
    let fine = batch(STEPS, group.rank());
    let x = if group.rank() + 1 == group.size() { &bad } else { &fine };
    let clock = Clock { global_step: STEPS + 1, last_of_epoch: true };
    let e = trained.program.run(&trained.session, clock, &[("x0", x)]).unwrap_err();
    println!("\n{e}");
    assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
    assert_eq!(trained.variables(), before);
    trained.step(STEPS + 1)?;
    group.rendezvous().barrier("done", LONG)?;
    drop(trained);
    group.leave(LONG)?;
    Ok(format!("{STEPS} steps"))
}

fn run_until_it_fails() -> Result<String> {
    let group = join()?;
    let mut trained = Trained::new(1, group.total_towers(), group.rank(), on("xla:cuda:0", &group))?;
    for step in 0.. {
        group.rendezvous().begin_step(step)?;
        let begun = Instant::now();
        trained.step(step).inspect_err(|_| {
            println!("\nstep {step} failed after {:.3} s", begun.elapsed().as_secs_f64());
        })?;
        if step % 20 == 0 {
            println!("\nstep {step}");
        }
    }
    Ok("never".into())
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

fn start(role: &str, size: usize) -> Vec<Process> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let token = Token::random();
    let start = |rank: usize| {
        let mut command = child("processes::rank_process");
        command.env(CHILD, role).env("TENSORPACK_RANK", rank.to_string());
        command.env("TENSORPACK_SIZE", size.to_string()).env("TENSORPACK_LOCAL_SIZE", size.to_string());
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
    (0..size).map(start).collect()
}

#[test]
fn two_processes_train_like_one() {
    if !has_gpu() {
        return;
    }
    for (rank, process) in start("train", 2).iter().enumerate() {
        assert_mentions(process.line(rank, "ended").1, &["12 steps"]);
    }
}

#[test]
fn a_killed_process_ends_the_others_with_an_error_that_names_it() {
    if !has_gpu() {
        return;
    }
    for killed in [1, 0] {
        let mut processes = start("loop", 2);
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
