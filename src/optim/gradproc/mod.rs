//! Gradient processors, which transform gradients before an optimizer sees them.
//!
//! ```
//! # use tensorpack::optim::{Optimizer, Sgd};
//! # use tensorpack::optim::gradproc::{GlobalNormClip, SummaryGradient};
//! let optimizer = Sgd::new(1.0).process(SummaryGradient::new()).process(GlobalNormClip::new(5.0));
//! ```
//!
//! No processor is needed to detect NaN: a run with a non-finite gradient fails and changes no
//! variable.

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
