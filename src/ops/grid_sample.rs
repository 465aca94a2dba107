//! Bilinear sampling of images at the positions of a grid.

use super::bilinear::{Samples, position_dtype};
use super::composed;
use crate::graph::Tensor;
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{Error, Shape};

/// Options of [`Tensor::grid_sample_with`]. By default, -1 and 1 are the edges of the image, and
/// pixels outside are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GridSampleOptions {
    /// Whether -1 and 1 are the centers of the first and the last pixel instead.
    pub align_corners: bool,
    /// Whether positions outside take the nearest pixel of the border.
    pub border_padding: bool,
}

impl Tensor {
    /// Samples images `[batch, height, width, channels]` by bilinear interpolation at the positions
    /// `grid`, `[batch, rows, columns, 2]`. A position is `(x, y)`, where -1 is the left or upper
    /// edge of the image and 1 the right or lower edge. Pixels outside are zero. Returns `[batch,
    /// rows, columns, channels]`. Images and grid get gradients.
    #[track_caller]
    pub fn grid_sample(&self, grid: &Tensor) -> Tensor {
        self.grid_sample_with(grid, GridSampleOptions::default())
    }

    /// [`Tensor::grid_sample`] with options.
    #[track_caller]
    pub fn grid_sample_with(&self, grid: &Tensor, options: GridSampleOptions) -> Tensor {
        if self.is_poison() || grid.is_poison() {
            return Tensor::poison(self.graph());
        }
        let is_grid = |shape: &Shape| shape.rank() == 4 && shape[3].known() == Some(2);
        if self.rank() != 4 || !self.dtype().is_float() || !is_grid(grid.shape()) || !grid.dtype().is_float()
        {
            let why = format!(
                "expected float images [batch, height, width, channels] and a float grid [batch, rows, \
                 columns, 2], got {}{} and {}{}",
                self.dtype(),
                self.shape(),
                grid.dtype(),
                grid.shape()
            );
            return self.fail("GridSample", Error::shape(why));
        }
        composed(self, "GridSample", Location::caller(), || {
            let grid = grid.with_dims_of(self, 1, "a grid for each image");
            if grid.is_poison() {
                return grid;
            }
            let samples = Samples::new(self, position_dtype(&grid));
            let grid = grid.cast(position_dtype(&grid));
            let position = |axis: usize, size: &Tensor| {
                let from_center = grid.slice_axis(3, axis, Some(axis + 1)).squeeze(3);
                let last = size - 1.0;
                let extent = if options.align_corners { &last } else { size };
                let position = (from_center * extent + &last) * 0.5;
                match options.border_padding {
                    true => position.maximum(0.0).minimum(&last),
                    false => position,
                }
            };
            let [height, width] = &samples.size;
            let (x, y) = (position(0, width), position(1, height));
            let index = x.iota_like(0, tensorpack_tensor::DType::I64);
            samples.at(&index, &y, &x)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;
    use tensorpack_tensor::DType;

    cases![
        case("GridSample", Twice, |draw| {
            let mut size = || draw.pick(&[1, 2, 3, 4]);
            let (batch, height, width, channels) = (size() % 4, size(), size() + 1, size() % 4);
            let (rows, columns) = (size() - 1, size());
            let options = GridSampleOptions {
                align_corners: draw.below(2) == 1 && height > 1,
                border_padding: draw.below(2) == 1,
            };
            let image = Input::floats(draw, [batch, height, width, channels], Any);
            let positions = Input::floats(draw, [batch, rows, columns, 2], Any);
            Trial::new(vec![image, positions], move |x| {
                // Pixel -1, 0, .. by index, and 0.2 to 0.8 of a pixel after it: between two pixels, where the
                // function is smooth.
                let pixel = x[1].iota_like(2, DType::I64) + x[1].iota_like(1, DType::I64);
                let position = pixel.cast(x[1].dtype()) - 0.8 + x[1].sigmoid() * 0.6;
                let sizes = x[1].graph().constant(
                    tensorpack_tensor::HostTensor::from_f64(
                        x[1].dtype(),
                        [2],
                        &[width as f64, height as f64],
                    )
                    .expect("two values"),
                );
                let grid = match options.align_corners {
                    true => position * 2.0 / (sizes - 1.0) - 1.0,
                    false => (position * 2.0 + 1.0) / sizes - 1.0,
                };
                vec![x[0].square().grid_sample_with(&grid, options)]
            })
        })
        .empty("x.grid_sample(y)", "[0, 4, 4, 3], [0, 2, 2, 2]", "empty [0, 2, 2, 3]", |x| {
            x[0].grid_sample(&x[1])
        })
        .empty("x.grid_sample(y)", "[1, 4, 4, 3], [1, 0, 2, 2]", "empty [1, 0, 2, 3]", |x| {
            x[0].grid_sample(&x[1])
        }),
    ];
}
