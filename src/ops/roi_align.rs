//! Regions of images, resampled to a fixed size.

use super::bilinear::{Samples, position_dtype};
use super::composed;
use crate::graph::Tensor;
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{DType, Error, HostTensor};

/// Options of [`Tensor::roi_align_with`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoiAlignOptions {
    /// The size of a pixel of the boxes in pixels of the feature map, such as 1/16. Defaults to 1.
    pub spatial_scale: f64,
    /// The number of samples of a bin along each axis. Defaults to 2.
    pub sampling_ratio: usize,
}

impl Default for RoiAlignOptions {
    fn default() -> RoiAlignOptions {
        RoiAlignOptions { spatial_scale: 1.0, sampling_ratio: 2 }
    }
}

/// The most samples along an axis of a region.
const MAX_SAMPLES: usize = 1 << 12;

impl Tensor {
    /// Pools regions of feature maps `[batch, height, width, channels]` to `[boxes, size[0], size[1],
    /// channels]` (He et al., "Mask R-CNN", 2017). `boxes`, `[boxes, 4]`, are `(x1, y1, x2, y2)` in
    /// pixels of the feature map, where pixel 0 extends from 0 to 1; `index`, `[boxes]`, is the image
    /// of each. A region is divided into `size` bins, and a bin is the mean of 2x2 bilinear samples.
    /// This is torchvision's `roi_align` with `aligned=True` and `sampling_ratio=2`. Boxes get no
    /// gradient.
    #[track_caller]
    pub fn roi_align(&self, boxes: &Tensor, index: &Tensor, size: [usize; 2]) -> Tensor {
        self.roi_align_with(boxes, index, size, RoiAlignOptions::default())
    }

    /// [`Tensor::roi_align`] with options.
    #[track_caller]
    pub fn roi_align_with(
        &self,
        boxes: &Tensor,
        index: &Tensor,
        size: [usize; 2],
        options: RoiAlignOptions,
    ) -> Tensor {
        let RoiAlignOptions { spatial_scale, sampling_ratio: ratio } = options;
        let name = "RoiAlign";
        if !(spatial_scale.is_finite() && spatial_scale > 0.0) || ratio == 0 {
            let why = format!("spatial scale {spatial_scale} and sampling ratio {ratio} must be positive");
            return self.fail(name, Error::argument(why));
        }
        self.regions(name, Location::caller(), boxes, index, size, ratio, |samples, boxes, index| {
            let boxes = boxes.stop_gradient() * spatial_scale;
            // Samples further outside count as zero, nearer ones as the border.
            let position = |axis: usize| {
                let extent = &samples.size[axis];
                let position = sample_positions(&boxes, axis, size[axis] * ratio);
                let inside =
                    position.greater_equal(&(-position.one())).logical_and(&position.less_equal(extent));
                let last = extent - 1.0;
                (position.maximum(0.0).minimum(&last), inside.cast(self.dtype()))
            };
            let ((y, y_inside), (x, x_inside)) = (position(0), position(1));
            let sampled = samples.at(index, &y.expand_dims(2), &x.expand_dims(1));
            let inside = y_inside.expand_dims(2) * x_inside.expand_dims(1);
            let sampled = sampled * inside.expand_dims(-1);
            let [height, width] = size.map(|n| n as isize);
            let bins = sampled.split_dim(2, &[width, ratio as isize]).split_dim(1, &[height, ratio as isize]);
            bins.mean_axes(&[2, 4])
        })
    }

    /// Crops boxes out of images `[batch, height, width, channels]` and resizes them by bilinear
    /// interpolation to `[boxes, size[0], size[1], channels]`. `boxes`, `[boxes, 4]`, are `(x1, y1,
    /// x2, y2)` in pixels, where pixel 0 extends from 0 to 1; `index`, `[boxes]`, is the image of
    /// each. Pixels outside the image are zero. A box of the whole image is resized as by
    /// [`Tensor::resize_bilinear`], except for its border, where that repeats the last pixel. Images
    /// and boxes get gradients.
    #[track_caller]
    pub fn crop_and_resize(&self, boxes: &Tensor, index: &Tensor, size: [usize; 2]) -> Tensor {
        self.regions("CropAndResize", Location::caller(), boxes, index, size, 1, |samples, boxes, index| {
            let [y, x] = [0, 1].map(|axis| sample_positions(boxes, axis, size[axis]));
            samples.at(index, &y.expand_dims(2), &x.expand_dims(1))
        })
    }

