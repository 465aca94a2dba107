//! `tensorpack plot`: draws statistics of runs as an SVG or PNG file.

use crate::png_picture::PngPicture;
use crate::run_dir::{Point, Run};
use clap::Args;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters_backend::DrawingErrorKind;
use std::path::PathBuf;
use tensorpack::{Error, ErrorKind, Result};

#[derive(Args)]
pub(crate) struct PlotArgs {
    /// Directories of runs, or directories with runs below them.
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// The statistics to draw.
    #[arg(short, long = "statistic", value_name = "NAME", required = true)]
    statistics: Vec<String>,
    /// The .svg or .png file to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Draw the values of steps, even of statistics that have one for each epoch.
    #[arg(long)]
    steps: bool,
    /// Draw the values on a logarithmic axis.
    #[arg(long)]
    log: bool,
}

/// A curve, with its label.
struct Curve {
    label: String,
    points: Vec<(f64, f64)>,
}

/// The size of a plot. PNG files have twice as many pixels in each direction.
const SIZE: (u32, u32) = (900, 540);

/// The largest value that is drawn.
const MAX: f64 = 1e300;

/// The largest number of points of a curve that are drawn.
const MAX_POINTS: usize = 2000;

impl PlotArgs {
    /// Writes the file. Returns what was written.
    pub(crate) fn run(&self) -> Result<String> {
        let extension = self.output.extension().unwrap_or_default().to_ascii_lowercase();
        if extension != "svg" && extension != "png" {
            let why = format!("{} is no .svg or .png file", self.output.display());
            return Err(
                Error::new(ErrorKind::Unsupported, why).note("name a file that ends in .svg or in .png")
            );
        }
        let curves = self.curves(&Run::find(&self.dirs)?)?;
        let drawn = match extension == "png" {
            true => self
                .draw(&curves, &PngPicture::new(self.output.clone(), SIZE).into_drawing_area())
                .map_err(text),
            false => {
                self.draw(&curves, &SVGBackend::new(&self.output, SIZE).into_drawing_area()).map_err(text)
            }
        };
        drawn.map_err(|e| Error::new(ErrorKind::Io, e).within(self.output.display()))?;
        let points: usize = curves.iter().map(|curve| curve.points.len()).sum();
        let [curves, points] = [(curves.len(), "curve"), (points, "point")]
            .map(|(n, what)| format!("{n} {what}{}", if n == 1 { "" } else { "s" }));
        Ok(format!("wrote {curves} of {points} to {}\n", self.output.display()))
    }

    /// Returns the curve of each statistic of each run that has it.
    fn curves(&self, runs: &[Run]) -> Result<Vec<Curve>> {
        let mut curves = Vec::new();
        for name in &self.statistics {
            let before = curves.len();
            let mut values = 0;
            for run in runs {
                let (of_epochs, of_steps) = (run.statistic(name), run.curve(name));
                let points = if of_epochs.is_empty() || (self.steps && !of_steps.is_empty()) {
                    of_steps
                } else {
                    of_epochs
                };
                values += points.len();
                let points = thinned(&drawable(&points, self.log));
                if !points.is_empty() {
                    let label = match (runs.len(), self.statistics.len()) {
                        (1, _) => name.clone(),
                        (_, 1) => run.name(),
                        _ => format!("{} {name}", run.name()),
                    };
                    curves.push(Curve { label, points });
                }
            }
            if curves.len() == before {
                let mut known: Vec<String> =
                    runs.iter().flat_map(|run| [run.names(), run.curve_names()].concat()).collect();
                known.sort();
                known.dedup();
                if values > 0 {
                    let what = if self.log { "positive and finite" } else { "finite" };
                    let why = format!("{name:?} cannot be drawn: none of its {values} values is {what}");
                    return Err(Error::argument(why));
                }
                let why = format!("no run has values of the statistic {name:?}");
                let known = match known.is_empty() {
                    true => "they have no statistics yet".into(),
                    false => format!("they have: {}", known.join(", ")),
                };
                return Err(Error::new(ErrorKind::Name, why).note(known));
            }
        }
        Ok(curves)
    }

