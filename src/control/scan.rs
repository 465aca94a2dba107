//! A loop over the first dimension of tensors, with state that is carried from step to step.
//!
//! The number of steps may be unknown while the graph is built. Programs are compiled for concrete
//! shapes, so the loop is unrolled when it is lowered; engines see only the kernels of the steps.
//! The gradient is a scan in the other direction, which computes each step again from the state
//! that the step began with.

use super::body::{Body, Concrete};
use super::body_file::BodyFile;
use crate::autodiff::gradients;
use crate::graph::{Autocast, Exported, GradCx, Graph, OpDef, Spec, Tensor};
use crate::kir::{Class, LowerCx, View};
use crate::ops::matrix_product_operands;
use crate::reference::{Array, EvaluateCx, Indices};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;
use tensorpack_tensor::{DType, Dim, Error, HostTensor, Result};

/// A loop over the first dimension of tensors, `xs`, that carries state from step to step.
///
/// The body is called once, while the graph is built. It gets the state, this step's slice of each
/// of `xs`, and the captured tensors, and returns the next state and this step's results:
///
/// ```
/// use tensorpack::prelude::*;
///
/// # fn main() -> Result<()> {
/// let graph = Graph::new();
/// let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2)])); // any number of steps
/// let decay = graph.placeholder(&TensorSpec::f32("decay", [Some(2)]));
/// let start = graph.constant(HostTensor::new([2], vec![0.0f32, 0.0])?);
/// let (last, averages) = Scan::new(&[&start]).over(&[&x]).captured(&[&decay]).run(|state, x, captured| {
///     let next = &state[0] * &captured[0] + &x[0];
///     (vec![next.clone()], vec![next])
/// });
/// let session = Session::new(graph.freeze()?)?;
/// let steps = HostTensor::new([3, 2], vec![1.0f32, 1.0, 2.0, 2.0, 3.0, 3.0])?;
/// let factors = HostTensor::new([2], vec![0.5f32, 0.0])?;
/// let found = session.run(&[&last[0], &averages[0]], &[("x", &steps), ("decay", &factors)])?;
/// assert_eq!(found[0].as_slice::<f32>()?, [4.25, 3.0]);
/// assert_eq!(found[1].as_slice::<f32>()?, [1.0, 1.0, 2.5, 2.0, 4.25, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// The body has no variables, random numbers or sums over towers: compute or read those outside, and
/// pass them with [`Scan::captured`]. State and steps keep their types where a graph computes in
/// mixed precision.
///
/// A name that the body gives to a tensor appears in errors; to read the tensor, return it.
///
/// The loop is unrolled when a program is compiled for concrete shapes, so compiling takes time
/// that grows faster than the number of steps, and every number of steps is a program of its own. The
/// gradient stores the state of every step, and computes the rest of a step again.
#[derive(Debug)]
pub struct Scan<'a> {
    init: Vec<&'a Tensor>,
    xs: Vec<&'a Tensor>,
    captured: Vec<&'a Tensor>,
    length: Option<usize>,
    reverse: bool,
}

