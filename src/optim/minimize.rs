//! From a cost to one operation that lowers it.

use super::{Gradient, Optimizer};
use crate::autodiff::gradients;
use crate::graph::{Graph, NodeId, NodeKind, Op, TRAINABLE_VARIABLES, Tensor, Variable};
use std::collections::HashSet;
use std::panic::Location;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// One operation that updates every trainable variable by the gradient of `cost`: [`compute_gradients`], then
/// [`apply_gradients`].
#[track_caller]
pub fn minimize(cost: &Tensor, optimizer: &dyn Optimizer) -> Result<Op> {
    let gradients = compute_gradients(cost)?;
    apply_gradients(optimizer, cost.graph(), &gradients)
}

/// The gradients of `cost` with respect to every trainable variable that is not frozen.
///
/// A trainable variable that the cost does not depend on is an error, for it would silently stay as it was drawn:
/// unless that was said, by [`Tensor::stop_gradient`] on the way or by [`Graph::freeze_variables`].
#[track_caller]
pub fn compute_gradients(cost: &Tensor) -> Result<Vec<Gradient>> {
    let graph = cost.graph();
    graph.still_open("minimize")?;
    graph.first_error()?;
    cost.mark_cost();
    let trainable = graph.collection(TRAINABLE_VARIABLES).variables;
    let infos: Vec<_> = trainable.iter().filter_map(|&id| graph.variable_info(id)).collect();
    let variables: Vec<Variable> = trainable.iter().map(|&id| graph.variable_handle(id)).collect();
    let tensors: Vec<&Tensor> = variables.iter().map(Variable::value).collect();
    let found = gradients(cost, &tensors)?;
    let mut all = Vec::new();
    for ((variable, info), gradient) in variables.iter().zip(&infos).zip(found) {
        match gradient {
            Some(g) if !info.frozen => {
                g.mark_gradient();
                all.push(Gradient::new(variable.clone(), g));
            }
            None if !info.frozen && !stopped_on_purpose(graph, cost, variable) => {
                return Err(Error::new(
                    ErrorKind::Gradient,
                    format!(
                        "the cost {} has no gradient with respect to the trainable variable {}",
                        cost.name(),
                        info.name
                    ),
                )
                .at(info.site)
                .note("what gradients do not train is not trainable (rule 2 of tower functions)")
                .note("use it, make it non-trainable, or freeze it with freeze_variables"));
            }
            _ => {}
        }
    }
    if all.is_empty() {
        return Err(Error::new(
            ErrorKind::Gradient,
            "there is no trainable variable to minimise the cost by",
        ));
    }
    Ok(all)
}

/// One operation that updates variables by these gradients.
#[track_caller]
pub fn apply_gradients(optimizer: &dyn Optimizer, graph: &Graph, gradients: &[Gradient]) -> Result<Op> {
    let updates = graph.called_from(Location::caller(), || optimizer.apply(graph, gradients));
    graph.first_error()?;
    Ok(graph.group(&updates.iter().collect::<Vec<_>>()))
}

/// Whether the cost depends on the variable, but only through a stopped gradient.
fn stopped_on_purpose(graph: &Graph, cost: &Tensor, variable: &Variable) -> bool {
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
