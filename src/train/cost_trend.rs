//! The recent costs, which tell a diverging run from a bad batch.

use crate::runtime::FetchHandle;
use tensorpack_tensor::{Error, ErrorKind};

/// The number of steps that are remembered.
const STEPS: usize = 64;
/// The growth, as a factor, that counts as divergence.
const GROWTH: f64 = 10.0;

/// The costs of the last steps, as far as a callback fetches the cost anyway.
pub(super) struct CostTrend {
    /// The fetch of the cost, if there is one.
    pub(super) fetched: Option<FetchHandle>,
    costs: [f64; STEPS],
    count: usize,
}

impl CostTrend {
    pub(super) fn new() -> CostTrend {
        CostTrend { fetched: None, costs: [0.0; STEPS], count: 0 }
    }

    /// Adds the cost of the next step.
    pub(super) fn add(&mut self, cost: f64) {
        self.costs[self.count % STEPS] = cost;
        self.count += 1;
    }

    /// Adds a note to the error of a step that is not finite, if the costs before it grew.
    pub(super) fn explain(&self, e: Error) -> Error {
        let recent: Vec<f64> =
            (self.count.saturating_sub(STEPS)..self.count).map(|i| self.costs[i % STEPS]).collect();
        let lowest = recent.iter().enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
        match (lowest, recent.last()) {
            (Some((at, &low)), Some(&last))
                if e.kind() == ErrorKind::NotFinite && last > GROWTH * low.abs() =>
            {
                let steps = recent.len() - 1 - at;
                let grew = format!("the cost grew from {low:.4e} to {last:.4e} in {steps} steps before");
                e.note(format!("{grew}: try a smaller learning rate"))
            }
            _ => e,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(costs: impl IntoIterator<Item = f64>) -> String {
        let mut trend = CostTrend::new();
        costs.into_iter().for_each(|cost| trend.add(cost));
        trend.explain(Error::new(ErrorKind::NotFinite, "bad")).to_string()
    }

    #[test]
    fn only_growing_costs_suggest_a_smaller_rate() {
        let text = explained([3.0, 2.0, 5.0, 40.0, 3000.0]);
        assert!(text.contains("from 2.0000e0 to 3.0000e3 in 3 steps"), "{text}");
        assert!(text.contains("learning rate"), "{text}");
        for steady in [vec![], vec![1.0], vec![3.0, 2.0, 1.0, 1.5], vec![-5.0, -6.0, 7.0]] {
            assert_eq!(explained(steady), "bad");
        }
    }

    #[test]
    fn old_costs_are_forgotten() {
        let steady = |n: usize| std::iter::repeat_n(50.0, n);
        assert!(explained(std::iter::once(0.1).chain(steady(STEPS - 1))).contains("in 63 steps"));
        assert_eq!(explained(std::iter::once(0.1).chain(steady(STEPS))), "bad");
    }

    #[test]
    fn other_errors_stay_as_they_are() {
        let mut trend = CostTrend::new();
        [1.0, 1e9].into_iter().for_each(|cost| trend.add(cost));
        assert_eq!(trend.explain(Error::argument("bad")).to_string(), "bad");
    }
}
