//! Settings for some of the variables.

use super::gradient::check_pattern;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer};
use crate::graph::{Graph, NamePattern, Op};

/// An optimizer with other settings for the variables of some names. A variable belongs to the first group whose
/// pattern, a regular expression, matches its whole name; if there is none, the optimizer's own settings hold.
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

/// What differs for the variables of a group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    rate: Option<f64>,
    decay: Option<f64>,
}

impl Group {
    /// The optimizer's rate is multiplied by this.
    #[must_use]
    pub fn rate(self, factor: f64) -> Group {
        Group { rate: Some(factor), ..self }
    }

    /// This weight decay: added to the gradient as `decay * w`, or apart from it where the optimizer does it so
    /// ([`AdamW`](super::AdamW), [`Lamb`](super::Lamb)).
    #[must_use]
    #[doc(alias = "weight_decay")]
    pub fn decay(self, decay: f64) -> Group {
        Group { decay: Some(decay), ..self }
    }
}

impl ParamGroups {
    /// `inner`, so far with its own settings for all.
    pub fn new(inner: impl Optimizer + 'static) -> ParamGroups {
        ParamGroups { inner: inner.boxed(), groups: Vec::new() }
    }

    /// With these settings for variables that match `pattern` and none before it.
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
            check_setting(graph, "ParamGroups", "a rate", group.rate.unwrap_or(1.0), Allowed::Finite);
            check_setting(graph, "ParamGroups", "a decay", group.decay.unwrap_or(0.0), Allowed::NotNegative);
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
