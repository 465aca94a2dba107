//! A curve as it is drawn: smoothed, and reduced to what the pixels of a chart can show.

/// What a chart asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// The weight of the exponential moving average, from 0 (none) to below 1.
    pub(crate) smoothing: f64,
    /// The number of pixel columns.
    pub(crate) width: usize,
    /// The visible range of x.
    pub(crate) range: Option<(f64, f64)>,
    /// Whether the x axis is logarithmic. Points with x <= 0 are left out.
    pub(crate) log_x: bool,
}

/// A curve, ready to be drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Curve {
    /// The points: all of them, or the smallest and largest of each pixel column.
    pub(crate) raw: Vec<(f64, f64)>,
    /// The moving average, at most one point per pixel column.
    pub(crate) smooth: Vec<(f64, f64)>,
    /// Where values are NaN or infinite.
    pub(crate) not_finite: Vec<f64>,
    /// The number of points in the visible range.
    pub(crate) total: usize,
}

/// The most positions of values that are not finite.
const MAX_NOT_FINITE: usize = 64;

impl Curve {
    /// Computes the curve of `len` points, whose x should ascend.
    pub(crate) fn new(len: usize, point: impl Fn(usize) -> (f64, f64), view: &View) -> Curve {
        let (low, high) = view.range.unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
        let inside = |x: f64| x >= low && x <= high && (!view.log_x || x > 0.0);
        let mut curve = Curve::default();
        let (mut first, mut last) = (f64::INFINITY, f64::NEG_INFINITY);
        if len > 0 && inside(point(0).0) && inside(point(len - 1).0) && point(0).0 < point(len - 1).0 {
            // All of it is visible, as most curves are. If x does not ascend, this is no more than a
            // bad division into pixel columns.
            (curve.total, first, last) = (len, point(0).0, point(len - 1).0);
        } else {
            for x in (0..len).map(|i| point(i).0).filter(|&x| inside(x)) {
                curve.total += 1;
                (first, last) = (first.min(x), last.max(x));
            }
        }
        let width = view.width.max(1);
        let scale = |x: f64| if view.log_x { x.ln() } else { x };
        let begin = scale(first);
        let per_x = width as f64 / (scale(last) - begin);
        let few = curve.total <= 2 * width;
        // `as` saturates, and NaN becomes 0: points at one x share a column.
        let column = |x: f64| (((scale(x) - begin) * per_x) as usize).min(width - 1);
        let mut average = MovingAverage::new(view.smoothing);
        let mut bucket: Option<Bucket> = None;
        for (x, y) in (0..len).map(point) {
            let smooth = average.push(y);
            if !inside(x) {
                continue;
            }
            if !y.is_finite() {
                if curve.not_finite.len() < MAX_NOT_FINITE {
                    curve.not_finite.push(x);
                }
            } else if few {
                curve.raw.push((x, y));
                curve.smooth.push((x, smooth));
            } else {
                // Columns never go back, so that there are at most `width`, whatever x does.
                let column = bucket.as_ref().map_or(0, |b| b.column).max(column(x));
                match &mut bucket {
                    Some(b) if b.column == column => b.push((x, y), smooth),
                    _ => {
                        if let Some(b) = bucket.replace(Bucket::new(column, (x, y), smooth)) {
                            b.finish(&mut curve);
                        }
                    }
                }
            }
        }
        if let Some(b) = bucket {
            b.finish(&mut curve);
        }
        curve
    }
}

/// An exponential moving average without the bias of its initial value.
struct MovingAverage {
    weight: f64,
    sum: f64,
    power: f64,
}

impl MovingAverage {
    fn new(weight: f64) -> MovingAverage {
        // 1 would never move.
        let weight = if weight.is_finite() { weight.clamp(0.0, 0.9999) } else { 0.0 };
        MovingAverage { weight, sum: 0.0, power: 1.0 }
    }

    /// Adds a value, and returns the average. A value that is not finite leaves it as it was.
    fn push(&mut self, value: f64) -> f64 {
        if value.is_finite() {
            self.sum = self.weight * self.sum + (1.0 - self.weight) * value;
            self.power *= self.weight;
            if self.power < f64::EPSILON / 4.0 {
                // 1 - power is 1 from here on. Subnormal numbers would take many times as long.
                self.power = 0.0;
            }
        }
        self.sum / (1.0 - self.power)
    }
}

