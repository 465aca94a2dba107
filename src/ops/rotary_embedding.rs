//! Rotary position embedding (Su et al., "RoFormer", 2021).

use super::{composed, float_input};
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::{DType, Error, HostTensor};

impl Tensor {
    /// Rotates the features of each head by angles that grow with the position, so that the product
    /// of a rotated query and a rotated key depends on their distance. `self` is `[batch, time,
    /// heads, features]`; position `p` of feature pair `i` is rotated by `p / base^(2 i /
    /// features)`. The usual base is 10,000. A pair are features `i` and `i + features / 2`.
    ///
    /// Angles are computed in f32, or in f64 for f64.
    #[track_caller]
    #[doc(alias = "rope")]
    pub fn rotary_embedding(&self, base: f64) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        if let Err(e) = float_input(self.spec()) {
            return self.fail("RotaryEmbedding", e);
        }
        let features = self.shape().last().and_then(|d| d.known()).filter(|n| n.is_multiple_of(2));
        let Some(features) = features.filter(|_| self.rank() == 4) else {
            let why = format!(
                "expected [batch, time, heads, features] with a known even number of features, got {}",
                self.shape()
            );
            return self.fail("RotaryEmbedding", Error::shape(why));
        };
        if !(base.is_finite() && base > 0.0) {
            return self
                .fail("RotaryEmbedding", Error::argument(format!("the base is {base}, not positive")));
        }
        composed(self, "RotaryEmbedding", Location::caller(), || {
            let wide = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            let half = features / 2;
            let rates: Vec<f64> = (0..half).map(|i| base.powf(-2.0 * i as f64 / features as f64)).collect();
            let rates = match HostTensor::from_f64(wide, [half], &rates) {
                Ok(rates) => self.graph().constant(rates),
                Err(e) => return self.fail("RotaryEmbedding", e),
            };
            // Only the shape of the sum is used: [time, 1].
            let position = self.sum_axes(&[0, 2, 3]).iota_like(0, wide).expand_dims(1).expand_dims(1);
            let angle = position * rates;
            let [cos, sin] = [angle.cos(), angle.sin()].map(|x| x.cast(self.dtype()));
            let [a, b] = [self.slice_axis(3, 0, Some(half)), self.slice_axis(3, half, None)];
            let turned = [&a * &cos - &b * &sin, &b * &cos + &a * &sin];
            self.graph().concat(&turned, 3)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::op_cases::*;
    use crate::runtime::Session;

    cases![
        case("RotaryEmbedding", Twice, |draw| {
            let mut sizes = draw.sizes(4);
            sizes[3] = 2 * sizes[3].min(5);
            Trial::new(vec![Input::floats(draw, sizes, Any)], |x| vec![x[0].rotary_embedding(10_000.0)])
        })
        .empty("x.rotary_embedding(10_000.0)", "[0, 3, 2, 4]", "empty [0, 3, 2, 4]", |x| {
            x[0].rotary_embedding(10_000.0)
        }),
    ];

    /// Runs the op on one head of four features at positions 0, 1 and 2.
    #[test]
    fn pairs_are_rotated_by_position_over_a_power_of_the_base() {
        let graph = Graph::new();
        let x: Vec<f64> = (0..3).flat_map(|_| [1.0, 2.0, 0.0, 1.0]).collect();
        let x = graph.constant(HostTensor::from_f64(DType::F64, [1, 3, 1, 4], &x).unwrap());
        let y = x.rotary_embedding(100.0);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let found = session.run(&[&y], &[]).unwrap()[0].to_f64_vec();
        for position in 0..3 {
            let p = position as f64;
            let (slow, fast) = (p / 10.0, p);
            let expected =
                [fast.cos(), 2.0 * slow.cos() - slow.sin(), fast.sin(), slow.cos() + 2.0 * slow.sin()];
            for (f, e) in found[4 * position..].iter().zip(expected) {
                assert!((f - e).abs() < 1e-14, "position {position}: {f}, expected {e}");
            }
        }
    }
}
