//! Bilinear interpolation at given positions, the part that grid sampling and region pooling share.

use crate::graph::Tensor;
use tensorpack_tensor::DType;

/// The images that are sampled: `[batch, height, width, channels]`.
pub(super) struct Samples<'a> {
    images: &'a Tensor,
    /// Height and width, as scalars of the type of positions.
    pub(super) size: [Tensor; 2],
}

/// The two neighbors of every position along an axis.
struct Neighbors {
    indices: [Tensor; 2],
    weights: [Tensor; 2],
}

/// Returns the type in which positions are computed: 16-bit floats cannot count the pixels of an
/// image.
pub(super) fn position_dtype(x: &Tensor) -> DType {
    if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 }
}

impl<'a> Samples<'a> {
    /// Prepares images for positions of type `dtype`.
    #[track_caller]
    pub(super) fn new(images: &'a Tensor, dtype: DType) -> Samples<'a> {
        // Only the shapes of the sums are used: [height] and [width], even if there are no channels.
        let size = [[0, 2, 3], [0, 1, 3]].map(|others| {
            let line = images.sum_axes(&others);
            line.count_per(&line.slice_axis(0, 0, Some(1)).cast(dtype))
        });
        Samples { images, size }
    }

    /// Returns the pixels at rows `y` and columns `x` of the images `index` (an integer), which
    /// broadcast against each other. Pixel centers are integers. Pixels outside the image are zero.
    #[track_caller]
    pub(super) fn at(&self, index: &Tensor, y: &Tensor, x: &Tensor) -> Tensor {
        let [height, width] = [0, 1].map(|i| self.size[i].cast(DType::I64));
        let rows = neighbors(y, &self.size[0]);
        let columns = neighbors(x, &self.size[1]);
        let pixels = self.images.merge_dims(0, 3);
        let mut sum: Option<Tensor> = None;
        for (row, row_weight) in rows.indices.iter().zip(&rows.weights) {
            for (column, column_weight) in columns.indices.iter().zip(&columns.weights) {
                let pixel = (index * &height + row) * &width + column;
                let weight = (row_weight * column_weight).cast(self.images.dtype()).expand_dims(-1);
                let term = pixels.gather(&pixel, 0) * weight;
                sum = Some(match sum {
                    Some(sum) => sum + term,
                    None => term,
                });
            }
        }
        sum.unwrap_or_else(|| self.images.clone())
    }
}

/// Returns the neighbors of `position` in an axis of this size. Those outside have weight 0, and an
/// index inside.
#[track_caller]
fn neighbors(position: &Tensor, size: &Tensor) -> Neighbors {
    let (zero, one) = (position.zero(), position.one());
    // Further outside both neighbors are outside too. From -1 on, truncation rounds down.
    let position = position.maximum(&(-&one)).minimum(size);
    let count = size.cast(DType::I64);
    let (int_zero, int_one) = (count.zero(), count.one());
    // The bounds hold for NaN, too.
    let low = (&position + &one).cast(DType::I64).maximum(&int_zero).minimum(&(&count + &int_one)) - &int_one;
    let high = &low + &int_one;
    let fraction = &position - low.cast(position.dtype());
    let inside = |i: &Tensor, weight: &Tensor| {
        i.greater_equal(&int_zero).logical_and(&i.less(&count)).select(weight, &zero)
    };
    let weights = [inside(&low, &(&one - &fraction)), inside(&high, &fraction)];
    let indices = [low, high].map(|i| i.maximum(&int_zero).minimum(&(&count - &int_one)));
    Neighbors { indices, weights }
}
