//! One trial of an operation: its inputs, and the function that builds it.

use super::draw::{Domain, Draw};
use crate::graph::{Graph, Tensor, TensorSpec};
use tensorpack_tensor::{CounterRng, DType, HostTensor};

/// Builds outputs from inputs.
pub(crate) type Build = Box<dyn Fn(&[Tensor]) -> Vec<Tensor>>;

/// An operation with drawn attributes, and the inputs it takes.
pub(crate) struct Trial {
    pub(crate) inputs: Vec<Input>,
    pub(crate) build: Build,
}

impl Trial {
    pub(crate) fn new(inputs: Vec<Input>, build: impl Fn(&[Tensor]) -> Vec<Tensor> + 'static) -> Trial {
        Trial { inputs, build: Box::new(build) }
    }
}

/// The dtype and values of an input.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elements {
    /// Floats, of the dtype that the trial runs in.
    Floats(Domain),
    /// Integers of this dtype, from 0 up to but excluding the bound.
    Below(DType, usize),
    /// Booleans.
    Bools,
}

/// The layout of the input within the tensor that is fed, so that kernels see strides.
#[derive(Clone, Debug)]
pub(crate) enum Layout {
    /// Dense, in order.
    Dense,
    /// With permuted dims.
    Permuted(Vec<usize>),
    /// Every second element of a larger tensor, starting at the second.
    Sliced,
}

/// An input.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) sizes: Vec<usize>,
    elements: Elements,
    layout: Layout,
    /// Whether the first size is unknown until it is fed.
    open: bool,
}

impl Input {
    pub(crate) fn new(draw: &mut Draw<'_>, sizes: impl Into<Vec<usize>>, elements: Elements) -> Input {
        let sizes = sizes.into();
        let layout = match draw.below(4) {
            2 => Layout::Permuted(draw.order(sizes.len())),
            3 => Layout::Sliced,
            _ => Layout::Dense,
        };
        Input { open: draw.below(3) == 2, sizes, elements, layout }
    }

    pub(crate) fn floats(draw: &mut Draw<'_>, sizes: impl Into<Vec<usize>>, domain: Domain) -> Input {
        Input::new(draw, sizes, Elements::Floats(domain))
    }

    /// Makes all sizes known while the graph is built.
    pub(crate) fn closed(self) -> Input {
        Input { open: false, ..self }
    }

    pub(crate) fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    pub(crate) fn is_float(&self) -> bool {
        matches!(self.elements, Elements::Floats(_))
    }

    fn dtype(&self, float: DType) -> DType {
        match self.elements {
            Elements::Floats(_) => float,
            Elements::Below(dtype, _) => dtype,
            Elements::Bools => DType::Bool,
        }
    }

    /// Returns the sizes of the tensor that is fed.
    fn fed_sizes(&self) -> Vec<usize> {
        match &self.layout {
            Layout::Dense => self.sizes.clone(),
            Layout::Permuted(order) => order.iter().map(|&d| self.sizes[d]).collect(),
            Layout::Sliced => self.sizes.iter().map(|n| 2 * n + 1).collect(),
        }
    }

    /// Draws the values of the input.
    pub(crate) fn values(&self, rng: &CounterRng, before: usize, total: usize) -> Vec<f64> {
        let uniform = |i: usize| rng.uniform(3, (before + i) as u64);
        match self.elements {
            Elements::Floats(domain) => domain.values(rng, self.len(), before, total),
            Elements::Below(_, n) => (0..self.len()).map(|i| (uniform(i) * n as f64).floor()).collect(),
            Elements::Bools => (0..self.len()).map(|i| (uniform(i) * 2.0).floor()).collect(),
        }
    }

    /// Returns the tensor to feed so that the input has `values`.
    pub(crate) fn feed(&self, float: DType, values: &[f64]) -> HostTensor {
        let fed = self.fed_sizes();
        // Elements outside the slice get an unlikely value, so that reading them is detected.
        let mut elements = vec![77.0; fed.iter().product()];
        let stride = |sizes: &[usize], d: usize| sizes[d + 1..].iter().product::<usize>();
        for (i, &v) in values.iter().enumerate() {
            let index = |d: usize| i / stride(&self.sizes, d) % self.sizes[d];
            let at: usize = (0..fed.len())
                .map(|d| match &self.layout {
                    Layout::Dense => index(d) * stride(&fed, d),
                    Layout::Permuted(order) => index(order[d]) * stride(&fed, d),
                    Layout::Sliced => (2 * index(d) + 1) * stride(&fed, d),
                })
                .sum();
            elements[at] = v;
        }
        HostTensor::from_f64(self.dtype(float), fed, &elements).expect("one value per element")
    }

    /// Adds the input to a graph under `name`.
    pub(crate) fn tensor(&self, graph: &Graph, name: &str, float: DType) -> Tensor {
        let fed = self.fed_sizes();
        let first_is_open = |d: usize| match &self.layout {
            Layout::Permuted(order) => self.open && order[d] == 0,
            _ => self.open && d == 0,
        };
        let sizes: Vec<Option<usize>> =
            fed.iter().enumerate().map(|(d, &n)| (!first_is_open(d)).then_some(n)).collect();
        let x = graph.placeholder(&TensorSpec::new(name, self.dtype(float), sizes));
        let rank = fed.len();
        match &self.layout {
            Layout::Dense => x,
            Layout::Permuted(order) => {
                let mut inverse = vec![0; rank];
                order.iter().enumerate().for_each(|(i, &d)| inverse[d] = i);
                x.transpose(&inverse)
            }
            Layout::Sliced => x.strided_slice(&vec![1; rank], &vec![None; rank], &vec![2; rank]),
        }
    }
}
