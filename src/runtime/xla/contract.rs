//! Matrix products and convolutions as StableHLO, in the layouts that compiler libraries support.

use super::stablehlo::{Element, Value, Writer, array, list, pairs};
use crate::kir::{ContractKind, Conv2d, MatMul};

/// The precision of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductPrecision {
    /// The fastest that the device offers.
    Fast,
    /// Full precision of the operands.
    Full,
}

impl ProductPrecision {
    fn attribute(self) -> String {
        let name = if self == ProductPrecision::Full { "HIGHEST" } else { "DEFAULT" };
        format!("precision_config = [#stablehlo<precision {name}>, #stablehlo<precision {name}>]")
    }
}

/// Prints a contraction of two dense operands.
pub(super) fn write(
    w: &mut Writer,
    kind: &ContractKind,
    lhs: &Value,
    rhs: &Value,
    precision: ProductPrecision,
) -> Value {
    match kind {
        ContractKind::MatMul(k) => matmul(w, k, lhs, rhs, precision),
        ContractKind::Conv2d(k) => forward(w, k, lhs, rhs, false, precision),
        ContractKind::Depthwise(k) => forward(w, k, lhs, rhs, true, precision),
        ContractKind::Conv2dInputGrad(k) => input_grad(w, k, lhs, rhs, false, precision),
        ContractKind::DepthwiseInputGrad(k) => input_grad(w, k, lhs, rhs, true, precision),
        ContractKind::Conv2dFilterGrad(k) => filter_grad(w, k, lhs, rhs, false, precision),
        ContractKind::DepthwiseFilterGrad(k) => filter_grad(w, k, lhs, rhs, true, precision),
    }
}

fn matmul(w: &mut Writer, k: &MatMul, lhs: &Value, rhs: &Value, precision: ProductPrecision) -> Value {
    matmul_in(w, k, lhs, rhs, precision, lhs.element)
}

/// Prints a matrix product whose result is f32 if the operands are bf16 or f16.
pub(super) fn wide_matmul(
    w: &mut Writer,
    k: &MatMul,
    lhs: &Value,
    rhs: &Value,
    precision: ProductPrecision,
) -> Value {
    let result = match lhs.element {
        Element::Of(dtype) => Element::Of(dtype.widened()),
        element => element,
    };
    matmul_in(w, k, lhs, rhs, precision, result)
}

fn matmul_in(
    w: &mut Writer,
    k: &MatMul,
    lhs: &Value,
    rhs: &Value,
    precision: ProductPrecision,
    element: Element,
) -> Value {
    let matrix = |rows: usize, cols: usize, transposed: bool, shared: bool| {
        let sizes = if transposed { [cols, rows] } else { [rows, cols] };
        if shared { sizes.to_vec() } else { vec![k.batch, sizes[0], sizes[1]] }
    };
    let lhs = w.reshape(lhs, &matrix(k.m, k.k, k.lhs_transposed, k.lhs_shared));
    let rhs = w.reshape(rhs, &matrix(k.k, k.n, k.rhs_transposed, k.rhs_shared));
    let summed_l = lhs.sizes.len() - if k.lhs_transposed { 2 } else { 1 };
    let summed_r = rhs.sizes.len() - if k.rhs_transposed { 1 } else { 2 };
    let batched = !k.lhs_shared && !k.rhs_shared;
    let batch: &[usize] = if batched { &[0] } else { &[] };
    // The result has the batch dimensions, then the free dimensions of lhs, then those of rhs.
    let sizes = match (k.lhs_shared, k.rhs_shared) {
        (true, true) => vec![k.m, k.n],
        (true, false) => vec![k.m, k.batch, k.n],
        _ => vec![k.batch, k.m, k.n],
    };
    let numbers = format!(
        "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {0}, rhs_batching_dimensions = {0}, \
         lhs_contracting_dimensions = [{summed_l}], rhs_contracting_dimensions = [{summed_r}]>, {1}",
        list(batch),
        precision.attribute()
    );
    let y = w.op("dot_general", &[&lhs, &rhs], &numbers, element, &sizes);
    match (k.lhs_shared, k.rhs_shared) {
        (true, true) => w.broadcast(&y, &[1, 2], &[k.batch, k.m, k.n]),
        (true, false) => w.transpose(&y, &[1, 0, 2]),
        _ => y,
    }
}

/// The attributes of a convolution; pairs are height, width.
struct Convolution<'a> {
    /// The dimension numbers of both operands and the result.
    dims: &'a str,
    stride: [usize; 2],
    lhs_dilation: [usize; 2],
    rhs_dilation: [usize; 2],
    padding: [[i64; 2]; 2],
    feature_groups: usize,
    batch_groups: usize,
    precision: ProductPrecision,
}

