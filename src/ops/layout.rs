//! Where the channels of images are.

use crate::graph::Tensor;
use serde::{Deserialize, Serialize};

/// The order of an image's dims. Kernels work on channels last; tensors in the other order are looked at through a
/// transposed view, so that between two layers of the same layout nothing is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[doc(alias = "data_format")]
pub enum Layout {
    /// `[batch, height, width, channels]`.
    #[default]
    #[doc(alias = "channels_last")]
    Nhwc,
    /// `[batch, channels, height, width]`.
    #[doc(alias = "channels_first")]
    Nchw,
}

impl Layout {
    /// A tensor of this layout with its channels last. Any number of dims between batch and channels will do.
    #[track_caller]
    pub fn to_nhwc(self, x: &Tensor) -> Tensor {
        match self {
            Layout::Nchw if x.rank() > 2 => {
                let order: Vec<usize> = [0].into_iter().chain(2..x.rank()).chain([1]).collect();
                x.transpose(&order)
            }
            _ => x.clone(),
        }
    }

    /// A tensor with its channels last, in this layout.
    #[track_caller]
    pub fn from_nhwc(self, x: &Tensor) -> Tensor {
        match self {
            Layout::Nchw if x.rank() > 2 => {
                let last = x.rank() - 1;
                let order: Vec<usize> = [0, last].into_iter().chain(1..last).collect();
                x.transpose(&order)
            }
            _ => x.clone(),
        }
    }
}
