//! Gated recurrent units (Cho et al., 2014). The reset gate is applied after the recurrent matrix
//! product, so that a step needs only one product.

use super::bias::{add_bias, channels};
use super::parameter::parameter;
use super::sequence::{Recurrence, RecurrentOptions, initial_state, run};
use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// One step of a GRU.
///
/// Splits `x W + b` and `h U` into thirds `rx, zx, nx` and `rh, zh, nh`, and computes
///
/// ```text
/// r = sigmoid(rx + rh)    z = sigmoid(zx + zh)    n = tanh(nx + r (nh + c))
/// h = (1 - z) n + z h
/// ```
#[derive(Clone, Debug)]
pub struct GruCell {
    units: usize,
    init: Init,
    recurrent_init: Init,
}

impl GruCell {
    /// Creates a cell with this many units.
    pub fn new(units: usize) -> GruCell {
        GruCell { units, init: Init::xavier(), recurrent_init: Init::xavier() }
    }

    /// Sets the initializer of `W` (default: [`Init::xavier`]).
    #[must_use]
    pub fn init(self, init: Init) -> GruCell {
        GruCell { init, ..self }
    }

    /// Sets the initializer of `U` (default: [`Init::xavier`]).
    #[must_use]
    pub fn recurrent_init(self, init: Init) -> GruCell {
        GruCell { recurrent_init: init, ..self }
    }

    /// Runs one step on `x [batch, features]` from `state`, or from zeros. The first call creates
    /// `name/W`, `name/U`, `name/b` and `name/c`; later calls share them. Returns the new state,
    /// which is also the output.
    #[track_caller]
    pub fn step(&self, t: &TowerContext, name: &str, x: &Tensor, state: Option<&Tensor>) -> Tensor {
        t.auto_reusing().layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let Some(inputs) = channels(x, 2..=2) else {
                let why = format!("expected [batch, features] with known features, got {}", x.shape());
                return x.fail("GruCell", Error::shape(why));
            };
            let (projected, [u, c]) = self.project(t, x, inputs);
            let initial = state.map(|h| initial_state("GruCell", h, x, self.units));
            self.next_state(&projected, [&u, &c], initial.as_ref())
        })
    }

    /// Returns `x W + b`, for one step or several, and `U` and `c`.
    #[track_caller]
    fn project(&self, t: &TowerContext, x: &Tensor, inputs: usize) -> (Tensor, [Tensor; 2]) {
        let weight = |name: &str, rows: usize, init: &Init| {
            let spec = VariableSpec::new(name, [rows, 3 * self.units]).init(init.clone());
            parameter(t, spec, x)
        };
        let w = weight("W", inputs, &self.init);
        let u = weight("U", self.units, &self.recurrent_init);
        let c = parameter(t, VariableSpec::new("c", [self.units]).init(Init::zeros()), x);
        (add_bias(t, &x.matmul(&w), 3 * self.units, &Init::zeros()), [u, c])
    }

    /// Returns the state after a step.
    #[track_caller]
    fn next_state(&self, projected: &Tensor, [u, c]: [&Tensor; 2], state: Option<&Tensor>) -> Tensor {
        let of_x = projected.cut(3, 1);
        let Some(h) = state else {
            let [r, z] = [of_x[0].sigmoid(), of_x[1].sigmoid()];
            return (1.0 - z) * (&of_x[2] + r * c).tanh();
        };
        let of_h = h.matmul(u).cut(3, 1);
        let [r, z] = [0, 1].map(|i| (&of_x[i] + &of_h[i]).sigmoid());
        let n = (&of_x[2] + r * (&of_h[2] + c)).tanh();
        (1.0 - &z) * n + z * h
    }
}

impl Recurrence<1, 2> for GruCell {
    const KIND: &'static str = "Gru";

    fn units(&self) -> usize {
        self.units
    }

    fn advance(&self, projected: &Tensor, [u, c]: &[Tensor; 2], state: Option<&[Tensor; 1]>) -> [Tensor; 1] {
        [self.next_state(projected, [u, c], state.map(|[h]| h))]
    }
}

/// A GRU over sequences `[batch, time, features]`. If the number of steps is known while the graph is
/// built, gradients use stored results; otherwise they compute each step again (see
/// [`Scan`](crate::control::Scan)).
#[derive(Clone, Debug)]
pub struct Gru {
    cell: GruCell,
}

impl Gru {
    /// Creates a layer with this many units.
    pub fn new(units: usize) -> Gru {
        Gru { cell: GruCell::new(units) }
    }

    /// Sets the initializer of `W` (default: [`Init::xavier`]).
    #[must_use]
    pub fn init(self, init: Init) -> Gru {
        Gru { cell: self.cell.init(init) }
    }

    /// Sets the initializer of `U` (default: [`Init::xavier`]).
    #[must_use]
    pub fn recurrent_init(self, init: Init) -> Gru {
        Gru { cell: self.cell.recurrent_init(init) }
    }

    /// Applies the layer, starting from `state [batch, units]` or from zeros, creating (or sharing)
    /// `name/W`, `name/U`, `name/b` and `name/c`. Returns the outputs `[batch, time, units]` and
    /// the last state.
    #[track_caller]
    pub fn apply(
        &self,
        t: &TowerContext,
        name: &str,
        x: &Tensor,
        state: Option<&Tensor>,
    ) -> (Tensor, Tensor) {
        self.apply_with(t, name, x, state, &RecurrentOptions::default())
    }

    /// Like [`Gru::apply`], over sequences of different lengths, or backwards. The last state is that
    /// after the last step of each example.
    #[track_caller]
    pub fn apply_with(
        &self,
        t: &TowerContext,
        name: &str,
        x: &Tensor,
        state: Option<&Tensor>,
        options: &RecurrentOptions,
    ) -> (Tensor, Tensor) {
        let mut last = None;
        let y = t.layer(name, x, |t| {
            let project = |inputs: usize| self.cell.project(t, x, inputs);
            let initial = state.map(|h| [initial_state("Gru", h, x, self.cell.units)]);
            let (y, state) = run(&self.cell, x, project, initial, options);
            last = state;
            y
        });
        let [last] = last.unwrap_or_else(|| [y.clone()]);
        (y, last)
    }
}
