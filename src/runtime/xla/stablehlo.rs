//! A printer for StableHLO: values, operations, and the regions of reductions and sorts.
//!
//! Operations are printed in MLIR's generic form, which is the same for all operations and in every
//! version of the dialect.

use std::fmt::{self, Write};
use tensorpack_tensor::{DType, HostTensor};

/// The element type of a value: a tensor dtype, or one of two types that only programs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Of(DType),
    U32,
    U64,
}

impl From<DType> for Element {
    fn from(dtype: DType) -> Element {
        Element::Of(dtype)
    }
}

impl Element {
    pub(super) fn is_float(self) -> bool {
        matches!(self, Element::Of(d) if d.is_float())
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Element::Of(DType::F32) => "f32",
            Element::Of(DType::F64) => "f64",
            Element::Of(DType::Bf16) => "bf16",
            Element::Of(DType::F16) => "f16",
            Element::Of(DType::I32) => "i32",
            Element::Of(DType::I64) => "i64",
            Element::Of(DType::U8) => "ui8",
            Element::Of(DType::Bool) => "i1",
            Element::U32 => "ui32",
            Element::U64 => "ui64",
        })
    }
}

/// A result of an operation, an argument, or a constant.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    name: String,
    pub(super) element: Element,
    pub(super) sizes: Vec<usize>,
}

