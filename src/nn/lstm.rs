//! Long short-term memory (Hochreiter and Schmidhuber, 1997; with a forget gate, Gers et al.,
//! 2000).

use super::bias::{add_bias, channels};
use super::parameter::parameter;
use super::sequence::{Recurrence, RecurrentOptions, initial_state, run};
use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// The state of an LSTM between steps. Both tensors are `[batch, units]`.
#[derive(Clone, Debug)]
pub struct LstmState {
    /// The cell state.
    pub c: Tensor,
    /// The hidden state, which is the last output.
    pub h: Tensor,
}

impl LstmState {
    /// Checks that this is a valid state for the batch of `x`.
    #[track_caller]
    fn checked(&self, kind: &str, x: &Tensor, units: usize) -> LstmState {
        LstmState { c: initial_state(kind, &self.c, x, units), h: initial_state(kind, &self.h, x, units) }
    }
}

/// One step of an LSTM.
///
/// Splits `x W + h U + b` into the gates `i, f, g, o`, and computes
///
/// ```text
/// c = sigmoid(f + forget_bias) c + sigmoid(i) tanh(g)
/// h = sigmoid(o) tanh(c)
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "BasicLSTMCell")]
pub struct LstmCell {
    units: usize,
    forget_bias: f64,
    init: Init,
    recurrent_init: Init,
    bias_init: Init,
}

impl LstmCell {
    /// Creates a cell with this many units and a forget bias of 1.
    pub fn new(units: usize) -> LstmCell {
        let init = Init::xavier();
        LstmCell { units, forget_bias: 1.0, recurrent_init: init.clone(), init, bias_init: Init::zeros() }
    }

    /// Sets the constant added to the forget gate (default: 1), so that an untrained cell keeps its
    /// state.
    #[must_use]
    pub fn forget_bias(self, forget_bias: f64) -> LstmCell {
        LstmCell { forget_bias, ..self }
    }

    /// Sets the initializer of `W` (default: [`Init::xavier`]).
    #[must_use]
    pub fn init(self, init: Init) -> LstmCell {
        LstmCell { init, ..self }
    }

    /// Sets the initializer of `U` (default: [`Init::xavier`]).
    #[must_use]
    pub fn recurrent_init(self, init: Init) -> LstmCell {
        LstmCell { recurrent_init: init, ..self }
    }

    /// Sets the initializer of `b` (default: zeros).
    #[must_use]
    #[doc(alias = "bias_initializer")]
    pub fn bias_init(self, init: Init) -> LstmCell {
        LstmCell { bias_init: init, ..self }
    }

    /// Runs one step on `x [batch, features]` from `state`, or from zeros. The first call creates
    /// `name/W`, `name/U` and `name/b`; later calls share them.
    #[track_caller]
    pub fn step(&self, t: &TowerContext, name: &str, x: &Tensor, state: Option<&LstmState>) -> LstmState {
        let mut next = None;
        let h = t.auto_reusing().layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let Some(inputs) = channels(x, 2..=2) else {
                let why = format!("expected [batch, features] with known features, got {}", x.shape());
                return x.fail("LstmCell", Error::shape(why));
            };
            let (projected, [u]) = self.project(t, x, inputs);
            let initial = state.map(|s| s.checked("LstmCell", x, self.units));
            let state = self.next_state(&projected, &u, initial.as_ref());
            next.insert(state).h.clone()
        });
        next.unwrap_or(LstmState { c: h.clone(), h })
    }

    /// Returns `x W + b`, for one step or several, and `U`.
    #[track_caller]
    fn project(&self, t: &TowerContext, x: &Tensor, inputs: usize) -> (Tensor, [Tensor; 1]) {
        let weight = |name: &str, rows: usize, init: &Init| {
            let spec = VariableSpec::new(name, [rows, 4 * self.units]).init(init.clone());
            parameter(t, spec, x)
        };
        let w = weight("W", inputs, &self.init);
        let u = weight("U", self.units, &self.recurrent_init);
        (add_bias(t, &x.matmul(&w), 4 * self.units, &self.bias_init), [u])
    }

    /// Returns the state after a step.
    #[track_caller]
    fn next_state(&self, projected: &Tensor, u: &Tensor, state: Option<&LstmState>) -> LstmState {
        let gates = match state {
            Some(state) => state.h.matmul(u) + projected,
            None => projected.clone(),
        };
        let gates = gates.cut(4, 1);
        let [i, f, g, o] = [&gates[0], &gates[1], &gates[2], &gates[3]];
        let new = i.sigmoid() * g.tanh();
        let c = match state {
            Some(state) => (f + self.forget_bias).sigmoid() * &state.c + new,
            None => new,
        };
        LstmState { h: o.sigmoid() * c.tanh(), c }
    }
}

