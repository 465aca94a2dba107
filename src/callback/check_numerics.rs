//! Checks that trainable variables are finite.

use super::{Callback, TrainCx};
use crate::graph::VariableInfo;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Ends training with an error if a trainable variable contains a NaN or an infinity. Checks before
/// training and at every trigger, optionally after every step.
///
/// Non-finite updates never reach a variable (see `NanPolicy`). This callback finds non-finite
/// values from elsewhere, such as a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckNumerics {
    every_step: bool,
}

impl CheckNumerics {
    /// Creates the callback.
    pub fn new() -> CheckNumerics {
        CheckNumerics::default()
    }

    /// Also checks after every step. Slow, because it reads every variable.
    #[must_use]
    #[doc(alias = "run_step")]
    pub fn every_step(self) -> CheckNumerics {
        CheckNumerics { every_step: true }
    }
}

fn check(v: &VariableInfo, value: &HostTensor) -> Result<()> {
    let bad = match value.dtype() {
        DType::F32 => value.as_slice::<f32>()?.iter().position(|x| !x.is_finite()),
        _ => value.to_f64_vec().iter().position(|x| !x.is_finite()),
    };
    match bad {
        None => Ok(()),
        Some(at) => {
            let why = format!("variable {} is not finite: element {at} of {:?}", v.name, v.sizes);
            Err(Error::new(ErrorKind::NotFinite, why).at(v.site))
        }
    }
}

impl Callback for CheckNumerics {
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.trigger(cx)
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.every_step { self.trigger(cx) } else { Ok(()) }
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let session = cx.session();
        let mut trained = session.graph().variables().iter().filter(|v| v.trainable && v.dtype.is_float());
        trained.try_for_each(|v| check(v, &session.read(&v.name)?))
    }
}
