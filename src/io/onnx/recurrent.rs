//! Recurrent layers, unrolled over a known number of steps.

use super::node_cx::NodeCx;
use super::value::Value;
use crate::graph::Tensor;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The maximum number of steps of all unrolled layers together.
const MAX_STEPS: usize = 1 << 14;

/// The inputs of a recurrent layer.
struct Layer {
    /// One `[batch, inputs]` per step.
    steps: Vec<Tensor>,
    hidden: usize,
    is_reverse: Vec<bool>,
    /// The number of steps of each example `[batch, 1]`, if they differ.
    lengths: Option<Tensor>,
}

impl Layer {
    fn new(cx: &mut NodeCx<'_, '_>) -> Result<Layer> {
        let node = cx.node;
        let directions = match node.text("direction", "forward")? {
            "forward" => vec![false],
            "reverse" => vec![true],
            _ => vec![false, true],
        };
        if node.flag("layout")? {
            return Err(cx.unsupported("the batch as the first dim"));
        }
        let lengths = if cx.has(4) { Some(cx.tensor(4)?.expand_dims(1)) } else { None };
        let has_others = node.attributes.iter().any(|(name, _)| name == "activations");
        let usual: &[&str] =
            if node.op_type == "GRU" { &["Sigmoid", "Tanh"] } else { &["Sigmoid", "Tanh", "Tanh"] };
        let given = node.texts("activations")?;
        if has_others && !given.iter().zip(usual.iter().cycle()).all(|(a, b)| a == b) {
            return Err(cx.unsupported(format!("the activations {given:?}")));
        }
        if node.attributes.iter().any(|(name, _)| name == "clip") || node.flag("input_forget")? {
            return Err(cx.unsupported("clipping, or a joint input and forget gate,"));
        }
        let hidden = usize::try_from(node.int("hidden_size", 0)?).ok().filter(|&n| n > 0);
        let hidden = match (hidden, cx.shape(2).last().and_then(|d| d.known())) {
            (Some(n), Some(m)) if n == m => n,
            (None, Some(n)) => n,
            _ => return Err(Error::new(ErrorKind::Io, "its hidden size does not fit its weights")),
        };
        let shape = cx.shape(0);
        let steps = shape.first().and_then(|d| d.known()).ok_or_else(super::translator::unknown_size)?;
        let unrolled = &mut cx.translator.unrolled;
        *unrolled = unrolled.saturating_add(steps.saturating_mul(directions.len()));
        if shape.rank() != 3 || steps == 0 || *unrolled > MAX_STEPS {
            return Err(cx.unsupported(format!("a sequence of shape {shape}")));
        }
        let wanted = [directions.len(), hidden];
        if (1..3).any(|i| cx.shape(i).first().and_then(|d| d.known()) != Some(wanted[0]) || cx.rank(i) != 3) {
            return Err(Error::new(ErrorKind::Io, "its weights do not fit its directions"));
        }
        Ok(Layer { steps: cx.tensor(0)?.unstack(0), hidden, is_reverse: directions, lengths })
    }

    /// Returns the weights of a direction: of the inputs `[inputs, gates]`, of the state `[hidden,
    /// gates]`, and their biases.
    fn weights(&self, cx: &mut NodeCx<'_, '_>, direction: usize, gates: usize) -> Result<Weights> {
        let part = |x: Tensor| x.slice_axis(0, direction, Some(direction + 1)).squeeze(0);
        let w = part(cx.weight(1)?).transpose(&[1, 0]);
        let r = part(cx.weight(2)?).transpose(&[1, 0]);
        let width = gates * self.hidden;
        let biases = match cx.has(3) {
            true => {
                let both = part(cx.weight(3)?);
                Some([both.slice_axis(0, 0, Some(width)), both.slice_axis(0, width, Some(2 * width))])
            }
            false => None,
        };
        Ok(Weights { w, r, biases })
    }

    /// Returns the first state of a direction, which is input `i` of the node, or zeros.
    fn first(&self, cx: &mut NodeCx<'_, '_>, i: usize, direction: usize) -> Result<Tensor> {
        if cx.has(i) {
            return Ok(cx.tensor(i)?.slice_axis(0, direction, Some(direction + 1)).squeeze(0));
        }
        let column = self.steps[0].slice_axis(1, 0, Some(1)) * 0.0;
        Ok(column.broadcast_to(&[-1, self.hidden as isize]))
    }

    /// Returns whether step `i` exists in each example.
    fn exists(&self, cx: &NodeCx<'_, '_>, i: usize) -> Result<Option<Tensor>> {
        let Some(lengths) = &self.lengths else { return Ok(None) };
        Ok(Some(lengths.greater(&cx.scalar(i as f64, lengths.dtype())?)))
    }

