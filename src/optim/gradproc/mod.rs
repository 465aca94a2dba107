//! Gradient processors: what happens to gradients before an optimizer sees them.
//!
//! ```
//! # use tensorpack::optim::{Optimizer, Sgd};
//! # use tensorpack::optim::gradproc::{GlobalNormClip, SummaryGradient};
//! let optimizer = Sgd::new(1.0).process(SummaryGradient::new()).process(GlobalNormClip::new(5.0));
//! ```
//!
//! None is needed to look for NaN: a run in which a gradient is not finite is an error, and changes no variable.

mod filter;
mod global_norm_clip;
mod map;
mod processor;
mod scale;
mod summary;
mod value_clip;

pub use filter::FilterGradient;
pub use global_norm_clip::GlobalNormClip;
pub use map::MapGradient;
pub use processor::{GradProcessor, Processed};
pub use scale::ScaleGradient;
pub use summary::SummaryGradient;
pub use value_clip::ValueClip;
