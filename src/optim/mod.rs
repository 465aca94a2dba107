//! Optimizers, which turn gradients into updates of variables. Optimizer state consists of ordinary
//! variables and is saved like weights.
//!
//! Update rules: [`Sgd`], [`Momentum`], [`RmsProp`], [`Adagrad`], [`Adam`], [`AdamW`], [`Lamb`].
//! Wrappers, which are optimizers too: [`ParamGroups`], [gradient processors](gradproc),
//! [`Accumulate`], [`PostProcess`], [`Ema`] and [`Swa`].

mod accumulate;
mod adagrad;
mod adam;
mod adamw;
mod ema;
mod global_step;
mod gradient;
pub mod gradproc;
mod lamb;
mod loss_scale;
mod minimize;
mod moments;
mod momentum;
mod optimizer;
mod param_groups;
mod post_process;
mod rate;
mod rmsprop;
mod schedule;
mod setting;
mod sgd;
mod swa;

pub use accumulate::Accumulate;
pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adamw::AdamW;
pub(crate) use ema::EMA_PREFIX;
pub use ema::Ema;
pub use gradient::Gradient;
pub use lamb::Lamb;
pub use loss_scale::{LOSS_SCALE, SKIPPED_STEPS};
pub use minimize::{apply_gradients, compute_gradients, compute_gradients_of, minimize};
pub use momentum::Momentum;
pub use optimizer::Optimizer;
pub use param_groups::{Group, ParamGroups};
pub use post_process::PostProcess;
pub use rate::Rate;
pub use rmsprop::RmsProp;
pub use schedule::Schedule;
pub use sgd::Sgd;
pub use swa::Swa;