    /// Returns the output of a step with state `h`.
    fn output(&self, cx: &NodeCx<'_, '_>, i: usize, h: &Tensor) -> Result<Tensor> {
        Ok(match self.exists(cx, i)? {
            None => h.clone(),
            Some(exists) => exists.select(h, &cx.scalar(0.0, h.dtype())?),
        })
    }

    /// Returns the outputs: the states of all steps `[steps, directions, batch, hidden]`, and the
    /// last states `[directions, batch, hidden]`.
    fn outputs(
        &self,
        cx: &NodeCx<'_, '_>,
        all: Vec<Vec<Tensor>>,
        last: Vec<Vec<Tensor>>,
    ) -> Result<Vec<Value>> {
        let graph = cx.graph();
        let steps: Vec<Tensor> = all.iter().map(|states| graph.stack(states, 0)).collect();
        let mut outputs = vec![graph.stack(&steps, 1)];
        outputs.extend(last.iter().map(|states| graph.stack(states, 0)));
        Ok(outputs.into_iter().map(Value::Computed).collect())
    }
}

struct Weights {
    w: Tensor,
    r: Tensor,
    biases: Option<[Tensor; 2]>,
}

impl Weights {
    fn biased(&self, y: Tensor, i: usize) -> Tensor {
        match &self.biases {
            Some(biases) => y + &biases[i],
            None => y,
        }
    }
}

pub(super) fn lstm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let layer = Layer::new(cx)?;
    if cx.has(7) {
        return Err(cx.unsupported("peepholes"));
    }
    let (mut all, mut last) = (Vec::new(), vec![Vec::new(), Vec::new()]);
    for (direction, &is_reverse) in layer.is_reverse.iter().enumerate() {
        let weights = layer.weights(cx, direction, 4)?;
        let (mut h, mut c) = (layer.first(cx, 5, direction)?, layer.first(cx, 6, direction)?);
        let mut states = Vec::new();
        let mut order: Vec<usize> = (0..layer.steps.len()).collect();
        if is_reverse {
            order.reverse();
        }
        for step in order {
            let inputs = weights.biased(layer.steps[step].matmul(&weights.w), 0);
            let gates = inputs + weights.biased(h.matmul(&weights.r), 1);
            // ONNX's order of gates: input, output, forget, cell.
            let [i, o, f, g] =
                [0, 1, 2, 3].map(|k| gates.slice_axis(1, k * layer.hidden, Some((k + 1) * layer.hidden)));
            let next_c = f.sigmoid() * &c + i.sigmoid() * g.tanh();
            let next_h = o.sigmoid() * next_c.tanh();
            // The state stays as it is in steps that an example does not have; their output is zero.
            match layer.exists(cx, step)? {
                None => (h, c) = (next_h, next_c),
                Some(exists) => (h, c) = (exists.select(&next_h, &h), exists.select(&next_c, &c)),
            }
            states.push(layer.output(cx, step, &h)?);
        }
        if is_reverse {
            states.reverse();
        }
        all.push(states);
        last[0].push(h);
        last[1].push(c);
    }
    layer.outputs(cx, all, last)
}

pub(super) fn gru(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let layer = Layer::new(cx)?;
    let reset_after = cx.node.flag("linear_before_reset")?;
    let (mut all, mut last) = (Vec::new(), vec![Vec::new()]);
    for (direction, &is_reverse) in layer.is_reverse.iter().enumerate() {
        let weights = layer.weights(cx, direction, 3)?;
        let mut h = layer.first(cx, 5, direction)?;
        let mut states = Vec::new();
        let mut order: Vec<usize> = (0..layer.steps.len()).collect();
        if is_reverse {
            order.reverse();
        }
        let n = layer.hidden;
        let gate = |x: &Tensor, k: usize| x.slice_axis(-1, k * n, Some((k + 1) * n));
        for step in order {
            let inputs = weights.biased(layer.steps[step].matmul(&weights.w), 0);
            let state = weights.biased(h.matmul(&weights.r), 1);
            // ONNX's order of gates: update, reset, hidden.
            let update = (gate(&inputs, 0) + gate(&state, 0)).sigmoid();
            let reset = (gate(&inputs, 1) + gate(&state, 1)).sigmoid();
            let candidate = match reset_after {
                true => reset * gate(&state, 2),
                false => {
                    let product = (reset * &h).matmul(&gate(&weights.r, 2));
                    match &weights.biases {
                        Some([_, bias]) => product + gate(bias, 2),
                        None => product,
                    }
                }
            };
            let candidate = (gate(&inputs, 2) + candidate).tanh();
            let next = &candidate + update * (&h - &candidate);
            h = match layer.exists(cx, step)? {
                None => next,
                Some(exists) => exists.select(&next, &h),
            };
            states.push(layer.output(cx, step, &h)?);
        }
        if is_reverse {
            states.reverse();
        }
        all.push(states);
        last[0].push(h);
    }
    layer.outputs(cx, all, last)
}
