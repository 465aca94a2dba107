//! `tensorpack plot`: draws statistics of runs as an SVG or PNG file.

use crate::png_picture::PngPicture;
use crate::run_dir::{Point, Run};
use crate::runs::FormatArgs;
use crate::table::json_number;
use clap::Args;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters_backend::DrawingErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensorpack::serde_json::{Value, json};
use tensorpack::{Error, ErrorKind, Result};

#[derive(Args)]
pub(crate) struct PlotArgs {
    /// Directories of runs, or directories with runs below them.
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// The statistics to draw.
    #[arg(short, long = "statistic", value_name = "NAME", required = true)]
    statistics: Vec<String>,
    /// The .svg or .png file to write. With --json it may be left out.
    #[arg(short, long, value_name = "FILE", required_unless_present = "json")]
    output: Option<PathBuf>,
    /// Draw the values of steps, even of statistics that have one for each epoch.
    #[arg(long)]
    steps: bool,
    /// Draw the values on a logarithmic axis.
    #[arg(long)]
    log: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// A statistic of a run.
struct Curve {
    run: String,
    statistic: String,
    /// How the legend calls it.
    label: String,
    /// All values.
    values: Vec<Point>,
    /// What is drawn of them.
    points: Vec<(f64, f64)>,
    /// The number of values that have no place on the axes.
    not_drawn: usize,
}

/// The size of a plot. PNG files have twice as many pixels in each direction.
const SIZE: (u32, u32) = (900, 540);

/// The largest value that is drawn.
const MAX: f64 = 1e300;

/// The largest number of points of a curve that are drawn.
const MAX_POINTS: usize = 2000;

/// The numbers of ticks of the axis of values, at least and at most.
const LEAST_TICKS: usize = 4;
const MOST_TICKS: usize = 10;
/// Evenly spaced ticks are drawn between this power of ten and its reciprocal.
const LARGEST_POWER: f64 = 280.0;

impl PlotArgs {
    /// Writes the file. Returns what to print.
    pub(crate) fn run(&self) -> Result<String> {
        let extension = self.output.as_ref().map(|file| file.extension().unwrap_or_default());
        let extension = extension.map(|extension| extension.to_ascii_lowercase());
        if let (Some(file), Some(extension)) = (&self.output, &extension)
            && extension != "svg"
            && extension != "png"
        {
            let why = format!("{} is no .svg or .png file", file.display());
            return Err(
                Error::new(ErrorKind::Unsupported, why).note("name a file that ends in .svg or in .png")
            );
        }
        let curves = self.curves(&Run::find(&self.dirs)?)?;
        if let Some(file) = &self.output {
            let drawn = match extension.is_some_and(|extension| extension == "png") {
                true => {
                    self.draw(&curves, &PngPicture::new(file.clone(), SIZE).into_drawing_area()).map_err(text)
                }
                false => self.draw(&curves, &SVGBackend::new(file, SIZE).into_drawing_area()).map_err(text),
            };
            drawn.map_err(|e| Error::new(ErrorKind::Io, e).within(file.display()))?;
        }
        match &self.output {
            _ if self.format.json => Ok(format!("{:#}\n", self.json(&curves))),
            Some(file) => Ok(written(&curves, file)),
            None => Ok(String::new()),
        }
    }

    /// Returns all values of the curves.
    fn json(&self, curves: &[Curve]) -> Value {
        let point = |p: &Point| json!([p.step, json_number(p.value)]);
        let curve = |c: &Curve| {
            json!({
                "run": c.run,
                "statistic": c.statistic,
                "points": c.values.iter().map(point).collect::<Value>(),
            })
        };
        let output = self.output.as_ref().map(|file| file.display().to_string());
        json!({"output": output, "curves": curves.iter().map(curve).collect::<Value>()})
    }

