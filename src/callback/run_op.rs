//! Runs an operation outside the training step.

use super::{Callback, GraphCx, TrainCx};
use crate::graph::{Fetch, Op};
use crate::runtime::IntoFetch;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Runs an operation before training and at every trigger, or with every step.
///
/// ```
/// use tensorpack::callback::RunOp;
/// // Once before training, and again after every epoch.
/// let op = RunOp::new(|g| Ok(g.graph().group(&[])));
/// // Only with every step.
/// let op = RunOp::new(|g| Ok(g.graph().group(&[]))).no_before_train().no_trigger().with_steps();
/// ```
pub struct RunOp {
    make: Option<MakeOp>,
    op: Option<Fetch>,
    before: bool,
    as_trigger: bool,
    with_steps: bool,
}

type MakeOp = Box<dyn FnOnce(&mut GraphCx<'_>) -> Result<Op>>;

impl RunOp {
    /// Runs the operation that `make` returns. `make` is called while the graph can still change.
    pub fn new(make: impl FnOnce(&mut GraphCx<'_>) -> Result<Op> + 'static) -> RunOp {
        RunOp { make: Some(Box::new(make)), op: None, before: true, as_trigger: true, with_steps: false }
    }

    /// Runs an existing operation.
    #[doc(alias = "of")]
    pub fn from_op(op: &Op) -> RunOp {
        let op = op.clone();
        RunOp::new(move |_| Ok(op))
    }

    /// Does not run before training. By default it runs once before training, except in a resumed
    /// run.
    #[must_use]
    #[doc(alias = "before")]
    #[doc(alias = "run_before")]
    pub fn no_before_train(self) -> RunOp {
        RunOp { before: false, ..self }
    }

    /// Does not run at triggers.
    #[must_use]
    #[doc(alias = "as_trigger")]
    #[doc(alias = "run_as_trigger")]
    pub fn no_trigger(self) -> RunOp {
        RunOp { as_trigger: false, ..self }
    }

    /// Also runs the operation as part of every training step.
    #[must_use]
    #[doc(alias = "run_step")]
    pub fn with_steps(self) -> RunOp {
        RunOp { with_steps: true, ..self }
    }

    fn run(&self, cx: &TrainCx<'_>) -> Result<()> {
        let fetch = self.op.as_ref().map(|op| op as &dyn IntoFetch);
        cx.session().run(fetch.as_slice(), &[]).map(|_| ())
    }
}

impl Callback for RunOp {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let make = self.make.take().ok_or_else(|| {
            Error::new(
                ErrorKind::Graph,
                "this RunOp was already set up: create a new one for each training run",
            )
        })?;
        let op = make(g)?;
        if self.with_steps {
            g.run_with_step(&op);
        }
        self.op = Some(Fetch::from(&op));
        Ok(())
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.before && !cx.resumed() { self.run(cx) } else { Ok(()) }
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.as_trigger { self.run(cx) } else { Ok(()) }
    }
}