    fn draw<B: DrawingBackend>(
        &self,
        curves: &[Curve],
        root: &DrawingArea<B, Shift>,
    ) -> std::result::Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let all = || curves.iter().flat_map(|curve| &curve.points);
        let range = |part: fn(&(f64, f64)) -> f64| {
            let low = all().map(part).fold(f64::INFINITY, f64::min);
            let high = all().map(part).fold(f64::NEG_INFINITY, f64::max);
            // A constant has a range of its own, so that it is drawn in the middle.
            let margin = if low == high { low.abs().max(1.0) * 0.5 } else { (high - low) * 0.02 };
            low - margin..high + margin
        };
        let (x, y) = (range(|p| p.0), range(|p| p.1));
        root.fill(&WHITE)?;
        let title = self.statistics.join(", ");
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .caption(title, ("sans-serif", 18))
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(x, y)?;
        let value = |y: &f64| short(&crate::table::number(if self.log { 10f64.powf(*y) } else { *y }));
        let step = |x: &f64| x.to_string();
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(WHITE)
            .x_desc("step")
            .x_label_formatter(&step)
            .y_label_formatter(&value)
            .draw()?;
        for (i, curve) in curves.iter().enumerate() {
            let color = Palette99::pick(i).to_rgba();
            let line = LineSeries::new(curve.points.iter().copied(), color.stroke_width(2));
            chart
                .draw_series(line)?
                .label(&curve.label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        // A line of one point is invisible.
        for (i, curve) in curves.iter().enumerate().filter(|(_, curve)| curve.points.len() == 1) {
            let dot = Circle::new(curve.points[0], 4, Palette99::pick(i).filled());
            chart.draw_series([dot])?;
        }
        if curves.len() > 1 {
            chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
        }
        root.present()?;
        Ok(())
    }
}

/// Drops zeros at the end of a fraction, which ticks of an axis have.
fn short(number: &str) -> String {
    match number.contains('.') && !number.contains('e') {
        true => number.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => number.to_string(),
    }
}

/// Returns the reason of an error, without the names of plotters' layers.
fn text<E: std::error::Error + Send + Sync>(e: DrawingAreaErrorKind<E>) -> String {
    match e {
        DrawingAreaErrorKind::BackendError(DrawingErrorKind::DrawingError(e)) => e.to_string(),
        e => e.to_string(),
    }
}

/// Returns the steps and values that can be drawn, with the logarithms of values if `log`.
fn drawable(points: &[Point], log: bool) -> Vec<(f64, f64)> {
    // The range of all values must be finite, too.
    let place = |p: &Point| (p.step as f64, if log { p.value.log10() } else { p.value.clamp(-MAX, MAX) });
    let points = points.iter().filter(|p| p.value.is_finite());
    points.map(place).filter(|(_, value)| value.is_finite()).collect()
}

/// Returns at most [`MAX_POINTS`] points: of each group of neighbors the lowest and the highest.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }
    let mut kept = Vec::new();
    for group in points.chunks(points.len().div_ceil(MAX_POINTS / 2)) {
        let index = |pick: fn(f64, f64) -> bool| {
            (1..group.len()).fold(0, |best, i| if pick(group[i].1, group[best].1) { i } else { best })
        };
        let (low, high) = (index(|a, b| a < b), index(|a, b| a > b));
        kept.push(group[low.min(high)]);
        if low != high {
            kept.push(group[low.max(high)]);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_ticks_are_short() {
        for (number, expected) in
            [("0.800000", "0.8"), ("1.00000", "1"), ("100", "100"), ("1.20e-5", "1.20e-5")]
        {
            assert_eq!(short(number), expected);
        }
    }

    #[test]
    fn long_curves_keep_their_extremes() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), f64::from(i % 7))).collect();
        points[54_321].1 = 99.0;
        points[98_765].1 = -99.0;
        let kept = thinned(&points);
        assert!(kept.len() <= MAX_POINTS, "{}", kept.len());
        assert!(kept.contains(&(54_321.0, 99.0)) && kept.contains(&(98_765.0, -99.0)));
        assert!(kept.windows(2).all(|w| w[0].0 < w[1].0));
    }
}
