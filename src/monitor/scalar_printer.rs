//! Logs scalars.

use super::number::{from_json, to_json};
use super::{Class, Moment, Monitor, Start};
use crate::graph::NamePattern;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tensorpack_tensor::Result;

/// Logs scalars after each epoch as a table, sorted by name: the value now, the best so far and the
/// epoch it is from, with five significant digits.
///
/// Whether lower or higher is better depends on a word in the name: lower for `cost`, `loss`,
/// `error` and the like, higher for `accuracy`, `precision`, `score` and the like. Other statistics,
/// and those that depend on the clock, have no best value.
#[derive(Debug)]
pub struct ScalarPrinter {
    each_step: bool,
    each_epoch: bool,
    whitelist: Option<Vec<NamePattern>>,
    blacklist: Vec<NamePattern>,
    pending: BTreeMap<String, f64>,
    /// The best value of each statistic at the end of an epoch, and that epoch.
    best: BTreeMap<String, (f64, u64)>,
    /// The names of statistics that depend on the clock.
    timings: BTreeSet<String>,
}

impl Default for ScalarPrinter {
    fn default() -> ScalarPrinter {
        ScalarPrinter {
            each_step: false,
            each_epoch: true,
            whitelist: None,
            blacklist: Vec::new(),
            pending: BTreeMap::new(),
            best: BTreeMap::new(),
            timings: BTreeSet::new(),
        }
    }
}

impl ScalarPrinter {
    /// Logs all scalars after each epoch.
    pub fn new() -> ScalarPrinter {
        ScalarPrinter::default()
    }

    /// Logs after each step, too. The last step of an epoch is logged with the epoch.
    #[must_use]
    #[doc(alias = "enable_step")]
    pub fn each_step(self) -> ScalarPrinter {
        ScalarPrinter { each_step: true, ..self }
    }

    /// Does not log after each epoch. With [`ScalarPrinter::each_step`] the last step of an epoch is
    /// still logged.
    #[must_use]
    #[doc(alias = "each_epoch")]
    #[doc(alias = "enable_epoch")]
    pub fn no_each_epoch(self) -> ScalarPrinter {
        ScalarPrinter { each_epoch: false, ..self }
    }

    /// Logs only names that match one of these [patterns](NamePattern) as a whole.
    #[must_use]
    #[track_caller]
    pub fn whitelist<'a>(self, patterns: impl IntoIterator<Item = &'a str>) -> ScalarPrinter {
        ScalarPrinter { whitelist: Some(NamePattern::list(patterns)), ..self }
    }

    /// Skips names that match one of these [patterns](NamePattern) as a whole.
    #[must_use]
    #[track_caller]
    pub fn blacklist<'a>(self, patterns: impl IntoIterator<Item = &'a str>) -> ScalarPrinter {
        ScalarPrinter { blacklist: NamePattern::list(patterns), ..self }
    }

    fn logs(&self, name: &str) -> bool {
        let found = |patterns: &[NamePattern]| patterns.iter().any(|p| p.matches(name));
        self.whitelist.as_deref().is_none_or(found) && !found(&self.blacklist)
    }

    /// Returns the lines to log since the last call.
    fn take_lines(&mut self) -> Vec<String> {
        let line = |(name, value): (String, f64)| format!("{}: {}", printable(&name), significant(value));
        std::mem::take(&mut self.pending).into_iter().map(line).collect()
    }

    /// Returns the table of an epoch, with the statistics since the last call. Empty without any.
    fn take_table(&mut self, epoch: u64) -> String {
        let pending = std::mem::take(&mut self.pending);
        let mut rows = vec![["statistic", "now", "best", "at epoch"].map(String::from)];
        for (name, now) in pending {
            let direction = if self.timings.contains(&name) { None } else { Direction::from_name(&name) };
            let best = direction.map(|direction| {
                let best = self.best.entry(name.clone()).or_insert((now, epoch));
                // The best value is not one that is not a number.
                if direction.is_better(now, best.0) || best.0.is_nan() {
                    *best = (now, epoch);
                }
                *best
            });
            let (best, at) = best.map_or_else(Default::default, |(b, at)| (significant(b), at.to_string()));
            rows.push([printable(&name), significant(now), best, at]);
        }
        if rows.len() == 1 {
            return String::new();
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let [name, now, best, at] = [0, 1, 2, 3].map(width);
        let line = |[a, b, c, d]: &[String; 4]| format!("\n  {a:name$}  {b:>now$}  {c:>best$}  {d:>at$}");
        rows.iter().map(line).collect()
    }

    fn print(&mut self) {
        for line in self.take_lines() {
            log::info!("{line}");
        }
    }
}

