//! Histograms with TensorBoard's buckets: each limit is 10 % further from zero than the previous
//! one.

use std::sync::OnceLock;
use tensorpack_tensor::HostTensor;

/// A histogram of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The number of values.
    pub count: f64,
    /// The sum of the values.
    pub sum: f64,
    /// The sum of the squared values.
    pub sum_of_squares: f64,
    /// The exclusive upper limit and the number of values of each bucket, in ascending order.
    /// Consecutive empty buckets are merged.
    pub buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// Returns the histogram of a tensor's finite values.
    #[doc(alias = "of")]
    pub fn new(values: &HostTensor) -> Histogram {
        let limits = limits();
        let mut counts = vec![0.0; limits.len()];
        let (mut min, mut max, mut count, mut sum, mut squares) =
            (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0.0, 0.0);
        for x in values.to_f64_vec().into_iter().filter(|x| x.is_finite()) {
            // `f64::MAX` belongs to the last bucket.
            let at = limits.partition_point(|&limit| limit <= x).min(limits.len() - 1);
            counts[at] += 1.0;
            (min, max, count) = (f64::min(min, x), f64::max(max, x), count + 1.0);
            (sum, squares) = (sum + x, squares + x * x);
        }
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (&limit, &n) in limits.iter().zip(&counts) {
            match buckets.last_mut() {
                Some((last, 0.0)) if n == 0.0 => *last = limit,
                _ => buckets.push((limit, n)),
            }
        }
        if count == 0.0 {
            (min, max) = (0.0, 0.0);
        }
        Histogram { min, max, count, sum, sum_of_squares: squares, buckets }
    }
}

fn limits() -> &'static [f64] {
    static LIMITS: OnceLock<Vec<f64>> = OnceLock::new();
    LIMITS.get_or_init(|| {
        let mut positive: Vec<f64> =
            std::iter::successors(Some(1e-12), |&v| Some(v * 1.1)).take_while(|&v| v < 1e20).collect();
        positive.push(f64::MAX);
        let negative = positive.iter().rev().map(|v| -v);
        negative.chain([0.0]).chain(positive.iter().copied()).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_below_their_limit() {
        let values = [-2.0, 0.0, 0.0, 0.5, 3.0, f64::NAN, f64::INFINITY, f64::MAX];
        let h = Histogram::new(&HostTensor::new([8], values.to_vec()).unwrap());
        assert_eq!((h.min, h.max, h.count), (-2.0, f64::MAX, 6.0));
        assert!(h.buckets.windows(2).all(|w| w[0].0 < w[1].0 && (w[0].1, w[1].1) != (0.0, 0.0)));
        assert_eq!(h.buckets.iter().map(|b| b.1).sum::<f64>(), 6.0);
        let mut below = f64::NEG_INFINITY;
        for &(limit, n) in &h.buckets {
            let inside = |x: &&f64| below <= **x && **x < limit || limit == f64::MAX && **x == limit;
            assert_eq!(values.iter().filter(inside).count() as f64, n, "below {limit}");
            below = limit;
        }
        // Zero is a limit and belongs to the bucket above it.
        assert!(h.buckets.contains(&(1e-12, 2.0)));
    }

    #[test]
    fn histogram_of_no_values() {
        let h = Histogram::new(&HostTensor::new([0], Vec::<f32>::new()).unwrap());
        assert_eq!(h.buckets, [(f64::MAX, 0.0)]);
        assert_eq!((h.min, h.max, h.count, h.sum), (0.0, 0.0, 0.0, 0.0));
    }
}
