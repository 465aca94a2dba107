//! The cases of an operation.

use super::draw::{Domain, Draw};
use super::input::{Elements, Input, Trial};
use crate::graph::Tensor;

/// Whether an operation can be differentiated.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gradient {
    /// Twice, at the drawn inputs. This includes piecewise linear operations: their gradients
    /// depend on the output weights.
    Twice,
    /// Not at all, with the reason.
    Never(&'static str),
}
use Gradient::Never;

/// One operation, or one use of it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) gradient: Gradient,
    pub(crate) draw: Box<dyn Fn(&mut Draw<'_>) -> Trial>,
    /// Whether the operation is elementwise, so that empty inputs give an empty result.
    pub(crate) elementwise: bool,
    pub(crate) empties: Vec<Empty>,
}

/// The result of a call on empty inputs: a row of `docs/empty-inputs.md`.
pub(crate) struct Empty {
    pub(crate) call: &'static str,
    pub(crate) inputs: &'static str,
    pub(crate) result: &'static str,
    pub(crate) build: fn(&[Tensor]) -> Tensor,
}

impl Case {
    /// States the result of `build`, written `call`, on empty `inputs`.
    pub(crate) fn empty(
        mut self,
        call: &'static str,
        inputs: &'static str,
        result: &'static str,
        build: fn(&[Tensor]) -> Tensor,
    ) -> Case {
        self.empties.push(Empty { call, inputs, result, build });
        self
    }

    fn elementwise(self) -> Case {
        Case { elementwise: true, ..self }
    }
}

/// The cases of one file.
pub(crate) struct Cases(pub(crate) fn() -> Vec<Case>);
inventory::collect!(Cases);

/// Registers the cases of a file for [`all_cases`].
macro_rules! cases {
    ($($case:expr),* $(,)?) => {
        inventory::submit! { $crate::op_cases::Cases(|| vec![$($case),*]) }
    };
}
pub(crate) use cases;

/// Returns the cases of all files, sorted by name.
pub(crate) fn all_cases() -> Vec<Case> {
    let mut all: Vec<Case> = inventory::iter::<Cases>().flat_map(|cases| cases.0()).collect();
    all.sort_by_key(|case| case.name);
    all
}

/// Creates a case whose trials are drawn by `draw`.
pub(crate) fn case(
    name: &'static str,
    gradient: Gradient,
    draw: impl Fn(&mut Draw<'_>) -> Trial + 'static,
) -> Case {
    Case { name, gradient, draw: Box::new(draw), elementwise: false, empties: Vec::new() }
}

/// Creates a case of an elementwise function of one float tensor.
pub(crate) fn unary(
    name: &'static str,
    gradient: Gradient,
    domain: Domain,
    op: fn(&Tensor) -> Tensor,
) -> Case {
    let draw = move |draw: &mut Draw<'_>| {
        let rank = draw.below(4);
        let sizes = draw.sizes(rank);
        Trial::new(vec![Input::floats(draw, sizes, domain)], move |x| vec![op(&x[0])])
    };
    case(name, gradient, draw).elementwise()
}

/// Creates a case of an elementwise function of two float tensors.
pub(crate) fn binary(
    name: &'static str,
    gradient: Gradient,
    domains: [Domain; 2],
    op: fn(&Tensor, &Tensor) -> Tensor,
) -> Case {
    let draw = move |draw: &mut Draw<'_>| {
        let inputs = pair(draw, domains.map(Elements::Floats));
        Trial::new(inputs, move |x| vec![op(&x[0], &x[1])])
    };
    case(name, gradient, draw).elementwise()
}

/// Creates a case of an elementwise function of two boolean tensors.
pub(crate) fn logical(name: &'static str, op: fn(&Tensor, &Tensor) -> Tensor) -> Case {
    let draw = move |draw: &mut Draw<'_>| {
        let inputs = pair(draw, [Elements::Bools; 2]);
        Trial::new(inputs, move |x| vec![op(&x[0], &x[1])])
    };
    case(name, Never("boolean result"), draw).elementwise()
}

/// Draws two inputs that broadcast against each other.
pub(crate) fn pair(draw: &mut Draw<'_>, elements: [Elements; 2]) -> Vec<Input> {
    let rank = draw.below(4);
    let full = draw.sizes(rank);
    elements
        .map(|e| {
            let sizes = draw.broadcasting(&full);
            Input::new(draw, sizes, e)
        })
        .into()
}

/// Creates a case of a reduction over some axes, which have no elements only if `empty`.
pub(crate) fn reduction(
    name: &'static str,
    gradient: Gradient,
    domain: Domain,
    empty: bool,
    op: fn(&Tensor, &[isize]) -> Vec<Tensor>,
) -> Case {
    case(name, gradient, move |draw| {
        let rank = draw.below(5);
        let (mut sizes, axes) = (draw.sizes(rank), draw.axes(rank));
        if !empty {
            for a in &axes {
                let n = &mut sizes[a.rem_euclid(rank as isize) as usize];
                *n = (*n).max(1);
            }
        }
        Trial::new(vec![Input::floats(draw, sizes, domain)], move |x| op(&x[0], &axes))
    })
}
