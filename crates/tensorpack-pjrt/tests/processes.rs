//! Several processes, each with a client of XLA's CUDA plugin: this program starts itself again.
//! One GPU is enough, because NCCL takes processes with different `NCCL_HOSTID`s for different
//! hosts. Without a GPU the tests are skipped. Run with `--nocapture` to see what was measured.
#![cfg(unix)]

use std::env;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_pjrt::{
    Client, CompileOptions, Device, DistributedOptions, Executable, KeyValueStore, OptionValue, Plugin,
};
use tensorpack_rendezvous::{Launch, LaunchOptions, Options, Rendezvous, Token};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};
use tensorpack_testing::{Requirement, assert_mentions, plugin_for_tests, skip};

/// What a child process does: `sum`, `loop`, or `first`, in which only rank 0 starts a program.
const CHILD: &str = "TENSORPACK_TEST_PJRT_PROCESS";
const LONG: Duration = Duration::from_secs(240);
/// A rank that is silent this long has failed.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that aborted collectives get to end, before the client is abandoned.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The flags with which XLA's collectives can be cancelled at any time.
const ABORTABLE: &str = "--xla_gpu_nccl_async_execution=true --xla_gpu_nccl_blocking_communicators=false";

/// The store of a run.
struct Store(Arc<Rendezvous>);

impl KeyValueStore for Store {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.0.get(key, timeout)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.0.try_get(key)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<bool> {
        match self.0.put(key, value) {
            Err(e) if e.kind() == ErrorKind::Name => Ok(false),
            stored => stored.map(|()| true),
        }
    }
}

/// The CUDA plugin, if this machine has a GPU.
#[track_caller]
fn gpu() -> Option<Arc<Plugin>> {
    if !Path::new("/dev/nvidiactl").exists() {
        skip(Requirement::Devices, "there is no NVIDIA GPU");
        return None;
    }
    plugin_for_tests("cuda")
}

/// A program that sums a tensor of `len` elements over `replicas` replicas.
fn sum_text(len: usize, replicas: usize) -> String {
    let group: Vec<String> = (0..replicas).map(|r| r.to_string()).collect();
    format!(
        "module @sum {{
          func.func public @main(%x: tensor<{len}xf32>) -> tensor<{len}xf32> {{
            {}
            return %y : tensor<{len}xf32>
          }}
        }}",
        all_reduce("%y", "%x", &format!("tensor<{len}xf32>"), &group.join(", "), replicas),
    )
}

fn all_reduce(result: &str, operand: &str, ty: &str, group: &str, replicas: usize) -> String {
    format!(
        "{result} = \"stablehlo.all_reduce\"({operand}) ({{
            ^bb0(%a: tensor<f32>, %b: tensor<f32>):
              %c = stablehlo.add %a, %b : tensor<f32>
              stablehlo.return %c : tensor<f32>
          }}) {{replica_groups = dense<[[{group}]]> : tensor<1x{replicas}xi64>}} : ({ty}) -> {ty}"
    )
}

/// Runs in a child process: joins the others, and does what the variable says.
#[test]
fn process() {
    let Some(role) = env::var_os(CHILD) else { return };
    let result = match role.to_str() {
        Some("sum") => sum(),
        role => run_until_it_fails(role == Some("first")),
    };
    // Standard output is line-buffered, and the harness may print the test's name first.
    match result {
        Ok(text) => println!("\nended {text}"),
        Err(e) => println!("\nended with {:?}: {}", e.kind(), e.message()),
    }
}

