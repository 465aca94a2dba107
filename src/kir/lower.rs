//! The context of an operation's `lower`: its inputs, and methods that emit kernels.

use super::{
    Argsort, Attention, AttentionKind, BufferKind, Class, ContractKind, Cumsum, CustomKernel, Expr,
    ExprBuilder, GatherKind, GatherScatter, Kernel, KernelNode, MapBody, Nms, Origin, Pool, PoolKind,
    Program, ReduceKind, Reg, View,
};
use std::sync::Arc;
use tensorpack_tensor::{DType, HostTensor};

/// The lowering of one graph node, all shapes known: its inputs as views, and methods that emit
/// kernels.
#[derive(Debug)]
pub struct LowerCx<'a> {
    /// The program written to.
    pub(crate) program: &'a mut Program,
    /// The node's inputs; `None` for those of which only the shape is used.
    pub(crate) inputs: &'a [Option<View>],
    /// The sizes of all inputs.
    pub(crate) input_sizes: &'a [Vec<usize>],
    /// Type and sizes of the node's outputs.
    pub(crate) outputs: &'a [(DType, Vec<usize>)],
    pub(crate) origin: &'a Origin,
}

impl LowerCx<'_> {
    /// Returns input `i`.
    ///
    /// # Panics
    /// Panics if the op declared the input shape-only.
    pub fn input(&self, i: usize) -> View {
        self.inputs[i].clone().expect("an op reads no input it declared shape-only")
    }

    /// Returns the number of inputs.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the sizes of input `i`, which may be shape-only.
    pub fn input_sizes(&self, i: usize) -> &[usize] {
        &self.input_sizes[i]
    }

    /// Returns the sizes of output `i`.
    pub fn output_sizes(&self, i: usize) -> Vec<usize> {
        self.outputs[i].1.clone()
    }

    /// Returns the element type of output `i`.
    pub fn output_dtype(&self, i: usize) -> DType {
        self.outputs[i].0
    }

    /// Returns the node's name, which identifies random streams.
    pub fn node_name(&self) -> &str {
        &self.origin.name
    }

    fn emit(&mut self, kernel: Kernel, outputs: &[(DType, Vec<usize>)]) -> Vec<View> {
        let buffers: Vec<_> =
            outputs.iter().map(|(d, s)| self.program.add_buffer(*d, s, BufferKind::Temp)).collect();
        let views = buffers.iter().zip(outputs).map(|(&b, (d, s))| View::dense(b, *d, s)).collect();
        self.program.kernels.push(KernelNode { kernel, outputs: buffers, origin: self.origin.clone() });
        views
    }

    fn one(&mut self, kernel: Kernel, dtype: DType, sizes: Vec<usize>) -> View {
        let mut views = self.emit(kernel, &[(dtype, sizes)]);
        views.swap_remove(0)
    }

    /// Makes every reader of `view` see the same bits, including readers that were lowered earlier.
    ///
    /// For comparisons with a value that was computed from the same elements, such as a maximum: a
    /// compiler that recomputes the elements for the comparison may contract a multiplication and
    /// an addition into one rounding there and not elsewhere, and then no element equals the
    /// maximum. The CPU engine's kernels always round the same way.
    pub fn materialize(&mut self, view: &View) {
        if self.program.is_temp(view.buffer) && !self.program.materialized.contains(&view.buffer) {
            self.program.materialized.push(view.buffer);
        }
    }

    /// Adds a constant tensor.
    pub fn constant(&mut self, value: HostTensor) -> View {
        let (dtype, sizes) = (value.dtype(), value.sizes().to_vec());
        let b = self.program.add_buffer(dtype, &sizes, BufferKind::Constant(value));
        View::dense(b, dtype, &sizes)
    }

    /// Builds a map over `sizes`. Constants of one element become part of the expression, since all
    /// elements of a view of such a constant are equal.
    fn body(
        &mut self,
        sizes: &[usize],
        operands: &[&View],
        build: impl FnOnce(&mut ExprBuilder, &[Reg]) -> Vec<Reg>,
    ) -> MapBody {
        let mut b = ExprBuilder::default();
        let mut read = Vec::new();
        let mut regs = Vec::new();
        for view in operands {
            let class = Class::from_dtype(view.dtype);
            regs.push(match self.program.scalar_constant(view) {
                Some(v) => b.constant(v, class),
                None => {
                    let (view, dtype) = (view.broadcast_to(sizes), view.dtype);
                    let at = read.iter().position(|r| *r == view).unwrap_or_else(|| {
                        read.push(view);
                        read.len() - 1
                    });
                    b.operand(at, dtype, class)
                }
            });
        }
        let outputs = build(&mut b, &regs);
        compact(sizes, read, b.finish(&outputs))
    }

    /// Emits an elementwise kernel that computes output 0 from `operands`, each broadcast to its
    /// sizes.
    pub fn map(&mut self, operands: &[&View], build: impl FnOnce(&mut ExprBuilder, &[Reg]) -> Reg) -> View {
        let (dtype, sizes) = self.outputs[0].clone();
        self.map_to(dtype, &sizes, operands, build)
    }

    /// Emits an elementwise kernel over `sizes` with a result of type `dtype`.
    pub fn map_to(
        &mut self,
        dtype: DType,
        sizes: &[usize],
        operands: &[&View],
        build: impl FnOnce(&mut ExprBuilder, &[Reg]) -> Reg,
    ) -> View {
        let body = self.body(sizes, operands, |b, regs| vec![build(b, regs)]);
        self.one(Kernel::Map(body), dtype, sizes.to_vec())
    }

    /// Emits a reduction of an expression over the dimensions marked in `reduced`. Outputs have
    /// only the other dimensions; moments have two outputs.
    pub fn reduce(
        &mut self,
        kind: ReduceKind,
        dtype: DType,
        sizes: &[usize],
        reduced: &[bool],
        operands: &[&View],
        build: impl FnOnce(&mut ExprBuilder, &[Reg]) -> Reg,
    ) -> Vec<View> {
        let body = self.body(sizes, operands, |b, regs| vec![build(b, regs)]);
        let kept: Vec<usize> = sizes.iter().zip(reduced).filter(|(_, r)| !**r).map(|(&n, _)| n).collect();
        let count = if kind == ReduceKind::Moments { 2 } else { 1 };
        let kernel = Kernel::Reduce { body, reduced: reduced.to_vec(), kinds: vec![kind] };
        self.emit(kernel, &vec![(dtype, kept); count])
    }

    /// Emits a contraction; operands that are not dense are copied first. In bf16 and f16 only
    /// the operands and the result are rounded: every engine computes products and sums in f32.
    pub fn contract(&mut self, kind: ContractKind, lhs: &View, rhs: &View) -> View {
        let sizes = self.output_sizes(0);
        self.contract_to(kind, lhs, rhs, &sizes)
    }

    /// Emits a contraction whose result has the type of output 0 and these sizes.
    pub fn contract_to(&mut self, kind: ContractKind, lhs: &View, rhs: &View, sizes: &[usize]) -> View {
        self.contract_in(self.outputs[0].0, kind, lhs, rhs, sizes)
    }

    /// Emits a contraction of operands of type `dtype`, whose result has that type and these sizes.
    pub fn contract_in(
        &mut self,
        dtype: DType,
        kind: ContractKind,
        lhs: &View,
        rhs: &View,
        sizes: &[usize],
    ) -> View {
        let sizes = sizes.to_vec();
        if sizes.contains(&0) {
            // Kernels are partitioned by products of sizes, which may overflow where another size
            // is zero.
            return self.map_to(dtype, &sizes, &[], |b, _| b.constant(0.0, Class::from_dtype(dtype)));
        }
        let (lhs, rhs) = (self.operand(lhs), self.operand(rhs));
        self.one(Kernel::Contract { kind, lhs, rhs, epilogue: None }, dtype, sizes)
    }

    /// Emits a pooling; operands that are not dense are copied first. Floats of 16 bits are
    /// computed in f32.
    pub fn pool(&mut self, kind: PoolKind, pool: Pool, inputs: &[View]) -> Vec<View> {
        let inputs = inputs.iter().map(|v| self.operand(v)).collect();
        let outputs = self.outputs.to_vec();
        self.emit(Kernel::Pool { kind, pool, inputs }, &outputs)
    }

    /// Returns the operand of a kernel that computes in f32: a dense view, or a float of 16
    /// bits with any strides, which the engine converts.
    fn operand(&mut self, view: &View) -> View {
        if view.dtype.is_narrow_float() { view.clone() } else { self.dense(view) }
    }

    /// Returns the view itself if it is dense, otherwise a dense copy.
    pub fn dense(&mut self, view: &View) -> View {
        if view.is_dense() {
            return view.clone();
        }
        self.one(Kernel::Copy(view.clone()), view.dtype, view.sizes.clone())
    }

    /// Returns the elements with other sizes: a view if possible, otherwise a copy.
    pub fn reshape(&mut self, view: &View, sizes: &[usize]) -> View {
        match view.reshape(sizes) {
            Some(v) => v,
            None => {
                let dense = self.dense(view);
                View { sizes: sizes.to_vec(), strides: super::view::dense_strides(sizes), ..dense }
            }
        }
    }

    /// Emits a copy with zeros before, after and between the elements of each dimension.
    pub fn pad(&mut self, src: &View, low: &[usize], high: &[usize], interior: &[usize]) -> View {
        let (dtype, sizes) = self.outputs[0].clone();
        let (low, high, interior) = (low.to_vec(), high.to_vec(), interior.to_vec());
        self.one(Kernel::Pad { src: src.clone(), low, high, interior }, dtype, sizes)
    }

    /// Emits a concatenation along `axis`, as output 0.
    pub fn concat(&mut self, parts: &[View], axis: usize) -> View {
        let (dtype, sizes) = self.outputs[0].clone();
        self.one(Kernel::Concat { parts: parts.to_vec(), axis }, dtype, sizes)
    }

    /// Emits a gather or scatter of table rows for output 0. Rows of bf16 and f16 are added in
    /// f32.
    #[doc(alias = "lookup")]
    pub fn gather(&mut self, kind: GatherKind, gather: GatherScatter, rows: &View, indices: &View) -> View {
        let (dtype, sizes) = self.outputs[0].clone();
        let indices = match indices.dtype {
            DType::I64 => self.dense(indices),
            _ => self.map_to(DType::I64, &indices.sizes, &[indices], |_, r| r[0]),
        };
        let rows = match kind {
            GatherKind::Gather | GatherKind::NonZero => self.dense(rows),
            GatherKind::ScatterAdd => self.operand(rows),
        };
        self.one(Kernel::Gather { kind, gather, rows, indices }, dtype, sizes)
    }

    /// Returns the integers as i64 and checks, when the program runs, that none is zero. A zero
    /// ends the run with an error that gives its position.
    pub fn nonzero(&mut self, view: &View) -> View {
        let wide = match view.dtype {
            DType::I64 => self.dense(view),
            _ => self.map_to(DType::I64, &view.sizes, &[view], |_, r| r[0]),
        };
        let count = wide.len();
        let gather = GatherScatter { batch: 1, rows: count, width: 1, count, shared: false };
        let kernel =
            Kernel::Gather { kind: GatherKind::NonZero, gather, rows: wide.clone(), indices: wide.clone() };
        self.one(kernel, DType::I64, wide.sizes)
    }

    /// Returns the value of a view that is a scalar constant.
    pub(crate) fn constant_of(&self, view: &View) -> Option<f64> {
        self.program.scalar_constant(view)
    }

    /// Emits cumulative sums for output 0, computed in f32 if they are bf16 or f16.
    #[doc(alias = "cumulate")]
    pub fn cumsum(&mut self, cumsum: Cumsum, input: &View) -> View {
        let (dtype, sizes) = self.outputs[0].clone();
        let input = self.operand(input);
        self.one(Kernel::Cumsum { cumsum, input }, dtype, sizes)
    }

    /// Emits the indices that sort `input`, for output 0.
    #[doc(alias = "order")]
    pub fn argsort(&mut self, argsort: Argsort, input: &View) -> View {
        let (dtype, sizes) = self.outputs[0].clone();
        let input = self.dense(input);
        self.one(Kernel::Argsort { argsort, input }, dtype, sizes)
    }

    /// Emits greedy non-maximum suppression for output 0.
    pub fn nms(&mut self, nms: Nms, input: &View) -> View {
        let (dtype, sizes) = self.outputs[0].clone();
        let input = self.dense(input);
        self.one(Kernel::Nms { nms, input }, dtype, sizes)
    }

    /// Emits uniform random numbers of output 0's type and these sizes, drawn from the stream of
    /// this name. With `continued` each tower draws its own elements of the stream; otherwise all
    /// towers draw the same.
    pub fn random(&mut self, stream: &str, sizes: &[usize], continued: bool) -> View {
        let dtype = self.outputs[0].0;
        self.one(Kernel::Random { stream: stream.to_string(), first: 0, continued }, dtype, sizes.to_vec())
    }

    /// Emits the sum over all towers of the tensors with this `key`.
    pub fn all_reduce(&mut self, key: &str, input: &View) -> View {
        self.sum_over_towers(key, input, false, None)
    }

    /// Emits the sum over all towers of the tensors with this `key`. A `deferred` sum may be late, and
    /// other processes may get its summands rounded to `wire`.
    pub(crate) fn sum_over_towers(
        &mut self,
        key: &str,
        input: &View,
        deferred: bool,
        wire: Option<DType>,
    ) -> View {
        let input = self.dense(input);
        let (dtype, sizes) = (input.dtype, input.sizes.clone());
        self.one(Kernel::AllReduce { key: key.to_string(), input, deferred, wire }, dtype, sizes)
    }

    /// Emits attention or its gradient for all outputs. bf16 and f16 are computed in f32. The bias
    /// may have any strides; other inputs that are not dense are copied first.
    pub fn attention(&mut self, kind: AttentionKind, attention: Attention, inputs: &[View]) -> Vec<View> {
        let is_bias = |i: usize| attention.bias && i == 3 + usize::from(attention.mask);
        let inputs = inputs.iter().enumerate();
        let inputs = inputs.map(|(i, v)| if is_bias(i) { v.clone() } else { self.operand(v) }).collect();
        let outputs = self.outputs.to_vec();
        self.emit(Kernel::Attention { kind, attention, inputs }, &outputs)
    }

    /// Emits a custom kernel that reads all inputs and computes all outputs.
    pub fn custom(&mut self, kernel: Arc<dyn CustomKernel>) -> Vec<View> {
        let inputs: Vec<View> = (0..self.inputs.len()).map(|i| self.input(i)).collect();
        let inputs = inputs.iter().map(|v| self.dense(v)).collect();
        let outputs = self.outputs.to_vec();
        self.emit(Kernel::Custom { kernel, inputs }, &outputs)
    }
}

/// Returns a map body without the operands that the expression does not read.
pub(crate) fn compact(sizes: &[usize], operands: Vec<View>, expr: Expr) -> MapBody {
    use super::Step;
    let mut kept: Vec<View> = Vec::new();
    let mut expr = expr;
    for step in &mut expr.steps {
        if let Step::Operand { index, .. } = step {
            // An operand that does not exist gets an index that none has, which validation rejects.
            let Some(view) = operands.get(*index as usize) else {
                *index = u16::MAX;
                continue;
            };
            let at = kept.iter().position(|v| v == view).unwrap_or_else(|| {
                kept.push(view.clone());
                kept.len() - 1
            });
            *index = at as u16;
        }
    }
    MapBody { sizes: sizes.to_vec(), operands: kept, expr }
}
