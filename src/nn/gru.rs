//! Gated recurrent units (Cho et al., 2014), with the reset gate after the product, so that a step has one.

use super::bias::{add_bias, channels};
use super::parameter::parameter;
use super::sequence::{initial_state, unrolled};
use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// One step of a GRU: of the thirds r, z, n of `x W + b` and of `h U`, makes
/// `n = tanh(n of x + sigmoid(r) (n of h + c))` and `h = (1 - sigmoid(z)) n + sigmoid(z) h`.
#[derive(Clone, Debug)]
pub struct GruCell {
    units: usize,
    init: Init,
    recurrent_init: Init,
}

impl GruCell {
    /// With this many units.
    pub fn new(units: usize) -> GruCell {
        GruCell { units, init: Init::xavier(), recurrent_init: Init::xavier() }
    }

    /// With `W` drawn like this.
    #[must_use]
    pub fn init(self, init: Init) -> GruCell {
        GruCell { init, ..self }
    }

    /// With `U` drawn like this.
    #[must_use]
    pub fn recurrent_init(self, init: Init) -> GruCell {
        GruCell { recurrent_init: init, ..self }
    }

    /// One step on `x [batch, features]`, from a state or from zeros, making `name/W`, `name/U`, `name/b` and `name/c`
    /// the first time and sharing them from then on. The new state is the output.
    #[track_caller]
    pub fn step(&self, t: &TowerContext, name: &str, x: &Tensor, state: Option<&Tensor>) -> Tensor {
        t.auto_reusing().layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let Some(inputs) = channels(x, 2..=2) else {
                let why = format!("takes [batch, features] with known features, not {}", x.shape());
                return x.fail("GruCell", Error::shape(why));
            };
            let (projected, [u, c]) = self.projected(t, x, inputs);
            let begin = state.map(|h| initial_state("GruCell", h, x, self.units));
            self.advanced(&projected, [&u, &c], begin.as_ref())
        })
    }

    /// `x W + b`, for one step or many, and `U` and `c`.
    #[track_caller]
    fn projected(&self, t: &TowerContext, x: &Tensor, inputs: usize) -> (Tensor, [Tensor; 2]) {
        let weight = |name: &str, rows: usize, init: &Init| {
            let spec = VariableSpec::new(name, [rows, 3 * self.units]).init(init.clone());
            parameter(t, spec, x)
        };
        let w = weight("W", inputs, &self.init);
        let u = weight("U", self.units, &self.recurrent_init);
        let c = parameter(t, VariableSpec::new("c", [self.units]).init(Init::zeros()), x);
        (add_bias(t, &x.matmul(&w), 3 * self.units), [u, c])
    }

    /// The state after a step.
    #[track_caller]
    fn advanced(&self, projected: &Tensor, [u, c]: [&Tensor; 2], state: Option<&Tensor>) -> Tensor {
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

/// A GRU over sequences `[batch, time, features]` of a known number of steps.
#[derive(Clone, Debug)]
pub struct Gru {
    cell: GruCell,
}

impl Gru {
    /// With this many units.
    pub fn new(units: usize) -> Gru {
        Gru { cell: GruCell::new(units) }
    }

    /// With `W` drawn like this.
    #[must_use]
    pub fn init(self, init: Init) -> Gru {
        Gru { cell: self.cell.init(init) }
    }

    /// With `U` drawn like this.
    #[must_use]
    pub fn recurrent_init(self, init: Init) -> Gru {
        Gru { cell: self.cell.recurrent_init(init) }
    }

    /// Applies the layer from a state `[batch, units]` or from zeros, making (or sharing) `name/W`, `name/U`, `name/b`
    /// and `name/c`; returns the outputs `[batch, time, units]` and the last state.
    #[track_caller]
    pub fn apply(
        &self,
        t: &TowerContext,
        name: &str,
        x: &Tensor,
        state: Option<&Tensor>,
    ) -> (Tensor, Tensor) {
        let mut last = None;
        let y = t.layer(name, x, |t| {
            let project = |inputs: usize| self.cell.projected(t, x, inputs);
            let advance = |projected: &Tensor, [u, c]: &[Tensor; 2], state: Option<&Tensor>| {
                let next = self.cell.advanced(projected, [u, c], state);
                (next.clone(), next)
            };
            let begin = state.map(|h| initial_state("Gru", h, x, self.cell.units));
            let (y, state) = unrolled("Gru", x, project, begin, advance);
            last = state;
            y
        });
        let last = last.unwrap_or_else(|| y.clone());
        (y, last)
    }
}