/// Joins the run, and creates a client.
fn join() -> Result<(Arc<Rendezvous>, Client)> {
    let launch = Launch::detect(&LaunchOptions::default())?;
    let options = Options::new()
        .heartbeat(Duration::from_millis(200))
        .peer_timeout(PEER_TIMEOUT)
        .join_timeout(LONG)
        .on_warning(|text| println!("\nwarning {text}"));
    let rendezvous = Arc::new(Rendezvous::start(&launch, None, &Token::from_env()?, &options)?);
    let begun = Instant::now();
    let distributed = DistributedOptions::new(
        launch.rank as usize,
        launch.size as usize,
        Arc::new(Store(rendezvous.clone())),
    )
    .abort_collectives_on_failure(true)
    .longest_wait(Duration::from_secs(120));
    let plugin = Plugin::open(&tensorpack_pjrt::find_plugin("cuda")?)?;
    let no_preallocation = [("preallocate", OptionValue::Bool(false))];
    let client = Client::new_distributed(&plugin, &no_preallocation, &distributed, LONG, &|| Ok(()))?;
    let devices: Vec<_> =
        client.global_devices().iter().map(|d| (d.id(), d.process_index(), d.is_addressable())).collect();
    println!(
        "\nclient after {:.2} s: {:?}, devices (id, process, addressable): {devices:?}",
        begun.elapsed().as_secs_f64(),
        client.plugin()
    );
    assert_eq!(client.process_index()?, launch.rank as usize);
    assert!(client.devices().iter().all(Device::is_addressable));
    Ok((rendezvous, client))
}

/// Compiles a program for all devices. Replicas are in the order of device ids, which XLA's GPU
/// compiler expects.
fn compile(client: &Client, text: &str) -> Result<Executable> {
    let mut ids: Vec<i64> = client.global_devices().iter().map(Device::id).collect();
    ids.sort_unstable();
    client.compile(text, &CompileOptions::new().replicas(ids.len()).devices(ids))
}

fn iota(len: usize, factor: f32) -> HostTensor {
    HostTensor::new([len], (0..len).map(|i| (i % 1000) as f32 * factor).collect::<Vec<f32>>()).unwrap()
}

/// Sums a tensor over all processes, and checks the sum.
fn sum() -> Result<String> {
    let (rendezvous, client) = join()?;
    let (rank, size, len) = (rendezvous.rank(), rendezvous.size(), 1 << 20);
    let begun = Instant::now();
    let program = compile(&client, &sum_text(len, client.global_devices().len()))?;
    println!("\ncompiled in {:.2} s", begun.elapsed().as_secs_f64());
    let device = &client.devices()[0];
    assert_eq!(program.device_ids(), [device.id()]);
    let other = client.global_devices().iter().find(|d| !d.is_addressable());
    let refused = client.upload(&iota(3, 1.0), other.expect("a device of another process")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Argument, "{refused}");
    let x = client.upload(&iota(len, (rank + 1) as f32), device)?;
    let ranks: u32 = (1..=size).sum();
    for run in 0..4 {
        let begun = Instant::now();
        let execution = program.execute(&[vec![&x]])?;
        let launched = begun.elapsed();
        let y = execution.outputs[0][0].start_download()?.wait_checking(LONG, || rendezvous.check())?;
        println!(
            "\nrun {run}: launched in {:.1} ms, sum of 4 MB after {:.1} ms",
            launched.as_secs_f64() * 1e3,
            begun.elapsed().as_secs_f64() * 1e3
        );
        assert_eq!(y, iota(len, ranks as f32));
    }
    drop((x, program));
    rendezvous.barrier("done", LONG)?;
    drop(client);
    let rendezvous = Arc::into_inner(rendezvous).expect("a client that is gone does not keep its store");
    rendezvous.leave(LONG)?;
    Ok(format!("after sums of {size} processes"))
}

