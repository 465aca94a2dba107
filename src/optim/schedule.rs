//! Learning-rate schedules.

use crate::graph::Tensor;
use std::f64::consts::PI;
use tensorpack_tensor::{DType, Error, Result, Site};

/// A value that is a function of the step, which starts at 0. It is computed in f64.
///
/// ```
/// # use tensorpack::optim::{Adam, Schedule};
/// let rate = Schedule::piecewise(0.1, [(32_000, 0.01), (48_000, 0.001)]).warm_up(400);
/// let optimizer = Adam::new(rate);
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    curve: Curve,
    warm_up: u64,
    site: Site,
}

#[derive(Clone, Debug)]
enum Curve {
    Piecewise { first: f64, later: Vec<(u64, f64)> },
    Exponential { first: f64, factor: f64, every: u64, staircase: bool },
    Polynomial { first: f64, last: f64, steps: u64, power: f64 },
    Cosine { first: f64, last: f64, steps: u64 },
    CosineRestarts { first: f64, last: f64, steps: u64, factor: u64 },
    OneCycle { highest: f64, steps: u64 },
}

/// The share of a one-cycle schedule in which the value rises.
const RISING: f64 = 0.3;

/// Half a period of a cosine from `first`, where `progress` is 0, to `last`, where it is 1.
fn cosine(progress: Tensor, first: f64, last: f64) -> Tensor {
    ((progress * PI).cos() + 1.0) * ((first - last) / 2.0) + last
}

impl Schedule {
    #[track_caller]
    fn new(curve: Curve) -> Schedule {
        Schedule { curve, warm_up: 0, site: Site::caller() }
    }

    /// Returns the schedule that is always `value`, for use with a warm-up.
    #[track_caller]
    pub fn constant(value: f64) -> Schedule {
        Schedule::piecewise(value, [])
    }

    /// Returns a piecewise constant schedule: `first`, then from each given step on the paired
    /// value.
    #[doc(alias = "ScheduledHyperParamSetter")]
    #[doc(alias = "MultiStepLR")]
    #[track_caller]
    pub fn piecewise(first: f64, later: impl Into<Vec<(u64, f64)>>) -> Schedule {
        Schedule::new(Curve::Piecewise { first, later: later.into() })
    }

    /// Returns an exponential decay: `first * factor^(step / every)`.
    #[track_caller]
    pub fn exponential(first: f64, factor: f64, every: u64) -> Schedule {
        Schedule::new(Curve::Exponential { first, factor, every, staircase: false })
    }

    /// Returns a staircase decay: `first * factor^floor(step / every)`, multiplied by `factor`
    /// every `every` steps.
    #[doc(alias = "exponential_decay")]
    #[doc(alias = "StepLR")]
    #[track_caller]
    pub fn staircase(first: f64, factor: f64, every: u64) -> Schedule {
        Schedule::new(Curve::Exponential { first, factor, every, staircase: true })
    }

    /// Returns a polynomial decay: `last + (first - last) * (1 - step / steps)^power`, and `last`
    /// from step `steps` on.
    #[doc(alias = "polynomial_decay")]
    #[track_caller]
    pub fn polynomial(first: f64, last: f64, steps: u64, power: f64) -> Schedule {
        Schedule::new(Curve::Polynomial { first, last, steps, power })
    }

    /// Returns a cosine decay: `last + (first - last) * (1 + cos(pi * step / steps)) / 2`, and
    /// `last` from step `steps` on (Loshchilov and Hutter, 2016).
    #[doc(alias = "CosineAnnealingLR")]
    #[track_caller]
    pub fn cosine(first: f64, last: f64, steps: u64) -> Schedule {
        Schedule::new(Curve::Cosine { first, last, steps })
    }

    /// Returns cosine decays with warm restarts (Loshchilov and Hutter, 2016): the first takes `steps`
    /// steps, and each of the next `factor` times as many as the one before.
    #[doc(alias = "CosineAnnealingWarmRestarts")]
    #[doc(alias = "SGDR")]
    #[track_caller]
    pub fn cosine_restarts(first: f64, last: f64, steps: u64, factor: u64) -> Schedule {
        Schedule::new(Curve::CosineRestarts { first, last, steps, factor })
    }

    /// Returns a cycle of `steps` steps (Smith and Topin, 2017), with the constants of PyTorch: a cosine
    /// from `highest / 25` to `highest` in the first 30 % of the steps, then one to `highest / 250,000`,
    /// which is kept.
    #[doc(alias = "OneCycleLR")]
    #[track_caller]
    pub fn one_cycle(highest: f64, steps: u64) -> Schedule {
        Schedule::new(Curve::OneCycle { highest, steps })
    }

    /// Adds a linear warm-up: multiplies the value by `(step + 1) / steps` in the first `steps`
    /// steps (Goyal et al., 2017). The warm-up does not delay the schedule.
    #[must_use]
    pub fn warm_up(self, steps: u64) -> Schedule {
        Schedule { warm_up: steps, ..self }
    }

