//! The context of an operation's `evaluate`.

use super::{Array, Scalar, StochasticRounding, Sum, Sums};
use crate::kir::CustomKernel;
use tensorpack_tensor::{CounterRng, DType, HostTensor, Result};

/// The evaluation of one graph node: the values of its inputs, the dtypes and concrete sizes of its
/// outputs, and the data of random and collective operations.
#[derive(Debug)]
pub struct EvaluateCx<'a> {
    /// The values of the inputs; `None` for shape-only inputs.
    pub(crate) inputs: &'a [Option<&'a Array>],
    pub(crate) input_sizes: &'a [&'a [usize]],
    pub(crate) outputs: &'a [(DType, Vec<usize>)],
    /// The node's name.
    pub(crate) name: &'a str,
    /// Input 0 of this operation in every tower that takes part in it, in order.
    pub(crate) tower_inputs: &'a [&'a Array],
    /// The number of elements of output 0 of this node's copies in earlier towers.
    pub(crate) elements_before: usize,
    pub(crate) seed: u64,
    pub(crate) draw: u64,
    pub(crate) rounding: Option<StochasticRounding>,
}

impl EvaluateCx<'_> {
    /// Returns the value of input `i`. Panics if the op declared it shape-only.
    pub fn input(&self, i: usize) -> &Array {
        self.inputs[i].expect("an op reads no input it declared shape-only")
    }

    /// Returns the number of inputs.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the sizes of input `i`, which may be shape-only.
    pub fn input_sizes(&self, i: usize) -> &[usize] {
        self.input_sizes[i]
    }

    /// Returns the sizes of output `i`.
    pub fn output_sizes(&self, i: usize) -> &[usize] {
        &self.outputs[i].1
    }

    /// Returns the element type of output `i`.
    pub fn output_dtype(&self, i: usize) -> DType {
        self.outputs[i].0
    }

    /// Returns the name of the node, which is the key of random streams.
    pub fn node_name(&self) -> &str {
        self.name
    }

    /// Returns output 0, computed by a function of the index.
    pub fn output(&self, value: impl FnMut(&[usize]) -> Scalar) -> Vec<Array> {
        vec![Array::from_fn(self.output_dtype(0), self.output_sizes(0), value)]
    }

    /// Returns output 0, computed by a float function of the index.
    pub fn float_output(&self, mut value: impl FnMut(&[usize]) -> f64) -> Vec<Array> {
        self.output(|index| Scalar::Float(value(index)))
    }

    /// Returns an empty running sum.
    pub fn running_sum(&self) -> Sum {
        Sum::new(self.rounding)
    }

    /// Returns an array of empty running sums of elements of `dtype`, one for each index of
    /// `sizes`.
    pub fn running_sums(&self, dtype: DType, sizes: &[usize]) -> Sums {
        Sums::new(dtype, sizes, self.rounding)
    }

    /// Returns the sum of floats.
    pub fn sum(&self, values: impl IntoIterator<Item = f64>) -> f64 {
        let mut total = self.running_sum();
        values.into_iter().for_each(|v| total.add(Scalar::Float(v)));
        let dtype = self.output_dtype(0);
        total.value(if dtype.is_float() { dtype } else { DType::F64 }).as_f64()
    }

    /// Returns this run's draw from a random stream: a uniform number in `[0, 1)` for each element
    /// number.
    pub fn uniform(&self, stream: &str) -> impl Fn(usize) -> f64 {
        let (rng, draw) = (CounterRng::new(self.seed, stream), self.draw);
        move |i| rng.uniform(draw, i as u64)
    }

    /// Returns the number of elements of this operation's copies in earlier towers: the number of
    /// this tower's first element, so that several towers draw the same numbers as one large tower.
    pub fn elements_before(&self) -> usize {
        self.elements_before
    }

    /// Returns input 0 of this operation in every tower, for a collective operation.
    pub fn tower_inputs(&self) -> &[&Array] {
        self.tower_inputs
    }

    /// Runs a custom kernel on all inputs, in their declared dtypes.
    pub fn custom(&self, kernel: &dyn CustomKernel) -> Result<Vec<Array>> {
        let inputs =
            (0..self.input_count()).map(|i| self.input(i).to_host()).collect::<Result<Vec<HostTensor>>>()?;
        let zeros = |(dtype, sizes): &(DType, Vec<usize>)| HostTensor::zeros(*dtype, sizes.as_slice());
        let mut outputs = self.outputs.iter().map(zeros).collect::<Result<Vec<HostTensor>>>()?;
        kernel.run(&inputs, &mut outputs)?;
        Ok(outputs.iter().map(Array::from_host).collect())
    }
}
