//! Event files for TensorBoard.

use super::event_file::{Event, What};
use super::{Class, Histogram, Image, Moment, Monitor, Start};
use crate::graph::Frozen;
use crate::io::{Disk, RealDisk, failed};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tensorpack_tensor::{Error, Result};

/// Writes scalars, pictures, histograms and the graph to an event file in the run's directory:
/// `tensorboard --logdir DIR` shows them while the run goes on.
///
/// Every start makes a new file, since nothing can follow a record that a crash has torn. A run that goes on cuts the
/// file of its checkpoint to what it was then, and removes later ones, since what is in them will be put again. A mark
/// at the beginning makes a TensorBoard that has read them already drop it too, or all that an older run put.
#[doc(alias = "TFEventWriter")]
#[derive(Default)]
pub struct EventWriter {
    open: Option<Open>,
}

struct Open {
    path: PathBuf,
    file: BufWriter<File>,
    /// How many bytes were written, flushed or not.
    length: u64,
    flushed: Instant,
}

/// The longest that a reader waits for what was written, beside the end of an epoch.
const FLUSH_EVERY: Duration = Duration::from_secs(30);
const PREFIX: &str = "events.out.tfevents.";
const SUFFIX: &str = ".tensorpack";

impl EventWriter {
    /// To the run's directory.
    pub fn new() -> EventWriter {
        EventWriter::default()
    }

    fn write(&mut self, step: u64, what: What<'_>) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let record = Event { wall_time: since_1970().as_secs_f64(), step, what }.to_record()?;
        open.file.write_all(&record).map_err(failed("write", &open.path))?;
        open.length += record.len() as u64;
        if open.flushed.elapsed() >= FLUSH_EVERY {
            open.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.open.as_mut().map_or(Ok(()), Open::flush)
    }
}

impl Open {
    /// A file whose name comes after those of all older ones: readers take them in the order of their names.
    fn create(dir: &Path) -> Result<Open> {
        let time = |name: &String| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok();
        let newest = event_files(dir)?.iter().filter_map(time).max();
        let time = since_1970().as_secs().max(newest.map_or(0, |t| t.saturating_add(1)));
        let path = dir.join(format!("{PREFIX}{time:010}{SUFFIX}"));
        let file = File::create_new(&path).map_err(failed("make", &path))?;
        Ok(Open { path, file: BufWriter::with_capacity(1 << 16, file), length: 0, flushed: Instant::now() })
    }

    fn flush(&mut self) -> Result<()> {
        self.flushed = Instant::now();
        self.file.flush().map_err(failed("write", &self.path))
    }
}

impl Monitor for EventWriter {
    fn name(&self) -> String {
        "EventWriter".into()
    }

    fn start(&mut self, start: &Start<'_>) -> Result<()> {
        let Some(dir) = start.logdir else {
            return Err(Error::argument("the run has no directory to write event files in"));
        };
        if let Some(state) = start.resumed {
            cut(dir, state)?;
        }
        self.open = Some(Open::create(dir)?);
        self.write(0, What::Version)?;
        // All steps are another run's, unless this one goes on.
        let first = start.resumed.map_or(0, |_| start.at.global_step + 1);
        self.write(first, What::Start)?;
        self.flush()?;
        RealDisk.sync_dir(dir).map_err(failed("write", dir))
    }

    fn scalar(&mut self, name: &str, value: f64, _: Class, at: Moment) -> Result<()> {
        self.write(at.global_step, What::Scalar(name, value))
    }

    fn image(&mut self, name: &str, image: &Image, at: Moment) -> Result<()> {
        self.write(at.global_step, What::Image(name, image))
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram, at: Moment) -> Result<()> {
        self.write(at.global_step, What::Histogram(name, histogram))
    }

    fn graph(&mut self, graph: &Frozen) -> Result<()> {
        self.write(0, What::Graph(graph))?;
        self.flush()
    }

    fn end_epoch(&mut self, _: Moment) -> Result<()> {
        self.flush()
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let Some(open) = &self.open else { return Ok(()) };
        open.file.get_ref().sync_data().map_err(failed("write", &open.path))
    }

    fn state(&self) -> Value {
        let Some(open) = &self.open else { return Value::Null };
        let name = open.path.file_name().unwrap_or_default().to_string_lossy();
        json!({"file": name, "length": open.length})
    }

    fn finish(&mut self) -> Result<()> {
        self.flush()
    }
}

/// Takes back what was written after a state was saved.
fn cut(dir: &Path, state: &Value) -> Result<()> {
    let (Some(last), Some(length)) = (state["file"].as_str(), state["length"].as_u64()) else {
        return Ok(());
    };
    for name in event_files(dir)?.iter().filter(|name| name.ends_with(SUFFIX)) {
        let path = dir.join(name);
        match name.as_str().cmp(last) {
            Ordering::Less => {}
            Ordering::Greater => fs::remove_file(&path).map_err(failed("remove", &path))?,
            Ordering::Equal => {
                let file = File::options().write(true).open(&path).map_err(failed("open", &path))?;
                // One that lost its end must not grow.
                if file.metadata().map_err(failed("read", &path))?.len() > length {
                    file.set_len(length).map_err(failed("cut", &path))?;
                }
            }
        }
    }
    Ok(())
}

/// The names of all event files in a directory.
fn event_files(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("read", dir))? {
        let name = entry.map_err(failed("read", dir))?.file_name().into_string();
        names.extend(name.ok().filter(|n| n.starts_with(PREFIX)));
    }
    Ok(names)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