    /// Returns the value at `step` as an f64 scalar. `step` is a scalar such as the
    /// [global step](crate::graph::Graph::global_step).
    #[track_caller]
    pub fn at(&self, step: &Tensor) -> Tensor {
        if let Err(e) = self.check() {
            return step.fail("Schedule", e.at(self.site));
        }
        let step = step.cast(DType::F64);
        let number = |v: f64| step.constant_like(v);
        // The completed fraction of `steps`, from 0 to 1.
        let progress = |steps: u64| step.minimum(&number(steps as f64)) / steps as f64;
        let value = match &self.curve {
            Curve::Piecewise { first, later } => {
                later.iter().fold(number(*first), |before, &(from, value)| {
                    step.greater_equal(&number(from as f64)).select(&number(value), &before)
                })
            }
            &Curve::Exponential { first, factor, every, staircase } => {
                let times = &step / every as f64;
                number(factor).pow(&if staircase { times.floor() } else { times }) * first
            }
            &Curve::Polynomial { first, last, steps, power } => {
                (1.0 - progress(steps)).pow(&number(power)) * (first - last) + last
            }
            &Curve::Cosine { first, last, steps } => cosine(progress(steps), first, last),
            &Curve::CosineRestarts { first, last, steps, factor: 1 } => {
                let cycles = &step / steps as f64;
                cosine(&cycles - cycles.floor(), first, last)
            }
            &Curve::CosineRestarts { first, last, steps, factor } => {
                // Cycle n begins at step `steps (factor^n - 1) / (factor - 1)`. The logarithm of an exact
                // power may be rounded down, by far less than a step changes it.
                let (steps, factor) = (steps as f64, factor as f64);
                let powers = &step * ((factor - 1.0) / steps) + 1.0;
                let cycle = (powers.log() / factor.ln() + 1e-11).floor();
                let length = number(factor).pow(&cycle);
                let begin = (&length - 1.0) * (steps / (factor - 1.0));
                cosine((&step - begin) / (length * steps), first, last)
            }
            &Curve::OneCycle { highest, steps } => {
                // The cycle's steps are 0 to `steps - 1`, and it turns between two of them.
                let turn = RISING * steps as f64 - 1.0;
                let fall = steps as f64 - 1.0 - turn;
                // Below 1, only step 0 may rise, and its progress is 0.
                let rising = cosine(&step / turn.max(1.0), highest / 25.0, highest);
                let falling = ((&step - turn) / fall).minimum(1.0);
                let falling = cosine(falling, highest, highest / 250_000.0);
                step.less_equal(&number(turn)).select(&rising, &falling)
            }
        };
        match self.warm_up {
            0 => value,
            steps => value * ((&step + 1.0) / steps as f64).minimum(1.0),
        }
    }

    /// Returns all values and factors of the curve.
    fn numbers(&self) -> Vec<f64> {
        match &self.curve {
            Curve::Piecewise { first, later } => {
                std::iter::once(*first).chain(later.iter().map(|(_, value)| *value)).collect()
            }
            Curve::Exponential { first, factor, .. } => vec![*first, *factor],
            Curve::Polynomial { first, last, power, .. } => vec![*first, *last, *power],
            Curve::Cosine { first, last, .. } | Curve::CosineRestarts { first, last, .. } => {
                vec![*first, *last]
            }
            Curve::OneCycle { highest, .. } => vec![*highest],
        }
    }

    fn check(&self) -> Result<()> {
        if let Some(bad) = self.numbers().into_iter().find(|v| !v.is_finite()) {
            return Err(Error::argument(format!("a schedule has the value {bad}")).note("use finite values"));
        }
        match &self.curve {
            Curve::Piecewise { later, .. } if !later.is_sorted_by(|a, b| a.0 < b.0) => {
                let steps: Vec<u64> = later.iter().map(|(from, _)| *from).collect();
                Err(Error::argument(format!(
                    "the steps of a piecewise schedule must increase, got {steps:?}"
                )))
            }
            Curve::Exponential { every: 0, .. }
            | Curve::Polynomial { steps: 0, .. }
            | Curve::Cosine { steps: 0, .. }
            | Curve::CosineRestarts { steps: 0, .. }
            | Curve::OneCycle { steps: 0, .. } => {
                Err(Error::argument("a schedule needs at least 1 step, got 0"))
            }
            Curve::Exponential { factor, .. } if *factor < 0.0 => {
                Err(Error::argument(format!("the factor of a decay must not be negative, got {factor}")))
            }
            Curve::Polynomial { power, .. } if *power < 0.0 => {
                Err(Error::argument(format!("the power of a decay must not be negative, got {power}")))
            }
            Curve::CosineRestarts { factor: 0, .. } => {
                Err(Error::argument("the factor between cycles must be at least 1, got 0"))
            }
            _ => Ok(()),
        }
    }
}
