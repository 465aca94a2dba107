//! The memory layout of images.

use crate::graph::Tensor;
use serde::{Deserialize, Serialize};

/// Orders of dims that turn images and filters into ONNX's, and back.
pub(super) const NHWC_TO_NCHW: [usize; 4] = [0, 3, 1, 2];
pub(super) const NCHW_TO_NHWC: [usize; 4] = [0, 2, 3, 1];
pub(super) const HWIO_TO_OIHW: [usize; 4] = [3, 2, 0, 1];

/// The order of an image's dims. Kernels work on channels last; tensors in the other order are read
/// through a transposed view, so that nothing is copied between two layers of the same layout.
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
    /// Converts a tensor from this layout to channels last. Any number of dims may lie between
    /// batch and channels.
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

    /// Converts a tensor from channels last to this layout.
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
