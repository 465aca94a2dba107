//! Count, sum and extremes of the values of a statistic.

/// Adds up values one by one, and returns their count, sum, mean, least and greatest: the scores of
/// episodes in a callback, for example. A value that is NaN makes all of them NaN, but for the count.
///
/// ```
/// use tensorpack::monitor::StatCounter;
///
/// let mut scores = StatCounter::default();
/// [3.0, 1.0, 5.0].into_iter().for_each(|score| scores.feed(score));
/// assert_eq!((scores.count(), scores.sum(), scores.mean()), (3, 9.0, Some(3.0)));
/// assert_eq!((scores.min(), scores.max()), (Some(1.0), Some(5.0)));
/// scores.reset();
/// assert_eq!(scores.mean(), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatCounter {
    count: u64,
    sum: f64,
    /// The least and the greatest value, if there are values.
    range: Option<[f64; 2]>,
}

impl StatCounter {
    /// Adds a value.
    pub fn feed(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        let [min, max] = self.range.unwrap_or([value; 2]);
        self.range = Some(match value.is_nan() || min.is_nan() {
            true => [f64::NAN; 2],
            false => [min.min(value), max.max(value)],
        });
    }

    /// Forgets all values.
    pub fn reset(&mut self) {
        *self = StatCounter::default();
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of the values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns the mean, if there are values.
    #[doc(alias = "average")]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Returns the least value, if there are values.
    pub fn min(&self) -> Option<f64> {
        self.range.map(|range| range[0])
    }

    /// Returns the greatest value, if there are values.
    pub fn max(&self) -> Option<f64> {
        self.range.map(|range| range[1])
    }
}

#[cfg(test)]
mod tests {
    use super::StatCounter;

    #[test]
    fn nan_is_not_lost() {
        for values in [[f64::NAN, 1.0, 2.0], [1.0, f64::NAN, 2.0], [1.0, 2.0, f64::NAN]] {
            let mut counter = StatCounter::default();
            values.into_iter().for_each(|x| counter.feed(x));
            assert_eq!(counter.count(), 3);
            assert!(counter.sum().is_nan() && counter.mean().is_some_and(f64::is_nan));
            assert!(counter.min().is_some_and(f64::is_nan) && counter.max().is_some_and(f64::is_nan));
        }
    }

    #[test]
    fn the_range_has_every_sign() {
        let mut counter = StatCounter::default();
        assert_eq!((counter.min(), counter.max(), counter.sum()), (None, None, 0.0));
        [-2.0, f64::INFINITY, -3.0].into_iter().for_each(|x| counter.feed(x));
        assert_eq!((counter.min(), counter.max()), (Some(-3.0), Some(f64::INFINITY)));
    }
}
