//! Numbers that steer training and may change on the way.

use super::{GraphCx, Progress, TrainCx};
use serde_json::{Value, json};
use std::fmt;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// A number that callbacks can set: a scalar variable of the graph, or anything else that can be read and written.
#[doc(alias = "GraphVarParam")]
#[doc(alias = "ObjAttrParam")]
pub struct HyperParam {
    name: String,
    place: Place,
}

enum Place {
    Variable,
    Attribute { get: Box<dyn Fn() -> f64>, set: Box<dyn FnMut(f64)> },
}

impl HyperParam {
    /// The scalar variable of this name, such as the `learning_rate` that
    /// `t.hyper_param("learning_rate", 0.1)` makes. A checkpoint has it, as it has all variables.
    pub fn variable(name: impl Into<String>) -> HyperParam {
        HyperParam { name: name.into(), place: Place::Variable }
    }

    /// Something outside the graph, called `name`. A checkpoint keeps its value with the callback that sets it.
    pub fn attribute(
        name: impl Into<String>,
        get: impl Fn() -> f64 + 'static,
        set: impl FnMut(f64) + 'static,
    ) -> HyperParam {
        HyperParam { name: name.into(), place: Place::Attribute { get: Box::new(get), set: Box::new(set) } }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// That there is such a variable, and that it is one number.
    fn check(&self, g: &GraphCx<'_>) -> Result<()> {
        if let Place::Attribute { .. } = self.place {
            return Ok(());
        }
        match g.variables().find(|v| v.name == self.name) {
            Some(v) if v.sizes.is_empty() => Ok(()),
            Some(v) => {
                Err(Error::shape(format!("the variable {} is {:?}, not a scalar", self.name, v.sizes))
                    .at(v.site))
            }
            None => {
                let scalars = g.variables().filter(|v| v.sizes.is_empty());
                let scalars: Vec<String> = scalars.map(|v| v.name).collect();
                let why = format!("there is no variable named {:?} to be set", self.name);
                let e = Error::new(ErrorKind::Name, why);
                Err(match scalars.is_empty() {
                    true => e.note("make one with t.hyper_param(name, value)"),
                    false => e.note(format!("scalar variables are: {}", scalars.join(", "))),
                })
            }
        }
    }

    fn value(&self, cx: &TrainCx<'_>) -> Result<f64> {
        match &self.place {
            Place::Variable => cx.session().read(&self.name)?.to_scalar(),
            Place::Attribute { get, .. } => Ok(get()),
        }
    }

    fn set(&mut self, cx: &TrainCx<'_>, value: f64) -> Result<()> {
        match &mut self.place {
            Place::Variable => {
                let dtype = cx.session().read(&self.name)?.dtype();
                if !dtype.is_float() && value.fract() != 0.0 {
                    return Err(Error::argument(format!(
                        "{} is {dtype}, so it cannot be {value}",
                        self.name
                    )));
                }
                cx.session().write(&self.name, &HostTensor::from_f64(dtype, [], &[value])?)
            }
            Place::Attribute { set, .. } => {
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

/// What all callbacks that set a hyper-parameter have in common.
#[derive(Debug)]
#[doc(alias = "HyperParamSetter")]
pub(super) struct Setter {
    param: HyperParam,
    /// The epoch of the last change that was logged.
    said: Option<u64>,
}

impl Setter {
    pub(super) fn of(param: HyperParam) -> Setter {
        Setter { param, said: None }
    }

    pub(super) fn param(&self) -> &str {
        self.param.name()
    }

    /// What the callback is called.
    pub(super) fn name(&self, callback: &str) -> String {
        format!("{callback}({})", self.param.name)
    }

    pub(super) fn setup_graph(&self, g: &GraphCx<'_>) -> Result<()> {
        self.param.check(g)
    }

    pub(super) fn value(&self, cx: &TrainCx<'_>) -> Result<f64> {
        self.param.value(cx)
    }

    /// Sets a value. Changes are logged, once an epoch at most.
    pub(super) fn set(&mut self, cx: &TrainCx<'_>, value: f64) -> Result<()> {
        let before = self.param.value(cx)?;
        let Progress { epoch_num, global_step, .. } = **cx;
        if before != value && self.said != Some(epoch_num) {
            self.said = Some(epoch_num);
            log::info!(
                "after step {global_step}, {} changes from {before:.6} to {value:.6}",
                self.param.name
            );
        }
        self.param.set(cx, value)
    }

    /// The value of what no checkpoint has otherwise.
    pub(super) fn state(&self) -> Value {
        match &self.param.place {
            Place::Variable => Value::Null,
            Place::Attribute { get, .. } => json!(get().to_bits()),
        }
    }

    pub(super) fn load_state(&mut self, state: &Value) {
        if let (Place::Attribute { set, .. }, Some(bits)) = (&mut self.param.place, state.as_u64()) {
            set(f64::from_bits(bits));
        }
    }
}