    /// Returns the curve of each statistic of each run that has it.
    fn curves(&self, runs: &[Run]) -> Result<Vec<Curve>> {
        let mut curves: Vec<Curve> = Vec::new();
        for name in &self.statistics {
            let before = curves.len();
            for run in runs {
                let (of_epochs, of_steps) = (run.statistic(name), run.curve(name));
                let values = if of_epochs.is_empty() || (self.steps && !of_steps.is_empty()) {
                    of_steps
                } else {
                    of_epochs
                };
                if !values.is_empty() {
                    let label = match (runs.len(), self.statistics.len()) {
                        (1, _) => name.clone(),
                        (_, 1) => run.name(),
                        _ => format!("{} {name}", run.name()),
                    };
                    let points = drawable(&values, self.log);
                    let not_drawn = values.len() - points.len();
                    let (run, statistic, points) = (run.name(), name.clone(), thinned(&points));
                    curves.push(Curve { run, statistic, label, values, points, not_drawn });
                }
            }
            if curves.len() == before {
                let mut known: Vec<String> =
                    runs.iter().flat_map(|run| [run.names(), run.curve_names()].concat()).collect();
                known.sort();
                known.dedup();
                let why = format!("no run has values of the statistic {name:?}");
                let known = match known.is_empty() {
                    true => "they have no statistics yet".into(),
                    false => format!("they have: {}", known.join(", ")),
                };
                return Err(Error::new(ErrorKind::Name, why).note(known));
            }
            if self.output.is_some() && curves[before..].iter().all(|curve| curve.points.is_empty()) {
                let count: usize = curves[before..].iter().map(|curve| curve.values.len()).sum();
                let what = if self.log { "positive and finite" } else { "finite" };
                let why = format!("{name:?} cannot be drawn: none of its {count} values is {what}");
                return Err(Error::argument(why));
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
            .build_cartesian_2d(x, ValueAxis::new(y, self.log))?;
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

/// Says what was written.
fn written(curves: &[Curve], file: &Path) -> String {
    let points: usize = curves.iter().map(|curve| curve.points.len()).sum();
    let not_drawn: usize = curves.iter().map(|curve| curve.not_drawn).sum();
    let [curves, points] = [(curves.len(), "curve"), (points, "point")]
        .map(|(n, what)| format!("{n} {what}{}", if n == 1 { "" } else { "s" }));
    let left_out = match not_drawn {
        0 => String::new(),
        1 => "; 1 value cannot be drawn".into(),
        n => format!("; {n} values cannot be drawn"),
    };
    format!("wrote {curves} of {points} to {}{left_out}\n", file.display())
}

/// The axis of values, or of their logarithms.
struct ValueAxis {
    range: RangedCoordf64,
    ticks: Vec<f64>,
}

impl ValueAxis {
    fn new(range: Range<f64>, log: bool) -> ValueAxis {
        let coordinates = RangedCoordf64::from(range.clone());
        let ticks = if log { log_ticks(&range) } else { coordinates.key_points(MOST_TICKS) };
        ValueAxis { range: coordinates, ticks }
    }
}

impl Ranged for ValueAxis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        self.range.map(value, pixels)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.range()
    }
}

/// Returns the logarithms of round numbers in a range of logarithms: powers of ten, or multiples of them if
/// these are few, or evenly spaced numbers in a narrow range.
fn log_ticks(range: &Range<f64>) -> Vec<f64> {
    let powers = range.start.floor() as i32..=range.end.floor() as i32;
    let apart = powers.clone().count().div_ceil(MOST_TICKS);
    let mut ticks = Vec::new();
    for multiples in [&[1.0][..], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]] {
        let of_power = |power: i32| multiples.iter().map(move |m: &f64| m.log10() + f64::from(power));
        ticks = powers.clone().step_by(apart).flat_map(of_power).filter(|t| range.contains(t)).collect();
        if ticks.len() >= LEAST_TICKS {
            return ticks;
        }
    }
    // Beyond these, numbers or their differences are not floats.
    if !(-LARGEST_POWER..LARGEST_POWER).contains(&range.start) || range.end >= LARGEST_POWER {
        return ticks;
    }
    let values = RangedCoordf64::from(10f64.powf(range.start)..10f64.powf(range.end)).key_points(MOST_TICKS);
    values.into_iter().map(f64::log10).filter(|tick| range.contains(tick)).collect()
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
    fn ticks_of_logarithmic_axes_are_round_numbers() {
        let ticks = |low: f64, high: f64| -> Vec<f64> {
            let ticks = log_ticks(&(low.log10()..high.log10()));
            ticks.into_iter().map(|tick| (10f64.powf(tick) * 1e6).round() / 1e6).collect()
        };
        assert_eq!(ticks(0.0005, 20.0), [0.001, 0.01, 0.1, 1.0, 10.0]);
        assert_eq!(ticks(0.05, 3.0), [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]);
        assert_eq!(ticks(80.0, 290.0), [80.0, 100.0, 150.0, 200.0]);
        assert_eq!(ticks(82.0, 84.6), [82.0, 82.5, 83.0, 83.5, 84.0, 84.5]);
        // The smallest and the largest floats.
        for range in [-323.0..308.25, 308.24..308.26, -322.9..-322.8] {
            assert!(log_ticks(&range).len() <= MOST_TICKS, "{range:?}");
        }
    }

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
