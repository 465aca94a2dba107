//! Sets a hyper-parameter with a function.

use super::hyper_param::{HyperParam, Setter};
use super::{Callback, GraphCx, TrainCx};
use serde_json::Value;
use std::fmt;
use tensorpack_tensor::Result;

/// Sets a hyper-parameter to a function of the epoch number and the current value. The function is
/// called at every trigger, and before training with the number of the epoch before the first.
///
/// ```
/// use tensorpack::callback::HyperParamSetterWithFunc;
/// let rate = HyperParamSetterWithFunc::new("learning_rate", |epoch, _| 0.1 * 0.97f64.powi(epoch as i32));
/// ```
pub struct HyperParamSetterWithFunc {
    setter: Setter,
    function: Box<dyn FnMut(u64, f64) -> f64>,
}

impl HyperParamSetterWithFunc {
    /// Sets `param` to `function(epoch, value)`. For exact resume the function must depend on
    /// nothing else.
    pub fn new(
        param: impl Into<HyperParam>,
        function: impl FnMut(u64, f64) -> f64 + 'static,
    ) -> HyperParamSetterWithFunc {
        HyperParamSetterWithFunc { setter: Setter::new(param.into()), function: Box::new(function) }
    }
}

impl Callback for HyperParamSetterWithFunc {
    fn name(&self) -> String {
        self.setter.name("HyperParamSetterWithFunc")
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        self.setter.setup_graph(g)
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        // A resumed run has the value from the checkpoint.
        if cx.resumed() { Ok(()) } else { self.trigger(cx) }
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let value = (self.function)(cx.epoch_num, self.setter.value(cx)?);
        self.setter.set(cx, value)
    }

    fn state(&self) -> Value {
        self.setter.state()
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.setter.load_state(state);
        Ok(())
    }
}

impl fmt::Debug for HyperParamSetterWithFunc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HyperParamSetterWithFunc").field("setter", &self.setter).finish_non_exhaustive()
    }
}
