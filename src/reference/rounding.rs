//! Stochastic arithmetic: results rounded up or down at random (Vignes, 1993; CADNA).

use tensorpack_tensor::{DType, Error, Result, bf16, f16};

/// With so many bits or fewer, a tie is taken for an accident.
const BITS_WITHOUT_TIES: u32 = 20;

/// Rounds every float result of the reference device to `bits`
/// significant bits, up or down depending on a hash of the value and `seed`.
///
/// Results that agree for several seeds are determined by the model; digits that differ are an
/// artifact of rounding. With 24 bits the spread shows what f32 arithmetic can lose, with 8 bits
/// bf16, with 11 bits f16. A value that already fits is left alone, and equal values round alike, so copies,
/// comparisons and repeated subexpressions stay consistent. Seeds `2k` and `2k + 1` round in opposite
/// directions.
///
/// Results that are declared f32 overflow to infinity where f32 does. Engines add in different
/// orders, so a sum overflows if its terms do in some order: if the positive or the negative ones
/// alone do.
///
/// Results that are declared bf16 or f16 are rounded to that type, to the nearest. If `bits` bits do not
/// determine which neighbor is nearer, one of the two is chosen at random. An exact tie goes to the
/// even neighbor, as on engines that compute it exactly; with 20 bits or fewer it goes to either.
/// 53 bits round nothing else, so the results of a model in bf16 or f16 are those of exact arithmetic
/// between these roundings.
///
/// ```
/// use tensorpack::prelude::*;
/// use tensorpack::runtime::StochasticRounding;
///
/// # fn main() -> Result<()> {
/// let loss = |seed| {
///     let graph = Graph::new();
///     let x = graph.constant(HostTensor::new([3], vec![1.0e8, 1.25, -1.0e8])?);
///     let sum = x.sum();
///     let options = SessionOptions {
///         device: Device::Reference,
///         stochastic_rounding: Some(StochasticRounding { bits: 24, seed }),
///         ..SessionOptions::default()
///     };
///     Session::with(graph.freeze()?, options)?.run(&[&sum], &[])?[0].to_scalar()
/// };
/// // In f32 this sum has no correct digit.
/// let sums = (0..8).map(loss).collect::<Result<Vec<f64>>>()?;
/// assert!(sums.contains(&0.0) && sums.contains(&8.0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StochasticRounding {
    /// Significant bits of a result, from 2 to 53; another number is an error. f32 has 24, bf16 8,
    /// f16 11.
    pub bits: u32,
    /// Which of the random roundings to use.
    pub seed: u64,
}

impl StochasticRounding {
    /// Checks the number of bits.
    pub(crate) fn check(self) -> Result<()> {
        match self.bits {
            2..=f64::MANTISSA_DIGITS => Ok(()),
            bits => Err(Error::argument(format!("stochastic rounding to {bits} bits: expected 2 to 53"))
                .note("use 24 for f32, 8 for bf16, 11 for f16")),
        }
    }

    /// Rounds a result of an element type.
    pub(crate) fn round_result(self, value: f64, dtype: DType) -> f64 {
        match dtype {
            DType::Bf16 if self.bits > 8 => self.round_to(value, dtype),
            // f16 has a small range, which `round` does not know.
            DType::F16 => self.round_to(value, dtype),
            DType::F32 if value.abs() > f64::from(f32::MAX) => f64::INFINITY.copysign(value),
            _ => self.round(value),
        }
    }

    /// Rounds a value.
    pub(crate) fn round(self, value: f64) -> f64 {
        let dropped = f64::MANTISSA_DIGITS - self.bits;
        if fits(value, self.bits) || !value.is_finite() {
            return value;
        }
        let up = u64::from(self.goes_up(value));
        // A carry out of the mantissa increments the exponent, as it should.
        f64::from_bits((value.to_bits() >> dropped << dropped) + (up << dropped))
    }

    /// Rounds a value to a float type of 16 bits.
    fn round_to(self, value: f64, dtype: DType) -> f64 {
        let nearest = |value: f64| match dtype {
            DType::F16 => f16::from_f32(value as f32).to_f64(),
            _ => bf16::from_f32(value as f32).to_f64(),
        };
        let is_tie = || (2.0 * value / last_digit(value, dtype)).fract() == 0.0;
        if nearest(value) == value || !value.is_finite() || self.bits > BITS_WITHOUT_TIES && is_tie() {
            return nearest(value);
        }
        let error = value * 0.5f64.powi(self.bits as i32 + 1);
        let (inner, outer) = (nearest(value - error), nearest(value + error));
        if self.goes_up(value) { outer } else { inner }
    }

    /// Returns whether a value that does not fit is rounded away from zero.
    fn goes_up(self, value: f64) -> bool {
        (mixed(value.to_bits() ^ mixed(self.seed / 2)) ^ self.seed) & 1 == 1
    }
}

/// Returns whether a value has at most this many significant bits.
fn fits(value: f64, bits: u32) -> bool {
    value.to_bits() & ((1u64 << (f64::MANTISSA_DIGITS - bits)) - 1) == 0
}

