//! Logs to standard error, and to `log.log` in the log directory.
//!
//! The library logs through the `log` crate. This logger is installed when training starts, unless
//! the program has installed another one. The environment variable `TENSORPACK_LOG` sets the
//! maximum level: `error`, `warn`, `info` (the default), `debug`, or `off`.
//!
//! Lines have colors on a terminal, unless the environment variable `NO_COLOR` is set. In a
//! quiet run (`RunConfig::quiet`), standard error gets only warnings and errors.

use crate::terminal;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::fs::File;
use std::io::Write;
use std::panic::{Location, PanicHookInfo};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tensorpack_tensor::{Error, ErrorKind, Result};

struct Logger {
    file: Mutex<Option<File>>,
    colors: bool,
    /// Whether standard error gets only warnings and errors.
    quiet: AtomicBool,
    /// The rank of this process, if it is not 0.
    rank: AtomicUsize,
}

fn logger() -> &'static Logger {
    static LOGGER: OnceLock<Logger> = OnceLock::new();
    LOGGER.get_or_init(|| Logger {
        file: Mutex::new(None),
        colors: terminal::has_colors(),
        quiet: AtomicBool::new(false),
        rank: AtomicUsize::new(0),
    })
}

/// Installs the logger, unless the program has installed another one. From then on `log.log` also
/// contains the panics of all threads; the panic hook of the program is called as before.
pub fn init() {
    if log::set_logger(logger()).is_ok() {
        let set = std::env::var("TENSORPACK_LOG").ok().filter(|set| !set.is_empty());
        let level = set.as_deref().map(str::parse::<LevelFilter>);
        log::set_max_level(
            level.as_ref().and_then(|level| level.as_ref().ok().copied()).unwrap_or(LevelFilter::Info),
        );
        if let (Some(set), Some(Err(_))) = (&set, &level) {
            log::warn!("TENSORPACK_LOG={set} is no level: use error, warn, info, debug or off");
        }
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            record_panic(panic);
            terminal::while_hidden(|| hook(panic));
        }));
    }
}

/// Writes the error that ends a run to `log.log`, and syncs the file. Not to standard error: the
/// program gets the error and reports it.
#[track_caller]
pub(crate) fn record_error(error: &Error) {
    let at = Location::caller();
    logger().write_to_file(&format!("{} ERR {error}", head(Some(at.file()), at.line())));
    logger().flush();
}

fn record_panic(panic: &PanicHookInfo<'_>) {
    let text = panic.payload().downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.payload().downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("without a message");
    let (file, line) = panic.location().map_or((None, 0), |at| (Some(at.file()), at.line()));
    logger().write_to_file(&format!("{} ERR panic: {text}", head(file, line)));
}

/// Returns the beginning of a line.
fn head(file: Option<&str>, line: u32) -> String {
    let file = file.and_then(|f| f.rsplit('/').next()).unwrap_or("?");
    format!("[{} @{file}:{line}]", time_of_day(SystemTime::now()))
}

/// Tells the logger which of several processes this is. On all but rank 0, standard error gets only
/// warnings and errors, each with the rank.
pub(crate) fn set_rank(rank: usize) {
    logger().rank.store(rank, Ordering::Relaxed);
    logger().update_live_line();
}

/// Sets whether standard error gets only warnings and errors. `log.log` gets everything.
pub(crate) fn set_quiet(quiet: bool) {
    logger().quiet.store(quiet, Ordering::Relaxed);
    logger().update_live_line();
}

/// Also logs to `log.log` in this directory; on rank N of several processes, to `log-rank-N.log`.
/// Appends to an existing file.
#[doc(alias = "set_logger_dir")]
pub fn set_directory(dir: &Path) -> Result<()> {
    let path = match logger().rank.load(Ordering::Relaxed) {
        0 => dir.join("log.log"),
        rank => dir.join(format!("log-rank-{rank}.log")),
    };
    let open = || {
        std::fs::create_dir_all(dir)?;
        File::options().create(true).append(true).open(&path)
    };
    let file = open().map_err(|e| Error::new(ErrorKind::Io, format!("{}: {e}", path.display())))?;
    *logger().file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    Ok(())
}

/// Calls `work`, and logs how long it took, at the caller's line.
///
/// ```
/// let primes = tensorpack::logger::timed_operation("counting primes", || {
///     (2..100).filter(|n| (2..*n).all(|d| n % d != 0)).count() // logs: counting primes: 0.000 s
/// });
/// assert_eq!(primes, 25);
/// ```
#[track_caller]
#[doc(alias = "Timer")]
pub fn timed_operation<R>(name: &str, work: impl FnOnce() -> R) -> R {
    let (caller, began) = (Location::caller(), Instant::now());
    let result = work();
    let took = began.elapsed().as_secs_f64();
    log::logger().log(
        &Record::builder()
            .level(Level::Info)
            .target(module_path!())
            .file(Some(caller.file()))
            .line(Some(caller.line()))
            .args(format_args!("{name}: {took:.3} s"))
            .build(),
    );
    result
}

impl Logger {
    /// Returns whether standard error gets only warnings and errors.
    fn only_warnings(&self) -> bool {
        self.rank.load(Ordering::Relaxed) > 0 || self.quiet.load(Ordering::Relaxed)
    }

    fn update_live_line(&self) {
        terminal::allow_live_line(!self.only_warnings());
    }

    /// Writes a line to `log.log`, if there is one.
    fn write_to_file(&self, line: &str) {
        if let Some(file) = &mut *self.file.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(file, "{line}");
        }
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let (tag, color) = match record.level() {
            Level::Error => ("ERR ", 31),
            Level::Warn => ("WRN ", 33),
            Level::Info => ("", 32),
            Level::Debug | Level::Trace => ("DBG ", 34),
        };
        let head = head(record.file(), record.line().unwrap_or(0));
        let rest = format!("{tag}{}", record.args());
        self.write_to_file(&format!("{head} {rest}"));
        if self.only_warnings() && record.level() > Level::Warn {
            return;
        }
        let rank = self.rank.load(Ordering::Relaxed);
        let rest = if rank > 0 { format!("rank {rank}: {rest}") } else { rest };
        terminal::write_line(&match self.colors {
            true => format!("\x1b[{color}m{head}\x1b[0m {rest}"),
            false => format!("{head} {rest}"),
        });
    }

    fn flush(&self) {
        if let Some(file) = &mut *self.file.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = file.sync_data();
        }
    }
}

/// Formats a time as `MMDD HH:MM:SS`, in UTC.
fn time_of_day(now: SystemTime) -> String {
    let utc = utc(now);
    format!("{}{} {}", &utc[5..7], &utc[8..10], &utc[11..19])
}

/// Formats a time as `YYYY-MM-DDTHH:MM:SSZ`.
pub(crate) fn utc(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // The calendar repeats every 400 years (146,097 days). Years start in March here, so that leap
    // days come last.
    let (cycle, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    let (year, hour, minute) = (400 * cycle + year, second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_match_the_calendar() {
        let at = |seconds| time_of_day(UNIX_EPOCH + Duration::from_secs(seconds));
        let date = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_763_164_799), "2025-11-14T23:59:59Z");
        assert_eq!(date(1_767_225_600), "2026-01-01T00:00:00Z");
        assert_eq!(at(0), "0101 00:00:00");
        assert_eq!(at(951_782_400), "0229 00:00:00");
        assert_eq!(at(1_763_164_799), "1114 23:59:59");
        assert_eq!(at(1_709_251_200), "0301 00:00:00");
    }
}
