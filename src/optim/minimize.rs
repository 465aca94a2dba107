//! Gradients of a cost, and the operation that applies them.

use super::loss_scale::LossScaler;
use super::{Gradient, Optimizer};
use crate::autodiff::gradients;
use crate::graph::{
    GRADIENTS, Graph, NamePattern, NodeId, NodeKind, Op, TRAINABLE_VARIABLES, Tensor, Variable,
};
use std::collections::HashSet;
use std::panic::Location;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Returns one operation that updates every trainable variable with the gradient of `cost`:
/// [`compute_gradients`] followed by [`apply_gradients`].
#[track_caller]
pub fn minimize(cost: &Tensor, optimizer: &dyn Optimizer) -> Result<Op> {
    let gradients = compute_gradients(cost)?;
    apply_gradients(optimizer, cost.graph(), &gradients)
}

/// Returns the gradients of `cost` with respect to every trainable variable that is not frozen.
///
/// A trainable variable that the cost does not depend on is an error, because it would silently
/// keep its initial value. [`Tensor::stop_gradient`] on the path, or [`Graph::freeze_variables`],
/// declares this intended.
///
/// In f16 the gradients are those of the scaled cost, divided by the scale: see
/// [`LossScale`](crate::graph::LossScale).
#[track_caller]
pub fn compute_gradients(cost: &Tensor) -> Result<Vec<Gradient>> {
    gradients_of_variables(cost, None)
}

/// Like [`compute_gradients`], with respect to only the variables whose whole name matches the
/// regular expression `pattern`. For models in which each of several costs trains a part, such as
/// `gen/.*` and `discrim/.*`.
#[track_caller]
pub fn compute_gradients_of(cost: &Tensor, pattern: &str) -> Result<Vec<Gradient>> {
    gradients_of_variables(cost, Some(NamePattern::new(pattern)))
}

fn gradients_of_variables(cost: &Tensor, pattern: Option<NamePattern>) -> Result<Vec<Gradient>> {
    let graph = cost.graph();
    graph.check_not_frozen("minimize")?;
    graph.first_error()?;
    cost.mark_cost();
    let trainable = graph.collection(TRAINABLE_VARIABLES).variables.into_iter();
    let mut variables: Vec<Variable> = trainable.map(|id| graph.variable_handle(id)).collect();
    if let Some(pattern) = pattern {
        pattern.check(variables.iter().map(Variable::name))?;
        variables.retain(|v| pattern.matches(v.name()));
    }
    let infos: Vec<_> = variables.iter().filter_map(|v| graph.variable_info(v.id?)).collect();
    let tensors: Vec<&Tensor> = variables.iter().map(Variable::value).collect();
    let scaler = LossScaler::of(graph)?;
    let found = match &scaler {
        Some(scaler) => gradients(&scaler.scaled(cost), &tensors)?,
        None => gradients(cost, &tensors)?,
    };
    let mut all = Vec::new();
    for ((variable, info), gradient) in variables.iter().zip(&infos).zip(found) {
        match gradient {
            Some(g) if !info.frozen => {
                let g = scaler.as_ref().map_or_else(|| g.clone(), |scaler| scaler.unscaled(&g, cost));
                g.mark_gradient_of(cost);
                all.push(Gradient::new(variable.clone(), g));
            }
            None if !info.frozen && !only_through_stop_gradient(graph, cost, variable) => {
                return Err(Error::new(
                    ErrorKind::Gradient,
                    format!(
                        "the cost {} has no gradient with respect to the trainable variable {}",
                        cost.name(),
                        info.name
                    ),
                )
                .at(info.site)
                .note("a trainable variable must receive a gradient (rule 2 of tower functions)")
                .note("use it in the cost, make it non-trainable, or freeze it with freeze_variables"));
            }
            _ => {}
        }
    }
    if all.is_empty() {
        return Err(Error::new(
            ErrorKind::Gradient,
            "the cost depends on no trainable variable, so there is nothing to minimize",
        ));
    }
    Ok(all)
}

/// Returns one operation that updates variables with these gradients.
#[track_caller]
pub fn apply_gradients(optimizer: &dyn Optimizer, graph: &Graph, gradients: &[Gradient]) -> Result<Op> {
    let scaler = LossScaler::of(graph)?;
    gradients.iter().for_each(|g| graph.add_to_collection(GRADIENTS, &g.value));
    let updates = graph.called_from(Location::caller(), || {
        let mut updates = optimizer.apply(graph, gradients);
        updates.extend(scaler.iter().flat_map(|scaler| scaler.good_step(graph)));
        updates
    });
    graph.first_error()?;
    Ok(graph.group(&updates.iter().collect::<Vec<_>>()))
}

/// Returns whether the cost depends on the variable only through `stop_gradient`.
fn only_through_stop_gradient(graph: &Graph, cost: &Tensor, variable: &Variable) -> bool {
    let depends = |through_stops: bool| {
        let mut seen: HashSet<NodeId> = HashSet::new();
        let mut stack: Vec<NodeId> = cost.id().map(|t| t.node).into_iter().collect();
        while let Some(id) = stack.pop() {
            let Some(node) = graph.node(id).filter(|_| seen.insert(id)) else { continue };
            let stop = matches!(&node.kind, NodeKind::Op(op) if op.traits().stops_gradient);
            if through_stops || !stop {
                stack.extend(node.inputs.iter().map(|t| t.node));
            }
        }
        variable.value().id().is_some_and(|t| seen.contains(&t.node))
    };
    depends(true) && !depends(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::VariableSpec;
    use crate::tower::TowerContext;

    /// Returns two costs, each of which depends on one of two variables.
    fn two_costs() -> (Graph, [Tensor; 2]) {
        let graph = Graph::new();
        let t = &TowerContext::training(&graph);
        let square = |name: &str| t.variable(VariableSpec::new(name, [])).value().square();
        let costs = [square("gen/w"), square("discrim/w")];
        (graph, costs)
    }

    #[test]
    fn compute_gradients_of_selects_variables_by_name() {
        let (_, [g, d]) = two_costs();
        let names = |found: Vec<Gradient>| -> Vec<String> {
            found.iter().map(|g| g.variable.name().to_string()).collect()
        };
        let both = &g + &d;
        assert_eq!(names(compute_gradients(&both).unwrap()), ["gen/w", "discrim/w"]);
        assert_eq!(names(compute_gradients_of(&both, "gen/.*").unwrap()), ["gen/w"]);
        assert_eq!(names(compute_gradients_of(&d, "discrim/.*").unwrap()), ["discrim/w"]);
    }

    #[test]
    fn unmatched_pattern_and_missing_gradient_are_errors() {
        let (_, [g, _]) = two_costs();
        let e = compute_gradients_of(&g, "gem/.*").unwrap_err();
        assert!(e.message().contains("gem/.*"), "{e}");
        assert_eq!(e.site().map(|s| s.file), Some(file!()));
        let e = compute_gradients_of(&g, ".*").unwrap_err();
        assert!(e.message().contains("no gradient with respect to the trainable variable discrim/w"), "{e}");
    }
}
