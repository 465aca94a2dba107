//! Writes event files for TensorBoard.

use super::append_file::AppendFile;
use super::event_file::{Event, What};
use super::{Class, CurvePoints, Histogram, Image, Moment, Monitor, Start};
use crate::graph::Frozen;
use crate::io::{Disk, RealDisk, failed};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use tensorpack_tensor::{Error, Result};

/// Writes scalars, images, histograms and the graph to an event file in the log directory.
/// `tensorboard --logdir DIR` shows them during the run.
///
/// Every start creates a new file, because no record can follow one that a crash truncated. A
/// resumed run truncates the file of its checkpoint to its length at that time, and removes later
/// files, because their events will be written again. A start event at the beginning makes a
/// running TensorBoard drop the events it has already read from those files, or from an older run.
#[doc(alias = "TFEventWriter")]
#[derive(Default)]
pub struct EventWriter {
    open: Option<Open>,
}

struct Open {
    file: AppendFile,
    flushed: Instant,
}

/// The maximum time between flushes. The end of an epoch flushes, too.
const FLUSH_EVERY: Duration = Duration::from_secs(30);
/// The number of bytes to write at once.
const BUFFER: usize = 1 << 16;
const PREFIX: &str = "events.out.tfevents.";
const SUFFIX: &str = ".tensorpack";

impl EventWriter {
    /// Writes to the log directory.
    pub fn new() -> EventWriter {
        EventWriter::default()
    }

    fn write(&mut self, step: u64, what: What<'_>) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let record = Event { wall_time: since_1970().as_secs_f64(), step, what }.to_record()?;
        open.file.append(&record);
        if open.file.waiting().len() >= BUFFER || open.flushed.elapsed() >= FLUSH_EVERY {
            open.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.open.as_mut().map_or(Ok(()), Open::flush)
    }
}

impl Open {
    /// Creates a file whose name sorts after all existing ones: readers read files in name order.
    fn create(dir: &Path) -> Result<Open> {
        let time = |name: &String| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok();
        let newest = event_files(dir)?.iter().filter_map(time).max();
        let time = since_1970().as_secs().max(newest.map_or(0, |t| t.saturating_add(1)));
        let path = dir.join(format!("{PREFIX}{time:010}{SUFFIX}"));
        let create = || AppendFile::new(&path, File::create_new(&path)?, 0);
        Ok(Open { file: create().map_err(failed("create", &path))?, flushed: Instant::now() })
    }

    fn flush(&mut self) -> Result<()> {
        self.flushed = Instant::now();
        self.file.flush()
    }
}

impl Monitor for EventWriter {
    fn name(&self) -> String {
        "EventWriter".into()
    }

    fn start(&mut self, start: &Start<'_>) -> Result<()> {
        let Some(dir) = start.logdir else {
            return Err(Error::argument("EventWriter needs a log directory, but the run has none"));
        };
        if let Some(state) = start.resumed {
            truncate(dir, state)?;
        }
        self.open = Some(Open::create(dir)?);
        self.write(0, What::Version)?;
        // In a new run, all existing events belong to an older run.
        let first = start.resumed.map_or(0, |_| start.at.global_step + 1);
        self.write(first, What::Start)?;
        self.flush()?;
        RealDisk.sync_dir(dir).map_err(failed("write", dir))
    }

    fn scalar(&mut self, name: &str, value: f64, _: Class, at: Moment) -> Result<()> {
        self.write(at.global_step, What::Scalar(name, value))
    }

    fn curve_points(&mut self, points: &CurvePoints<'_>) -> Result<()> {
        let tags: Vec<String> = points.names().iter().map(|name| format!("steps/{name}")).collect();
        for (at, values) in points.iter() {
            for (tag, value) in tags.iter().zip(values) {
                self.write(at.global_step, What::Scalar(tag, *value))?;
            }
        }
        Ok(())
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
        self.open.as_mut().map_or(Ok(()), |open| open.file.sync())
    }

    fn state(&self) -> Value {
        let Some(open) = &self.open else { return Value::Null };
        let name = open.file.path().file_name().unwrap_or_default().to_string_lossy();
        // Events that a full device keeps in memory are not part of a checkpoint: they are for the
        // eye, and may be large.
        json!({"file": name, "length": open.file.written()})
    }

    fn finish(&mut self) -> Result<()> {
        self.flush()
    }
}

/// Removes the events that were written after `state` was saved.
fn truncate(dir: &Path, state: &Value) -> Result<()> {
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
                // `set_len` must not extend a file that lost its end.
                if file.metadata().map_err(failed("read", &path))?.len() > length {
                    file.set_len(length).map_err(failed("truncate", &path))?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the names of all event files in a directory.
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