/// Sums again and again, until it fails because another process is gone. If `first`, rank 0 does so
/// alone.
fn run_until_it_fails(first: bool) -> Result<String> {
    let (rendezvous, client) = join()?;
    let client = Arc::new(client);
    let program = compile(&client, &sum_text(1 << 16, client.global_devices().len()))?;
    let x = client.upload(&iota(1 << 16, 1.0), &client.devices()[0])?;
    let known: Arc<Mutex<Option<Instant>>> = Arc::default();
    let (watched, watched_client, learned) = (rendezvous.clone(), client.clone(), known.clone());
    thread::spawn(move || {
        let failure = loop {
            match watched.failure() {
                Some(failure) => break failure,
                None => thread::sleep(Duration::from_millis(20)),
            }
        };
        *learned.lock().unwrap() = Some(Instant::now());
        let begun = Instant::now();
        let aborted = watched_client.abort_collectives(failure.rank as usize, &failure.to_string());
        println!("\nabort returned {aborted:?} after {:.3} s", begun.elapsed().as_secs_f64());
    });
    // Ends a wait that aborting the collectives did not end.
    let check = || match *known.lock().unwrap() {
        Some(since) if since.elapsed() > ABORT_TIMEOUT => rendezvous.check(),
        _ => Ok(()),
    };
    let step = |number: u32| -> Result<()> {
        rendezvous.set_activity("a sum over all replicas");
        let begun = Instant::now();
        let launched = match number {
            0 => program.execute_checking(&[vec![&x]], &[], LONG, check),
            _ => program.execute(&[vec![&x]]),
        };
        let at_launch = begun.elapsed();
        let downloaded = launched.and_then(|execution| {
            execution.outputs[0][0].start_download()?.wait_checking(LONG, check).map(drop)
        });
        downloaded.inspect_err(|e| {
            println!(
                "\nstep {number}: launched in {:.3} s, failed after {:.3} s with {:?}: {}",
                at_launch.as_secs_f64(),
                begun.elapsed().as_secs_f64(),
                e.kind(),
                e.message()
            );
        })
    };
    println!("\nready");
    if first && rendezvous.rank() != 0 {
        thread::sleep(LONG);
    }
    let mut number = 0;
    let e = loop {
        match step(number) {
            Ok(()) => number += 1,
            Err(e) => break e,
        }
        if number % 10 == 0 {
            println!("\nstep {number}");
        }
    };
    // What the plugin says does not name the process that is gone; the coordinator knows it.
    let begun = Instant::now();
    while rendezvous.check().is_ok() && begun.elapsed() < 2 * PEER_TIMEOUT {
        thread::sleep(Duration::from_millis(20));
    }
    client.abandon();
    Err(rendezvous.check().err().unwrap_or(e))
}

struct Process {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Process {
    /// Waits for a line that begins with `word`, and prints all lines until then.
    #[track_caller]
    fn line(&self, rank: usize, word: &str) -> Result<(Instant, String)> {
        loop {
            let (at, line) = self.lines.recv_timeout(LONG).map_err(|e| Error::argument(e.to_string()))?;
            if !line.is_empty() {
                println!("  rank {rank}: {line}");
            }
            if let Some(rest) = line.strip_prefix(word) {
                return Ok((at, rest.trim().to_owned()));
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

fn start(role: &str, size: usize, variables: &[(&str, &str)]) -> Vec<Process> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let token = Token::random();
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "process", "--nocapture"]).env(CHILD, role);
        command.env("TENSORPACK_RANK", rank.to_string()).env("TENSORPACK_SIZE", size.to_string());
        command.env("TENSORPACK_LOCAL_SIZE", size.to_string()).env(Token::VARIABLE, token.as_str());
        command.env("TENSORPACK_COORDINATOR", format!("127.0.0.1:{port}"));
        command.env("NCCL_HOSTID", format!("h{rank}")).env("NCCL_SOCKET_IFNAME", "lo");
        command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            stdout
                .lines()
                .map_while(std::io::Result::ok)
                .for_each(|line| drop(send.send((Instant::now(), line))));
        });
        Process { child, lines }
    };
    (0..size).map(start).collect()
}

#[test]
fn two_processes_sum_a_tensor() {
    if gpu().is_none() {
        return;
    }
    let processes = start("sum", 2, &[]);
    for (rank, process) in processes.iter().enumerate() {
        let (_, ended) = process.line(rank, "ended").unwrap();
        assert_mentions(ended, &["after sums of 2 processes"]);
    }
}

/// Kills rank `killed` of two, and checks that the other ends soon with an error that names it.
#[track_caller]
fn kill_and_time(role: &str, killed: usize, flags: &str) {
    let mut processes = start(role, 2, &[("XLA_FLAGS", flags)]);
    for (rank, process) in processes.iter().enumerate() {
        process.line(rank, if role == "first" { "ready" } else { "step 20" }).unwrap();
    }
    if role == "first" {
        // Enough for rank 0 to wait for the other.
        thread::sleep(Duration::from_secs(3));
    }
    let begun = Instant::now();
    processes[killed].child.kill().unwrap();
    let (at, ended) = processes[1 - killed].line(1 - killed, "ended").unwrap();
    let took = at.duration_since(begun);
    println!("rank {} ended {:.3} s after rank {killed} was killed", 1 - killed, took.as_secs_f64());
    assert_mentions(&ended, &["with Peer", &format!("rank {killed}")]);
    assert!(took < PEER_TIMEOUT + ABORT_TIMEOUT + Duration::from_secs(5), "{took:?}");
    let begun = Instant::now();
    let status = loop {
        match processes[1 - killed].child.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() > Duration::from_secs(30) => panic!("the process does not exit"),
            None => thread::sleep(Duration::from_millis(50)),
        }
    };
    println!("it exited {:.3} s later: {status}", begun.elapsed().as_secs_f64());
}

