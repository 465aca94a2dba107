//! Connectionist temporal classification (Graves et al., 2006): labels for sequences without an
//! alignment. The loss is built in the graph; decoding runs on the host.

mod beam;
mod greedy;
mod loss;
mod scores;

pub use beam::{CtcBeamSearch, CtcHypothesis};
pub use greedy::ctc_greedy_decode;
pub use loss::CtcOptions;
