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
        self.rotated(base, None)
    }

    /// Like [`Tensor::rotary_embedding`], with the position of each element of time: `positions` is an
    /// integer tensor `[batch, time]`. For a decoder that computes one position at a time.
    #[track_caller]
    pub fn rotary_embedding_at(&self, base: f64, positions: &Tensor) -> Tensor {
        self.rotated(base, Some(positions))
    }

    #[track_caller]
    fn rotated(&self, base: f64, positions: Option<&Tensor>) -> Tensor {
        if positions.is_some_and(Tensor::is_poison) {
            return Tensor::poison(self.graph());
        }
        if let Some(positions) = positions.filter(|p| p.rank() != 2 || !p.dtype().is_int()) {
            let why = format!(
                "expected integer positions [batch, time], got {}{}",
                positions.dtype(),
                positions.shape()
            );
            return self.fail("RotaryEmbedding", Error::shape(why));
        }
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
            // Only the shape of the sum is used. [time, 1, 1], or [batch, time, 1, 1].
            let position = match positions {
                Some(positions) => positions.cast(wide).expand_dims(2).expand_dims(2),
                None => self.sum_axes(&[0, 2, 3]).iota_like(0, wide).expand_dims(1).expand_dims(1),
            };
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

    /// Every position alone, with its number, is rotated as it is in the sequence.
    #[test]
    fn positions_are_those_of_the_sequence() {
        let graph = Graph::new();
        let x: Vec<f64> = (0..24).map(|i| (i as f64).sin()).collect();
        let x = graph.constant(HostTensor::from_f64(DType::F64, [2, 3, 1, 4], &x).unwrap());
        let whole = x.rotary_embedding(100.0);
        let alone: Vec<Tensor> = (0..3)
            .map(|p| {
                let positions = graph.constant(HostTensor::new([2, 1], vec![p as i32; 2]).unwrap());
                x.slice_axis(1, p, Some(p + 1)).rotary_embedding_at(100.0, &positions)
            })
            .collect();
        let alone = graph.concat(&alone, 1);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let found = session.run(&[&whole, &alone], &[]).unwrap();
        assert_eq!(found[0].to_f64_vec(), found[1].to_f64_vec());
    }

    #[test]
    fn bad_positions_are_errors_at_the_callers_line() {
        let graph = Graph::new();
        let x = graph.constant(HostTensor::zeros(DType::F32, [2, 3, 1, 4]).unwrap());
        let line = line!() + 1;
        x.rotary_embedding_at(100.0, &graph.iota(3, DType::I32));
        let e = graph.first_error().unwrap_err();
        assert!(e.message().contains("positions"), "{e}");
        assert_eq!(e.site().map(|s| s.line), Some(line));
    }

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
