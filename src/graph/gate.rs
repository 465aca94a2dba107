//! Gates: functions applied to variable updates before they take effect.

use super::scope::OnDrop;
use super::{Graph, NodeKind, Tensor, VariableId};
use std::rc::Rc;

/// Computes the value to assign from a variable's current value and the next value an update
/// proposes.
pub(super) type Gate = Rc<dyn Fn(&Tensor, &Tensor) -> Tensor>;

impl Graph {
    /// Runs `build` and applies `gate` to every update built in it. Gradient accumulation uses this
    /// to hold back an optimizer, including its state, without the optimizer's knowledge.
    pub(crate) fn updates_through<R>(
        &self,
        gate: impl Fn(&Tensor, &Tensor) -> Tensor + 'static,
        build: impl FnOnce() -> R,
    ) -> R {
        if let Some(mut b) = self.building() {
            b.gates.push(Rc::new(gate));
        }
        let _guard = OnDrop(|| {
            if let Some(mut b) = self.building() {
                b.gates.pop();
            }
        });
        build()
    }

    /// Applies the open gates to `next`, the value proposed for `variable`.
    #[track_caller]
    pub(super) fn through_gates(&self, variable: VariableId, next: &Tensor) -> Tensor {
        let gates = self.built().map_or_else(Vec::new, |b| b.gates.clone());
        if gates.is_empty() {
            return next.clone();
        }
        let current = self.current_value(variable);
        gates.iter().rev().fold(next.clone(), |next, gate| gate(&current, &next))
    }

    /// Returns a variable's value after the updates built so far.
    #[track_caller]
    pub(super) fn current_value(&self, variable: VariableId) -> Tensor {
        self.add_node(NodeKind::Current(variable), &[], None).swap_remove(0)
    }
}
