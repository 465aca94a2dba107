//! Logical reductions: any and all.

use super::composed;
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::{DType, Error};

impl Tensor {
    /// Returns whether any element is true along `axes` (empty: all axes), which are removed. False
    /// if there are no elements.
    #[track_caller]
    pub fn any_axes(&self, axes: &[isize]) -> Tensor {
        self.bool_reduction("Any", Location::caller(), || {
            let trues = self.cast(DType::I64).sum_axes(axes);
            trues.greater(0.0)
        })
    }

    /// Returns whether all elements are true along `axes` (empty: all axes), which are removed.
    /// True if there are no elements.
    #[track_caller]
    pub fn all_axes(&self, axes: &[isize]) -> Tensor {
        self.bool_reduction("All", Location::caller(), || self.logical_not().any_axes(axes).logical_not())
    }

    #[track_caller]
    fn bool_reduction(
        &self,
        name: &str,
        caller: &'static Location<'static>,
        build: impl FnOnce() -> Tensor,
    ) -> Tensor {
        match self.dtype() {
            _ if self.is_poison() => self.clone(),
            DType::Bool => composed(self, name, caller, build),
            d => self.fail(name, Error::dtype(format!("expected bool elements, got {d}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("Any and all", Never("boolean result"), |draw| {
            let rank = draw.below(4);
            let (sizes, axes) = (draw.sizes(rank), draw.axes(rank));
            Trial::new(vec![Input::new(draw, sizes, Elements::Bools)], move |x| {
                vec![x[0].any_axes(&axes), x[0].all_axes(&axes)]
            })
        })
        .empty("x.any_axes([0])", "bool[0, 3]", "zeros [3]", |x| x[0].any_axes(&[0]))
        .empty("x.all_axes([0])", "bool[0, 3]", "1 [3]", |x| x[0].all_axes(&[0])),
    ];
}
