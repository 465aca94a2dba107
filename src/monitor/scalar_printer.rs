//! Logs scalars.

use super::{Class, Moment, Monitor, Start};
use crate::graph::NamePattern;
use std::collections::BTreeMap;
use tensorpack_tensor::Result;

/// Logs scalars after each epoch as `name: value`, with five significant digits, sorted by name.
#[derive(Debug)]
pub struct ScalarPrinter {
    each_step: bool,
    each_epoch: bool,
    whitelist: Option<Vec<NamePattern>>,
    blacklist: Vec<NamePattern>,
    pending: BTreeMap<String, f64>,
}

impl Default for ScalarPrinter {
    fn default() -> ScalarPrinter {
        ScalarPrinter {
            each_step: false,
            each_epoch: true,
            whitelist: None,
            blacklist: Vec::new(),
            pending: BTreeMap::new(),
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
        let line = |(name, value): (String, f64)| format!("{name}: {}", significant(value));
        std::mem::take(&mut self.pending).into_iter().map(line).collect()
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

    fn start(&mut self, _: &Start<'_>) -> Result<()> {
        self.whitelist.iter().flatten().chain(&self.blacklist).try_for_each(NamePattern::check_syntax)
    }

    fn scalar(&mut self, name: &str, value: f64, _: Class, _: Moment) -> Result<()> {
        if self.logs(name) {
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

    fn end_epoch(&mut self, _: Moment) -> Result<()> {
        if self.each_epoch || self.each_step {
            self.print();
        }
        Ok(())
    }
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
