//! Unpooling: enlarges images, spreading each pixel over a block.

use super::composed;
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::Error;

impl Tensor {
    /// Returns the Kronecker product of every channel of images `[batch, height, width, channels]`
    /// with `block`, a matrix `[height, width]`: each pixel becomes the block times the pixel.
    #[track_caller]
    #[doc(alias = "FixedUnPooling")]
    pub fn unpool(&self, block: &Tensor) -> Tensor {
        if self.is_poison() || block.is_poison() {
            return Tensor::poison(self.graph());
        }
        if (self.rank(), block.rank()) != (4, 2) {
            let why = format!(
                "expected images [batch, height, width, channels] and a block [height, width], got {} and {}",
                self.shape(),
                block.shape()
            );
            return self.fail("Unpool", Error::shape(why));
        }
        composed(self, "Unpool", Location::caller(), || {
            // [batch, height, 1, width, 1, channels] times [block height, 1, block width, 1].
            let spread = self.expand_dims(2).expand_dims(4) * block.expand_dims(1).expand_dims(3);
            spread.merge_dims(1, 2).merge_dims(2, 2)
        })
    }

    /// Puts each pixel at the top left of a block of `size` by `size`, with zeros elsewhere.
    #[track_caller]
    pub fn unpool_zeros(&self, size: usize) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let Some(between) = size.checked_sub(1).filter(|_| self.rank() == 4) else {
            let why = format!(
                "expected images [batch, height, width, channels] and a positive size, got {}",
                self.shape()
            );
            return self.fail("Unpool", Error::shape(why));
        };
        composed(self, "UnpoolZeros", Location::caller(), || {
            // Pad `[batch, height, 1, width, 1, channels]` after each pixel. Padding between pixels
            // and after the last one would be wrong for images without pixels.
            let after = [0, 0, between, 0, between, 0];
            let spread = self.expand_dims(2).expand_dims(4).pad(&[0; 6], &after, &[0; 6]);
            spread.merge_dims(1, 2).merge_dims(2, 2)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("Unpool", Twice, |draw| {
            let sizes = [draw.between(1, 3), draw.between(1, 4), draw.between(1, 4), draw.pick(&[1, 3, 17])];
            let block = [draw.between(1, 3), draw.between(1, 3)];
            let inputs = vec![Input::floats(draw, sizes, Any), Input::floats(draw, block, Any).closed()];
            Trial::new(inputs, |x| vec![x[0].unpool(&x[1]), x[0].unpool_zeros(3)])
        })
        .empty("x.unpool(y)", "[0, 4, 4, 3], [2, 2]", "empty [0, 8, 8, 3]", |x| x[0].unpool(&x[1])),
    ];

    #[test]
    fn unpool_zeros_equals_unpool_with_a_one_hot_block() {
        use crate::graph::{Graph, TensorSpec};
        use crate::runtime::Session;
        use tensorpack_tensor::HostTensor;
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2), Some(3), Some(2)]));
        let block = graph.constant(HostTensor::new([2, 2], vec![1.0f32, 0.0, 0.0, 0.0]).unwrap());
        let both = [x.unpool(&block), x.unpool_zeros(2)];
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let fed = HostTensor::new([1, 2, 3, 2], (0..12).map(|i| i as f32).collect()).unwrap();
        let got = session.run(&[&both[0], &both[1]], &[("x", &fed)]).unwrap();
        assert_eq!(got[0], got[1]);
        assert_eq!(got[0].sizes(), [1, 4, 6, 2]);
    }
}
