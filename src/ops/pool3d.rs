//! Pooling of volumes `[batch, depth, height, width, channels]`: over height and width, then over the
//! depth. Both maxima and averages separate, and the first of equal maxima stays the first.

use super::{Layout, Padding3d, PoolOptions, composed};
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::Error;

/// Window, stride and padding of 3-D pooling, each for depth, height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool3dOptions {
    /// The size of the window. Height times width may be at most 256.
    pub window: [usize; 3],
    /// The stride of the window.
    pub stride: [usize; 3],
    /// Padding around the volume; it never contributes to a maximum or an average.
    pub padding: Padding3d,
}

impl Pool3dOptions {
    /// Creates a cubic window with a stride of its own size.
    pub fn cube(size: usize) -> Pool3dOptions {
        Pool3dOptions { window: [size; 3], stride: [size; 3], padding: Padding3d::Valid }
    }
}

impl Tensor {
    /// Max pooling over non-overlapping cubes of volumes `[batch, depth, height, width, channels]`.
    #[track_caller]
    pub fn max_pool3d(&self, size: usize) -> Tensor {
        self.max_pool3d_with(Pool3dOptions::cube(size))
    }

    /// Max pooling of volumes.
    #[track_caller]
    pub fn max_pool3d_with(&self, options: Pool3dOptions) -> Tensor {
        self.pool3d("MaxPool3d", Location::caller(), options, Tensor::max_pool_with)
    }

    /// Average pooling over non-overlapping cubes of volumes `[batch, depth, height, width,
    /// channels]`.
    #[track_caller]
    pub fn average_pool3d(&self, size: usize) -> Tensor {
        self.average_pool3d_with(Pool3dOptions::cube(size))
    }

    /// Average pooling of volumes.
    #[track_caller]
    pub fn average_pool3d_with(&self, options: Pool3dOptions) -> Tensor {
        self.pool3d("AveragePool3d", Location::caller(), options, Tensor::average_pool_with)
    }

    fn pool3d(
        &self,
        name: &str,
        caller: &'static Location<'static>,
        options: Pool3dOptions,
        pool: fn(&Tensor, PoolOptions) -> Tensor,
    ) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let known = |i: usize| self.shape().get(i).and_then(|d| d.known()).map(|n| n as isize);
        let (5, Some(depth), Some(channels)) = (self.rank(), known(1).filter(|&n| n > 0), known(4)) else {
            let why = format!(
                "expected volumes [batch, depth, height, width, channels] with a known positive depth and \
                 known channels, got {}",
                self.shape()
            );
            return self.graph().called_from(caller, || self.fail(name, Error::shape(why)));
        };
        let Pool3dOptions { window, stride, padding } = options;
        let pooling = |window, stride, padding| PoolOptions { window, stride, padding, layout: Layout::Nhwc };
        let image = pooling([window[1], window[2]], [stride[1], stride[2]], padding.image());
        let column = pooling([window[0], 1], [stride[0], 1], padding.depth());
        composed(self, name, caller, || {
            let images = pool(&self.merge_dims(0, 2), image);
            let width = images.shape().get(2).and_then(|d| d.known()).map_or(-1, |n| n as isize);
            // Width and channels become the channels of images whose rows are the depth.
            let volume = images.split_dim(0, &[-1, depth]).merge_dims(3, 2);
            pool(&volume, column).split_dim(3, &[width, channels])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;
    use crate::ops::window::tests::draw_volume;

    fn pool(name: &'static str, domain: Domain, op: fn(&Tensor, Pool3dOptions) -> Tensor) -> Case {
        case(name, Twice, move |draw| {
            let mut three = |high| [0; 3].map(|_| draw.between(1, high));
            let (window, stride) = (three(3), three(2));
            let (n, padding) = draw_volume(draw, window);
            let sizes = [draw.pick(&[1, 2, 0]), n[0], n[1], n[2], draw.pick(&[1, 2, 3])];
            let options = Pool3dOptions { window, stride, padding };
            Trial::new(vec![Input::floats(draw, sizes, domain)], move |x| vec![op(&x[0], options)])
        })
    }

    const NO_DEPTH: &str = "error: expected volumes [batch, depth, height, width, channels] with a known \
                            positive depth and known channels, got [1, 0, 4, 4, 3]";

    cases![
        pool("MaxPool3d", Apart, Tensor::max_pool3d_with)
            .empty("x.max_pool3d(2)", "[0, 4, 4, 4, 3]", "empty [0, 2, 2, 2, 3]", |x| x[0].max_pool3d(2))
            .empty("x.max_pool3d(2)", "[1, 0, 4, 4, 3]", NO_DEPTH, |x| x[0].max_pool3d(2)),
        pool("AveragePool3d", Any, Tensor::average_pool3d_with)
            .empty("x.average_pool3d(2)", "[0, 4, 4, 4, 3]", "empty [0, 2, 2, 2, 3]", |x| {
                x[0].average_pool3d(2)
            })
            .empty("x.average_pool3d(2)", "[1, 0, 4, 4, 3]", NO_DEPTH, |x| x[0].average_pool3d(2)),
    ];
}
