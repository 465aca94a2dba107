//! Parameter groups: per-variable optimizer settings.

use super::gradient::check_pattern;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer};
use crate::graph::{Graph, NamePattern, Op};

/// An optimizer wrapper with different settings for groups of variables. A variable belongs to the
/// first group whose pattern, a regular expression, matches its whole name. Variables without a
/// group use the optimizer's own settings.
///
/// ```
/// # use tensorpack::optim::{Adam, ParamGroups};
/// let optimizer = ParamGroups::new(Adam::new(1e-3))
///     .group("fc.*/W", |g| g.decay(1e-4))
///     .group("conv.*", |g| g.rate(0.1));
/// ```
///
/// A pattern that matches no variable is an error.
#[derive(Debug)]
pub struct ParamGroups {
    inner: Box<dyn Optimizer>,
    groups: Vec<(NamePattern, Group)>,
}

/// The settings of a parameter group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    rate: Option<f64>,
    decay: Option<f64>,
}

impl Group {
    /// Multiplies the optimizer's learning rate by `factor`.
    #[must_use]
    pub fn rate(self, factor: f64) -> Group {
        Group { rate: Some(factor), ..self }
    }

    /// Sets the weight decay. It is added to the gradient as `decay * w`, or decoupled from it in
    /// [`AdamW`](super::AdamW) and [`Lamb`](super::Lamb).
    #[must_use]
    #[doc(alias = "weight_decay")]
    pub fn decay(self, decay: f64) -> Group {
        Group { decay: Some(decay), ..self }
    }
}

impl ParamGroups {
    /// Wraps `inner`, with no groups yet.
    pub fn new(inner: impl Optimizer + 'static) -> ParamGroups {
        ParamGroups { inner: inner.boxed(), groups: Vec::new() }
    }

    /// Adds a group for the variables that match `pattern` and no earlier pattern.
    #[must_use]
    #[track_caller]
    pub fn group(mut self, pattern: &str, settings: impl FnOnce(Group) -> Group) -> ParamGroups {
        self.groups.push((NamePattern::new(pattern), settings(Group::default())));
        self
    }
}

impl Optimizer for ParamGroups {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        for (pattern, group) in &self.groups {
            check_pattern(graph, "ParamGroups", pattern, gradients);
            let (rate, decay) = (group.rate.unwrap_or(1.0), group.decay.unwrap_or(0.0));
            check_setting(graph, "ParamGroups", "a rate", rate, Allowed::Finite);
            check_setting(graph, "ParamGroups", "a weight decay", decay, Allowed::NonNegative);
        }
        let in_group = |g: &Gradient| {
            let group = self.groups.iter().find(|(pattern, _)| pattern.matches(g.variable.name()));
            let mut g = g.clone();
            if let Some((_, group)) = group {
                g.rate *= group.rate.unwrap_or(1.0);
                g.decay = group.decay.or(g.decay);
            }
            g
        };
        self.inner.apply(graph, &gradients.iter().map(in_group).collect::<Vec<_>>())
    }
}
