//! Monitors: the destinations of statistics. Each monitor receives the scalars, images and
//! histograms of a run and writes, prints or sends them.

mod append_file;
mod number;
mod image;
mod histogram;
#[expect(clippy::module_inception, reason = "the monitor of the monitor module")]
mod monitor;
mod monitors;
mod lines_file;
mod json_writer;
mod csv_writer;
mod event_file;
mod event_writer;
mod scalar_printer;
mod stat_counter;
#[cfg(feature = "mlflow")]
mod remote_queue;
#[cfg(feature = "mlflow")]
mod mlflow;

pub use csv_writer::CsvWriter;
pub use event_writer::EventWriter;
pub use histogram::Histogram;
pub use image::Image;
pub use json_writer::JsonWriter;
pub(crate) use lines_file::move_aside;
#[cfg(feature = "mlflow")]
pub use mlflow::Mlflow;
pub use monitor::{Class, CurvePoints, Moment, Monitor, RunEnd, Start};
pub use monitors::Monitors;
pub use scalar_printer::ScalarPrinter;
pub use stat_counter::StatCounter;
