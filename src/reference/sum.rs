//! Compensated summation.

use super::{Array, Scalar, StochasticRounding};
use tensorpack_tensor::DType;

/// A running sum. Integers wrap; floats use compensated summation (Neumaier, 1974), so that a long
/// sum is as accurate as a short one. Under [`StochasticRounding`] every partial sum is
/// rounded instead, as a loop in that precision does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    float: f64,
    compensation: f64,
    int: i64,
    rounding: Option<StochasticRounding>,
    /// The sums of the positive and of the negative terms: the largest and the smallest partial
    /// sum in any order. Used under rounding only.
    extremes: [f64; 2],
}

impl Sum {
    /// Returns an empty sum.
    pub(super) fn new(rounding: Option<StochasticRounding>) -> Sum {
        Sum { rounding, ..Sum::default() }
    }

    /// Adds an element.
    pub fn add(&mut self, value: Scalar) {
        match value {
            Scalar::Int(v) => self.int = self.int.wrapping_add(v),
            Scalar::Float(v) => {
                if let Some(rounding) = self.rounding {
                    self.float = rounding.round(self.float + v);
                    self.extremes[usize::from(v < 0.0)] += v;
                    return;
                }
                let next = self.float + v;
                let (large, small) =
                    if self.float.abs() >= v.abs() { (self.float, v) } else { (v, self.float) };
                self.compensation += (large - next) + small;
                self.float = next;
            }
        }
    }

    /// Returns the sum of all elements so far, as an element of `dtype`.
    pub fn value(&self, dtype: DType) -> Scalar {
        match dtype.is_float() {
            // The compensation of an infinite sum is NaN.
            true if !self.float.is_finite() => Scalar::Float(self.float),
            true => Scalar::Float(self.overflow(dtype).unwrap_or(self.float + self.compensation)),
            false => Scalar::Int(self.int),
        }
    }

    /// Returns the infinity that a partial sum reaches in some order of the terms, if any. Kernels
    /// add bf16 in f32.
    fn overflow(&self, dtype: DType) -> Option<f64> {
        let max = if dtype == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
        self.extremes.into_iter().find(|sum| sum.abs() > max).map(|sum| f64::INFINITY.copysign(sum))
    }
}

/// An array of running sums, each of which starts at zero.
#[derive(Clone, Debug)]
pub struct Sums {
    dtype: DType,
    sizes: Vec<usize>,
    sums: Vec<Sum>,
}

impl Sums {
    /// Creates sums of elements of `dtype`, one for each index of `sizes`.
    pub(super) fn new(dtype: DType, sizes: &[usize], rounding: Option<StochasticRounding>) -> Sums {
        Sums { dtype, sizes: sizes.to_vec(), sums: vec![Sum::new(rounding); sizes.iter().product()] }
    }

    /// Adds an element to the sum at an index.
    pub fn add(&mut self, index: &[usize], value: Scalar) {
        let offset = index.iter().zip(&self.sizes).fold(0, |at, (&i, &n)| {
            assert!(i < n, "{index:?} is outside {:?}", self.sizes);
            at * n + i
        });
        self.sums[offset].add(value);
    }

    /// Returns the sums.
    pub fn array(&self) -> Array {
        let values: Vec<Scalar> = self.sums.iter().map(|s| s.value(self.dtype)).collect();
        Array::from_values(self.dtype, &self.sizes, &values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(values: impl IntoIterator<Item = f64>) -> f64 {
        let mut total = Sum::default();
        values.into_iter().for_each(|v| total.add(Scalar::Float(v)));
        total.value(DType::F64).as_f64()
    }

    #[test]
    fn small_terms_next_to_a_large_one_are_kept() {
        let terms = || [1e16].into_iter().chain([1.0; 10]).chain([-1e16]);
        assert_ne!(terms().sum::<f64>(), 10.0);
        assert_eq!(sum(terms()), 10.0);
    }

    #[test]
    fn infinities_and_nan_propagate() {
        assert_eq!(sum([1.0, f64::INFINITY, 2.0]), f64::INFINITY);
        assert!(sum([f64::INFINITY, f64::NEG_INFINITY]).is_nan());
        assert!(sum([1.0, f64::NAN]).is_nan());
        assert_eq!(sum([]), 0.0);
    }

    #[test]
    fn rounded_sums_of_f32_overflow_if_they_do_in_some_order() {
        let half = 2f64.powi(127);
        let sum = |terms: &[f64], rounding, dtype| {
            let mut total = Sum::new(rounding);
            terms.iter().for_each(|&v| total.add(Scalar::Float(v)));
            total.value(dtype).as_f64()
        };
        let rounding = Some(StochasticRounding { bits: 24, seed: 0 });
        let terms = [half, -half, half, -half];
        for dtype in [DType::F32, DType::Bf16] {
            assert!(sum(&terms, rounding, dtype).is_infinite());
            assert_eq!(sum(&terms[..2], rounding, dtype), 0.0);
            assert_eq!(sum(&[-half; 2], rounding, dtype), f64::NEG_INFINITY);
        }
        assert_eq!(sum(&terms, rounding, DType::F64), 0.0);
        assert_eq!(sum(&terms, None, DType::F32), 0.0);
        let terms = [f64::INFINITY, f64::NEG_INFINITY];
        assert!(sum(&terms, rounding, DType::F32).is_nan());
    }

    #[test]
    fn integers_wrap_to_their_type() {
        let mut sums = Sums::new(DType::U8, &[2], None);
        [200, 100].into_iter().for_each(|v| sums.add(&[1], Scalar::Int(v)));
        assert_eq!(sums.array().values().collect::<Vec<_>>(), [Scalar::Int(0), Scalar::Int(44)]);
    }
}
