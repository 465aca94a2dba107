//! Whether any or all of some truth values are true.

use super::composed;
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::{DType, Error};

impl Tensor {
    /// Whether any is true along some axes (none: all), which vanish. Of nothing, none is.
    #[track_caller]
    pub fn any_axes(&self, axes: &[isize]) -> Tensor {
        self.quantified("Any", Location::caller(), || {
            let trues = self.cast(DType::I64).sum_axes(axes);
            trues.greater(&trues.zero())
        })
    }

    /// Whether all are true along some axes (none: all), which vanish. Of nothing, all are.
    #[track_caller]
    pub fn all_axes(&self, axes: &[isize]) -> Tensor {
        self.quantified("All", Location::caller(), || self.logical_not().any_axes(axes).logical_not())
    }

    #[track_caller]
    fn quantified(
        &self,
        name: &str,
        caller: &'static Location<'static>,
        build: impl FnOnce() -> Tensor,
    ) -> Tensor {
        match self.dtype() {
            _ if self.is_poison() => self.clone(),
            DType::Bool => composed(self, name, caller, build),
            d => self.fail(name, Error::dtype(format!("takes bool elements, not {d}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::*;

    cases![
        case("Any and all", Never("a truth value"), |draw| {
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