/// Returns the distance of neighbors near `value` in a float type of 16 bits.
fn last_digit(value: f64, dtype: DType) -> f64 {
    let (bits, smallest) = match dtype {
        DType::F16 => (11, f16::MIN_POSITIVE.to_f64()),
        _ => (8, bf16::MIN_POSITIVE.to_f64()),
    };
    let exponent = value.abs().max(smallest).log2().floor() as i32;
    2f64.powi(exponent - (bits - 1))
}

/// Returns a hash of a number (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_a_neighbor_in_both_directions() {
        let third = 1.0 / 3.0;
        let rounded: Vec<f64> =
            (0..20).map(|seed| StochasticRounding { bits: 24, seed }.round(third)).collect();
        for &r in &rounded {
            assert_eq!(f64::from(r as f32), r);
            assert!((r - third).abs() < f64::from(f32::EPSILON) / 2.0);
        }
        assert!(rounded.iter().any(|&r| r > third) && rounded.iter().any(|&r| r < third));
    }

    #[test]
    fn leaves_what_fits() {
        for value in [0.0, -0.0, 1.5, f64::from(0.1f32), f64::INFINITY, f64::NEG_INFINITY] {
            for seed in 0..8 {
                let round = StochasticRounding { bits: 24, seed }.round(value);
                assert_eq!(round.to_bits(), value.to_bits());
            }
        }
        assert!(StochasticRounding { bits: 24, seed: 0 }.round(f64::NAN).is_nan());
        assert_eq!(StochasticRounding { bits: 53, seed: 0 }.round(0.1), 0.1);
    }

    #[test]
    fn seeds_of_a_pair_round_in_opposite_directions() {
        for pair in 0..10 {
            let [low, high] = [0, 1].map(|i| StochasticRounding { bits: 24, seed: 2 * pair + i }.round(0.1));
            assert_eq!((low - high).abs(), 2f64.powi(-27), "{low}, {high}");
        }
    }

    #[test]
    fn results_of_f32_overflow_where_f32_does() {
        let rounding = StochasticRounding { bits: 24, seed: 0 };
        assert_eq!(rounding.round_result(-1e39, DType::F32), f64::NEG_INFINITY);
        assert_eq!(rounding.round_result(f64::from(f32::MAX), DType::F32), f64::from(f32::MAX));
        assert!(rounding.round_result(1e39, DType::F64).is_finite());
    }

    #[test]
    fn bf16_is_rounded_to_the_nearest_unless_the_bits_do_not_decide() {
        let rounded = |value: f64, bits: u32| -> Vec<f64> {
            let one = |seed| StochasticRounding { bits, seed }.round_result(value, DType::Bf16);
            (0..2).map(one).collect()
        };
        // The neighbors of these are 1 and 1 + 2^-7, with the middle at 1 + 2^-8.
        let (low, middle, high) = (1.0, 1.0 + 2f64.powi(-8), 1.0 + 2f64.powi(-7));
        for bits in [21, 24, 53] {
            assert_eq!(rounded(1.003, bits), [low, low]);
            assert_eq!(rounded(-1.005, bits), [-high, -high]);
            // A tie goes to the even neighbor.
            assert_eq!(rounded(middle, bits), [low, low]);
        }
        assert_eq!(rounded(middle, 20).iter().sum::<f64>(), low + high);
        let above = middle + 2f64.powi(-23);
        assert_eq!(rounded(above, 53), [high, high]);
        for value in [above, middle - 2f64.powi(-23)] {
            let mut both = rounded(value, 21);
            both.sort_by(f64::total_cmp);
            assert_eq!(both, [low, high]);
        }
    }

    #[test]
    fn f16_is_rounded_to_the_nearest_overflows_and_underflows() {
        let rounded = |value: f64, bits: u32| -> Vec<f64> {
            let one = |seed| StochasticRounding { bits, seed }.round_result(value, DType::F16);
            (0..2).map(one).collect()
        };
        let middle = 1.0 + 2f64.powi(-11);
        assert_eq!(rounded(middle, 24), [1.0, 1.0]);
        assert_eq!(rounded(middle, 20).iter().sum::<f64>(), 2.0 + 2f64.powi(-10));
        assert_eq!(rounded(-middle - 2f64.powi(-20), 53), [-1.0 - 2f64.powi(-10); 2]);
        assert_eq!(rounded(65519.0, 53), [65504.0; 2]);
        assert_eq!(rounded(-65521.0, 53), [f64::NEG_INFINITY; 2]);
        // The digits of subnormal numbers do not get finer.
        let smallest = 2f64.powi(-24);
        assert_eq!(rounded(1.5 * smallest, 24), [2.0 * smallest; 2]);
        assert_eq!(rounded(2.4 * smallest, 24), [2.0 * smallest; 2]);
    }

    #[test]
    fn carries_into_the_exponent() {
        let below_two = f64::from_bits(2.0f64.to_bits() - 1);
        let rounded: Vec<f64> =
            (0..20).map(|seed| StochasticRounding { bits: 24, seed }.round(below_two)).collect();
        assert!(rounded.contains(&2.0) && rounded.iter().all(|&r| r == 2.0 || r == 2.0 - 2f64.powi(-23)));
    }
}