impl Recurrence<2, 1> for LstmCell {
    const KIND: &'static str = "Lstm";

    fn units(&self) -> usize {
        self.units
    }

    fn advance(&self, projected: &Tensor, [u]: &[Tensor; 1], state: Option<&[Tensor; 2]>) -> [Tensor; 2] {
        let state = state.map(|[c, h]| LstmState { c: c.clone(), h: h.clone() });
        let next = self.next_state(projected, u, state.as_ref());
        [next.c, next.h]
    }
}

/// An LSTM over sequences `[batch, time, features]`. If the number of steps is known while the graph
/// is built, gradients use stored results; otherwise they compute each step again (see
/// [`Scan`](crate::control::Scan)).
#[derive(Clone, Debug)]
pub struct Lstm {
    cell: LstmCell,
}

impl Lstm {
    /// Creates a layer with this many units and a forget bias of 1.
    pub fn new(units: usize) -> Lstm {
        Lstm { cell: LstmCell::new(units) }
    }

    /// Sets the constant added to the forget gate (default: 1).
    #[must_use]
    pub fn forget_bias(self, forget_bias: f64) -> Lstm {
        Lstm { cell: self.cell.forget_bias(forget_bias) }
    }

    /// Sets the initializer of `W` (default: [`Init::xavier`]).
    #[must_use]
    pub fn init(self, init: Init) -> Lstm {
        Lstm { cell: self.cell.init(init) }
    }

    /// Sets the initializer of `U` (default: [`Init::xavier`]).
    #[must_use]
    pub fn recurrent_init(self, init: Init) -> Lstm {
        Lstm { cell: self.cell.recurrent_init(init) }
    }

    /// Sets the initializer of `b` (default: zeros).
    #[must_use]
    #[doc(alias = "bias_initializer")]
    pub fn bias_init(self, init: Init) -> Lstm {
        Lstm { cell: self.cell.bias_init(init) }
    }

    /// Applies the layer, starting from `state` or from zeros, creating (or sharing) `name/W`,
    /// `name/U` and `name/b`. Returns the outputs `[batch, time, units]` and the last state.
    #[track_caller]
    pub fn apply(
        &self,
        t: &TowerContext,
        name: &str,
        x: &Tensor,
        state: Option<&LstmState>,
    ) -> (Tensor, LstmState) {
        self.apply_with(t, name, x, state, &RecurrentOptions::default())
    }

    /// Like [`Lstm::apply`], over sequences of different lengths, or backwards. The last state is
    /// that after the last step of each example.
    #[track_caller]
    pub fn apply_with(
        &self,
        t: &TowerContext,
        name: &str,
        x: &Tensor,
        state: Option<&LstmState>,
        options: &RecurrentOptions,
    ) -> (Tensor, LstmState) {
        let mut last = None;
        let y = t.layer(name, x, |t| {
            let project = |inputs: usize| self.cell.project(t, x, inputs);
            let initial = state.map(|s| s.checked("Lstm", x, self.cell.units)).map(|s| [s.c, s.h]);
            let (y, state) = run(&self.cell, x, project, initial, options);
            last = state;
            y
        });
        let [c, h] = last.unwrap_or_else(|| [y.clone(), y.clone()]);
        (y, LstmState { c, h })
    }
}
