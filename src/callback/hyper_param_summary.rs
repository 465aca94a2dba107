//! Reports hyper-parameters.

use super::{Callback, GraphCx, TrainCx};
use crate::graph::HYPER_PARAMS;
use tensorpack_tensor::Result;

/// Reports the value of every hyper-parameter that
/// [`TowerContext::hyper_param`](crate::tower::TowerContext::hyper_param) created, such as
/// `learning_rate`, at every trigger. After an epoch, it is the value of the epoch's last step,
/// which schedules may change for the next epoch. If another callback reports a statistic of that
/// name, its value is kept.
#[derive(Clone, Debug, Default)]
pub struct HyperParamSummary {
    names: Vec<String>,
    /// The values at the end of an epoch, before other callbacks change them.
    values: Vec<f64>,
}

impl HyperParamSummary {
    /// Creates the callback.
    pub fn new() -> HyperParamSummary {
        HyperParamSummary::default()
    }
}

impl Callback for HyperParamSummary {
    fn chief_only(&self) -> bool {
        true
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let ids = g.graph().collection(HYPER_PARAMS).variables;
        self.names = ids.into_iter().filter_map(|id| g.graph().variable_info(id)).map(|v| v.name).collect();
        Ok(())
    }

    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let read = |name: &String| cx.session().read(name)?.to_scalar();
        self.values = self.names.iter().map(read).collect::<Result<_>>()?;
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let values = std::mem::take(&mut self.values);
        for (i, name) in self.names.iter().enumerate() {
            let reported =
                cx.monitors().history(name).last().is_some_and(|(step, _)| *step == cx.global_step);
            if !reported {
                let read = || cx.session().read(name)?.to_scalar();
                let value = values.get(i).map_or_else(read, |value| Ok(*value))?;
                cx.put_scalar(name, value);
            }
        }
        Ok(())
    }
}
