//! The monitor trait.

use super::{Histogram, Image};
use crate::graph::Frozen;
use serde_json::Value;
use std::path::Path;
use tensorpack_tensor::Result;

/// The time of a statistic, in epochs and steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The epoch, starting at 1; 0 before the first.
    pub epoch_num: u64,
    /// The number of finished steps.
    pub global_step: u64,
}

/// Whether a scalar is reproducible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Depends on the program and its seed only: the same in every run, interrupted or not.
    Deterministic,
    /// Depends on the machine and its clock: throughput, time left, memory, queue sizes.
    WallClock,
}

/// Points of the curves of scalars over steps.
#[derive(Clone, Copy, Debug)]
pub struct CurvePoints<'a> {
    names: &'a [String],
    moments: &'a [Moment],
    values: &'a [f64],
}

impl<'a> CurvePoints<'a> {
    /// Creates points: for each of `moments` as many `values` as there are `names`, of which there
    /// is at least one.
    pub(crate) fn new(names: &'a [String], moments: &'a [Moment], values: &'a [f64]) -> CurvePoints<'a> {
        CurvePoints { names, moments, values }
    }

    /// Returns the names of the scalars.
    pub fn names(&self) -> &'a [String] {
        self.names
    }

    /// Returns the moments, each with the values of all scalars in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (Moment, &'a [f64])> {
        self.moments.iter().copied().zip(self.values.chunks(self.names.len().max(1)))
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// It trained as long as it should, or a callback stopped it.
    Finished,
    /// A signal ended it. It may be resumed.
    Interrupted,
    /// An error ended it.
    Failed,
}

/// The arguments of [`Monitor::start`].
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The log directory, if the run has one.
    pub logdir: Option<&'a Path>,
    /// In a resumed run, the saved [`Monitor::state`].
    pub resumed: Option<&'a Value>,
    /// The moment at which the run starts or resumes.
    pub at: Moment,
}

/// Receives the statistics of a run, and prints, writes or sends them.
///
/// A monitor that returns an error is disabled, and the error is logged. It never ends training.
/// The default methods do nothing.
#[doc(alias = "MonitorBase")]
pub trait Monitor: Send {
    /// Returns the name in log lines and in saved states.
    fn name(&self) -> String;

    /// Called once, before anything else.
    fn start(&mut self, _start: &Start<'_>) -> Result<()> {
        Ok(())
    }

    /// Receives a scalar, which may be NaN.
    #[doc(alias = "process_scalar")]
    fn scalar(&mut self, _name: &str, _value: f64, _class: Class, _at: Moment) -> Result<()> {
        Ok(())
    }

    /// Receives points of the curves of scalars over steps. They are deterministic, belong to
    /// steps that have finished, and come in step order.
    fn curve_points(&mut self, _points: &CurvePoints<'_>) -> Result<()> {
        Ok(())
    }

    /// Receives an image.
    #[doc(alias = "process_image")]
    fn image(&mut self, _name: &str, _image: &Image, _at: Moment) -> Result<()> {
        Ok(())
    }

    /// Receives a histogram.
    fn histogram(&mut self, _name: &str, _histogram: &Histogram, _at: Moment) -> Result<()> {
        Ok(())
    }

    /// Receives the graph, once, before training.
    fn graph(&mut self, _graph: &Frozen) -> Result<()> {
        Ok(())
    }

    /// Receives what `manifest.json` says about this start of the run: options, settings, versions,
    /// the host. It is called once, before training.
    fn manifest(&mut self, _manifest: &Value) -> Result<()> {
        Ok(())
    }

    /// Called after a step that has statistics, except the last step of an epoch, whose statistics
    /// belong to [`Monitor::end_epoch`].
    fn end_step(&mut self, _at: Moment) -> Result<()> {
        Ok(())
    }

    /// Called after an epoch, when all callbacks have run.
    fn end_epoch(&mut self, _at: Moment) -> Result<()> {
        Ok(())
    }

    /// Called before a checkpoint is written. All statistics so far must be durable when this
    /// returns.
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the state needed to resume, such as the lengths of files.
    fn state(&self) -> Value {
        Value::Null
    }

    /// Called right before [`Monitor::finish`].
    fn set_end(&mut self, _end: RunEnd) {}

    /// Called after training, even if it failed.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
