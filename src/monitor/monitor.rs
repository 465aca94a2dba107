//! What a monitor is.

use super::{Histogram, Image};
use crate::graph::Frozen;
use serde_json::Value;
use std::path::Path;
use tensorpack_tensor::Result;

/// When something was put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The epoch, from 1 on; 0 before the first.
    pub epoch_num: u64,
    /// How many steps there have been.
    pub global_step: u64,
}

/// What a scalar depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The program and its seed: the same in every run, interrupted or not.
    Deterministic,
    /// The machine and its clock: throughput, time left, memory, how full queues are.
    WallClock,
}

/// What a monitor begins with.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The run's directory, if it has one.
    pub logdir: Option<&'a Path>,
    /// In a run that goes on, what [`Monitor::state`] was when it was saved.
    pub resumed: Option<&'a Value>,
    /// Where the run begins or goes on.
    pub at: Moment,
}

/// Does something with the statistics of a run: prints, writes or sends them.
///
/// A monitor that returns an error is switched off with a loud line. It never ends training. What has no meaning for
/// it, it leaves to the default, which does nothing.
#[doc(alias = "MonitorBase")]
pub trait Monitor: Send {
    /// The name in log lines, under which the state is saved as well.
    fn name(&self) -> String;

    /// Called once, before anything else.
    fn start(&mut self, _start: &Start<'_>) -> Result<()> {
        Ok(())
    }

    /// A scalar; it may be NaN.
    #[doc(alias = "process_scalar")]
    fn scalar(&mut self, _name: &str, _value: f64, _class: Class, _at: Moment) -> Result<()> {
        Ok(())
    }

    /// A picture.
    #[doc(alias = "process_image")]
    fn image(&mut self, _name: &str, _image: &Image, _at: Moment) -> Result<()> {
        Ok(())
    }

    /// How the values of a tensor are spread.
    fn histogram(&mut self, _name: &str, _histogram: &Histogram, _at: Moment) -> Result<()> {
        Ok(())
    }

    /// The graph, once, before training.
    fn graph(&mut self, _graph: &Frozen) -> Result<()> {
        Ok(())
    }

    /// After a step in which something was put. The last step of an epoch has none: what was put in it belongs to
    /// [`Monitor::end_epoch`].
    fn end_step(&mut self, _at: Moment) -> Result<()> {
        Ok(())
    }

    /// After an epoch, when all callbacks have run.
    fn end_epoch(&mut self, _at: Moment) -> Result<()> {
        Ok(())
    }

    /// Before a checkpoint is written: what was put so far must be safe when this returns.
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    /// What it needs to go on from here, such as how long its files are.
    fn state(&self) -> Value {
        Value::Null
    }

    /// After training, also when that failed.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