fn convolve(w: &mut Writer, lhs: &Value, rhs: &Value, c: &Convolution<'_>, sizes: &[usize]) -> Value {
    let attributes = format!(
        "window_strides = {}, padding = {}, lhs_dilation = {}, rhs_dilation = {}, \
         window_reversal = array<i1: false, false>, dimension_numbers = #stablehlo.conv<{}>, \
         feature_group_count = {} : i64, batch_group_count = {} : i64, {}",
        array(c.stride),
        pairs(&c.padding),
        array(c.lhs_dilation),
        array(c.rhs_dilation),
        c.dims,
        c.feature_groups,
        c.batch_groups,
        c.precision.attribute()
    );
    w.op("convolution", &[lhs, rhs], &attributes, lhs.element, sizes)
}

fn images(k: &Conv2d) -> [usize; 4] {
    [k.batch, k.in_size[0], k.in_size[1], k.in_channels]
}

fn results(k: &Conv2d) -> [usize; 4] {
    [k.batch, k.out_size[0], k.out_size[1], k.out_channels]
}

/// The sizes of a filter. A depthwise filter reads one channel.
fn filter(k: &Conv2d, depthwise: bool) -> [usize; 4] {
    [k.kernel[0], k.kernel[1], if depthwise { 1 } else { k.in_channels }, k.out_channels]
}

/// The zero padding of each axis; negative if the windows do not reach the end of the input.
fn padding(k: &Conv2d) -> [[i64; 2]; 2] {
    [0, 1].map(|a| {
        let span = (k.out_size[a] as i64 - 1) * k.stride[a] as i64
            + (k.kernel[a] as i64 - 1) * k.dilation[a] as i64
            + 1;
        let low = k.pad_low[a] as i64;
        [low, span - k.in_size[a] as i64 - low]
    })
}

fn forward(
    w: &mut Writer,
    k: &Conv2d,
    x: &Value,
    filters: &Value,
    depthwise: bool,
    precision: ProductPrecision,
) -> Value {
    let x = w.reshape(x, &images(k));
    let filters = w.reshape(filters, &filter(k, depthwise));
    // Windows skip a rest shorter than a stride anyway; cropping it explicitly would copy the
    // input.
    let mut around = padding(k);
    for (pad, &stride) in around.iter_mut().zip(&k.stride) {
        if -(stride as i64) < pad[1] {
            pad[1] = pad[1].max(0);
        }
    }
    let c = Convolution {
        dims: "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]",
        stride: k.stride,
        lhs_dilation: [1, 1],
        rhs_dilation: k.dilation,
        padding: around,
        feature_groups: if depthwise { k.in_channels } else { 1 },
        batch_groups: 1,
        precision,
    };
    convolve(w, &x, &filters, &c, &results(k))
}

/// The gradient of the input: a convolution of dy, dilated by the stride, with the reversed filter.
fn input_grad(
    w: &mut Writer,
    k: &Conv2d,
    dy: &Value,
    filters: &Value,
    depthwise: bool,
    precision: ProductPrecision,
) -> Value {
    let dy = w.reshape(dy, &results(k));
    let filters = w.reshape(filters, &filter(k, depthwise));
    let filters = w.reverse(&filters, &[0, 1]);
    let around = [0, 1].map(|a| {
        let reach = (k.kernel[a] as i64 - 1) * k.dilation[a] as i64;
        let spread = (k.out_size[a] as i64 - 1) * k.stride[a] as i64 + 1;
        let low = reach - k.pad_low[a] as i64;
        [low, k.in_size[a] as i64 + reach - spread - low]
    });
    let c = Convolution {
        dims: if depthwise {
            "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
        } else {
            "[b, 0, 1, f]x[0, 1, o, i]->[b, 0, 1, f]"
        },
        stride: [1, 1],
        lhs_dilation: k.stride,
        rhs_dilation: k.dilation,
        padding: around,
        feature_groups: if depthwise { k.in_channels } else { 1 },
        batch_groups: 1,
        precision,
    };
    convolve(w, &dy, &filters, &c, &images(k))
}

/// The gradient of the filter: a convolution of x with dy as the filter, summed over the batch,
/// with one output position per filter tap.
fn filter_grad(
    w: &mut Writer,
    k: &Conv2d,
    x: &Value,
    dy: &Value,
    depthwise: bool,
    precision: ProductPrecision,
) -> Value {
    let (x, dy) = (w.reshape(x, &images(k)), w.reshape(dy, &results(k)));
    let c = Convolution {
        dims: "[f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f]",
        stride: k.dilation,
        lhs_dilation: [1, 1],
        rhs_dilation: k.stride,
        padding: padding(k),
        feature_groups: 1,
        batch_groups: if depthwise { k.in_channels } else { 1 },
        precision,
    };
    convolve(w, &x, &dy, &c, &filter(k, depthwise))
}
