//! The command `tensorpack`: plugins with a fake pip, launchers, exports, the server.
#![cfg(unix)]

mod reruns;
mod runs;
#[cfg(feature = "serve")]
mod serve;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;
use tensorpack::prelude::*;
use tensorpack::tower::TowerFunc;
use tensorpack_testing::{Requirement, assert_mentions, skip};

/// Writes a shell script into the folder that is the whole path of the command.
fn program(cache: &Path, name: &str, text: &str) {
    let file = cache.join("programs").join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the command. `pip` is the shell script of a program of that name; nothing else is on the
/// path.
fn tensorpack_with(variables: &[(&str, &str)], words: &[&str], cache: &Path, pip: Option<&str>) -> Output {
    if let Some(text) = pip {
        program(cache, "pip", text);
    }
    command(variables, words, cache).output().unwrap()
}

fn command(variables: &[(&str, &str)], words: &[&str], cache: &Path) -> Command {
    let programs = cache.join("programs");
    fs::create_dir_all(&programs).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorpack"));
    command.args(words).env("TENSORPACK_CACHE", cache).env("PATH", &programs);
    for name in ["VIRTUAL_ENV", "TENSORPACK_PJRT_PLUGIN", "PJRT_NAMES_AND_LIBRARY_PATHS", "TENSORPACK_MPI"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command
}

fn tensorpack(words: &[&str], cache: &Path, pip: Option<&str>) -> Output {
    tensorpack_with(&[], words, cache, pip)
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Whether the folder of plugins holds anything but the lock.
fn left_behind(cache: &Path) -> bool {
    fs::read_dir(cache.join("plugins")).unwrap().any(|entry| entry.unwrap().file_name() != ".lock")
}

#[test]
fn a_dry_run_lists_the_download_and_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    if !cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
        let text = error(&tensorpack(&["plugin", "install", "cpu"], dir.path(), None));
        assert!(text.contains("Linux on x86_64 and aarch64"), "{text}");
        return;
    }
    let text = out(&tensorpack(&["plugin", "install", "cuda13", "--dry-run"], dir.path(), Some("exit 1")));
    let home = dir.path().join("plugins/cuda13");
    assert!(text.lines().next().unwrap().contains(home.to_str().unwrap()), "{text}");
    for part in ["jax-cuda13-pjrt==0.12.0.1 ", "nvidia-cudnn-cu13==", "nvidia-nccl-cu13==", "total "] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!home.exists());
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn a_failing_pip_is_an_error_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let install = |pip| error(&tensorpack(&["plugin", "install", "cpu"], dir.path(), pip));

    let text = install(None);
    assert!(text.contains("pip"), "{text}");
    assert!(text.contains("install Python 3 with pip"), "{text}");
    assert!(!left_behind(dir.path()));

    let text = install(Some("echo 'ERROR: No matching distribution found' >&2; exit 1"));
    assert!(text.contains("could not download xla-cpu-pjrt==0.0.1"), "{text}");
    assert!(text.contains("ERROR: No matching distribution found"), "{text}");
    assert!(text.contains("without a network"), "{text}");
    assert!(!left_behind(dir.path()));

    let text = install(Some("echo forged > xla_cpu_pjrt-0.0.1-py3-none-any.whl"));
    assert!(text.contains("xla_cpu_pjrt-0.0.1-py3-none-any.whl has the wrong checksum"), "{text}");
    assert!(!left_behind(dir.path()));

    let text = install(Some("exit 0"));
    assert!(text.contains("pip downloaded no file of xla-cpu-pjrt==0.0.1"), "{text}");
    assert!(!left_behind(dir.path()));
}

/// The default number of threads is the number of these cores.
#[cfg(target_os = "linux")]
#[test]
fn doctor_counts_the_cores_that_affinity_and_quota_leave() {
    let cache = tempfile::tempdir().unwrap();
    let doctor = |wrapper: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{wrapper} \"$0\" doctor"), env!("CARGO_BIN_EXE_tensorpack")]);
        out(&command.env("TENSORPACK_CACHE", cache.path()).output().unwrap())
    };
    let own = doctor("taskset -c $(taskset -cp $$ | sed 's/.*: \\([0-9]*\\).*/\\1/') ");
    assert!(own.contains("cpu engine: 1 core,"), "{own}");
    // A quota needs a cgroup of its own, which only some machines allow.
    let group = Path::new("/sys/fs/cgroup/cpu").join(format!("tensorpack-test-{}", std::process::id()));
    if fs::create_dir(&group).is_err() {
        return skip(Requirement::Devices, "cgroups of version 1 cannot be created here");
    }
    fs::write(group.join("cpu.cfs_period_us"), "100000").unwrap();
    fs::write(group.join("cpu.cfs_quota_us"), "100000").unwrap();
    let limited = doctor(&format!("echo $$ > {}/tasks; exec", group.display()));
    fs::remove_dir(&group).unwrap();
    assert!(limited.contains("cpu engine: 1 core,"), "{limited}");
}