/// The points of one pixel column.
struct Bucket {
    column: usize,
    min: (f64, f64),
    max: (f64, f64),
    smooth: (f64, f64),
}

impl Bucket {
    fn new(column: usize, point: (f64, f64), smooth: f64) -> Bucket {
        Bucket { column, min: point, max: point, smooth: (point.0, smooth) }
    }

    fn push(&mut self, point: (f64, f64), smooth: f64) {
        if point.1 < self.min.1 {
            self.min = point;
        }
        if point.1 > self.max.1 {
            self.max = point;
        }
        self.smooth = (point.0, smooth);
    }

    fn finish(self, curve: &mut Curve) {
        let (a, b) = if self.min.0 <= self.max.0 { (self.min, self.max) } else { (self.max, self.min) };
        curve.raw.push(a);
        if a != b {
            curve.raw.push(b);
        }
        curve.smooth.push(self.smooth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: View = View { smoothing: 0.0, width: 10, range: None, log_x: false };

    #[test]
    fn few_points_stay_as_they_are() {
        let points = [(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)];
        let curve = Curve::new(3, |i| points[i], &PLAIN);
        assert_eq!(curve.raw, [(0.0, 1.0), (2.0, 3.0)]);
        assert_eq!((curve.smooth.len(), &curve.not_finite[..], curve.total), (2, &[1.0][..], 3));
    }

    #[test]
    fn a_moving_average_has_no_bias() {
        let view = View { smoothing: 0.9, ..PLAIN };
        let constant = Curve::new(15, |i| (i as f64, 4.0), &view);
        assert!(constant.smooth.iter().all(|p| (p.1 - 4.0).abs() < 1e-12), "{:?}", constant.smooth);
        let two = Curve::new(2, |i| (i as f64, i as f64 + 1.0), &view);
        // (0.9 * 1 + 2) / (0.9 + 1)
        assert!((two.smooth[1].1 - 2.9 / 1.9).abs() < 1e-12);
    }

    #[test]
    fn the_average_of_a_zoomed_curve_is_that_of_the_whole() {
        let point = |i| (i as f64, (i % 3) as f64);
        let view = View { smoothing: 0.8, width: 100, ..PLAIN };
        let whole = Curve::new(20, point, &view);
        let zoomed = Curve::new(20, point, &View { range: Some((10.0, 12.0)), ..view });
        assert_eq!(zoomed.smooth, whole.smooth[10..13]);
        assert_eq!(zoomed.total, 3);
    }

    #[test]
    fn points_at_one_place_or_in_no_order_are_few() {
        for x in [|_| 5.0, |i| -(i as f64), |i: usize| (i * 7919 % 1000) as f64] {
            let curve = Curve::new(10_000, |i| (x(i), i as f64), &PLAIN);
            assert!(curve.smooth.len() <= 10 && curve.total == 10_000);
            assert_eq!(curve.raw.iter().map(|p| p.1).fold(0.0, f64::max), 9999.0);
        }
    }

    proptest! {
        #[test]
        fn every_spike_survives(
            values in prop::collection::vec(-1e3f64..1e3, 100..2000),
            width in 1usize..40,
            log_x: bool,
        ) {
            let point = |i: usize| (i as f64 + 1.0, values[i]);
            let curve = Curve::new(values.len(), point, &View { width, log_x, ..PLAIN });
            prop_assert!(curve.raw.len() <= 2 * width || curve.raw.len() == values.len());
            prop_assert!(curve.raw.is_sorted_by(|a, b| a.0 < b.0));
            let low = |points: &mut dyn Iterator<Item = f64>| points.fold(f64::INFINITY, f64::min);
            let high = |points: &mut dyn Iterator<Item = f64>| points.fold(f64::NEG_INFINITY, f64::max);
            prop_assert_eq!(low(&mut curve.raw.iter().map(|p| p.1)), low(&mut values.iter().copied()));
            prop_assert_eq!(high(&mut curve.raw.iter().map(|p| p.1)), high(&mut values.iter().copied()));
            for &(x, y) in &curve.raw {
                prop_assert_eq!(values[x as usize - 1], y);
            }
        }
    }
}
