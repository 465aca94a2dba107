//! Reverse-mode differentiation: walks the graph backwards and calls each operation's gradient
//! rule.

use crate::graph::{GradCx, NodeId, NodeKind, Tensor, TensorId};
use std::collections::{BTreeSet, HashMap, HashSet};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result, Site};

/// Returns the gradients of the scalar `cost` with respect to each of `xs`; `None` where the cost
/// does not depend on it.
///
/// The gradients are ordinary tensors and can be differentiated again. Fails with the graph's first
/// error, if one is already recorded.
#[track_caller]
pub fn gradients(cost: &Tensor, xs: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    let graph = cost.graph();
    graph.check_not_frozen("gradients")?;
    graph.first_error()?;
    if let Some(foreign) = xs.iter().find(|x| !graph.owns(x)) {
        return Err(foreign.belongs_elsewhere().within("gradients").at(Site::caller()));
    }
    graph.without_autocast(|| walk_backwards(cost, xs))
}

fn walk_backwards(cost: &Tensor, xs: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    let graph = cost.graph();
    let Some(root) = cost.id() else {
        return Err(Error::new(ErrorKind::Graph, "the cost could not be built"));
    };
    if cost.rank() != 0 || !cost.dtype().is_float() {
        return Err(Error::new(
            ErrorKind::Gradient,
            format!(
                "{} is {}{}; only a floating point scalar can be differentiated",
                cost.name(),
                cost.dtype(),
                cost.shape()
            ),
        )
        .note("reduce it with sum() or mean() first"));
    }
    let wanted: HashSet<TensorId> = xs.iter().filter_map(|x| x.id()).collect();
    let path = nodes_between(graph, root.node, &wanted);
    let mut grads: HashMap<TensorId, Tensor> = HashMap::new();
    let one = HostTensor::from_f64(cost.dtype(), [], &[1.0])?;
    graph.on_behalf_of(root.node, || grads.insert(root, graph.constant(one)));

    for &id in path.iter().rev() {
        let Some(node) = graph.node(id) else { break };
        let NodeKind::Op(op) = &node.kind else { continue };
        let output_ids = (0..node.outputs.len() as u32).map(|output| TensorId { node: id, output });
        // Keep the gradients in the map: a tensor in `xs` needs its own at the end.
        let output_grads: Vec<Option<Tensor>> = output_ids.clone().map(|t| grads.get(&t).cloned()).collect();
        if output_grads.iter().all(Option::is_none) {
            continue;
        }
        let inputs: Vec<Tensor> = node.inputs.iter().map(|&t| graph.tensor_at(t)).collect();
        let outputs: Vec<Tensor> = output_ids.map(|t| graph.tensor_at(t)).collect();
        let needed: Vec<bool> = inputs
            .iter()
            .zip(&node.inputs)
            .enumerate()
            .map(|(i, (t, at))| {
                let reaches = wanted.contains(at) || path.contains(&at.node);
                reaches && t.dtype().is_float() && !op.shape_only(i)
            })
            .collect();
        let cx = GradCx { inputs: &inputs, outputs: &outputs, grads: &output_grads, needed: &needed };
        let input_grads =
            graph.on_behalf_of(id, || op.grad(&cx)).map_err(|e| e.within(&node.name).at(node.site))?;
        graph.first_error()?;
        for ((at, grad), _) in node.inputs.iter().zip(input_grads).zip(&needed).filter(|(_, needed)| **needed)
        {
            let Some(grad) = grad else { continue };
            let sum = match grads.remove(at) {
                Some(earlier) => {
                    // Variables and inputs may belong to another tower than the operations that
                    // read them.
                    let own = graph.node(at.node).is_some_and(|n| matches!(n.kind, NodeKind::Op(_)));
                    graph.on_behalf_of(if own { at.node } else { id }, || earlier + grad)
                }
                None => grad,
            };
            grads.insert(*at, sum);
        }
    }
    graph.first_error()?;
    Ok(xs.iter().map(|x| x.id().and_then(|id| grads.get(&id).cloned())).collect())
}

impl Tensor {
    /// Returns the gradient of this scalar with respect to `x`, as a tensor to compute with: for
    /// costs that contain a gradient, such as a gradient penalty. A scalar that does not depend on
    /// `x` is an error.
    #[track_caller]
    pub fn gradient(&self, x: &Tensor) -> Tensor {
        match gradients(self, &[x]).map(|mut found| found.pop().flatten()) {
            Ok(Some(gradient)) => gradient,
            Ok(None) => {
                let why = format!("{} does not depend on {}", self.name(), x.name());
                self.fail("gradient", Error::new(ErrorKind::Gradient, why))
            }
            Err(e) => self.fail("gradient", e),
        }
    }
}

/// Returns the nodes through which `root` depends on a wanted tensor, including `root` if it does.
fn nodes_between(graph: &crate::graph::Graph, root: NodeId, wanted: &HashSet<TensorId>) -> BTreeSet<NodeId> {
    let mut ancestors = BTreeSet::new();
    let mut stack = vec![root];
    let mut inputs: HashMap<NodeId, Vec<TensorId>> = HashMap::new();
    while let Some(id) = stack.pop() {
        if !ancestors.insert(id) {
            continue;
        }
        let Some(node) = graph.node(id) else { continue };
        let read: Vec<TensorId> = match &node.kind {
            NodeKind::Op(op) => {
                node.inputs.iter().enumerate().filter(|(i, _)| !op.shape_only(*i)).map(|(_, &t)| t).collect()
            }
            _ => Vec::new(),
        };
        stack.extend(read.iter().map(|t| t.node));
        inputs.insert(id, read);
    }
    // Nodes read only earlier ones, so one pass in order finds all that depend on a wanted tensor.
    let mut path = BTreeSet::new();
    for id in ancestors {
        if inputs[&id].iter().any(|t| wanted.contains(t) || path.contains(&t.node)) {
            path.insert(id);
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, TensorSpec};
    use crate::runtime::Session;

    /// The derivative of the penalty `(|d sum(x^3) / dx| - 1)^2` with respect to `x` is
    /// `2 (3 x^2 - 1) 6 x`.
    #[test]
    fn a_gradient_penalty_can_be_differentiated() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(1)]));
        let grad = (&x * &x * &x).sum().gradient(&x);
        let penalty = (grad.square().sum().sqrt() - 1.0).square();
        let penalty_grad = penalty.gradient(&x);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let at = HostTensor::new([1], vec![0.8f32]).unwrap();
        let found = session.run(&[&grad, &penalty_grad], &[("x", &at)]).unwrap();
        let expected = [3.0 * 0.8 * 0.8, 2.0 * (3.0 * 0.8 * 0.8 - 1.0) * 6.0 * 0.8];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found.to_f64_vec()[0] - expected).abs() < 1e-5, "{found:?} {expected}");
        }
    }

    #[test]
    fn an_independent_scalar_is_an_error_at_the_callers_line() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(2)]));
        let y = graph.placeholder(&TensorSpec::f32("y", [Some(2)]));
        let line = line!() + 1;
        x.sum().gradient(&y);
        let e = graph.first_error().unwrap_err();
        assert!(e.message().contains("does not depend on y"), "{e}");
        assert_eq!(e.site().map(|s| s.line), Some(line));
    }
}