/// Plugins that are not installed here are named with their Python packages.
#[test]
fn plugins_of_other_vendors_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let doctor = out(&tensorpack(&["doctor"], dir.path(), None));
    for (name, package) in [("tpu", "libtpu"), ("rocm7", "jax-rocm7-pjrt")] {
        let command = format!("pip install {package}");
        assert!(doctor.contains(&command), "{doctor}");
        let install = tensorpack(&["plugin", "install", name], dir.path(), None);
        let text = String::from_utf8(install.stderr).unwrap();
        assert!(!install.status.success() && text.contains(&command), "{text}");
    }
    let help = out(&tensorpack(&["plugin", "install", "--help"], dir.path(), None));
    assert!(help.contains("cuda13") && !help.contains("rocm7"), "{help}");
}

#[test]
fn doctor_reports_missing_and_broken_plugins() {
    let dir = tempfile::tempdir().unwrap();
    let text = out(&tensorpack(&["doctor"], dir.path(), None));
    assert!(text.contains("cpu engine: "), "{text}");
    assert!(text.contains("reference engine: "), "{text}");
    assert!(text.contains("no plugin for cpu; to get one: tensorpack plugin install cpu\n"), "{text}");
    assert!(text.contains("no plugin for cuda; to get one: tensorpack plugin install cuda1"), "{text}");
    let file = dir.path().join("plugins/cpu/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "words").unwrap();
    let text = out(&tensorpack(&["doctor"], dir.path(), None));
    assert!(text.contains("xla_cpu_pjrt.so (installed by tensorpack)\n    it cannot be opened:\n"), "{text}");
    assert!(!text.contains("no plugin for cpu"), "{text}");
}

#[test]
fn plugins_that_the_environment_names_come_first() {
    let dir = tempfile::tempdir().unwrap();
    let one = [("TENSORPACK_PJRT_PLUGIN", "/no/such.so")];
    let text = out(&tensorpack_with(&one, &["doctor"], dir.path(), None));
    assert!(
        text.contains("  /no/such.so (named by TENSORPACK_PJRT_PLUGIN)\n    it cannot be opened:\n"),
        "{text}"
    );
    assert!(!text.contains("no plugin for"), "{text}");
    let many = [("PJRT_NAMES_AND_LIBRARY_PATHS", "cuda:/no/cuda.so")];
    let text = out(&tensorpack_with(&many, &["doctor"], dir.path(), None));
    assert!(text.contains("  /no/cuda.so (named by PJRT_NAMES_AND_LIBRARY_PATHS)\n"), "{text}");
    assert!(text.contains("no plugin for cpu") && !text.contains("no plugin for cuda"), "{text}");
    let environment = dir.path().join("environment");
    let file = environment.join("lib/python3.12/site-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "words").unwrap();
    let active = [("VIRTUAL_ENV", environment.to_str().unwrap())];
    let text = out(&tensorpack_with(&active, &["doctor"], dir.path(), None));
    assert!(text.contains(&format!("  {} (in the virtual environment)\n", file.display())), "{text}");
}

#[test]
fn an_unknown_command_or_plugin_is_an_error_that_lists_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let text = error(&tensorpack(&["plugin", "remove", "cpu"], dir.path(), None));
    assert!(text.starts_with("Error: ") && text.contains("'remove'"), "{text}");
    let text = error(&tensorpack(&["plugin", "install", "metal"], dir.path(), None));
    assert!(text.contains("'metal'") && text.contains("cpu, cuda13, cuda12"), "{text}");
    let text = error(&tensorpack(&["docter"], dir.path(), None));
    assert!(text.contains("'doctor'"), "{text}");
}

#[test]
fn help_lists_the_commands() {
    let dir = tempfile::tempdir().unwrap();
    for words in [&[][..], &["--help"], &["-h"], &["help"]] {
        let text = out(&tensorpack(words, dir.path(), None));
        assert!(text.contains("plugin ") && text.contains("doctor "), "{words:?}: {text}");
    }
    let text = out(&tensorpack(&["plugin", "install", "--help"], dir.path(), None));
    assert!(text.contains("cpu, cuda13, cuda12") && text.contains("--dry-run"), "{text}");
}

#[test]
fn a_reader_may_close_the_pipe() {
    let dir = tempfile::tempdir().unwrap();
    for words in [&["--help"][..], &["doctor"], &["plugin", "install", "cuda13", "--dry-run"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorpack"));
        let output = command.args(words).env("TENSORPACK_CACHE", dir.path()).stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    }
}

/// Makes the folder of an installed plugin, with a plugin that cannot be opened.
fn pretend_installed(cache: &Path) {
    let home = cache.join("plugins/cpu");
    fs::create_dir_all(home.join("xla_cpu_pjrt-0.0.1.dist-info")).unwrap();
    let file = home.join("xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, "words").unwrap();
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn closed_output_is_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    pretend_installed(dir.path());
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let install = &["plugin", "install", "cpu"][..];
    let output = command(&[], install, dir.path()).stdout(closed()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!text.contains("panicked"), "{text}");
    assert_eq!(output.status.code(), Some(1), "the plugin cannot be opened: {text}");
    for words in [install, &["docter"], &["--help"], &["doctor"]] {
        let status = command(&[], words, dir.path()).stdout(closed()).stderr(closed()).status().unwrap();
        assert!(matches!(status.code(), Some(0 | 1)), "{words:?}: {status}");
    }
}

#[test]
fn doctor_runs_no_other_program() {
    let dir = tempfile::tempdir().unwrap();
    let marker = dir.path().join("ran");
    for name in ["python3", "python", "pip", "pip3", "mpiexec"] {
        program(dir.path(), name, &format!("echo {name} >> '{}'", marker.display()));
    }
    out(&tensorpack(&["doctor"], dir.path(), None));
    assert!(!marker.exists(), "doctor ran {}", fs::read_to_string(&marker).unwrap());
}

#[test]
fn a_relative_cache_is_made_absolute() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(&[], &["plugin", "install", "cpu", "--dry-run"], dir.path());
    let output = command.env("TENSORPACK_CACHE", "here").current_dir(dir.path()).output().unwrap();
    let text = out(&output);
    let home = dir.path().canonicalize().unwrap().join("here/plugins/cpu");
    assert!(text.contains(home.to_str().unwrap()), "{text}");
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn pip_gets_pinned_wheels_with_hashes_and_builds_nothing() {
    for plugin in ["cpu", "cuda12", "cuda13"] {
        let dir = tempfile::tempdir().unwrap();
        let seen = dir.path().join("seen");
        // Records its arguments and the requirements.
        let script = format!(
            "echo \"$@\" >> '{seen}'; for word in \"$@\"; do case $word in *requirements*) \
             while read -r line; do echo \"$line\" >> '{seen}'; done < \"$word\";; esac; done",
            seen = seen.display()
        );
        error(&tensorpack(&["plugin", "install", plugin], dir.path(), Some(&script)));
        let text = fs::read_to_string(&seen).unwrap();
        let (words, requirements) = text.split_once('\n').unwrap();
        for option in ["--only-binary=:all:", "--require-hashes", "--no-deps"] {
            assert!(words.contains(option), "{option} is missing: {words}");
        }
        let lines: Vec<_> = requirements.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("==")), "{requirements}");
        assert!(lines.iter().all(|line| line.contains(" --hash=sha256:")), "{requirements}");
        assert_eq!(plugin != "cpu", requirements.contains("nvidia-cudnn-cu1"), "{requirements}");
    }
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn a_wait_for_another_installation_is_announced() {
    let dir = tempfile::tempdir().unwrap();
    pretend_installed(dir.path());
    let lock = File::create(dir.path().join("plugins/.lock")).unwrap();
    lock.lock().unwrap();
    let mut command = command(&[], &["plugin", "install", "cpu"], dir.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let _ = send.send(line);
        // Keep the pipe open until the command ends.
        let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    });
    let line = receive.recv_timeout(Duration::from_secs(20));
    lock.unlock().unwrap();
    let status = child.wait().unwrap();
    let line = line.expect("the command says what it waits for");
    assert!(line.contains("waiting for another process") && line.contains(".lock"), "{line}");
    assert_eq!(status.code(), Some(1), "the plugin cannot be opened");
}

/// Makes an installation of MPI whose launcher prints its arguments, the token and its process id, and
/// exits with 7.
fn pretend_mpi(folder: &Path) -> String {
    let home = folder.join("mpi");
    fs::create_dir_all(home.join("lib")).unwrap();
    fs::write(home.join("lib/libmpi.so.12"), "words").unwrap();
    program(
        &home,
        "mpiexec",
        r#"test "$1" = --version && { echo HYDRA; exit; }; echo "$@"; echo token ${#TENSORPACK_TOKEN}; echo pid $$; exit 7"#,
    );
    fs::rename(home.join("programs"), home.join("bin")).unwrap();
    home.to_str().unwrap().to_owned()
}

#[cfg(target_os = "linux")]
#[test]
fn launch_runs_the_launcher_and_returns_its_status() {
    let dir = tempfile::tempdir().unwrap();
    let home = pretend_mpi(dir.path());
    let run = |words: &[&str]| tensorpack_with(&[("TENSORPACK_MPI", &home)], words, dir.path(), None);
    let output = run(&["launch", "-n", "3", "--hosts", "a,b", "--", "train", "-n", "x y"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("-hosts a:2,b:2 ") && text.contains("-n 3 ") && text.contains("train -n x y\n"),
        "{text}"
    );
    assert!(text.contains("token 64\n"), "{text}");
    let text = out(&run(&["launch", "-n", "3", "--dry-run", "--", "train", "x y"]));
    assert!(
        text.contains("mpi/bin/mpiexec -") && text.ends_with("train 'x y'\n") && !text.contains("token"),
        "{text}"
    );
    for words in
        [&["launch", "-n", "3"][..], &["launch", "--", "train"], &["launch", "-n", "0", "--", "train"]]
    {
        error(&run(words));
    }
    let text = error(&run(&["launch", "-n", "3", "--hosts", "a b", "--", "train"]));
    assert!(text.contains("a b"), "{text}");
}

/// Signals for the command are for the launcher: whoever stops the one must not leave the other, and
/// the ranks, behind.
#[cfg(target_os = "linux")]
#[test]
fn launch_becomes_the_launcher() {
    let dir = tempfile::tempdir().unwrap();
    let home = pretend_mpi(dir.path());
    let mut command =
        command(&[("TENSORPACK_MPI", &home)], &["launch", "-n", "2", "--", "train"], dir.path());
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(text.contains(&format!("pid {id}\n")), "{id}: {text}");
}

#[cfg(target_os = "linux")]
#[test]
fn doctor_lists_mpi_and_the_launcher() {
    let dir = tempfile::tempdir().unwrap();
    let home = pretend_mpi(dir.path());
    let variables = [("TENSORPACK_MPI", &*home), ("TENSORPACK_RANK", "1"), ("TENSORPACK_SIZE", "2")];
    let text = out(&tensorpack_with(&variables, &["doctor"], dir.path(), None));
    assert!(text.contains("lib/libmpi.so.12 (MPICH, named by TENSORPACK_MPI)\n"), "{text}");
    assert!(text.contains("rank 1 of 2 (TENSORPACK_RANK)"), "{text}");
    let text = out(&tensorpack_with(&[("TENSORPACK_RANK", "1")], &["doctor"], dir.path(), None));
    assert!(text.contains("TENSORPACK_SIZE"), "{text}");
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn mpi_is_a_package_with_a_checksum() {
    let dir = tempfile::tempdir().unwrap();
    let text = out(&tensorpack(&["plugin", "install", "mpi", "--dry-run"], dir.path(), None));
    assert!(text.contains("mpich==5.0.2 ") && text.contains("sha256 "), "{text}");
    let forged = Some("echo forged > mpich-5.0.2-py3-none-any.whl");
    let text = error(&tensorpack(&["plugin", "install", "mpi"], dir.path(), forged));
    assert!(text.contains("mpich-5.0.2-py3-none-any.whl has the wrong checksum"), "{text}");
    assert!(!left_behind(dir.path()));
}

#[test]
fn an_exported_model_is_converted_to_onnx() {
    let dir = tempfile::tempdir().unwrap();
    let [model, onnx] = ["model.safetensors", "model.onnx"].map(|name| dir.path().join(name));
    let x = TensorSpec::f32("x", [None, Some(3)]);
    let tower = TowerFunc::new(vec![x], |t, x| vec![Linear::new(2).apply(t, "fc", &x[0]).named("y")]);
    let config = PredictConfig::from_tower(tower.unwrap(), ["y"]);
    OfflinePredictor::new(config).unwrap().export(&model).unwrap();
    let [from, to] = [&model, &onnx].map(|path| path.to_str().unwrap());
    let words = ["export", from, "--onnx", to, "--external-data", "--metadata", "language=en"];
    let text = out(&tensorpack(&words, dir.path(), None));
    assert_mentions(&text, &["model.onnx", "x: f32[?, 3]", "output y"]);
    let bytes = fs::read(&onnx).unwrap();
    let contains = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    assert!(contains(b"fc/W") && contains(b"language") && contains(b"tensorpack"));
    assert!(onnx.with_file_name("model.onnx.data").exists());

    let other = dir.path().join("other.onnx");
    let words = ["export", from, "--onnx", other.to_str().unwrap(), "--metadata", "language"];
    assert_mentions(error(&tensorpack(&words, dir.path(), None)), &["--metadata", "KEY=VALUE"]);
    assert!(!other.exists());
}

#[test]
fn an_exported_model_is_folded() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["model.safetensors", "folded.safetensors", "folded.onnx", "again.safetensors"];
    let paths = paths.map(|name| dir.path().join(name));
    let x = TensorSpec::f32("x", [None, Some(3)]);
    let tower = TowerFunc::new(vec![x], |t, x| {
        vec![BatchNorm::new().relu().apply(t, "bn", &Linear::new(2).apply(t, "fc", &x[0])).named("y")]
    });
    let predictor = OfflinePredictor::new(PredictConfig::from_tower(tower.unwrap(), ["y"])).unwrap();
    let predictor = predictor.with_metadata("license", "MIT").unwrap();
    predictor.session().write("bn/mean/EMA", &HostTensor::new([2], vec![0.5f32, -1.0]).unwrap()).unwrap();
    predictor.export(&paths[0]).unwrap();
    let [from, folded, onnx, again] = paths.each_ref().map(|path| path.to_str().unwrap());
    let text = out(&tensorpack(
        &["export", from, "--fold", "--safetensors", folded, "--onnx", onnx],
        dir.path(),
        None,
    ));
    assert_mentions(&text, &["folded.safetensors", "folded.onnx", "output y"]);
    out(&tensorpack(&["export", onnx, "--safetensors", again], dir.path(), None));
    let x = HostTensor::new([2, 3], vec![1.0f32, -2.0, 0.5, 3.0, 0.0, -1.0]).unwrap();
    let right = predictor.predict(&[&x]).unwrap()[0].to_f64_vec();
    for path in &paths[1..] {
        let model = ExportedModel::load(path).unwrap();
        let found = model.predict(&[&x]).unwrap()[0].to_f64_vec();
        assert!(found.iter().zip(&right).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} is not {right:?}");
        assert_eq!(model.metadata()["license"], "MIT");
    }
    let mut names: Vec<_> =
        tensorpack::io::read_tensors(&paths[1], None).unwrap().into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(names, ["fc/W", "fc/b"]);
    let text = error_status(&tensorpack(&["export", from], dir.path(), None));
    assert!(text.contains("--onnx"), "{text}");
}

/// Returns the message of a command line that is refused.
fn error_status(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
#[cfg(feature = "dashboard")]
fn a_dashboard_prints_its_address_and_answers() {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let refused = tensorpack(&["dashboard", "no such folder"], dir.path(), None);
    assert_mentions(error(&refused), &["no such folder"]);

    let mut child = command(&[], &["dashboard", folder, "--port", "0"], dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("dashboard at http://").unwrap().trim_end_matches('/').to_string();
    let mut stream = TcpStream::connect(&address).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    // A second one cannot have the same port.
    let port = address.rsplit(':').next().unwrap();
    let taken = tensorpack(&["dashboard", folder, "--port", port], dir.path(), None);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("<title>tensorpack dashboard"), "{answer}");
    assert_mentions(error(&taken), &["cannot listen at", "--port"]);
}
