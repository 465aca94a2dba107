//! 3-D convolution, computed as one 2-D convolution of images whose channels are those of all depths
//! that a filter covers.

use super::{Conv2dOptions, Padding3d, Window, composed};
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::{Dim, Error, Result};

/// Stride, dilation, padding and groups of a 3-D convolution, each for depth, height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv3dOptions {
    /// The stride of the window.
    pub stride: [usize; 3],
    /// The distance between filter taps.
    pub dilation: [usize; 3],
    /// Zeros around the volume.
    pub padding: Padding3d,
    /// The number of channel groups, each convolved separately.
    pub groups: usize,
}

impl Default for Conv3dOptions {
    fn default() -> Conv3dOptions {
        Conv3dOptions { stride: [1; 3], dilation: [1; 3], padding: Padding3d::Same, groups: 1 }
    }
}

/// The largest depth of a filter: each of its taps is a node of the graph.
const MAX_DEPTH: usize = 1 << 10;

/// The windows along the depth.
struct Depths {
    taps: usize,
    stride: usize,
    dilation: usize,
    /// Zeros before and after.
    pad: [usize; 2],
    /// The number of windows.
    out: usize,
}

impl Conv3dOptions {
    /// Checks volume and filter, and returns the windows along the depth.
    fn depths(&self, x: &Tensor, filter: &Tensor) -> Result<Depths> {
        if (x.rank(), filter.rank()) != (5, 5) {
            return Err(Error::shape(format!(
                "expected volumes [batch, depth, height, width, channels] and a filter [depth, height, width, in, out], got {} and {}",
                x.shape(),
                filter.shape()
            )));
        }
        let Some(sizes) = filter.shape().known() else {
            return Err(Error::shape(format!("the filter's shape {} must be known", filter.shape())));
        };
        let Some(n) = x.shape()[1].known().filter(|&n| n > 0) else {
            return Err(Error::shape(format!("the depth of {} must be known and at least 1", x.shape())));
        };
        let (taps, inputs) = (sizes[0], sizes[3]);
        if self.groups == 0 || x.shape()[4].known() != inputs.checked_mul(self.groups) {
            return Err(Error::shape(format!(
                "with {} groups the volume {} must have {} channels for the filter {}",
                self.groups,
                x.shape(),
                inputs.saturating_mul(self.groups),
                filter.shape()
            )));
        }
        if taps > MAX_DEPTH {
            return Err(Error::argument(format!(
                "a filter of depth {taps} exceeds the maximum of {MAX_DEPTH}"
            )));
        }
        let [stride, dilation] = [self.stride[0], self.dilation[0]];
        let window = Window { stride: [stride, 1], dilation: [dilation, 1], padding: self.padding.depth() };
        let (reach, out) = (window.reach(0, taps)?, window.out(0, Dim::Known(n), taps)?);
        let (out, low) = (out.known().unwrap_or(0), window.pad_low([n, 1], [taps, 1])?[0]);
        // Zeros that no window covers are left out.
        let covered = out.saturating_sub(1).saturating_mul(stride).saturating_add(reach);
        let high = covered.saturating_sub(low.saturating_add(n));
        Ok(Depths { taps, stride, dilation, pad: [low, high], out })
    }
}

impl Depths {
    /// Returns the volume `[batch, depth, height, width, channels]` as `[batch * windows, height, width,
    /// groups * taps * channels / groups]`.
    fn unfolded(&self, x: &Tensor, groups: usize) -> Tensor {
        let padded = match self.pad {
            [0, 0] => x.clone(),
            [low, high] => x.pad(&[0, low, 0, 0, 0], &[0, high, 0, 0, 0], &[0; 5]),
        };
        let tap = |k: usize| {
            let begin = k * self.dilation;
            let end = begin + (self.out - 1) * self.stride + 1;
            let slice = padded.strided_slice(
                &[0, begin, 0, 0, 0],
                &[None, Some(end), None, None, None],
                &[1, self.stride, 1, 1, 1],
            );
            slice.split_dim(-1, &[groups as isize, 1, -1])
        };
        let taps: Vec<Tensor> = (0..self.taps).map(tap).collect();
        x.graph().concat(&taps, 5).merge_dims(4, 3).merge_dims(0, 2)
    }
}

impl Tensor {
    /// Convolves volumes `[batch, depth, height, width, in]` with a filter `[depth, height, width,
    /// in / groups, out]`. The depth of the volumes must be known.
    #[track_caller]
    pub fn conv3d(&self, filter: &Tensor, options: Conv3dOptions) -> Tensor {
        if self.is_poison() || filter.is_poison() {
            return Tensor::poison(self.graph());
        }
        let depths = match options.depths(self, filter) {
            Ok(depths) => depths,
            Err(e) => return self.fail("Conv3d", e),
        };
        composed(self, "Conv3d", Location::caller(), || {
            let images = depths.unfolded(self, options.groups);
            let filter = filter.transpose(&[1, 2, 0, 3, 4]).merge_dims(2, 2);
            let [_, height, width] = options.stride;
            let [_, dilated_height, dilated_width] = options.dilation;
            let image_options = Conv2dOptions {
                stride: [height, width],
                dilation: [dilated_height, dilated_width],
                padding: options.padding.image(),
                groups: options.groups,
                ..Conv2dOptions::default()
            };
            images.conv2d(&filter, image_options).split_dim(0, &[-1, depths.out as isize])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;
    use crate::ops::window::tests::draw_volume;

    cases![
        case("Conv3d", Twice, |draw| {
            let mut three = |high| [0; 3].map(|_| draw.between(1, high));
            let (kernel, stride, dilation) = (three(2), three(2), three(2));
            let reach = [0, 1, 2].map(|i| (kernel[i] - 1) * dilation[i] + 1);
            let (n, padding) = draw_volume(draw, reach);
            let (groups, inner, outer) = (draw.pick(&[1, 2]), draw.pick(&[1, 2]), draw.pick(&[1, 2, 3]));
            let volume = [draw.pick(&[1, 2, 0]), n[0], n[1], n[2], groups * inner];
            let filter = [kernel[0], kernel[1], kernel[2], inner, groups * outer];
            let inputs = vec![Input::floats(draw, volume, Any), Input::floats(draw, filter, Any).closed()];
            let options = Conv3dOptions { stride, dilation, padding, groups };
            Trial::new(inputs, move |x| vec![x[0].conv3d(&x[1], options)])
        })
        .empty("x.conv3d(y)", "[0, 3, 5, 5, 2], [3, 3, 3, 2, 4]", "empty [0, 3, 5, 5, 4]", |x| x[0]
            .conv3d(&x[1], Conv3dOptions::default()))
        .empty("x.conv3d(y)", "[1, 3, 0, 5, 2], [3, 3, 3, 2, 4]", "empty [1, 3, 0, 5, 4]", |x| x[0]
            .conv3d(&x[1], Conv3dOptions::default()))
        .empty(
            "x.conv3d(y)",
            "[1, 0, 5, 5, 2], [3, 3, 3, 2, 4]",
            "error: the depth of [1, 0, 5, 5, 2] must be known and at least 1",
            |x| x[0].conv3d(&x[1], Conv3dOptions::default())
        ),
    ];
}