#[test]
fn the_survivor_of_a_killed_process_names_it() {
    if gpu().is_some() {
        kill_and_time("loop", 1, "");
    }
}

#[test]
fn the_survivor_of_the_killed_coordinator_names_it() {
    if gpu().is_some() {
        kill_and_time("loop", 0, "");
    }
}

#[test]
fn the_survivor_with_cancellable_collectives_names_the_killed_process() {
    if gpu().is_some() {
        kill_and_time("loop", 1, ABORTABLE);
    }
}

/// The other waits for it in the start of its first program, where communicators are created.
#[test]
fn the_survivor_of_a_process_killed_before_its_first_program_names_it() {
    if gpu().is_some() {
        kill_and_time("first", 1, "");
    }
}

/// The step of a network with one hidden layer: sums of its gradients over all replicas, and the
/// update.
fn step_text(replicas: usize) -> String {
    let group: Vec<String> = (0..replicas).map(|r| r.to_string()).collect();
    let group = group.join(", ");
    let (batch, pixels, hidden, classes) = (64, 784, 2048, 10);
    let x = format!("tensor<{batch}x{pixels}xf32>");
    let [v, w] = [(pixels, hidden), (hidden, classes)].map(|(m, n)| format!("tensor<{m}x{n}xf32>"));
    let [h, y] = [hidden, classes].map(|n| format!("tensor<{batch}x{n}xf32>"));
    let mask = format!("tensor<{batch}x{hidden}xi1>");
    let sums = all_reduce("%sv", "%gv", &v, &group, replicas)
        + "\n"
        + &all_reduce("%sw", "%gw", &w, &group, replicas);
    format!(
        "module @step {{
          func.func public @main(%v: {v} {{tf.aliasing_output = 0 : i32}}, %w: {w} {{tf.aliasing_output = 1 : i32}},
              %x: {x}, %t: {y}) -> ({v}, {w}) {{
            %h = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : ({x}, {v}) -> {h}
            %zero = stablehlo.constant dense<0.0> : {h}
            %r = stablehlo.maximum %h, %zero : {h}
            %y = stablehlo.dot_general %r, %w, contracting_dims = [1] x [0] : ({h}, {w}) -> {y}
            %e = stablehlo.subtract %y, %t : {y}
            %gw = stablehlo.dot_general %r, %e, contracting_dims = [0] x [0] : ({h}, {y}) -> {w}
            %gr = stablehlo.dot_general %e, %w, contracting_dims = [1] x [1] : ({y}, {w}) -> {h}
            %on = stablehlo.compare GT, %h, %zero : ({h}, {h}) -> {mask}
            %gh = stablehlo.select %on, %gr, %zero : {mask}, {h}
            %gv = stablehlo.dot_general %x, %gh, contracting_dims = [0] x [0] : ({x}, {h}) -> {v}
            {sums}
            %ratev = stablehlo.constant dense<1.0e-6> : {v}
            %ratew = stablehlo.constant dense<1.0e-6> : {w}
            %dv = stablehlo.multiply %sv, %ratev : {v}
            %dw = stablehlo.multiply %sw, %ratew : {w}
            %nv = stablehlo.subtract %v, %dv : {v}
            %nw = stablehlo.subtract %w, %dw : {w}
            return %nv, %nw : {v}, {w}
          }}
        }}"
    )
}

fn filled(sizes: [usize; 2], value: f32) -> HostTensor {
    HostTensor::new(sizes, vec![value; sizes[0] * sizes[1]]).unwrap()
}

