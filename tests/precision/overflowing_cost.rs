//! A cost that overflows in f16 on some inputs, with an optimizer that has every kind of state.

use tensorpack::prelude::*;

/// A value of `x` for which the products of [`cost`] overflow in f16 but not in f32.
pub(crate) const OVERFLOWS: f32 = 60000.0;

/// Returns the cost of a layer, with batch normalization for a state that is no gradient's.
pub(crate) fn cost(t: &TowerContext, x: &Tensor) -> Tensor {
    let ones = Init::ones();
    let y = Linear::new(2).init(ones).apply(t, "fc", x);
    let y = BatchNorm::new().apply(t, "bn", &y.reshape(&[-1, 1, 1, 2]));
    (y.square().mean() + (x.matmul(t.variable(VariableSpec::new("w", [3, 1])).value())).mean()).named("cost")
}

pub(crate) fn optimizer() -> Box<dyn Optimizer> {
    Accumulate::new(Momentum::new(0.01, 0.9).process(GlobalNormClip::new(10.0)), 2).boxed()
}

/// The state of all variables of a session, by name.
pub(crate) fn variables(session: &Session) -> Vec<(String, HostTensor)> {
    let names = session.graph().variables().iter().map(|v| v.name.clone());
    names.map(|name| (name.clone(), session.read(&name).unwrap())).collect()
}