impl Monitor for ScalarPrinter {
    fn name(&self) -> String {
        "ScalarPrinter".into()
    }

    fn start(&mut self, start: &Start<'_>) -> Result<()> {
        let best = start.resumed.and_then(|state| state["best"].as_object());
        for (name, saved) in best.into_iter().flatten() {
            if let (Some(value), Some(epoch)) = (from_json(&saved[0]), saved[1].as_u64()) {
                self.best.insert(name.clone(), (value, epoch));
            }
        }
        self.whitelist.iter().flatten().chain(&self.blacklist).try_for_each(NamePattern::check_syntax)
    }

    fn state(&self) -> Value {
        let best =
            self.best.iter().map(|(name, (value, epoch))| (name.clone(), json!([to_json(*value), epoch])));
        json!({"best": best.collect::<Map<_, _>>()})
    }

    fn scalar(&mut self, name: &str, value: f64, class: Class, _: Moment) -> Result<()> {
        if self.logs(name) {
            if class == Class::WallClock && !self.timings.contains(name) {
                self.timings.insert(name.to_string());
            }
            self.pending.insert(name.to_string(), value);
        }
        Ok(())
    }

    fn end_step(&mut self, _: Moment) -> Result<()> {
        if self.each_step {
            self.print();
        }
        Ok(())
    }

    fn end_epoch(&mut self, at: Moment) -> Result<()> {
        if self.each_epoch {
            let table = self.take_table(at.epoch_num);
            if !table.is_empty() {
                log::info!("statistics of epoch {}{table}", at.epoch_num);
            }
        } else if self.each_step {
            self.print();
        }
        Ok(())
    }
}

/// Which values of a statistic are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Lower,
    Higher,
}

impl Direction {
    /// Guesses the direction from the words of a name, such as `validation_error`. `None` if they
    /// do not tell.
    fn from_name(name: &str) -> Option<Direction> {
        const LOWER: &[&str] = &[
            "cost",
            "loss",
            "error",
            "err",
            "perplexity",
            "ppl",
            "mse",
            "rmse",
            "mae",
            "nll",
            "bpc",
            "wer",
            "cer",
            "fid",
        ];
        const HIGHER: &[&str] = &[
            "accuracy",
            "acc",
            "precision",
            "recall",
            "f1",
            "auc",
            "iou",
            "map",
            "psnr",
            "ssim",
            "bleu",
            "score",
            "reward",
        ];
        let name = name.to_lowercase();
        let has = |words: &[&str]| name.split(|c: char| !c.is_alphanumeric()).any(|w| words.contains(&w));
        match (has(LOWER), has(HIGHER)) {
            (true, _) => Some(Direction::Lower),
            (false, true) => Some(Direction::Higher),
            (false, false) => None,
        }
    }

    fn is_better(self, now: f64, best: f64) -> bool {
        match self {
            Direction::Lower => now < best,
            Direction::Higher => now > best,
        }
    }
}

