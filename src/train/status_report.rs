//! What the process does right now, printed on `SIGUSR2`: the training loop, each tower, each thread.
//!
//! A signal handler may not print, so it wakes a thread that does, whatever the other threads are
//! waiting for.

use crate::callback::places;
use crate::runtime::tower_positions;
use std::fs::File;
use std::io::{Error, Read};
use std::os::fd::FromRawFd;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

/// The end of the pipe that signal handlers write to. It stays open, since a handler may use it at
/// any time.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// Starts the thread that prints reports, unless there is one.
pub(super) fn start() -> std::io::Result<()> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if WAKE.load(Ordering::Relaxed) >= 0 {
        return Ok(());
    }
    let mut ends = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe(ends.as_mut_ptr()) } != 0 {
        return Err(Error::last_os_error());
    }
    for end in ends {
        // SAFETY: the descriptor was just opened. Programs that this process starts must not have it.
        unsafe { libc::fcntl(end, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: the descriptor was just opened, and nothing else closes it.
    let mut woken = unsafe { File::from_raw_fd(ends[0]) };
    let work = move || {
        while woken.read_exact(&mut [0]).is_ok() {
            log::warn!("{}", report());
        }
    };
    std::thread::Builder::new().name("status".into()).spawn(work)?;
    // SAFETY: the descriptor is open. A handler must never wait for room in the pipe.
    unsafe { libc::fcntl(ends[1], libc::F_SETFL, libc::O_NONBLOCK) };
    WAKE.store(ends[1], Ordering::Relaxed);
    Ok(())
}

/// Asks for a report. Signal handlers may call it.
pub(super) fn request() {
    let errno = errno();
    // SAFETY: `write` may be called in a signal handler. The byte lives during the call; the
    // descriptor is that of the pipe, or -1, which is an error that is ignored. The code that was
    // interrupted may be about to read `errno`, which is this thread's own and always valid.
    unsafe {
        let before = *errno;
        libc::write(WAKE.load(Ordering::Relaxed), [0u8].as_ptr().cast(), 1);
        *errno = before;
    }
}

/// Returns the address of this thread's `errno`.
fn errno() -> *mut libc::c_int {
    // SAFETY: the functions take nothing and cannot fail.
    #[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
    return unsafe { libc::__error() };
    #[cfg(not(any(target_vendor = "apple", target_os = "freebsd")))]
    // SAFETY: as above.
    return unsafe { libc::__errno_location() };
}

fn report() -> String {
    let mut lines = vec!["received SIGUSR2; this is where everything is:".to_string()];
    lines.extend(places());
    lines.extend(tower_positions());
    lines.extend(threads(Path::new("/proc/self/task")));
    lines.join("\n  ")
}

/// Returns a line for each thread, as far as the system knows: its name, what it does, and the
/// processor time that it has used.
fn threads(tasks: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(tasks) else { return Vec::new() };
    let mut ids: Vec<u64> = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    let line = |id: &u64| thread_line(*id, &std::fs::read_to_string(tasks.join(format!("{id}/stat"))).ok()?);
    ids.iter().filter_map(line).collect()
}

/// Parses `stat` of a thread: `ID (NAME) STATE ...`, where the name may contain anything.
fn thread_line(id: u64, stat: &str) -> Option<String> {
    let (before, after) = stat.rsplit_once(')')?;
    let name = before.split_once('(')?.1;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let state = match *fields.first()? {
        "R" => "running",
        "S" => "waiting",
        "D" => "waiting for a disk or device",
        "T" | "t" => "stopped",
        other => other,
    };
    // Fields 14 and 15, counted from the number of the thread.
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    // SAFETY: `sysconf` takes any name.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1);
    let seconds = ticks as f64 / per_second as f64;
    Some(format!("thread {id} {name:?} is {state}, after {seconds:.2} s of processor time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_threads_may_contain_anything() {
        let stat = "71 (a) b (c) S 1 1 1 0 -1 4194304 9 0 0 0 150 50 0 0 20 0 3 0 6 1 1";
        // SAFETY: `sysconf` takes any name.
        let second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        let line = thread_line(71, stat).unwrap();
        let time = format!("{:.2} s of processor time", 200.0 / second);
        assert_eq!(line, format!("thread 71 \"a) b (c\" is waiting, after {time}"));
        assert_eq!(thread_line(71, "71 (short) S 1"), None);
    }
}