    /// Checks the inputs, and calls `build` with boxes in the type of positions, and an index of shape
    /// `[boxes, 1, 1]`.
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "the inputs of an operation and its name")]
    fn regions(
        &self,
        name: &str,
        caller: &'static Location<'static>,
        boxes: &Tensor,
        index: &Tensor,
        size: [usize; 2],
        ratio: usize,
        build: impl Fn(&Samples<'_>, &Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        if self.is_poison() || boxes.is_poison() || index.is_poison() {
            return Tensor::poison(self.graph());
        }
        let is_box = boxes.rank() == 2 && boxes.shape()[1].known() == Some(4) && boxes.dtype().is_float();
        let is_index = index.rank() == 1 && index.dtype().is_int();
        if self.rank() != 4 || !self.dtype().is_float() || !is_box || !is_index {
            let why = format!(
                "expected float images [batch, height, width, channels], float boxes [boxes, 4] and integer \
                 indices [boxes], got {}{}, {}{} and {}{}",
                self.dtype(),
                self.shape(),
                boxes.dtype(),
                boxes.shape(),
                index.dtype(),
                index.shape()
            );
            return self.fail(name, Error::shape(why));
        }
        let too_large = |n: &usize| n.checked_mul(ratio).is_none_or(|samples| samples > MAX_SAMPLES);
        if size.iter().any(too_large) {
            let why =
                format!("{size:?} with {ratio} samples each exceed the maximum of {MAX_SAMPLES} samples");
            return self.fail(name, Error::argument(why));
        }
        composed(self, name, caller, || {
            let index = index.with_dims_of(boxes, 1, "an image index for each box");
            if index.is_poison() {
                return index;
            }
            let samples = Samples::new(self, position_dtype(boxes));
            // Selects an image by its own number, so that an error names the index as it was given.
            let images = self.sum_axes(&[1, 2, 3]).iota_like(0, DType::I64);
            let index = images.gather(&index, 0).expand_dims(1).expand_dims(2);
            build(&samples, &boxes.cast(position_dtype(boxes)), &index)
        })
    }
}

/// Returns the centers of `count` equal parts of every box along an axis, `[boxes, count]`, where
/// pixel centers are integers.
#[track_caller]
fn sample_positions(boxes: &Tensor, axis: usize, count: usize) -> Tensor {
    let corner = |i: usize| boxes.slice_axis(1, i, Some(i + 1));
    let (low, high) = (corner(1 - axis), corner(3 - axis));
    let centers: Vec<f64> = (0..count).map(|i| (i as f64 + 0.5) / count as f64).collect();
    match HostTensor::from_f64(boxes.dtype(), [count], &centers) {
        Ok(centers) => (&high - &low) * boxes.graph().constant(centers) + low - 0.5,
        Err(e) => boxes.fail("RoiAlign", e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    type Regions = fn(&Tensor, &Tensor, &Tensor, [usize; 2]) -> Tensor;

    /// Boxes of whole pixels moved by less than half a pixel, so that samples stay off the pixel
    /// centers, where the gradient of boxes has a kink.
    fn regions(name: &'static str, op: Regions) -> Case {
        case(name, Twice, move |draw| {
            let mut size = || draw.pick(&[1, 2, 3, 4]);
            let sizes = [size(), size(), size() + 1, size() % 4];
            let (count, to) = (size() % 4, [1, size() - 1]);
            let image = Input::floats(draw, sizes, Any);
            let corners = Input::new(draw, [count, 4], Elements::Below(DType::I32, 4));
            let index = Input::new(draw, [count], Elements::Below(DType::I32, sizes[0]));
            Trial::new(vec![image, corners, index], move |x| {
                let boxes = x[1].cast(x[0].dtype()) + 0.13;
                vec![op(&x[0].square(), &boxes, &x[2], to)]
            })
        })
    }

    cases![
        regions("RoiAlign", Tensor::roi_align).empty(
            "x.roi_align(y, z, [2, 2])",
            "[1, 4, 4, 3], [0, 4], i32[0]",
            "empty [0, 2, 2, 3]",
            |x| x[0].roi_align(&x[1], &x[2], [2, 2])
        ),
        regions("CropAndResize", Tensor::crop_and_resize).empty(
            "x.crop_and_resize(y, z, [2, 2])",
            "[1, 4, 4, 3], [0, 4], i32[0]",
            "empty [0, 2, 2, 3]",
            |x| x[0].crop_and_resize(&x[1], &x[2], [2, 2])
        ),
    ];
}
