//! That variables are numbers.

use super::{Callback, TrainCx};
use crate::graph::VariableInfo;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Ends training with an error that names the variable if one that is trained holds a NaN or an infinity: looked at
/// before training and at every trigger, or after every step.
///
/// Updates that are not finite are stopped before they happen, see `NanPolicy`; this finds
/// what came in otherwise, such as from a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckNumerics {
    every_step: bool,
}

impl CheckNumerics {
    /// The callback.
    pub fn new() -> CheckNumerics {
        CheckNumerics::default()
    }

    /// After every step as well. That reads every variable, so it is slow.
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
            let why = format!("the variable {} is not finite: element {at} of {:?}", v.name, v.sizes);
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
