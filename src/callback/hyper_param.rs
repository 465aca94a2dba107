//! Hyper-parameters that callbacks can change during training.

use super::{GraphCx, Progress, TrainCx};
use crate::graph::nearest_names;
use serde_json::{Value, json};
use std::fmt;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// A scalar that callbacks can set: a variable of the graph, or any value with a getter and a
/// setter.
#[doc(alias = "GraphVarParam")]
#[doc(alias = "ObjAttrParam")]
pub struct HyperParam {
    name: String,
    target: Target,
}

enum Target {
    Variable,
    Attribute { get: Box<dyn Fn() -> f64>, set: Box<dyn FnMut(f64)> },
}

impl HyperParam {
    /// The scalar variable `name`, such as the `learning_rate` that
    /// `t.hyper_param("learning_rate", 0.1)` creates. Checkpoints store it like any variable.
    pub fn variable(name: impl Into<String>) -> HyperParam {
        HyperParam { name: name.into(), target: Target::Variable }
    }

    /// A value outside the graph, called `name`. Checkpoints store it with the state of the
    /// callback that sets it.
    pub fn attribute(
        name: impl Into<String>,
        get: impl Fn() -> f64 + 'static,
        set: impl FnMut(f64) + 'static,
    ) -> HyperParam {
        HyperParam { name: name.into(), target: Target::Attribute { get: Box::new(get), set: Box::new(set) } }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks that the variable exists and is a scalar.
    fn check(&self, g: &GraphCx<'_>) -> Result<()> {
        if let Target::Attribute { .. } = self.target {
            return Ok(());
        }
        match g.variables().find(|v| v.name == self.name) {
            Some(v) if v.sizes.is_empty() => Ok(()),
            Some(v) => {
                Err(Error::shape(format!("variable {} has shape {:?}, not a scalar", self.name, v.sizes))
                    .at(v.site))
            }
            None => {
                let scalars = g.variables().filter(|v| v.sizes.is_empty());
                let scalars: Vec<String> = scalars.map(|v| v.name).collect();
                let why = format!("there is no variable named {:?}", self.name);
                let known = scalars.iter().map(String::as_str);
                Err(Error::new(ErrorKind::Name, why)
                    .note(nearest_names("scalar variables", &self.name, known))
                    .note("create one with t.hyper_param(name, value)"))
            }
        }
    }

    fn value(&self, cx: &TrainCx<'_>) -> Result<f64> {
        match &self.target {
            Target::Variable => cx.session().read(&self.name)?.to_scalar(),
            Target::Attribute { get, .. } => Ok(get()),
        }
    }

    fn set(&mut self, cx: &TrainCx<'_>, value: f64) -> Result<()> {
        match &mut self.target {
            Target::Variable => {
                let dtype = cx.session().read(&self.name)?.dtype();
                if !dtype.is_float() && value.fract() != 0.0 {
                    return Err(Error::argument(format!(
                        "{} has dtype {dtype} and cannot be set to {value}",
                        self.name
                    )));
                }
                cx.session().write(&self.name, &HostTensor::from_f64(dtype, [], &[value])?)
            }
            Target::Attribute { set, .. } => {
                set(value);
                Ok(())
            }
        }
    }
}

/// The variable of this name.
impl<S: Into<String>> From<S> for HyperParam {
    fn from(name: S) -> HyperParam {
        HyperParam::variable(name)
    }
}

impl fmt::Debug for HyperParam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HyperParam({})", self.name)
    }
}

/// The common part of all callbacks that set a hyper-parameter.
#[derive(Debug)]
#[doc(alias = "HyperParamSetter")]
pub(super) struct Setter {
    param: HyperParam,
    /// The epoch of the last logged change.
    logged_epoch: Option<u64>,
}

impl Setter {
    pub(super) fn new(param: HyperParam) -> Setter {
        Setter { param, logged_epoch: None }
    }

    pub(super) fn param(&self) -> &str {
        self.param.name()
    }

    /// Returns the name of the callback.
    pub(super) fn name(&self, callback: &str) -> String {
        format!("{callback}({})", self.param.name)
    }

    pub(super) fn setup_graph(&self, g: &GraphCx<'_>) -> Result<()> {
        self.param.check(g)
    }

    pub(super) fn value(&self, cx: &TrainCx<'_>) -> Result<f64> {
        self.param.value(cx)
    }

    /// Sets the value. Logs a change at most once per epoch.
    pub(super) fn set(&mut self, cx: &TrainCx<'_>, value: f64) -> Result<()> {
        let before = self.param.value(cx)?;
        self.param.set(cx, value)?;
        // What the variable has: it may have rounded the value.
        let after = self.param.value(cx)?;
        let Progress { epoch_num, global_step, .. } = **cx;
        if before != after && self.logged_epoch != Some(epoch_num) {
            self.logged_epoch = Some(epoch_num);
            // Most hyper-parameters are f32, whose digits are those that people wrote.
            let (before, after) = (before as f32, after as f32);
            log::info!("after step {global_step}, {} changes from {before} to {after}", self.param.name);
        }
        Ok(())
    }

    /// Returns the value if it lives outside the graph. Checkpoints store variables separately.
    pub(super) fn state(&self) -> Value {
        match &self.param.target {
            Target::Variable => Value::Null,
            Target::Attribute { get, .. } => json!(get().to_bits()),
        }
    }

    pub(super) fn load_state(&mut self, state: &Value) {
        if let (Target::Attribute { set, .. }, Some(bits)) = (&mut self.param.target, state.as_u64()) {
            set(f64::from_bits(bits));
        }
    }
}
