//! 1-D convolution, computed as a 2-D convolution of images one pixel high.

use super::{Conv2dOptions, Padding, composed};
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::Error;

/// Stride, dilation, padding and groups of a 1-D convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv1dOptions {
    /// The stride of the window.
    pub stride: usize,
    /// The distance between filter taps.
    pub dilation: usize,
    /// Zeros before and after the sequence: [`Padding::Same`], [`Padding::Valid`], or the second
    /// pair of [`Padding::Explicit`].
    pub padding: Padding,
    /// The number of channel groups, each convolved separately.
    pub groups: usize,
}

impl Default for Conv1dOptions {
    fn default() -> Conv1dOptions {
        Conv1dOptions { stride: 1, dilation: 1, padding: Padding::Same, groups: 1 }
    }
}

impl Conv1dOptions {
    /// Pads only before the sequence, by the reach of a window of `taps`, so that no output depends
    /// on later inputs.
    #[must_use]
    pub fn causal(self, taps: usize) -> Conv1dOptions {
        let back = taps.saturating_sub(1).saturating_mul(self.dilation);
        Conv1dOptions { padding: Padding::Explicit([[0, 0], [back, 0]]), ..self }
    }
}

impl Tensor {
    /// Convolves sequences `[batch, time, in]` with a filter `[taps, in / groups, out]`.
    #[track_caller]
    pub fn conv1d(&self, filter: &Tensor, options: Conv1dOptions) -> Tensor {
        if self.is_poison() || filter.is_poison() {
            return Tensor::poison(self.graph());
        }
        if (self.rank(), filter.rank()) != (3, 3) {
            let why = format!(
                "expected sequences [batch, time, channels] and a filter [taps, in, out], got {} and {}",
                self.shape(),
                filter.shape()
            );
            return self.fail("Conv1d", Error::shape(why));
        }
        let padding = match options.padding {
            Padding::Explicit([_, along]) => Padding::Explicit([[0, 0], along]),
            padding => padding,
        };
        let options = Conv2dOptions {
            stride: [1, options.stride],
            dilation: [1, options.dilation],
            padding,
            groups: options.groups,
            ..Conv2dOptions::default()
        };
        composed(self, "Conv1d", Location::caller(), || {
            self.expand_dims(1).conv2d(&filter.expand_dims(0), options).squeeze(1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        case("Conv1d", Twice, |draw| {
            let (taps, stride, dilation) = (draw.between(1, 3), draw.between(1, 3), draw.between(1, 2));
            let n = draw.between((taps - 1) * dilation + 1, 9);
            let (groups, inner, outer) = (draw.pick(&[1, 2]), draw.pick(&[1, 2, 3]), draw.pick(&[1, 2, 5]));
            let padding = draw.pick(&[Padding::Same, Padding::Valid, Padding::Explicit([[0, 0], [1, 2]])]);
            let options = Conv1dOptions { stride, dilation, padding, groups };
            let options = if draw.below(4) == 3 { options.causal(taps) } else { options };
            let batch = draw.pick(&[1, 2, 3]);
            let inputs = vec![
                Input::floats(draw, [batch, n, groups * inner], Any),
                Input::floats(draw, [taps, inner, groups * outer], Any).closed(),
            ];
            Trial::new(inputs, move |x| vec![x[0].conv1d(&x[1], options)])
        })
        .empty("x.conv1d(y)", "[0, 5, 2], [3, 2, 4]", "empty [0, 5, 4]", |x| x[0]
            .conv1d(&x[1], Conv1dOptions::default()))
        .empty("x.conv1d(y)", "[2, 0, 2], [3, 2, 4]", "empty [2, 0, 4]", |x| x[0]
            .conv1d(&x[1], Conv1dOptions::default())),
    ];
}