impl<'a> Scan<'a> {
    /// Creates a loop that begins with this state: at least one tensor.
    pub fn new(init: &[&'a Tensor]) -> Scan<'a> {
        Scan { init: init.to_vec(), xs: Vec::new(), captured: Vec::new(), length: None, reverse: false }
    }

    /// Passes a slice `x[i]` of each of these tensors to step `i`. They have the same first size.
    #[must_use]
    pub fn over(self, xs: &[&'a Tensor]) -> Scan<'a> {
        Scan { xs: xs.to_vec(), ..self }
    }

    /// Passes these tensors to every step.
    #[must_use]
    pub fn captured(self, captured: &[&'a Tensor]) -> Scan<'a> {
        Scan { captured: captured.to_vec(), ..self }
    }

    /// Runs this many steps. Required for a loop without `xs`.
    #[must_use]
    pub fn length(self, steps: usize) -> Scan<'a> {
        Scan { length: Some(steps), ..self }
    }

    /// Runs from the last step to the first. The results keep their positions.
    #[must_use]
    pub fn reverse(self) -> Scan<'a> {
        Scan { reverse: true, ..self }
    }

    /// Builds the loop. Returns the state after the last step, and the results of all steps, each
    /// stacked along a new first dimension.
    #[track_caller]
    pub fn run(
        self,
        body: impl FnOnce(&[Tensor], &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
    ) -> (Vec<Tensor>, Vec<Tensor>) {
        let caller = Location::caller();
        let carries = self.init.len();
        let Some(first) = self.init.first().or(self.xs.first()) else { return (Vec::new(), Vec::new()) };
        let graph = first.graph().clone();
        let inputs: Vec<&Tensor> = [&self.init[..], &self.xs, &self.captured].concat();
        let poison = |results| (vec![Tensor::poison(&graph); carries], vec![Tensor::poison(&graph); results]);
        if carries == 0 {
            let note = "carry a scalar that does not change if the steps share nothing";
            first.fail("Scan", Error::argument("a loop begins with at least one tensor of state").note(note));
        }
        if carries == 0 || inputs.iter().any(|t| t.is_poison()) {
            // Only the body knows how many results there are.
            let scratch = Graph::new();
            let poisons = |n| vec![Tensor::poison(&scratch); n];
            let (_, results) =
                body(&poisons(carries), &poisons(self.xs.len()), &poisons(self.captured.len()));
            return poison(results.len());
        }
        let count = Cell::new(0);
        let counted = |state: &[Tensor], xs: &[Tensor], captured: &[Tensor]| {
            let made = body(state, xs, captured);
            count.set(made.1.len());
            made
        };
        match self.build(caller, &inputs, counted) {
            Ok(op) => {
                let body = op.body.graph();
                graph.add_names_in_loops(
                    body.given_names().map(|(name, _)| name).chain(body.names_in_loops()),
                );
                let mut made = graph.called_from(caller, || graph.add_op(Arc::new(op), &inputs));
                made.truncate(made.len() - carries);
                let results = made.split_off(carries);
                (made, results)
            }
            Err(e) => {
                first.fail("Scan", e);
                poison(count.get())
            }
        }
    }

    fn build(
        &self,
        caller: &'static Location<'static>,
        inputs: &[&Tensor],
        body: impl FnOnce(&[Tensor], &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
    ) -> Result<ScanOp> {
        if self.xs.is_empty() && self.length.is_none() {
            return Err(Error::argument("a loop over no tensors needs a `length`"));
        }
        let (carries, xs) = (self.init.len(), self.xs.len());
        let specs: Vec<Spec> = inputs.iter().map(|t| t.spec().clone()).collect();
        let specs = step_specs(&specs, carries, xs)?;
        let inner = Graph::new();
        let inputs: Vec<Tensor> =
            inner.called_from(caller, || specs.into_iter().map(|spec| inner.input_of(spec)).collect());
        let (state, rest) = inputs.split_at(carries);
        let (steps, captured) = rest.split_at(xs);
        let (next, results) = body(state, steps, captured);
        inner.first_error()?;
        if next.len() != carries {
            return Err(Error::argument(format!(
                "the body returned {} tensors of state, but the loop began with {carries}",
                next.len()
            )));
        }
        let outputs: Vec<Tensor> = next.into_iter().chain(results).collect();
        let body = Arc::new(Body::new(inner, &inputs, carries + xs, &outputs)?);
        Ok(ScanOp { body, carries, xs, length: self.length, reverse: self.reverse })
    }
}

/// Returns what a step gets of inputs of these types and shapes: one slice of each of `xs`.
fn step_specs(inputs: &[Spec], carries: usize, xs: usize) -> Result<Vec<Spec>> {
    let spec = |(i, spec): (usize, &Spec)| match i >= carries && i < carries + xs {
        true => match spec.shape.split_first() {
            Some((_, rest)) => Ok(Spec { dtype: spec.dtype, shape: rest.to_vec().into() }),
            None => Err(Error::shape("a loop cannot run over a scalar")),
        },
        false => Ok(spec.clone()),
    };
    inputs.iter().enumerate().map(spec).collect()
}

/// A loop. Its inputs are the state, `xs` and the captured tensors. Its outputs are the last state,
/// the results of the body, and the state before each step, which gradients need.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ScanOp {
    body: Arc<Body>,
    carries: usize,
    xs: usize,
    length: Option<usize>,
    reverse: bool,
}
crate::exported!(ScanOp, 1..=usize::MAX, save, load);

/// The attributes of a loop in a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScanFile {
    carries: usize,
    xs: usize,
    length: Option<usize>,
    reverse: bool,
    body: BodyFile,
}

fn save(op: &ScanOp, tensors: &mut Vec<HostTensor>) -> Result<Value> {
    let &ScanOp { ref body, carries, xs, length, reverse } = op;
    let body = BodyFile::new(body, carries + xs, tensors)?;
    Exported::attributes(&ScanFile { carries, xs, length, reverse, body })
}

fn load(attributes: Value, tensors: Vec<HostTensor>) -> Result<ScanOp> {
    let ScanFile { carries, xs, length, reverse, body } = Exported::from_attributes(attributes)?;
    let body = body.load(tensors)?;
    let fits = carries > 0
        && carries <= body.outputs().len()
        && carries.checked_add(xs).is_some_and(|n| n <= body.inputs().len());
    match fits {
        true => Ok(ScanOp { body: Arc::new(body), carries, xs, length, reverse }),
        false => Err(Error::argument(format!(
            "the body does not fit a loop of {carries} states over {xs} tensors"
        ))),
    }
}

/// The maximum number of steps: a loop is unrolled when it is compiled.
const MAX_STEPS: usize = 1 << 16;

impl ScanOp {
    /// Returns the number of results of a step.
    fn results(&self) -> usize {
        self.body.outputs().len() - self.carries
    }

    /// Returns the number of steps.
    fn steps(&self, inputs: &[Spec]) -> Result<Dim> {
        let mut steps = self.length.map(Dim::Known);
        for x in &inputs[self.carries..self.carries + self.xs] {
            let len = x.shape[0];
            match (steps, len) {
                (Some(Dim::Known(a)), Dim::Known(b)) if a != b => {
                    return Err(Error::shape(format!("a loop of {a} steps cannot run over {}", x.shape)));
                }
                (None, _) | (Some(Dim::Unknown(_)), Dim::Known(_)) => steps = Some(len),
                _ => {}
            }
        }
        match steps {
            Some(Dim::Known(n)) if n > MAX_STEPS => {
                Err(Error::argument(format!("a loop has at most {MAX_STEPS} steps, got {n}")))
            }
            Some(steps) => Ok(steps),
            None => Err(Error::argument("a loop over no tensors needs a `length`")),
        }
    }

    /// Returns the concrete sizes of the body.
    fn concrete(&self, inputs: &[(DType, Vec<usize>)]) -> Result<Concrete> {
        let specs: Vec<Spec> = inputs.iter().map(|(dtype, sizes)| Spec::new(*dtype, sizes)).collect();
        let step = step_specs(&specs, self.carries, self.xs)?;
        let sizes = |s: &Spec| (s.dtype, s.shape.known().unwrap_or_default());
        self.body.concrete(&step.iter().map(sizes).collect::<Vec<_>>())
    }

    /// Returns the steps in the order in which they run.
    fn order(&self, steps: usize) -> Box<dyn Iterator<Item = usize>> {
        if self.reverse { Box::new((0..steps).rev()) } else { Box::new(0..steps) }
    }
}

impl OpDef for ScanOp {
    fn name(&self) -> &str {
        "Scan"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        if inputs.len() != self.body.inputs().len() {
            let (expected, got) = (self.body.inputs().len(), inputs.len());
            return Err(Error::argument(format!("the loop takes {expected} inputs, got {got}")));
        }
        let step_inputs = step_specs(inputs, self.carries, self.xs)?;
        let steps = self.steps(inputs)?;
        let outputs = self.body.infer(&step_inputs)?;
        for (i, (before, after)) in step_inputs.iter().zip(&outputs).take(self.carries).enumerate() {
            let differ = |(a, b): (&Dim, &Dim)| matches!((a, b), (Dim::Known(a), Dim::Known(b)) if a != b);
            let same = before.dtype == after.dtype
                && before.shape.rank() == after.shape.rank()
                && !before.shape.iter().zip(after.shape.iter()).any(differ);
            if !same {
                return Err(Error::shape(format!(
                    "state {i} is {}{} before a step and {}{} after it",
                    before.dtype, before.shape, after.dtype, after.shape
                ))
                .note("the state must keep its type and shape"));
            }
        }
        let stacked = |spec: &Spec| {
            let dims: Vec<Dim> = [steps].into_iter().chain(spec.shape.iter().copied()).collect();
            Spec { dtype: spec.dtype, shape: dims.into() }
        };
        let state = &inputs[..self.carries];
        let results = outputs[self.carries..].iter().map(stacked);
        Ok(state.iter().cloned().chain(results).chain(state.iter().map(stacked)).collect())
    }

    fn output_count(&self) -> usize {
        2 * self.carries + self.results()
    }

    fn autocast(&self, _i: usize) -> Autocast {
        Autocast::Keep
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(Backward::new(self, cx)?.apply(cx))
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let inputs: Vec<View> = (0..cx.input_count()).map(|i| cx.input(i)).collect();
        let sizes: Vec<(DType, Vec<usize>)> = inputs.iter().map(|v| (v.dtype, v.sizes.clone())).collect();
        let concrete = self.concrete(&sizes)?;
        let steps = cx.output_sizes(self.output_count() - 1)[0];
        let xs = self.carries..self.carries + self.xs;
        let mut step_inputs = inputs.clone();
        let mut stacked = vec![vec![None; steps]; self.results() + self.carries];
        let mut views = HashMap::new();
        for step in self.order(steps) {
            for i in xs.clone() {
                let x = &inputs[i];
                let (mut begin, mut sizes) = (vec![0; x.sizes.len()], x.sizes.clone());
                (begin[0], sizes[0]) = (step, 1);
                let slice = x.slice(&begin, &vec![1; sizes.len()], &sizes);
                step_inputs[i] = cx.reshape(&slice, &sizes[1..]);
            }
            let before = step_inputs[..self.carries].to_vec();
            let mut made = self.body.lower(cx, &step_inputs, &concrete, &mut views)?;
            let results = made.split_off(self.carries);
            for (stacked, view) in stacked.iter_mut().zip(results.into_iter().chain(before)) {
                stacked[step] = Some(view);
            }
            step_inputs.splice(..self.carries, made);
        }
        let mut outputs = step_inputs[..self.carries].to_vec();
        for (i, parts) in stacked.into_iter().enumerate() {
            let spec = &cx.outputs[self.carries + i];
            let mut own = LowerCx {
                program: cx.program,
                inputs: &[],
                input_sizes: &[],
                outputs: std::slice::from_ref(spec),
                origin: cx.origin,
            };
            let one: Vec<usize> = [1].into_iter().chain(spec.1[1..].iter().copied()).collect();
            let parts: Vec<View> = parts.iter().flatten().map(|v| own.reshape(v, &one)).collect();
            outputs.push(match parts.is_empty() {
                true => own.map(&[], |e, _| e.constant(0.0, Class::from_dtype(spec.0))),
                false => own.concat(&parts, 0),
            });
        }
        Ok(outputs)
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let inputs: Vec<Array> = (0..cx.input_count()).map(|i| cx.input(i).clone()).collect();
        let sizes: Vec<(DType, Vec<usize>)> =
            inputs.iter().map(|a| (a.dtype(), a.sizes().to_vec())).collect();
        let concrete = self.concrete(&sizes)?;
        let stack = |i: usize| Array::zeros(cx.output_dtype(i), cx.output_sizes(i));
        let mut stacked: Vec<Array> = (self.carries..self.output_count()).map(stack).collect();
        let mut step_inputs = inputs.clone();
        for step in self.order(cx.output_sizes(self.output_count() - 1)[0]) {
            for i in self.carries..self.carries + self.xs {
                let at = |index: &[usize]| inputs[i].at(&[&[step], index].concat());
                step_inputs[i] = Array::from_fn(inputs[i].dtype(), &inputs[i].sizes()[1..], at);
            }
            let before = step_inputs[..self.carries].to_vec();
            let mut made = self.body.evaluate(cx, &step_inputs, &concrete)?;
            let results = made.split_off(self.carries);
            for (stacked, part) in stacked.iter_mut().zip(results.iter().chain(&before)) {
                for index in Indices::new(part.sizes()) {
                    stacked.set(&[&[step], &index[..]].concat(), part.at(&index));
                }
            }
            step_inputs.splice(..self.carries, made);
        }
        step_inputs.truncate(self.carries);
        Ok(step_inputs.into_iter().chain(stacked).collect())
    }
}

/// The gradient of a loop: another loop, in the other direction.
struct Backward {
    op: ScanOp,
    /// Its inputs.
    init: Vec<Tensor>,
    xs: Vec<Tensor>,
    captured: Vec<Tensor>,
    /// For each input of the forward loop, where its gradient comes from.
    sources: Vec<Source>,
}

/// Where the gradient of an input of the forward loop comes from.
enum Source {
    /// The input has no gradient.
    None,
    /// The last state of this index.
    State(usize),
    /// The stacked results of this index.
    Result(usize),
    /// The sum over all steps of the products of two stacked results. One product of all steps is
    /// faster than one for every step.
    Products(usize),
}

impl Backward {
    fn new(forward: &ScanOp, cx: &GradCx<'_>) -> Result<Backward> {
        let (carries, xs) = (forward.carries, forward.xs);
        let is_float = |t: &Tensor| t.dtype().is_float();
        let inner = Graph::new();
        let input_of = |t: &Tensor| {
            let spec = step_specs(std::slice::from_ref(t.spec()), 0, 1)?.remove(0);
            Ok(inner.input_of(spec))
        };
        let zeros = |t: &Tensor| t.zero().broadcast_like(t);
        // The inputs of the forward step, from the states before it.
        let saved: Vec<Tensor> =
            (0..carries).map(|i| cx.output(carries + forward.results() + i).clone()).collect();
        let mut over: Vec<Tensor> = saved;
        over.extend((carries..carries + xs).map(|i| cx.input(i).clone()));
        let captured: Vec<Tensor> = (carries + xs..cx.input_count()).map(|i| cx.input(i).clone()).collect();
        let mut step_xs = over.iter().map(input_of).collect::<Result<Vec<Tensor>>>()?;
        let step_captured: Vec<Tensor> = captured.iter().map(|t| inner.input_of(t.spec().clone())).collect();
        let arguments: Vec<Tensor> = step_xs.iter().chain(&step_captured).cloned().collect();
        let outputs = forward.body.inline(&inner, &arguments);
        // The gradients of its outputs.
        let (mut init, mut state, mut terms) = (Vec::new(), Vec::new(), Vec::new());
        for (i, output) in outputs.iter().enumerate().take(carries).filter(|(_, t)| is_float(t)) {
            let given = cx.output_grad(i).cloned().unwrap_or_else(|| zeros(cx.output(i)));
            let gradient = inner.input_of(cx.input(i).spec().clone());
            terms.push((output * &gradient).sum());
            init.push(given);
            state.push(gradient);
        }
        for (i, output) in outputs.iter().enumerate().skip(carries).filter(|(_, t)| is_float(t)) {
            let Some(given) = cx.output_grad(i) else { continue };
            let gradient = input_of(given)?;
            terms.push((output * &gradient).sum());
            over.push(given.clone());
            step_xs.push(gradient);
        }
        // Gradients of the saved states, which only gradients of gradients have.
        let mut extra: HashMap<usize, Tensor> = HashMap::new();
        for i in 0..carries {
            let Some(given) = cx.output_grad(carries + forward.results() + i) else { continue };
            let gradient = input_of(given)?;
            over.push(given.clone());
            step_xs.push(gradient.clone());
            extra.insert(i, gradient);
        }
        let wanted: Vec<&Tensor> = arguments.iter().collect();
        // The value of this cost is never computed, but its terms must have one type.
        let wide = if terms.iter().any(|t| t.dtype() == DType::F64) { DType::F64 } else { DType::F32 };
        let found = match terms.iter().map(|t| t.cast(wide)).reduce(|a, b| a + b) {
            Some(cost) => gradients(&cost, &wanted)?,
            None => vec![None; wanted.len()],
        };
        // The results of the backward step.
        let (mut next, mut results, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (argument, gradient)) in arguments.iter().zip(found).enumerate() {
            if !is_float(argument) {
                sources.push(Source::None);
            } else if i < carries {
                let own = gradient.unwrap_or_else(|| zeros(argument));
                sources.push(Source::State(next.len()));
                next.push(match extra.get(&i) {
                    Some(extra) => own + extra,
                    None => own,
                });
            } else {
                sources.push(match gradient.filter(|_| cx.needs(i)) {
                    None => Source::None,
                    Some(gradient) if i < carries + xs => {
                        results.push(gradient);
                        Source::Result(results.len() - 1)
                    }
                    Some(gradient) => match matrix_product_operands(&gradient) {
                        Some(factors) => {
                            results.extend(factors);
                            Source::Products(results.len() - 2)
                        }
                        None => {
                            // Sums come after the gradients of the state. 16 bits would lose digits.
                            let (wide, shape) = (argument.dtype().widened(), argument.shape().clone());
                            let sum = inner.input_of(Spec { dtype: wide, shape });
                            init.push(zeros(&cx.input(i).cast(wide)));
                            next.push(&sum + gradient.cast(wide));
                            state.push(sum);
                            Source::State(next.len() - 1)
                        }
                    },
                });
            }
        }
        if state.is_empty() {
            // A loop needs a state, even if only its results are used.
            let scalar = inner.input_of(Spec::new(DType::F32, []));
            next.push(scalar.clone());
            state.push(scalar);
            init.push(cx.input(0).graph().constant(HostTensor::zeros(DType::F32, [])?));
        }
        inner.first_error()?;
        let inputs: Vec<Tensor> = state.iter().chain(&step_xs).chain(&step_captured).cloned().collect();
        let outputs: Vec<Tensor> = next.iter().chain(&results).cloned().collect();
        let body = Body::new(inner, &inputs, state.len() + step_xs.len(), &outputs)?;
        let op = ScanOp {
            body: Arc::new(body),
            carries: state.len(),
            xs: over.len(),
            length: forward.length,
            reverse: !forward.reverse,
        };
        Ok(Backward { op, init, xs: over, captured, sources })
    }

    /// Adds the loop to the graph, and returns the gradients of the forward loop's inputs.
    fn apply(self, cx: &GradCx<'_>) -> Vec<Option<Tensor>> {
        let inputs: Vec<&Tensor> = self.init.iter().chain(&self.xs).chain(&self.captured).collect();
        let carries = self.op.carries;
        let graph = cx.input(0).graph();
        let made = graph.add_op(Arc::new(self.op), &inputs);
        let gradient = |(input, source): (usize, &Source)| match *source {
            Source::None => None,
            Source::State(i) => Some(made[i].cast(cx.input(input).dtype())),
            Source::Result(i) => Some(made[carries + i].clone()),
            Source::Products(i) => {
                let factors = [&made[carries + i], &made[carries + i + 1]];
                Some(graph.einsum("tab,tbc->ac", &factors))
            }
        };
        self.sources.iter().enumerate().map(gradient).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        // A small recurrent network: a product with a captured matrix, a captured bias, integers among
        // the state, and results.
        case("Scan", Twice, |draw| {
            let (steps, batch, units) =
                (draw.pick(&[1, 2, 3, 0]), draw.pick(&[1, 2, 3]), draw.pick(&[1, 2, 4]));
            let (reverse, twice) = (draw.below(2) == 1, draw.below(3) == 2);
            let inputs = vec![
                Input::floats(draw, [batch, units], Any),
                Input::floats(draw, [steps, batch, units], Any),
                Input::floats(draw, [units, units], Any),
                Input::floats(draw, [units], Any),
            ];
            Trial::new(inputs, move |x| {
                let count = x[0].graph().iota(1, DType::I64).squeeze(0);
                let scan = Scan::new(&[&x[0], &count]).over(&[&x[1]]).captured(&[&x[2], &x[3]]);
                let scan = if reverse { scan.reverse() } else { scan };
                let (last, results) = scan.run(|state, x, captured| {
                    let mut sum = state[0].matmul(&captured[0]) + &x[0];
                    if twice {
                        sum = sum.matmul(&captured[0]);
                    }
                    let factor = &captured[1] * (state[1].cast(x[0].dtype()) + 1.0);
                    let next = (sum * factor * 0.5).tanh();
                    (vec![next.clone(), &state[1] + 1.0], vec![next.square(), &next * &x[0]])
                });
                vec![last[0].clone(), results[0].clone(), results[1].clone(), last[1].cast(x[0].dtype())]
            })
        }),
        // The gradients of a product of all elements, whose results nothing reads.
        case("While", Twice, |draw| {
            let (units, limit) = (draw.pick(&[1, 3]), draw.pick(&[2.0, 6.0]));
            Trial::new(vec![Input::floats(draw, [units], Positive)], move |x| {
                let bound = x[0].constant_like(limit);
                let total = x[0].sum();
                let grown = crate::control::while_loop(
                    &[&total, &x[0]],
                    &[&bound],
                    3,
                    |s, captured| s[0].less(&captured[0]),
                    |s, _| vec![s[0].square() + 1.0, &s[1] * &s[0]],
                );
                vec![grown[1].clone()]
            })
        }),
    ];
}
