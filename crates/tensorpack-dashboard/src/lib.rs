//! A web page that shows training runs while they train.
//!
//! [`Dashboard`] serves the page and its data. It finds the log directories of runs below some
//! folders and reads what training appends to their files: `stats.jsonl`, `steps.jsonl`,
//! `timing.jsonl`, the event files, the log. It needs nothing from the library that wrote them.
//!
//! ```no_run
//! use tensorpack_dashboard::{Dashboard, Options};
//!
//! let options = Options { folders: vec!["train_log".into()], ..Options::default() };
//! let dashboard = Dashboard::bind(&options)?;
//! println!("open {}", dashboard.url());
//! dashboard.run()?;
//! # Ok::<(), tensorpack_tensor::Error>(())
//! ```
//!
//! Files are read, never trusted. Only files below the folders are opened, a size in a file is
//! checked before memory is allocated, and damaged or half-written parts are left out.

mod confined;
mod line_file;
mod event_index;
mod table;
mod run_status;
mod curve;
mod graph_def;
mod run;
mod run_list;
mod control;
mod api;
mod assets;
mod guard;
mod server;

pub use server::{Dashboard, Options};
