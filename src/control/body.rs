//! The body of a loop, or a branch: a frozen graph without variables. The operations of a loop's body are
//! lowered or evaluated once for every step.

use crate::graph::{Frozen, Graph, NodeId, NodeKind, OpDef, Spec, Tensor, TensorId};
use crate::kir::{LowerCx, Origin, View};
use crate::reference::{Array, EvaluateCx};
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// The type and the concrete sizes of every tensor of a body.
pub(super) type Concrete = HashMap<TensorId, (DType, Vec<usize>)>;

/// An operation of a step, with the types and sizes of its outputs.
type Step<'a> = (NodeId, &'a Arc<dyn OpDef>, Vec<(DType, Vec<usize>)>);

/// The body of a loop, or a branch.
#[derive(Debug)]
pub(super) struct Body {
    graph: Frozen,
    /// The placeholders, in the order in which values are passed.
    inputs: Vec<TensorId>,
    outputs: Vec<TensorId>,
    /// The operations whose values the outputs need, in order.
    values: BTreeSet<NodeId>,
    /// The operations whose values do not change from step to step.
    invariant: BTreeSet<NodeId>,
}

/// Bodies are compared by identity.
impl PartialEq for Body {
    fn eq(&self, other: &Body) -> bool {
        self.graph.uid() == other.graph.uid()
    }
}

impl Eq for Body {}

impl Hash for Body {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.graph.uid().hash(state);
    }
}

impl Body {
    /// Freezes the graph of a body. The inputs from `captured` on are the same in every step.
    pub(super) fn new(graph: Graph, inputs: &[Tensor], captured: usize, outputs: &[Tensor]) -> Result<Body> {
        graph.first_error()?;
        let id = |t: &Tensor| {
            match t.id() {
            Some(id) if t.graph().uid() == graph.uid() => Ok(id),
            _ => Err(Error::new(ErrorKind::Graph, format!("{t:?} is not part of the body"))
                .note("pass tensors from outside with `captured`, to a branch as `inputs`, and use the ones the body is called with")),
        }
        };
        let inputs = inputs.iter().map(id).collect::<Result<Vec<TensorId>>>()?;
        let outputs = outputs.iter().map(id).collect::<Result<Vec<TensorId>>>()?;
        let graph = graph.freeze()?;
        let mut values = BTreeSet::new();
        // Operations, and whether their values are needed or only their shapes.
        let mut stack: Vec<(NodeId, bool)> = outputs.iter().map(|t| (t.node, true)).collect();
        let mut seen = BTreeSet::new();
        while let Some((id, value)) = stack.pop() {
            if !seen.insert((id, value)) {
                continue;
            }
            let node = graph.node(id);
            let fail = |why: String| Error::new(ErrorKind::Graph, why).within(&node.name).at(node.site);
            match &node.kind {
                NodeKind::Op(op) if value && (!op.traits().mergeable || op.collective().is_some()) => {
                    return Err(fail(format!("{} cannot be part of a loop's body or a branch", op.name())).note(
                        "random numbers, prints and sums over towers belong outside: pass their results in",
                    ));
                }
                NodeKind::Op(op) => {
                    if value {
                        values.insert(id);
                    }
                    let read = node.inputs.iter().enumerate();
                    stack.extend(read.map(|(i, t)| (t.node, value && !op.shape_only(i))));
                }
                NodeKind::Placeholder if inputs.iter().any(|t| t.node == id) => {}
                _ => {
                    return Err(fail(
                        "a loop's body or a branch reads neither variables nor inputs of the model".into(),
                    )
                    .note("read them outside, and pass them with `captured`, to a branch as `inputs`"));
                }
            }
        }
        let mut invariant: BTreeSet<NodeId> = inputs[captured..].iter().map(|t| t.node).collect();
        for &id in &values {
            let node = graph.node(id);
            if node.inputs.iter().all(|t| invariant.contains(&t.node)) {
                invariant.insert(id);
            }
        }
        Ok(Body { graph, inputs, outputs, values, invariant })
    }

    pub(super) fn graph(&self) -> &Frozen {
        &self.graph
    }

    pub(super) fn inputs(&self) -> &[TensorId] {
        &self.inputs
    }

    pub(super) fn outputs(&self) -> &[TensorId] {
        &self.outputs
    }

    /// Runs the shape rules of the body on inputs of these types and shapes.
    fn infer_all(&self, inputs: &[Spec]) -> Result<HashMap<TensorId, Spec>> {
        let mut specs: HashMap<TensorId, Spec> =
            self.inputs.iter().copied().zip(inputs.iter().cloned()).collect();
        for (i, node) in self.graph.nodes().iter().enumerate() {
            let NodeKind::Op(op) = &node.kind else { continue };
            let Some(read) = node.inputs.iter().map(|t| specs.get(t).cloned()).collect::<Option<Vec<Spec>>>()
            else {
                continue;
            };
            let made = op.infer(&read).map_err(|e| e.within(&node.name).at(node.site))?;
            let ids = (0..).map(|output| TensorId { node: NodeId(i as u32), output });
            specs.extend(ids.zip(made));
        }
        Ok(specs)
    }