/// Escapes characters that would move the cursor or change colors.
fn printable(name: &str) -> String {
    name.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Formats a float like C's `%.5g`: five significant digits without trailing zeros, in scientific
/// notation if it is very large or very small.
fn significant(x: f64) -> String {
    const DIGITS: usize = 5;
    if !x.is_finite() {
        return x.to_string();
    }
    let scientific = format!("{x:.*e}", DIGITS - 1);
    // Rounding may add a digit, so the exponent is parsed from the result.
    let (digits, exponent) = scientific.split_once('e').expect("scientific notation has an e");
    let power: i32 = exponent.parse().expect("the exponent is an integer");
    let trimmed = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => digits.to_string(),
    };
    if (-4..DIGITS as i32).contains(&power) {
        trimmed(&format!("{x:.*}", (DIGITS as i32 - 1 - power) as usize))
    } else {
        let sign = if power < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trimmed(digits), power.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_tensor::ErrorKind;

    #[test]
    fn five_significant_digits() {
        // As Python's '%.5g' prints them.
        for (x, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (123456.0, "1.2346e+05"),
            (99999.5, "1e+05"),
            (12345.4, "12345"),
            (-2.5, "-2.5"),
            (0.000123456, "0.00012346"),
            (0.00001234567, "1.2346e-05"),
            (100.0, "100"),
            (1e100, "1e+100"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(significant(x), text);
        }
    }

    fn printer(p: ScalarPrinter) -> ScalarPrinter {
        let mut p = p;
        p.start(&Start { logdir: None, resumed: None, at: Moment::default() }).unwrap();
        for (name, value) in [("val/error", 0.25), ("cost", 1.5), ("val/cost", 2.0)] {
            p.scalar(name, value, Class::Deterministic, Moment::default()).unwrap();
        }
        p
    }

    #[test]
    fn lines_are_sorted_and_filtered() {
        let lines = |p| printer(p).take_lines();
        assert_eq!(lines(ScalarPrinter::new()), ["cost: 1.5", "val/cost: 2", "val/error: 0.25"]);
        assert_eq!(
            lines(ScalarPrinter::new().whitelist(["cost", ".*error"])),
            ["cost: 1.5", "val/error: 0.25"]
        );
        // A pattern must match a whole name.
        assert_eq!(lines(ScalarPrinter::new().blacklist(["cost"])), ["val/cost: 2", "val/error: 0.25"]);
        assert_eq!(lines(ScalarPrinter::new().blacklist([".*cost"])), ["val/error: 0.25"]);
        assert_eq!(lines(ScalarPrinter::new().whitelist([""; 0])), [""; 0]);
        let bad = ScalarPrinter::new().blacklist(["("]).start(&Start {
            logdir: None,
            resumed: None,
            at: Moment::default(),
        });
        let e = bad.unwrap_err();
        assert_eq!((e.kind(), e.site().map(|s| s.file)), (ErrorKind::Name, Some(file!())), "{e}");
    }

    #[test]
    fn the_table_has_the_best_value_and_its_epoch() {
        let put = |p: &mut ScalarPrinter, values: [f64; 3]| {
            let classes = [Class::Deterministic, Class::Deterministic, Class::WallClock];
            for ((name, value), class) in ["cost", "acc", "time_error"].into_iter().zip(values).zip(classes) {
                p.scalar(name, value, class, Moment::default()).unwrap();
            }
        };
        let mut p = ScalarPrinter::new();
        put(&mut p, [1.0, f64::NAN, 3.0]);
        p.take_table(1);
        put(&mut p, [0.5, 0.25, 2.0]);
        p.take_table(2);
        // A resumed run knows the best values.
        let state = p.state();
        let mut p = ScalarPrinter::new();
        p.start(&Start { logdir: None, resumed: Some(&state), at: Moment::default() }).unwrap();
        put(&mut p, [0.75, 0.125, 1.0]);
        let expected = [
            "",
            "  statistic     now  best  at epoch",
            "  acc         0.125  0.25         2",
            "  cost         0.75   0.5         2",
            "  time_error      1                ",
        ];
        assert_eq!(p.take_table(3).split('\n').collect::<Vec<_>>(), expected);
        assert_eq!(p.take_table(4), "", "nothing was reported");
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(printable("größe\u{1b}[31m\n"), "größe\\u{1b}[31m\\n");
    }

    #[test]
    fn names_tell_what_is_better() {
        for (name, direction) in [
            ("validation_error", Some(Direction::Lower)),
            ("tower/Cost", Some(Direction::Lower)),
            ("accuracy-top1", Some(Direction::Higher)),
            ("score_loss", Some(Direction::Lower)),
            ("learning_rate", None),
            ("lossy", None),
        ] {
            assert_eq!(Direction::from_name(name), direction, "{name}");
        }
    }

    #[test]
    fn the_end_of_an_epoch_logs_its_last_step() {
        let mut p = printer(ScalarPrinter::new().each_step());
        p.end_step(Moment::default()).unwrap();
        assert!(p.take_lines().is_empty());
        let mut p = printer(ScalarPrinter::new());
        p.end_step(Moment::default()).unwrap();
        assert_eq!(p.pending.len(), 3);
        p.end_epoch(Moment::default()).unwrap();
        assert!(p.pending.is_empty());
    }
}