/// The programs of these tests are valid: XLA's CPU plugin runs them on two devices of one process.
#[test]
fn one_process_with_two_devices_runs_the_programs() {
    let Some(plugin) = plugin_for_tests("cpu") else { return };
    let client = Client::new(&plugin, &[("cpu_device_count", OptionValue::Int(2))]).unwrap();
    let devices = client.devices();
    let upload = |value: &HostTensor| devices.iter().map(|d| client.upload(value, d).unwrap()).collect();
    let sum = compile(&client, &sum_text(100, 2)).unwrap();
    let x: Vec<_> = upload(&iota(100, 1.0));
    let run = sum.execute(&[vec![&x[0]], vec![&x[1]]]).unwrap();
    assert_eq!(run.outputs[1][0].download(LONG).unwrap(), iota(100, 2.0));
    let step = compile(&client, &step_text(2)).unwrap();
    let arguments: [Vec<_>; 4] = [
        upload(&filled([784, 2048], 0.0)),
        upload(&filled([2048, 10], 0.01)),
        upload(&filled([64, 784], 0.5)),
        upload(&filled([64, 10], 1.0)),
    ];
    let lists: Vec<Vec<_>> = (0..2).map(|d| arguments.iter().map(|a| &a[d]).collect()).collect();
    let run = step.execute(&lists).unwrap();
    // Nothing is on, so only the gradient of the second matrix could differ from zero, but its input
    // is zero, too.
    assert_eq!(run.outputs[0][1].download(LONG).unwrap(), filled([2048, 10], 0.01));
}

/// Compiles and runs the step for one of 1,024 replicas, whose collectives are mocked.
#[test]
fn a_program_of_1024_mocked_replicas_compiles_and_runs() {
    // Otherwise the compiler waits for the others to choose their share of the kernels. XLA reads it
    // when the plugin is opened.
    const FLAG: &str = "--xla_gpu_shard_autotuning=false";
    let flags = std::env::var("XLA_FLAGS").unwrap_or_default();
    if !flags.contains(FLAG) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_program_of_1024_mocked_replicas_compiles_and_runs", "--nocapture"]);
        assert!(command.env("XLA_FLAGS", format!("{flags} {FLAG}")).status().unwrap().success());
        return;
    }
    let Some(plugin) = gpu() else { return };
    for replicas in [1, 8, 64, 1024] {
        let begun = Instant::now();
        let no_preallocation = [("preallocate", OptionValue::Bool(false))];
        let mock = DistributedOptions::mock(replicas);
        let client = Client::new_distributed(&plugin, &no_preallocation, &mock, LONG, &|| Ok(())).unwrap();
        let created = begun.elapsed();
        // The machine may have several GPUs: each mocked process has as many.
        assert_eq!(client.global_devices().len(), replicas * client.devices().len());
        let device = &client.devices()[0];
        let first_of = |process: usize| client.global_devices().iter().find(|d| d.process_index() == process);
        let ids: Vec<i64> = (0..replicas).map(|process| first_of(process).unwrap().id()).collect();
        let begun = Instant::now();
        let options = CompileOptions::new().replicas(replicas).devices(ids);
        let program = client.compile(&step_text(replicas), &options).unwrap();
        let compiled = begun.elapsed();
        assert_eq!(program.device_ids(), [device.id()]);
        let upload = |sizes, value| client.upload(&filled(sizes, value), device).unwrap();
        let (mut v, mut w) = (upload([784, 2048], 0.01), upload([2048, 10], 0.01));
        let (x, t) = (upload([64, 784], 0.5), upload([64, 10], 1.0));
        let mut times = Vec::new();
        for _ in 0..200 {
            let begun = Instant::now();
            let mut run = program.execute(&[vec![&v, &w, &x, &t]]).unwrap();
            run.done[0].wait(LONG).unwrap();
            times.push(begun.elapsed());
            (v, w) = {
                let mut outputs = run.outputs.swap_remove(0).into_iter();
                (outputs.next().unwrap(), outputs.next().unwrap())
            };
        }
        let first = times[0];
        times.sort_unstable();
        println!(
            "{replicas} replicas: client {:.2} s, compile {:.2} s, first step {:.2} ms, median step {:.3} ms, fastest {:.3} ms",
            created.as_secs_f64(),
            compiled.as_secs_f64(),
            first.as_secs_f64() * 1e3,
            times[times.len() / 2].as_secs_f64() * 1e3,
            times[0].as_secs_f64() * 1e3
        );
        assert!(v.download(LONG).unwrap().to_f64_vec().iter().all(|x| x.is_finite()));
    }
}
