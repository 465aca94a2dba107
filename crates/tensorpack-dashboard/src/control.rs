//! What `--allow-control` allows: to stop a run, and to change its hyper-parameters.

use crate::confined::Roots;
use crate::run::{Run, read_text};
use crate::run_status::{holder, holds_lock};
use std::fs::{self, File};
use std::io::Write;

/// Asks the process of a run to finish its step, save a checkpoint and terminate (SIGTERM).
pub(crate) fn stop(roots: &Roots, run: &Run) -> Result<(), String> {
    let holder = holder(roots, &run.dir).ok_or("the run has no lock file")?;
    // The number of a process that has terminated may belong to another one by now.
    if !holds_lock(&holder, &run.dir.join("lock")) {
        return Err("no process of this machine is training here".into());
    }
    terminate(holder.pid)
}

#[cfg(unix)]
fn terminate(pid: u32) -> Result<(), String> {
    let pid = i32::try_from(pid).ok().filter(|&p| p > 1).ok_or("the lock file has no process")?;
    // SAFETY: `kill` takes integers and has no effect on the memory of this process. `pid` is
    // above 1, so it names one process and no group.
    match unsafe { libc::kill(pid, libc::SIGTERM) } {
        0 => Ok(()),
        _ => Err(format!("cannot send a signal: {}", std::io::Error::last_os_error())),
    }
}

#[cfg(not(unix))]
fn terminate(_: u32) -> Result<(), String> {
    Err("stopping a run needs a Unix system".into())
}

/// Sets a line of `hyper.txt`, which `HumanHyperParamSetter` reads at its next trigger. The file is
/// replaced at once, so that it is never seen half written.
pub(crate) fn set_hyper_param(roots: &Roots, run: &Run, name: &str, value: f64) -> Result<(), String> {
    let valid =
        !name.is_empty() && name.len() <= 200 && name.trim() == name && !name.contains(char::is_control);
    if !valid {
        return Err("a hyper-parameter needs a name of one line".into());
    }
    if !value.is_finite() {
        return Err("the value is not a finite number".into());
    }
    let dir = roots.resolve(&run.dir).map_err(|e| e.to_string())?;
    let path = dir.join("hyper.txt");
    let old = match fs::symlink_metadata(&path) {
        Ok(m) if m.is_file() => read_text(roots, &path, 1 << 16).ok_or("hyper.txt cannot be read")?,
        Ok(_) => return Err("hyper.txt is not a regular file".into()),
        Err(_) => String::new(),
    };
    let line = format!("{name}: {value:?}");
    let mut replaced = false;
    let mut lines: Vec<String> = Vec::new();
    for old in old.lines() {
        if old.rsplit_once(':').is_some_and(|(n, _)| n.trim() == name) {
            // The setter takes the first of several lines.
            if !std::mem::replace(&mut replaced, true) {
                lines.push(line.clone());
            }
        } else {
            lines.push(old.to_string());
        }
    }
    if !replaced {
        lines.push(line);
    }
    let next = dir.join(format!(".hyper.txt.{}", std::process::id()));
    let write = || {
        // A file or link of that name was left by a crash, or by someone else.
        match fs::remove_file(&next) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = File::create_new(&next)?;
        file.write_all((lines.join("\n") + "\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&next, &path)
    };
    write().map_err(|e| format!("cannot write hyper.txt: {e}"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::run_status::host_name;
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    fn run(dir: &Path) -> (Roots, Run) {
        let dir = dir.canonicalize().unwrap();
        (Roots::new(std::slice::from_ref(&dir)).unwrap(), Run::new("id".into(), "name".into(), dir))
    }

    #[test]
    fn a_hyper_parameter_replaces_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let (roots, run) = run(dir.path());
        let path = dir.path().join("hyper.txt");
        set_hyper_param(&roots, &run, "learning_rate", 1e-5).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "learning_rate: 1e-5\n");
        fs::write(&path, "a comment\nlearning_rate : 1\nmomentum: 0.9\nlearning_rate: 2\n").unwrap();
        set_hyper_param(&roots, &run, "learning_rate", 0.5).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a comment\nlearning_rate: 0.5\nmomentum: 0.9\n");
        for (name, value) in [("", 1.0), ("a\nb", 1.0), (" a", 1.0), ("a", f64::NAN), ("a", f64::INFINITY)] {
            assert!(set_hyper_param(&roots, &run, name, value).is_err(), "{name:?}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a temporary file is left");
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(outside.path(), &path).unwrap();
        assert!(set_hyper_param(&roots, &run, "a", 1.0).is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn only_the_process_that_holds_the_lock_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let (roots, run) = run(dir.path());
        assert!(stop(&roots, &run).is_err(), "there is no lock");
        let sleep = |stdin: Stdio| Command::new("sleep").arg("60").stdin(stdin).spawn().unwrap();
        let lock = dir.path().join("lock");
        let mut other = sleep(Stdio::null());
        fs::write(&lock, format!("{} {}\n", other.id(), host_name())).unwrap();
        assert!(stop(&roots, &run).is_err(), "that process does not have the lock");
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        // A child that has the lock file open as its standard input.
        let mut holder = sleep(File::open(&lock).unwrap().into());
        fs::write(&lock, format!("{} {}\n", holder.id(), host_name())).unwrap();
        stop(&roots, &run).unwrap();
        assert_eq!(holder.wait().unwrap().signal(), Some(libc::SIGTERM));
    }
}