    /// Returns the types and shapes of the outputs for inputs of these.
    pub(super) fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let specs = self.infer_all(inputs)?;
        Ok(self.outputs.iter().map(|t| specs[t].clone()).collect())
    }

    /// Returns the concrete sizes of all tensors for inputs of these.
    pub(super) fn concrete(&self, inputs: &[(DType, Vec<usize>)]) -> Result<Concrete> {
        let inputs: Vec<Spec> = inputs.iter().map(|(dtype, sizes)| Spec::new(*dtype, sizes)).collect();
        let sizes = |(id, spec): (TensorId, Spec)| match spec.shape.known() {
            Some(sizes) => Ok((id, (spec.dtype, sizes))),
            None => Err(Error::shape(format!(
                "the shape {} is not determined by the inputs of the loop",
                spec.shape
            ))),
        };
        self.infer_all(&inputs)?.into_iter().map(sizes).collect()
    }

    /// Returns the operations to compute in a step, with the specs of their outputs.
    fn steps<'a>(&'a self, concrete: &'a Concrete) -> impl Iterator<Item = Step<'a>> {
        self.values.iter().filter_map(|&id| {
            let node = self.graph.node(id);
            let NodeKind::Op(op) = &node.kind else { return None };
            let ids = (0..node.outputs.len() as u32).map(|output| TensorId { node: id, output });
            Some((id, op, ids.map(|t| concrete[&t].clone()).collect()))
        })
    }

    /// Lowers one step. `views` has the values of the step before: what does not change from step
    /// to step is lowered once.
    pub(super) fn lower(
        &self,
        cx: &mut LowerCx<'_>,
        inputs: &[View],
        concrete: &Concrete,
        views: &mut HashMap<TensorId, View>,
    ) -> Result<Vec<View>> {
        views.extend(self.inputs.iter().copied().zip(inputs.iter().cloned()));
        for (id, op, outputs) in self.steps(concrete) {
            if self.invariant.contains(&id) && views.contains_key(&TensorId { node: id, output: 0 }) {
                continue;
            }
            let node = self.graph.node(id);
            let read = node.inputs.iter().enumerate();
            let inputs: Vec<Option<View>> =
                read.map(|(i, t)| (!op.shape_only(i)).then(|| views[t].clone())).collect();
            let input_sizes: Vec<Vec<usize>> = node.inputs.iter().map(|t| concrete[t].1.clone()).collect();
            let origin = Origin { name: format!("{}/{}", cx.origin.name, node.name), site: node.site };
            let made = op.lower(&mut LowerCx {
                program: cx.program,
                inputs: &inputs,
                input_sizes: &input_sizes,
                outputs: &outputs,
                origin: &origin,
            });
            let made = made.map_err(|e| e.within(&node.name).at(node.site))?;
            views.extend((0..).map(|output| TensorId { node: id, output }).zip(made));
        }
        Ok(self.outputs.iter().map(|t| views[t].clone()).collect())
    }

    /// Evaluates one step by definition.
    pub(super) fn evaluate(
        &self,
        cx: &EvaluateCx<'_>,
        inputs: &[Array],
        concrete: &Concrete,
    ) -> Result<Vec<Array>> {
        let mut values: HashMap<TensorId, Array> =
            self.inputs.iter().copied().zip(inputs.iter().cloned()).collect();
        for (id, op, outputs) in self.steps(concrete) {
            let node = self.graph.node(id);
            let read = node.inputs.iter().enumerate();
            let inputs: Vec<Option<&Array>> =
                read.map(|(i, t)| (!op.shape_only(i)).then(|| &values[t])).collect();
            let input_sizes: Vec<&[usize]> = node.inputs.iter().map(|t| concrete[t].1.as_slice()).collect();
            let made = op.evaluate(&EvaluateCx {
                inputs: &inputs,
                input_sizes: &input_sizes,
                outputs: &outputs,
                name: &node.name,
                tower_inputs: &[],
                elements_before: 0,
                seed: cx.seed,
                draw: cx.draw,
                rounding: cx.rounding,
            });
            let made = made.map_err(|e| e.within(&node.name).at(node.site))?;
            values.extend((0..).map(|output| TensorId { node: id, output }).zip(made));
        }
        Ok(self.outputs.iter().map(|t| values[t].clone()).collect())
    }

    /// Adds the operations of the body to `graph`, with these tensors as its inputs. Returns the
    /// outputs.
    pub(super) fn inline(&self, graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
        let tensors = self.inline_all(graph, inputs);
        self.outputs.iter().map(|t| tensors[t].clone()).collect()
    }

    /// [`Body::inline`] under the names that its tensors were given.
    pub(super) fn inline_named(&self, graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
        let tensors = self.inline_all(graph, inputs);
        for (name, id) in self.graph.given_names() {
            if let Some(tensor) = tensors.get(&id) {
                graph.on_line(self.graph.node(id.node).site, || tensor.named(name));
            }
        }
        graph.add_names_in_loops(self.graph.names_in_loops());
        self.outputs.iter().map(|t| tensors[t].clone()).collect()
    }

    fn inline_all(&self, graph: &Graph, inputs: &[Tensor]) -> HashMap<TensorId, Tensor> {
        let mut tensors: HashMap<TensorId, Tensor> =
            self.inputs.iter().copied().zip(inputs.iter().cloned()).collect();
        for (i, node) in self.graph.nodes().iter().enumerate() {
            let NodeKind::Op(op) = &node.kind else { continue };
            let Some(read) = node.inputs.iter().map(|t| tensors.get(t)).collect::<Option<Vec<&Tensor>>>()
            else {
                continue;
            };
            let made = graph.on_line(node.site, || graph.add_op(op.clone(), &read));
            let ids = (0..).map(|output| TensorId { node: NodeId(i as u32), output });
            tensors.extend(ids.zip(made));
        }
        tensors
    }
}