impl Value {
    pub(super) fn len(&self) -> usize {
        crate::kir::elements(&self.sizes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }

    pub(super) fn ty(&self) -> String {
        tensor_type(self.element, &self.sizes)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// `tensor<2x3xf32>`.
pub(super) fn tensor_type(element: Element, sizes: &[usize]) -> String {
    let sizes: String = sizes.iter().map(|n| format!("{n}x")).collect();
    format!("tensor<{sizes}{element}>")
}

/// `array<i64: 1, 2>`.
pub(super) fn array(numbers: impl IntoIterator<Item = impl fmt::Display>) -> String {
    let numbers = join(numbers);
    if numbers.is_empty() { "array<i64>".into() } else { format!("array<i64: {numbers}>") }
}

/// `[1, 2]`.
pub(super) fn list(numbers: impl IntoIterator<Item = impl fmt::Display>) -> String {
    format!("[{}]", join(numbers))
}

/// A pair for each dimension: `dense<[[0, 1], [0, 0]]> : tensor<2x2xi64>`.
pub(super) fn pairs(around: &[[i64; 2]]) -> String {
    let rows = join(around.iter().map(list));
    format!("dense<[{rows}]> : tensor<{}x2xi64>", around.len())
}

fn join(items: impl IntoIterator<Item = impl fmt::Display>) -> String {
    items.into_iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

/// How to keep a value from being recomputed.
#[derive(Clone, Debug)]
pub(super) enum Materialize {
    /// With an optimization barrier.
    Barrier,
    /// With a branch on this index, which is always 0.
    Branch(Value),
}

/// What was printed before a region.
pub(super) struct Outer(String);

/// Prints the body of a function.
#[derive(Debug, Default)]
pub(super) struct Writer {
    text: String,
    values: usize,
}

impl Writer {
    /// Returns an argument of the enclosing function or region, with a new name.
    pub(super) fn argument(&mut self, element: impl Into<Element>, sizes: &[usize]) -> Value {
        let name = self.name();
        Value { name, element: element.into(), sizes: sizes.to_vec() }
    }

    fn name(&mut self) -> String {
        self.values += 1;
        format!("%{}", self.values - 1)
    }

    pub(super) fn comment(&mut self, text: &str) {
        // A name may contain anything, but a comment ends with the line.
        let _ = writeln!(self.text, "    // {}", text.replace(['\n', '\r'], " "));
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Prints an operation with one result.
    pub(super) fn op(
        &mut self,
        name: &str,
        operands: &[&Value],
        attributes: &str,
        element: impl Into<Element>,
        sizes: &[usize],
    ) -> Value {
        let result = (element.into(), sizes.to_vec());
        self.call(name, operands, attributes, None, &[result]).swap_remove(0)
    }

    /// Prints an operation whose result has the type of its first operand.
    pub(super) fn like(&mut self, name: &str, operands: &[&Value]) -> Value {
        self.op(name, operands, "", operands[0].element, &operands[0].sizes)
    }

    /// Prints an optimization barrier. Returns its results, which equal the operands.
    pub(super) fn optimization_barrier(&mut self, operands: &[&Value]) -> Vec<Value> {
        let results: Vec<(Element, Vec<usize>)> =
            operands.iter().map(|v| (v.element, v.sizes.clone())).collect();
        self.several("optimization_barrier", operands, "", &results)
    }

    /// Prints an operation with several results.
    pub(super) fn several(
        &mut self,
        name: &str,
        operands: &[&Value],
        attributes: &str,
        results: &[(Element, Vec<usize>)],
    ) -> Vec<Value> {
        self.call(name, operands, attributes, None, results)
    }

    /// Prints an operation with a region, such as a reduction or a sort.
    pub(super) fn with_region(
        &mut self,
        name: &str,
        operands: &[&Value],
        attributes: &str,
        region: &str,
        results: &[(Element, Vec<usize>)],
    ) -> Vec<Value> {
        self.call(name, operands, attributes, Some(region), results)
    }

    fn call(
        &mut self,
        name: &str,
        operands: &[&Value],
        attributes: &str,
        region: Option<&str>,
        results: &[(Element, Vec<usize>)],
    ) -> Vec<Value> {
        let own = self.name();
        let several = if results.len() > 1 { format!(":{}", results.len()) } else { String::new() };
        let region = region.map_or(String::new(), |r| format!(" ({r})"));
        let attributes = if attributes.is_empty() { String::new() } else { format!(" {{{attributes}}}") };
        let inputs = join(operands.iter().map(|v| v.ty()));
        let outputs = join(results.iter().map(|(e, s)| tensor_type(*e, s)));
        let outputs = if results.len() == 1 { outputs } else { format!("({outputs})") };
        let _ = writeln!(
            self.text,
            "    {own}{several} = \"stablehlo.{name}\"({}){region}{attributes} : ({inputs}) -> {outputs}",
            join(operands)
        );
        let value = |(i, (element, sizes)): (usize, &(Element, Vec<usize>))| Value {
            name: if results.len() > 1 { format!("{own}#{i}") } else { own.clone() },
            element: *element,
            sizes: sizes.clone(),
        };
        results.iter().enumerate().map(value).collect()
    }

    /// Returns the text of a region with scalar arguments of these types.
    pub(super) fn region(
        &mut self,
        arguments: &[Element],
        body: impl FnOnce(&mut Writer, &[Value]) -> Vec<Value>,
    ) -> String {
        let outer = self.begin_region();
        let arguments: Vec<Value> = arguments.iter().map(|&e| self.argument(e, &[])).collect();
        let results = body(self, &arguments);
        self.end_region(outer, &arguments, &results)
    }

    /// Begins a region: what is printed until [`end_region`](Writer::end_region) belongs to it.
    /// Returns what was printed before.
    pub(super) fn begin_region(&mut self) -> Outer {
        Outer(std::mem::take(&mut self.text))
    }

    /// Ends a region with these arguments and results. Returns its text.
    pub(super) fn end_region(&mut self, outer: Outer, arguments: &[Value], results: &[Value]) -> String {
        let body = std::mem::replace(&mut self.text, outer.0);
        let heads = join(arguments.iter().map(|a| format!("{a}: {}", a.ty())));
        // Without arguments the entry block has no label.
        let label = if arguments.is_empty() { String::new() } else { format!("    ^bb0({heads}):\n") };
        let types = join(results.iter().map(Value::ty));
        format!("{{\n{label}{body}    \"stablehlo.return\"({}) : ({types}) -> ()\n    }}", join(results))
    }

    /// Returns `x` so that it is computed once for all readers, in a way that compilers keep.
    ///
    /// [`Materialize::Barrier`] suffices if the compiler removes barriers after fusion. On CPUs XLA
    /// removes them before. There the value passes through a three-way conditional on an argument,
    /// whose value the compiler does not know: operands and results of conditionals are buffers,
    /// and XLA turns only two-way conditionals into selects.
    pub(super) fn materialize(&mut self, x: &Value, how: &Materialize) -> Value {
        match how {
            _ if x.is_empty() => x.clone(),
            Materialize::Barrier => self.like("optimization_barrier", &[x]),
            Materialize::Branch(index) => {
                let taken = self.region(&[], |_, _| vec![x.clone()]);
                let others =
                    [0.0, 1.0].map(|n| self.region(&[], |w, _| vec![w.splat(n, x.element, &x.sizes)]));
                let branches = format!("{taken}, {}, {}", others[0], others[1]);
                let result = (x.element, x.sizes.clone());
                self.with_region("case", &[index], "", &branches, &[result]).swap_remove(0)
            }
        }
    }

    /// Prints the return of the function.
    pub(super) fn finish_function(&mut self, results: &[Value]) {
        let types = join(results.iter().map(Value::ty));
        let _ = writeln!(self.text, "    \"func.return\"({}) : ({types}) -> ()", join(results));
    }

    /// A constant tensor of one number.
    pub(super) fn splat(&mut self, number: f64, element: impl Into<Element>, sizes: &[usize]) -> Value {
        let element = element.into();
        self.literal(&number_text(number, element), element, sizes)
    }

    /// A constant tensor of one integer, exactly.
    pub(super) fn integer(&mut self, number: i128, element: impl Into<Element>, sizes: &[usize]) -> Value {
        self.literal(&number.to_string(), element.into(), sizes)
    }

    /// A small constant tensor.
    pub(super) fn tensor(&mut self, value: &HostTensor) -> Value {
        let (element, sizes) = (Element::from(value.dtype()), value.sizes());
        match value.len() {
            0 => self.splat(0.0, element, sizes),
            // A single element is a splat, which cannot be written as hexadecimal bytes.
            1 => self.literal(&single(value), element, sizes),
            _ if value.dtype() == DType::Bool => {
                let flags = value.to_f64_vec();
                let flat = self.literal(&list(flags.iter().map(|&t| t != 0.0)), element, &[flags.len()]);
                self.reshape(&flat, sizes)
            }
            _ => {
                let bytes: String = value.as_bytes().iter().map(|b| format!("{b:02X}")).collect();
                self.literal(&format!("\"0x{bytes}\""), element, sizes)
            }
        }
    }

    fn literal(&mut self, text: &str, element: Element, sizes: &[usize]) -> Value {
        let ty = tensor_type(element, sizes);
        self.op("constant", &[], &format!("value = dense<{text}> : {ty}"), element, sizes)
    }

    /// Reshapes a value.
    pub(super) fn reshape(&mut self, x: &Value, sizes: &[usize]) -> Value {
        if x.sizes == sizes {
            return x.clone();
        }
        self.op("reshape", &[x], "", x.element, sizes)
    }

    /// Converts the elements to another type.
    pub(super) fn convert(&mut self, x: &Value, element: impl Into<Element>) -> Value {
        let element = element.into();
        if x.element == element {
            return x.clone();
        }
        self.op("convert", &[x], "", element, &x.sizes)
    }

    /// Converts floats of 16 bits to f32, for sums.
    pub(super) fn widened(&mut self, x: &Value) -> Value {
        match x.element {
            Element::Of(dtype) => self.convert(x, dtype.widened()),
            _ => x.clone(),
        }
    }

    /// Broadcasts: dimension `i` of the operand becomes dimension `dims[i]` of the result.
    pub(super) fn broadcast(&mut self, x: &Value, dims: &[usize], sizes: &[usize]) -> Value {
        if x.sizes == sizes {
            return x.clone();
        }
        let attribute = format!("broadcast_dimensions = {}", array(dims));
        self.op("broadcast_in_dim", &[x], &attribute, x.element, sizes)
    }

    /// A comparison by its name: `EQ`, `NE`, `LT`, `LE`, `GT` or `GE`.
    pub(super) fn compare(&mut self, direction: &str, a: &Value, b: &Value) -> Value {
        let kind = match a.element {
            e if e.is_float() => "FLOAT",
            Element::Of(DType::I32 | DType::I64) => "SIGNED",
            _ => "UNSIGNED",
        };
        // Without its type XLA simplifies comparisons of signed integers as if they were unsigned.
        let attribute = format!(
            "comparison_direction = #stablehlo<comparison_direction {direction}>, \
             compare_type = #stablehlo<comparison_type {kind}>"
        );
        self.op("compare", &[a, b], &attribute, DType::Bool, &a.sizes)
    }

    pub(super) fn select(&mut self, condition: &Value, a: &Value, b: &Value) -> Value {
        self.op("select", &[condition, a, b], "", a.element, &a.sizes)
    }

    /// The index of each element along a dimension.
    pub(super) fn iota(&mut self, dim: usize, element: impl Into<Element>, sizes: &[usize]) -> Value {
        self.op("iota", &[], &format!("iota_dimension = {dim} : i64"), element, sizes)
    }

    /// A strided slice: `sizes` elements from `begin`, `step` apart.
    pub(super) fn slice(&mut self, x: &Value, begin: &[usize], step: &[usize], sizes: &[usize]) -> Value {
        if x.sizes == sizes {
            return x.clone();
        }
        let limit = (0..sizes.len()).map(|d| match sizes[d] {
            0 => begin[d],
            n => begin[d] + (n - 1) * step[d] + 1,
        });
        let attributes = format!(
            "start_indices = {}, limit_indices = {}, strides = {}",
            array(begin),
            array(limit),
            array(step)
        );
        self.op("slice", &[x], &attributes, x.element, sizes)
    }

    /// Permutes dimensions: dimension `i` of the result is dimension `order[i]` of the operand.
    pub(super) fn transpose(&mut self, x: &Value, order: &[usize]) -> Value {
        if order.iter().enumerate().all(|(i, &d)| i == d) {
            return x.clone();
        }
        let sizes: Vec<usize> = order.iter().map(|&d| x.sizes[d]).collect();
        self.op("transpose", &[x], &format!("permutation = {}", array(order)), x.element, &sizes)
    }

    pub(super) fn reverse(&mut self, x: &Value, dims: &[usize]) -> Value {
        if dims.iter().all(|&d| x.sizes[d] == 1) {
            return x.clone();
        }
        self.op("reverse", &[x], &format!("dimensions = {}", array(dims)), x.element, &x.sizes)
    }

    /// Pads each dimension with `fill` around and between elements. Negative padding crops.
    pub(super) fn pad(&mut self, x: &Value, fill: f64, around: &[[i64; 2]], between: &[usize]) -> Value {
        if around.iter().all(|a| *a == [0, 0]) && between.iter().all(|&n| n == 0) {
            return x.clone();
        }
        let size = |d: usize| {
            let inner = (x.sizes[d] + x.sizes[d].saturating_sub(1) * between[d]) as i64;
            (inner + around[d][0] + around[d][1]) as usize
        };
        let sizes: Vec<usize> = (0..x.sizes.len()).map(size).collect();
        let fill = self.splat(fill, x.element, &[]);
        let attributes = format!(
            "edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
            array(around.iter().map(|a| a[0])),
            array(around.iter().map(|a| a[1])),
            array(between)
        );
        self.op("pad", &[x, &fill], &attributes, x.element, &sizes)
    }

    /// Reduces dimensions with a binary operation, starting with `first`.
    pub(super) fn reduce(&mut self, name: &str, x: &Value, first: &Value, dims: &[usize]) -> Value {
        let kept = (0..x.sizes.len()).filter(|d| !dims.contains(d)).map(|d| x.sizes[d]).collect();
        let region = self.binary_region(name, x.element);
        let attribute = format!("dimensions = {}", array(dims));
        self.with_region("reduce", &[x, first], &attribute, &region, &[(x.element, kept)]).swap_remove(0)
    }

    /// Reduces windows with a binary operation, starting with `first`.
    pub(super) fn reduce_window(
        &mut self,
        name: &str,
        x: &Value,
        first: &Value,
        window: &[usize],
        strides: &[usize],
        padding: &[[i64; 2]],
    ) -> Value {
        let size = |d: usize| {
            let room = x.sizes[d] as i64 + padding[d][0] + padding[d][1] - window[d] as i64;
            (room / strides[d] as i64 + 1) as usize
        };
        let sizes: Vec<usize> = (0..x.sizes.len()).map(size).collect();
        let region = self.binary_region(name, x.element);
        let attributes = format!(
            "window_dimensions = {}, window_strides = {}, padding = {}",
            array(window),
            array(strides),
            pairs(padding)
        );
        self.with_region("reduce_window", &[x, first], &attributes, &region, &[(x.element, sizes)])
            .swap_remove(0)
    }

    /// Returns the region of a binary operation on scalars.
    pub(super) fn binary_region(&mut self, name: &str, element: Element) -> String {
        self.region(&[element, element], |w, x| vec![w.like(name, &[&x[0], &x[1]])])
    }
}

/// Returns a number in the MLIR syntax that preserves all digits.
fn number_text(number: f64, element: Element) -> String {
    match element {
        Element::Of(DType::F32) => format!("0x{:08X}", (number as f32).to_bits()),
        Element::Of(DType::F64) => format!("0x{:016X}", number.to_bits()),
        Element::Of(DType::Bf16) => {
            format!("0x{:04X}", tensorpack_tensor::bf16::from_f32(number as f32).to_bits())
        }
        Element::Of(DType::F16) => {
            format!("0x{:04X}", tensorpack_tensor::f16::from_f32(number as f32).to_bits())
        }
        Element::Of(DType::Bool) => (number != 0.0).to_string(),
        // Rust's conversion saturates.
        _ => (number as i64).to_string(),
    }
}

/// Returns the only element of a tensor as text.
fn single(value: &HostTensor) -> String {
    match value.as_slice::<i64>() {
        Ok(integers) => integers[0].to_string(),
        Err(_) => number_text(value.to_f64_vec()[0], value.dtype().into()),
    }
}
